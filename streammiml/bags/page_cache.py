"""Reading ranges of local files, through the page cache of the system or bypassing it.

Random reads through a cold page cache are two to four times slower than the disk. If a store does
not fit into memory, long reads bypass the cache (O_DIRECT). If the store fits, the system is
advised of all ranges of a read before the first range is read (posix_fadvise), and the cache soon
holds the store. Systems and file systems that support neither get ordinary reads.

We do not check first whether the cache holds a range: on Linux, the check (RWF_NOWAIT) would itself
start a read.
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
"""Shorter reads go through the cache: tables and offsets will be read again."""
STRETCH = 256 << 10
"""Bytes of one advice to the cache. Linux may ignore the rest of a longer advice, and readers would
wait for all of its bytes."""
_PAGE = 4096
_PIECE = 4 << 20


def may_bypass() -> bool:
    """Tell whether reads may bypass or advise the cache; ``STREAMMIML_DIRECT=0`` forbids it."""
    return os.environ.get("STREAMMIML_DIRECT", "1") != "0" and direct_flag() is not None


def outgrows_cache(n_bytes: int) -> bool:
    """Tell whether a store is larger than half the memory that this process may use.

    ``STREAMMIML_DIRECT=always`` makes it true for every store.
    """
    always = os.environ.get("STREAMMIML_DIRECT") == "always"
    return always or n_bytes > usable_memory() // 2


class ReadPlan(NamedTuple):
    """How to read a range of a file."""

    descriptor: int
    bypass: int
    """1 to read full pages past the page cache."""
    advised: int
    advised_bytes: int
    """Offset and length of the advice to the cache before the read; 0 bytes for none."""


class OpenFile:
    """A file that is read by range; it is closed when the last reference to this object is gone.

    With ``bypass``, long reads bypass the page cache.
    """

    def __init__(self, path: Path, *, bypass: bool) -> None:
        self._path, self._bypass = path, bypass and may_bypass()
        self._advises = may_bypass() and will_need_advice() is not None
        self._advised: set[int] = set()
        self._fd = os.open(path, os.O_RDONLY)
        # Opened here and not at the first long read, because two threads could then both open it.
        self._direct_fd = self._opened_direct() if self._bypass else None

    def __del__(self) -> None:
        for fd in (getattr(self, "_fd", None), getattr(self, "_direct_fd", None)):
            if fd is not None:
                os.close(fd)

    def _opened_direct(self) -> int | None:
        """Open the file for reads that bypass the cache; None if that is not supported."""
        flag = direct_flag()
        assert flag is not None, "may_bypass checks this"
        with suppress(OSError):
            return os.open(self._path, os.O_RDONLY | flag)
        return None

    def plan(self, offset: int, size: int) -> ReadPlan:
        """Plan a read; the caller gives the advice of the plan to the cache."""
        if size >= COLD_BYTES:
            if self._bypass and self._direct_fd is not None:
                return ReadPlan(self._direct_fd, 1, 0, 0)
            if not self._bypass and self._advises:
                return ReadPlan(self._fd, 0, *self._unadvised(offset, offset + size))
        return ReadPlan(self._fd, 0, 0, 0)

    def read(self, offset: int, buffer: memoryview) -> int:
        """Fill the buffer; return the number of bytes read, fewer if the file ends before."""
        done = 0
        if len(buffer) >= COLD_BYTES:
            if self._bypass:
                done = self._read_direct(offset, buffer)
            elif self._advises:
                start, n_bytes = self._unadvised(offset, offset + len(buffer))
                with suppress(OSError):
                    for at in range(start, start + n_bytes, STRETCH):
                        advise_will_need(self._fd, at, STRETCH)
        while done < len(buffer):
            n_read = read_at(self._fd, buffer[done:], offset + done)
            if n_read == 0:
                break
            done += n_read
        return done

    def _unadvised(self, start: int, stop: int) -> tuple[int, int]:
        """Offset and bytes of the part of a range for which no advice was given yet.

        Both are multiples of ``STRETCH``; the part counts as advised from now on.
        """
        advised, first, last = self._advised, start // STRETCH, -(-stop // STRETCH)
        for number in range(first, last):
            if number not in advised:
                advised.update(range(number, last))
                return number * STRETCH, (last - number) * STRETCH
        return 0, 0

    def _read_direct(self, offset: int, buffer: memoryview) -> int:
        """Read full pages from the disk and copy the range; return 0 if that is not possible."""
        if self._direct_fd is not None:
            # The file system does not support it, or the ordinary read will report the error.
            with suppress(OSError):
                return self._copied(self._direct_fd, offset, buffer)
        self._bypass = False
        return 0

    @staticmethod
    def _copied(fd: int, offset: int, buffer: memoryview) -> int:
        """Read full pages to aligned memory, copy the range; return the number of bytes copied."""
        target = np.frombuffer(buffer, np.uint8)
        memory = np.empty(min(len(buffer) + 2 * _PAGE, _PIECE) + _PAGE, np.uint8)
        start = -memory.__array_interface__["data"][0] % _PAGE
        pages = memory[start : start + (len(memory) - _PAGE) // _PAGE * _PAGE]
        done = 0
        while done < len(target):
            first = (offset + done) // _PAGE * _PAGE
            n_pages = -(-(offset + len(target) - first) // _PAGE)
            n_read = read_at(fd, pages[: n_pages * _PAGE].data, first)
            skip = offset + done - first
            n_new = min(n_read - skip, len(target) - done)
            if n_new <= 0:
                break
            target[done : done + n_new] = pages[skip : skip + n_new]
            done += n_new
        return done
