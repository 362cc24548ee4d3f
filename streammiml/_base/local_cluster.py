"""A local Dask cluster of our own processes, closed to all other users of the machine."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from importlib import import_module
from multiprocessing import resource_tracker
from tempfile import TemporaryDirectory
from typing import Any

from dask import config as dask_config

from streammiml._base.platform import (
    allow_open_files,
    kill_process,
    open_files,
    signals_blocked,
)
from streammiml.errors import StreammimlError

LOOPBACK = "127.0.0.1"
# Measured: a scheduler holds 15 descriptors and 10 for each worker, a few more while it starts.
FILES_OF_SCHEDULER, FILES_OF_WORKER = 24, 10
# The usual limit of a system. Workers inherit the limit, and keep files of stores open.
USUAL_OPEN_FILES = 1024
CLOSE_SECONDS = 10
"""Deadline for closing what is left of a cluster whose closing failed."""
_DASK_SETTINGS: dict[str, Any] = {
    # Dask makes malloc return freed memory at once, so that the system clears every page of the
    # next batch again: a fifth of a core. Our memory is bounded and reused.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    # The profiler wakes each worker a hundred times a second.
    "distributed.worker.profile.enabled": False,
    # Do not pause a worker that is short of memory: nothing would ever free it. Dask terminates
    # the worker at its limit instead, so that we can report the cause.
    "distributed.worker.memory.pause": False,
    # Do not spill to disk: workers hold only the model, and every task needs the model.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    # Do not drop copies of values: every worker needs those that there are, again and again.
    "distributed.scheduler.active-memory-manager.start": False,
    # Scheduler and workers always serve HTTP, without a password and to every user of the machine.
    # Without routes every page is "not found".
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
"""Settings of our own cluster that differ from Dask's defaults."""


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block; threads and processes started inside never get it.

    A terminal sends Ctrl-C to all processes of the group, and Dask cannot recover from an
    interrupt while it starts or closes a cluster.
    """
    interrupts: list[int] = []
    before = None
    with suppress(ValueError):  # Only the main thread may set handlers.
        before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    # If the tracker started together with the first process, it would unblock the signal.
    resource_tracker.ensure_running()
    try:
        with signals_blocked(signal.SIGINT):
            yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if interrupts:
        signal.raise_signal(signal.SIGINT)


def start_cluster(n_workers: int, memory: int | None, stack: ExitStack) -> Any:
    """Start a cluster of ``n_workers`` processes; the ``stack`` closes it.

    Whoever can connect to a scheduler can run code as its user. So everything listens on loopback
    and speaks TLS, with a certificate that exists only in the memory of these processes: scheduler,
    workers and nannies refuse all other users of the machine. There is no dashboard, because Dask's
    dashboard has no password. Users who want a dashboard run ``dask scheduler`` and give its
    address.
    """
    distributed = import_module("distributed")
    _ensure_open_files(n_workers)
    # Dask's default is a fixed name in the temporary folder, which any user can create first.
    scratch = stack.enter_context(
        TemporaryDirectory(prefix="streammiml-workers-", ignore_cleanup_errors=True)
    )
    with dask_config.set(_DASK_SETTINGS), interrupt_deferred():
        try:
            cluster = distributed.LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                memory_limit=memory or "auto",
                host=LOOPBACK,
                local_directory=scratch,
                security=distributed.Security.temporary(),
                dashboard_address=f"{LOOPBACK}:0",
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
                # A copy: workers that are restarted later must get the same settings.
                config=deepcopy(dask_config.config),
            )
        # Dask raises errors of many classes here, mostly RuntimeError.
        except Exception as error:
            raise _start_failed(n_workers, error) from error
        stack.callback(interrupt_deferred()(close_cluster), cluster)
        # Dask's diagnosis of garbage collection is a callback in which Ctrl-C would be lost.
        import_module("distributed.gc").disable_gc_diagnosis(force=True)
    return cluster


def close_cluster(cluster: Any) -> None:
    """Close a cluster of our own, whatever state its workers are in.

    Dask raises an AssertionError if it is just restarting a worker that died. An error here would
    replace the one that tells why the worker died, so the rest is closed by a second call.
    """
    processes = [nanny.process for nanny in cluster.workers.values()]
    try:
        cluster.close()
    except Exception:
        for process in processes:
            if process is not None and process.pid:
                kill_process(process.pid)
        # Dask waits forever for a cluster whose status is "closing".
        cluster.status = import_module("distributed.core").Status.failed
        with suppress(Exception):
            cluster.close(timeout=CLOSE_SECONDS)


def _ensure_open_files(n_workers: int) -> None:
    """Raise the limit on open files to what a cluster needs, or refuse to start the cluster."""
    needed = open_files() + FILES_OF_SCHEDULER + FILES_OF_WORKER * n_workers
    limit = allow_open_files(max(needed, USUAL_OPEN_FILES))
    if limit < needed:
        raise StreammimlError(
            f"--workers {n_workers} needs about {needed} open files, and the hard limit of this "
            f"process is {limit}; raise it (ulimit -n {max(needed, USUAL_OPEN_FILES)} in a new "
            "shell), give fewer workers, or leave --workers out"
        )


def _start_failed(n_workers: int, error: BaseException) -> StreammimlError:
    """Name the first cause, which Dask wraps in several other errors."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    why = " ".join(str(error).split()) or type(error).__name__
    return StreammimlError(
        f"--workers {n_workers} cannot be started ({why}); raise the limits on memory, processes "
        "and open files (ulimit -a shows them), give fewer workers, or leave --workers out"
    )
