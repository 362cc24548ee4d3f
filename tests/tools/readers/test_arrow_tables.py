"""Files of tables: formats, batches of bounded size, and files that need too much memory."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from streammiml_tools.readers import arrow_tables
from streammiml_tools.readers.arrow import READER
from streammiml_tools.readers.base import Limits, SourceError
from tests.stores import assert_same
from tests.tools.readers.arrow_files import LONG, SUFFIXES, WANT, read_table, write
from tests.tools.readers.foreign import read_all
from tests.traced import arrow_memory


def test_arrow__other_files_are_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PK\x03\x04 no table")
    with pytest.raises(
        SourceError, match=r"a.parquet is neither Parquet nor Arrow: it begins with"
    ):
        read_all(READER, tmp_path / "a.parquet")
    (tmp_path / "a.feather").write_bytes(b"FEA1 of long ago")
    with pytest.raises(
        SourceError, match=r"a.feather is Feather version 1; write the file again as v"
    ):
        read_all(READER, tmp_path / "a.feather")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrow__a_small_file_that_would_become_enormous_is_refused(tmp_path, suffix):
    """Four million zeros in one record, of a few hundred bytes on disk."""
    path = tmp_path / f"bomb{suffix}"
    values = pa.array(np.zeros(1 << 22, np.float32))
    rows = pa.FixedSizeListArray.from_arrays(values, 1 << 20)
    bag = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    table = pa.table({"instances": bag, "labels": [[0]]})
    if suffix == ".parquet":
        pq.write_table(table, path, compression="zstd")
    elif suffix == ".feather":
        pyarrow.feather.write_feather(table, path, compression="zstd")
    else:
        new = pa.ipc.new_file if suffix == ".ipc" else pa.ipc.new_stream
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
            writer.write_table(table)
    assert path.stat().st_size < 10_000
    with (
        mock.patch.object(arrow_tables, "BOMB_BYTES", 8 << 20),
        pytest.raises(
            SourceError, match=r"(row group|batch) 0: .*B would become 16 MiB in memory;"
        ),
    ):
        read_all(READER, path)
    assert read_all(READER, path)[1].n_rows == 4


# --- little memory -----------------------------------------------------------------------------


def compressed(path, table):
    """A file whose buffers are compressed."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, compression="zstd")
        return path
    new = pa.ipc.new_file if path.suffix == ".ipc" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("suffix", [".ipc", ".arrow", ".parquet"])
@pytest.mark.parametrize("what", ["rows", "text"])
def test_arrow__a_batch_that_needs_more_than_the_memory_is_refused(tmp_path, suffix, what):
    content = {"id": ["a"], "instances": [[[1.0, 2.0]]], "labels": [[0]]}
    if what == "text":
        content["id"] = ["a" * (4 << 20)]
    else:
        content["instances"] = [np.zeros((1 << 19, 2), np.float32).tolist()]
    path = compressed(tmp_path / f"a{suffix}", pa.table(content))
    size = r"(4|8|10)(\.\d+)? MiB"
    with pytest.raises(
        SourceError,
        match=rf"a{suffix}: its largest batch needs {size}, more than --memory 2 MiB; --memory \d+M"
        "iB would be enough, or write the file again in smaller batches$",
    ):
        read_all(READER, path, limits=Limits(2 << 20))
    with pytest.raises(SourceError, match=rf"needs {size} in each of 2 processes, more than --mem"):
        read_all(READER, path, limits=Limits(4 << 20, 2))
    assert read_all(READER, path)[1].bag_ids == content["id"]


@pytest.mark.parametrize("column", ["bag", "labels"])
@pytest.mark.parametrize("suffix", [".ipc", ".parquet"])
def test_arrow__a_long_text_that_all_records_share_is_decoded_in_pieces(tmp_path, suffix, column):
    """128 MB of texts in a file of a few kilobytes."""
    n, long = 2000, "x" * (1 << 16)
    texts = pa.DictionaryArray.from_arrays(np.zeros(n, np.int8), [long])
    lists = pa.ListArray.from_arrays(np.arange(n + 1, dtype=np.int32), texts)
    table = pa.table({"bag": ["b"] * n, "f": np.zeros(n), "labels": [[0]] * n})
    place = table.schema.get_field_index(column)
    table = table.set_column(place, column, texts if column == "bag" else lists)
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path, store_schema=False)
    else:
        write(path, table)
    with mock.patch.object(arrow_tables, "BATCH_BYTES", 1 << 20), arrow_memory() as pool:
        scan, block = read_all(READER, path)
    assert pool.max_memory() < 40 << 20
    assert (block.bag_ids, scan.label_names) == (
        ([long], None) if column == "bag" else (["b"], (long,))
    )


def test_arrow__views_that_repeat_a_list_beyond_the_memory_are_refused(tmp_path):
    row = pa.array(np.zeros(1 << 10, np.float32))
    places, n = pa.array(np.zeros(2000, np.int32)), pa.array(np.full(2000, 1 << 10, np.int32))
    rows = pa.ListViewArray.from_arrays(places, n, row)
    bags = pa.ListViewArray.from_arrays(
        pa.array([0], pa.int32()), pa.array([2000], pa.int32()), rows
    )
    path = write(tmp_path / "a.ipc", pa.table({"instances": bags, "labels": [[0]]}))
    with pytest.raises(
        SourceError, match=r"a.ipc: record 0 needs 15.6 MiB, more than --memory 4 MiB; "
    ):
        read_all(READER, path, limits=Limits(4 << 20))
    assert read_all(READER, path)[1].n_rows == 2000


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1.0, None, 3.0]),
        pa.array(["a", "bc", None] * 5).dictionary_encode(),
        pa.array([["a"], ["bc", "a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        pa.array([[[1.0, 2.0]], [[3.0]]], pa.list_view(pa.list_view(pa.float64()))),
        pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
        pa.array([1, 2, 1]).dictionary_encode(),
        pa.DictionaryArray.from_arrays([0, 0, 1], pa.array([[1, 2], [3]])),
        pa.array([["a"], ["bcd"]], pa.list_view(pa.string())),
    ],
    ids=lambda array: str(array.type),
)
def test_decoded_bytes__are_no_fewer_than_the_values_take(array):
    def size(value):
        if isinstance(value, list):
            return sum(map(size, value))
        return len(value) if isinstance(value, str) else 0 if value is None else 8

    assert size(array.to_pylist()) <= arrow_tables.decoded_bytes(array) <= 1000


def test_arrow__column_names_that_are_no_text_are_refused(tmp_path):
    path = write(tmp_path / "a.ipc", pa.table(LONG))
    path.write_bytes(path.read_bytes().replace(b"green", b"gr\xff\xffn"))
    with pytest.raises(SourceError, match=r"a.ipc is damaged or cut short \(.*codec can't decode"):
        read_all(READER, path)


def test_arrow__rows_may_be_wider_than_a_batch(tmp_path):
    with mock.patch.object(arrow_tables, "BATCH_BYTES", 1):
        _, block = read_table(tmp_path, LONG)
    assert_same(replace(block), WANT)
