"""``SharedEpochs``: the epoch of a loop, on which all worker processes of the loop agree."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from threading import Lock, get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.platform import memory_file

# How workers recognise their loop
# ---------------------------------
# The process with the loop (the owner) starts the workers of a loop one after the other in one
# thread, numbered from 0, and tells the dataset nothing. Seeds do not identify a loop: they repeat
# if the user sets the seed before every epoch. Nor does counting in each worker: a worker that is
# terminated before it begins has counted one loop less. But the owner can number what a thread
# starts: a hook counts the forks of each thread, and pickling for a new process (spawn, forkserver)
# counts too. The number of a worker's start, minus the number of the worker, is therefore the same
# in all workers of a loop, and different in all other loops. Workers that stay for several loops
# receive the loops in order, each once; they are told apart by counting in the worker.
#
# How they agree
# --------------
# A table in shared memory has a record for each loop: its identity and its epoch. Under a lock, the
# first worker of a loop adds the record, and the others find it. The lock is a POSIX record lock,
# which the system releases when its owner dies; a record counts only when the number of records
# says so, which is written last.

OWNER, THREAD, START, ITERATION, EPOCH = range(5)
"""Columns of a record; the first four identify a loop."""
N_RECORDS = 4096
"""Number of loops that are remembered: more than can run at the same time, over all processes."""
FORKED, PICKLED = 0, 1

_forks: dict[int, int] = {}
"""Number of forks of each thread of this process."""
_fork = (0, 0)
"""Thread that forked this process, and number of the fork."""
_thread_lock = Lock()
_own_loops = count()


def _before_fork() -> None:
    _forks[get_ident()] = _forks.get(get_ident(), 0) + 1


def _after_fork() -> None:
    global _fork, _thread_lock
    _fork = (get_ident(), _forks.get(get_ident(), 0))
    # Another thread may have held the lock when this process was forked.
    _thread_lock = Lock()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


class SharedEpochs:
    """Numbers of epochs for the loops over a dataset, in its process and in worker processes.

    Every loop of a process gets the epoch after that of its loop before. Worker processes that are
    forked or spawned share the numbers; a plain copy, by pickle or deepcopy, has its own.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._file = memory_file(8 * (1 + 5 * N_RECORDS))
        self._prepare()

    def _prepare(self, start: tuple[int, int] = (0, 0)) -> None:
        """Map the shared memory; ``start`` is the thread and number of a start by pickle."""
        self._map = np.frombuffer(mmap.mmap(self._file.fileno(), 0), np.int64)
        self._pid, self._start = os.getpid(), start
        self._pickles: dict[int, int] = {}
        self._iterations = (0, 0)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def begin(self, worker: int | None = None, *, epoch: int | None = None) -> int:
        """Return the epoch of the loop that now begins in this process.

        ``worker`` is the number of this process among the workers of the loop, None if the loop is
        in this process. ``epoch`` is the epoch of a loop that is resumed; by default, and if
        another worker has begun the loop already, the table decides.
        """
        loop = self._loop(worker)
        with self._locked():
            records = self._records()
            same = np.flatnonzero((records[:, :EPOCH] == loop).all(axis=1))
            if len(same):
                return int(records[same[-1], EPOCH])
            chosen = self._next(loop[OWNER]) if epoch is None else epoch
            self._add((*loop, chosen))
            return chosen

    def set_next(self, epoch: int) -> None:
        """Give the next loop of this process the number ``epoch``."""
        self._first = epoch
        with self._locked():
            self._add((*self._loop(None), epoch - 1))

    def next(self) -> int:
        """Epoch that the next loop of this process gets."""
        with self._locked():
            return self._next(os.getpid())

    def _next(self, owner: int) -> int:
        records = self._records()
        own = np.flatnonzero(records[:, OWNER] == owner)
        return int(records[own[-1], EPOCH]) + 1 if len(own) else self._first

    def _loop(self, worker: int | None) -> tuple[int, int, int, int]:
        """Identity of the loop that begins in this process."""
        if worker is None:
            return os.getpid(), 0, next(_own_loops), 0
        pid, n_iterations = self._iterations
        n_iterations = n_iterations + 1 if pid == os.getpid() else 0
        self._iterations = (os.getpid(), n_iterations)
        # An object that was made in this process came by pickle, any other by fork.
        by_pickle = self._pid == os.getpid()
        thread, number = self._start if by_pickle else _fork
        owner = multiprocessing.parent_process()
        start = 2 * (number - worker) + (PICKLED if by_pickle else FORKED)
        return owner.pid or 0 if owner else 0, thread, start, n_iterations

    def _records(self) -> NDArray[np.int64]:
        """Records from the oldest to the newest."""
        n_added = int(self._map[0])
        table = self._map[1:].reshape(N_RECORDS, 5)
        if n_added <= N_RECORDS:
            return table[:n_added]
        return np.roll(table, -(n_added % N_RECORDS), axis=0)

    def _add(self, record: tuple[int, ...]) -> None:
        n_added = int(self._map[0])
        self._map[1:].reshape(N_RECORDS, 5)[n_added % N_RECORDS] = record
        self._map[0] = n_added + 1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep out other threads and other processes; record locks do not keep out threads."""
        with _thread_lock:
            os.lockf(self._file.fileno(), os.F_LOCK, 1)
            try:
                yield
            finally:
                os.lockf(self._file.fileno(), os.F_ULOCK, 1)

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            return {"first": self.next()}
        thread = get_ident()
        self._pickles[thread] = self._pickles.get(thread, 0) + 1
        return {
            "first": self._first,
            "file": reduction.DupFd(self._file.fileno()),
            "start": (thread, self._pickles[thread]),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" not in state:
            self.__init__(state["first"])  # type: ignore[misc]
            return
        self._first = state["first"]
        self._file = os.fdopen(state["file"].detach(), "r+b", buffering=0)
        self._prepare(state["start"])
