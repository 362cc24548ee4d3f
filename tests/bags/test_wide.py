"""Numbers beyond 32 bits: features up to 2^32, and more stored values than 2^40."""

import numpy as np
import pytest
from crc32c import crc32c

import streammiml as sm
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.layout import RECORD, ArrayEntry, table_key
from streammiml.bags.location import LocalFolder
from streammiml.bags.validate import StoreSpec
from streammiml.bags.verified_array import ChunkTable, VerifiedArray

FAR = 2**40


def test_sparse__features_up_to_the_last_come_back(tmp_path, backend):
    columns = np.array([0, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    rows = SparseRows(np.array([0, 1, 4]), columns, np.arange(1, 5, dtype=np.float32), 2**32)
    block = BagBlock(np.array([0, 1, 2]), rows, np.array([0, 1, 1]), np.array([0], np.int32))
    path = tmp_path / f"wide.{backend}"
    with sm.BagWriter.begin(path, StoreSpec(n_features=2**32, sparse=True)) as writer:
        writer.write_part(0, block)
        store = writer.finish(1)
    got = store.read(0, 2).rows
    np.testing.assert_array_equal(got.columns, columns)
    np.testing.assert_array_equal(got.values, rows.values)
    assert store.n_features == 2**32
    assert store.check() == []


def test_sparse__a_feature_beyond_the_last_is_refused(tmp_path):
    rows = SparseRows(np.array([0, 1]), np.array([9]), np.ones(1, np.float32), 9)
    block = BagBlock(np.array([0, 1]), rows, np.array([0, 0]), np.empty(0, np.int32))
    with (
        sm.BagWriter.begin(tmp_path / "a.zarr", StoreSpec(n_features=9, sparse=True)) as writer,
        pytest.raises(sm.StreammimlError, match="bag 0, row 0: feature 9 is outside 0 to 8"),
    ):
        writer.write_part(0, block)


def test_chunks__elements_beyond_two_to_the_forty_are_found(tmp_path):
    values = np.arange(8, dtype=np.float32)
    (tmp_path / "data").write_bytes(values.tobytes())
    halves = [(0, values[:4]), (16, values[4:])]
    records = np.array(
        [
            (FAR + 4 * i, offset, 4, 16, crc32c(half.tobytes()), 0)
            for i, (offset, half) in enumerate(halves)
        ],
        RECORD,
    )
    table = tmp_path / table_key("values")
    table.parent.mkdir()
    table.write_bytes(records.tobytes())
    pages = [[crc32c(records.tobytes()), FAR, 2]]
    entry = ArrayEntry(dtype="float32", length=FAR + 8, width=1, coding="raw", pages=pages)
    folder = LocalFolder(tmp_path)
    files = [["data", 32, 0]]
    chunks = ChunkTable(folder, "values", entry, files).find(FAR + 5, FAR + 6)
    assert chunks.records["first"].tolist() == [FAR + 4]
    array = VerifiedArray(folder, "values", entry, files, lambda *_: None)
    np.testing.assert_array_equal(array.read(FAR + 3, FAR + 7), values[3:7])
