"""A pool of threads of this process, on Dask's threaded scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import islice
from typing import Any

from dask.base import compute
from dask.callbacks import Callback
from dask.delayed import delayed

from streammiml._base.pool_interface import (
    FAN_IN,
    Item,
    Pool,
    Result,
    added,
    ignore_result,
    prefer_none,
)
from streammiml.errors import StreammimlError

# Tasks per thread in a window. At the end of a window some threads are idle; in a long window this
# is a small share of the time.
WINDOW_OF_THREADS = 32


class ThreadPool(Pool):
    """Dask's threaded scheduler."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def share(self, value: Any) -> Any:
        """Return the value itself: threads share memory."""
        return value

    def release(self, shared: Any) -> None:
        """Do nothing: the pool keeps no copy."""

    def workers(self) -> dict[str, int]:
        """See :meth:`Pool.workers`."""
        return {"": self.n_threads}

    def on_every_worker(self, function: Callable[..., Any], *values: Any) -> dict[str, Any]:
        """See :meth:`Pool.on_every_worker`; here, the function runs in the calling thread."""
        try:
            return {"": function(*values)}
        except Exception as error:
            return {"": error}

    def close(self) -> None:
        """Do nothing: Dask keeps its threads for later calls."""

    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = ignore_result,
        prefer: Callable[[Item], str | None] = prefer_none,  # noqa: ARG002
    ) -> Iterator[Result]:
        """See :meth:`Pool.map`."""
        remaining = iter(items)
        size = WINDOW_OF_THREADS * self.n_threads
        while window := list(islice(remaining, size)):
            yield from self._compute(
                _calls(task, window, shared), lambda _key, result, *_: seen(result)
            )

    def map_reduce(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        add: Callable[[Result, Result], Result],
        *shared: Any,
        seen: Callable[[Item], None] = ignore_result,
    ) -> Result:
        """See :meth:`Pool.map_reduce`."""
        remaining = iter(items)
        size = WINDOW_OF_THREADS * self.n_threads

        def sums() -> Iterator[Result]:
            while window := list(islice(remaining, size)):
                calls = _calls(task, window, shared)
                item_of = {call.key: item for call, item in zip(calls, window, strict=True)}
                while len(calls) > 1:
                    # Dask forgets a result as soon as it is in a sum.
                    calls = [
                        delayed(partial(added, add), pure=False)(*calls[first : first + FAN_IN])
                        for first in range(0, len(calls), FAN_IN)
                    ]

                def ended(key: str, *_: object, item_of: dict[str, Item] = item_of) -> None:
                    if key in item_of:
                        seen(item_of[key])

                yield from self._compute(calls, ended)

        return reduce(add, sums())

    def map_partitions(
        self,
        task: Callable[..., Result],
        collection: Any,
        *shared: Any,
        each: Sequence[Any] | None = None,
    ) -> Iterator[Result]:
        """See :meth:`Pool.map_partitions`; one call computes all, as partitions may share tasks."""
        lazy_task = delayed(task, pure=False)
        calls = [
            lazy_task(partition, number, *shared, *(() if each is None else (each[number],)))
            for number, partition in enumerate(collection.to_delayed())
        ]
        try:
            yield from compute(*calls, scheduler="threads", num_workers=self.n_threads)  # type: ignore[no-untyped-call]
        except MemoryError as error:
            raise self._out_of_memory(error) from error

    def _compute(self, calls: list[Any], ended: Callable[..., None]) -> Sequence[Any]:
        """Results of some calls; ``ended`` is called with the key of each task, and its result."""
        try:
            with Callback(posttask=ended):  # type: ignore[no-untyped-call]
                results: Sequence[Any] = compute(  # type: ignore[no-untyped-call]
                    *calls,
                    scheduler="threads",
                    num_workers=self.n_threads,
                    optimize_graph=False,
                    traverse=False,
                )
        except MemoryError as error:
            raise self._out_of_memory(error) from error
        return results

    def _out_of_memory(self, error: MemoryError) -> StreammimlError:
        return StreammimlError(
            f"a task ran out of memory ({error}); lower {self.relief}, or --threads"
        )


def _calls(task: Callable[..., Any], items: Sequence[Item], shared: tuple[Any, ...]) -> list[Any]:
    """Tasks of some items, for Dask.

    Arguments are bound beforehand: Dask would search them for tasks, and there are none. Dask
    begins with the task of the highest key, which is the first one here.
    """
    return [
        delayed(partial(task, item, *shared), pure=False, traverse=False)(
            dask_key_name=f"{len(items) - number:09}"
        )
        for number, item in enumerate(items)
    ]
