"""Sizes of the messages in an Arrow IPC file or stream, checked before pyarrow decodes any of them.

pyarrow allocates the size that a message declares, and must decompress a batch to know its size.
Instead, the description before each batch (a flatbuffer: Message.fbs, File.fbs and Schema.fbs of
the Arrow format, version 5) has the number of records and the sizes of buffers, and each compressed
buffer begins with its decompressed length. This module reads these sizes, and refuses impossible
sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

CONTINUATION = b"\xff\xff\xff\xff"
MAGIC = b"ARROW1"
DICTIONARY, RECORDS = 2, 3
MAX_DESCRIPTION = 64 << 20


class BatchSizes(NamedTuple):
    """Sizes of a batch of records or of a dictionary."""

    is_records: bool
    n_records: int
    on_disk: int
    """Bytes of the buffers in the file."""
    in_memory: int
    """Bytes of the decompressed buffers."""


class BadMessage(Exception):
    """A message with impossible sizes; the text gives the reason."""


def stream_messages(file: BinaryIO, size: int) -> Iterator[BatchSizes]:
    """Yield batches and dictionaries from the file's position on; bodies are not read."""
    while True:
        start = file.tell()
        length, prefix = _description_length(file.read(8))
        if length == 0:
            return
        message, n_bytes = _message(file, size, start + prefix, length, start + prefix + length)
        if message is not None:
            yield message
        file.seek(start + prefix + length + n_bytes)


def file_messages(file: BinaryIO, size: int) -> Iterator[BatchSizes]:
    """Yield the dictionaries, then the batches that the footer of an Arrow file lists."""
    tail = 4 + len(MAGIC)
    file.seek(max(0, size - tail))
    (length,) = _unpack("<i", file.read(4))
    if file.read(len(MAGIC)) != MAGIC or not 0 < length <= min(MAX_DESCRIPTION, size - tail):
        raise BadMessage("its footer is missing or cut")
    file.seek(size - tail - length)
    footer = _FlatBuffer(file.read(length))
    root = footer.u32(0)
    for vector in (2, 3):
        for start, n_described, _ in footer.structs("<qi4xq", footer.field(root, vector)):
            if not 0 <= start < size or not 8 <= n_described <= MAX_DESCRIPTION:
                raise BadMessage("its footer lists a batch outside of the file")
            file.seek(start)
            length, prefix = _description_length(file.read(8))
            if prefix + length > n_described:
                raise BadMessage("a batch has a longer description than the footer declares")
            message, _ = _message(file, size, start + prefix, length, start + n_described)
            if message is None or message.is_records != (vector == 3):
                raise BadMessage("its footer lists something that is not a batch")
            yield message


def _description_length(opening: bytes) -> tuple[int, int]:
    """Lengths of a description (0 at the end of a stream) and of its prefix.

    Files written before Arrow 0.15 have no continuation mark before the length.
    """
    if not opening:
        return 0, 0
    prefix = 8 if opening[:4] == CONTINUATION else 4
    (length,) = _unpack("<i", opening[prefix - 4 : prefix])
    if not 0 <= length <= MAX_DESCRIPTION:
        raise BadMessage(f"a batch has a description of {length:,} bytes")
    return length, prefix


def _message(
    file: BinaryIO, size: int, start: int, length: int, body: int
) -> tuple[BatchSizes | None, int]:
    """Sizes of the message at ``start``, None if it has no batch, and the bytes of its body."""
    file.seek(start)
    description = _FlatBuffer(file.read(length))
    root = description.u32(0)
    kind = description.number("<B", description.field(root, 1))
    on_disk = description.number("<q", description.field(root, 3))
    if not 0 <= on_disk <= size - body:
        raise BadMessage(f"a batch of {on_disk:,} bytes begins at byte {body:,} of {size:,}")
    if kind not in (DICTIONARY, RECORDS):
        return None, on_disk
    batch = description.table(description.field(root, 2))
    if kind == DICTIONARY:
        batch = description.table(description.field(batch, 1))
    n_records = description.number("<q", description.field(batch, 0))
    in_memory = _in_memory(file, description, batch, body, on_disk)
    return BatchSizes(kind == RECORDS, n_records, on_disk, in_memory), on_disk


def _in_memory(
    file: BinaryIO, description: _FlatBuffer, batch: int, body: int, n_bytes: int
) -> int:
    """Decompressed bytes of all buffers.

    A compressed buffer begins with its decompressed length, or −1 if it is stored uncompressed.
    """
    compressed = description.field(batch, 3) != 0
    total = 0
    for offset, length in description.structs("<qq", description.field(batch, 2)):
        if length and not 0 <= offset <= offset + length <= n_bytes:
            raise BadMessage(f"a buffer is outside of its batch of {n_bytes:,} bytes")
        in_memory = length
        if compressed and length >= 8:
            file.seek(body + offset)
            (declared,) = _unpack("<q", file.read(8))
            in_memory = length if declared == -1 else declared
        if in_memory < 0:
            raise BadMessage(f"a buffer declares {in_memory:,} bytes")
        total += in_memory
    return total


def _unpack(kind: str, content: bytes, position: int = 0) -> tuple[int, ...]:
    # struct.unpack_from counts a negative position from the end of the content.
    if position < 0 or position + struct.calcsize(kind) > len(content):
        raise BadMessage("a description is cut, or refers to positions outside of itself")
    return struct.unpack_from(kind, content, position)


class _FlatBuffer:
    """A flatbuffer; positions count from its beginning, and 0 means that a field is missing."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def number(self, kind: str, position: int) -> int:
        return 0 if position == 0 else _unpack(kind, self._content, position)[0]

    def u32(self, position: int) -> int:
        return _unpack("<I", self._content, position)[0]

    def field(self, table: int, number: int) -> int:
        """Position of a field of a table."""
        entries = table - _unpack("<i", self._content, table)[0]
        n_bytes = _unpack("<H", self._content, entries)[0]
        at = 4 + 2 * number
        offset = _unpack("<H", self._content, entries + at)[0] if at < n_bytes else 0
        return table + offset if offset else 0

    def table(self, position: int) -> int:
        """Position of the table that a field refers to."""
        if position == 0:
            raise BadMessage("a description lacks its batch")
        return position + self.u32(position)

    def structs(self, kind: str, position: int) -> Iterator[tuple[int, ...]]:
        """Yield the structs of the vector that a field refers to."""
        if position == 0:
            return
        vector, width = position + self.u32(position), struct.calcsize(kind)
        for i in range(self.u32(vector)):
            yield _unpack(kind, self._content, vector + 4 + width * i)
