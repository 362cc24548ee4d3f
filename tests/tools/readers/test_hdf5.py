"""Plain HDF5: flat datasets, a group a bag, and files that reach out or boast."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock, SparseRows
from streammiml_tools.readers import hdf5_access
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.hdf5 import READER
from tests.stores import as_sparse, assert_same, made_block, plain, scratch
from tests.strategies import blocks
from tests.tools.readers.foreign import fingerprint_of, read_all


def flat(block: BagBlock) -> dict:
    """The arrays of a block under their usual names."""
    arrays = {
        "offsets": block.bag_offsets,
        "label_indptr": block.label_offsets,
        "label_indices": block.label_indices,
    }
    if isinstance(block.rows, SparseRows):
        rows = block.rows
        arrays |= {"data": rows.values, "indices": rows.columns, "indptr": rows.offsets}
        arrays["shape"] = np.array([len(rows), rows.n_features])
    else:
        arrays["instances"] = block.rows
    if block.row_labels is not None:
        arrays["row_labels"] = block.row_labels
    if block.bag_ids is not None:
        arrays["bag_ids"] = [name.replace("\0", "0") for name in block.bag_ids]
    return arrays


def write(path, arrays, group="", **options):
    with h5py.File(path, "w") as file:
        inner = file.require_group(group) if group else file
        for name, values in arrays.items():
            inner.create_dataset(name, data=values, **(options if np.ndim(values) else {}))
    return path


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
            said = {"instances": np.ones((2, 3)), "labels": np.array([1]), **changes}
            for key, values in said.items():
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
        ({"labels": np.array([1, 1])}, r"bag 'a': label 1 comes twice; remove one"),
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


def test_hdf5__a_dataset_of_4_tb_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path / "a.h5", {"offsets": np.arange(3)})
    for chunks in (None, (1 << 10, 1 << 10)):
        with h5py.File(path, "r+") as file:
            file.pop("instances", None)
            file.create_dataset("instances", (1 << 20, 1 << 20), "f4", chunks=chunks)
        match = r"/instances declares 4,398,046,511,104 bytes but has 0 in the file: never filled"
        with pytest.raises(SourceError, match=match):
            READER.scan([path], SourceOptions())


def test_hdf5__a_bomb_is_refused_before_it_is_read(tmp_path):
    zeros = np.zeros((1 << 10, 1 << 15))
    path = write(tmp_path / "a.h5", {"instances": zeros}, chunks=(64, 1 << 15), compression="gzip")
    assert path.stat().st_size < 2 << 20
    with pytest.raises(SourceError, match=r"declares 268,435,456 bytes .* h5repack -f NONE"):
        READER.scan([path], SourceOptions())


def test_hdf5__a_bomb_would_be_read_were_it_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5_access, "BOMB_RATIO", 10_000)
    monkeypatch.setattr(hdf5_access, "BOMB_LINE", 1)
    zeros = {"instances": np.zeros((64, 1 << 12)), "offsets": [0, 64], "targets": np.ones((1, 2))}
    path = write(tmp_path / "a.h5", zeros, compression="gzip")
    assert read_all(READER, path)[1].n_rows == 64
    monkeypatch.setattr(hdf5_access, "BOMB_RATIO", 100)
    with pytest.raises(SourceError, match="/instances declares 2,097,152 bytes"):
        read_all(READER, path)


def test_hdf5__nothing_outside_the_file_is_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(800))
    write(tmp_path / "other.h5", {"instances": np.ones((2, 2))})
    path = tmp_path / "a.h5"

    def link(file):
        file["instances"] = h5py.ExternalLink("other.h5", "/instances")

    def external(file):
        file.create_dataset("instances", (10, 10), "f8", external=[(str(secret), 0, 800)])

    def virtual(file):
        layout = h5py.VirtualLayout((2, 2), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "instances", (2, 2))
        file.create_virtual_dataset("instances", layout)

    for reach, match in (
        (link, r"'instances' is a link to another file; copy what it names into this one"),
        (external, r"/instances keeps its values in another file, .*secret.*; copy them into this"),
        (virtual, r"/instances is virtual, of other files; copy it into this one"),
    ):
        write(path, {"offsets": np.array([0, 2])})
        with h5py.File(path, "r+") as file:
            reach(file)
        with pytest.raises(SourceError, match=match):
            READER.scan([path], SourceOptions())


def test_hdf5__lists_of_any_length_are_refused(tmp_path):
    path = write(tmp_path / "a.h5", {"offsets": np.array([0, 2])})
    with h5py.File(path, "r+") as file:
        file.create_dataset("instances", (2,), h5py.vlen_dtype(np.float32))
    with pytest.raises(SourceError, match="/instances holds lists of any length; store them as"):
        READER.scan([path], SourceOptions())


@pytest.mark.parametrize("keep", [0, 40, 700, 2000])
def test_hdf5__a_file_cut_short_is_refused(tmp_path, keep):
    path = write(tmp_path / "a.h5", flat(made_block()))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"a\.h5 is damaged or cut short \(.*\); fetch it again"):
        read_all(READER, path)


def test_hdf5__several_files_are_refused(tmp_path):
    path = write(tmp_path / "a.h5", flat(made_block()))
    with pytest.raises(SourceError, match=r"arrays come from one HDF5 file; convert \S+ alone"):
        READER.scan([path, path], SourceOptions())


def test_tells__by_magic_or_suffix_but_not_matlab(tmp_path):
    assert READER.tells(tmp_path / "a", b"\x89HDF\r\n\x1a\n")
    assert READER.tells(tmp_path / "a.hdf5", b"")
    assert not READER.tells(tmp_path / "a.h5", b"MATLAB 7.3 MAT-file")
    assert not READER.tells(tmp_path / "a.mat", b"PK")
