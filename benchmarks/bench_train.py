"""Training from disk: against the same bags in memory, at start, in little memory, at any scale.

*disk / memory*: steps a second of ``train`` on a store over those on the same bags in memory, the
same steps in both, in interleaved pairs; cold: the store's pages are dropped before each turn, and
*past the cache* reads as of a store that outgrows the memory. *start*: seconds from the call of
``train`` to its first steps, in a new process with kernels compiled before. *memory*: growth of the
peak over a process that has compiled its kernels. *looks*: the share of the time in which held-out
bags are ranked. *scale*: steps a second from one trained model on
corpora of any number of bags.
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

from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_one
from streammiml.config import TrainConfig, parse_size
from streammiml.learn.trainer import Progress, train
from streammiml.model import Model
from streammiml_tools.synth import write_corpus

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
    """Keeps what a run said of itself last."""

    def __call__(self, progress: Progress) -> None:
        self.progress = progress


def timed(bags: object, n_steps: int, **more: object) -> tuple[float, dict[str, float]]:
    """Steps a second, and where the time went."""
    last = Last()
    begin = time.perf_counter()
    train(bags, TrainConfig(**SETTINGS, max_steps=n_steps, **more), watch=last)  # type: ignore[arg-type]
    return n_steps / (time.perf_counter() - begin), last.progress.total


def drop_cache(path: Path) -> None:
    for file in path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def from_disk(path: Path, n_steps: int, how: str) -> tuple[float, dict[str, float]]:
    """The same from a store; ``how`` says what of it is in the page cache."""
    if how != "warm":
        drop_cache(path)
    os.environ["STREAMMIML_DIRECT"] = "always" if "past" in how else "1"
    try:
        return timed(open_one(path), n_steps)
    finally:
        os.environ["STREAMMIML_DIRECT"] = "1"


def pair_case(folder: Path, case: dict, n_bags: int, n_steps: int, pairs: int) -> Iterator[dict]:
    """Warm, cold, and cold past the page cache, on one store."""
    path = folder / f"corpus-{case['codec']}.{case['format']}"
    write_corpus(path, codec=case["codec"], n_bags=n_bags, dtype=case["dtype"], **PAPER)
    store = open_one(path)
    held = MemoryBags(store.read(0, store.n_bags), n_labels=store.n_labels)
    timed(held, n_steps)
    for how in ("warm", "cold", "cold, past the cache"):
        ratios, rates, waits = [], [], []
        for turn in range(pairs):
            # Who goes first changes, so that a machine that becomes slower or faster favours none.
            first = timed(held, n_steps) if turn % 2 == 0 else None
            outside, spent = from_disk(path, n_steps, how)
            inside, _ = first or timed(held, n_steps)
            ratios.append(outside / inside)
            rates.append(outside)
            waits.append(spent["reading"] / spent["all"])
        yield {
            "what": "training from disk against memory",
            "case": {**case, "cache": how, "bags": n_bags},
            "disk_over_memory": round(statistics.median(ratios), 3),
            "lowest": round(min(ratios), 3),
            "steps_per_s": round(statistics.median(rates)),
            "waited": round(statistics.median(waits), 3),
            "pairs": pairs,
        }


CHILD = [sys.executable, "-m", "benchmarks.bench_train"]


def child(*words: object) -> dict:
    done = subprocess.run([*CHILD, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def start_case(path: Path) -> dict:
    """Seconds to the first steps, in a new process; the median of some cold ones."""
    child("start", path)
    found, whole = [], []
    for _ in range(STARTS):
        drop_cache(path)
        begin = time.perf_counter()
        found.append(child("start", path)["seconds"])
        whole.append(time.perf_counter() - begin)
    n_bytes = sum(size for _, size, _ in open_one(path).manifest.files)
    return {
        "what": "start, cold",
        "case": {"gb": round(n_bytes / 1e9, 2), "bags": open_one(path).n_bags},
        "seconds_to_first_steps": round(statistics.median(found), 3),
        "longest": round(max(found), 3),
        "with_interpreter": round(statistics.median(whole), 3),
    }


def first_steps(path: Path) -> dict:
    class Enough(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.step:
            raise Enough

    begin = time.perf_counter()
    with suppress(Enough):
        train(str(path), TrainConfig(shared_dim=100), watch=stop)
    return {"seconds": time.perf_counter() - begin}


def peak_mib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def memory_of(small: Path, path: Path, memory: str, n_steps: int) -> dict:
    """Growth over a process that has compiled, or loaded, all its kernels."""
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
        # Beyond the end of an epoch, where the window begins anew.
        steps = max(n_steps, store.n_bags * 11 // 10)
        for memory in ("256MiB",):
            found = child("memory", small, path, memory, steps)
            yield {
                "what": "memory",
                "case": {"gb": round(size / 1e9, 2), "memory": memory, "bags": store.n_bags},
                **found,
                "allowed_mib": parse_size(memory, option="memory") >> 20,
            }
        yield start_case(path)
        yield from group_case(path, steps)


def group_case(path: Path, n_steps: int) -> Iterator[dict]:
    """Training in a control group of little memory, the page cache included, where root may."""
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
        done = subprocess.run(["sh", "-c", enter], capture_output=True, text=True)
        yield {
            "what": "memory of a control group",
            "case": {"limit_mib": limit >> 20, "gb": round(tree_bytes(path) / 1e9, 2)},
            "finished": done.returncode == 0,
            **(json.loads(done.stdout) if done.returncode == 0 else {}),
            "peak_mib": int((group / "memory.max_usage_in_bytes").read_text()) >> 20,
        }
    finally:
        group.rmdir()


def tree_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def looks_case(folder: Path, n_bags: int, n_steps: int) -> dict:
    """The share of the time that held-out bags take, with default settings."""
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
    """Small rows, so that ten million bags fit the disk."""
    made = {}
    for count in counts:
        made[count] = folder / f"tiny-{count}.zarr"
        write_corpus(made[count], n_bags=count, dtype="uint8", **TINY)
    model = folder / "model.safetensors"
    settings = {**SETTINGS, "shared_dim": 16, "scale": "standard"}
    train(str(made[counts[0]]), TrainConfig(**settings, max_steps=n_steps)).save(model)
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(PAIRS):
        for count in counts:
            rates[count].append(child("scale", made[count], model, n_steps)["steps_per_s"])
    for count in counts:
        ratio = [a / b for a, b in zip(rates[count], rates[counts[0]], strict=True)]
        yield {
            "what": "scale",
            "case": {"bags": count},
            "steps_per_s": round(statistics.median(rates[count])),
            "of_fewest_bags": round(statistics.median(ratio), 3),
            "pairs": PAIRS,
        }
        yield start_case(made[count])


def scaled(path: Path, model: Path, n_steps: int) -> dict:
    """Steps a second once the buffer is full: those of the second half of a run."""
    marks: list[tuple[int, float]] = []

    def mark(progress: Progress) -> None:
        marks.append((progress.step, time.perf_counter()))

    config = TrainConfig(validation=0.0, epochs=10**6, max_steps=n_steps)
    train(str(path), config, start=Model.load(model), watch=mark)
    begin = next(each for each in marks if each[0] >= n_steps // 2)
    return {"steps_per_s": (marks[-1][0] - begin[0]) / (marks[-1][1] - begin[1])}


def run_steps(path: Path, n_steps: int) -> dict:
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
            sizes = (2000, 500, 1) if smoke else (200_000, 200_000, PAIRS)
            yield from pair_case(Path(folder), kind, *sizes)
    with tempfile.TemporaryDirectory() as folder:
        wanted = [10**7] if smoke else [10**9, 10**10]
        yield from memory_cases(Path(folder), wanted, 500 if smoke else 200_000)
    with tempfile.TemporaryDirectory() as folder:
        yield looks_case(Path(folder), *((6000, 2000) if smoke else (100_000, 300_000)))
    with tempfile.TemporaryDirectory() as folder:
        wanted = [1000, 2000] if smoke else [10**4, 10**5, 10**6, 10**7]
        yield from scale_cases(Path(folder), wanted, 20_000 if smoke else 400_000)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "start":
        found = first_steps(Path(words[0]))
    elif what == "memory":
        found = memory_of(Path(words[0]), Path(words[1]), words[2], int(words[3]))
    elif what == "steps":
        found = run_steps(Path(words[0]), int(words[1]))
    else:
        found = scaled(Path(words[0]), Path(words[1]), int(words[2]))
    print(json.dumps(found))
