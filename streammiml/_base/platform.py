"""Calls of the operating system that not every system has; only this module looks for them.

Linux has all of them. Where another system lacks a call, a fallback here takes its place. Stores
and models have the same bytes either way; only speed and figures about memory differ. Each call is
looked up when it is used, so that tests can remove it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from streammiml.errors import StreammimlError

# Windows has neither module. Importing this file must work there, so that refuse_windows can run.
try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]
try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

LONGEST_READ = 1 << 30
"""Upper limit in bytes for one read: macOS refuses reads of 2 GiB and more, and Linux cuts them."""
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
    """Cores that this process may run on; all cores of the machine if that is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Memory.


def usable_memory() -> int:
    """Bytes that this process may still take, page cache included, by machine and control groups.

    Without ``/proc``: all memory of the machine, or ``UNLIMITED`` if that is unknown too.
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
            # Without a limit the file is missing, or holds the word max.
            with suppress(ValueError):
                limits.append(int(_text_of(folder / name)))
    return limits


def resident_bytes() -> int:
    """Bytes of this process that are in memory now.

    Without ``/proc``: the peak so far, or 0 if that is unknown too.
    """
    fields = _text_of("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The most bytes of this process that were in memory at once; 0 if unknown."""
    peak = re.search(r"^VmHWM:\s+(\d+) kB", _text_of("/proc/self/status"), re.M)
    if peak:
        return int(peak[1]) << 10
    if resource is None:
        return 0
    # ru_maxrss is in bytes on macOS, in KiB on all other systems.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# Files.


def bytes_read() -> int:
    """Bytes that reads of this process have returned so far; 0 if unknown."""
    count = re.search(r"^rchar: (\d+)", _text_of("/proc/self/io"), re.M)
    return int(count[1]) if count else 0


def read_at(fd: int, buffer: memoryview, offset: int) -> int:
    """Read into the buffer from ``offset`` of a file; return the number of bytes read.

    It may be smaller than the buffer, and is 0 at the end of the file.
    """
    buffer = buffer[:LONGEST_READ]
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    raw = os.pread(fd, len(buffer), offset)
    buffer[: len(raw)] = raw
    return len(raw)


def direct_flag() -> int | None:
    """Flag of ``os.open`` to bypass the page cache; None if the system has none, as macOS."""
    return getattr(os, "O_DIRECT", None)


def will_need_advice() -> int | None:
    """Argument of ``posix_fadvise`` that announces reads; None if the system lacks the call."""
    return os.POSIX_FADV_WILLNEED if hasattr(os, "posix_fadvise") else None


def advise_will_need(fd: int, offset: int, size: int) -> None:
    """Let the page cache fetch a range that will be read soon; without the call, do nothing."""
    advice = will_need_advice()
    if advice is not None:
        os.posix_fadvise(fd, offset, size, advice)


def advise_not_needed(fd: int, offset: int, size: int) -> bool:
    """Let the page cache drop a range of a file; 0 bytes mean all bytes after ``offset``.

    Pages that are still to be written stay. Returns False if the system lacks the call.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)
    return True


def lock_file(file: IO[str], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed or its process ends; False if it is locked already.

    Any number of ``shared`` locks may be held at the same time.
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
    """Hold the lock of a file during the block; wait while others hold it.

    A missing file is made. ``shared`` locks exclude only locks that are not shared. If the lock is
    not free after ``seconds``, or the file system has no locks, the block runs without the lock.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(path.open("a"))
            deadline = time.monotonic() + seconds
            while not lock_file(file, shared=shared) and time.monotonic() < deadline:
                time.sleep(0.005)
        yield


def open_files() -> int:
    """File descriptors that this process has open; 16, as in a new process, if unknown."""
    with suppress(OSError):
        return len(os.listdir("/dev/fd"))  # noqa: PTH208  a Path for each would cost more
    return 16


def allow_open_files(n_files: int) -> int:
    """Let this process and its children open ``n_files`` files, at most the hard limit.

    Returns the limit that then holds, which may be lower; ``UNLIMITED`` if there is none.
    """
    if resource is None:
        return UNLIMITED
    soft, hard = (
        UNLIMITED if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    target = min(n_files, hard)
    if soft < target:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, before[1]))
            return target
    return soft


def _text_of(path: str | Path) -> str:
    """Text of a file of ``/proc`` or ``/sys``; empty if it cannot be read."""
    with suppress(OSError):
        # The system may have cut a process name in the middle of a character.
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def memory_file(n_bytes: int) -> IO[bytes]:
    """Make a file of zeros that has no name, in memory if possible, for processes to share."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("streammiml"), "r+b", buffering=0)
    else:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  it stays open
    file.truncate(n_bytes)
    return file


# Threads.


def kill_process(process_id: int) -> None:
    """End a process at once; one that has ended already is no error."""
    with suppress(OSError):
        os.kill(process_id, getattr(signal, "SIGKILL", signal.SIGTERM))


def is_thread_shortage(error: BaseException) -> bool:
    """Whether the system refused to start another thread.

    CPython raises a plain RuntimeError with this text (``Modules/_threadmodule.c``); the
    error has no class of its own.
    """
    return type(error) is RuntimeError and error.args == ("can't start new thread",)


# Signals.


@contextmanager
def signals_blocked(*numbers: int) -> Iterator[None]:
    """Block signals for this thread, and for threads and processes that it starts meanwhile.

    If the system lacks the call, nothing is blocked, and the handlers of this process still run.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
