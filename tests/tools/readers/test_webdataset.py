"""WebDataset: samples of tars as bags, their labels, spans, and what is refused."""

import gzip
import tarfile

import numpy as np
import pyarrow as pa
import pytest

import streammiml as sm
from streammiml.verbs.main import run
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.webdataset import READER
from tests.tools.readers.damage import DamagedReads
from tests.tools.readers.foreign import DATA, read_all
from tests.tools.readers.tar_files import content_of, npy, npz, tar_bytes, write_tar
from tests.tools.source_files import bags_of

NAMES = ("sky", "sea", "tree")


def bags(n_bags=20, dtype=np.float32):
    rng = np.random.default_rng(3)
    for number in range(n_bags):
        rows = rng.integers(0, 100, (int(rng.integers(1, 5)), 6)).astype(dtype)
        yield f"s{number:04d}", rows, sorted({number % 3, int(rng.integers(3))})


def members(*, label="json", rows="npy", n_bags=20):
    """Samples as people write them: an array, its labels, and members of other kinds."""
    for key, values, labels in bags(n_bags):
        names = [NAMES[number] for number in labels]
        yield f"{key}.jpg", b"\xff\xd8" * 400
        yield f"{key}.{rows}", values if rows.endswith("npy") else npz(features=values)
        yield {
            "json": (f"{key}.json", {"caption": "a", "labels": names}),
            "numbers": (f"{key}.json", {"labels": labels}),
            "list": (f"{key}.labels.json", names),
            "lines": (f"{key}.labels.txt", "\n".join(names) + "\n"),
            "cell": (f"{key}.labels.txt", ";".join(map(str, labels))),
            "marks": (f"{key}.labels.npy", np.isin(np.arange(3), labels).astype(np.uint8)),
        }[label]


def check(store, names=None):
    got = [(key, labels, rows) for key, labels, rows, _ in bags_of(store)]
    number = dict(enumerate(range(3)))
    if names is not None:
        number = {i: list(names).index(NAMES[i]) for i in range(3)}
    want = [
        (key, tuple(sorted(number[label] for label in labels)), rows.tobytes())
        for key, rows, labels in bags()
    ]
    assert got == want


@pytest.mark.parametrize("rows", ["npy", "npz", "features.npy", "embeddings.npz"])
@pytest.mark.parametrize("label", ["json", "numbers", "list", "lines", "cell", "marks"])
def test_samples__are_bags_with_the_labels_of_any_convention(tmp_path, rows, label):
    path = write_tar(tmp_path / "a.tar", list(members(label=label, rows=rows)))
    store = convert(path, tmp_path / "o.zarr").store
    is_named = label in ("json", "list", "lines")
    assert store.label_names == (sorted(NAMES) if is_named else None)
    assert (store.n_bags, store.n_labels, store.dtype) == (20, 3, "float32")
    check(store, store.label_names)


def test_classes__are_numbers_and_an_array_may_hold_one(tmp_path):
    rows = np.ones((2, 3), np.uint8)
    content = {"a/1.npy": rows, "a/1.cls": b"4", "a/2.npy": rows, "a/2.cls": b"0\n"}
    scan, block = read_all(READER, write_tar(tmp_path / "a.tar", content))
    assert (scan.dtype, scan.n_labels, scan.label_names, scan.n_bags) == ("uint8", None, None, 2)
    assert block.bag_ids == ["a/1", "a/2"]
    assert block.label_indices.tolist() == [4, 0]
    assert scan.notes == (
        "a sample a bag: rows of 3 uint8 in .npy, labels in .cls; the key of a sample is the id of "
        "its bag",
    )
    content = {"./1.x.npy": rows, "./1.target.npy": np.array(2)}
    _, block = read_all(READER, write_tar(tmp_path / "b.tar", content))
    assert (block.bag_ids, block.label_indices.tolist()) == (["1"], [2])
    content = {"1.npy": rows, "1.cls": b"sea"}
    scan, block = read_all(READER, write_tar(tmp_path / "c.tar", content))
    assert scan.label_names == ("sea",)
    _, block = read_all(READER, tmp_path / "c.tar", labels=("sky", "sea"))
    assert block.label_indices.tolist() == [1]


def test_members__are_chosen_by_options(tmp_path):
    rows, other = np.ones((2, 3)), np.zeros((1, 4), np.float32)
    content = {
        "1.b.npy": rows,
        "1.c.npz": npz(u=other, v=rows),
        "1.json": {"kind": ["x"], "labels": ["y"]},
        "1.txt": "z",
    }
    path = write_tar(tmp_path / "a.tar", content)
    for variables, width in ((("b",), 3), (("b.npy",), 3), (("c", "u"), 4), (("v",), 3)):
        for column, name in (("kind", "x"), ("txt", "z")):
            scan, _ = read_all(READER, path, variables=variables, label_columns=(column,))
            assert (scan.n_features, scan.label_names) == (width, (name,))
    scan, block = read_all(READER, path, variables=("b",), label_columns=("none",))
    assert len(block.label_indices) == 0
    assert scan.notes[1:] == ("no labels", "left out: members c.npz, json, txt")
    assert "3 float64 in .b.npy, rounded" in scan.notes[0]
    assert scan.dtype == "float32"


def test_shards__spans_and_compression_give_the_same_store(tmp_path):
    whole = convert(write_tar(tmp_path / "a.tar", list(members())), tmp_path / "a.zarr").store
    raw = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "g.tar.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "g.tgz").write_bytes(gzip.compress(raw))
    (tmp_path / "plain").write_bytes(raw)
    with pa.output_stream(str(tmp_path / "z.tar.zst"), compression="zstd") as out:
        out.write(raw)
    shards = tmp_path / "shards"
    shards.mkdir()
    content = list(members())
    for number, (start, stop) in enumerate(((0, 21), (21, 51), (51, 60))):
        form = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)[number]
        write_tar(shards / f"train-{number:06d}.tar", content[start:stop], form)
    options = SourceOptions(span_bytes=4000)
    names = ("a.tar", "g.tar.gz", "g.tgz", "plain", "z.tar.zst", "shards")
    for number, name in enumerate(names):
        out = tmp_path / f"{number}.zarr"
        assert convert(tmp_path / name, out, options=options).store.fingerprint == whole.fingerprint
    scan, block = read_all(READER, tmp_path / "a.tar", span_bytes=4000)
    assert len(scan.spans) > 5
    assert scan.n_bags == len(block) == sum(span.n_bags for span in scan.spans)
    out = tmp_path / "p.parquet"
    assert convert(tmp_path / "shards", out, workers=2).store.fingerprint == whole.fingerprint


def test_conversion__that_was_stopped_is_resumed(tmp_path):
    path = write_tar(tmp_path / "a.tar", list(members()))
    options = SourceOptions(span_bytes=4000)
    want = convert(path, tmp_path / "a.zarr", options=options).store.fingerprint

    def stop(progress):
        if progress.bags > 8:
            raise KeyboardInterrupt

    out, lines = tmp_path / "b.zarr", []
    with pytest.raises(KeyboardInterrupt):
        convert(path, out, options=options, watch=stop)
    assert convert(path, out, options=options, say=lines.append).store.fingerprint == want
    assert lines == [f"resuming the conversion to {out}"]


def test_bag_labels__find_samples_by_key(tmp_path):
    content = [(name, value) for name, value in members() if name.endswith(".npy")]
    for number, half in enumerate((content[:9], content[9:])):
        write_tar(tmp_path / f"{number}.tar", half)
    lines = [f"{key},{';'.join(NAMES[i] for i in labels)}" for key, _, labels in bags()]
    (tmp_path / "labels.csv").write_text("\n".join(["key,labels", *lines, ""]))
    words = [str(tmp_path / "0.tar"), str(tmp_path / "1.tar"), str(tmp_path / "o.zarr")]
    table = ["--bag-labels", str(tmp_path / "labels.csv"), "--bag-column", "key"]
    assert run(["convert", *words, *table]) == 0
    store = sm.open_store(tmp_path / "o.zarr")
    check(store, store.label_names)
    (tmp_path / "labels.csv").write_text("\n".join(["key,labels", *lines[1:], ""]))
    with pytest.raises(SourceError, match=r"0\.tar: bag 's0000' not in .*labels\.csv, col"):
        convert(
            words[:2],
            tmp_path / "p.zarr",
            options=SourceOptions(bag_labels=table[1], bag_column="key"),
        )


def test_file_of_the_test_data__is_read():
    scan, block = read_all(READER, DATA / "readers" / "bags.tar")
    assert (scan.n_bags, scan.n_features, scan.label_names) == (2, 2, ("cat", "dog"))
    assert block.bag_ids == ["0001", "0002"]
    with pytest.raises(SourceError, match=r"broken-cut\.tar, member '0002\.npy' is cut short"):
        read_all(READER, DATA / "readers" / "broken-cut.tar")


def test_empty_bags__follow_the_policy(tmp_path):
    content = {"1.npy": np.ones((0, 2), np.float32), "1.cls": b"0", "2.npy": np.ones((1, 2), "f4")}
    path = write_tar(tmp_path / "a.tar", {**content, "2.cls": b"1"})
    done = convert(path, tmp_path / "o.zarr", ConvertConfig(empty_bags="drop"))
    assert done.summary()["left_out"]["empty_bags"] == 1
    with pytest.raises(SourceError, match=r"a\.tar: 1 bags? ha.* no rows, .* bag '1'"):
        convert(path, tmp_path / "p.zarr")


# What is refused.

ROWS = np.ones((2, 3), np.float32)
GOOD = {"1.npy": ROWS, "1.cls": b"1"}


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ({}, {}, r"a\.tar has no samples; the members of a sample are called KEY\.npy, KEY\.cls"),
        ({"words": b"", ".a.npy": ROWS, "x/.b.npy": ROWS}, {}, r"a\.tar has no samples"),
        (
            {"1.pyd": b"", "1.cls": b"1"},
            {},
            r"sample '1': which member holds the rows of the bag, as npy or npz\? give --variabl"
            r"es; its members are cls, pyd; members of one sample must be adjacent, as tar",
        ),
        ({"1.a.npy": ROWS, "1.b.npy": ROWS, "1.cls": b"1"}, {}, r"'1': which member holds the row"),
        (GOOD, {"variables": ("x",)}, r"sample '1' has no member \.x of rows \(--variables\); its"),
        (
            {"1.npz": npz(a=ROWS, b=ROWS), "1.cls": b"1"},
            {},
            r"a\.tar, member 1\.npz: which array holds the rows of the bag\? give --variables; arr",
        ),
        (
            {"1.npy": ROWS},
            {},
            r"'1': which member holds the labels, .* or none; the sample has npy",
        ),
        (
            {"1.npy": ROWS, "1.json": {"a": 1, "b": 2}},
            {},
            r"which member holds the labels, or which field of json\? give --label-columns, or "
            r"none; the sample has json, npy, json field 'a', json field 'b'",
        ),
        (
            {"1.npy": ROWS, "1.json": {"a": 1}},
            {"label_columns": ("b",)},
            r"which member holds the labels, or which field",
        ),
        (GOOD, {"label_columns": ("b",)}, r"sample '1' has no member \.b \(--label-columns\); its"),
        (
            GOOD,
            {"label_columns": ("a", "b")},
            r"the labels of a sample are one member, or one field of json; --label-columns gives",
        ),
        (
            {**GOOD, "1.labels.txt": b"1"},
            {},
            r"'1': members 'cls' and 'labels\.txt' may both hold labels; give --label-columns",
        ),
        (
            {**GOOD, "2.npy": ROWS},
            {},
            r"sample '2' has no member \.cls, as the first sample has, but npy; members of one",
        ),
        (
            {"1.npy": ROWS, "2.npy": ROWS, "1.cls": b"1", "2.cls": b"1"},
            {},
            r"'1': which member holds the labels",
        ),
        (
            {"1\n2.npy": ROWS},
            {},
            r"a\.tar, member '1\\n2\.npy': the name has characters that cannot be shown; rename it",
        ),
        ([*GOOD.items(), ("1.cls", b"1")], {}, r"sample '1' has two members \.cls; remove one"),
        (
            {"1.npy": ROWS, **{f"1.{i}": b"" for i in range(1000)}},
            {},
            r"sample '1' has more than 1,000 members; the key of a sample is the name of its",
        ),
        (
            {**GOOD, "2.npy": ROWS[:, :2], "2.cls": b"1"},
            {},
            r"a\.tar, member 2\.npy has rows of 2 float32, expected 3 float32, as in the first",
        ),
        (
            {**GOOD, "2.npy": ROWS.astype(int), "2.cls": b"1"},
            {},
            r"member 2\.npy has rows of 3 int64, expected 3 float32, as in the first sample",
        ),
        (
            {"1.npy": ROWS[0], "1.cls": b"1"},
            {},
            r"member 1\.npy is float32 of shape \(3,\), expected numbers of shape \(rows, features",
        ),
        (
            {"1.npy": np.array([{}]), "1.cls": b"1"},
            {},
            r"member 1\.npy holds Python objects, which could run code when read",
        ),
        ({"1.npy": npy(ROWS)[:-1], "1.cls": b"1"}, {}, r"member 1\.npy is cut short or damaged"),
        ({"1.npz": b"PK", "1.cls": b"1"}, {}, r"member 1\.npz is not an npz, or is cut short"),
        ({"1.npy": ROWS, "1.json": b"{"}, {}, r"member 1\.json is not JSON as expected: Expecting"),
        ({"1.npy": ROWS, "1.json": b"[" * 99999}, {}, r"member 1\.json is not JSON as expected"),
        (
            {"1.npy": ROWS, "1.json": b'{"labels": [1], "labels": [2]}'},
            {},
            r"member 1\.json is not JSON as expected: 'labels' stands twice",
        ),
        ({"1.npy": ROWS, "1.json": [1.5]}, {}, r"member 1\.json: a label is 1\.5, expected a name"),
        (
            {"1.npy": ROWS, "1.json": [True]},
            {},
            r"member 1\.json: a label is true, expected a name",
        ),
        (
            {"1.npy": ROWS, "1.json": {"labels": 1}, "2.npy": ROWS, "2.json": {"label": 1}},
            {},
            r"member 2\.json has no field 'labels', as the first sample has",
        ),
        ({"1.npy": ROWS, "1.cls": b"\xff"}, {}, r"member 1\.cls is not UTF-8; convert it to UTF-8"),
        (
            {"1.npy": ROWS, "1.labels.txt": b"a,b"},
            {},
            r"member 1\.labels\.txt: is 'a,b' one label or several\? give the separator of labels",
        ),
        ({"1.npy": ROWS, "1.json": [1, 1]}, {}, r"sample '1': label 1 occurs twice; remove one"),
        (
            {"1.npy": ROWS, "1.json": [0, 1]},
            {},
            r"a\.tar has labels that all are \[0, 1\] or \[1, 0\]: marks of two labels, or numbers",
        ),
        (
            {"1.npy": ROWS, "1.cls": b"a", "2.npy": ROWS, "2.cls": b"1"},
            {},
            r"labels are given by number \(1\) and by name \('a'\); give --labels FILE",
        ),
        (
            {"1.npy": ROWS, "1.labels.npy": np.array([0, 2])},
            {},
            r"member 1\.labels\.npy, bag 0: the mark of label 1 is 2 \(1 such marks\), expected 0",
        ),
        (
            {
                **{"1.npy": ROWS, "1.labels.npy": np.eye(3)[0]},
                **{"2.npy": ROWS, "2.labels.npy": np.eye(4)[0]},
            },
            {},
            r"member 2\.labels\.npy has 4 values, expected 3, as in the first sample",
        ),
        (
            {"1.npy": ROWS, "1.labels.npy": np.eye(3)[0]},
            {"labels": ("a", "b")},
            r"a\.tar: 3 labels, but --labels gives 2 names",
        ),
        (
            GOOD,
            {"labels": ("a",)},
            r"sample '1': label 1 is not known; known: a; add it to --labels",
        ),
    ],
)
def test_samples__that_cannot_be_meant_are_refused(tmp_path, content, options, words):
    with pytest.raises(SourceError, match=words):
        read_all(READER, write_tar(tmp_path / "a.tar", content), **options)


def test_shards__of_other_samples_are_refused(tmp_path):
    paths = [write_tar(tmp_path / "a.tar", GOOD)]
    paths.append(write_tar(tmp_path / "b.tar", {"2.npy": ROWS, "2.json": {"labels": [1]}}))
    with pytest.raises(
        SourceError,
        match=r"b\.tar has other samples than .*a\.tar: rows of 3 float32 in \.npy, labels in "
        r"\.json, field 'labels' instead of rows of 3 float32 in \.npy, labels in \.cls; convert",
    ):
        convert(paths, tmp_path / "o.zarr")


def test_key__of_two_bags_is_refused(tmp_path):
    for number in range(2):
        write_tar(
            tmp_path / f"{number}.tar", GOOD if number else {**GOOD, "2.npy": ROWS, "2.cls": "0"}
        )
    with pytest.raises(sm.StreammimlError, match=r"'1'.*twice|twice.*'1'"):
        convert([tmp_path / "0.tar", tmp_path / "1.tar"], tmp_path / "o.zarr")
    grouped = convert(
        [tmp_path / "0.tar", tmp_path / "1.tar"],
        tmp_path / "g.zarr",
        options=SourceOptions(group=True),
    ).store
    assert [len(grouped[bag].rows) for bag in range(2)] == [4, 2]


def test_sizes__beyond_memory_are_refused_before_they_are_read(tmp_path):
    big = npz(compressed=True, features=np.zeros((1 << 20, 64), np.float32))
    path = write_tar(tmp_path / "a.tar", {"1.npz": big, "1.cls": b"0"})
    with pytest.raises(
        SourceError, match=r"member 1\.npz, member features\.npy: a block of 256 MiB"
    ):
        convert(path, tmp_path / "o.zarr", ConvertConfig(memory="64MiB"))
    write_tar(tmp_path / "b.tar", {"1.npy": ROWS, "1.json": b"[" + b"1," * (4 << 20) + b"2]"})
    with pytest.raises(
        SourceError, match=r"member '1\.json' of 8,388,611 bytes, needs about 256 M"
    ):
        convert(tmp_path / "b.tar", tmp_path / "o.zarr", ConvertConfig(memory="64MiB"))


def test_damaged_files__are_refused_in_one_line(tmp_path):
    rng = np.random.default_rng(5)
    paths = []
    for number in range(120):
        rows = ("npy", "npz")[number % 2]
        kind = ("json", "marks", "lines", "cell")[number // 2 % 4]
        raw = bytearray(tar_bytes(list(members(label=kind, rows=rows, n_bags=2))))
        if number % 3:
            # Members are damaged, and their headers made again.
            content = members(label=kind, rows=rows, n_bags=2)
            raw = bytearray(tar_bytes([(name, damaged(rng, value)) for name, value in content]))
        else:
            raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        if number % 5 == 0:
            raw = bytearray(gzip.compress(bytes(raw)))
            raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        paths.append(tmp_path / f"{number}.tar")
        paths[-1].write_bytes(raw)
    with DamagedReads() as reads:
        outcomes = reads.outcomes("webdataset", paths)
    assert all(one == "read" or one.startswith("refused: ") for one in outcomes), outcomes
    assert all("\n" not in one for one in outcomes)
    assert sum(one.startswith("refused: ") for one in outcomes) > 40


def damaged(rng, value):
    content = bytearray(content_of(value))
    content[int(rng.integers(min(len(content), 200)))] ^= 1 << int(rng.integers(8))
    return bytes(content)
