"""Verified reading of one array: element ranges in, values out, whatever the backend.

An array is a sequence of chunks. A table of records, itself checked page by page and read lazily,
says where the bytes of each chunk lie and what their crc32c is. Nothing is decoded before it has
been checked. Chunks that lie end to end are fetched by one read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.layout import PAGE_RECORDS, RECORD, ArrayEntry, table_key
from streammiml.bags.place import Place, Unreadable
from streammiml.errors import StoreError

Records = NDArray[np.void]
Decode = Callable[[memoryview, np.void], NDArray[Any]]
"""Checked bytes of a chunk, and its record, to its values (flat, exactly its count of elements)."""

TABLE_PAGES = 512
CACHED_CHUNKS = 256


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
        self.page = lru_cache(TABLE_PAGES)(self._read_page)

    def __len__(self) -> int:
        return len(self._pages)

    def _read_page(self, number: int) -> Records:
        crc, _, n_records = self._pages[number]
        raw = bytearray(n_records * RECORD.itemsize)

        def check() -> str:
            return "" if crc32c(raw) == crc else f"is damaged: page {number} fails its checksum"

        fetch(
            self._place, self._key, number * PAGE_RECORDS * RECORD.itemsize, memoryview(raw), check
        )
        return np.frombuffer(raw, RECORD)

    def covering(self, start: int, stop: int) -> Records:
        """Records of the chunks that hold elements ``start`` to ``stop``; at least one element."""
        first, last = (bisect_right(self._firsts, at) - 1 for at in (start, stop - 1))
        records = self.page(first)
        if last > first:
            records = np.concatenate([self.page(number) for number in range(first, last + 1)])
        firsts = records["first"]
        begin = int(firsts.searchsorted(start, "right")) - 1
        return records[begin : int(firsts.searchsorted(stop, "left"))]


class VerifiedArray:
    """Elements of one array by range; a damaged or missing chunk raises StoreError."""

    def __init__(
        self, place: Place, name: str, entry: ArrayEntry, files: list[list[Any]], decode: Decode
    ) -> None:
        self.name, self.entry = name, entry
        self.dtype = np.dtype(entry.dtype)
        self.table = ChunkTable(place, name, entry)
        self._place, self._files, self._decode = place, files, decode
        self._element = self.dtype.itemsize * entry.width
        self._chunk = lru_cache(CACHED_CHUNKS)(self._read_chunk)

    def __len__(self) -> int:
        return self.entry.length

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop``, (n,) or, for rows, (n, width)."""
        if start >= stop:
            return self._shaped(np.empty(0, self.dtype))
        records = self.table.covering(start, stop)
        first = int(records["first"][0])
        if self.entry.coding == "raw":
            flat = self._read_raw(records).view(self.dtype)
        else:
            flat = self._read_coded(records)
        width = self.entry.width
        return self._shaped(flat[(start - first) * width : (stop - first) * width])

    def read_cached(self, start: int, stop: int) -> NDArray[Any]:
        """As :meth:`read`, keeping the last chunks: for the small arrays that every read needs."""
        if start >= stop:
            return np.empty(0, self.dtype)
        parts = []
        for first, count in self.table.covering(start, stop)[["first", "count"]].tolist():
            chunk = self._chunk(first, count)
            parts.append(chunk[max(start - first, 0) : stop - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _shaped(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(-1, self.entry.width) if self.name == "rows" else flat

    def _read_chunk(self, first: int, count: int) -> NDArray[Any]:
        return self.read(first, first + count)

    def _read_raw(self, records: Records) -> NDArray[np.uint8]:
        """Bytes of chunks whose bytes are their values."""
        out = np.empty(int(records["nbytes"].sum(dtype=np.int64)), np.uint8)
        whole, at = out.data, 0
        for run in _end_to_end(records):
            size = int(run["nbytes"].sum(dtype=np.int64))
            self._fetch_run(run, whole[at : at + size])
            at += size
        return out

    def _read_coded(self, records: Records) -> NDArray[Any]:
        """Values of chunks that must be decoded, or cut out of their bytes."""
        parts = []
        for run in _end_to_end(records):
            raw = np.empty(int(run["nbytes"].sum(dtype=np.int64)), np.uint8).data
            self._fetch_run(run, raw)
            at = 0
            for record in run:
                size = int(record["nbytes"])
                parts.append(self._decode(raw[at : at + size], record))
                at += size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _fetch_run(self, run: Records, buffer: memoryview) -> None:
        """Fetch chunks that lie end to end in one file by one read, and check each of them."""
        sizes, crcs = run["nbytes"].tolist(), run["crc"].tolist()

        def check() -> str:
            at = 0
            for i, (size, crc) in enumerate(zip(sizes, crcs, strict=True)):
                if crc32c(buffer[at : at + size]) != crc:
                    first = run["first"][i]
                    return f"is damaged: {self.name} from element {first} on fails its checksum"
                at += size
            return ""

        key = self._files[int(run["file"][0])][0]
        fetch(self._place, key, int(run["offset"][0]), buffer, check)


def _end_to_end(records: Records) -> Iterator[Records]:
    """Split records where the next chunk is in another file, or not right behind the last."""
    if len(records) > 1:
        ends = records["offset"] + records["nbytes"]
        apart = (records["file"][1:] != records["file"][:-1]) | (records["offset"][1:] != ends[:-1])
        cuts = np.flatnonzero(apart)
        if len(cuts):
            for begin, end in pairwise([0, *(cuts + 1).tolist(), len(records)]):
                yield records[begin:end]
            return
    yield records
