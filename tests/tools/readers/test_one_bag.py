"""One file with the rows of one bag: which files these are, and what their headers say."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.one_bag import describe, kind_of, rows_of

ROWS = np.arange(12, dtype=np.int16).reshape(4, 3)
ANY = SourceOptions()


def is_one(path, options=ANY):
    return kind_of(path).is_one(path, options)


def test_numpy__without_offsets_is_one_bag(tmp_path):
    np.save(tmp_path / "slide.npy", ROWS)
    np.save(tmp_path / "offsets.npy", ROWS)
    np.save(tmp_path / "many.npy", ROWS[None])
    np.savez(tmp_path / "a.npz", features=ROWS)
    np.savez(tmp_path / "b.npz", features=ROWS, offsets=np.arange(2))
    names = ("slide.npy", "offsets.npy", "many.npy", "a.npz", "b.npz")
    assert [is_one(tmp_path / name) for name in names] == [True, False, False, True, False]
    for name in ("slide.npy", "a.npz"):
        assert describe(tmp_path / name, ANY)[:4] == (3, "int16", 24, 4)
        np.testing.assert_array_equal(rows_of(tmp_path / name, ANY), ROWS)


def test_hdf5__without_offsets_is_one_bag(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = ROWS
        file["coords"] = ROWS[:, :2]
        file.create_group("more")["features"] = ROWS[:1]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["features"], file["offsets"] = ROWS, np.arange(2)
    assert [is_one(tmp_path / name) for name in ("a.h5", "b.h5")] == [True, False]
    assert describe(tmp_path / "a.h5", ANY)[:4] == (3, "int16", 24, 4)
    np.testing.assert_array_equal(rows_of(tmp_path / "a.h5", ANY), ROWS)
    named = SourceOptions(variables=("coords",))
    np.testing.assert_array_equal(rows_of(tmp_path / "a.h5", named), ROWS[:, :2])


def test_text_and_tables__without_a_column_of_ids_are_one_bag(tmp_path):
    (tmp_path / "a.csv").write_text("word,x,y\none,1,2\ntwo,3,4.5\n")
    (tmp_path / "b.tsv").write_text("1\t2\n3\t4.5\n")
    (tmp_path / "c.csv").write_text("bag,x\none,1\n")
    pq.write_table(pa.table({"word": ["one", "two"], "x": [1, 3], "y": [2, 4]}), tmp_path / "d.pq")
    names = ("a.csv", "b.tsv", "c.csv", "d.pq")
    assert [is_one(tmp_path / name) for name in names] == [True, True, False, True]
    assert not is_one(tmp_path / "a.csv", SourceOptions(bag_column="word"))
    for name in ("a.csv", "b.tsv"):
        assert describe(tmp_path / name, ANY)[:2] == (2, "float32")
        assert describe(tmp_path / name, ANY).names == (("x", "y") if name == "a.csv" else None)
        np.testing.assert_array_equal(rows_of(tmp_path / name, ANY), [[1, 2], [3, 4.5]])
    np.testing.assert_array_equal(rows_of(tmp_path / "d.pq", ANY), [[1, 2], [3, 4]])
    only = SourceOptions(feature_columns=("y",))
    np.testing.assert_array_equal(rows_of(tmp_path / "a.csv", only), [[2], [4.5]])
    np.testing.assert_array_equal(rows_of(tmp_path / "d.pq", only), [[2], [4]])


def test_file__that_holds_no_bag_is_refused(tmp_path):
    (tmp_path / "a.md").write_text("words")
    with pytest.raises(
        SourceError, match=r"a\.md cannot hold one bag; a file a bag is one of \.npy"
    ):
        describe(tmp_path / "a.md", ANY)
    (tmp_path / "a.csv").write_text("x,x\n1,2\n")
    with pytest.raises(SourceError, match=r"a\.csv: two columns are called 'x'; rename one"):
        describe(tmp_path / "a.csv", ANY)
    (tmp_path / "b.csv").write_text("x,y\n")
    with pytest.raises(SourceError, match=r"b\.csv has no line of data, only the names of columns"):
        describe(tmp_path / "b.csv", ANY)
    (tmp_path / "c.csv").write_text("x,y\na,b\n")
    with pytest.raises(
        SourceError, match=r"c\.csv has no column of numbers for features; name the"
    ):
        describe(tmp_path / "c.csv", ANY)
    pq.write_table(pa.table({"rows": [[[1.0]]]}), tmp_path / "d.parquet")
    with pytest.raises(
        SourceError, match=r"column 'rows' holds lists of rows, so a record is a bag"
    ):
        describe(tmp_path / "d.parquet", ANY)
