"""Scoring a store against a matrix product, a plain loop and NumPy; memory; a few bags at once.

``of_gemm`` is floating point operations a second over those of a float32 product of 1024³ on one
thread in the same run, both by the CPU time of their process, taken in turns: the median of the
ratios of pairs. A row counts 2m(d + K(L + 1)) operations, whatever else is done for it. Ratios of
times on the wall are medians of pairs too; on a busy machine they measure the others as well, so
two threads are also tried on the kernel alone (``kernel_alone``), which holds no lock of Python's.

STREAMMIML_BENCH_GB ("1,8") says how large the stores are whose peak memory is compared. An open
store keeps pieces of its index, three times 8 MiB at most, which a million bags fill: so much more
may the larger one take.
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

from benchmarks.bench_kernel import dense_corpus, named
from streammiml.bags.block import BagBlock
from streammiml.bags.checks import StoreSpec
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.bags.writer import BagWriter
from streammiml.measure.evaluate import LEAST_BYTES, combined, evaluate, measure_piece
from streammiml.measure.pieces import pieces
from streammiml.measure.predict import predict
from streammiml.measure.registry import chosen
from streammiml.measure.scored import scored_blocks
from streammiml.model import LabelRule, LiftArrays, Model
from streammiml.scoring import Scorer

SHAPE = (200, 100, 5, 100, 9)
SMALL = (48, 100, 5, 23, 3)
BLOCK = 8 << 20
_LEFT, _RIGHT = (np.random.default_rng(i).random((1024, 1024), np.float32) for i in range(2))


def made_model(shape: tuple[int, ...]) -> Model:
    d, m, n_sub, n_labels, _ = shape
    rng = np.random.default_rng(1)
    return Model(
        shared=rng.normal(0, d**-0.5, (d, m)),
        labels=rng.normal(0, d**-0.5, (n_labels + 1, n_sub, m)),
        lift=LiftArrays(
            np.zeros(d - 1), np.ones(d - 1), 0, 0, np.zeros((d - 1, 0)), np.zeros(0), 0
        ),
        # Two labels a bag, as is usual: weights at random would predict every other one.
        rule=LabelRule(name="top-r", r=2),
    )


def made_store(path: Path, shape: tuple[int, ...], n_bytes: float) -> Bags:
    """Rows as the kernel's benchmark has them, again and again."""
    a_bag = (shape[0] - 1) * shape[4] * 4
    per_part = max(16, min(2000, int(n_bytes / a_bag)))
    made = dense_corpus(shape, per_part)
    block = BagBlock(made.bag_offsets, made.rows, made.label_offsets, made.labels)
    n_parts = max(1, round(n_bytes / (a_bag * per_part)))
    spec = StoreSpec(n_features=shape[0] - 1, n_labels=shape[3])
    with BagWriter.begin(path, spec) as writer:
        for part in range(n_parts):
            writer.write_part(part, block)
        return writer.finish(n_parts)


def clocked(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return max(clock() - start, 1e-9)


def median_ratio(
    first: Callable[[], Any], second: Callable[[], Any], rounds: int, clock: Callable[[], float]
) -> float:
    """The median, over pairs, of the first one's time over the second one's."""
    first(), second()
    return statistics.median(clocked(first, clock) / clocked(second, clock) for _ in range(rounds))


def gemm() -> None:
    for _ in range(4):
        np.matmul(_LEFT, _RIGHT)


def read_and_score(store: Bags, scorer: Scorer) -> None:
    for piece in pieces(store, BLOCK, remote=False):
        for _ in scored_blocks(piece, scorer, BLOCK):
            pass


def plain_loop(store: Bags, scorer: Scorer, block_bytes: int) -> None:
    """What evaluate does, without Dask."""
    metrics = chosen(None, row_labels=False)
    found = (
        measure_piece(piece, scorer, metrics, BLOCK)
        for piece in pieces(store, block_bytes, remote=False)
    )
    reduce(lambda one, other: combined(metrics, one, other), found)


def obvious(store: Bags, model: Model) -> None:
    """What one would write: a product a bag, and the maximum of it."""
    vectors = model.labels.reshape(-1, model.shared_dim).T
    for piece in pieces(store, BLOCK, remote=False):
        block = piece.read()
        for bag in range(len(block)):
            rows = block.rows_of(bag)
            lifted = np.hstack([rows, np.ones((len(rows), 1), np.float32)])
            dots = lifted @ model.shared @ vectors
            dots.reshape(len(rows), len(model.labels), -1).max(axis=(0, 2))


def speed(folder: Path, shape: tuple[int, ...], smoke: bool) -> Iterator[dict[str, Any]]:
    model = made_model(shape)
    scorer = Scorer(model)
    store = made_store(folder / "x.zarr", shape, 1e6 if smoke else 120e6)
    d, m, n_sub, n_labels, _ = shape
    flops = 2 * store.n_rows * m * (d + n_sub * (n_labels + 1))
    rounds = 1 if smoke else 9
    share = 4 * 2 * 1024**3 / flops
    out = folder / "out"

    def write() -> None:
        subprocess.run(["rm", "-rf", str(out)], check=True)
        predict(model, store, out, threads=1)

    case = {"case": named("warm store", shape), "bags": store.n_bags}
    with threadpool_limits(1):
        for what, work in (
            ("read, score", lambda: read_and_score(store, scorer)),
            ("evaluate", lambda: evaluate(model, store, threads=1)),
            ("predict", write),
        ):
            ratio = median_ratio(gemm, work, rounds, time.process_time) / share
            yield {**case, "what": what, "of_gemm": round(ratio, 3)}
        ratio = median_ratio(
            lambda: obvious(store, model),
            lambda: read_and_score(store, scorer),
            1 if smoke else 3,
            time.process_time,
        )
        yield {**case, "what": "read, score", "over_numpy": round(ratio, 2)}
        # As many tasks as evaluate makes of them on one thread.
        size = int(max(LEAST_BYTES, min(BLOCK, store.n_rows * d * 4 / 8)))
        ratio = median_ratio(
            lambda: evaluate(model, store, threads=1),
            lambda: plain_loop(store, scorer, size),
            rounds,
            time.process_time,
        )
        yield {**case, "what": "evaluate over a plain loop", "cpu_ratio": round(ratio, 3)}
        yield {**case, "what": "evaluate", **two_threads(model, store, scorer, rounds)}


def two_threads(model: Model, store: Bags, scorer: Scorer, rounds: int) -> dict[str, float]:
    """Wall time of one thread over that of two: evaluate, and in the same minutes the kernel."""
    block = store.read(0, store.n_bags // 2)

    def kernel(threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(scorer.scores, [block, block]))

    ratios: dict[str, list[float]] = {"two_threads_over_one": [], "kernel_alone": []}
    works = (lambda n: evaluate(model, store, threads=n), kernel)
    for _ in range(rounds):
        for found, work in zip(ratios.values(), works, strict=True):
            one, two = (clocked(partial(work, n), time.perf_counter) for n in (1, 2))
            found.append(one / two)
    return {name: round(statistics.median(found), 2) for name, found in ratios.items()}


def in_memory(shape: tuple[int, ...], n_bags: int, smoke: bool) -> dict[str, Any]:
    model, made = made_model(shape), dense_corpus(shape, n_bags)
    ends = made.bag_offsets.tolist()
    bags = [made.rows[a:b] for a, b in pairwise(ends)]
    predict(model, bags)
    calls = 3 if smoke else 300
    seconds = [clocked(lambda: predict(model, bags), time.perf_counter) for _ in range(calls)]
    a_bag = statistics.median(seconds) / n_bags * 1e6
    return {"case": named("in memory", shape), "bags": n_bags, "us_per_bag": round(a_bag, 1)}


def memory(n_bytes: float) -> dict[str, Any]:
    """Peaks of evaluate and predict on a store of this size, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made_store(folder / "x.zarr", SHAPE, n_bytes)
        made_model(SHAPE).save(folder / "model.safetensors")
        peaks = {}
        for what in ("evaluate", "predict"):
            words = [sys.executable, "-m", "benchmarks.bench_score", what, name]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            peaks[what] = json.loads(done.stdout)
    return {"case": {"what": "memory", "gb": round(n_bytes / 1e9, 2)}, "grown_mib": peaks}


def grown(what: str, folder: Path) -> float:
    """MiB that the resident set rises by at its peak, once everything is loaded and compiled."""
    model = Model.load(folder)
    store = open_store(folder / "x.zarr")
    first = store.view(np.arange(8))
    evaluate(model, first)
    predict(model, first, folder / f"first-{what}")
    # The peak so far is that of compiling: begin anew.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    if what == "predict":
        predict(model, store, folder / "out", threads=2)
    else:
        evaluate(model, store, threads=2)
    return round((resident("VmHWM") - before) / 1024, 1)


def resident(name: str) -> int:
    """KiB, as the kernel counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    for shape in (SHAPE, SMALL):
        with tempfile.TemporaryDirectory() as folder:
            yield from speed(Path(folder), shape, smoke)
    for n_bags in (1, 8):
        yield in_memory(SHAPE, n_bags, smoke)
    sizes = os.environ.get("STREAMMIML_BENCH_GB", "1,8").split(",")
    found = [memory(gb * 1e9) for gb in ((0.002, 0.004) if smoke else map(float, sizes))]
    yield from found
    first, last = found[0], found[-1]
    more = {
        what: round(last["grown_mib"][what] - first["grown_mib"][what], 1)
        for what in first["grown_mib"]
    }
    yield {"case": {**last["case"], "than_gb": first["case"]["gb"]}, "grown_more_mib": more}


if __name__ == "__main__":
    print(grown(sys.argv[1], Path(sys.argv[2])))
