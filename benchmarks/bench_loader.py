"""The loader with nothing behind it, against the disk, against ``pread``, and against peers.

*mixed bags*: one epoch of ``sm.stream``, in batches of 256 bags where rows are float32 in Zarr, as
for the peers, and of the default size elsewhere. *limit*: the fastest random reads
that bypass the page cache, with 4 or 8 threads and reads of 256 KiB, 1 MiB or 4 MiB, from the
store's own files. *cold*: the store is dropped from the page cache before the epoch. *past the
cache*: reads bypass the page cache, as for a store larger than memory. *warm*: the page cache has
the store; compared with one thread that reads up to 128 MiB of the same files again and again, by
``pread`` into one buffer. Bytes
are bytes of rows; ratios to the limit compare the bytes on disk that these rows take. CPU seconds
are those of all threads, for 10⁹ bytes of rows. *vif* is measured on the order delivered, on a
store that is sorted by label. All figures are medians of rounds that measure every side in turn.

*against a peer*: bytes per second of our epoch divided by the peer's, both cold, on the same bags.
Opening the store counts on both sides; imports and the compiling of our code do not. This favours
us: our epochs run in one process that has streamed before, a peer's in a new process each. Our
settings were developed on this corpus; those of the peers are the best of a few that were tried.
No peer has checksums as it is set up here; some offer them.
``STREAMMIML_PEERS`` names the Pythons that have the peers installed, separated by commas.
*training from disk against memory*: as in the benchmark *train*, with two kernel threads and a
model so small that the kernel outruns the disk. *resumed after kills*: whether a stream that was
killed many times delivered the batches of a stream that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import streammiml as sm
from benchmarks.bench_stream import random_block
from benchmarks.loader_peers import (
    INSTALL,
    N_LABELS,
    PEERS,
    corpus,
    drop_from_cache,
    measured_vif,
)
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.blocks.disk_speed import device_limit, pread_speed
from streammiml.config import TrainConfig
from streammiml_tools.corpora.synth import write_corpus

BATCH_BAGS, MEMORY = 256, "1GiB"
GIGA = 10**9
LIMIT_SECONDS = 0.3
PEER_SECONDS = 30
KILLS = 20
KINDS = [
    {"format": "zarr", "codec": "none", "dtype": "float32", "sparse": False},
    {"format": "zarr", "codec": "lz4", "dtype": "uint8", "sparse": False},
    {"format": "zarr", "codec": "lz4", "dtype": "float32", "sparse": True},
    {"format": "parquet", "codec": "none", "dtype": "float32", "sparse": False},
]
SMALL_MODEL = {"shared_dim": 32, "subconcepts": 1, "scale": "unit", "validation": 0.0}


def write_sorted(path: Path, n_bags: int, kind: dict) -> BagStore:
    """Write a store that is sorted by label, as peers' corpora are."""
    n_features, parts = 512, []
    if kind["dtype"] == "uint8" or kind["sparse"]:
        block = random_block(4000, sparse=kind["sparse"], dtype=kind["dtype"], seed=0)
        n_features = block.n_features
        parts = [min(4000, n_bags - first) for first in range(0, n_bags, 4000)]
    spec = StoreSpec(
        n_features=n_features,
        n_labels=N_LABELS,
        dtype=kind["dtype"],
        sparse=kind["sparse"],
        codec=kind["codec"],
    )
    with BagWriter.begin(path, spec) as writer:
        for number, part in enumerate(parts):
            bags = block.slice(0, part)
            labels = (number * 4000 + np.arange(part)) * N_LABELS // n_bags
            offsets = np.arange(part + 1)
            part_of_store = BagBlock(bags.bag_offsets, bags.rows, offsets, labels.astype(np.int32))
            writer.write_part(number, part_of_store)
        if not parts:
            for rows, labels in corpus(n_bags):
                n_rows, offsets = rows.shape[1], np.arange(len(rows) + 1)
                flat = rows.reshape(-1, rows.shape[2])
                bags = BagBlock(offsets * n_rows, flat, offsets, labels.astype(np.int32))
                writer.write_part(len(parts), bags)
                parts.append(len(rows))
        return writer.finish(len(parts))


@contextmanager
def way_of_reading(way: str) -> Iterator[None]:
    before = os.environ.get("STREAMMIML_DIRECT")
    os.environ["STREAMMIML_DIRECT"] = way
    try:
        yield
    finally:
        os.environ.pop("STREAMMIML_DIRECT")
        if before is not None:
            os.environ["STREAMMIML_DIRECT"] = before


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def row_bytes(rows: np.ndarray | SparseRows) -> int:
    if isinstance(rows, SparseRows):
        return rows.values.nbytes + rows.columns.nbytes
    return rows.nbytes


def epoch(
    path: Path, seed: int, *, batch_bags: int | None = BATCH_BAGS, bypass: bool = False
) -> tuple[float, float, np.ndarray]:
    """Bytes of rows per second, CPU seconds per GB, and the labels in the order delivered."""
    with way_of_reading("always" if bypass else "1"):
        n_bytes, labels = 0, []
        begun, used = time.perf_counter(), cpu_seconds()
        store = open_one(path)
        with sm.stream(store, memory=MEMORY, batch_bags=batch_bags, seed=seed) as batches:
            for batch in batches:
                n_bytes += row_bytes(batch.rows)
                labels.append(batch.label_indices)
            seconds, used = time.perf_counter() - begun, cpu_seconds() - used
    return n_bytes / seconds, used / n_bytes * GIGA, np.concatenate(labels)


def speed_case(folder: Path, kind: dict, n_bags: int, rounds: int) -> dict:
    path = folder / f"corpus.{kind['format']}"
    store = write_sorted(path, n_bags, kind)
    files = [path / key for key, _, _ in store.manifest.files]
    stored = sum(size for _, size, _ in store.manifest.files)
    all_bytes = store.n_values * (np.dtype(store.dtype).itemsize + 4 * store.sparse)
    stored_share = stored / all_bytes
    batch_bags = BATCH_BAGS if kind == KINDS[0] else None
    epoch(path, 0, batch_bags=batch_bags)
    turns: list[dict[str, float]] = []
    for seed in range(rounds):
        drop_from_cache(path)
        limit = device_limit(files, seconds=LIMIT_SECONDS)
        turn = {"limit": limit.bytes_per_second}
        drop_from_cache(path)
        turn["past"], turn["past_cpu"], _ = epoch(path, seed, batch_bags=batch_bags, bypass=True)
        drop_from_cache(path)
        turn["cold"], turn["cold_cpu"], labels = epoch(path, seed, batch_bags=batch_bags)
        turn["vif"] = measured_vif(labels)
        turn["warm"], turn["warm_cpu"], _ = epoch(path, seed, batch_bags=batch_bags)
        turn["pread"] = pread_speed(files, seconds=LIMIT_SECONDS)
        turns.append(turn)

    def median(value: Callable[[dict[str, float]], float], digits: int = 3) -> float:
        return round(statistics.median(map(value, turns)), digits)

    return {
        "what": "mixed bags",
        "case": {**kind, "bags": n_bags, "gb": round(all_bytes / GIGA, 2)},
        "stored_share": round(stored_share, 3),
        "limit_bypasses_cache": limit.direct,
        "limit_gb_s": median(lambda turn: turn["limit"] / GIGA),
        "cold_gb_s": median(lambda turn: turn["cold"] / GIGA),
        "cold_of_limit": median(lambda turn: turn["cold"] * stored_share / turn["limit"]),
        "cold_cpu_s_per_gb": median(lambda turn: turn["cold_cpu"]),
        "past_cache_gb_s": median(lambda turn: turn["past"] / GIGA),
        "past_cache_of_limit": median(lambda turn: turn["past"] * stored_share / turn["limit"]),
        "past_cache_cpu_s_per_gb": median(lambda turn: turn["past_cpu"]),
        "warm_gb_s": median(lambda turn: turn["warm"] / GIGA),
        "warm_of_pread": median(lambda turn: turn["warm"] * stored_share / turn["pread"]),
        "warm_cpu_s_per_gb": median(lambda turn: turn["warm_cpu"]),
        "vif": median(lambda turn: turn["vif"], 2),
        "rounds": rounds,
    }


# Peers.


def peer_call(python: str, peer: str, *words: object) -> dict:
    """Run a peer in its environment; its answer, or why it is absent or has failed."""
    command = [python, "-m", "benchmarks.loader_peers", peer, *map(str, words)]
    folder = Path(__file__).parents[1]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    except OSError as error:
        return {"failed": f"{python}: {error.strerror}"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
        return {"failed": f"exit code {done.returncode}: {last}"}
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(answers[-1]) if answers else {}


def written_by(pythons: list[str], peer: str, folder: Path, n_bags: int) -> tuple[str, dict]:
    """The Python that has written a peer's corpus, or "" and why none has."""
    answer = {"absent": f"STREAMMIML_PEERS names no Python; to install: {'; '.join(INSTALL)}"}
    for python in pythons:
        answer = peer_call(python, peer, "write", folder, n_bags)
        if not {"absent", "failed"} & answer.keys():
            return python, {}
    return "", answer


def peer_cases(folder: Path, n_bags: int, rounds: int) -> Iterator[dict]:
    pythons = [name for name in os.environ.get("STREAMMIML_PEERS", "").split(",") if name]
    ours = folder / "ours.zarr"
    write_sorted(ours, n_bags, KINDS[0])
    epoch(ours, 0)
    for peer in PEERS:
        theirs = folder / peer
        python, reason = written_by(pythons, peer, theirs, n_bags)
        facts = {"what": "against a peer", "case": {"peer": peer, "bags": n_bags}}
        if not python:
            yield {**facts, **reason}
            continue
        turns = []
        for seed in range(rounds):
            drop_from_cache(ours)
            rate, _, labels = epoch(ours, seed)
            drop_from_cache(theirs)
            answer = peer_call(python, peer, "read", theirs, "--seconds", PEER_SECONDS)
            turns.append((rate, labels, answer))
        shutil.rmtree(theirs)
        broken = [answer for *_, answer in turns if {"absent", "failed"} & answer.keys()]
        if broken:
            yield {**facts, **broken[0]}
            continue
        peers = [answer["bytes"] / answer["seconds"] for *_, answer in turns]
        yield {
            **facts,
            "version": turns[0][2]["version"],
            "ours_over_peer": round(
                statistics.median(
                    rate / peer_rate for (rate, *_), peer_rate in zip(turns, peers, strict=True)
                ),
                2,
            ),
            "peer_gb_s": round(statistics.median(peers) / GIGA, 3),
            "peer_cpu_s_per_gb": round(
                statistics.median(
                    answer["cpu_seconds"] / answer["bytes"] * GIGA for *_, answer in turns
                ),
                2,
            ),
            "peer_vif": turns[-1][2]["vif"],
            "ours_vif": round(measured_vif(turns[-1][1]), 2),
            "ours_gb_s": round(statistics.median(rate for rate, *_ in turns) / GIGA, 3),
            "rounds": rounds,
        }


# Training.


def train_rate(bags: object, n_steps: int) -> float:
    config = TrainConfig(**SMALL_MODEL, threads=2, max_steps=n_steps, epochs=10**6)
    begin = time.perf_counter()
    sm.train(bags, config)
    return n_steps / (time.perf_counter() - begin)


def training_case(folder: Path, n_bags: int, pairs: int) -> dict:
    path = folder / "train.zarr"
    shape = {"n_features": 512, "n_labels": 20, "rows_per_bag": (5, 13)}
    write_corpus(path, codec="none", n_bags=n_bags, **shape)
    store = open_one(path)
    in_memory = MemoryBags(store.read(0, n_bags), n_labels=store.n_labels)
    train_rate(in_memory, n_bags // 4)
    ratios = []
    for turn in range(pairs):
        before = train_rate(in_memory, n_bags) if turn % 2 == 0 else None
        drop_from_cache(path)
        from_disk = train_rate(open_one(path), n_bags)
        ratios.append(from_disk / (before or train_rate(in_memory, n_bags)))
    return {
        "what": "training from disk against memory",
        "case": {"d": 512, "m": 32, "K": 1, "L": 20, "z": 9, "threads": 2, "bags": n_bags},
        "disk_over_memory": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "pairs": pairs,
    }


# Resuming.


def deliver(path: Path, log: Path, n_epochs: int) -> None:
    """Append a line for each batch: a digest, and the state behind it; goes on after the last."""
    lines = log.read_bytes().split(b"\n") if log.exists() else [b""]
    # A kill may have cut the last line.
    delivered = lines[:-1]
    log.write_bytes(b"".join(line + b"\n" for line in delivered))
    with sm.stream(path, memory="256MiB", batch_bags=64) as batches, log.open("ab", 0) as file:
        if delivered:
            batches.load_state_dict(json.loads(delivered[-1])["state"])
        while batches.epoch < n_epochs:
            for batch in batches:
                digest = hashlib.sha256(np.ascontiguousarray(batch.rows))
                digest.update(batch.bag_numbers)
                line = {"digest": digest.hexdigest(), "state": batches.state_dict()}
                file.write(json.dumps(line).encode() + b"\n")


def resume_case(folder: Path, n_bags: int, kills: int) -> dict:
    path, log, expected = (folder / name for name in ("resume.zarr", "killed.log", "whole.log"))
    write_sorted(path, n_bags, KINDS[0])
    n_epochs, rng, killed = 2, random.Random(0), 0
    deliver(path, expected, n_epochs)
    n_lines = expected.read_bytes().count(b"\n")
    command = [sys.executable, "-m", "benchmarks.bench_loader", path, log, str(n_epochs)]
    for number in range(1, kills + 1):
        process = subprocess.Popen(command)
        # Killed when it has delivered its share of all batches, and some more.
        least = n_lines * number // (kills + 2) + rng.randrange(3)
        while process.poll() is None and (
            not log.exists() or log.read_bytes().count(b"\n") < least
        ):
            time.sleep(0.005)
        process.kill()
        killed += process.wait() < 0
    subprocess.run(command, check=True)
    return {
        "what": "resumed after kills",
        "case": {"bags": n_bags, "batches": n_lines},
        "kills": killed,
        "equal": log.read_bytes() == expected.read_bytes(),
    }


def cases(smoke: bool) -> Iterator[dict]:
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            n_bags = 2000 if smoke else {"uint8": 480_000}.get(kind["dtype"], 120_000)
            yield speed_case(Path(folder), kind, n_bags, 1 if smoke else 5)
    with tempfile.TemporaryDirectory() as folder:
        yield from peer_cases(Path(folder), 1000 if smoke else 120_000, 1 if smoke else 3)
    with tempfile.TemporaryDirectory() as folder:
        yield training_case(Path(folder), 1000 if smoke else 60_000, 1 if smoke else 5)
    with tempfile.TemporaryDirectory() as folder:
        yield resume_case(Path(folder), 1000 if smoke else 20_000, 2 if smoke else KILLS)


if __name__ == "__main__":
    deliver(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
