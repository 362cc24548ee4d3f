"""Verified reading of one array: element ranges in, values out, whatever the backend.

An array is a sequence of chunks. A table of records, itself checked page by page and read lazily,
says where the bytes of each chunk lie and what their crc32c is. Nothing is decoded before it has
been checked. Chunks that lie end to end are fetched by one read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.layout import RECORD, ArrayEntry, table_key
from streammiml.bags.place import LocalPlace, Place, Unreadable
from streammiml.errors import StoreError


class Record(NamedTuple):
    """Where one chunk lies; the fields are those of ``RECORD``."""

    first: int
    offset: int
    elements: int
    nbytes: int
    crc: int
    file: int


Decode = Callable[[memoryview, Record, NDArray[Any]], None]
"""Turns checked bytes of a chunk into values: its record, and where they go, come along."""

TABLE_PAGES = 128
CACHED_CHUNKS = 256
_WHERE = ("file", "offset", "nbytes")


def damaged(place: Place, key: str, what: str) -> StoreError:
    """The error for a file that cannot be trusted."""
    return StoreError(f"{place.name}/{key} {what}; restore the file or convert the source again")


def tried_twice(place: Place, attempt: Callable[[], str]) -> str:
    """What an attempt finds wrong, or nothing, after it has had a second chance.

    A second try mends a passing fault of a network file system or object store; it never mends a
    damaged file.
    """
    problem = ""
    for _ in range(2):
        try:
            problem = attempt()
        except Unreadable as error:
            problem = str(error)
        if not problem:
            break
        place.forget()
    return problem


def fetch(
    place: Place, key: str, offset: int, buffer: memoryview, check: Callable[[], str]
) -> None:
    """Fill the buffer and check it; ``check`` returns what is wrong, or nothing."""

    def attempt() -> str:
        place.read_into(key, offset, buffer)
        return check()

    problem = tried_twice(place, attempt)
    if problem:
        raise damaged(place, key, problem)


def fetch_checked(place: Place, key: str, entry: list[int]) -> bytearray:
    """Bytes that the manifest lists with (offset, bytes, crc32c)."""
    offset, size, crc = entry
    raw = bytearray(size)

    def check() -> str:
        return "" if crc32c(raw) == crc else "is damaged or was edited: it fails its checksum"

    fetch(place, key, offset, memoryview(raw), check)
    return raw


class ChunkTable:
    """The records of one array, read a page at a time."""

    def __init__(self, place: Place, name: str, entry: ArrayEntry) -> None:
        self._place, self._key, self._pages = place, table_key(name), entry.pages
        self._firsts = [first for _, first, _ in entry.pages]
        self._starts = [0, *accumulate(n_records for _, _, n_records in entry.pages)]
        self.page = lru_cache(TABLE_PAGES)(self._read_page)

    def __len__(self) -> int:
        return len(self._pages)

    def _read_page(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """The first elements of a page's chunks, end to end for searching, and its records."""
        crc, _, n_records = self._pages[number]
        raw = bytearray(n_records * RECORD.itemsize)

        def check() -> str:
            return "" if crc32c(raw) == crc else f"is damaged: page {number} fails its checksum"

        start = self._starts[number] * RECORD.itemsize
        fetch(self._place, self._key, start, memoryview(raw), check)
        records = np.frombuffer(raw, RECORD)
        return np.ascontiguousarray(records["first"]), records

    def parts(self, start: int, stop: int) -> Iterator[NDArray[np.void]]:
        """Records of the chunks that hold elements ``start`` to ``stop``, page by page."""
        first = bisect_right(self._firsts, start) - 1
        last = bisect_right(self._firsts, stop - 1, first) - 1
        for number in range(first, last + 1):
            firsts, records = self.page(number)
            begin = int(firsts.searchsorted(start, "right")) - 1 if number == first else 0
            yield records[begin : int(firsts.searchsorted(stop))]

    def covering(self, start: int, stop: int) -> list[Record]:
        """Records of the chunks that hold elements ``start`` to ``stop``; at least one element."""
        return [Record._make(each) for part in self.parts(start, stop) for each in part.tolist()]


class VerifiedArray:
    """Elements of one array by range; a damaged or missing chunk raises StoreError."""

    def __init__(
        self, place: Place, name: str, entry: ArrayEntry, files: list[list[Any]], decode: Decode
    ) -> None:
        self.name, self.entry = name, entry
        self.dtype = np.dtype(entry.dtype)
        self.table = ChunkTable(place, name, entry)
        self._place, self._files, self._decode = place, files, decode

    def __len__(self) -> int:
        return self.entry.length

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop``, (n,) or, for rows, (n, width)."""
        if start >= stop:
            return self._shaped(np.empty(0, self.dtype))
        if self.entry.coding == "raw":
            return self._read_raw(start, stop)
        records = self.table.covering(start, stop)
        first = records[0].first
        if self.entry.coding == "tail" and isinstance(self._place, LocalPlace):
            flat = self._read_tails(records)
        else:
            flat = self._read_coded(records)
        width = self.entry.width
        return self._shaped(flat[(start - first) * width : (stop - first) * width])

    def _shaped(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(-1, self.entry.width) if self.name == "rows" else flat

    def _read_raw(self, start: int, stop: int) -> NDArray[Any]:
        """Elements of chunks whose bytes are their values."""
        parts = list(self.table.parts(start, stop))
        records = parts[0] if len(parts) == 1 else np.concatenate(parts)
        sizes, crcs, offsets = (records[name].tolist() for name in ("nbytes", "crc", "offset"))
        out = np.empty(sum(sizes), np.uint8)
        whole, at = out.data, 0
        files = records["file"].tolist()
        for i, j in _runs(files, offsets, sizes):
            size = offsets[j - 1] + sizes[j - 1] - offsets[i]
            place = (self._files[files[i]][0], offsets[i])
            self._fetch_run(place, sizes[i:j], crcs[i:j], whole[at : at + size])
            at += size
        first, width = int(records["first"][0]), self.entry.width
        flat = out.view(self.dtype)[(start - first) * width : (stop - first) * width]
        return self._shaped(flat)

    def _read_tails(self, records: list[Record]) -> NDArray[Any]:
        """Values that end the bytes of their chunks, fetched straight to where they go.

        Two small reads of a local file cost less than a copy; of an object they would not.
        """
        width, done = self.entry.width, 0
        out = np.empty(sum(record.elements for record in records) * width, self.dtype)
        whole = out.data.cast("B")
        for record in records:
            end = done + record.elements * width * self.dtype.itemsize
            self._fetch_tail(record, whole[done:end])
            done = end
        return out

    def _fetch_tail(self, record: Record, values: memoryview) -> None:
        head = memoryview(bytearray(record.nbytes - len(values)))
        key = self._files[record.file][0]

        def check() -> str:
            self._place.read_into(key, record.offset, head)
            right = crc32c(values, crc32c(head)) == record.crc
            return "" if right else self._wrong(record)

        fetch(self._place, key, record.offset + len(head), values, check)

    def _wrong(self, record: Record) -> str:
        return f"is damaged: {self.name} from element {record.first} on fails its checksum"

    def _read_coded(self, records: list[Record]) -> NDArray[Any]:
        """Values of chunks that must be decoded, or cut out of their bytes."""
        width, done = self.entry.width, 0
        out = np.empty(sum(record.elements for record in records) * width, self.dtype)
        files, offsets, sizes = ([getattr(r, of) for r in records] for of in _WHERE)
        for i, j in _runs(files, offsets, sizes):
            begin = offsets[i]
            raw = np.empty(offsets[j - 1] + sizes[j - 1] - begin, np.uint8).data
            crcs = [record.crc for record in records[i:j]]
            self._fetch_run((self._files[files[i]][0], begin), sizes[i:j], crcs, raw)
            for record in records[i:j]:
                at, end = record.offset - begin, done + record.elements * width
                self._decode(raw[at : at + record.nbytes], record, out[done:end])
                done = end
        return out

    def _fetch_run(
        self, where: tuple[str, int], sizes: list[int], crcs: list[int], buffer: memoryview
    ) -> None:
        """Fetch chunks that lie end to end from a place of a file on, and check each of them."""
        key, offset = where

        def check() -> str:
            at = 0
            for size, crc in zip(sizes, crcs, strict=True):
                if crc32c(buffer[at : at + size]) != crc:
                    return f"is damaged: {self.name} at byte {offset + at} fails its checksum"
                at += size
            return ""

        fetch(self._place, key, offset, buffer, check)


class CachedArray(VerifiedArray):
    """A small array that every read needs: the last chunks are kept, and looked at once.

    ``inspect`` is called with the values of each chunk when it comes from the disk.
    """

    def __init__(self, *args: Any, inspect: Callable[[NDArray[Any]], None]) -> None:
        super().__init__(*args)
        self._inspect = inspect
        self._chunk = lru_cache(CACHED_CHUNKS)(self._read_chunk)
        self._recent: tuple[int, int, NDArray[Any]] = (0, 0, np.empty(0, self.dtype))

    def _read_chunk(self, first: int, count: int) -> NDArray[Any]:
        chunk = super().read(first, first + count)
        self._inspect(chunk)
        return chunk

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop``."""
        first, end, chunk = self._recent
        if first <= start and stop <= end:
            return chunk[start - first : stop - first]
        if start >= stop:
            return np.empty(0, self.dtype)
        records = self.table.covering(start, stop)
        if len(records) > CACHED_CHUNKS // 8:
            # A scan: one read of all of it, and nothing is pushed out for what will not come back.
            whole = super().read(start, stop)
            self._inspect(whole)
            return whole
        parts = []
        for record in records:
            first, end = record.first, record.first + record.elements
            chunk = self._chunk(first, record.elements)
            parts.append(chunk[max(start - first, 0) : stop - first])
        self._recent = (first, end, chunk)
        if len(parts) == 1:
            return parts[0]
        whole = np.concatenate(parts)
        self._inspect(whole)
        return whole


def _runs(files: list[int], offsets: list[int], sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of chunks that are in one file, each right behind the last."""
    last = len(files) - 1
    if files[0] == files[last] and offsets[last] - offsets[0] == sum(sizes) - sizes[last]:
        yield 0, last + 1
        return
    begin = 0
    for i in range(1, last + 1):
        if files[i] != files[i - 1] or offsets[i] != offsets[i - 1] + sizes[i - 1]:
            yield begin, i
            begin = i
    yield begin, last + 1
