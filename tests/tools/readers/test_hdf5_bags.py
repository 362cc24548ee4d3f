"""Bags of HDF5 files: flat arrays, or one group for each bag, written and read back."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import SparseRows
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.hdf5 import READER
from tests.stores import as_sparse, assert_same, made_block, plain, scratch
from tests.strategies import blocks
from tests.tools.readers.foreign import fingerprint_of, read_all
from tests.tools.readers.hdf5_files import flat, write


@given(
    block=blocks(), span_bytes=st.sampled_from([1, 60, 1 << 20]), group=st.sampled_from(["", "a"])
)
def test_hdf5__flat_arrays_of_any_bags_are_read_back(block, span_bytes, group):
    with scratch() as folder:
        path = write(folder / "a.h5", flat(block), group)
        scan, got = read_all(READER, path, span_bytes=span_bytes)
    assert scan.sparse == isinstance(block.rows, SparseRows)
    assert (scan.n_bags, scan.n_rows, scan.n_features) == (
        len(block), block.n_rows, block.n_features,
    )  # fmt: skip
    assert_same(got, block)
    if block.bag_ids is not None:
        assert got.bag_ids == [name.replace("\0", "0") for name in block.bag_ids]


def test_hdf5__chunks_compression_and_marks(tmp_path):
    block = plain(made_block(40))
    marks = np.zeros((40, 4))
    marks[np.repeat(np.arange(40), np.diff(block.label_offsets)), block.label_indices] = 1
    arrays = {"rows": block.rows, "bag_offsets": block.bag_offsets, "targets": 2 * marks - 1}
    path = write(tmp_path / "a.h5", arrays, chunks=True, compression="gzip")
    scan, got = read_all(READER, path, labels=("a", "b", "c", "d"))
    assert_same(got, block)
    assert scan.label_names == ("a", "b", "c", "d")


def test_hdf5__sparse_and_dense_have_one_fingerprint(tmp_path):
    block = plain(made_block())
    dense = write(tmp_path / "a.h5", flat(block))
    sparse = write(tmp_path / "b.h5", flat(as_sparse(block)))
    prints = {fingerprint_of(*read_all(READER, path)) for path in (dense, sparse)}
    assert len(prints) == 1


def test_hdf5__a_group_a_bag(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, labels in (("bag10", ["sky"]), ("bag2", ["sun", "sea"]), ("bag1", [])):
            group = file.create_group(name)
            group["instances"] = np.full((len(name) - 2, 2), int(name[3:]), np.uint8)
            group.create_dataset("labels", data=labels, dtype=h5py.string_dtype())
            group["row_labels"] = np.arange(len(name) - 2)
    for span_bytes in (1, 1 << 20):
        scan, block = read_all(READER, path, span_bytes=span_bytes)
        assert block.bag_ids == ["bag1", "bag2", "bag10"]
        assert scan.label_names == ("sea", "sky", "sun")
        assert scan.dtype == "uint8"
        assert [block.labels_of(i).tolist() for i in range(3)] == [[], [0, 2], [1]]
        assert block.rows[:, 0].tolist() == [1, 1, 2, 2, 10, 10, 10]
        assert block.row_labels.tolist() == [0, 1, 0, 1, 0, 1, 2]
    with pytest.raises(SourceError, match=r"bag 'bag2': label 'sun' is not known; known: sea, sky"):
        read_all(READER, path, labels=("sea", "sky"))


def groups(path, **changes):
    with h5py.File(path, "w") as file:
        for name in ("a", "b"):
            group = file.create_group(name)
            datasets = {"instances": np.ones((2, 3)), "labels": np.array([1]), **changes}
            for key, values in datasets.items():
                of_bag = values(name) if callable(values) else values
                if of_bag is not None:
                    group[key] = of_bag
    return path


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"labels": lambda bag: None if bag == "b" else [1]}, r"group 'b' has no labels like the"),
        ({"instances": np.ones(3)}, r"a/instances is float64 of shape \(3,\), expected numbers"),
        (
            {"instances": lambda bag: np.ones((2, 3 if bag == "a" else 4))},
            r"bag 'b' has rows of 4 values, expected 3",
        ),
        ({"labels": np.array([0.5])}, r"a/labels is float64 of shape \(1,\), expected a list of"),
        ({"labels": np.array([1, 1])}, r"bag 'a': label 1 occurs twice; remove one"),
        ({"labels": np.array([-1])}, r"a\.h5: label '-1' is a number, but labels are"),
        ({"instances": np.full((2, 3), np.nan)}, r"bag 'a', row 0: only finite numbers can be"),
        (
            {"row_labels": np.ones(3, int)},
            r"bag 'a': row_labels is int64 of shape \(3,\), expected",
        ),
        (
            {"row_labels": lambda bag: None if bag == "a" else np.ones(2, int)},
            r"some bags have row labels and some have none",
        ),
    ],
)
def test_hdf5__broken_groups_are_refused(tmp_path, changes, match):
    with pytest.raises(SourceError, match=match):
        read_all(READER, groups(tmp_path / "a.h5", **changes))


def test_hdf5__several_files_are_refused(tmp_path):
    path = write(tmp_path / "a.h5", flat(made_block()))
    with pytest.raises(SourceError, match=r"arrays come from one HDF5 file; convert \S+ alone"):
        READER.scan([path, path], SourceOptions())
