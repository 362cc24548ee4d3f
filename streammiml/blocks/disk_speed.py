"""How fast a disk gives the bytes of some files, measured by reading them.

This module does not depend on bags. The threads of :func:`device_limit` are daemons: they end with
the time of their measurement, and nobody waits for a read that hangs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path

import numpy as np

from streammiml._base.platform import advise_not_needed, direct_flag, read_at
from streammiml.bags.file_errors import reason
from streammiml.bags.page_cache import may_bypass
from streammiml.errors import StoreError

READ_BYTES = (256 << 10, 1 << 20, 4 << 20)
"""Sizes of the random reads of :func:`device_limit`."""
THREADS = (4, 8)
"""Numbers of threads that read at the same time."""
CASE_BYTES = 4 << 30
"""Upper limit for the bytes that are read with one size and one number of threads."""
WARM_BYTES, WARM_SECONDS = 128 << 20, 1.0
"""Upper limits for what :func:`pread_speed` brings into the page cache before it measures."""
MOST_FILES = 128
"""Number of files that are opened; the largest files are taken."""
DEADLINE = 30.0
"""Seconds that a single read may take."""
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Limit:
    """The highest speed of random reads, and how it was reached."""

    bytes_per_second: float
    read_bytes: int
    """Bytes of one read."""
    threads: int
    """Number of threads that read at the same time."""
    direct: bool
    """Whether reads bypassed the page cache. If not, each range was dropped from the cache before
    its read, on systems that can do so."""


@dataclass(frozen=True, slots=True)
class _MeasuredFile:
    """An open file."""

    path: Path
    fd: int
    size: int

    def read(self, offset: int, buffer: memoryview) -> int:
        """Read into the buffer; return the number of bytes, which is never 0."""
        try:
            n_read = read_at(self.fd, buffer, offset)
        except OSError as error:
            raise StoreError(f"{self.path} {reason(error)}") from error
        if n_read == 0:
            raise StoreError(f"{self.path} is short: ends before byte {offset}")
        return n_read


@dataclass(slots=True)
class _Tally:
    """State that the threads of a measurement share."""

    deadline: float
    """When the threads end, on the clock ``time.perf_counter``."""
    n_bytes: list[int] = field(default_factory=list)
    """Bytes of each thread that has ended."""
    errors: list[BaseException] = field(default_factory=list)


def device_limit(files: Sequence[Path], *, seconds: float) -> Limit:
    """Find the highest speed of random reads from some files, which bypass the page cache.

    Every pair of ``READ_BYTES`` and ``THREADS`` is measured for ``seconds``; read sizes that are
    longer than all files are left out. Where reads cannot bypass the cache, ordinary reads take
    their place. Raises StoreError if the files have no bytes or cannot be read.
    """
    is_direct = may_bypass() and all(_can_bypass(path) for path, _ in _largest(files)[:1])
    with _opened(files, direct=is_direct) as sources:
        longest = max(source.size for source in sources)
        sizes = [size for size in READ_BYTES if size <= longest] or [READ_BYTES[0]]
        cases = [(size, threads) for size in sizes for threads in THREADS]
        limits = [
            Limit(
                _random_reads(
                    sources, size, threads, seconds, seed=number, drop_first=not is_direct
                ),
                size,
                threads,
                is_direct,
            )
            for number, (size, threads) in enumerate(cases)
        ]
    return max(limits, key=lambda limit: limit.bytes_per_second)


def pread_speed(files: Sequence[Path], *, seconds: float) -> float:
    """Bytes per second of one thread that reads from the page cache into a reused buffer.

    At most ``WARM_BYTES`` of the files are brought into the cache first. Raises StoreError if the
    files have no bytes or cannot be read.
    """
    buffer = _aligned(READ_BYTES[1])
    with _opened(files, direct=False) as sources:
        pieces, n_bytes, begun = [], 0, time.perf_counter()
        for source, offset in _places(sources, len(buffer)):
            n_bytes += source.read(offset, buffer)
            pieces.append((source, offset))
            if n_bytes >= WARM_BYTES or time.perf_counter() - begun > WARM_SECONDS:
                break
        n_bytes, begun = 0, time.perf_counter()
        for source, offset in cycle(pieces):
            n_bytes += source.read(offset, buffer)
            elapsed = time.perf_counter() - begun
            if elapsed >= seconds:
                break
    return n_bytes / elapsed


def drop_from_cache(files: Sequence[Path]) -> bool:
    """Evict files from the page cache; return whether all were evicted.

    Bytes that are not yet on the disk are written first. The call needs no rights, and changes no
    file.
    """
    is_done = True
    for path in files:
        try:
            with _descriptor(path, os.O_RDONLY) as fd:
                # The system does not evict pages that are still to be written.
                os.fsync(fd)
                is_done &= advise_not_needed(fd, 0, 0)
        except OSError:
            is_done = False
    return is_done


def _random_reads(
    sources: Sequence[_MeasuredFile],
    size: int,
    n_threads: int,
    seconds: float,
    *,
    seed: int,
    drop_first: bool,
) -> float:
    """Bytes per second of random reads by several threads."""
    places = list(_places(sources, size, only_full=True)) or list(_places(sources, size))
    order = np.random.default_rng(seed).permutation(len(places)).tolist()
    turns = count()  # next(turns) is one step for the interpreter, so that threads may share it.
    buffers = [_aligned(size) for _ in range(n_threads)]
    begun = time.perf_counter()
    tally = _Tally(begun + seconds)

    def work(buffer: memoryview) -> None:
        n_bytes = 0
        try:
            while True:
                source, offset = places[order[next(turns) % len(order)]]
                if drop_first:
                    with suppress(OSError):
                        advise_not_needed(source.fd, offset, size)
                n_bytes += source.read(offset, buffer)
                if time.perf_counter() >= tally.deadline or n_bytes * n_threads >= CASE_BYTES:
                    break
        except BaseException as error:
            tally.errors.append(error)
        tally.n_bytes.append(n_bytes)

    threads = [
        threading.Thread(target=work, args=(buffer,), daemon=True, name="disk-speed")
        for buffer in buffers
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, tally.deadline + DEADLINE - time.perf_counter()))
    finally:
        # After an interrupt, the threads end with their current reads.
        tally.deadline = 0.0
    elapsed = time.perf_counter() - begun
    if tally.errors:
        raise tally.errors[0]
    if any(thread.is_alive() for thread in threads):
        raise StoreError(f"a read did not return within {DEADLINE:g} s; the disk hangs")
    return sum(tally.n_bytes) / elapsed


def _places(
    sources: Sequence[_MeasuredFile], size: int, *, only_full: bool = False
) -> Iterator[tuple[_MeasuredFile, int]]:
    """Files and offsets of reads of ``size`` bytes that cover all files.

    ``only_full`` leaves out the read at the end of a file if it would be shorter.
    """
    for source in sources:
        stop = source.size // size * size if only_full else source.size
        for offset in range(0, stop, size):
            yield source, offset


def _largest(files: Sequence[Path]) -> list[tuple[Path, int]]:
    """Paths and sizes of the largest files, at most ``MOST_FILES``; pipes and folders are no files.

    Raises StoreError if the files have no bytes.
    """
    sizes = []
    for path in files:
        with suppress(OSError):
            if path.is_file():
                sizes.append((path, path.stat().st_size))
    largest = sorted(sizes, key=lambda pair: (-pair[1], pair[0]))[:MOST_FILES]
    if not largest or largest[0][1] == 0:
        raise StoreError("there are no bytes to read: all files are empty or missing")
    return [pair for pair in largest if pair[1]]


def _can_bypass(path: Path) -> bool:
    """Whether reads of this file can bypass the page cache; the file system decides that."""
    flag = direct_flag()
    assert flag is not None, "may_bypass checks this"
    with suppress(OSError), _descriptor(path, os.O_RDONLY | flag) as fd:
        return read_at(fd, _aligned(_PAGE), 0) > 0
    return False


@contextmanager
def _opened(files: Sequence[Path], *, direct: bool) -> Iterator[list[_MeasuredFile]]:
    """Open the largest files; close them at the end."""
    flags = os.O_RDONLY | ((direct_flag() or 0) if direct else 0)
    sources: list[_MeasuredFile] = []
    try:
        for path, size in _largest(files):
            try:
                sources.append(_MeasuredFile(path, os.open(path, flags), size))
            except OSError as error:
                raise StoreError(f"{path} {reason(error)}") from error
        yield sources
    finally:
        for source in sources:
            os.close(source.fd)


@contextmanager
def _descriptor(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _aligned(size: int) -> memoryview:
    """Memory that begins with a page, as reads that bypass the cache need it."""
    # Filled here: the first use of a page would otherwise be a page fault during the measurement.
    memory = np.full(size + _PAGE, 1, np.uint8)
    start = -memory.__array_interface__["data"][0] % _PAGE
    return memory[start : start + size].data
