"""A pool of threads of this process, on Dask's threaded scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import islice
from typing import Any

from dask.base import compute
from dask.callbacks import Callback
from dask.delayed import delayed
from dask.threaded import get

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
            graph = _graph(task, window, shared)
            yield from self._compute(graph, [*graph], lambda _key, result, *_: seen(result))

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
                graph = _graph(task, window, shared)
                keys = [*graph]
                item_of = dict(zip(keys, window, strict=True))
                while len(keys) > 1:
                    # Dask forgets a result as soon as it is in a sum.
                    parts = [keys[first : first + FAN_IN] for first in range(0, len(keys), FAN_IN)]
                    keys = [f"{part[0]}+" for part in parts]
                    graph |= {
                        key: (partial(added, add), *part)
                        for key, part in zip(keys, parts, strict=True)
                    }

                def ended(key: str, *_: object, item_of: dict[str, Item] = item_of) -> None:
                    if key in item_of:
                        seen(item_of[key])

                yield from self._compute(graph, keys, ended)

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

    def _compute(
        self, graph: dict[str, Any], keys: list[str], ended: Callable[..., None]
    ) -> Sequence[Any]:
        """Results of some keys; ``ended`` is called with the key of each task, and its result.

        A graph made by hand costs a fifth of one of ``delayed``; a short round of replicas takes
        no longer than that.
        """
        try:
            with Callback(posttask=ended):  # type: ignore[no-untyped-call]
                results: Sequence[Any] = get(graph, keys, num_workers=self.n_threads)
        except MemoryError as error:
            raise self._out_of_memory(error) from error
        return results

    def _out_of_memory(self, error: MemoryError) -> StreammimlError:
        return StreammimlError(
            f"a task ran out of memory ({error}); lower {self.relief}, or --threads"
        )


def _graph(
    task: Callable[..., Any], items: Sequence[Item], shared: tuple[Any, ...]
) -> dict[str, Any]:
    """Tasks of some items as a graph of Dask, by key.

    Arguments are bound beforehand: Dask would search them for tasks, and there are none. Dask
    begins with the task of the highest key, which is the first one here.
    """
    return {
        f"{len(items) - number:09}": (partial(task, item, *shared),)
        for number, item in enumerate(items)
    }
