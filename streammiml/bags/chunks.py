"""Verified reading of one array: element ranges in, values out, whatever the backend.

An array is a sequence of chunks. A table of records, itself checked page by page and read lazily,
says where the bytes of each chunk lie and what their crc32c is. Nothing is decoded before it has
been checked. Chunks that lie end to end are fetched by one read.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.cold import OpenFile
from streammiml.bags.layout import INDEX_PIECE, RECORD, ArrayEntry, table_key
from streammiml.bags.place import LocalPlace, Place, Unreadable, reason
from streammiml.checksum import first_wrong, has_fast_way, worth_compiling
from streammiml.errors import StoreError
from streammiml.loans import Memory, lent, lent_at


class Record(NamedTuple):
    """Where one chunk lies; the fields are those of ``RECORD``."""

    first: int
    offset: int
    elements: int
    nbytes: int
    crc: int
    file: int


Ranges = Sequence[tuple[int, int]]
Decode = Callable[[NDArray[np.uint8], list[Record], NDArray[Any]], None]
"""Turns checked bytes of chunks that lie end to end into values: their records, and where they go,
come along."""
DecodeOne = Callable[[NDArray[np.uint8], Record, NDArray[Any]], None]
"""The same for the bytes of one chunk."""

TABLE_PAGES = 64
CACHED_PIECES = 256
CACHED_BYTES = 4 << 20
SCANNED_PIECES = 8
TOGETHER_BYTES = 8 << 20
"""What is fetched at once, about."""
ALONG_BYTES = 128 << 10
"""Of what is fetched with a range, so much may be held as long as the range is, or an eighth of it:
the rest of its first and last pieces."""
_LINE, _PAGE = 64, 4096
_UNPACKED = ("sizes", "firsts", "counts")
# What numcodecs, gzip and pyarrow raise at bytes that are as they were written, and still wrong.
_UNDECODABLE = (ValueError, RuntimeError, OSError, EOFError, zlib.error)


def damaged(place: Place, key: str, what: str) -> StoreError:
    """The error for a file that cannot be trusted."""
    return StoreError(f"{place.name}/{key} {what}; restore the file or convert the source again")


def landing(n_bytes: int, offset: int, *, past: bool = False) -> tuple[NDArray[np.uint8], int]:
    """Fresh bytes on a cache line, to be filled from an offset of a file, and their address.

    Some processors (Zen 3) copy at a tenth of their speed to an address that lies 1 to 31 bytes
    after the source within a page, and files begin on pages as large arrays nearly do. ``past``
    the page cache whole pages come straight from the disk: then they lie in pages as in the file,
    with room for all of the first and the last.
    """
    raw, address = lent_at(n_bytes + (3 * _PAGE if past else 2 * _LINE))
    start = -address % (_PAGE if past else _LINE)
    if past:
        start += offset % _PAGE
    elif 0 < (address + start - offset) % _PAGE < 32:
        start += _LINE
    return raw[start : start + n_bytes], address + start


def _compact(values: NDArray[Any]) -> NDArray[Any]:
    """The same in memory of its own."""
    out = lent(values.nbytes).view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


@cache
def _fetching() -> Any:
    """Loaded late: it loads a compiler."""
    return import_module("streammiml.fetching")


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """All of them, end to end."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def one_by_one(decode: DecodeOne, width: int) -> Decode:
    """Decode chunks of elements of ``width`` values one after the other."""

    def decode_all(raw: NDArray[np.uint8], records: list[Record], out: NDArray[Any]) -> None:
        done = 0
        for record in records:
            at, end = record.offset - records[0].offset, done + record.elements * width
            decode(raw[at : at + record.nbytes], record, out[done:end])
            done = end

    return decode_all


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


class Found(NamedTuple):
    """Consecutive chunks: their records, and of these what reading takes, ready to be used."""

    records: NDArray[np.void]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    crcs: NDArray[np.uint64]
    run: NDArray[np.int32]
    """A number that grows where a chunk does not lie right behind the last, in its file."""

    @classmethod
    def of(cls, records: NDArray[np.void]) -> Found:
        """Chunks of which only the records are there."""
        names = ("first", "elements", "offset", "nbytes")
        firsts, counts, offsets, sizes = (records[name].astype(np.int64) for name in names)
        run, files = np.zeros(len(records), np.int32), records["file"]
        apart = (offsets[1:] != offsets[:-1] + sizes[:-1]) | (files[1:] != files[:-1])
        np.cumsum(apart, out=run[1:])
        crcs = records["crc"].astype(np.uint64)
        return cls(records, firsts, counts, offsets, sizes, crcs, run)

    def part(self, start: int, stop: int) -> Found:
        """Chunks ``start`` to ``stop`` of these."""
        return Found._make([each[start:stop] for each in self])

    @property
    def n_bytes(self) -> int:
        """Bytes of chunks that are one run."""
        return int(self.offsets[-1]) + int(self.sizes[-1]) - int(self.offsets[0])

    def runs(self) -> list[Found]:
        """Chunks that are in one file, each right behind the last."""
        if self.run[0] == self.run[-1]:
            return [self]
        ends = (np.flatnonzero(np.diff(self.run)) + 1).tolist()
        return [self.part(start, stop) for start, stop in pairwise((0, *ends, len(self.run)))]


class ChunkTable:
    """The records of one array, read a page at a time."""

    def __init__(
        self, place: Place, name: str, entry: ArrayEntry, files: Sequence[Sequence[Any]]
    ) -> None:
        self._place, self._key, self._pages = place, table_key(name), entry.pages
        self._name, self._entry, self._files = name, entry, files
        self._firsts = [first for _, first, _ in entry.pages]
        self._starts = [0, *accumulate(n_records for _, _, n_records in entry.pages)]
        self.page = lru_cache(TABLE_PAGES)(self._read_page)

    def __len__(self) -> int:
        return len(self._pages)

    def _read_page(self, number: int) -> Found:
        """The chunks of a page."""
        crc, _, n_records = self._pages[number]
        raw = bytearray(n_records * RECORD.itemsize)

        def check() -> str:
            return "" if crc32c(raw) == crc else f"is damaged: page {number} fails its checksum"

        start = self._starts[number] * RECORD.itemsize
        fetch(self._place, self._key, start, memoryview(raw), check)
        page = Found.of(np.frombuffer(raw, RECORD))
        lie = self._lie(number, page)
        if lie:
            raise damaged(self._place, self._key, f"lies: {lie}")
        return page

    def _lie(self, number: int, page: Found) -> str:
        """What of a page cannot be, though its checksum is right; empty if all can.

        Chunks must follow each other and lie within their files: readers rely on it.
        """
        entry, whose = self._entry, f"of page {number} of {self._name}"
        begins = np.append(page.firsts, [*self._firsts, entry.length][number + 1])
        ends = np.append(self._firsts[number], page.firsts + page.counts)
        if (wrong := np.flatnonzero(begins != ends)).size:
            at = int(wrong[0])
            return f"element {begins[at]} comes after {ends[at]} elements, at chunk {at} {whose}"
        files, of_chunk = np.unique(page.records["file"], return_inverse=True)
        inside = files < len(self._files)
        if inside.all():
            limits = np.array([self._files[file][1] for file in files.tolist()])[of_chunk]
            inside = (page.offsets >= 0) & (page.offsets <= limits - page.sizes)
        if not inside.all():
            return f"a chunk {whose} is not where it could be"
        if entry.coding == "raw":
            wants = page.counts * (entry.width * np.dtype(entry.dtype).itemsize)
            # The last one of all may be padded.
            right = (page.sizes == wants) | ((page.sizes > wants) & (ends[1:] == entry.length))
            if not right.all():
                at = int(np.argmin(right))
                return f"chunk {at} {whose} has {page.sizes[at]} bytes, not {wants[at]}"
        return ""

    def spot(self, start: int, stop: int) -> tuple[Found, int, int, bool]:
        """A page, which of its chunks hold elements from ``start`` up to ``stop``, and if all do.

        If not, the next page goes on.
        """
        number = bisect_right(self._firsts, start) - 1
        page, behind = self.page(number), self._firsts[number + 1 : number + 2]
        begin = int(page.firsts.searchsorted(start, "right")) - 1
        return page, begin, int(page.firsts.searchsorted(stop)), not behind or behind[0] >= stop

    def find(self, start: int, stop: int) -> Found:
        """The chunks that hold elements ``start`` to ``stop``; at least one element."""
        page, begin, end, is_all = self.spot(start, stop)
        if is_all:
            return page.part(begin, end)
        parts, first = [page.records[begin:end]], bisect_right(self._firsts, start) - 1
        for number in range(first + 1, bisect_right(self._firsts, stop - 1, first)):
            page = self.page(number)
            parts.append(page.records[: int(page.firsts.searchsorted(stop))])
        return Found.of(np.concatenate(parts))


class VerifiedArray:
    """Elements of one array by range; a damaged or missing chunk raises StoreError."""

    def __init__(
        self, place: Place, name: str, entry: ArrayEntry, files: list[list[Any]], decode: Decode
    ) -> None:
        self.name, self.entry = name, entry
        self.dtype = np.dtype(entry.dtype)
        self.table = ChunkTable(place, name, entry, files)
        self._place, self._files, self._decode = place, files, decode
        self.unpackers: Callable[[], tuple[int, ...]] = tuple
        """Addresses of what unpacks a chunk and a part of one, for compiled code; or none."""

    def __len__(self) -> int:
        return self.entry.length

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop``, (n,) or, for rows, (n, width)."""
        if start >= stop:
            return self._shaped(np.empty(0, self.dtype))
        if self.entry.coding == "raw":
            return self._read_raw(start, stop)
        if self.entry.coding == "blosc" and self._is_long(start, stop):
            together = self._read_together([(start, stop)])
            if together is not None:
                return together[0]
        found = self.table.find(start, stop)
        if self.entry.coding == "tail" and isinstance(self._place, LocalPlace):
            flat = self._read_tails([Record._make(each) for each in found.records.tolist()])
        else:
            flat = self._read_coded(found)
        return self._cut(flat, int(found.firsts[0]), start, stop)

    def _is_long(self, start: int, stop: int) -> bool:
        """Whether reading these elements is worth loading a compiler."""
        return worth_compiling((stop - start) * self.entry.width * self.dtype.itemsize)

    def read_many(self, ranges: Ranges) -> list[NDArray[Any]]:
        """What :meth:`read` gives for each range, by few calls where that can be."""
        together = self._read_together(ranges)
        return [self.read(*each) for each in ranges] if together is None else together

    def _read_together(self, ranges: Ranges) -> list[NDArray[Any]] | None:
        """None where chunks are not those of local files, or anything is wrong with any of them.

        Whoever reads them one by one then is told what.
        """
        coding = self.entry.coding
        unpackers = self.unpackers() if coding == "blosc" else ()
        if not (coding == "raw" or unpackers) or not all(a < b for a, b in ranges):
            return None
        if not ranges:
            return []
        out: list[NDArray[Any]] = []
        for some, found in self._few_bytes(ranges):
            fetched = self._fetched(found)
            if fetched is None:
                return None
            if unpackers:
                unpacked = self._unpacked(some, found, fetched, unpackers)
                if unpacked is None:
                    return None
                out += unpacked
                continue
            out += [
                self._cut(raw.view(self.dtype), int(each.firsts[0]), *wanted)
                for (raw, _), each, wanted in zip(fetched, found, some, strict=True)
            ]
        return out

    def _few_bytes(self, ranges: Ranges) -> Iterator[tuple[Ranges, list[Found]]]:
        """Ranges with their chunks, as many at a time as little is fetched along with.

        Chunks that others wrote may be far longer than what is wanted of them.
        """
        start, found, n_bytes = 0, [], 0
        for i, each in enumerate(ranges, 1):
            found.append(self.table.find(*each))
            n_bytes += int(found[-1].sizes.sum())
            if n_bytes >= TOGETHER_BYTES or i == len(ranges):
                yield ranges[start:i], found
                start, found, n_bytes = i, [], 0

    def _unpacked(
        self, ranges: Ranges, found: list[Found], packed: list[Memory], unpackers: tuple[int, ...]
    ) -> list[NDArray[Any]] | None:
        """Elements of each range, and no others: chunks are longer than pieces."""
        element, lines, out = self.entry.width * self.dtype.itemsize, [], []
        for (start, stop), each, (_, source) in zip(ranges, found, packed, strict=True):
            room, target = lent_at((stop - start) * element)
            lines.append((start, stop, len(each.sizes), source, target))
            out.append(self._shaped(room.view(self.dtype)))
        chunks = (joined([getattr(each, name) for each in found]) for name in _UNPACKED)
        wrong = _fetching().decompress(*unpackers, np.array(lines), *chunks, element, len(self))
        return out if wrong < 0 else None

    def _fetched(self, found: list[Found]) -> list[Memory] | None:
        """Bytes of each, end to end and checked; None if anything is not as it should be."""
        if not isinstance(self._place, LocalPlace) or not has_fast_way():
            return None
        out, lines, files = [], [], []
        for each in found:
            runs = [(run, run.n_bytes) for run in each.runs()]
            opened = [self._file(run) for run, _ in runs]
            files.append(opened)  # Open until all is read.
            raw, address = None, 0
            for (run, size), file in zip(runs, opened, strict=True):
                if file is None:
                    return None
                offset = int(run.offsets[0])
                way = file.way(offset, size)
                # Pages of two files do not meet in the middle of one.
                if way.past and len(runs) > 1:
                    return None
                if raw is None:
                    n_bytes = sum([size for _, size in runs])
                    raw, address = landing(n_bytes, offset, past=bool(way.past))
                    out.append((raw, address))
                lines.append((*way, offset, size, address, len(run.sizes)))
                address += size
        sizes, crcs = joined([each.sizes for each in found]), joined([each.crcs for each in found])
        return out if _fetching().fetch(np.array(lines), sizes, crcs) < 0 else None

    def _file(self, run: Found) -> OpenFile | None:
        """The file of a run; None where it cannot be opened."""
        assert isinstance(self._place, LocalPlace), "asked before"
        return self._place.opened(self._files[int(run.records["file"][0])][0])

    def _cut(self, flat: NDArray[Any], first: int, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop`` of chunks that begin with element ``first``."""
        part = self._part(flat, first, start, stop)
        # A view would hold everything that was fetched.
        surplus, bearable = flat.nbytes - part.nbytes, max(ALONG_BYTES, part.nbytes // 8)
        return self._shaped(_compact(part) if surplus > min(part.nbytes, bearable) else part)

    def _part(self, flat: NDArray[Any], first: int, start: int, stop: int) -> NDArray[Any]:
        width = self.entry.width
        part = flat[(start - first) * width : (stop - first) * width]
        if len(part) != (stop - start) * width:
            what = f"lies: it ends before element {stop} of {self.name}"
            raise damaged(self._place, table_key(self.name), what)
        return part

    def _shaped(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(-1, self.entry.width) if self.name == "rows" else flat

    def _read_raw(self, start: int, stop: int) -> NDArray[Any]:
        """Elements of chunks whose bytes are their values."""
        if self._is_long(start, stop):
            whole = self._read_run(start, stop)
            if whole is not None:
                return whole
        found = self.table.find(start, stop)
        runs = found.runs()
        if self._is_long(start, stop):
            fetched = self._fetched([found])
            if fetched is not None:
                raw = fetched[0][0].view(self.dtype)
                return self._cut(raw, int(found.firsts[0]), start, stop)
        n_bytes = [run.n_bytes for run in runs]
        (out, _), at = landing(sum(n_bytes), int(found.offsets[0])), 0
        for run, size in zip(runs, n_bytes, strict=True):
            self._fetch_run(run, out[at : at + size])
            at += size
        return self._cut(out.view(self.dtype), int(found.firsts[0]), start, stop)

    def _read_run(self, start: int, stop: int) -> NDArray[Any] | None:
        """The same by few steps, where chunks lie end to end in one local file, and are right.

        After a block has been read nothing that Python does is in the processor's caches: every
        step counts.
        """
        page, begin, end, is_all = self.table.spot(start, stop)
        place, run = self._place, page.run
        if not is_all or run[begin] != run[end - 1]:
            return None
        if not isinstance(place, LocalPlace) or not has_fast_way():
            return None
        offset = int(page.offsets[begin])
        n_bytes = int(page.offsets[end - 1]) + int(page.sizes[end - 1]) - offset
        file = place.opened(self._files[int(page.records["file"][begin])][0])
        if file is None:
            return None
        way = file.way(offset, n_bytes)
        raw, address = landing(n_bytes, offset, past=bool(way.past))
        where = (*way, offset, n_bytes, address)
        if not _fetching().fetch_one(*where, page.sizes, page.crcs, begin, end):
            return None
        return self._cut(raw.view(self.dtype), int(page.firsts[begin]), start, stop)

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

    def _read_coded(self, found: Found) -> NDArray[Any]:
        """Values of chunks that must be decoded, or cut out of their bytes."""
        width, done = self.entry.width, 0
        n_values = int(found.counts.sum()) * width
        out = lent(n_values * self.dtype.itemsize).view(self.dtype)
        for run in found.runs():
            begin = int(run.offsets[0])
            raw, _ = landing(run.n_bytes, begin)
            self._fetch_run(run, raw)
            end = done + int(run.counts.sum()) * width
            records = [Record._make(each) for each in run.records.tolist()]
            try:
                self._decode(raw, records, out[done:end])
            except StoreError:
                raise
            except _UNDECODABLE as error:
                what = f"lies: {self.name} from element {records[0].first} on {reason(error)}"
                raise damaged(self._place, self._files[records[0].file][0], what) from error
            done = end
        return out

    def _fetch_run(self, run: Found, buffer: NDArray[np.uint8]) -> None:
        """Fetch chunks that lie end to end in a file, and check each of them."""
        key, offset = self._files[int(run.records["file"][0])][0], int(run.offsets[0])

        def check() -> str:
            wrong = first_wrong(buffer, run.sizes, run.crcs)
            if wrong < 0:
                return ""
            at = run.offsets[wrong]
            return f"is damaged: {self.name} at byte {at} fails its checksum"

        fetch(self._place, key, offset, buffer.data, check)


class CachedArray(VerifiedArray):
    """A small array that every read needs: the last pieces are kept, and looked at once.

    ``inspect`` is called with the values of each piece when it comes from the disk, and, where it
    says something of neighbours (``joints``), with the values of a read that spans several.
    """

    def __init__(
        self, *args: Any, inspect: Callable[[NDArray[Any]], None], joints: bool = False
    ) -> None:
        super().__init__(*args)
        self._inspect, self._joints = inspect, joints

    @cached_property
    def _unit(self) -> int:
        """Elements of a piece: a few chunks, or, where most are longer than those, one."""
        lengths = np.sort(self.table.page(0).counts)
        return max(int(lengths[len(lengths) // 2]), 4 * INDEX_PIECE)

    @cached_property
    def _piece(self) -> Callable[[int], NDArray[Any]]:
        """Pieces by number; of long ones, which others wrote, fewer are kept."""
        kept = CACHED_BYTES // (self._unit * self.dtype.itemsize)
        return lru_cache(min(max(kept, 2), CACHED_PIECES))(self._read_piece)

    def _read_piece(self, number: int) -> NDArray[Any]:
        first = number * self._unit
        piece = super().read(first, min(first + self._unit, len(self)))
        self._inspect(piece)
        return piece

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop``."""
        if start >= stop:
            return np.empty(0, self.dtype)
        unit = self._unit
        first, last = start // unit, (stop - 1) // unit
        if first == last:
            return self._piece(first)[start - first * unit : stop - first * unit]
        if last - first >= SCANNED_PIECES:
            # A scan: one read of all of it, and nothing is pushed out for what will not come back.
            whole = super().read(start, stop)
            self._inspect(whole)
            return whole
        parts = [self._piece(number) for number in range(first, last + 1)]
        parts[0] = parts[0][start - first * unit :]
        parts[-1] = parts[-1][: stop - last * unit]
        whole = np.concatenate(parts)
        if self._joints:
            self._inspect(whole)
        return whole
