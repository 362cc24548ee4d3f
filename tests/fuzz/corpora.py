"""The cases that are mutated: the small files of ``tests/data``, and files that are made here."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import columns_of
from streammiml.config import LiftSpec, TrainConfig
from streammiml.learn import timing
from streammiml.learn.train import train
from streammiml.measure.predict import predict
from streammiml.model import LabelRule, LiftArrays, Model
from tests.fuzz.case import Case, load_case, load_folder
from tests.planted import planted
from tests.stores import (
    as_sparse,
    made_block,
    made_kept,
    made_spec,
    plain,
    scratch,
    sizes,
    with_kept,
    write_parts,
)
from tests.tools.readers import arrow_files, hdf5_files, matlab_files, tar_files, tf_messages
from tests.tools.source_files import save_npy, save_npz

DATA = Path(__file__).parents[1] / "data"
READERS, FOUND = DATA / "readers", DATA / "fuzz"
TABLE = "bag_labels"
"""Stem of the file that a case gives as ``--bag-labels``."""
ORIGINAL = "original"
"""Folder of a case with the checkpoint as it was written."""
TRAIN = TrainConfig(
    shared_dim=3, subconcepts=2, epochs=2, validation=0.2, validate_every=20, block_bags=4,
    mix_blocks=2, checkpoint_every="20", threads=1, preset="plain",
)  # fmt: skip


def found_cases(target: str) -> list[Case]:
    """Cases that were found once, and whose cause is mended."""
    cases = [load_case(folder) for folder in sorted(FOUND.glob("*")) if folder.is_dir()]
    return [case for name, case in cases if name == target]


def _data(*names: str) -> Case:
    """A case of files in tests/data/readers."""
    return Case({Path(name).name: (READERS / name).read_bytes() for name in names})


def _gzipped(case: Case) -> Case:
    return Case({f"{k}.gz": gzip.compress(v, mtime=0) for k, v in case.files.items()})


def _zstd(case: Case) -> Case:
    compressed = pa.Codec("zstd").compress
    return Case({f"{k}.zst": compressed(v, asbytes=True) for k, v in case.files.items()})


def _each(pattern: str) -> list[Case]:
    return [_data(path.name) for path in sorted(READERS.glob(pattern))]


def _made(*makers: Callable[[Path], object]) -> list[Case]:
    """A case for each function that writes files into a folder."""
    return list(_made_each(makers))


def _made_each(makers: tuple[Callable[[Path], object], ...]) -> Iterator[Case]:
    for maker in makers:
        with scratch() as folder:
            maker(folder)
            yield Case(load_folder(folder))


# Text.


def arff() -> list[Case]:
    """Cases of the target."""
    return [
        _data("bags.arff"),
        _data("bags.arff", "bags.xml"),
        _data("rows-sparse.arff", "rows-sparse.xml"),
        _gzipped(_data("bags.arff")),
    ]


def csv() -> list[Case]:
    """Cases of the target."""
    texts = (
        b"bag,x,y,labels\na,1,2,sea;sky\na,3,4,sea;sky\nb,5,6,\n",
        b'"bag","x","row_label","label_1","label_2"\r\n"a ""1""",1,-1,0,1\r\nb,2e3,1,1,0\r\n',
        b"id\tx\tlabels\na\t1\t0\nb\t4\t1;2\n",
        b"bag,x,labels,coords,note,time\na,1,sky,7,w,0.5\na,2,sky,-8,,\nb,3,sea,9,007,1\n",
    )
    return [
        *_each("*.csv"),
        *_each("*.tsv"),
        _data(*(f"triple_{name}.txt" for name in ("features", "bag_labels", "instance_labels"))),
        *(Case({"a.csv": text}) for text in (*texts[:2], texts[3])),
        Case({"a.tsv": texts[2]}),
        _gzipped(_data("long-marks.csv")),
        _zstd(_data("long-list.tsv")),
    ]


def jsonl() -> list[Case]:
    """Cases of the target."""
    kept = (
        b'{"id": "a", "instances": [[1, 2], [3, 4]], "labels": ["sky"], '
        b'"coords": [[1, 2], [3, 4]], "kept": {"note": ["", "b"], "time": [null, 0.5]}}'
    )
    return [
        *_each("*.jsonl"),
        Case({"a.jsonl": kept + b"\n" + kept.replace(b'"a"', b'"b"') + b"\n"}),
        _gzipped(_data("bags.jsonl")),
        _zstd(_data("bags-sparse.jsonl")),
        Case(
            {"a.jsonl": b'{"bag": 1, "features": [1, 2], "label": 3}\n{"bag": 2, "features": []}\n'}
        ),
    ]


def protein() -> list[Case]:
    """Cases of the target."""
    pair = _data("protein/instances.txt", "protein/labels.txt")
    return [pair, _gzipped(pair)]


def svmlight() -> list[Case]:
    """Cases of the target."""
    more = b"1,2 qid:1 1:0.5 4294967290:1\n-1 qid:2 3:1e3\n"
    return [_data("bags.svmlight"), _gzipped(_data("bags.svmlight")), Case({"a.svm": more})]


# Tables.


def _arrow_tables() -> list[pa.Table]:
    long, nested = pa.table(arrow_files.LONG), pa.table(arrow_files.NESTED)
    ids = pa.array(["a", "a", "b", "c"])
    rows = [[1, 2.5], [-3, 4], [0.1, 2], [7, 8]]
    floats = pa.array(rows, pa.list_(pa.float32(), 2))
    return [
        long,
        nested,
        pa.table(arrow_files.VARIED),
        pa.table({"bag": ids, "embedding": floats, "labels": [[0], [0], [1, 2], []]}),
        pa.table({"bag": [1, 1, 2], "x": pa.array([1, 2, 3], pa.float16()), "label": [1] * 3}),
        pa.table({
            "id": ["a", "b"],
            "instances": pa.array([rows[:2], rows[2:]], pa.large_list(pa.large_list(pa.float64()))),
            "labels": pa.array([["x"], []], pa.large_list(pa.string())),
        }),
        pa.table({
            "id": ["a", "b"],
            "instances": pa.array([rows[:2], rows[2:]], pa.list_view(pa.list_view(pa.float32()))),
            "labels": pa.array(["x;y", ""]).dictionary_encode(),
            "other": pa.array([[{"a": 1}], []]),
        }),
    ]  # fmt: skip


def arrow() -> list[Case]:
    """Cases of the target."""
    makers = [
        partial(_write_table, table, suffix)
        for table in (*_arrow_tables(), _kept_table())
        for suffix in arrow_files.SUFFIXES
    ]
    folder = Case({
        f"split={name}/a.parquet": content
        for name in ("train", "test")
        for content in _made(partial(_write_table, _kept_table(), ".parquet"))[0].files.values()
    })  # fmt: skip
    return [*_made(*makers), folder]


def _kept_table() -> pa.Table:
    """A table with a record a row, and columns to keep."""
    coords = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2))
    columns = {"bag": ["a", "a", "b"], "x": [1.0, 2, 3], "labels": [["sky"], ["sky"], ["sea"]]}
    return pa.table({**columns, "coords": coords, "note": ["", "w", "é"], "time": [0.5, 1, 2]})


def _write_table(table: pa.Table, suffix: str, folder: Path) -> None:
    # Few formats lack a few types.
    try:
        arrow_files.write(folder / f"a{suffix}", table, 2)
    except (pa.ArrowException, NotImplementedError):
        pa.ipc.new_stream(str(folder / "a.arrow"), table.schema).write_table(table)


def bag_labels() -> list[Case]:
    """Cases of the target: a source with ids and a table of their labels."""
    source = {"bags.jsonl": (READERS / "bags.jsonl").read_bytes()}
    texts = {
        "csv": b"bag,labels\na,sky\nb,\nc,sky;sea\n",
        "tsv": b"slide_id\tlabel_sea\tlabel_sky\tage\na\t0\t1\t70\nb\t0\t0\t50\nc\t1\t1\t6\n",
        "txt": b'\xef\xbb\xbfbag|sea|sky\r\na|true|false\r\nb|0|1\r\n"c"|1.0|0\r\n',
    }
    tables = {
        "0": pa.table({"bag": ["a", "b", "c"], "labels": [["sky"], [], ["sea"]]}),
        "1": pa.table({"bag": pa.array(["a", "b", "c"]).dictionary_encode(), "x": [0, 1, 0]}),
        "2": pa.table({"bag": ["a", "b", "c"], "labels": [[1], None, [0, 2]], "z": [b"x"] * 3}),
        "3": pa.table({"bag": ["a", "b", "c"], "sea": [True, False, True], "sky": [1, 0, 1]}),
    }
    cases = [Case({**source, f"{TABLE}.{suffix}": text}) for suffix, text in texts.items()]
    for table in tables.values():
        for suffix in (".parquet", ".feather", ".arrow"):
            made = _made(partial(_write_table, table, suffix))[0]
            cases += [
                Case({**source, f"{TABLE}{Path(name).suffix}": content})
                for name, content in made.files.items()
            ]
    cases.append(Case({**source, f"{TABLE}.csv.gz": gzip.compress(texts["csv"], mtime=0)}))
    return cases


# A file a bag.


def _one_bag_files(folder: Path, kind: str) -> None:
    folder = folder / "bags"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("a", "b.v2"):
        rows = rng.normal(size=(3, 4)).astype(np.float32)
        path = folder / name
        if kind == "npy":
            np.save(f"{path}.npy", rows)
        elif kind == "npz":
            np.savez_compressed(f"{path}.npz", features=rows, coords=np.zeros((3, 2), int))
        elif kind == "h5":
            with h5py.File(f"{path}.h5", "w") as file:
                file.create_dataset("features", data=rows[None], chunks=(1, 1, 4))
                file.create_dataset("coords", data=np.zeros((3, 2), np.int64))
        elif kind == "csv":
            lines = [",".join(map(repr, row)) for row in rows.tolist()]
            (folder / f"{name}.csv").write_text("\n".join(["x,y,z,w", *lines, ""]))
        elif kind == "parquet":
            pq.write_table(pa.table({f"f{i}": rows[:, i] for i in range(4)}), f"{path}.parquet")
        else:
            arrow_files.write(folder / f"{name}.{kind}", pa.table({"embedding": rows.tolist()}))


def _torchmil(folder: Path, *, marks: bool) -> None:
    for part in ("features", "labels"):
        (folder / "bags" / part).mkdir(parents=True)
    for number in range(3):
        rows = np.arange(8, dtype=np.float16).reshape(2, 4) + number
        np.save(folder / f"bags/features/{number}.npy", rows)
        label = np.array([number % 2, 1, 0]) if marks else np.array(number)
        np.save(folder / f"bags/labels/{number}.npy", label)


def files() -> list[Case]:
    """Cases of the target."""
    kinds = ("npy", "npz", "h5", "csv", "parquet", "feather", "arrow")
    table = {f"{TABLE}.csv": b"bag,labels\na,sky\nb.v2,sea;sky\n"}
    plain_cases = _made(*(lambda folder, kind=kind: _one_bag_files(folder, kind) for kind in kinds))
    return [
        *plain_cases,
        *(Case({**case.files, **table}) for case in plain_cases),
        *_made(partial(_torchmil, marks=True), partial(_torchmil, marks=False)),
    ]


# Arrays.


def _blocks() -> dict[str, BagBlock]:
    block = made_block(4)
    return {"dense": block, "sparse": as_sparse(block), "plain": plain(block)}


def _kept(n_rows: int) -> dict[str, np.ndarray]:
    """Arrays to keep, as files hold them."""
    kept = made_kept(n_rows)
    return {**kept, "note": kept["note"].astype(str)}


def npz() -> list[Case]:
    """Cases of the target."""
    makers: list[Callable[[Path], object]] = []
    for block in _blocks().values():
        for compressed in (False, True):
            makers.append(
                lambda folder, b=block, c=compressed: save_npz(folder / "a.npz", b, compressed=c)
            )
        makers.append(lambda folder, b=block: save_npy(folder / "arrays", b))
    bags = np.arange(24.0).reshape(3, 4, 2)
    marks = np.eye(3, dtype=int)
    makers.append(lambda folder: np.savez(folder / "a.npz", X=bags, Y=marks))
    block = made_block(4)
    kept = _kept(block.n_rows)
    for compressed in (False, True):
        makers.append(
            lambda folder, c=compressed: save_npz(folder / "a.npz", block, compressed=c, **kept)
        )
    return _made(*makers)


def hdf5() -> list[Case]:
    """Cases of the target."""
    makers: list[Callable[[Path], object]] = []
    for block in _blocks().values():
        arrays = hdf5_files.flat(block)
        makers.append(lambda folder, a=arrays: hdf5_files.write(folder / "a.h5", a))
        makers.append(
            lambda folder, a=arrays: hdf5_files.write(
                folder / "a.h5", a, "g", compression="gzip", chunks=True, shuffle=True
            )
        )
    block = made_block(4)
    arrays = hdf5_files.flat(block) | made_kept(block.n_rows)
    makers.append(lambda folder: hdf5_files.write(folder / "a.h5", arrays))
    makers.append(_hdf5_groups)
    return _made(*makers)


def _hdf5_groups(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        for bag in ("a", "b"):
            group = file.create_group(bag)
            group["instances"], group["labels"] = np.ones((3, 2)), ["sky"]
            for name, values in made_kept(3).items():
                group[name] = values


def matlab() -> list[Case]:
    """Cases of the target."""
    rng = np.random.default_rng(0)
    bags = [rng.normal(size=(2 + i % 2, 3)) for i in range(4)]
    cells, marks = matlab_files.cell(bags), (rng.random((4, 3)) < 0.5).astype(float)
    flat = {
        "instances": np.concatenate(bags),
        "bag_ids": np.repeat([1.0, 2, 3, 4], [len(bag) for bag in bags])[:, None],
        "targets": marks,
    }
    variables = (
        {"bags": cells, "targets": marks},
        {"bags": cells, "targets": scipy.sparse.csc_array(marks), "names": np.eye(2)},
        {"data": {"bags": cells, "targets": marks.T}},
        flat,
    )
    cases = _made(
        *(
            lambda folder, w=write, v=content: w(folder / "a.mat", v)
            for content in variables
            for write in (matlab_files.write5, matlab_files.write73)
        )
    )
    return [Case({"a.mat": _without_date(case.files["a.mat"])}) for case in cases]


def _without_date(content: bytes) -> bytes:
    """A MATLAB file whose header does not say when it was made."""
    return content[:19].ljust(116) + content[116:] if content[:10] == b"MATLAB 5.0" else content


def webdataset() -> list[Case]:
    """Cases of the target."""
    rows = np.ones((3, 2), np.float32)
    kept = _kept(3)
    members: dict[str, object] = {}
    for key in ("a", "b"):
        members |= {f"{key}.{name}.npy": values for name, values in kept.items()}
        members |= {f"{key}.cls": 1, f"{key}.features.npy": rows}
    packed = {"a.cls": 1, "a.npz": tar_files.npz(features=rows, **kept)}
    made = [Case({"a.tar": tar_files.tar_bytes(content)}) for content in (members, packed)]
    return [*_each("*.tar"), *made, _gzipped(_data("bags.tar")), _zstd(_data("bags.tar"))]


def tfrecord() -> list[Case]:
    """Cases of the target."""
    frames = [bytes(range(i, i + 4)) for i in range(3)]
    short = [np.array([i, 0.5], "f4") for i in range(3)]
    videos = [
        tf_messages.sequence({"id": name, "labels": [2, 0]}, {"rgb": frames, "audio": frames})
        for name in (b"a", b"b")
    ]
    floats = [
        tf_messages.sequence({"id": [7 + i], "labels": [b"sea", b"sky"]}, {"feature": short})
        for i in range(2)
    ]
    examples = [
        tf_messages.example({"x": np.array([1, 2, 3, 4.0]), "labels": [i]}, packed=bool(i))
        for i in range(2)
    ]
    texts = [tf_messages.example({"raw": frames, "label": [b"sea"], "x": [1.0, 2.0]})]
    kept = [
        tf_messages.sequence(
            {"id": name, "labels": [b"sky"], "time": [0.5, 1, 2]},
            {"rgb": frames, "coords": [[1, 2], [3, 4], [5, 6]], "note": [b"", b"w", b"x"]},
        )
        for name in (b"a", b"b")
    ]
    made = [
        Case({"a.tfrecord": b"".join(map(tf_messages.record, messages))})
        for messages in (videos, floats, examples, texts, kept)
    ]
    return [*made, _gzipped(made[0])]


# Stores.


def _store(
    backend: str, codec: str, folder: Path, *, is_sparse: bool, is_kept: bool = False
) -> None:
    block = made_block(6)
    block = as_sparse(block) if is_sparse else block
    block = with_kept(block) if is_kept else block
    kept = columns_of(block.kept)
    spec = made_spec(sparse=is_sparse, codec=codec, chunk_bytes=48, kept=kept)
    with sizes():
        write_parts(folder / f"a.{backend}", spec, [block.slice(0, 4), block.slice(4, 6)])


def stores(backend: str) -> list[Case]:
    """Stores of one backend."""
    return _made(
        *(
            partial(_store, backend, codec, is_sparse=is_sparse)
            for codec in ("none", "lz4", "zstd")
            for is_sparse in (False, True)
        ),
        *(
            partial(_store, backend, codec, is_sparse=False, is_kept=True)
            for codec in ("none", "zstd")
        ),
    )


def store() -> list[Case]:
    """Stores of both backends."""
    return [
        case
        for backend in ("zarr", "parquet")
        for case in stores(backend)[:2] + stores(backend)[-2:-1]
    ]


def manifests() -> list[Case]:
    """Manifests alone."""
    return [
        Case({name: case.files[name]})
        for case in store()
        for name in case.files
        if name.endswith("manifest.json")
    ]


# Models, runs, predictions.


def made_model(**changes: object) -> Model:
    """A model for ``scored_bags``."""
    lift = LiftSpec.parse(str(changes.pop("lift", "none")))
    rng = np.random.default_rng(0)
    width = lift.width(3)
    fields = {
        "shared": rng.normal(size=(width, 5)),
        "labels": rng.normal(size=(5, 2, 5)),
        "lift": LiftArrays(
            shift=np.zeros(3),
            scale=np.ones(3),
            transform=0,
            unit=1,
            frequencies=rng.normal(size=(3, lift.n_fourier)),
            phases=rng.uniform(size=lift.n_fourier),
            context=lift.context,
        ),
        "rule": LabelRule(min_labels=1),
        "label_names": ("sea", "sky", "sun", "tree"),
    }
    return Model(**{**fields, **changes})  # type: ignore[arg-type]


def models() -> list[Case]:
    """Model files."""
    changes = (
        {},
        {"lift": "fourier:4", "label_names": None},
        {"lift": "context", "rule": LabelRule(name="margin", r=2, offset=-0.5)},
        {"settings": {"scale": "standard", "seed": 3}, "provenance": {"steps": 12}},
    )
    return _made(
        *(lambda folder, c=change: made_model(**c).save(folder / "model.safetensors")
          for change in changes)
    )  # fmt: skip


def write_small_store(folder: Path) -> Path:
    """A store for models of ``made_model`` and runs of ``TRAIN``."""
    path = folder / "store.zarr"
    with sizes(index_chunk=16, shard=1024):
        write_parts(path, made_spec(row_labels=False), [_small_block()])
    return path


def _small_block() -> BagBlock:
    block = planted(24, n_features=3, n_labels=4)
    return BagBlock(
        block.bag_offsets,
        block.rows,
        block.label_offsets,
        block.label_indices,
        bag_ids=[f"bag-{i}" for i in range(len(block))],
    )


def _predictions(folder: Path, format: str) -> None:
    path = write_small_store(folder)
    made_model().save(folder / "model.safetensors")
    predict(str(folder / "model.safetensors"), str(path), folder / "out", format=format, threads=1)


def predictions() -> list[Case]:
    """Folders of predictions, with their model and store."""
    cases = []
    for number, format in enumerate(("parquet", "zarr")):
        made = _made(partial(_predictions, format=format))[0]
        cases.append(Case(made.files, number))
    return cases


def _run(folder: Path) -> None:
    train(write_small_store(folder), TRAIN, run=folder / "run")


@cache
def _finished_run() -> dict[str, bytes]:
    # Without times, the files have the same bytes whenever they are made.
    zero, times = mock.Mock(return_value=0.0), mock.Mock(return_value={"kernel": 0.0})
    with (
        mock.patch.object(timing, "time", mock.Mock(monotonic=zero)),
        mock.patch.object(timing.TrainClock.__init__, "__defaults__", (zero,)),
        mock.patch.object(timing.WorkDone, "times", times),
    ):
        return _made(_run)[0].files


def runs() -> list[Case]:
    """Run folders with their store."""
    finished = _finished_run()
    unfinished = {k: v for k, v in finished.items() if k != "run/model.safetensors"}
    return [Case(finished), Case(unfinished)]


def checkpoints() -> list[Case]:
    """Folders of checkpoints."""
    return [
        Case({Path(name).name: content, f"{ORIGINAL}/{Path(name).name}": content})
        for name, content in _finished_run().items()
        if "/checkpoints/" in name
    ]


def settings() -> list[Case]:
    """Files for ``--config``."""
    run = _finished_run()["run/settings.toml"]
    text = b'shared_dim = 20\nepochs = 3\nlift = "fourier:5,context"\nscale = "sqrt:unit"\n'
    text += (
        b'memory = "1GiB"\ncheckpoint_every = "5min"\nloss = "pairs"\nseed = 1\nrule = "margin"\n'
    )
    return [Case({"a.toml": run}), Case({"a.toml": text})]
