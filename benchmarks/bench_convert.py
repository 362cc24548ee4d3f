"""Speed of conversion to stores, against the least work that any converter must do.

NumPy arrays: against copying the same bytes with a checksum, into files as long as our shards, each
synced as ours are. CSV: against ``pyarrow.csv`` parsing the same file, with the same number of
threads. JSON lines: against orjson parsing every line and doing nothing else. TFRecord, frames as
YouTube-8M has them: against reading every byte with a checksum; ``MB_per_core_s`` counts the
processor time of all threads. A file a bag: against copying the same files with a checksum of each,
synced once at the end. Two worker processes: against one, without the time to start the processes.
Both sides run in turns, and the median of the ratios of these pairs is reported.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import distributed
import numpy as np
import orjson
import pyarrow as pa
from crc32c import crc32c
from pyarrow import csv

from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.bags.zarr_write import SHARD_BYTES
from streammiml_tools.convert import convert
from streammiml_tools.convert.export import export
from streammiml_tools.readers.base import SourceOptions
from streammiml_tools.readers.record_header import masked

N_FEATURES, N_LABELS = 200, 100
PAIRS = 5
N_FRAMES = 300
N_FILES = 10_000


def random_block(n_bags: int) -> BagBlock:
    rng = np.random.default_rng(0)
    offsets = from_sizes(rng.integers(5, 14, n_bags))
    rows = rng.standard_normal((int(offsets[-1]), N_FEATURES), dtype=np.float32).round(3)
    labels = rng.integers(0, N_LABELS, n_bags).astype(np.int32)
    ids = [f"bag{i:07d}" for i in range(n_bags)]
    return BagBlock(offsets, rows, np.arange(n_bags + 1), labels, bag_ids=ids)


def save_arrays(folder: Path, block: BagBlock) -> Path:
    folder.mkdir()
    arrays = {"instances": block.rows, "offsets": block.bag_offsets}
    arrays |= {"label_indptr": block.label_offsets, "label_indices": block.label_indices}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def copy_with_checksum(source: Path, out: Path) -> None:
    """Copy ``source`` into files of one shard's length, checksum every byte, sync every file."""
    buffer = bytearray(8 << 20)
    out.mkdir()
    with source.open("rb", buffering=0) as file:
        number = 0
        while True:
            with (out / str(number)).open("wb", buffering=0) as target:
                left = SHARD_BYTES
                while left and (got := file.readinto(memoryview(buffer)[: min(left, 8 << 20)])):
                    part = memoryview(buffer)[:got]
                    crc32c(part)
                    target.write(part)
                    left -= got
                os.fsync(target.fileno())
            if left:
                return
            number += 1


def timed(work: Callable[[], object], out: Path | None = None) -> float:
    """Seconds of ``work``; the folder ``out`` is removed afterwards, outside the time."""
    begin = time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    if out is not None:
        shutil.rmtree(out)
    return seconds


def compared(
    case: dict, n_bytes: int, pairs: int, least: Callable[[], float], ours: Callable[[], float]
) -> dict:
    """One benchmark line; ``least`` and ``ours`` return the seconds that they took."""
    least(), ours()
    turns = [(least(), ours()) for _ in range(pairs)]
    return {
        **case,
        "source_MB": round(n_bytes / 1e6),
        "seconds": round(statistics.median(b for _, b in turns), 3),
        "MB_per_s": round(n_bytes / statistics.median(b for _, b in turns) / 1e6),
        "ratio": round(statistics.median(a / b for a, b in turns), 3),
        "best_to_best": round(min(a for a, _ in turns) / min(b for _, b in turns), 3),
        "pairs": pairs,
    }


def npy_case(folder: Path, n_bags: int, pairs: int, suffix: str) -> dict:
    source = save_arrays(folder / "arrays", random_block(n_bags))
    rows, out = source / "instances.npy", folder / f"out.{suffix}"
    return compared(
        {"what": "npy, of copying with checksum", "case": {"format": suffix}},
        rows.stat().st_size,
        pairs,
        lambda: timed(lambda: copy_with_checksum(rows, folder / "copy"), folder / "copy"),
        lambda: timed(lambda: convert(source, out), out),
    )


def write_store(folder: Path, n_bags: int) -> Path:
    spec = StoreSpec(n_features=N_FEATURES, n_labels=N_LABELS, bag_ids=True)
    with BagWriter.begin(folder / "first.zarr", spec) as writer:
        writer.write_part(0, random_block(n_bags))
        writer.finish(1)
    return folder / "first.zarr"


def csv_case(folder: Path, n_bags: int, pairs: int) -> dict:
    table = export(write_store(folder, n_bags), folder / "rows.csv")[0]
    out = folder / "out.zarr"
    pa.set_cpu_count(len(os.sched_getaffinity(0)))
    return compared(
        {"what": "CSV, of pyarrow.csv parsing", "case": {"threads": pa.cpu_count()}},
        table.stat().st_size,
        pairs,
        lambda: timed(lambda: csv.read_csv(table)),
        lambda: timed(lambda: convert(table, out), out),
    )


def jsonl_case(folder: Path, n_bags: int, pairs: int) -> dict:
    lines = export(write_store(folder, n_bags), folder / "rows.jsonl")[0]
    out = folder / "out.zarr"

    def parse() -> None:
        with lines.open("rb") as file:
            for line in file:
                orjson.loads(line)

    return compared(
        {"what": "JSON lines, of orjson parsing", "case": {}},
        lines.stat().st_size,
        pairs,
        lambda: timed(parse),
        lambda: timed(lambda: convert(lines, out), out),
    )


def save_videos(path: Path, n_videos: int) -> Path:
    """Write videos of 300 frames, each of 1024 bytes of ``rgb`` and 128 of ``audio``."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (N_FRAMES, 1152), dtype=np.uint8)
    with path.open("wb") as file:
        for number in range(n_videos):
            frames[0] = rng.integers(0, 256, 1152, dtype=np.uint8)
            lists = {
                name: [frame.tobytes() for frame in frames[:, first:stop]]
                for name, first, stop in (("rgb", 0, 1024), ("audio", 1024, 1152))
            }
            message = _sequence(f"v{number:07d}".encode(), [number % N_LABELS], lists)
            header = len(message).to_bytes(8, "little")
            file.write(header + _masked(header) + message + _masked(message))
    return path


def _masked(content: bytes) -> bytes:
    """Write the checksum of a TFRecord: crc32c, rotated, plus a constant."""
    return masked(crc32c(content)).to_bytes(4, "little")


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes of a protobuf message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def _sequence(name: bytes, labels: list[int], lists: dict[str, list[bytes]]) -> bytes:
    """Encode a ``tf.train.SequenceExample``."""
    numbers = _field(3, _field(1, b"".join(map(_varint, labels))))
    context = _entry("id", _field(1, _field(1, name))) + _entry("labels", numbers)
    frames = b"".join(
        _entry(key, b"".join(_field(1, _field(1, _field(1, frame))) for frame in own))
        for key, own in lists.items()
    )
    return _field(1, context) + _field(2, frames)


def _entry(key: str, value: bytes) -> bytes:
    return _field(1, _field(1, key.encode()) + _field(2, value))


def tfrecord_case(folder: Path, n_videos: int, pairs: int) -> dict:
    source, out = save_videos(folder / "videos.tfrecord", n_videos), folder / "out.zarr"
    n_bytes, core_seconds = source.stat().st_size, []

    def read() -> None:
        buffer = bytearray(8 << 20)
        with source.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                crc32c(memoryview(buffer)[:got])

    def ours() -> float:
        begin = time.process_time()
        options = SourceOptions(n_labels=N_LABELS)
        seconds = timed(lambda: convert(source, out, options=options))
        core_seconds.append(time.process_time() - begin)
        shutil.rmtree(out)
        return seconds

    case = {"what": "TFRecord, of reading with checksum", "case": {"videos": n_videos}}
    line = compared(case, n_bytes, pairs, lambda: timed(read), ours)
    seconds = statistics.median(core_seconds[1:])
    return {**line, "MB_per_core_s": round(n_bytes / seconds / 1e6)}


def files_case(folder: Path, n_files: int, file_rows: int, pairs: int) -> dict:
    """A file a bag of ``file_rows`` rows of 1024 float32."""
    rng, source, lines = np.random.default_rng(0), folder / "slides", ["slide,tumour"]
    source.mkdir()
    rows = rng.standard_normal((file_rows, 1024), dtype=np.float32)
    for number in range(n_files):
        rows[0] = number
        np.save(source / f"s{number:06}.npy", rows)
        lines.append(f"s{number:06},{number % 2}")
    (folder / "labels.csv").write_text("\n".join([*lines, ""]))
    options = SourceOptions(bag_labels=str(folder / "labels.csv"), bag_column="slide")
    out = folder / "out.zarr"

    def copy() -> None:
        (folder / "copy").mkdir()
        for path in sorted(source.iterdir()):
            content = path.read_bytes()
            crc32c(content)
            (folder / "copy" / path.name).write_bytes(content)
        os.sync()

    return compared(
        {"what": "a file a bag, of copying with checksum", "case": {"files": n_files}},
        sum(path.stat().st_size for path in source.iterdir()),
        pairs,
        lambda: timed(copy, folder / "copy"),
        lambda: timed(lambda: convert(source, out, options=options), out),
    )


def workers_case(folder: Path, n_bags: int, pairs: int) -> dict:
    """Two worker processes against one; the cluster is started before the clock."""
    table = export(write_store(folder, n_bags), folder / "rows.csv")[0]
    out = folder / "out.zarr"
    options = SourceOptions(span_bytes=max(1 << 16, table.stat().st_size // 24))

    def with_pool(n_workers: int) -> float:
        with distributed.LocalCluster(
            n_workers=n_workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        ) as cluster:
            address = cluster.scheduler_address
            # A first conversion loads readers and kernels in every process.
            timed(lambda: convert(table, out, options=options, scheduler=address), out)
            return timed(lambda: convert(table, out, options=options, scheduler=address), out)

    turns = [(with_pool(1), with_pool(2)) for _ in range(max(1, pairs // 2))]
    return {
        "what": "CSV, two workers over one",
        "case": {"cores": len(os.sched_getaffinity(0))},
        "source_MB": round(table.stat().st_size / 1e6),
        "seconds": round(statistics.median(b for _, b in turns), 3),
        "ratio": round(statistics.median(a / b for a, b in turns), 3),
        "pairs": len(turns),
    }


def cases(smoke: bool) -> Iterator[dict]:
    pairs = 1 if smoke else PAIRS
    for suffix in ("zarr", "parquet"):
        with tempfile.TemporaryDirectory() as folder:
            yield npy_case(Path(folder), 500 if smoke else 120_000, pairs, suffix)
    with tempfile.TemporaryDirectory() as folder:
        yield csv_case(Path(folder), 300 if smoke else 12_000, pairs)
    with tempfile.TemporaryDirectory() as folder:
        yield jsonl_case(Path(folder), 300 if smoke else 12_000, pairs)
    with tempfile.TemporaryDirectory() as folder:
        yield tfrecord_case(Path(folder), 20 if smoke else 2000, pairs)
    with tempfile.TemporaryDirectory() as folder:
        # A file of 1 MB each; with the copy or the store, twice as much on the disk.
        yield files_case(Path(folder), 20 if smoke else N_FILES, 4 if smoke else 256, min(pairs, 2))
    # One process joins the parts; the smaller size shows what joining costs.
    for n_bags in (300,) if smoke else (24_000, 72_000):
        with tempfile.TemporaryDirectory() as folder:
            yield workers_case(Path(folder), n_bags, pairs)
