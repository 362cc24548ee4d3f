"""The interface of pools: options that choose a pool, and the methods that every pool has.

This module imports no Dask, so code that only passes the options on stays quick to load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from streammiml.config import parse_size
from streammiml.errors import StreammimlError

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Where tasks run; at most one of ``threads``, ``workers`` and ``scheduler`` is given."""

    threads: int | None = None
    """Threads of this process; by default one for each core."""
    workers: int | None = None
    """Start a local cluster with this many processes, instead of threads."""
    scheduler: str | None = None
    """Address of a running Dask scheduler to use instead. Its workers need access to the same
    files."""
    worker_memory: str | int | None = None
    """Memory limit of each --workers process; by default an equal share of the machine's memory."""

    def __post_init__(self) -> None:
        for name in ("threads", "workers"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise StreammimlError(f"{name} must be at least 1, got {count}")
        names = ("threads", "workers", "scheduler")
        given = [f"--{name}" for name in names if getattr(self, name) is not None]
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


def ignore_result(_: object) -> None:
    """Do nothing; the default of ``seen`` in :meth:`Pool.map`."""


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

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Send a value that many tasks need, once; pass the result to :meth:`map`."""

    @abstractmethod
    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = ignore_result,
    ) -> Iterator[Result]:
        """Yield ``task(item, *shared)`` for each item, in order; items are drawn as needed.

        The task must be pure: if its worker is lost, the task runs again elsewhere. ``seen`` is
        called with each result as soon as it is known, in any order and before it is yielded.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything that the pool holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
