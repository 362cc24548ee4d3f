"""Reading random blocks from a store, with all checksums verified, against plain ``pread``.

All ratios are the time of ``os.preadv`` on one thread divided by our time, both from a warm page
cache, in turns; the median of the ratios of these pairs is reported.

*of_pread*: a flat file as long as all rows together, from which as many bytes as our rows have are
read at the same relative positions into newly allocated memory, as our reader does.
*of_pread_recycled*: the same into one reused buffer. *of_pread_same_bytes*, only where rows are
stored uncompressed: the same byte ranges of the store's own files.

Store and flat file are both dropped from the page cache and read once from end to end. Without
that, the page cache holds a new file in pieces as large as its writes were, and larger pieces are
copied faster.
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
from pathlib import Path

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter

N_FEATURES, ROWS_PER_BAG = 200, 9
PAIRS = 11


def random_block(n_bags: int, *, sparse: bool, dtype: str, seed: int) -> BagBlock:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(ROWS_PER_BAG - 4, ROWS_PER_BAG + 5, n_bags)
    offsets = from_sizes(sizes)
    n_rows = int(offsets[-1])
    rows: np.ndarray | SparseRows
    if sparse:
        per_row = 100
        base = rng.integers(0, 50_000 - per_row * 400, (n_rows, 1))
        columns = base + np.cumsum(rng.integers(1, 400, (n_rows, per_row)), axis=1)
        values = rng.standard_normal(n_rows * per_row, dtype=np.float32)
        flat = columns.astype(np.uint32).reshape(-1)
        rows = SparseRows(np.arange(n_rows + 1) * per_row, flat, values, 50_000)
    elif dtype == "uint8":
        # Like a picture: values between two empty margins.
        ink = np.abs(np.arange(N_FEATURES) - rng.integers(60, 140, (n_rows, 1))) < 40
        rows = (rng.integers(0, 256, (n_rows, N_FEATURES)) * ink).astype(np.uint8)
    else:
        # As in many real corpora, half of the values are zero and the others have three digits.
        # Random floats cannot be compressed, so that reading them would be a mere copy.
        rows = rng.standard_normal((n_rows, N_FEATURES), dtype=np.float32).round(2)
        rows[rng.random(rows.shape) < 0.5] = 0
    labels = rng.integers(0, 100, n_bags).astype(np.int32)
    return BagBlock(offsets, rows, np.arange(n_bags + 1), labels)


def build(path: Path, n_bags: int, *, codec: str, sparse: bool, dtype: str) -> None:
    block = random_block(4000, sparse=sparse, dtype=dtype, seed=0)
    features = 50_000 if sparse else N_FEATURES
    spec = StoreSpec(n_features=features, dtype=dtype, sparse=sparse, n_labels=100, codec=codec)
    parts = max(1, n_bags // 4000)
    with BagWriter.begin(path, spec) as writer:
        for part in range(parts):
            writer.write_part(part, block)
        writer.finish(parts)


def row_bytes(block: BagBlock) -> int:
    rows = block.rows
    if isinstance(rows, SparseRows):
        return rows.values.nbytes + rows.columns.nbytes
    return rows.nbytes


def read_case(folder: Path, case: dict, n_bags: int, block_bytes: int) -> dict:
    path = folder / f"corpus.{case['format']}"
    build(path, n_bags, codec=case["codec"], sparse=case["sparse"], dtype=case["dtype"])
    command = [sys.executable, "-m", "benchmarks.bench_stream", str(path), str(block_bytes)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"what": "random blocks, warm, verified", "case": case, **json.loads(process.stdout)}


def raw_ranges(store: BagStore, start: int, stop: int) -> list[tuple[Path, int, int]]:
    """(file, offset, bytes) of these bags' rows; empty unless rows are stored uncompressed."""
    if store.sparse or store.manifest.arrays["rows"].coding != "raw":
        return []
    first_row = int(store.bag_sizes(0, start).sum())
    n_rows = int(store.bag_sizes(start, stop).sum())
    chunks = store._arrays["rows"].table.find(first_row, first_row + n_rows)
    files = [Path(store.name) / key for key, *_ in store.manifest.files]
    return [
        (files[int(run.records["file"][0])], int(run.offsets[0]), run.n_bytes)
        for run in chunks.runs()
    ]


def status_mib(name: str) -> float:
    """A memory field of this process in MiB; ``ru_maxrss`` would include the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def warm(path: Path) -> None:
    """Drop a file from the page cache, then read it into the cache from end to end."""
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 20):
            pass


def measure(path: Path, block_bytes: int) -> dict:
    """Ratios for one store; run in a new process, so that its peak memory is that of reading."""
    before = status_mib("VmRSS")
    store = open_one(path)
    bag_bytes = row_bytes(store.read(0, min(64, store.n_bags))) / min(64, store.n_bags)
    block_bags = max(1, min(round(block_bytes / bag_bytes), store.n_bags // 2))
    starts = np.random.default_rng(1).integers(0, store.n_bags - block_bags, 100).tolist()
    sizes = [row_bytes(store.read(start, start + block_bags)) for start in starts]
    grown = status_mib("VmHWM") - before
    flat, total = path.parent / "flat.bin", sum(sizes) // len(sizes) * store.n_bags // block_bags
    with flat.open("wb") as file:
        piece = os.urandom(1 << 20)
        for _ in range(total // len(piece) + 1):
            file.write(piece)
    for file_path in (flat, *(file for file in path.rglob("*") if file.is_file())):
        warm(file_path)
    positions = [
        int(start / store.n_bags * max(0, total - size))
        for start, size in zip(starts, sizes, strict=True)
    ]
    flat_fd, buffer = os.open(flat, os.O_RDONLY), np.empty(max(sizes), np.uint8)

    def fresh() -> float:
        begin = time.perf_counter()
        for position, size in zip(positions, sizes, strict=True):
            os.preadv(flat_fd, [np.empty(size, np.uint8)], position)
        return time.perf_counter() - begin

    def recycled() -> float:
        begin = time.perf_counter()
        for position, size in zip(positions, sizes, strict=True):
            os.preadv(flat_fd, [buffer[:size]], position)
        return time.perf_counter() - begin

    ranges = [raw_ranges(store, start, start + block_bags) for start in starts]
    files = {file for ranges_of_block in ranges for file, _, _ in ranges_of_block}
    fds = {file: os.open(file, os.O_RDONLY) for file in files}

    def same() -> float:
        begin = time.perf_counter()
        for ranges_of_block in ranges:
            for file, offset, size in ranges_of_block:
                os.preadv(fds[file], [np.empty(size, np.uint8)], offset)
        return time.perf_counter() - begin

    def ours() -> float:
        begin = time.perf_counter()
        for start in starts:
            store.read(start, start + block_bags)
        return time.perf_counter() - begin

    fresh(), same(), ours()
    turns = [(fresh(), recycled(), same(), ours()) for _ in range(PAIRS)]
    for fd in (flat_fd, *fds.values()):
        os.close(fd)
    same_bytes = {}
    if fds:
        ratio = statistics.median(same / mine for _, _, same, mine in turns)
        same_bytes = {"of_pread_same_bytes": round(ratio, 3)}
    stored = sum(size for key, size, _ in store.manifest.files if "_offsets" not in key)
    return {
        "block_bags": block_bags,
        "block_bytes": sum(sizes) // len(sizes),
        "stored_share": round(stored / total, 2),
        "MB_per_s": round(sum(sizes) / statistics.median(mine for *_, mine in turns) / 1e6),
        "of_pread": round(statistics.median(a / mine for a, *_, mine in turns), 3),
        "of_pread_recycled": round(statistics.median(b / mine for _, b, _, mine in turns), 3),
        **same_bytes,
        "pairs": PAIRS,
        "grown_mib": round(grown, 1),
    }


OPEN = """
import re, sys, time
from streammiml.bags.store import open_one

def mib(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

open_one(sys.argv[1])
before = mib("VmRSS")
begin = time.perf_counter()
store = open_one(sys.argv[1])
opened = time.perf_counter() - begin
store.read(store.n_bags // 2, store.n_bags // 2 + 4)
first = time.perf_counter() - begin
print(opened, first, mib("VmHWM") - before)
"""


def open_case(folder: Path, suffix: str, n_bags: int) -> dict:
    """Time and memory to open a store of many tiny bags in a new process."""
    path = folder / f"tiny.{suffix}"
    rows = np.ones((min(n_bags, 500_000), 2), np.uint8)
    block = BagBlock(
        np.arange(len(rows) + 1), rows, np.arange(len(rows) + 1), np.zeros(len(rows), np.int32)
    )
    with BagWriter.begin(path, StoreSpec(n_features=2, dtype="uint8", n_labels=1)) as writer:
        for part in range(n_bags // len(rows)):
            writer.write_part(part, block)
        writer.finish(n_bags // len(rows))
    process = subprocess.run(
        [sys.executable, "-c", OPEN, path], capture_output=True, text=True, check=True
    )
    opened, first, grown = map(float, process.stdout.split())
    return {
        "what": "open",
        "case": {"format": suffix, "bags": n_bags},
        "seconds": round(opened, 4),
        "seconds_to_first_bags": round(first, 4),
        "grown_mib": round(grown, 1),
    }


def cases(smoke: bool) -> Iterator[dict]:
    dense = {"sparse": False, "dtype": "float32"}
    kinds = [
        {"format": "zarr", "codec": "none", **dense},
        {"format": "zarr", "codec": "lz4", **dense},
        {"format": "zarr", "codec": "lz4", "sparse": False, "dtype": "uint8"},
        {"format": "zarr", "codec": "lz4", "sparse": True, "dtype": "float32"},
        {"format": "zarr", "codec": "zstd", **dense},
        {"format": "parquet", "codec": "none", **dense},
        {"format": "parquet", "codec": "lz4", **dense},
    ]
    for kind in kinds:
        for block_bytes in (100_000,) if smoke else (450_000, 4_300_000):
            with tempfile.TemporaryDirectory() as folder:
                yield read_case(Path(folder), kind, 4000 if smoke else 40_000, block_bytes)
    for suffix in ("zarr", "parquet"):
        for n_bags in (1000,) if smoke else (10_000, 1_000_000, 10_000_000):
            with tempfile.TemporaryDirectory() as folder:
                yield open_case(Path(folder), suffix, n_bags)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
