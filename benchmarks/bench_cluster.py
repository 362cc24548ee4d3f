"""What a task on a Dask cluster costs the driver and the scheduler, and ``evaluate`` of tiny bags.

Scheduler and workers are processes of their own, so that CPU seconds of each can be told apart. All
of them share the cores of this machine: seconds of the driver and of the scheduler mean something
for many workers too, wall seconds do not.

``map`` runs tasks that do nothing. ``evaluate`` scores 10⁷ tiny bags, ``predict`` scores and writes
500 000 of them, and ``convert`` converts these from store to store. Sums of the results of tasks
are not counted as tasks; their cost is. Of ``evaluate``, 500 000 bags are also scored in tasks of
one block of 128 KiB (``blocks``), as they were when a task was a block. STREAMMIML_BENCH_WORKERS
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

from benchmarks.bench_kernel import dense_corpus
from benchmarks.bench_score import random_model
from streammiml._base.cluster_pool import ClusterPool
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool, PoolOptions
from streammiml.bags.block import BagBlock
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.measure import score_pass
from streammiml.measure.evaluate import evaluate
from streammiml.measure.predict import predict
from streammiml_tools.convert.conversion import convert

TINY = (9, 8, 1, 4, 2)
"""Features and bias, shared dimensions, sub-concepts, labels, and rows of a bag."""
SMALL_TASK = 128 << 10
MANY, SOME, PART = 10_000_000, 500_000, 50_000
"""Bags of the two stores, and of each of their parts."""


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


def write_tiny(path: Path, n_bags: int) -> str:
    """A store of tiny bags: one part, repeated."""
    per_part = min(PART, n_bags)
    corpus = dense_corpus(TINY, per_part)
    block = BagBlock(corpus.bag_offsets, corpus.rows, corpus.label_offsets, corpus.labels)
    n_parts = n_bags // per_part
    with BagWriter.begin(path, StoreSpec(n_features=TINY[0] - 1, n_labels=TINY[3])) as writer:
        for part in range(n_parts):
            writer.write_part(part, block)
        writer.finish(n_parts)
    return str(path)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Numbers of the tasks that are sent to workers, in messages."""
    sent: list[int] = []
    send = ClusterPool._send

    def counting(pool: ClusterPool, task: Any, items: list[Any], *more: Any, **options: Any) -> Any:
        sent.append(len(items))
        return send(pool, task, items, *more, **options)

    with mock.patch.object(ClusterPool, "_send", counting):
        yield sent


def cost_of_call(work: Callable[[], Any], scheduler: psutil.Process) -> dict[str, float]:
    def counting() -> int:
        with counted() as sent:
            work()
        return sum(sent)

    return cost(counting, scheduler)


def calls(address: str, folder: Path, smoke: bool) -> Iterator[tuple[str, Callable[[], Any], int]]:
    """Name, call and number of bags of each case; workers have loaded what they need."""
    model = random_model(TINY)
    some = write_tiny(folder / "some.zarr", 2000 if smoke else SOME)
    many = some if smoke else write_tiny(folder / "many.zarr", MANY)
    n_some, n_many = (2000, 2000) if smoke else (SOME, MANY)
    numbers = iter(range(9))
    at = {"scheduler": address}
    evaluate(model, some, **at)
    yield "evaluate", lambda: evaluate(model, many, **at), n_many
    yield "predict", lambda: predict(model, some, folder / f"out{next(numbers)}", **at), n_some
    yield "convert", lambda: convert(some, folder / f"{next(numbers)}.zarr", **at), n_some


def blocks_cost(address: str, folder: Path, scheduler: psutil.Process) -> dict[str, Any]:
    """``evaluate`` with a task for each block, as it was."""
    model, store = random_model(TINY), str(folder / "some.zarr")
    with mock.patch.object(score_pass, "task_bytes", return_value=SMALL_TASK):
        return cost_of_call(lambda: evaluate(model, store, scheduler=address), scheduler)


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    numbers = os.environ.get("STREAMMIML_BENCH_WORKERS", "2,8,32").split(",")
    for n_workers in (2,) if smoke else map(int, numbers):
        case = {"workers": n_workers}
        with cluster(n_workers) as (address, scheduler), tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with open_pool(PoolOptions(scheduler=address)) as pool:
                costs = map_cost(pool, scheduler, 40 if smoke else max(1500, 50 * n_workers))
                yield {"case": {"what": "map", **case}, **costs}
            for what, work, n_bags in calls(address, folder, smoke):
                line = {"case": {"what": what, **case}, "bags": n_bags}
                yield {**line, **cost_of_call(work, scheduler)}
            line = {"case": {"what": "evaluate, blocks", **case}, "bags": 2000 if smoke else SOME}
            yield {**line, **blocks_cost(address, folder, scheduler)}
