"""Calls of the operating system that not every system has; only this module looks for them.

Linux has all of them. Where another system lacks a call, a fallback here takes its place. Stores
and models are the same bytes with either; only speed and figures about memory differ. Each call is
looked up when it is used, so that tests can take it away.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from streammiml.errors import StreammimlError

# Windows has neither, and must still be able to import this module to be refused by it.
try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]
try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

LONGEST_READ = 1 << 30
"""Bytes of one read: macOS refuses 2 GiB and more, where Linux would give fewer bytes."""
UNLIMITED = 1 << 62
"""Bytes of memory where no limit is known."""


def refuse_windows() -> None:
    """Raise StreammimlError on Windows, which lacks the file locks that stores rely on."""
    if sys.platform == "win32":
        raise StreammimlError(
            "Windows is not supported; use WSL, the Linux inside Windows: run wsl --install, and "
            "install streammiml there"
        )


def usable_cores() -> int:
    """Cores that this process may run on; all of the machine where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Memory.


def usable_memory() -> int:
    """Bytes that this process may still take, page cache included, by machine and control groups.

    Without ``/proc`` it is all memory of the machine, and ``UNLIMITED`` if that is unknown too.
    """
    available = re.search(r"^MemAvailable:\s+(\d+) kB", _text_of("/proc/meminfo"), re.M)
    if available:
        return min(int(available[1]) << 10, *_group_limits())
    with suppress(AttributeError, OSError, ValueError):
        return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_group_limits())
    return min(_group_limits())


def _group_limits() -> list[int]:
    """Memory limits of the control groups, version 1 or 2, that this process is in."""
    limits = [UNLIMITED]
    for line in _text_of("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        own = root / path.lstrip("/")
        for folder in (root, *own.parents, own):
            # No limit is an empty text, or the word max.
            with suppress(ValueError):
                limits.append(int(_text_of(folder / name)))
    return limits


def resident_bytes() -> int:
    """Bytes of this process that are in memory now.

    Without ``/proc`` it is the most so far; 0 where the system does not say.
    """
    fields = _text_of("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The most bytes of this process that were in memory at once; 0 where nobody says."""
    peak = re.search(r"^VmHWM:\s+(\d+) kB", _text_of("/proc/self/status"), re.M)
    if peak:
        return int(peak[1]) << 10
    if resource is None:
        return 0
    # macOS counts it in bytes, all others in KiB.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# Files.


def bytes_read() -> int:
    """Bytes that this process has asked files for so far; 0 where the system does not say."""
    asked = re.search(r"^rchar: (\d+)", _text_of("/proc/self/io"), re.M)
    return int(asked[1]) if asked else 0


def read_at(fd: int, buffer: memoryview, offset: int) -> int:
    """Read into the buffer from a place in a file; bytes read, which may be fewer, 0 at the end."""
    buffer = buffer[:LONGEST_READ]
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    raw = os.pread(fd, len(buffer), offset)
    buffer[: len(raw)] = raw
    return len(raw)


def direct_flag() -> int | None:
    """Flag of ``os.open`` for reads past the page cache; None where there is none, as on macOS."""
    return getattr(os, "O_DIRECT", None)


def will_need_advice() -> int | None:
    """Number by which ``posix_fadvise`` is told of reads to come; None where it is missing."""
    return os.POSIX_FADV_WILLNEED if hasattr(os, "posix_fadvise") else None


def advise_will_need(fd: int, offset: int, size: int) -> None:
    """Let the page cache fetch a range that will be read soon; without the call, do nothing."""
    advice = will_need_advice()
    if advice is not None:
        os.posix_fadvise(fd, offset, size, advice)


def lock_file(file: IO[str], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed or its process ends; False if another has it locked.

    Any number of ``shared`` locks go together.
    """
    if fcntl is None:
        raise StreammimlError(
            f"this system ({sys.platform}) has no file locks (fcntl); use Linux or macOS"
        )
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def waiting_lock(path: Path, *, shared: bool = False, seconds: float = 10.0) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is missing; wait for whoever holds it.

    ``shared`` locks exclude only locks that are not shared. Where no lock can be had in time, or
    the file system has none, go on without.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(path.open("a"))
            deadline = time.monotonic() + seconds
            while not lock_file(file, shared=shared) and time.monotonic() < deadline:
                time.sleep(0.005)
        yield


def _text_of(path: str | Path) -> str:
    """Text of a file by which the kernel tells something; empty where it cannot be read."""
    with suppress(OSError):
        # A name of a process in it may be cut within a character.
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


# Signals.


@contextmanager
def signals_blocked(*numbers: int) -> Iterator[None]:
    """Block signals for this thread, and for threads and processes that it starts meanwhile.

    Without the call nothing is blocked: handlers of this process still decide what happens here.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
