"""A file a bag: the layouts people have, what is refused, spans, workers and resuming."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.convert.sources import find_sources
from streammiml_tools.readers.bag_files import READER, bag_id
from streammiml_tools.readers.base import SourceError, SourceOptions
from tests.tools.readers.damage import DamagedReads
from tests.tools.source_files import bags_of

N_BAGS = 9


def slides(n_bags=N_BAGS, width=4):
    rng = np.random.default_rng(3)
    return {
        f"slide_{i}.v2": rng.standard_normal((int(rng.integers(1, 6)), width)).astype(np.float32)
        for i in range(n_bags)
    }


def write_npy(path, rows):
    np.save(f"{path}.npy", rows)


def write_npz(path, rows):
    np.savez_compressed(f"{path}.npz", features=rows, coords=np.zeros((len(rows), 2), int))


def write_hdf5(path, rows):
    # As CLAM and TRIDENT do.
    with h5py.File(f"{path}.h5", "w") as file:
        file.create_dataset("features", data=rows, chunks=(1, rows.shape[1]))
        file.create_dataset("coords", data=np.zeros((len(rows), 2), np.int64))


def write_csv(path, rows):
    lines = [",".join(repr(float(value)) for value in row) for row in rows]
    path.with_name(path.name + ".csv").write_text("\n".join(["x,y,z,w", *lines, ""]))


def write_parquet(path, rows):
    columns = {f"f{i}": rows[:, i] for i in range(rows.shape[1])}
    pq.write_table(pa.table(columns), f"{path}.parquet")


def write_parquet_lists(path, rows):
    pq.write_table(pa.table({"embedding": rows.tolist(), "time": range(len(rows))}), f"{path}.pq")


def write_all(folder, write, bags=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (slides() if bags is None else bags).items():
        write(folder / name, rows)
    return folder


def write_labels(path, names=None):
    names = slides() if names is None else names
    path.write_text(
        "slide_id,label\n" + "".join(f"{n},{'ab'[i % 2]}\n" for i, n in enumerate(names))
    )
    return SourceOptions(bag_labels=str(path))


def check(store, bags=None):
    bags = slides() if bags is None else bags
    assert [bag[0] for bag in bags_of(store)] == sorted(bags)
    assert [bag[1] for bag in bags_of(store)] == [(i % 2,) for i in range(len(bags))]
    assert [bag[2] for bag in bags_of(store)] == [bags[name].tobytes() for name in sorted(bags)]
    assert store.label_names == ["a", "b"]


@pytest.mark.parametrize(
    "write", [write_npy, write_npz, write_hdf5, write_csv, write_parquet, write_parquet_lists]
)
def test_folder__of_a_file_a_bag(tmp_path, write):
    folder = write_all(tmp_path / "slides", write)
    options = write_labels(tmp_path / "l.csv")
    assert find_sources([str(folder)], options).reader.name == "files"
    store = convert(folder, tmp_path / "o.zarr", options=options).store
    check(store)
    assert store.dtype == ("float32")


def test_spans_workers_and_resuming__give_the_same_store(tmp_path):
    folder = write_all(tmp_path / "slides", write_npy)
    options = write_labels(tmp_path / "l.csv")
    want = convert(folder, tmp_path / "a.zarr", options=options).store.fingerprint
    small = replace(options, span_bytes=64)
    assert convert(folder, tmp_path / "b.zarr", options=small).store.fingerprint == want
    assert convert(folder, tmp_path / "c.zarr", options=small, workers=2).store.fingerprint == want

    def stop(progress):
        if progress.bags > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder, tmp_path / "d.zarr", options=small, watch=stop)
    assert convert(folder, tmp_path / "d.zarr", options=small).store.fingerprint == want


def test_types__are_kept_or_widened(tmp_path):
    bags = {name: rows.astype(np.float16) for name, rows in slides().items()}
    folder = write_all(tmp_path / "half", write_npy, bags)
    options = write_labels(tmp_path / "l.csv")
    store = convert(folder, tmp_path / "h.zarr", options=options).store
    assert store.dtype == "float16"
    write_npy(folder / "slide_0.v2", slides()["slide_0.v2"])
    assert convert(folder, tmp_path / "m.zarr", options=options).store.dtype == "float32"


def test_leading_axis_of_one__is_left_out(tmp_path):
    bags = slides()
    folder = tmp_path / "slides"
    folder.mkdir()
    for name, rows in bags.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["features"] = rows[None]
    check(convert(folder, tmp_path / "o.zarr", options=write_labels(tmp_path / "l.csv")).store)


def test_folder_of_torchmil__needs_no_option(tmp_path):
    bags = slides()
    write_all(tmp_path / "set" / "features", write_npy, bags)
    write_all(tmp_path / "set" / "coords", write_npy, {n: r[:, :2] for n, r in bags.items()})
    labels = {name: np.array([i % 2]) for i, name in enumerate(sorted(bags))}
    write_all(tmp_path / "set" / "labels", write_npy, labels)
    store = convert(tmp_path / "set", tmp_path / "o.zarr").store
    assert [bag[:2] for bag in bags_of(store)] == [
        (name, (i % 2,)) for i, name in enumerate(sorted(bags))
    ]
    keep = SourceOptions(keep=("coords",))
    kept = convert(tmp_path / "set", tmp_path / "k.zarr", options=keep).store
    for bag in kept:
        assert bag.kept["coords"].tolist() == bags[bag.id][:, :2].tolist()
    marks = {name: np.array([1, i % 2, 0]) for i, name in enumerate(sorted(bags))}
    write_all(tmp_path / "set" / "labels", write_npy, marks)
    named = SourceOptions(labels=("x", "y", "z"))
    store = convert(tmp_path / "set", tmp_path / "m.zarr", options=named).store
    assert [bag[1] for bag in bags_of(store)] == [(0, 1) if i % 2 else (0,) for i in range(N_BAGS)]
    assert store.label_names == ["x", "y", "z"]
    check(
        convert(
            tmp_path / "set", tmp_path / "t.zarr", options=write_labels(tmp_path / "l.csv")
        ).store
    )


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0.5]), r"slide_3.v2.npy: the class is 0.5, but classes are counted 0, 1, 2, …"),
        (np.array([np.nan]), r"slide_3.v2.npy: the class is nan, but classes are counted 0, 1, 2"),
        (np.array([-np.inf]), r"slide_3.v2.npy: the class is -inf, but classes are counted 0, 1"),
        (np.array([np.nan, 1.0]), r"slide_3.v2.npy has 2 values, but .* has 1; each"),
        (np.zeros((2, 2)), r"expected the number of a class, or a row of 0 and 1 with a mark"),
        (np.array([1, 0]), r"slide_3.v2.npy has 2 values, but .* has 1; each file of labels needs"),
        (None, r"slide_3.v2.npy has no file of labels beside it \(1 such bags\); add labels/slide"),
    ],
)
def test_folder_of_torchmil__with_other_labels_is_refused(tmp_path, labels, message):
    bags = slides()
    write_all(tmp_path / "set" / "features", write_npy, bags)
    write_all(tmp_path / "set" / "labels", write_npy, {name: np.array([0]) for name in bags})
    if labels is None:
        (tmp_path / "set" / "labels" / "slide_3.v2.npy").unlink()
    else:
        write_npy(tmp_path / "set" / "labels" / "slide_3.v2", labels)
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / "set", tmp_path / "o.zarr")


def test_bags__that_miss_in_the_table_are_named_and_those_without_a_file_are_said(tmp_path):
    folder = write_all(tmp_path / "slides", write_npy)
    names = sorted(slides())
    options = write_labels(tmp_path / "l.csv", [*names, "more"])
    lines = []
    convert(folder, tmp_path / "o.zarr", options=options, say=lines.append)
    assert lines == [f"{tmp_path / 'l.csv'} has labels for 1 more bags: more"]
    options = write_labels(tmp_path / "l.csv", [f"{name}.svs" for name in names])
    message = r"9 bags 'slide_0.v2', .* not in .*l.csv, column 'slide_id', whose ids are like 'sli"
    with pytest.raises(SourceError, match=message):
        convert(folder, tmp_path / "p.zarr", options=options)


def refused(tmp_path, message, folder="slides", **more):
    options = replace(write_labels(tmp_path / "l.csv"), **more)
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / folder, tmp_path / "o.zarr", options=options)
    assert not (tmp_path / "o.zarr").exists()


def test_files__that_do_not_go_together_are_refused(tmp_path):
    folder = write_all(tmp_path / "slides", write_npy)
    write_npy(folder / "slide_3.v2", np.zeros((2, 5), np.float32))
    refused(tmp_path, r"slide_3.v2.npy has rows of 5 values, expected 4, as in the first file")
    write_npy(folder / "slide_3.v2", np.zeros(4, np.float32))
    refused(tmp_path, r"slide_3.v2.npy is float32 of shape \(4,\), expected numbers of shape")
    write_all(folder / "more", write_npy)
    refused(
        tmp_path, r"slides/more/.* and .* have the same name, which is the id of their bag|same"
    )
    write_all(tmp_path / "two", write_npy)
    write_csv(tmp_path / "two" / "x", slides()["slide_1.v2"])
    refused(tmp_path, r"are of different kinds; convert one kind at a time", "two")


def test_files__of_several_arrays_name_theirs(tmp_path):
    folder = tmp_path / "slides"
    folder.mkdir()
    for name, rows in slides().items():
        np.savez(folder / f"{name}.npz", left=rows, right=rows[:, :2])
    refused(tmp_path, r"which array holds the rows of the bag\? give --variables; arrays: left, ri")
    refused(tmp_path, r"has no array 'up' \(--variables\); arrays: left, right", variables=("up",))
    options = replace(write_labels(tmp_path / "l.csv"), variables=("left",))
    check(convert(folder, tmp_path / "o.zarr", options=options).store)


def test_files__with_ids_of_bags_are_read_as_before(tmp_path):
    folder = tmp_path / "long"
    folder.mkdir()
    for number in range(2):
        lines = [f"b{number}{i // 2},{i}.5" for i in range(6)]
        (folder / f"{number}.csv").write_text("\n".join(["slide_id,f", *lines, ""]))
    options = write_labels(tmp_path / "l.csv", [f"b{n}{i}" for n in range(2) for i in range(3)])
    options = replace(options, bag_column="slide_id")
    assert find_sources([str(folder)], options).reader.name == "csv"
    store = convert(folder, tmp_path / "o.zarr", options=options).store
    assert [bag[:2] for bag in bags_of(store)] == [
        (f"b{n}{i}", ((3 * n + i) % 2,)) for n in range(2) for i in range(3)
    ]


def test_format_files__takes_a_single_file_and_no_labels(tmp_path):
    write_all(tmp_path, write_npy, {"one": slides()["slide_1.v2"]})
    options = SourceOptions(format="files", label_columns=("none",))
    store = convert(tmp_path / "one.npy", tmp_path / "o.zarr", options=options).store
    assert (store.n_bags, store.bag_ids(0, 1), store.n_labels) == (1, ["one"], 0)
    (tmp_path / "words.md").write_text("words")
    with pytest.raises(SourceError, match=r"words.md: no file that can hold one bag"):
        convert(tmp_path / "words.md", tmp_path / "p.zarr", options=options)


def test_file__that_shrinks_or_declares_too_much_is_refused(tmp_path):
    folder = write_all(tmp_path / "slides", write_npy)
    path = folder / "slide_4.v2.npy"
    path.write_bytes(path.read_bytes()[:-3])
    refused(tmp_path, r"slide_4.v2.npy is cut short or damaged: its header declares")
    np.savez_compressed(folder / "huge.npz", features=np.zeros((1 << 20, 4), np.float32))
    for name in slides():
        (folder / f"{name}.npy").unlink()
    write_npz(folder / "x", slides()["slide_1.v2"])
    options = SourceOptions(format="files", label_columns=("none",))
    with pytest.raises(
        SourceError, match=r"huge.npz: a block of 16 MiB needs about 48 MiB, more th"
    ):
        convert(folder, tmp_path / "o.zarr", ConvertConfig(memory="16MiB"), options)


def test_csv__with_a_cut_last_line_or_words_is_refused(tmp_path):
    folder = write_all(tmp_path / "slides", write_csv)
    path = folder / "slide_4.v2.csv"
    text = path.read_text()
    path.write_text(text[:-2])
    refused(
        tmp_path, r"slide_4.v2.csv, line \d: the last line has no line break, so its last value"
    )
    path.write_text(text + "1,2,x,4\n")
    refused(
        tmp_path, r"slide_4.v2.csv, line \d: column 'z' is 'x', expected a number|other columns|v"
    )


def test_damaged_files__are_refused_in_one_line(tmp_path):
    rng = np.random.default_rng(1)
    for write, suffix in (
        (write_npy, "npy"),
        (write_npz, "npz"),
        (write_hdf5, "h5"),
        (write_parquet, "parquet"),
    ):
        folder = tmp_path / suffix
        folder.mkdir()
        paths = []
        for number in range(12):
            write(folder / f"b{number}", slides()["slide_1.v2"])
            path = folder / f"b{number}.{suffix}"
            raw = bytearray(path.read_bytes())
            raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
            path.write_bytes(raw if number % 2 else raw[: int(rng.integers(len(raw)))])
            paths.append(path)
        with DamagedReads() as reads:
            outcomes = reads.outcomes("files", paths)
        assert all(outcome == "read" or outcome.startswith("refused: ") for outcome in outcomes), (
            outcomes
        )


def test_id__is_the_name_without_suffix():
    assert [bag_id(Path(name)) for name in ("a/b.c.h5", "x.csv.gz", "y.npy")] == ["b.c", "x", "y"]


def write_table(path, columns):
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".csv":
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        path.write_text("\n".join([*lines, ""]))
    else:
        pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns__are_those_of_the_first_file_in_its_order(tmp_path, suffix):
    options = SourceOptions(format="files", label_columns=("none",))
    a, b = tmp_path / "s" / f"a.{suffix}", tmp_path / "s" / f"b.{suffix}"
    write_table(a, {"area": [1.5, 2.5], "gray": [10.5, 20.5]})
    write_table(b, {"area": [3.5], "gray": [30.5]})
    scanned = READER.scan([a, b], options)
    store = convert(tmp_path / "s", tmp_path / "o.zarr", options=options).store
    assert store.feature_names == ["area", "gray"]
    for other, words in (
        ({"gray": [30.5], "area": [3.5]}, "1 is 'gray', expected 'area'"),
        ({"area": [3.5], "grey": [30.5]}, "2 is 'grey', expected 'gray'"),
    ):
        message = rf"b\.{suffix}: feature column {words}, as in the first file; name the features"
        write_table(b, other)
        with pytest.raises(SourceError, match=message):
            convert(tmp_path / "s", tmp_path / "p.zarr", options=options)
        with pytest.raises(SourceError, match=message):
            list(READER.read(scanned.spans[0], scanned, options))
    if suffix == "csv":
        b.write_text("3.5,30.5\n")
        with pytest.raises(
            SourceError, match=r"b\.csv has no names of feature columns, expected names, as"
        ):
            READER.scan([a, b], options)
    write_table(b, {"gray": [30.5], "area": [3.5]})
    named = replace(options, feature_columns=("area", "gray"))
    store = convert(tmp_path / "s", tmp_path / "q.zarr", options=named).store
    assert store[1].rows.tolist() == [[3.5, 30.5]]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns__called_like_labels_are_no_features(tmp_path, suffix):
    options = SourceOptions(format="files", label_columns=("none",))
    more = {"label": [1, 0], "row_label": [0, 1], "label_sky": [0, 0]}
    path = tmp_path / "s" / f"a.{suffix}"
    write_table(path, {"area": [1.5, 2.5], **more, "gray": [10.5, 20.5]})
    lines = []
    store = convert(path, tmp_path / "o.zarr", options=options, say=lines.append).store
    assert store.feature_names == ["area", "gray"]
    assert "left out: columns label, row_label, label_sky" in READER.scan([path], options).notes
    options = replace(options, feature_columns=("area", "label"))
    assert READER.scan([path], options).feature_names == ("area", "label")
