"""Verified reading of one array: elements by range, from any backend.

An array is a sequence of chunks. The chunk table, which is read and checked page by page, gives the
position and the crc32c of each chunk. No chunk is decoded before it is checked. Chunks that lie end
to end are fetched by one read.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml._base.buffer_pool import lent, lent_at
from streammiml._base.crc import first_wrong, has_fast_way, worth_compiling
from streammiml.bags.file_errors import Unreadable, reason
from streammiml.bags.group_read import (
    CODINGS,
    SURPLUS_BYTES,
    GroupRead,
    Span,
    TooManyFiles,
    read_group,
)
from streammiml.bags.layout import INDEX_PIECE, RECORD, ArrayEntry, table_key
from streammiml.bags.location import LocalFolder, Location
from streammiml.bags.offsets import from_sizes
from streammiml.bags.range_group import Located
from streammiml.errors import StoreError


class ChunkRecord(NamedTuple):
    """Position of one chunk; the fields are those of ``RECORD``."""

    first: int
    offset: int
    elements: int
    nbytes: int
    crc: int
    file: int


I64 = NDArray[np.int64]
Ranges = Sequence[tuple[int, int]]
Decode = Callable[[NDArray[np.uint8], list[ChunkRecord], NDArray[Any]], None]
"""Called with (bytes, records, out): decodes checked chunks that lie end to end into ``out``."""
DecodeOne = Callable[[NDArray[np.uint8], ChunkRecord, NDArray[Any]], None]
"""Called with (bytes, record, out): decodes one checked chunk into ``out``."""

TABLE_PAGES = 64
"""Number of cached pages of a chunk table."""
CACHED_PIECES = 256
CACHED_BYTES = 4 << 20
"""Limits of the cache of a small array."""
SCANNED_PIECES = 8
"""A read that spans more pieces than this does not use the cache."""
_LINE, _PAGE = 64, 4096
# Errors of numcodecs, gzip and pyarrow for bytes that pass their checksum but cannot be decoded.
_UNDECODABLE = (ValueError, RuntimeError, OSError, EOFError, LookupError, zlib.error)


def damaged(location: Location, key: str, problem: str) -> StoreError:
    """Make the error for a damaged file; ``problem`` continues after the file's name."""
    return StoreError(
        f"{location.name}/{key} {problem}; restore the file or convert the source again",
        page="trouble",
    )


def aligned_buffer(n_bytes: int, offset: int) -> NDArray[np.uint8]:
    """Allocate an aligned buffer for bytes from an offset of a file.

    Some processors (Zen 3) copy at a tenth of their speed if the position of the target within its
    page is 1 to 31 bytes after the position of the source within its page. Such positions are
    likely: in the page cache a file begins at the start of a page, and large arrays begin near the
    start of a page.
    """
    raw, address = lent_at(n_bytes + 2 * _LINE)
    start = -address % _LINE
    if 0 < (address + start - offset) % _PAGE < 32:
        start += _LINE
    return raw[start : start + n_bytes]


def _compact(values: NDArray[Any]) -> NDArray[Any]:
    """Copy values to a buffer of their own."""
    out = lent(values.nbytes).view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


def _halves(ranges: Ranges) -> tuple[Ranges, Ranges]:
    middle = len(ranges) // 2
    return ranges[:middle], ranges[middle:]


def one_by_one(decode: DecodeOne, width: int) -> Decode:
    """Make a decoder of several chunks from a decoder of one; elements have ``width`` values."""

    def decode_all(raw: NDArray[np.uint8], records: list[ChunkRecord], out: NDArray[Any]) -> None:
        done = 0
        for record in records:
            at, end = record.offset - records[0].offset, done + record.elements * width
            decode(raw[at : at + record.nbytes], record, out[done:end])
            done = end

    return decode_all


def tried_twice(location: Location, attempt: Callable[[], str]) -> str:
    """Run an attempt, which returns a problem or ""; repeat it once if there is a problem.

    A second attempt helps against a transient fault of a network file system or object store, but
    not against a damaged file.
    """
    problem = ""
    for _ in range(2):
        try:
            problem = attempt()
        except Unreadable as error:
            problem = str(error)
        if not problem:
            break
        location.forget()
    return problem


def fetch(
    location: Location, key: str, offset: int, buffer: memoryview, check: Callable[[], str]
) -> None:
    """Fill the buffer and check it; ``check`` returns a problem, or "" if there is none."""

    def attempt() -> str:
        location.read_into(key, offset, buffer)
        return check()

    problem = tried_twice(location, attempt)
    if problem:
        raise damaged(location, key, problem)


def fetch_checked(location: Location, key: str, entry: list[int]) -> bytearray:
    """Read and check bytes that the manifest lists with (offset, bytes, crc32c)."""
    offset, size, crc = entry
    raw = bytearray(size)

    def check() -> str:
        return "" if crc32c(raw) == crc else "is damaged or was edited: it fails its checksum"

    fetch(location, key, offset, memoryview(raw), check)
    return raw


def description_problem(location: Location, key: str, entry: list[int]) -> str:
    """Say what is wrong with a metadata file or a Parquet footer; empty if it is intact."""
    offset, size, crc = entry

    def attempt() -> str:
        file_size = location.size(key)
        if file_size is None:
            return "is missing"
        if file_size != offset + size:
            return f"has {file_size} bytes, expected {offset + size}"
        raw = bytearray(size)
        location.read_into(key, offset, memoryview(raw))
        return "" if crc32c(raw) == crc else "is damaged or was edited: it fails its checksum"

    return tried_twice(location, attempt)


class ChunkRecords(NamedTuple):
    """Records of consecutive chunks, and their fields as arrays of the types that reading needs."""

    records: NDArray[np.void]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    crcs: NDArray[np.uint64]
    run: NDArray[np.int64]
    """Number of each chunk's run; a run is a series of chunks that lie end to end in one file."""

    @classmethod
    def from_records(cls, records: NDArray[np.void]) -> ChunkRecords:
        """Derive all fields from the records."""
        # One array, so that compiled code gets one address; in the order of ``fast_reads``.
        fields = np.zeros((7, len(records)), np.int64)
        names = ("first", "elements", "offset", "nbytes", "crc", None, "file")
        for field, name in zip(fields, names, strict=True):
            if name is not None:
                field[:] = records[name]
        firsts, counts, offsets, sizes, crcs, run, files = fields
        apart = (offsets[1:] != offsets[:-1] + sizes[:-1]) | (files[1:] != files[:-1])
        np.cumsum(apart, out=run[1:])
        return cls(records, firsts, counts, offsets, sizes, crcs.view(np.uint64), run)

    def part(self, start: int, stop: int) -> ChunkRecords:
        """Records ``start`` to ``stop``."""
        return ChunkRecords._make([field[start:stop] for field in self])

    @property
    def n_bytes(self) -> int:
        """Number of bytes of the chunks, which must be one run."""
        return int(self.offsets[-1]) + int(self.sizes[-1]) - int(self.offsets[0])

    def runs(self) -> list[ChunkRecords]:
        """Split into runs: chunks that lie end to end in one file."""
        if self.run[0] == self.run[-1]:
            return [self]
        ends = (np.flatnonzero(np.diff(self.run)) + 1).tolist()
        return [self.part(start, stop) for start, stop in pairwise((0, *ends, len(self.run)))]


class ChunkTable:
    """Chunk table of one array, read a page at a time; the pages used last are cached."""

    def __init__(
        self, location: Location, name: str, entry: ArrayEntry, files: Sequence[Sequence[Any]]
    ) -> None:
        self._location, self._key, self._pages = location, table_key(name), entry.pages
        self._name, self._entry, self._files = name, entry, files
        self._firsts = [first for _, first, _ in entry.pages]
        self._starts = [0, *accumulate(n_records for _, _, n_records in entry.pages)]
        self._page = lru_cache(TABLE_PAGES)(self._read_page)

    def __len__(self) -> int:
        return len(self._pages)

    def page(self, number: int) -> ChunkRecords:
        """Records of a page."""
        return self._page(number)[0]

    def _read_page(self, number: int) -> tuple[ChunkRecords, int]:
        """Read and check a page; also returns the address of its fields."""
        crc, _, n_records = self._pages[number]
        raw = bytearray(n_records * RECORD.itemsize)

        def check() -> str:
            return "" if crc32c(raw) == crc else f"is damaged: page {number} fails its checksum"

        start = self._starts[number] * RECORD.itemsize
        fetch(self._location, self._key, start, memoryview(raw), check)
        page = ChunkRecords.from_records(np.frombuffer(raw, RECORD))
        problem = self._problem(number, page)
        if problem:
            raise damaged(self._location, self._key, f"is invalid: {problem}")
        return page, int(page.firsts.__array_interface__["data"][0])

    def _problem(self, number: int, page: ChunkRecords) -> str:
        """Say what is invalid in a page that passes its checksum; empty if nothing is.

        Readers rely on chunks without gaps or overlaps, which are inside their files.
        """
        entry, where = self._entry, f"of page {number} of {self._name}"
        begins = np.append(page.firsts, [*self._firsts, entry.length][number + 1])
        ends = np.append(self._firsts[number], page.firsts + page.counts)
        if (wrong := np.flatnonzero(begins != ends)).size:
            at = int(wrong[0])
            return f"element {begins[at]} follows {ends[at]} elements, at chunk {at} {where}"
        files, file_index = np.unique(page.records["file"], return_inverse=True)
        inside = files < len(self._files)
        if inside.all():
            limits = np.array([self._files[file][1] for file in files.tolist()])[file_index]
            inside = (page.offsets >= 0) & (page.offsets <= limits - page.sizes)
        if not inside.all():
            return f"a chunk {where} is outside the files of the store"
        if entry.coding == "raw":
            expected = page.counts * (entry.width * np.dtype(entry.dtype).itemsize)
            # The last chunk of the array may be padded.
            right = (page.sizes == expected) | (
                (page.sizes > expected) & (ends[1:] == entry.length)
            )
            if not right.all():
                at = int(np.argmin(right))
                return f"chunk {at} {where} has {page.sizes[at]} bytes, expected {expected[at]}"
        if entry.coding == "tail":
            expected = page.counts * (entry.width * np.dtype(entry.dtype).itemsize)
            if (short := np.flatnonzero(page.sizes < expected)).size:
                at = int(short[0])
                size, least = page.sizes[at], expected[at]
                return f"chunk {at} {where} has {size} bytes, expected at least {least}"
        return ""

    def find(self, start: int, stop: int) -> ChunkRecords:
        """Find all chunks that hold elements ``start`` to ``stop``; ``start < stop``."""
        number = bisect_right(self._firsts, start) - 1
        page, next_first = self.page(number), self._firsts[number + 1 : number + 2]
        begin = int(page.firsts.searchsorted(start, "right")) - 1
        end = int(page.firsts.searchsorted(stop))
        if not next_first or next_first[0] >= stop:
            return page.part(begin, end)
        parts = [page.records[begin:end]]
        for later in range(number + 1, bisect_right(self._firsts, stop - 1, number)):
            page = self.page(later)
            parts.append(page.records[: int(page.firsts.searchsorted(stop))])
        return ChunkRecords.from_records(np.concatenate(parts))

    def spans(self, ranges: Ranges) -> tuple[list[Span], list[tuple[ChunkRecords, int]]]:
        """Split ranges at the bounds of pages; also returns these pages, with addresses."""
        firsts, index = self._firsts, dict[int, int]()
        spans: list[Span] = []
        pages: list[tuple[ChunkRecords, int]] = []
        for number, (start, stop) in enumerate(ranges):
            at = bisect_right(firsts, start) - 1
            while start < stop:
                if at not in index:
                    index[at] = len(pages)
                    pages.append(self._page(at))
                end = min(stop, firsts[at + 1]) if at + 1 < len(firsts) else stop
                spans.append((number, start, end, index[at]))
                start, at = end, at + 1
        return spans, pages


class VerifiedArray:
    """Reads elements of one array by range; a damaged or missing chunk raises StoreError."""

    def __init__(
        self,
        location: Location,
        name: str,
        entry: ArrayEntry,
        files: list[list[Any]],
        decode: Decode,
    ) -> None:
        self.name, self.entry = name, entry
        self.dtype = np.dtype(entry.dtype)
        self.table = ChunkTable(location, name, entry, files)
        self._location, self._files, self._decode = location, files, decode
        self.unpackers: Callable[[], tuple[int, ...]] = tuple
        """Returns addresses of two C functions: unpack a chunk, unpack a part of it; () if none."""

    def __len__(self) -> int:
        return self.entry.length

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read elements ``start`` to ``stop``: (n,), or (n, width) for rows."""
        if start >= stop:
            return self._shaped(np.empty(0, self.dtype))
        if self._is_long(start, stop):
            values = self._read_together([(start, stop)])[0]
            if values is not None:
                return values
        if self.entry.coding == "raw":
            return self._read_raw(start, stop)
        chunks = self.table.find(start, stop)
        if self.entry.coding == "tail" and isinstance(self._location, LocalFolder):
            flat = self._read_tails(
                [ChunkRecord._make(record) for record in chunks.records.tolist()]
            )
        else:
            flat = self._read_coded(chunks)
        return self._cut(flat, int(chunks.firsts[0]), start, stop)

    def _is_long(self, start: int, stop: int) -> bool:
        """Tell whether a read is long enough to be worth loading a compiler."""
        return worth_compiling((stop - start) * self.entry.width * self.dtype.itemsize)

    def read_many(self, ranges: Ranges) -> list[NDArray[Any]]:
        """Read each range as :meth:`read` does, with fewer calls where possible.

        The results may share memory, which is freed with the last of them.
        """
        # Reading a range by itself gives an error its message.
        return [
            self.read(*span) if values is None else values
            for span, values in zip(ranges, self._read_together(ranges), strict=True)
        ]

    def locate(self, ranges: Ranges) -> Located:
        """Read ranges like :meth:`read_many`; returns addresses of values, not arrays."""
        try:
            group = self._read_group(ranges)
        except TooManyFiles:
            return Located.joined([self.locate(half) for half in _halves(ranges)])
        owners: list[Any] = [] if group is None else [group.buffer]
        addresses = []
        for number, (start, stop) in enumerate(ranges):
            if group is not None and number in group.ranges:
                addresses.append(group.address + group.ranges[number][0])
                continue
            owners.append(np.ascontiguousarray(self.read(start, stop)))
            addresses.append(owners[-1].__array_interface__["data"][0])
        value_bytes = self.entry.width * self.dtype.itemsize
        return Located(np.array(addresses, np.int64), value_bytes, owners)

    def _read_together(self, ranges: Ranges) -> list[NDArray[Any] | None]:
        """Read ranges by one compiled call; None for each range that cannot be read so."""
        try:
            group = self._read_group(ranges)
        except TooManyFiles:
            return [values for half in _halves(ranges) for values in self._read_together(half)]
        if group is None:
            return [None] * len(ranges)
        spots = map(group.ranges.get, range(len(ranges)))
        return [
            None if spot is None else self._shaped(group.buffer[slice(*spot)].view(self.dtype))
            for spot in spots
        ]

    def _read_group(self, ranges: Ranges) -> GroupRead | None:
        """Read ranges by one compiled call; None if that is not possible or any chunk is wrong.

        Ranges without elements are left out. Raises TooManyFiles if there is more than one range.
        """
        coding, location = self.entry.coding, self._location
        unpackers = self.unpackers() if coding == "blosc" else ()
        if coding not in CODINGS or (coding == "blosc" and not unpackers):
            return None
        if not isinstance(location, LocalFolder) or not has_fast_way():
            return None
        spans, pages = self.table.spans(ranges)
        if not spans:
            return None
        page_lines = [(address, len(page.run)) for page, address in pages]
        try:
            return read_group(location, self._files, self.entry, spans, page_lines, unpackers)
        except TooManyFiles:
            if len(ranges) > 1:
                raise
            return None

    def _cut(self, flat: NDArray[Any], first: int, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop`` of values that begin with element ``first``."""
        part = self._part(flat, first, start, stop)
        # A view keeps all fetched bytes in memory.
        surplus, limit = flat.nbytes - part.nbytes, max(SURPLUS_BYTES, part.nbytes // 8)
        return self._shaped(_compact(part) if surplus > min(part.nbytes, limit) else part)

    def _part(self, flat: NDArray[Any], first: int, start: int, stop: int) -> NDArray[Any]:
        width = self.entry.width
        part = flat[(start - first) * width : (stop - first) * width]
        if len(part) != (stop - start) * width:
            problem = f"is invalid: it ends before element {stop} of {self.name}"
            raise damaged(self._location, table_key(self.name), problem)
        return part

    def _shaped(self, flat: NDArray[Any]) -> NDArray[Any]:
        is_matrix = self.name == "rows" or self.entry.width > 1
        return flat.reshape(-1, self.entry.width) if is_matrix else flat

    def _read_raw(self, start: int, stop: int) -> NDArray[Any]:
        """Read elements of uncompressed chunks."""
        chunks = self.table.find(start, stop)
        runs = chunks.runs()
        n_bytes = [run.n_bytes for run in runs]
        out, at = aligned_buffer(sum(n_bytes), int(chunks.offsets[0])), 0
        for run, size in zip(runs, n_bytes, strict=True):
            self._fetch_run(run, out[at : at + size])
            at += size
        return self._cut(out.view(self.dtype), int(chunks.firsts[0]), start, stop)

    def _read_tails(self, records: list[ChunkRecord]) -> NDArray[Any]:
        """Read values that are the end of their chunks, directly into the result.

        Two small reads of a local file are faster than a copy; two requests to a server are not.
        """
        width, done = self.entry.width, 0
        out = np.empty(sum(record.elements for record in records) * width, self.dtype)
        out_bytes = out.data.cast("B")
        for record in records:
            end = done + record.elements * width * self.dtype.itemsize
            self._fetch_tail(record, out_bytes[done:end])
            done = end
        return out

    def _fetch_tail(self, record: ChunkRecord, values: memoryview) -> None:
        """Fetch and check one chunk; its end goes to ``values``."""
        head = memoryview(bytearray(record.nbytes - len(values)))
        key = self._files[record.file][0]

        def check() -> str:
            self._location.read_into(key, record.offset, head)
            right = crc32c(values, crc32c(head)) == record.crc
            return "" if right else self._checksum_problem(record)

        fetch(self._location, key, record.offset + len(head), values, check)

    def _checksum_problem(self, record: ChunkRecord) -> str:
        return f"is damaged: {self.name} from element {record.first} on fails its checksum"

    def _read_coded(self, chunks: ChunkRecords) -> NDArray[Any]:
        """Read and decode all values of chunks."""
        width, done = self.entry.width, 0
        n_values = int(chunks.counts.sum()) * width
        out = lent(n_values * self.dtype.itemsize).view(self.dtype)
        for run in chunks.runs():
            begin = int(run.offsets[0])
            raw = aligned_buffer(run.n_bytes, begin)
            self._fetch_run(run, raw)
            end = done + int(run.counts.sum()) * width
            records = [ChunkRecord._make(record) for record in run.records.tolist()]
            try:
                self._decode(raw, records, out[done:end])
            except StoreError:
                raise
            except _UNDECODABLE as error:
                first, key = records[0].first, self._files[records[0].file][0]
                problem = f"is invalid: {self.name} from element {first} on {reason(error)}"
                raise damaged(self._location, key, problem) from error
            done = end
        return out

    def _fetch_run(self, run: ChunkRecords, buffer: NDArray[np.uint8]) -> None:
        """Fetch and check the chunks of one run."""
        key, offset = self._files[int(run.records["file"][0])][0], int(run.offsets[0])

        def check() -> str:
            wrong = first_wrong(buffer, run.sizes, run.crcs)
            if wrong < 0:
                return ""
            at = run.offsets[wrong]
            return f"is damaged: {self.name} at byte {at} fails its checksum"

        fetch(self._location, key, offset, buffer.data, check)


class CachedArray(VerifiedArray):
    """A small array that every read needs; the pieces used last are cached, or the whole array.

    ``inspect`` checks the values of each piece once, after the piece is read. ``joints`` is True if
    ``inspect`` compares neighbours: then it also checks each read that spans several pieces.
    """

    def __init__(
        self, *args: Any, inspect: Callable[[NDArray[Any]], None], joints: bool = False
    ) -> None:
        super().__init__(*args)
        self._inspect, self._joints = inspect, joints
        self._whole: NDArray[Any] | None = None
        """All values, once :meth:`gather` has been called, if they fit the cache."""

    @cached_property
    def _unit(self) -> int:
        """Elements in a piece: the median length of a chunk, but at least a few thousand."""
        lengths = np.sort(self.table.page(0).counts)
        return max(int(lengths[len(lengths) // 2]), 4 * INDEX_PIECE)

    @cached_property
    def _piece(self) -> Any:
        """Cached function from number to piece; the cache holds fewer pieces if they are long."""
        n_pieces = CACHED_BYTES // (self._unit * self.dtype.itemsize)
        return lru_cache(min(max(n_pieces, 2), CACHED_PIECES))(self._read_piece)

    def _read_piece(self, number: int) -> NDArray[Any]:
        first = number * self._unit
        piece = super().read(first, min(first + self._unit, len(self)))
        self._inspect(piece)
        return piece

    def gather(self, starts: I64, lengths: I64) -> NDArray[Any]:
        """Read ranges of elements and join them.

        ``inspect`` is called only if the whole array fits the cache.
        """
        if len(self) * self.dtype.itemsize > CACHED_BYTES:
            ranges = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
            return np.concatenate(super().read_many(list(ranges)))
        if self._whole is None:
            values = super().read(0, len(self))
            self._inspect(values)
            self._whole = values
            # Made by the first read of a piece, which an array without elements never has.
            if "_piece" in self.__dict__:
                self._piece.cache_clear()
        bounds = from_sizes(lengths)
        shift = np.repeat(starts - bounds[:-1], lengths)
        gathered: NDArray[Any] = self._whole[np.arange(bounds[-1]) + shift]
        return gathered

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read elements ``start`` to ``stop``."""
        if start >= stop:
            return np.empty(0, self.dtype)
        if self._whole is not None:
            return self._whole[start:stop]
        unit = self._unit
        first, last = start // unit, (stop - 1) // unit
        if first == last:
            piece: NDArray[Any] = self._piece(first)
            return piece[start - first * unit : stop - first * unit]
        if last - first >= SCANNED_PIECES:
            # A scan does not use the cache: its pieces are used only once and would evict others.
            values = super().read(start, stop)
            self._inspect(values)
            return values
        parts = [self._piece(number) for number in range(first, last + 1)]
        parts[0] = parts[0][start - first * unit :]
        parts[-1] = parts[-1][: stop - last * unit]
        values = np.concatenate(parts)
        if self._joints:
            self._inspect(values)
        return values
