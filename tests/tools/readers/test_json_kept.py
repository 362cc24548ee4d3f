"""Kept columns of formats that hold many bags in one file: JSON lines, npz, HDF5, TFRecord, tar."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

from streammiml.bags.kept_columns import KeptColumn
from streammiml_tools.convert import convert
from streammiml_tools.convert.compare import compare
from streammiml_tools.convert.export import export
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.json_kept import JsonTypes, KeptValueError, kept_values
from tests.stores import made_block, sparse, with_kept, write_store
from tests.tools.readers import tf_messages as tf
from tests.tools.readers.tar_files import write_tar

NAMES = ("coords", "note", "time")
SIZES = [2, 1, 4]


def same_kept(one, other):
    for bag, want in zip(one, other, strict=True):
        assert {name: str(v.tolist()) for name, v in bag.kept.items()} == {
            name: str(v.tolist()) for name, v in want.kept.items()
        }


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.npz"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_export__comes_back_with_kept_columns(name, is_sparse, tmp_path):
    block = made_block()
    if is_sparse:
        block = replace(block, rows=sparse(block.rows))
    store = write_store(tmp_path / "a.zarr", with_kept(block), n_labels=4)
    out, *_ = export(store, tmp_path / name)
    options = SourceOptions(keep=NAMES, span_bytes=300, n_features=store.n_features)
    back = convert(out, tmp_path / "b.zarr", options=options).store
    assert back.fingerprint == store.fingerprint
    assert [column.name for column in back.kept_columns] == list(NAMES)
    same_kept(back, store)
    assert compare(back, out, options).is_same
    without = convert(out, tmp_path / "c.zarr").store
    assert (without.fingerprint, without.kept_columns) == (store.fingerprint, ())


# JSON lines.


def write_json(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(n_rows=2, **fields):
    return {"id": f"b{n_rows}", "instances": [[1.5, 2]] * n_rows, "labels": ["sky"], **fields}


def test_jsonl__keeps_fields_of_the_record(tmp_path):
    path = write_json(
        tmp_path / "a.jsonl",
        record(2, at=[[1, 2], [3, 4]], second=[0.5, None], word=["a", "é"]),
        record(1, at=[[5, 6]], second=[7], word=['"at": 1']),
    )
    options = SourceOptions(keep=("at", "second", "word"))
    store = convert(path, tmp_path / "o.zarr", options=options).store
    assert store.kept_columns == (
        KeptColumn("at", "int64", 2),
        KeptColumn("second", "float64"),
        KeptColumn("word", "text"),
    )
    assert store[0].kept["at"].tolist() == [[1, 2], [3, 4]]
    assert str(store[0].kept["second"].tolist()) == "[0.5, nan]"
    assert store[1].kept["word"].tolist() == ['"at": 1']


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({}, r"a.jsonl, line 2: 'at' \(--keep\) is missing; it needs a value for each row"),
        ({"at": 5}, r"line 2: 'at' \(--keep\) is 5, expected a list; it needs a value for ea"),
        ({"at": [1, 2]}, r"line 2: 'at' \(--keep\) has 1 values a row, expected 2, as in earlier"),
        ({"at": [[1, 2], [3]]}, r"line 2: 'at' \(--keep\) has rows of different numbers of val"),
        ({"at": [[1, True], [1, 2]]}, r"'at' \(--keep\) holds true; expected numbers in all r"),
        ({"at": [["x", "y"]]}, r"'at' \(--keep\) holds \"x\"; expected numbers in all rows, or"),
        ({"at": [[], []]}, r"'at' \(--keep\) has rows without values"),
        ({"at": [[1, 2]]}, r"line 2: 'at' \(--keep\) has 1 values for 2 rows"),
    ],
)
def test_jsonl__refuses_values_that_cannot_be_kept(second, message, tmp_path):
    path = write_json(tmp_path / "a.jsonl", record(1, at=[[1, 2]]), record(2, **second))
    with pytest.raises(SourceError, match=message) as caught:
        convert(path, tmp_path / "o.zarr", options=SourceOptions(keep=("at",)))
    assert "\n" not in str(caught.value)


def test_jsonl__refuses_a_field_of_another_role_or_name(tmp_path):
    path = write_json(tmp_path / "a.jsonl", record(1))
    for keep, message in (("labels", "another role"), ("a/b", "'a/b' cannot be kept: names")):
        with pytest.raises(SourceError, match=message):
            convert(path, tmp_path / "o.zarr", options=SourceOptions(keep=(keep,)))


def test_types__hold_all_values():
    types = JsonTypes(["a", "b", "c", "d"])
    types.add({"a": [1, 2**63], "b": [-(2**63)], "c": [1], "d": []})
    types.add({"kept": {"a": [0], "b": [1], "c": [None], "d": []}})
    dtypes = [column.dtype for column in types.columns()]
    assert dtypes == ["uint64", "int64", "float64", "text"]
    both = JsonTypes(["a"])
    both.add({"a": [-1, 2**64]})
    assert both.columns()[0].dtype == "float64"
    changed = r"'a' \(--keep\) is not a \(int64\), as in the first pass; has the file changed"
    with pytest.raises(KeptValueError, match=changed):
        kept_values({"a": [1.5]}, KeptColumn("a", "int64"), 1)
    with pytest.raises(KeptValueError, match="holds numbers beyond int64"):
        kept_values({"a": [2**70]}, KeptColumn("a", "int64"), 1)


# Arrays.


def arrays(**more):
    labels = {"label_indptr": np.arange(4), "label_indices": np.arange(3)}
    rows = np.arange(sum(SIZES) * 2, dtype=np.float32).reshape(-1, 2)
    return {"instances": rows, "offsets": np.cumsum([0, *SIZES]), **labels, **more}


def write_arrays(path, values):
    if path.suffix == ".npz":
        np.savez_compressed(path, **values)
        return
    with h5py.File(path, "w") as file:
        for name, array in values.items():
            file[name] = array.astype(object) if array.dtype.kind == "U" else array


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_arrays__beside_the_rows_are_kept(suffix, tmp_path):
    at, word = np.arange(14).reshape(-1, 2), np.array([*"abcdefg"])
    path = tmp_path / f"a.{suffix}"
    write_arrays(path, arrays(at=at, word=word))
    options = SourceOptions(keep=("at", "word"), span_bytes=40)
    store = convert(path, tmp_path / "o.zarr", options=options).store
    assert store.kept(0, 3)["at"].tolist() == at.tolist()
    assert store[2].kept["word"].tolist() == ["d", "e", "f", "g"]
    for values, message in (
        (at[:3], r"at.* has shape \(3, 2\), expected values for each of 7 rows"),
        (at.astype(complex), "holds complex128 of shape"),
    ):
        write_arrays(path, arrays(at=values))
        with pytest.raises(SourceError, match=message):
            convert(path, tmp_path / "p.zarr", options=SourceOptions(keep=("at",)))
    with pytest.raises(SourceError, match=rf"a.{suffix} has no array 'no' \(--keep\); arrays: "):
        convert(path, tmp_path / "p.zarr", options=SourceOptions(keep=("no",)))


def test_hdf5__groups_keep_their_datasets(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for bag, size in enumerate(SIZES):
            group = file.create_group(f"b{bag}")
            group["instances"], group["labels"] = np.ones((size, 2)), [bag % 2]
            group["at"] = np.arange(2 * size).reshape(-1, 2) + bag
            group["word"] = np.array([*"abcd"[:size]], object)
    options = SourceOptions(keep=("at", "word"))
    store = convert(tmp_path / "a.h5", tmp_path / "o.zarr", options=options).store
    assert store.kept_columns == (KeptColumn("at", "int64", 2), KeptColumn("word", "text"))
    assert (store[1].kept["at"].tolist(), store[2].kept["word"].tolist()) == ([[1, 2]], [*"abcd"])
    for values, message in (
        (np.zeros(3), r"a.h5: b1/at \(--keep\) has shape \(3,\), expected values for each of 1"),
        (np.zeros((1, 3)), r"bag 'b1' has at \(3 float64\) \(--keep\), but others have at \(2 i"),
        (None, r"a.h5: b1/at \(--keep\) is no dataset; each bag needs one"),
    ):
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            del file["b1/at"]
            if values is None:
                file.create_group("b1/at")
            else:
                file["b1/at"] = values
        with pytest.raises(SourceError, match=message):
            convert(tmp_path / "a.h5", tmp_path / "p.zarr", options=SourceOptions(keep=("at",)))


# TFRecord.


def video(bag, size, **more):
    frames = {"rgb": [bytes([bag, i, 7]) for i in range(size)]}
    frames["second"] = [np.float32([i / 2]) for i in range(size)]
    frames["speaker"] = [b"a\xc3\xa9"[: 3 * (i % 2)] for i in range(size)]
    context = {"id": f"v{bag}".encode(), "labels": [bag], "box": [*range(2 * size)]}
    return tf.sequence(context, frames | more)


def test_tfrecord__keeps_lists_of_frames_and_features(tmp_path):
    path = tf.write(tmp_path / "a.tfrecord", [video(i, size) for i, size in enumerate(SIZES)])
    options = SourceOptions(keep=("second", "speaker", "box"))
    store = convert(path, tmp_path / "o.zarr", options=options).store
    assert (store.n_features, store.dtype) == (3, "uint8")
    assert store.kept_columns == (
        KeptColumn("box", "int64", 2),
        KeptColumn("second", "float32"),
        KeptColumn("speaker", "text"),
    )
    assert store[2].kept["second"].tolist() == [0, 0.5, 1, 1.5]
    assert store[2].kept["speaker"].tolist() == ["", "aé", "", "aé"]
    assert store[0].kept["box"].tolist() == [[0, 1], [2, 3]]


def test_tfrecord__keeps_the_values_of_an_example(tmp_path):
    messages = [
        tf.example({"x": np.arange(2 * n, dtype=np.float32), "labels": [0], "at": [*range(n)]})
        for n in (2, 3)
    ]
    path = tf.write(tmp_path / "a.tfrecord", messages)
    options = SourceOptions(n_features=2, feature_columns=("x",), keep=("at",))
    store = convert(path, tmp_path / "o.zarr", options=options).store
    assert [bag.kept["at"].tolist() for bag in store] == [[0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("keep", "second", "message"),
    [
        ("none_such", {}, "record 0: no list of frames and no feature is called 'none_such' (--ke"),
        ("second", {"second": [np.float32([1, 2])]}, "record 1: second (2 float32) (--keep) is n"),
        ("second", {"second": [np.float32([1])] * 2}, "record 1: 2 values of 'second' (--keep) fo"),
        ("second", {"second": [b"x"]}, "record 1: second (text) (--keep) is not second (float32)"),
        ("speaker", {"speaker": [b"\xff"]}, "is not UTF-8"),
        ("rgb", {}, "'rgb' has another role, and is not kept too (--keep)"),
    ],
)
def test_tfrecord__refuses_what_cannot_be_kept(keep, second, message, tmp_path):
    path = tf.write(tmp_path / "a.tfrecord", [video(0, 2), video(1, 1, **second)])
    with pytest.raises(SourceError) as caught:
        convert(path, tmp_path / "o.zarr", options=SourceOptions(keep=(keep,)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# WebDataset.


def sample(key, n_rows, **more):
    rows = np.full((n_rows, 2), n_rows, np.float32)
    return {f"{key}.npy": rows, f"{key}.cls": n_rows, **{f"{key}.{e}": v for e, v in more.items()}}


def test_webdataset__keeps_members_and_arrays_of_the_npz(tmp_path):
    at = [np.arange(2 * n).reshape(-1, 2) for n in SIZES]
    members = {}
    for key, n, values in zip("abc", SIZES, at, strict=True):
        members |= {f"{key}.at.npy": values} | sample(key, n)
    # Members come in the order of their names.
    write_tar(tmp_path / "a.tar", dict(sorted(members.items())))
    options = SourceOptions(keep=("at",))
    store = convert(tmp_path / "a.tar", tmp_path / "o.zarr", options=options).store
    assert [bag.kept["at"].tolist() for bag in store] == [values.tolist() for values in at]
    members["b.at.npy"] = at[0]
    write_tar(tmp_path / "a.tar", dict(sorted(members.items())))
    with pytest.raises(SourceError, match=r"member b.at.npy: 2 values of 'at' \(--keep\) for 1"):
        convert(tmp_path / "a.tar", tmp_path / "p.zarr", options=options)
    members["b.at.npy"] = np.zeros((1, 3))
    write_tar(tmp_path / "a.tar", dict(sorted(members.items())))
    with pytest.raises(SourceError, match=r"member b.at.npy has at \(3 float64\) \(--keep\), exp"):
        convert(tmp_path / "a.tar", tmp_path / "p.zarr", options=options)
    with pytest.raises(SourceError, match=r"sample 'a' has no member .no.npy \(--keep\); the sa"):
        convert(tmp_path / "a.tar", tmp_path / "p.zarr", options=SourceOptions(
            keep=("no",), variables=("npy",)))  # fmt: skip
