"""The kernel against a matrix product, against plain loops, and against its peers.

``of_gemm`` is the kernel's floating point operations per second divided by those of a 1024³ float32
matrix product on one thread. Both are timed in CPU seconds of their thread, in turns, and the
median ratio of these pairs is reported. A step counts 2zdm + 2zKm(1 + labels scored) operations,
and 6dm more if it updates the weights; a label that is drawn twice in a step is scored once. Steps
are measured on a model that was trained before.

``shape`` is always (d, m, K, L, z): lifted features, shared dimensions, sub-concepts, labels, rows
in a bag. Peers run on one thread in the interpreter that STREAMMIML_PEERS_PYTHON names.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from streammiml.kernel import score, sweep
from streammiml.kernel.average import STRIDE, make_averages
from streammiml.kernel.lift import Lift, lift_width
from streammiml.kernel.step import Settings
from streammiml.kernel.tile import aligned_zeros, padded_width

SHAPES = [
    (200, 100, 5, 100, 9),
    (48, 100, 5, 23, 3),
    (784, 100, 1, 10, 8),
    (2048, 200, 10, 1000, 20),
]
SPARSE = (50_000, 100, 5, 1000, 9)
NON_ZEROS = 100
# Bags in one call of sweep.
CALL = 64
SETTINGS = Settings(seed=1, step_size=0.02, decay=1e-5, max_norm=10.0)


def case_of(what: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """What is measured and at which sizes."""
    return {"what": what, **dict(zip("dmKLz", shape, strict=True))}


def plain_lift(n_features: int) -> Lift:
    """The lift that only appends a constant to each row; d counts the constant."""
    no_phases = np.zeros(0, np.float32)
    shift, scale = np.zeros(n_features, np.float32), np.ones(n_features, np.float32)
    return Lift(shift, scale, 0, 0, np.zeros((n_features, 0), np.float32), no_phases, 0)


def labels_of(rng: np.random.Generator, n_bags: int, n_labels: int) -> list[np.ndarray]:
    most = min(4, n_labels)
    return [
        np.sort(rng.choice(n_labels, rng.integers(1, most), replace=False)) for _ in range(n_bags)
    ]


def offsets_of(labels: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    sizes = [len(labels_of_bag) for labels_of_bag in labels]
    return np.cumsum([0, *sizes]), np.concatenate(labels).astype(np.int32)


def dense_corpus(shape: tuple[int, ...], n_bags: int) -> score.DenseBlock:
    """Rows of length 1: noise, or near one of the three centres of a label of their bag."""
    d, _, _, n_labels, z = shape
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n_labels, 3, d - 1)).astype(np.float32)
    centres /= np.linalg.norm(centres, axis=2, keepdims=True)
    labels = labels_of(rng, n_bags, n_labels)
    rows = rng.normal(size=(n_bags, z, d - 1)).astype(np.float32) / np.float32(np.sqrt(d))
    for bag, own in enumerate(labels):
        for i in range(z):
            if i < len(own) or rng.random() < 0.5:
                rows[bag, i] = 0.6 * rows[bag, i] + centres[own[i % len(own)], rng.integers(3)]
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    return score.DenseBlock(
        rows.reshape(n_bags * z, d - 1), np.arange(n_bags + 1) * z, *offsets_of(labels)
    )


def sparse_corpus(shape: tuple[int, ...], n_bags: int) -> score.SparseBlock:
    """Rows with half of their non-zeros in 200 columns that belong to a label of their bag."""
    d, _, _, n_labels, z = shape
    rng = np.random.default_rng(0)
    favoured = rng.integers(0, d - 1, (n_labels, 200))
    labels = labels_of(rng, n_bags, n_labels)
    columns = np.empty((n_bags, z, NON_ZEROS), np.int32)
    for bag, own in enumerate(labels):
        for i in range(z):
            chosen = set(rng.choice(favoured[own[i % len(own)]], NON_ZEROS // 2).tolist())
            while len(chosen) < NON_ZEROS:
                chosen.add(int(rng.integers(d - 1)))
            columns[bag, i] = sorted(chosen)
    values = np.full(columns.size, 1 / np.sqrt(NON_ZEROS), np.float32)
    row_offsets = np.arange(n_bags * z + 1) * NON_ZEROS
    bag_offsets = np.arange(n_bags + 1) * z
    return score.SparseBlock(row_offsets, columns.ravel(), values, bag_offsets, *offsets_of(labels))


def new_learner(shape: tuple[int, ...], stride: int) -> sweep.Learner:
    d, m, n_sub, n_labels, _ = shape
    rng = np.random.default_rng(1)
    shared = aligned_zeros((d, padded_width(m)))
    labels = aligned_zeros((n_labels + 1, n_sub, padded_width(m)))
    shared[:, :m] = rng.normal(0, d**-0.5, (d, m))
    labels[..., :m] = rng.normal(0, d**-0.5, (n_labels + 1, n_sub, m))
    weights = score.Weights(shared, labels)
    sweep.project_all(weights, SETTINGS.max_norm)
    return sweep.Learner(
        weights, make_averages(*weights, stride=stride), SETTINGS, plain_lift(d - 1)
    )


class Trainee:
    """A learner and its corpus; each call of ``go`` continues after the last step."""

    def __init__(self, shape: tuple[int, ...], block: Any, stride: int = STRIDE) -> None:
        self.shape, self.block = shape, block
        self.learner = new_learner(shape, stride)
        values = len(block.values) if isinstance(block, score.SparseBlock) else None
        z = shape[4]
        self.room = sweep.make_sweep_room(self.learner.weights, self.learner.lift, z, values)
        self.n_bags = len(block.bag_offsets) - 1
        self.order = np.random.default_rng(2).integers(0, self.n_bags, 1 << 16)
        self.steps = 0

    def go(self, n_steps: int) -> np.ndarray:
        """Take ``n_steps`` more steps, 64 in a call; returns (steps, updates, tries, scored)."""
        tally = sweep.make_tally()
        stop = self.steps + n_steps
        while self.steps < stop:
            n = min(CALL, stop - self.steps)
            place = self.steps % (len(self.order) - CALL)
            visit = self.order[place : place + n]
            diverged = sweep.sweep(self.block, visit, self.steps, self.learner, self.room, tally)
            assert diverged < 0, f"diverged at step {diverged}"
            self.steps += n
        return tally.counts

    def flops(self, counts: np.ndarray) -> float:
        """Floating point operations of steps with these counts."""
        d, m, n_sub, _, z = self.shape
        n_steps, n_updates, _, n_scored = (int(count) for count in counts)
        return (
            2 * z * d * m * n_steps
            + 2 * z * n_sub * m * (n_steps + n_scored)
            + 6 * d * m * n_updates
        )


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


_LEFT, _RIGHT = (np.random.default_rng(i).random((1024, 1024), np.float32) for i in range(2))
_OUT = np.empty_like(_LEFT)


def gemm_seconds() -> float:
    with threadpool_limits(1):
        return cpu_seconds(lambda: np.dot(_LEFT, _RIGHT, out=_OUT))


def of_gemm(sample: Callable[[], float], rounds: int) -> tuple[float, float]:
    """``sample``'s rate over a matrix product's (median of pairs); best GFLOP/s of the product."""
    sample()
    pairs = [(sample(), 2 * 1024**3 / gemm_seconds()) for _ in range(rounds)]
    share = float(np.median([ours / product for ours, product in pairs]))
    return round(share, 3), round(max(product for _, product in pairs) / 1e9, 1)


@numba.njit
def repeat_project(rows: Any, shared: Any, out: Any, times: int) -> None:
    for _ in range(times):
        score.project_dense(rows, shared, out)


@numba.njit
def repeat_sparse(rows: Any, n_rows: int, shared: Any, out: Any, times: int) -> None:
    for _ in range(times):
        score.project_sparse(rows, 0, n_rows, shared, out)


@numba.njit
def plain_sparse(rows: Any, n_rows: int, shared: Any, out: Any, times: int) -> None:
    """The same product in plain loops; the compiler vectorises the innermost one."""
    for _ in range(times):
        for i in range(n_rows):
            total = out[i]
            total[:] = 0
            for entry in range(rows.offsets[i], rows.offsets[i + 1]):
                value, vector = rows.values[entry], shared[rows.columns[entry]]
                for j in range(total.shape[0]):
                    total[j] += value * vector[j]


def forward(shape: tuple[int, ...], smoke: bool) -> dict[str, Any]:
    d, m, _, _, z = shape
    weights = new_learner(shape, 0).weights
    rows, out = aligned_zeros((z, d)), aligned_zeros((z, padded_width(m)))
    rows[:] = np.random.default_rng(0).normal(size=rows.shape)
    flops = 2 * z * d * m
    times = max(1, int((1e5 if smoke else 1e8) / flops))

    def sample() -> float:
        seconds = cpu_seconds(lambda: repeat_project(rows, weights.shared, out, times))
        return times * flops / max(seconds, 1e-9)

    ratio, product = of_gemm(sample, 2 if smoke else 60)
    return {"case": case_of("forward", shape), "of_gemm": ratio, "gemm_gflops": product}


def steps(shape: tuple[int, ...], smoke: bool) -> dict[str, Any]:
    d, _, _, _, z = shape
    trainee = Trainee(shape, dense_corpus(shape, 64 if smoke else max(256, int(2e7 / (z * d)))))
    per_sample = CALL if smoke else max(CALL, int(2e9 / (z * d * shape[1] * 20)) // CALL * CALL)
    # Train for about ten passes over the corpus, or for a few seconds.
    trainee.go(CALL if smoke else min(30_000, int(1e11 / (z * d * shape[1] * 5))))
    totals = np.zeros(4, np.int64)
    rates = []

    def sample() -> float:
        counts = np.zeros(4, np.int64)
        seconds = cpu_seconds(lambda: counts.__iadd__(trainee.go(per_sample)))
        totals[:] += counts
        rates.append(per_sample / max(seconds, 1e-9))
        return trainee.flops(counts) / max(seconds, 1e-9)

    ratio, product = of_gemm(sample, 2 if smoke else 40)
    n_steps, n_updates, n_tries, n_scored = (int(count) for count in totals)
    return {
        "case": case_of("step", shape),
        "of_gemm": ratio,
        "gemm_gflops": product,
        "steps_per_second": round(max(rates)),
        "trained_steps": trainee.steps,
        "violations": round(n_updates / n_steps, 3),
        "v": round(n_tries / n_steps, 1),
        "scored": round(n_scored / n_steps, 1),
    }


def in_turns(first: Callable[[], float], second: Callable[[], float], rounds: int) -> float:
    """Seconds of ``first`` over seconds of ``second``, the median of interleaved pairs."""
    first(), second()
    return statistics.median(first() / max(second(), 1e-9) for _ in range(rounds))


def averaging(shape: tuple[int, ...], smoke: bool, corpus: Callable[..., Any]) -> dict[str, Any]:
    d, z = shape[0], shape[4]
    n_bags = 1000 if corpus is sparse_corpus else max(256, int(5e6 / (z * d)))
    block = corpus(shape, 64 if smoke else n_bags)
    n = CALL if smoke else max(4, min(32, int(4e8 / (z * d * shape[1] * CALL)))) * CALL
    averaged, last = (Trainee(shape, block, stride) for stride in (STRIDE, 0))
    for trainee in (averaged, last):
        trainee.go(CALL if smoke else min(20_000, max(3000, int(2e10 / (z * d * shape[1])))))
    ratio = in_turns(
        lambda: cpu_seconds(lambda: averaged.go(n)), lambda: cpu_seconds(lambda: last.go(n)),
        1 if smoke else 15,
    )  # fmt: skip
    return {
        "case": case_of(f"averaging, {corpus.__name__.split('_')[0]}", shape),
        "seconds_over_last_iterate": round(ratio, 3),
    }


def sparse(shape: tuple[int, ...], smoke: bool) -> Iterator[dict[str, Any]]:
    m = shape[1]
    trainee = Trainee(shape, sparse_corpus(shape, 32 if smoke else 400))
    block, shared = trainee.block, trainee.learner.weights.shared
    rows = score.LiftedCsr(block.row_offsets, block.columns, block.values)
    n_rows = len(block.row_offsets) - 1
    out = aligned_zeros((n_rows, padded_width(m)))
    best = min(
        cpu_seconds(lambda: repeat_sparse(rows, n_rows, shared, out, 1))
        for _ in range(2 if smoke else 15)
    )
    ratio = in_turns(
        lambda: cpu_seconds(lambda: plain_sparse(rows, n_rows, shared, out, 1)),
        lambda: cpu_seconds(lambda: repeat_sparse(rows, n_rows, shared, out, 1)),
        1 if smoke else 15,
    )
    moved = n_rows * NON_ZEROS * padded_width(m) * 4
    yield {
        "case": case_of("sparse forward", shape),
        "non_zeros": NON_ZEROS,
        "over_plain_loop": round(ratio, 2),
        "gb_per_second": round(moved / max(best, 1e-9) / 1e9, 1),
    }
    trainee.go(CALL if smoke else 3000)
    counts = np.zeros(4, np.int64)
    n = CALL if smoke else 2000
    seconds = cpu_seconds(lambda: counts.__iadd__(trainee.go(n)))
    yield {
        "case": case_of("sparse step", shape),
        "non_zeros": NON_ZEROS,
        "steps_per_second": round(n / max(seconds, 1e-9)),
        "violations": round(int(counts[1]) / n, 3),
        "v": round(int(counts[2]) / n, 1),
        "scored": round(int(counts[3]) / n, 1),
    }


def scoring(shape: tuple[int, ...], smoke: bool) -> dict[str, Any]:
    d, m, n_sub, n_labels, z = shape
    block = dense_corpus(shape, 32 if smoke else max(16, int(2e6 / (z * d))))
    learner = new_learner(shape, 0)
    n_rows = len(block.rows)
    flops = 2 * n_rows * m * (d + n_sub * (n_labels + 1))

    def sample() -> float:
        seconds = cpu_seconds(lambda: score.score_block(block, learner.lift, learner.weights))
        return flops / max(seconds, 1e-9)

    ratio, product = of_gemm(sample, 2 if smoke else 40)
    return {"case": case_of("score", shape), "of_gemm": ratio, "gemm_gflops": product}


def hogwild(shape: tuple[int, ...], smoke: bool) -> dict[str, Any]:
    """Speedup by a second thread that updates the same weights.

    Measured in wall time, which other processes on a busy machine lengthen, and in CPU time of the
    slower thread, which excludes waiting for a core.
    """
    trainee = Trainee(shape, dense_corpus(shape, 64 if smoke else 4000))
    trainee.go(CALL if smoke else 20_000)
    learner, block = trainee.learner, trainee.block
    rooms = [sweep.make_sweep_room(learner.weights, learner.lift, shape[4]) for _ in range(2)]
    n_calls = 2 if smoke else 64
    cpu_times = [0.0, 0.0]

    def work(thread: int, n_threads: int) -> None:
        tally = sweep.make_tally()
        start = time.thread_time()
        for call in range(thread, n_calls, n_threads):
            visit = trainee.order[call * CALL : (call + 1) * CALL]
            step = trainee.steps + call * CALL
            assert sweep.sweep(block, visit, step, learner, rooms[thread], tally) < 0
        cpu_times[thread] = time.thread_time() - start

    def seconds(n_threads: int) -> tuple[float, float]:
        threads = [threading.Thread(target=work, args=(i, n_threads)) for i in range(n_threads)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        trainee.steps += n_calls * CALL
        return time.perf_counter() - start, max(cpu_times[:n_threads])

    pairs = [(seconds(1), seconds(2)) for _ in range(2 if smoke else 41)]
    wall, cpu = ([one[i] / two[i] for one, two in pairs] for i in range(2))
    return {
        "case": case_of("hogwild", shape),
        "two_over_one": round(statistics.median(wall), 2),
        "best_of_each": round(min(one[0] for one, _ in pairs) / min(two[0] for _, two in pairs), 2),
        "by_cpu_time": round(statistics.median(cpu), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def peers(shape: tuple[int, ...], smoke: bool) -> Iterator[dict[str, Any]]:
    """Steps per second (LightFM: samples per second) of ours and of each peer on the same bags."""
    python = os.environ.get("STREAMMIML_PEERS_PYTHON", sys.executable)
    script = Path(__file__).with_name("kernel_peers.py")
    trainee = Trainee(shape, dense_corpus(shape, 64 if smoke else 2000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bags.npz"
        block = trainee.block
        np.savez(
            path, rows=block.rows, bag_offsets=block.bag_offsets, labels=block.labels,
            label_offsets=block.label_offsets,
        )  # fmt: skip
        for peer in ("torch", "torch-at-once", "lightfm"):
            trainee = Trainee(shape, block)
            trainee.go(CALL)
            command = [python, str(script), peer, str(path), *map(str, shape), str(int(smoke))]
            process = subprocess.run(command, capture_output=True, text=True)
            case = {"case": case_of(peer, shape)}
            if process.returncode:
                lines = process.stderr.strip().splitlines() or ["no message"]
                yield {**case, "skipped": lines[-1]}
                continue
            theirs = json.loads(process.stdout.splitlines()[-1])
            # Take as many steps as the peer did, so that both models are equally trained.
            ours = theirs["n"] / max(cpu_seconds(partial(trainee.go, theirs["n"])), 1e-9)
            yield {
                **case,
                "version": theirs["version"],
                "ours_per_second": round(ours),
                "theirs_per_second": round(theirs["per_second"]),
                "over_peer": round(ours / theirs["per_second"], 1),
            }


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    shapes = [(16, 8, 2, 5, 3)] if smoke else SHAPES
    assert lift_width(plain_lift(3)) == 4
    for shape in shapes:
        yield forward(shape, smoke)
    for shape in shapes:
        yield steps(shape, smoke)
    for shape in shapes:
        yield scoring(shape, smoke)
    for shape in shapes:
        yield averaging(shape, smoke, dense_corpus)
    large = (400, 8, 2, 5, 3) if smoke else SPARSE
    yield averaging(large, smoke, sparse_corpus)
    yield from sparse(large, smoke)
    yield hogwild(shapes[0], smoke)
    yield from peers(shapes[0], smoke)
