"""Reading the Parquet backend: decode column chunks, read the description of the store.

One record is a bag. We read by row group and column: the bytes of one column chunk are fetched and
checked. If the values are uncompressed, plainly encoded and on a single page, the chunk ends with
them, and the lengths of lists come from the offsets of our index. Otherwise pyarrow decodes the
chunk.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streammiml._base.json_and_toml import parse_json
from streammiml.bags.kept_columns import TEXT, KeptColumn, column_name, is_kept
from streammiml.bags.layout import Manifest
from streammiml.bags.location import Location
from streammiml.bags.verified_array import ChunkRecord, Decode, DecodeOne, fetch_checked, one_by_one
from streammiml.errors import StoreError

COLUMNS = {
    "rows": "rows.list.element.list.element",
    "columns": "columns.list.element.list.element",
    "values": "values.list.element.list.element",
    "label_indices": "labels.list.element",
    "row_labels": "row_labels.list.element",
    "bag_id_bytes": "bag_id",
}
"""Parquet column of each array of a store."""
ARRAYS = {column.split(".")[0]: name for name, column in COLUMNS.items()}
"""Array of each top-level Parquet column, except kept columns."""
COMMON = "_common_metadata"
KEY = b"streammiml"
"""Key of counts and names in the metadata of a schema."""


def array_of(path: str, physical_type: str) -> str | None:
    """Array that a Parquet column holds; None for a column that belongs to no store."""
    top = path.split(".")[0]
    if is_kept(top):
        # A column of text has bytes; the name of a kept column is what follows the prefix.
        dtype = TEXT if physical_type == "BYTE_ARRAY" else ""
        return KeptColumn(column_name(top), dtype).values
    return ARRAYS.get(top)


def kept_paths(columns: Iterable[KeptColumn]) -> dict[str, str]:
    """Parquet column of the values of each kept column, by the name of its array."""
    levels = ".list.element"
    return {
        column.values: column.array + levels * (1 if column.width == 1 else 2) for column in columns
    }


def column_chunks(meta: pq.FileMetaData, group: int) -> Iterator[tuple[str, int, int]]:
    """(array, offset, bytes) of each column of a row group that belongs to a store."""
    row_group = meta.row_group(group)
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        name = array_of(column.path_in_schema, column.physical_type)
        if name is not None:
            start = column.data_page_offset
            if column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            yield name, start, column.total_compressed_size


def _decode_tail(raw: NDArray[np.uint8], record: ChunkRecord, out: NDArray[Any]) -> None:
    """Copy the values from the end of the chunk."""
    del record
    out.view(np.uint8)[:] = raw[len(raw) - out.nbytes :]


class _Window(io.RawIOBase):
    """A file object that holds only the checked bytes; a read of other bytes is our own mistake."""

    def __init__(self, raw: memoryview, offset: int, size: int) -> None:
        self._raw, self._offset, self._size, self._at = raw, offset, size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        start = self._at - self._offset
        if start < 0 or n < 0:
            raise OSError("read outside the checked bytes")
        raw = bytes(self._raw[start : start + n])
        self._at += len(raw)
        return raw


class ArrowDecoder:
    """Decodes checked bytes of column chunks with pyarrow and a checked footer."""

    def __init__(
        self, location: Location, files: list[list[Any]], metadata: dict[str, list[int]]
    ) -> None:
        self._location, self._files, self._footers = location, files, metadata
        self._footer = lru_cache(64)(self._read_footer)

    def _read_footer(self, file: int) -> tuple[pq.FileMetaData, dict[int, int]]:
        """Read a footer; return it with the row group of each column chunk, by offset."""
        key = self._files[file][0]
        raw = fetch_checked(self._location, key, self._footers[key])
        meta = pq.read_metadata(io.BytesIO(b"PAR1" + raw))
        starts: dict[int, int] = {}
        for group in range(meta.num_row_groups):
            starts |= {start: group for _, start, _ in column_chunks(meta, group)}
        return meta, starts

    def for_array(self, array: str) -> DecodeOne:
        """Make the function that decodes the chunks of one array."""

        def decode(raw: NDArray[np.uint8], record: ChunkRecord, out: NDArray[Any]) -> None:
            file, offset = record.file, record.offset
            meta, starts = self._footer(file)
            window = _Window(raw.data, offset, self._files[file][1])
            # No read-ahead: if a thread of Arrow releases the window while the interpreter exits,
            # the process aborts.
            source = pq.ParquetFile(
                pa.PythonFile(window, mode="r"), metadata=meta, pre_buffer=False
            )
            column = source.reader.read_row_group(
                starts[offset], column_indices=[_leaf(meta, array)], use_threads=False
            )
            out[:] = flatten(column.column(0).combine_chunks(), out.dtype)

        return decode


def _leaf(meta: pq.FileMetaData, array: str) -> int:
    """Index of the Parquet column that holds an array."""
    columns = [meta.schema.column(i) for i in range(meta.num_columns)]
    return [array_of(column.path, column.physical_type) for column in columns].index(array)


def flatten(array: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values inside nested lists, or UTF-8 bytes of strings, end to end."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    while is_list(array.type):
        array = array.flatten()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(pa.binary())
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
        raw = np.frombuffer(array.buffers()[2] or b"", np.uint8)
        return raw[offsets[0] : offsets[-1]]
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype)


def unpackers() -> tuple[int, ...]:
    """Return no addresses: pyarrow unpacks all chunks."""
    return ()


def decoders(location: Location, manifest: Manifest) -> dict[str, Decode]:
    """Make a function for each array that turns checked bytes of column chunks into values."""
    arrow = ArrowDecoder(location, manifest.files, manifest.metadata)
    return {
        name: one_by_one(
            _decode_tail if entry.coding == "tail" else arrow.for_array(name), entry.width
        )
        for name, entry in manifest.arrays.items()
    }


def attributes(location: Location, manifest: Manifest) -> dict[str, Any]:
    """Read counts and names from the common metadata."""
    raw = fetch_checked(location, COMMON, manifest.metadata[COMMON])
    return attributes_in(pq.read_schema(io.BytesIO(raw)), location)


def attributes_in(schema: pa.Schema, location: Location) -> dict[str, Any]:
    """Read counts and names from the metadata of a schema; {} if it has none."""
    try:
        return dict(parse_json((schema.metadata or {}).get(KEY, b"{}")))
    except (ValueError, TypeError):
        raise StoreError(
            f"{location.name}: the key 'streammiml' of the metadata is no JSON"
        ) from None


def is_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list, large or not."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
