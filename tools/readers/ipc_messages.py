"""What the messages of an Arrow IPC file say of themselves, before any of them is decoded.

pyarrow decodes a record batch to tell its size, and decompresses it to decode it. The description
in front of each (a flatbuffer: Message.fbs and Schema.fbs of the Arrow format, version 5) is small
and has it all: records, buffers, and before each compressed buffer how long it will be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

CONTINUATION = b"\xff\xff\xff\xff"
DICTIONARY, RECORDS = 2, 3
MAX_DESCRIPTION = 64 << 20


class Message(NamedTuple):
    """A batch of records, or a dictionary."""

    is_records: bool
    n_records: int
    on_disk: int
    """Bytes of its buffers as they lie in the file."""
    in_memory: int
    """Bytes that they take decompressed."""


class NoMessages(Exception):
    """A file that is not laid out as it should be; pyarrow will say what is wrong, or cope."""


def messages(file: BinaryIO, size: int) -> Iterator[Message]:
    """Batches and dictionaries from where the file stands on; bodies are passed over."""
    try:
        while (opening := file.read(8)) and opening[4:] != b"\0\0\0\0":
            if opening[:4] != CONTINUATION:
                raise NoMessages
            (length,) = struct.unpack("<i", opening[4:])
            if not 0 < length <= MAX_DESCRIPTION:
                raise NoMessages
            said = _Flat(file.read(length))
            body = file.tell()
            root = said.u32(0)
            kind = said.number("<B", said.field(root, 1))
            on_disk = said.number("<q", said.field(root, 3))
            if not 0 <= on_disk <= size - body:
                raise NoMessages
            if kind in (DICTIONARY, RECORDS):
                batch = said.table(said.field(root, 2))
                if kind == DICTIONARY:
                    batch = said.table(said.field(batch, 1))
                records = said.number("<q", said.field(batch, 0))
                in_memory = _in_memory(file, said, batch, body)
                yield Message(kind == RECORDS, records, on_disk, in_memory)
            file.seek(body + on_disk)
    except struct.error:
        raise NoMessages from None


def _in_memory(file: BinaryIO, said: _Flat, batch: int, body: int) -> int:
    """Bytes of all buffers; a compressed one begins with its length, −1 if it is not."""
    compressed = said.field(batch, 3) != 0
    total = 0
    for offset, length in said.pairs(said.field(batch, 2)):
        if offset < 0 or length < 0:
            raise NoMessages
        found = length
        if compressed and length >= 8:
            file.seek(body + offset)
            (told,) = struct.unpack("<q", file.read(8))
            found = length if told == -1 else told
        if found < 0:
            raise NoMessages
        total += found
    return total


class _Flat:
    """A flatbuffer; places count from its beginning, and 0 stands for a field that is not there."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def number(self, kind: str, place: int) -> int:
        if place == 0:
            return 0
        return int(struct.unpack_from(kind, self._content, place)[0])

    def u32(self, place: int) -> int:
        return int(struct.unpack_from("<I", self._content, place)[0])

    def field(self, table: int, which: int) -> int:
        """Where a field of a table lies."""
        entries = table - int(struct.unpack_from("<i", self._content, table)[0])
        n_bytes = self._u16(entries)
        at = 4 + 2 * which
        offset = self._u16(entries + at) if at < n_bytes else 0
        return table + offset if offset else 0

    def _u16(self, place: int) -> int:
        if place < 0:
            raise NoMessages
        return int(struct.unpack_from("<H", self._content, place)[0])

    def table(self, place: int) -> int:
        """The table that a field refers to."""
        if place == 0:
            raise NoMessages
        return place + self.u32(place)

    def pairs(self, place: int) -> Iterator[tuple[int, int]]:
        """Pairs of numbers in a vector that a field refers to."""
        if place == 0:
            return
        vector = place + self.u32(place)
        for i in range(self.u32(vector)):
            yield struct.unpack_from("<qq", self._content, vector + 4 + 16 * i)
