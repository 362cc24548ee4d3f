"""Training from disk: its speed against training in memory, start, memory, and scale.

*training from disk against memory*: steps per second of ``train`` on a store divided by those on
the same bags in memory, for the same steps, in interleaved pairs. *cold*: the store is dropped from
the page cache before each turn. *past the cache*: reads bypass the page cache, as for a store
larger than memory. *start*: seconds from the call of ``train`` to its first steps, in a new process
with compiled kernels. *memory*: peak memory above that of a process that has loaded its kernels.
*looks at held-out bags*: share of the time that validation takes. *scale*: steps per second on
corpora of different numbers of bags, all from the same trained model.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.loader_peers import drop_from_cache
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_one
from streammiml.config import TrainConfig, parse_size
from streammiml.learn.progress import TrainProgress
from streammiml.learn.train import train
from streammiml.model import Model
from streammiml_tools.corpora.synth import write_corpus

PAPER = {"n_features": 200, "n_labels": 100, "rows_per_bag": (5, 13), "subconcepts": 3}
BAG_BYTES = 9 * 200 * 4
SETTINGS = {
    "shared_dim": 100,
    "subconcepts": 5,
    "scale": "unit",
    "validation": 0.0,
    "epochs": 10**6,
}
STARTS = 3
PAIRS = 9


class Last:
    """A callback that keeps the last progress report."""

    def __call__(self, progress: TrainProgress) -> None:
        self.progress = progress


def timed(bags: object, n_steps: int, **settings: object) -> tuple[float, dict[str, float]]:
    """Steps per second, and the seconds that reading, validation and all work took."""
    last = Last()
    begin = time.perf_counter()
    train(bags, TrainConfig(**SETTINGS, max_steps=n_steps, **settings), watch=last)  # type: ignore[arg-type]
    return n_steps / (time.perf_counter() - begin), last.progress.total


def from_disk(path: Path, n_steps: int, cache: str) -> tuple[float, dict[str, float]]:
    """Steps per second from a store; ``cache`` is "warm", "cold" or "cold, past the cache"."""
    if cache != "warm":
        drop_from_cache(path)
    os.environ["STREAMMIML_DIRECT"] = "always" if "past" in cache else "1"
    try:
        return timed(open_one(path), n_steps)
    finally:
        os.environ["STREAMMIML_DIRECT"] = "1"


def pair_case(folder: Path, case: dict, n_bags: int, n_steps: int, pairs: int) -> Iterator[dict]:
    """One store read from a warm cache, from a cold one, and past the page cache."""
    path = folder / f"corpus-{case['codec']}.{case['format']}"
    write_corpus(path, codec=case["codec"], n_bags=n_bags, dtype=case["dtype"], **PAPER)
    store = open_one(path)
    in_memory = MemoryBags(store.read(0, store.n_bags), n_labels=store.n_labels)
    timed(in_memory, n_steps)
    for cache in ("warm", "cold", "cold, past the cache"):
        ratios, rates, waits = [], [], []
        for turn in range(pairs):
            # The order alternates, so that drift in the machine's speed favours neither side.
            first = timed(in_memory, n_steps) if turn % 2 == 0 else None
            disk_rate, spent = from_disk(path, n_steps, cache)
            memory_rate, _ = first or timed(in_memory, n_steps)
            ratios.append(disk_rate / memory_rate)
            rates.append(disk_rate)
            waits.append(spent["reading"] / spent["all"])
        yield {
            "what": "training from disk against memory",
            "case": {**case, "cache": cache, "bags": n_bags},
            "disk_over_memory": round(statistics.median(ratios), 3),
            "lowest": round(min(ratios), 3),
            "steps_per_s": round(statistics.median(rates)),
            "waited": round(statistics.median(waits), 3),
            "pairs": pairs,
        }


CHILD = [sys.executable, "-m", "benchmarks.bench_train"]


def child(*words: object) -> dict:
    """Run this module with ``words`` in a new process; returns its JSON output."""
    process = subprocess.run([*CHILD, *map(str, words)], capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"{words}: {process.stderr[-2000:]}")
    return json.loads(process.stdout)


def start_case(path: Path) -> dict:
    """Seconds to the first steps in a new process with a cold cache, the median of several."""
    child("start", path)
    to_first_steps, of_process = [], []
    for _ in range(STARTS):
        drop_from_cache(path)
        begin = time.perf_counter()
        to_first_steps.append(child("start", path)["seconds"])
        of_process.append(time.perf_counter() - begin)
    n_bytes = sum(size for _, size, _ in open_one(path).manifest.files)
    return {
        "what": "start, cold",
        "case": {"gb": round(n_bytes / 1e9, 2), "bags": open_one(path).n_bags},
        "seconds_to_first_steps": round(statistics.median(to_first_steps), 3),
        "longest": round(max(to_first_steps), 3),
        "with_interpreter": round(statistics.median(of_process), 3),
    }


def first_steps(path: Path) -> dict:
    """Seconds from the call of ``train`` to its first steps."""

    class Enough(Exception):
        pass

    def stop(progress: TrainProgress) -> None:
        if progress.step:
            raise Enough

    begin = time.perf_counter()
    with suppress(Enough):
        train(str(path), TrainConfig(shared_dim=100, preset="plain"), watch=stop)
    return {"seconds": time.perf_counter() - begin}


def peak_mib() -> int:
    """Peak memory of this process since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def memory_of(small: Path, path: Path, memory: str, n_steps: int) -> dict:
    """Growth of peak memory over that of a process that has loaded all its kernels."""
    config = {**SETTINGS, "validation": 0.01, "scale": "auto"}
    train(str(small), TrainConfig(**config, max_steps=200, memory=memory))
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mib()
    train(str(path), TrainConfig(**config, max_steps=n_steps, memory=memory))
    return {"grown_mib": peak_mib() - before}


def memory_cases(folder: Path, sizes: list[int], n_steps: int) -> Iterator[dict]:
    small = folder / "small.zarr"
    write_corpus(small, n_bags=2000, **PAPER)
    for size in sizes:
        path = folder / f"corpus-{size}.zarr"
        store = write_corpus(path, codec="none", n_bags=size // BAG_BYTES, **PAPER)
        # Continue past the end of an epoch, where the window is filled again.
        steps = max(n_steps, store.n_bags * 11 // 10)
        for memory in ("256MiB",):
            growth = child("memory", small, path, memory, steps)
            yield {
                "what": "memory",
                "case": {"gb": round(size / 1e9, 2), "memory": memory, "bags": store.n_bags},
                **growth,
                "allowed_mib": parse_size(memory, option="memory") >> 20,
            }
        yield start_case(path)
        yield from group_case(path, steps)


def group_case(path: Path, n_steps: int) -> Iterator[dict]:
    """Training in a control group (cgroup v1) of 1 GiB that counts the page cache; needs root."""
    groups = Path("/sys/fs/cgroup/memory")
    limit = 1 << 30
    if not (groups / "memory.limit_in_bytes").exists() or os.geteuid():
        return
    group = groups / f"streammiml-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        words = [*CHILD, "steps", str(path), str(n_steps)]
        enter = f"echo $$ > {group}/cgroup.procs && exec " + " ".join(words)
        process = subprocess.run(["sh", "-c", enter], capture_output=True, text=True)
        yield {
            "what": "memory of a control group",
            "case": {"limit_mib": limit >> 20, "gb": round(tree_bytes(path) / 1e9, 2)},
            "finished": process.returncode == 0,
            **(json.loads(process.stdout) if process.returncode == 0 else {}),
            "peak_mib": int((group / "memory.max_usage_in_bytes").read_text()) >> 20,
        }
    finally:
        group.rmdir()


def tree_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def looks_case(folder: Path, n_bags: int, n_steps: int) -> dict:
    """Share of the time that validation on held-out bags takes, with default settings."""
    path = folder / "looks.zarr"
    write_corpus(path, n_bags=n_bags, **PAPER)
    train(str(path), TrainConfig(max_steps=200))
    last = Last()
    train(str(path), TrainConfig(max_steps=n_steps, epochs=10**6), watch=last)
    spent = last.progress.total
    return {
        "what": "looks at held-out bags",
        "case": {"bags": n_bags, "steps": last.progress.step},
        "share_of_time": round(spent["validation"] / spent["all"], 3),
    }


TINY = {"n_features": 8, "n_labels": 20, "rows_per_bag": (1, 3), "labels_per_bag": (1, 1)}


def scale_cases(folder: Path, counts: list[int], n_steps: int) -> Iterator[dict]:
    """Steps per second by number of bags; rows are small, so that ten million bags fit on disk."""
    stores = {}
    for count in counts:
        stores[count] = folder / f"tiny-{count}.zarr"
        write_corpus(stores[count], n_bags=count, dtype="uint8", **TINY)
    model = folder / "model.safetensors"
    settings = {**SETTINGS, "shared_dim": 16, "scale": "standard"}
    train(str(stores[counts[0]]), TrainConfig(**settings, max_steps=n_steps)).save(model)
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(PAIRS):
        for count in counts:
            rates[count].append(child("scale", stores[count], model, n_steps)["steps_per_s"])
    for count in counts:
        ratio = [a / b for a, b in zip(rates[count], rates[counts[0]], strict=True)]
        yield {
            "what": "scale",
            "case": {"bags": count},
            "steps_per_s": round(statistics.median(rates[count])),
            "of_fewest_bags": round(statistics.median(ratio), 3),
            "pairs": PAIRS,
        }
        yield start_case(stores[count])


def scaled(path: Path, model: Path, n_steps: int) -> dict:
    """Steps per second in the second half of a run, when the buffer is full."""
    marks: list[tuple[int, float]] = []

    def record(progress: TrainProgress) -> None:
        marks.append((progress.step, time.perf_counter()))

    config = TrainConfig(validation=0.0, epochs=10**6, max_steps=n_steps)
    train(str(path), config, start=Model.load(model), watch=record)
    first_step, begin = next(mark for mark in marks if mark[0] >= n_steps // 2)
    last_step, end = marks[-1]
    return {"steps_per_s": (last_step - first_step) / (end - begin)}


def run_steps(path: Path, n_steps: int) -> dict:
    """Speed of a training with ``memory="256MiB"``."""
    rate, spent = timed(open_one(path), n_steps, memory="256MiB")
    return {"steps_per_s": round(rate), "waited": round(spent["reading"] / spent["all"], 3)}


def cases(smoke: bool) -> Iterator[dict]:
    kinds = [
        {"format": "zarr", "codec": "none", "dtype": "float32"},
        {"format": "zarr", "codec": "lz4", "dtype": "float32"},
        {"format": "zarr", "codec": "lz4", "dtype": "uint8"},
        {"format": "parquet", "codec": "none", "dtype": "float32"},
    ]
    for kind in kinds[: 1 if smoke else None]:
        with tempfile.TemporaryDirectory() as folder:
            counts = (2000, 500, 1) if smoke else (200_000, 200_000, PAIRS)
            yield from pair_case(Path(folder), kind, *counts)
    with tempfile.TemporaryDirectory() as folder:
        sizes = [10**7] if smoke else [10**9, 10**10]
        yield from memory_cases(Path(folder), sizes, 500 if smoke else 200_000)
    with tempfile.TemporaryDirectory() as folder:
        yield looks_case(Path(folder), *((6000, 2000) if smoke else (100_000, 300_000)))
    with tempfile.TemporaryDirectory() as folder:
        n_bags = [1000, 2000] if smoke else [10**4, 10**5, 10**6, 10**7]
        yield from scale_cases(Path(folder), n_bags, 20_000 if smoke else 400_000)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "start":
        result = first_steps(Path(words[0]))
    elif what == "memory":
        result = memory_of(Path(words[0]), Path(words[1]), words[2], int(words[3]))
    elif what == "steps":
        result = run_steps(Path(words[0]), int(words[1]))
    else:
        result = scaled(Path(words[0]), Path(words[1]), int(words[2]))
    print(json.dumps(result))
