"""The interface of pools: options that choose a pool, and the methods that every pool has.

This module imports no Dask, so code that only passes the options on stays quick to load.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self, TypeVar

from streammiml.config import parse_size
from streammiml.errors import StreammimlError

Item = TypeVar("Item")
Result = TypeVar("Result")
Combined = TypeVar("Combined")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Where tasks run; at most one of threads, workers, scheduler and client is given."""

    threads: int | None = None
    """Threads of this process; by default one for each core."""
    workers: int | None = None
    """Start a local cluster with this many processes, instead of threads."""
    scheduler: str | None = None
    """Address of a running Dask scheduler to use instead. Its workers need access to the same
    files."""
    worker_memory: str | int | None = None
    """Memory limit of each --workers process; by default an equal share of the machine's memory."""
    client: object = None
    """Use a ``distributed.Client``, which stays open, a Dask cluster object, or ``"active"``: the
    client that Dask uses by default. The command line does not have it."""

    def __post_init__(self) -> None:
        for name in ("threads", "workers"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise StreammimlError(f"{name} must be at least 1, got {count}")
        names = {name: f"--{name}" for name in ("threads", "workers", "scheduler")}
        names["client"] = "client="
        given = [shown for name, shown in names.items() if getattr(self, name) is not None]
        if len(given) > 1:
            raise StreammimlError(f"give one of {' and '.join(given)}, not both")
        if self.worker_memory is not None and self.workers is None:
            raise StreammimlError("--worker-memory is for the processes of --workers; give both")
        if self.worker_memory is not None:
            parse_size(self.worker_memory, option="worker_memory", least=1)

    @property
    def worker_bytes(self) -> int | None:
        """``worker_memory`` in bytes."""
        return None if self.worker_memory is None else parse_size(self.worker_memory)


FAN_IN = 4
"""Results that are added at once in :meth:`Pool.map_reduce`. A worker holds as many at a time."""


def added(add: Callable[[Result, Result], Result], *results: Result) -> Result:
    """Sum of some results, in order."""
    return reduce(add, results)


def ignore_result(_: object) -> None:
    """Do nothing; the default of ``seen`` in :meth:`Pool.map`."""


def prefer_none(_: object) -> str | None:
    """Prefer no worker; the default of ``prefer`` in :meth:`Pool.map`."""
    return None


def this_worker() -> str:
    """Address of the cluster worker that runs the current task; empty in any other thread."""
    # A process that is a worker has imported this module.
    module = sys.modules.get("distributed.worker")
    if module is not None:
        with suppress(ValueError):
            return str(module.get_worker().address)
    return ""


def this_thread() -> int:
    """Number of the current thread, in its process."""
    return threading.get_ident()


class Pool(ABC):
    """A place where tasks run; a context manager that closes the pool."""

    n_threads: int
    """Number of tasks that run at the same time."""
    is_remote = False
    """Whether tasks run in other processes, to which everything must be sent."""
    dashboard: str | None = None
    """Address of a page that shows what the pool does."""
    relief = "--block-bytes"
    """Option that messages advise to lower when memory runs out."""
    goes_on = "run the same command: finished parts are kept"
    """What messages advise when the cluster is lost."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Send a value that many tasks need, once; pass the result to :meth:`map`.

        The pool keeps the value until it is closed, or until :meth:`release`.
        """

    @abstractmethod
    def release(self, shared: Any) -> None:
        """Forget a value of :meth:`share`, which no task needs any more."""

    @abstractmethod
    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = ignore_result,
        prefer: Callable[[Item], str | None] = prefer_none,
    ) -> Iterator[Result]:
        """Yield ``task(item, *shared)`` for each item, in order; items are drawn as needed.

        The task must be pure: if its worker is lost, the task runs again elsewhere. ``seen`` is
        called with each result as soon as it is known, in any order and before it is yielded.
        ``prefer`` gives the address of the worker that should run an item, one of
        :meth:`workers`; another worker runs the item if that one is gone. Threads ignore it.
        """

    @abstractmethod
    def map_partitions(
        self,
        task: Callable[..., Result],
        collection: Any,
        *shared: Any,
        each: Sequence[Any] | None = None,
    ) -> Iterator[Result]:
        """Yield ``task(partition, number, *shared)`` for each partition of a Dask collection.

        ``each`` has a further last argument for the task of each partition. Partitions are computed
        where their tasks run, and stay there. Results come in order.
        """

    def map_groups(
        self,
        task: Callable[..., Result],
        groups: Iterable[Sequence[Item]],
        combine: Callable[..., Combined],
        *shared: Any,
        prefer: Callable[[Item], str | None] = prefer_none,
    ) -> Iterator[Combined]:
        """Yield ``combine(results, *shared)`` for the results of each group of items, in order.

        ``results`` are the list of ``task(item, *shared)``. Threads finish one group before the
        next begins. A cluster combines the results on a worker, and this process holds few combined
        results, however many groups there are. ``combine`` must be pure too.
        """
        for group in groups:
            yield combine(list(self.map(task, group, *shared, prefer=prefer)), *shared)

    @abstractmethod
    def map_reduce(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        add: Callable[[Result, Result], Result],
        *shared: Any,
        seen: Callable[[Item], None] = ignore_result,
    ) -> Result:
        """Add up ``task(item, *shared)`` over all items, of which there is at least one.

        ``FAN_IN`` consecutive results are added first, then as many of these sums, and so on, where
        the tasks run: this process holds few results, however many items there are. ``add`` must be
        pure and associative. ``seen`` is called with each item whose task has ended.
        """

    @abstractmethod
    def workers(self) -> dict[str, int]:
        """Number of threads of each worker, by address; the address of this process is empty."""

    def least_memory(self) -> int | None:
        """Smallest memory limit of a worker in bytes; None if workers have no limit."""
        return None

    @abstractmethod
    def on_every_worker(self, function: Callable[..., Any], *values: Any) -> dict[str, Any]:
        """Return ``function(*values)`` of each worker, by address, or the exception it raised.

        The function must be picklable and quick: while it runs, its worker answers nobody. A
        worker that gives no answer in time has a TimeoutError.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything that the pool holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
