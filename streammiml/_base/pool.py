"""``open_pool``: opens a pool of threads, a local cluster, or a running scheduler.

Every pool sends tasks out in windows of bounded size, so that a task graph never grows with the
store. Results come back in the order of the items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from dask.base import compute
from dask.callbacks import Callback
from dask.delayed import delayed

from streammiml._base.cluster_pool import ClusterPool
from streammiml._base.platform import usable_cores
from streammiml._base.pool_interface import Item, Pool, PoolOptions, Result, ignore_result
from streammiml.errors import StreammimlError

# Tasks per thread in a window. At the end of a window some threads are idle; in a long window this
# is a small share of the time.
WINDOW_OF_THREADS = 32


def open_pool(options: PoolOptions, *, relief: str = "--block-bytes") -> Pool:
    """Open the pool that the options describe; without options, threads of this process.

    ``relief`` is the option that messages advise to lower when memory runs out.
    """
    pool: Pool
    if options.workers is not None:
        pool = ClusterPool(options.workers, options.worker_bytes)
    elif options.scheduler is not None:
        pool = ClusterPool(options.scheduler)
    else:
        pool = ThreadPool(options.threads or usable_cores())
    pool.relief = relief
    return pool


class ThreadPool(Pool):
    """Dask's threaded scheduler."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def share(self, value: Any) -> Any:
        """Return the value itself: threads share memory."""
        return value

    def close(self) -> None:
        """Do nothing: Dask keeps its threads for later calls."""

    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = ignore_result,
    ) -> Iterator[Result]:
        """See :meth:`Pool.map`."""
        remaining = iter(items)
        size = WINDOW_OF_THREADS * self.n_threads
        while window := list(islice(remaining, size)):
            # Arguments are bound beforehand: Dask would search them for tasks, and there are none.
            calls = [
                delayed(partial(task, item, *shared), pure=False, traverse=False)()
                for item in window
            ]
            watching = Callback(  # type: ignore[no-untyped-call]
                posttask=lambda _key, result, *_: seen(result)
            )
            try:
                with watching:
                    results = compute(  # type: ignore[no-untyped-call]
                        *calls,
                        scheduler="threads",
                        num_workers=self.n_threads,
                        optimize_graph=False,
                        traverse=False,
                    )
            except MemoryError as error:
                raise StreammimlError(
                    f"a task ran out of memory ({error}); lower {self.relief}, or --threads"
                ) from error
            yield from results
