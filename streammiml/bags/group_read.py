"""Reading many ranges of an array together: plan the reads, lay out memory, one compiled call.

All ranges of a group share one buffer. Values that lie in files as they are in memory are read to
where they stay; other values are decoded from a scratch buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml._base.buffer_pool import lent_at
from streammiml.bags.layout import ArrayEntry
from streammiml.bags.location import LocalFolder
from streammiml.bags.page_cache import OpenFile

CODINGS = {"raw": 0, "tail": 1, "blosc": 2}
"""Codings that compiled code can decode, with their numbers in ``fast_reads``."""
Span = tuple[int, int, int, int]
"""Number of a range, start and stop of some of its elements, number of their page."""
TablePage = tuple[int, int]
"""Address of the fields of a page of the chunk table, and its number of chunks."""
SURPLUS_BYTES = 128 << 10
"""Surplus bytes (the rest of the first and last chunk) that a range may keep in memory. Values are
copied if the surplus is larger than their bytes, or larger than both this limit and an eighth of
their bytes."""
MOST_FILES = 32
"""Upper limit for the files that a group keeps open; several threads read groups at a time."""
_LINE, _PAGE = 64, 4096


class TooManyFiles(Exception):
    """The ranges of a group are in more files than may be open at a time."""


class GroupRead(NamedTuple):
    """Values of several ranges in one buffer."""

    buffer: NDArray[np.uint8]
    address: int
    """Address of the buffer."""
    ranges: dict[int, tuple[int, int]]
    """Start and end of the bytes of each range in the buffer, by number of the range."""


@cache
def _fast_reads() -> Any:
    """Load the compiled functions. They are loaded late, because they load a compiler."""
    return import_module("streammiml.bags.fast_reads")


def read_group(
    location: LocalFolder,
    files: Sequence[Sequence[Any]],
    entry: ArrayEntry,
    spans: Sequence[Span],
    pages: Sequence[TablePage],
    unpackers: tuple[int, ...],
) -> GroupRead | None:
    """Read, check and decode ranges of an array.

    ``files`` are the files of the store, ``spans`` the ranges, split at the bounds of ``pages``.
    ``unpackers`` are the addresses of the functions that unpack blosc chunks. None if a file cannot
    be opened, a read fails, or a chunk is wrong. Raises TooManyFiles.
    """
    fast, item = _fast_reads(), np.dtype(entry.dtype).itemsize
    element = entry.width * item
    span_lines, page_lines = np.array(spans), np.array(pages)
    how = entry.coding == "raw", SURPLUS_BYTES, element, item
    reads = np.empty((2 * len(spans), fast.N_COLUMNS), np.int64)
    n_reads = fast.plan_reads(span_lines, page_lines, *how, reads)
    if n_reads > len(reads):
        reads = np.empty((n_reads, fast.N_COLUMNS), np.int64)
        fast.plan_reads(span_lines, page_lines, *how, reads)
    reads = reads[:n_reads]
    if len({*reads[:, fast.FILE].tolist()}) > MOST_FILES:
        raise TooManyFiles
    layout = _Layout(location, files, element)
    numbers, planned_columns = reads[:, fast.RANGE], reads[:, fast.START : fast.TARGET]
    planned = [
        layout.place(number, *read)
        for number, read in zip(numbers.tolist(), planned_columns.tolist(), strict=True)
    ]
    if None in planned:
        return None
    buffer, address = lent_at(layout.n_bytes + layout.unit)
    start = -address % layout.unit
    reads[:, fast.TARGET :] = planned
    reads[:, fast.TARGET] += address + start
    scratch, scratch_address = lent_at(layout.scratch_bytes)
    wrong = fast.read_all(
        reads,
        page_lines,
        scratch_address + -scratch_address % _PAGE,
        CODINGS[entry.coding],
        element,
        entry.length,
        *(unpackers or (0, 0)),
    )
    del scratch
    if wrong >= 0:
        return None
    return GroupRead(buffer[start:], address + start, layout.ranges)


class _Layout:
    """Positions of ranges in a buffer whose address is a multiple of ``unit``."""

    def __init__(self, location: LocalFolder, files: Sequence[Sequence[Any]], element: int) -> None:
        self._location, self._files, self._element = location, files, element
        self._opened: dict[int, OpenFile | None] = {}
        """Open files by number; the references keep them open until all reads are done."""
        self.n_bytes = self.scratch_bytes = 0
        self.unit = _LINE
        self.ranges: dict[int, tuple[int, int]] = {}
        """Start and end of the bytes of each range."""

    def place(
        self, number: int, start: int, stop: int, skipped: int, stays: int, file_number: int,
        at: int, n_bytes: int,
    ) -> tuple[int, ...] | None:  # fmt: skip
        """Return the last columns of a read; None if its file cannot be opened.

        The arguments are columns of the read, in the order of ``fast_reads``. The result is the
        position for the elements (for the first byte, if the bytes stay), and the fields of
        ``ReadPlan``.
        """
        opened = self._opened
        if file_number not in opened:
            opened[file_number] = self._location.opened(self._files[file_number][0])
        file = opened[file_number]
        if file is None:
            return None
        plan = file.plan(at, n_bytes)
        size = (stop - start) * self._element
        if stays:
            # The bytes have the same position in a page or a cache line of memory as in one of the
            # file. Reads that bypass the page cache need this, and all others are faster for it.
            unit = _PAGE if plan.bypass else _LINE
            self.unit = max(self.unit, unit)
            target = -(-self.n_bytes // unit) * unit + at % unit
            self.n_bytes = -(-(target + n_bytes) // unit) * unit
            self.ranges[number] = target + skipped, target + skipped + size
        else:
            if number in self.ranges:
                begin, target = self.ranges[number]
            else:
                begin = target = -(-self.n_bytes // _LINE) * _LINE
            self.n_bytes = target + size
            self.ranges[number] = begin, self.n_bytes
            # Reads that bypass the page cache fetch all of the first and of the last page.
            self.scratch_bytes = max(self.scratch_bytes, n_bytes + 3 * _PAGE)
        return (target, *plan)
