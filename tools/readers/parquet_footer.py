"""Sizes in the footer of a Parquet file, read without pyarrow.

If the footer contradicts itself, pyarrow (24 to 26) kills the process: the constructors of its row
groups and column chunks throw exceptions that it does not catch (std::terminate). The footer is a
Thrift struct in the compact protocol; only the fields named below are read.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from streammiml_tools.readers.remote_files import source_path

MAGIC = b"PAR1"
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 0, *range(1, 13)
MAX_DEPTH = 64
BYTE_ARRAY = 6
"""Type of columns of texts (parquet.thrift)."""


class BadFooter(Exception):
    """A footer that cannot be read; the text gives the reason."""


class ColumnChunk(NamedTuple):
    """One column of a row group."""

    n_values: int
    is_text: bool
    """Whether values are texts or bytes of variable length."""
    on_disk: int
    in_memory: int
    """Declared bytes of the decompressed pages."""


class RowGroup(NamedTuple):
    """One row group: its sizes and its columns."""

    n_rows: int
    in_memory: int
    chunks: tuple[ColumnChunk, ...]


def row_groups(path: str) -> list[RowGroup]:
    """Read the row groups that the footer of a file lists."""
    with source_path(path).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        tail = file.read(8)
        if len(tail) < 8 or tail[4:] != MAGIC:
            raise BadFooter("the end of the file is missing")
        (length,) = struct.unpack("<I", tail[:4])
        if length > size - 12:
            raise BadFooter(f"its footer of {length:,} bytes is longer than the file")
        file.seek(size - 8 - length)
        footer = _ThriftReader(file.read(length))
    try:
        groups = footer.fields(_FILE).get(4, [])
    except IndexError:
        raise BadFooter("its footer is cut") from None
    return [_row_group(group) for group in groups]


def _row_group(fields: dict[int, Any]) -> RowGroup:
    chunks = []
    for column in fields.get(1, []):
        meta = column.get(3)
        if meta is None or not _COLUMN.keys() <= meta.keys():
            raise BadFooter("its footer lacks sizes of a column")
        chunks.append(ColumnChunk(meta[5], meta[1] == BYTE_ARRAY, meta[7], meta[6]))
    group = RowGroup(fields.get(3, -1), fields.get(2, -1), tuple(chunks))
    if min(group.n_rows, group.in_memory, *(min(chunk) for chunk in chunks), 0) < 0:
        raise BadFooter("its footer has a negative size, or lacks one")
    return group


# Numbers of the fields that are read (parquet.thrift): of FileMetaData, RowGroup, ColumnChunk and
# ColumnMetaData. None stands for a number, a dict for a struct or a list of structs.
_COLUMN = {1: None, 5: None, 6: None, 7: None}
_FILE = {4: {1: {3: _COLUMN}, 2: None, 3: None}}


class _ThriftReader:
    """Reads structs in Thrift's compact protocol; reading past the end is an IndexError."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def fields(self, schema: dict[int, Any], depth: int = 0) -> dict[int, Any]:
        """Read the fields that ``schema`` names from the struct at the current position."""
        if depth > MAX_DEPTH:
            raise BadFooter("its footer is nested too deep")
        out: dict[int, Any] = {}
        number, content = 0, self._content
        while True:
            head = content[self._at]
            self._at += 1
            kind = head & 15
            if kind == STOP:
                return out
            number = number + (head >> 4) if head >> 4 else self._signed()
            if number not in schema:
                self._skip(kind, depth)
                continue
            inner = schema[number]
            if inner is None and kind in (I16, I32, I64):
                out[number] = self._signed()
            elif inner is not None and kind == STRUCT:
                out[number] = self.fields(inner, depth + 1)
            elif inner is not None and kind == LIST:
                out[number] = self._structs(inner, depth)
            else:
                raise BadFooter(f"its footer has an unexpected type {kind}")

    def _structs(self, schema: dict[int, Any], depth: int) -> list[dict[int, Any]]:
        count, kind = self._list_head()
        if count and kind != STRUCT:
            raise BadFooter(f"its footer has an unexpected type {kind}")
        return [self.fields(schema, depth + 1) for _ in range(count)]

    def _list_head(self) -> tuple[int, int]:
        head = self._content[self._at]
        self._at += 1
        count = head >> 4
        return (self._unsigned() if count == 15 else count), head & 15

    def _unsigned(self) -> int:
        content, at = self._content, self._at + 1
        byte = content[at - 1]
        if byte < 128:
            self._at = at
            return byte
        value, shift = byte & 127, 7
        while byte > 127:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if shift > 70:
                raise BadFooter("its footer has a number of more than 64 bits")
        self._at = at
        return value

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        """Skip a value; true and false take no bytes outside of lists."""
        if kind == BINARY:
            length = self._unsigned()
            self._at += length
        elif I16 <= kind <= I64:
            self._unsigned()
        elif kind == STRUCT:
            self.fields({}, depth + 1)
        elif kind in (BYTE, DOUBLE):
            self._at += 1 if kind == BYTE else 8
        elif kind in (LIST, SET):
            self._skip_items(*self._list_head(), depth)
        elif kind == MAP:
            count = self._unsigned()
            kinds = self._content[self._at] if count else 0
            self._at += 1 if count else 0
            for _ in range(count):
                self._skip_items(1, kinds >> 4, depth)
                self._skip_items(1, kinds & 15, depth)
        elif kind not in (TRUE, FALSE):
            raise BadFooter(f"its footer has an unknown type {kind}")

    def _skip_items(self, count: int, kind: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BadFooter("its footer is nested too deep")
        if count > len(self._content):
            raise BadFooter(f"its footer has a list of {count:,} items")
        if kind in (TRUE, FALSE, BYTE, DOUBLE):
            self._at += count * (8 if kind == DOUBLE else 1)
            return
        for _ in range(count):
            self._skip(kind, depth + 1)
