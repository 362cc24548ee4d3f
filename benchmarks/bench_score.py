"""Scoring a store against a matrix product, a plain loop and NumPy; its memory; a few bags.

``of_gemm`` is our floating point operations per second divided by those of a 1024³ float32 matrix
product on one thread. Both are timed in CPU seconds of the process, in turns, and the median ratio
of these pairs is reported. A row counts 2m(d + K(L + 1)) operations; other work on the row is not
counted. Ratios of wall times are medians of pairs, too. Other processes on a busy machine change
these ratios, so ``kernel_alone`` gives the speedup by two threads for the kernel alone, which runs
without Python's global lock.

STREAMMIML_BENCH_GB (default "1,8") gives the sizes of the stores whose peak memory is compared. An
open store caches up to 24 MiB of its index, and a million bags fill this cache, so the larger store
may take up to 24 MiB more.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.bench_kernel import case_of, dense_corpus
from streammiml.bags.block import BagBlock
from streammiml.bags.store import open_store
from streammiml.bags.validate import StoreSpec
from streammiml.bags.views import Bags
from streammiml.bags.writer import BagWriter
from streammiml.measure.evaluate import combined, evaluate, measure_task
from streammiml.measure.predict import predict
from streammiml.measure.registry import chosen
from streammiml.measure.score_pass import task_bytes
from streammiml.measure.scoring import scored_blocks
from streammiml.measure.tasks import split_into_tasks
from streammiml.model import LabelRule, LiftArrays, Model
from streammiml.scorer import Scorer

SHAPE = (200, 100, 5, 100, 9)
SMALL = (48, 100, 5, 23, 3)
BLOCK = 8 << 20
_LEFT, _RIGHT = (np.random.default_rng(i).random((1024, 1024), np.float32) for i in range(2))


def random_model(shape: tuple[int, ...]) -> Model:
    d, m, n_sub, n_labels, _ = shape
    rng = np.random.default_rng(1)
    return Model(
        shared=rng.normal(0, d**-0.5, (d, m)),
        labels=rng.normal(0, d**-0.5, (n_labels + 1, n_sub, m)),
        lift=LiftArrays(
            np.zeros(d - 1), np.ones(d - 1), 0, 0, np.zeros((d - 1, 0)), np.zeros(0), 0
        ),
        # Predict two labels per bag, a usual number. Random weights would predict every second.
        rule=LabelRule(name="top-r", r=2),
    )


def write_store(path: Path, shape: tuple[int, ...], n_bytes: float) -> Bags:
    """A store of about ``n_bytes``: the rows of the kernel's benchmark, repeated."""
    bag_bytes = (shape[0] - 1) * shape[4] * 4
    per_part = max(16, min(2000, int(n_bytes / bag_bytes)))
    corpus = dense_corpus(shape, per_part)
    block = BagBlock(corpus.bag_offsets, corpus.rows, corpus.label_offsets, corpus.labels)
    n_parts = max(1, round(n_bytes / (bag_bytes * per_part)))
    spec = StoreSpec(n_features=shape[0] - 1, n_labels=shape[3])
    with BagWriter.begin(path, spec) as writer:
        for part in range(n_parts):
            writer.write_part(part, block)
        return writer.finish(n_parts)


def clocked(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds that ``work`` took by ``clock``."""
    start = clock()
    work()
    return max(clock() - start, 1e-9)


def median_ratio(
    first: Callable[[], Any], second: Callable[[], Any], rounds: int, clock: Callable[[], float]
) -> float:
    """Time of ``first`` over time of ``second``, the median of interleaved pairs."""
    first(), second()
    return statistics.median(clocked(first, clock) / clocked(second, clock) for _ in range(rounds))


def gemm() -> None:
    for _ in range(4):
        np.matmul(_LEFT, _RIGHT)


def read_and_score(store: Bags, scorer: Scorer) -> None:
    for task in split_into_tasks(store, BLOCK, remote=False):
        for _ in scored_blocks(task, scorer, BLOCK):
            pass


def plain_loop(store: Bags, scorer: Scorer, block_bytes: int) -> None:
    """The work of ``evaluate`` without Dask."""
    metrics = chosen(None, row_labels=False)
    partial_results = (
        measure_task(task, scorer, metrics, BLOCK)
        for task in split_into_tasks(store, block_bytes, remote=False)
    )
    reduce(lambda left, right: combined(metrics, left, right), partial_results)


def numpy_scores(store: Bags, model: Model) -> None:
    """The obvious NumPy code: a matrix product for each bag, and its maximum."""
    vectors = model.labels.reshape(-1, model.shared_dim).T
    for task in split_into_tasks(store, BLOCK, remote=False):
        block = task.read()
        for bag in range(len(block)):
            rows = block.rows_of(bag)
            lifted = np.hstack([rows, np.ones((len(rows), 1), np.float32)])
            dots = lifted @ model.shared @ vectors
            dots.reshape(len(rows), len(model.labels), -1).max(axis=(0, 2))


def speed(folder: Path, shape: tuple[int, ...], smoke: bool) -> Iterator[dict[str, Any]]:
    model = random_model(shape)
    scorer = Scorer(model)
    store = write_store(folder / "x.zarr", shape, 1e6 if smoke else 120e6)
    d, m, n_sub, n_labels, _ = shape
    flops = 2 * store.n_rows * m * (d + n_sub * (n_labels + 1))
    rounds = 1 if smoke else 9
    share = 4 * 2 * 1024**3 / flops
    out = folder / "out"

    def write() -> None:
        subprocess.run(["rm", "-rf", str(out)], check=True)
        predict(model, store, out, threads=1)

    case = {"case": case_of("warm store", shape), "bags": store.n_bags}
    with threadpool_limits(1):
        for what, work in (
            ("read, score", lambda: read_and_score(store, scorer)),
            ("evaluate", lambda: evaluate(model, store, threads=1)),
            ("predict", write),
        ):
            ratio = median_ratio(gemm, work, rounds, time.process_time) / share
            yield {**case, "what": what, "of_gemm": round(ratio, 3)}
        ratio = median_ratio(
            lambda: numpy_scores(store, model),
            lambda: read_and_score(store, scorer),
            1 if smoke else 3,
            time.process_time,
        )
        yield {**case, "what": "read, score", "over_numpy": round(ratio, 2)}
        # As many tasks as evaluate makes on one thread.
        size = task_bytes(store.n_rows * d * 4, 1, remote=False)
        ratio = median_ratio(
            lambda: evaluate(model, store, threads=1),
            lambda: plain_loop(store, scorer, size),
            rounds,
            time.process_time,
        )
        yield {**case, "what": "evaluate over a plain loop", "cpu_ratio": round(ratio, 3)}
        yield {**case, "what": "evaluate", **two_threads(model, store, scorer, rounds)}


def two_threads(model: Model, store: Bags, scorer: Scorer, rounds: int) -> dict[str, float]:
    """Wall time with one thread over that with two, of ``evaluate`` and of the kernel in turns."""
    block = store.read(0, store.n_bags // 2)

    def kernel(threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(scorer.scores, [block, block]))

    ratios: dict[str, list[float]] = {"two_threads_over_one": [], "kernel_alone": []}
    works = (lambda n: evaluate(model, store, threads=n), kernel)
    for _ in range(rounds):
        for ratios_of_work, work in zip(ratios.values(), works, strict=True):
            one, two = (clocked(partial(work, n), time.perf_counter) for n in (1, 2))
            ratios_of_work.append(one / two)
    return {name: round(statistics.median(values), 2) for name, values in ratios.items()}


def in_memory(shape: tuple[int, ...], n_bags: int, smoke: bool) -> dict[str, Any]:
    """Time of ``predict`` on a list of a few arrays."""
    model, corpus = random_model(shape), dense_corpus(shape, n_bags)
    offsets = corpus.bag_offsets.tolist()
    bags = [corpus.rows[start:stop] for start, stop in pairwise(offsets)]
    predict(model, bags)
    calls = 3 if smoke else 300
    seconds = [clocked(lambda: predict(model, bags), time.perf_counter) for _ in range(calls)]
    us_per_bag = statistics.median(seconds) / n_bags * 1e6
    return {"case": case_of("in memory", shape), "bags": n_bags, "us_per_bag": round(us_per_bag, 1)}


def memory(n_bytes: float) -> dict[str, Any]:
    """Peak memory of evaluate and of predict on a store of ``n_bytes``, each in a new process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_store(folder / "x.zarr", SHAPE, n_bytes)
        random_model(SHAPE).save(folder / "model.safetensors")
        peaks = {}
        for what in ("evaluate", "predict"):
            command = [sys.executable, "-m", "benchmarks.bench_score", what, name]
            process = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks[what] = json.loads(process.stdout)
    return {"case": {"what": "memory", "gb": round(n_bytes / 1e9, 2)}, "grown_mib": peaks}


def grown(what: str, folder: Path) -> float:
    """MiB by which peak memory exceeds memory in use after loading and compiling."""
    model = Model.load(folder)
    store = open_store(folder / "x.zarr")
    first = store.view(np.arange(8))
    evaluate(model, first)
    predict(model, first, folder / f"first-{what}")
    # Compiling caused the peak so far: reset the peak.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    if what == "predict":
        predict(model, store, folder / "out", threads=2)
    else:
        evaluate(model, store, threads=2)
    return round((resident("VmHWM") - before) / 1024, 1)


def resident(name: str) -> int:
    """A memory field of this process in KiB, from Linux's ``/proc/self/status``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    for shape in (SHAPE, SMALL):
        with tempfile.TemporaryDirectory() as folder:
            yield from speed(Path(folder), shape, smoke)
    for n_bags in (1, 8):
        yield in_memory(SHAPE, n_bags, smoke)
    sizes = os.environ.get("STREAMMIML_BENCH_GB", "1,8").split(",")
    memory_cases = [memory(gb * 1e9) for gb in ((0.002, 0.004) if smoke else map(float, sizes))]
    yield from memory_cases
    first, last = memory_cases[0], memory_cases[-1]
    more = {
        what: round(last["grown_mib"][what] - first["grown_mib"][what], 1)
        for what in first["grown_mib"]
    }
    yield {"case": {**last["case"], "than_gb": first["case"]["gb"]}, "grown_more_mib": more}


if __name__ == "__main__":
    print(grown(sys.argv[1], Path(sys.argv[2])))
