"""``open_pool``: opens a pool of threads, a local cluster, or a running scheduler or client.

Every pool sends tasks out in windows of bounded size, so that a task graph never grows with the
store. Results come back in the order of the items.
"""

from __future__ import annotations

from importlib import import_module

from streammiml._base.platform import usable_cores
from streammiml._base.pool_interface import Pool, PoolOptions


def open_pool(options: PoolOptions, *, relief: str = "--block-bytes") -> Pool:
    """Open the pool that the options describe; without options, threads of this process.

    ``relief`` is the option that messages advise to lower when memory runs out.
    """
    # Loaded late: Dask takes longer to load than a verb takes to refuse a file that is missing.
    pool: Pool
    if options.workers is None and options.scheduler is None and options.client is None:
        threads = import_module("streammiml._base.thread_pool")
        pool = threads.ThreadPool(options.threads or usable_cores())
    else:
        cluster = import_module("streammiml._base.cluster_pool")
        where = options.workers if options.scheduler is None else options.scheduler
        if options.client is not None:
            connection = import_module("streammiml._base.cluster_connection")
            where = connection.given_client(options.client)
        pool = cluster.ClusterPool(where, options.worker_bytes)
    pool.relief = relief
    return pool
