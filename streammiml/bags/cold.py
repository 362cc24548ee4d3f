"""Ranges of a local file, read as the size of its store asks for.

Random reads through a cold page cache are two to four times slower than the disk. Of a store that
the memory could not keep anyway, they go past the cache (O_DIRECT), straight from the disk. Of a
smaller one, the cache is asked for all that will be read together before any of it is waited for,
and soon has the whole store. Where the system or the file system knows no such things, files are
read plainly.

Whether the cache has a range is not asked first: Linux takes the question (RWF_NOWAIT) for a wish
and begins to read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streammiml._base.platform import (
    advise_will_need,
    direct_flag,
    read_at,
    usable_memory,
    will_need_advice,
)

COLD_BYTES = 64 << 10
"""Shorter reads are plain: they belong to tables and offsets, which are wanted again."""
STRETCH = 256 << 10
_PAGE = 4096
_PIECE = 4 << 20


def may_bypass() -> bool:
    """Whether the page cache may be passed by, or asked; ``STREAMMIML_DIRECT=0`` forbids it."""
    return os.environ.get("STREAMMIML_DIRECT", "1") != "0" and direct_flag() is not None


def outgrows_cache(n_bytes: int) -> bool:
    """Whether a store is larger than half the memory that this process could use.

    ``STREAMMIML_DIRECT=always`` says so of every store.
    """
    always = os.environ.get("STREAMMIML_DIRECT") == "always"
    return always or n_bytes > usable_memory() // 2


class Way(NamedTuple):
    """How a range of a file is read."""

    descriptor: int
    past: int
    """1 for whole pages past the page cache."""
    told: int
    told_bytes: int
    """What the cache is to be told of first; 0 for nothing."""


class OpenFile:
    """A file that is read by range; it closes itself when the last reader lets go of it.

    ``bypass``: whether long reads go past the page cache.
    """

    def __init__(self, path: Path, *, bypass: bool) -> None:
        self._path, self._bypass = path, bypass and may_bypass()
        self._asks = may_bypass() and will_need_advice() is not None
        self._asked: set[int] = set()
        self._fd = os.open(path, os.O_RDONLY)
        # At once, not at the first long read: two threads would both open it, and one be lost.
        self._past = self._opened_past() if self._bypass else None

    def __del__(self) -> None:
        for fd in (getattr(self, "_fd", None), getattr(self, "_past", None)):
            if fd is not None:
                os.close(fd)

    def _opened_past(self) -> int | None:
        flag = direct_flag()
        assert flag is not None, "may_bypass was asked before"
        with suppress(OSError):
            return os.open(self._path, os.O_RDONLY | flag)
        return None

    def way(self, offset: int, size: int) -> Way:
        """How a range is to be read, by whoever tells the cache of what it should hear of."""
        if size >= COLD_BYTES:
            if self._bypass and self._past is not None:
                return Way(self._past, 1, 0, 0)
            if not self._bypass and self._asks:
                return Way(self._fd, 0, *self._unasked(offset, offset + size))
        return Way(self._fd, 0, 0, 0)

    def read(self, offset: int, buffer: memoryview) -> int:
        """Fill the buffer; returns its bytes, fewer where the file ends before."""
        done = 0
        if len(buffer) >= COLD_BYTES:
            if self._bypass:
                done = self._read_past(offset, buffer)
            elif self._asks:
                start, n_bytes = self._unasked(offset, offset + len(buffer))
                with suppress(OSError):
                    # Of one long stretch Linux may hear only the beginning.
                    for at in range(start, start + n_bytes, STRETCH):
                        advise_will_need(self._fd, at, STRETCH)
        while done < len(buffer):
            got = read_at(self._fd, buffer[done:], offset + done)
            if got == 0:
                break
            done += got
        return done

    def _unasked(self, start: int, stop: int) -> tuple[int, int]:
        """What lies around a range of which the cache was not told yet: offset and bytes.

        It fetches that without anyone waiting for it. Stretches no longer than what is read: of
        long ones, everybody would wait for all.
        """
        asked, first, last = self._asked, start // STRETCH, -(-stop // STRETCH)
        for number in range(first, last):
            if number not in asked:
                asked.update(range(number, last))
                return number * STRETCH, (last - number) * STRETCH
        return 0, 0

    def _read_past(self, offset: int, buffer: memoryview) -> int:
        """Read whole pages from the disk and copy the range out of them; 0 where it cannot be."""
        if self._past is not None:
            # No such way on this file system, or a fault that the plain read will meet and name.
            with suppress(OSError):
                return self._copied(self._past, offset, buffer)
        self._bypass = False
        return 0

    @staticmethod
    def _copied(past: int, offset: int, buffer: memoryview) -> int:
        target = np.frombuffer(buffer, np.uint8)
        room = np.empty(min(len(buffer) + 2 * _PAGE, _PIECE) + _PAGE, np.uint8)
        start = -room.__array_interface__["data"][0] % _PAGE
        arena = room[start : start + (len(room) - _PAGE) // _PAGE * _PAGE]
        done = 0
        while done < len(target):
            first = (offset + done) // _PAGE * _PAGE
            n_pages = -(-(offset + len(target) - first) // _PAGE)
            got = read_at(past, arena[: n_pages * _PAGE].data, first)
            skip = offset + done - first
            fresh = min(got - skip, len(target) - done)
            if fresh <= 0:
                break
            target[done : done + fresh] = arena[skip : skip + fresh]
            done += fresh
        return done
