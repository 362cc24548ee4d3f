"""What a task on a Dask cluster costs the driver and the scheduler, and ``evaluate`` of tiny bags.

Scheduler and workers are processes of their own, so that CPU seconds of each can be told apart. All
of them share the cores of this machine: seconds of the driver and of the scheduler mean something
for many workers too, wall seconds do not.

``map`` runs tasks that do nothing. ``evaluate`` scores a store of tiny bags twice: with the tasks
that it chooses, and with tasks of one block of 128 KiB (``blocks``). STREAMMIML_BENCH_WORKERS
(default "2,8,32") gives the numbers of worker processes, of which each takes about 150 MiB.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from distributed import Client

from benchmarks.bench_score import random_model, write_store
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool, PoolOptions
from streammiml.measure import score_pass
from streammiml.measure.evaluate import evaluate

TINY = (9, 8, 1, 4, 2)
"""Features and bias, shared dimensions, sub-concepts, labels, and rows of a bag."""
SMALL_TASK = 128 << 10


def nothing(item: int, _: int) -> int:
    return item


@contextmanager
def cluster(n_workers: int) -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of a scheduler with ``n_workers`` workers of one thread."""
    dask = [sys.executable, "-m", "dask"]
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    scheduler = subprocess.Popen(
        [*dask, "scheduler", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    processes = [scheduler]
    try:
        assert scheduler.stderr is not None
        address = next(
            match[1]
            for line in scheduler.stderr
            if (match := re.search(r"Scheduler at:\s+(tcp://\S+)", line))
        )
        command = [*dask, "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes += [subprocess.Popen(command, **quiet) for _ in range(n_workers)]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(n_workers, timeout=600)
        yield address, psutil.Process(scheduler.pid)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def cost(work: Callable[[], int], scheduler: psutil.Process) -> dict[str, float]:
    """CPU milliseconds per task of the driver and of the scheduler; ``work`` returns n_tasks."""

    def cpu_of_scheduler() -> float:
        times = scheduler.cpu_times()
        return float(times.user + times.system)

    wall, driver, other = time.monotonic(), time.process_time(), cpu_of_scheduler()
    n_tasks = work()
    driver, other = time.process_time() - driver, cpu_of_scheduler() - other
    return {
        "tasks": n_tasks,
        "seconds": round(time.monotonic() - wall, 2),
        "driver_seconds": round(driver, 2),
        "scheduler_seconds": round(other, 2),
        "driver_ms_per_task": round(1000 * driver / n_tasks, 2),
        "scheduler_ms_per_task": round(1000 * other / n_tasks, 2),
    }


def map_cost(pool: Pool, scheduler: psutil.Process, n_tasks: int) -> dict[str, float]:
    shared = pool.share(0)

    def work(n: int) -> int:
        return sum(1 for _ in pool.map(nothing, range(n), shared))

    work(100)
    return cost(lambda: work(n_tasks), scheduler)


def evaluate_cost(
    address: str, folder: Path, scheduler: psutil.Process, n_bytes: float
) -> dict[str, Any]:
    model, store = random_model(TINY), write_store(folder / "tiny.zarr", TINY, n_bytes)

    def work() -> int:
        seen: list[int] = []
        evaluate(
            model, store, scheduler=address, watch=lambda progress: seen.append(progress.bags_done)
        )
        return len(seen) - 1

    work()
    costs = {"default": cost(work, scheduler)}
    with mock.patch.object(score_pass, "task_bytes", return_value=SMALL_TASK):
        costs["blocks"] = cost(work, scheduler)
    return {"bags": store.n_bags, **costs}


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    numbers = os.environ.get("STREAMMIML_BENCH_WORKERS", "2,8,32").split(",")
    for n_workers in (2,) if smoke else map(int, numbers):
        case = {"workers": n_workers}
        with cluster(n_workers) as (address, scheduler), tempfile.TemporaryDirectory() as name:
            with open_pool(PoolOptions(scheduler=address)) as pool:
                costs = map_cost(pool, scheduler, 40 if smoke else max(1500, 50 * n_workers))
                yield {"case": {"what": "map", **case}, **costs}
            result = evaluate_cost(address, Path(name), scheduler, 4e5 if smoke else 64e7)
            yield {"case": {"what": "evaluate, tiny bags", **case}, **result}
