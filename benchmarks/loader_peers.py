"""Peers of the loader: how fast other libraries deliver mixed bags from a local disk.

``python -m benchmarks.loader_peers PEER write FOLDER N_BAGS`` writes the corpus in the peer's own
format. ``python -m benchmarks.loader_peers PEER read FOLDER [--memory 1GiB] [--seconds S]`` streams
one shuffled epoch in batches of 256 bags and prints a JSON line with the delivered *bytes*, the
*seconds* from the first request to the last batch without imports, the *cpu_seconds* of the process
and its children, and the *vif* of the order (see `measured_vif`). ``--seconds`` ends the epoch that
long after the first batch. ``--check`` also compares every delivered bag with the corpus.

The corpus has bags of 9 rows × 512 random float32 values, which no codec can compress, so all
formats store them uncompressed. Bags are sorted by label, so that a reader has to mix them. A bag
is one record in every format. Settings are the fastest of a few that were tried with a VIF below 2
at the default ``--memory``; a smaller memory holds fewer blocks and mixes less well. Some peers
fill a buffer before their first batch: a fair rate needs a corpus of several buffers, that is
100 000 bags or more. Peers without processes of their own run in one process.

This module needs only NumPy. A peer that is not installed prints why it is absent. `INSTALL` lists
the commands; no extra of the project does, because the peers' requirements contradict each other.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import random
import re
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INSTALL = (
    # Python 3.12 or newer, which annbatch needs.
    "pip install annbatch zarrs zarr tensorstore datasets webdataset pylance grain",
    # An environment of its own: MosaicML Streaming wants an older NumPy and huggingface_hub.
    "pip install torch mosaicml-streaming",
)
SHAPE, N_LABELS, BATCH_BAGS = (9, 512), 100, 256
N_VALUES = SHAPE[0] * SHAPE[1]
BAG_BYTES = N_VALUES * 4
# Blocks of 1.2 MB, 320 of them in a buffer: on sorted labels, VIF ≈ 1 + 255 / 320.
BLOCK_BAGS, MIX_BLOCKS = 64, 320
PIECE_BAGS = 16 * BLOCK_BAGS
SEED = 20_240_501

Piece = tuple[NDArray[np.float32], NDArray[np.int64]]
Batches = Iterator[tuple[Any, Any]]


def corpus(n_bags: int) -> Iterator[Piece]:
    """Rows (bags, 9, 512) and labels (bags,) of all bags, in pieces of 19 MB."""
    for start in range(0, n_bags, PIECE_BAGS):
        ids = np.arange(start, min(start + PIECE_BAGS, n_bags))
        rng = np.random.default_rng([SEED, start])
        yield rng.standard_normal((len(ids), *SHAPE), np.float32), ids * N_LABELS // n_bags


def measured_vif(labels: NDArray, window: int = 256) -> float:
    """Variance of the label counts of successive bags, divided by that of a full shuffle.

    ``labels`` has one label number for each bag in delivered order. Counts are taken in windows of
    ``window`` bags; an incomplete last window is left out. NaN if there are fewer than two windows
    or only one label.
    """
    numbers, places = np.unique(labels, return_inverse=True)
    n_windows = len(labels) // window
    shares = np.bincount(places) / max(1, len(labels))
    expected = window * float((shares * (1 - shares)).sum())
    if n_windows < 2 or not expected:
        return float("nan")
    cells = places[: n_windows * window] + np.repeat(np.arange(n_windows), window) * len(numbers)
    counts = np.bincount(cells, minlength=n_windows * len(numbers)).reshape(n_windows, -1)
    return float(counts.var(axis=0, ddof=1).sum()) / expected


def drop_from_cache(folder: Path) -> None:
    """Write back every file of a folder and evict it from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def buffer_blocks(memory: int) -> int:
    """Blocks in one of two buffers; a multiple of four, so that batches fill a buffer exactly."""
    return max(4, min(MIX_BLOCKS, memory * 3 // 8 // (BLOCK_BAGS * BAG_BYTES)) // 4 * 4)


def mixed_batches(
    labels: NDArray, memory: int, read_blocks: Callable[[list[tuple[int, int, NDArray]]], Any]
) -> Batches:
    """Batches from a buffer of random blocks while the next buffer is read.

    Users of an array store write this loop themselves. ``read_blocks`` gets (start, stop, out) of
    every block and fills each ``out`` with the bags ``start`` to ``stop``.
    """
    rng = np.random.default_rng(SEED)
    starts = rng.permutation(np.arange(0, len(labels), BLOCK_BAGS))
    groups = np.split(starts, np.arange(0, len(starts), buffer_blocks(memory))[1:])
    buffers = [np.empty((len(groups[0]) * BLOCK_BAGS, *SHAPE), np.float32) for _ in groups[:2]]

    def fill(place: int) -> tuple[NDArray, NDArray]:
        stops = np.minimum(groups[place] + BLOCK_BAGS, len(labels))
        ends = np.cumsum(stops - groups[place])
        views = np.split(buffers[place % 2][: ends[-1]], ends[:-1])
        read_blocks(list(zip(groups[place].tolist(), stops.tolist(), views, strict=True)))
        ranges = [np.arange(*pair) for pair in zip(groups[place], stops, strict=True)]
        return buffers[place % 2][: ends[-1]], labels[np.concatenate(ranges)]

    with ThreadPoolExecutor(1) as pool:
        upcoming = pool.submit(fill, 0)
        for place in range(len(groups)):
            rows, group_labels = upcoming.result()
            if place + 1 < len(groups):
                upcoming = pool.submit(fill, place + 1)
            order = rng.permutation(len(rows))
            for first in range(0, len(rows), BATCH_BAGS):
                chosen = order[first : first + BATCH_BAGS]
                yield rows[chosen], group_labels[chosen]


def write_zarr(folder: Path, n_bags: int, shape: tuple[int, ...], shard_bags: int | None) -> None:
    zarr = import_module("zarr")
    rest = shape[1:]
    rows = zarr.create_array(
        store=folder / "rows.zarr",
        shape=shape,
        dtype="float32",
        chunks=(BLOCK_BAGS, *rest),
        shards=shard_bags and (shard_bags, *rest),
        compressors=None,
        filters=None,
    )
    labels, start = [], 0
    for piece, piece_labels in corpus(n_bags):
        rows[start : start + len(piece)] = piece.reshape(-1, *rest)
        labels.append(piece_labels)
        start += len(piece)
    np.save(folder / "labels.npy", np.concatenate(labels))


def write_annbatch(folder: Path, n_bags: int) -> None:
    write_zarr(folder, n_bags, (n_bags, N_VALUES), PIECE_BAGS)


def read_annbatch(folder: Path, memory: int) -> Batches:
    """A bag is one observation; annbatch's documentation advises the Rust codec pipeline."""
    zarr, annbatch, pandas = (import_module(name) for name in ("zarr", "annbatch", "pandas"))
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    loader = annbatch.Loader(
        chunk_size=BLOCK_BAGS,
        preload_nchunks=buffer_blocks(memory),
        batch_size=BATCH_BAGS,
        shuffle=True,
        rng=np.random.default_rng(SEED),
    )
    obs = pandas.DataFrame({"label": np.load(folder / "labels.npy")})
    loader.add_dataset(zarr.open_array(folder / "rows.zarr", mode="r"), obs)
    for batch in loader:
        yield batch["X"], batch["obs"]["label"].to_numpy()


def write_zarr_python(folder: Path, n_bags: int) -> None:
    # zarr-python reads chunks in files of their own several times as fast as chunks in shards.
    write_zarr(folder, n_bags, (n_bags, *SHAPE), None)


def read_zarr_python(folder: Path, memory: int) -> Batches:
    array = import_module("zarr").open_array(folder / "rows.zarr", mode="r")

    def read_block(block: tuple[int, int, NDArray]) -> None:
        start, stop, out = block
        out[:] = array[start:stop]

    def read_blocks(blocks: list[tuple[int, int, NDArray]]) -> None:
        list(pool.map(read_block, blocks))

    with ThreadPoolExecutor(8) as pool:
        yield from mixed_batches(np.load(folder / "labels.npy"), memory, read_blocks)


def open_tensorstore(folder: Path, **options: Any) -> Any:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/rows.zarr"}}
    context = {"cache_pool": {"total_bytes_limit": 0}, "file_io_concurrency": {"limit": 16}}
    ts = import_module("tensorstore")
    return ts.open(spec, context=ts.Context(context), **options).result()


def write_tensorstore(folder: Path, n_bags: int) -> None:
    ts = import_module("tensorstore")
    layout = ts.ChunkLayout(
        read_chunk_shape=(BLOCK_BAGS, *SHAPE), write_chunk_shape=(BLOCK_BAGS, *SHAPE)
    )
    array = open_tensorstore(
        folder, create=True, dtype=ts.float32, shape=(n_bags, *SHAPE), chunk_layout=layout
    )
    labels, start = [], 0
    for rows, piece_labels in corpus(n_bags):
        array[start : start + len(rows)].write(rows).result()
        labels.append(piece_labels)
        start += len(rows)
    np.save(folder / "labels.npy", np.concatenate(labels))


def read_tensorstore(folder: Path, memory: int) -> Batches:
    ts, array = import_module("tensorstore"), open_tensorstore(folder, open=True)

    def read_blocks(blocks: list[tuple[int, int, NDArray]]) -> None:
        copies = [
            ts.array(out, copy=False, write=True).write(array[start:stop].translate_to[0, 0, 0])
            for start, stop, out in blocks
        ]
        for copy in copies:
            copy.result()

    yield from mixed_batches(np.load(folder / "labels.npy"), memory, read_blocks)


def torch_batches(dataset: Any, **options: Any) -> Iterator[Any]:
    """Batches of a PyTorch DataLoader with two worker processes."""
    yield from import_module("torch.utils.data").DataLoader(dataset, num_workers=2, **options)


def write_mosaic(folder: Path, n_bags: int) -> None:
    shape = ",".join(map(str, SHAPE))
    columns = {"rows": f"ndarray:float32:{shape}", "label": "int"}
    with import_module("streaming").MDSWriter(out=str(folder), columns=columns) as writer:
        for rows, labels in corpus(n_bags):
            for bag, label in zip(rows, labels.tolist(), strict=True):
                writer.write({"rows": bag, "label": label})


def read_mosaic(folder: Path, memory: int) -> Batches:  # noqa: ARG001
    """The default algorithm py1e mixes up to 4 000 000 records and reads each of them alone."""
    streaming = import_module("streaming")
    dataset = streaming.StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH_BAGS)
    for batch in torch_batches(dataset, batch_size=BATCH_BAGS):
        yield batch["rows"].numpy(), batch["label"].numpy()


def write_datasets(folder: Path, n_bags: int) -> None:
    datasets, pa = import_module("datasets"), import_module("pyarrow")
    values = datasets.Sequence(datasets.Value("float32"), length=N_VALUES)
    features = datasets.Features({"rows": values, "label": datasets.Value("int64")})
    path = str(folder / "bags.arrow")
    with import_module("datasets.arrow_writer").ArrowWriter(features=features, path=path) as writer:
        for rows, labels in corpus(n_bags):
            lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), N_VALUES)
            writer.write_table(pa.table({"rows": lists, "label": labels}), BLOCK_BAGS)
        writer.finalize()


def read_datasets(folder: Path, memory: int) -> Batches:
    """Shuffled shards and a shuffle buffer: the documented way for a corpus larger than memory."""
    dataset = import_module("datasets").Dataset.from_file(str(folder / "bags.arrow"))
    stream = dataset.with_format("numpy").to_iterable_dataset(-(-len(dataset) // BLOCK_BAGS))
    stream = stream.shuffle(SEED, buffer_size=buffer_blocks(memory) * BLOCK_BAGS)
    for batch in stream.iter(BATCH_BAGS):
        yield batch["rows"], batch["label"]


def read_datasets_map(folder: Path, memory: int) -> Batches:  # noqa: ARG001
    """A full shuffle over a mapped file, which is fast while the page cache can hold the file."""
    dataset = import_module("datasets").Dataset.from_file(str(folder / "bags.arrow"))
    shuffled = dataset.shuffle(seed=SEED, keep_in_memory=True).with_format("numpy")
    for batch in shuffled.iter(BATCH_BAGS):
        yield batch["rows"], batch["label"]


def write_webdataset(folder: Path, n_bags: int) -> None:
    pattern = str(folder / "%06d.tar")
    # With a fractional time of change, every member of a tar file would get a second header.
    options = {"maxcount": BLOCK_BAGS, "mtime": 0, "verbose": 0}
    with import_module("webdataset").ShardWriter(pattern, **options) as writer:
        for rows, labels in corpus(n_bags):
            for bag, label in zip(rows, labels.tolist(), strict=True):
                writer.write({"__key__": f"{writer.total:09d}", "bin": bag.tobytes(), "cls": label})


def read_webdataset(folder: Path, memory: int) -> Batches:
    """Shards as small as a block and a shuffle buffer that holds as many bags as for others."""
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    n_bags = buffer_blocks(memory) * BLOCK_BAGS

    def stack(samples: list[dict]) -> tuple[NDArray, NDArray]:
        rows = np.stack([np.frombuffer(sample["bin"], np.float32) for sample in samples])
        return rows.reshape(-1, *SHAPE), np.array([int(sample["cls"]) for sample in samples])

    stream = import_module("webdataset").WebDataset(shards, shardshuffle=len(shards), seed=SEED)
    stream = stream.shuffle(n_bags, initial=n_bags, rng=random.Random(SEED))
    yield from stream.batched(BATCH_BAGS, collation_fn=stack)


def write_lance(folder: Path, n_bags: int) -> None:
    pa = import_module("pyarrow")
    schema = pa.schema([("rows", pa.list_(pa.float32(), N_VALUES)), ("label", pa.int64())])

    def batches() -> Iterator[Any]:
        for rows, labels in corpus(n_bags):
            lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), N_VALUES)
            yield pa.record_batch([lists, pa.array(labels)], schema=schema)

    import_module("lance").write_dataset(batches(), folder / "bags.lance", schema=schema)


def read_lance(folder: Path, memory: int) -> Batches:
    """Random access to 16 blocks at a time, which costs half as much as access to single bags."""
    dataset = import_module("lance").dataset(folder / "bags.lance")
    labels = dataset.to_table(columns=["label"])["label"].to_numpy()

    def take(blocks: list[tuple[int, int, NDArray]]) -> None:
        bags = np.concatenate([np.arange(start, stop) for start, stop, _ in blocks])
        column = dataset.take(bags.tolist(), columns=["rows"])["rows"].combine_chunks()
        rows, place = column.flatten().to_numpy().reshape(-1, *SHAPE), 0
        for *_, out in blocks:
            out[:] = rows[place : place + len(out)]
            place += len(out)

    def read_blocks(blocks: list[tuple[int, int, NDArray]]) -> None:
        list(pool.map(take, [blocks[i : i + 16] for i in range(0, len(blocks), 16)]))

    with ThreadPoolExecutor(2) as pool:
        yield from mixed_batches(labels, memory, read_blocks)


def write_grain(folder: Path, n_bags: int) -> None:
    module = import_module("array_record.python.array_record_module")
    # One record a group: the setting for random access.
    writer = module.ArrayRecordWriter(str(folder / "bags.arecord"), "group_size:1,uncompressed")
    for rows, labels in corpus(n_bags):
        for bag, label in zip(rows, labels, strict=True):
            writer.write(label.tobytes() + bag.tobytes())
    writer.close()


def read_grain(folder: Path, memory: int) -> Batches:  # noqa: ARG001
    """A full shuffle; whole batches are requested, because single records are slow to hand over."""
    grain = import_module("grain")
    source = grain.sources.ArrayRecordDataSource(str(folder / "bags.arecord"))

    def parse(record: bytes) -> tuple[NDArray, NDArray]:
        rows = np.frombuffer(record, np.float32, offset=8).reshape(SHAPE)
        return rows, np.frombuffer(record, np.int64, 1)[0]

    dataset = grain.MapDataset.source(source).shuffle(SEED).map(parse).batch(BATCH_BAGS)
    yield from dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4))


def write_flat(folder: Path, n_bags: int) -> None:
    labels = []
    with (folder / "rows.bin").open("wb") as file:
        for rows, piece_labels in corpus(n_bags):
            file.write(rows.tobytes())
            labels.append(piece_labels)
    np.save(folder / "labels.npy", np.concatenate(labels))


def read_pread_direct(folder: Path, memory: int) -> Batches:  # noqa: ARG001
    """The device: 18 random reads of 256 KiB fill a batch; bags are cut and their order is poor."""
    labels, path, read_bytes = np.load(folder / "labels.npy"), folder / "rows.bin", 256 << 10
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    except OSError:  # A file system without O_DIRECT.
        fd = os.open(path, os.O_RDONLY)
    batch_bytes = BATCH_BAGS * BAG_BYTES
    starts = np.arange(0, len(labels) * BAG_BYTES, read_bytes)
    starts[:-1] = np.random.default_rng(SEED).permutation(starts[:-1])
    groups = np.split(starts, np.arange(0, len(starts), batch_bytes // read_bytes)[1:])
    # O_DIRECT needs memory on page boundaries, as mmap gives it.
    buffers = [mmap.mmap(-1, batch_bytes) for _ in range(4)]

    def read(place: int, number: int, start: int) -> int:
        view = memoryview(buffers[place % 4])[number * read_bytes : (number + 1) * read_bytes]
        return os.preadv(fd, [view], start)

    def submit(place: int) -> list[Any]:
        return [pool.submit(read, place, i, int(at)) for i, at in enumerate(groups[place])]

    with ThreadPoolExecutor(8) as pool:
        waiting = {place: submit(place) for place in range(min(3, len(groups)))}
        for place, group in enumerate(groups):
            n_bytes = sum(future.result() for future in waiting.pop(place))
            if place + 3 < len(groups):
                waiting[place + 3] = submit(place + 3)
            rows = np.frombuffer(buffers[place % 4], np.float32, n_bytes // 4)
            within = np.arange(0, n_bytes, BAG_BYTES)
            bags = (group[within // read_bytes] + within % read_bytes) // BAG_BYTES
            yield rows, labels[bags]
    os.close(fd)


class FlatFile:
    """A map-style dataset over a mapped file; ``__getitems__`` copies a whole batch."""

    def __init__(self, folder: Path):
        self.labels = np.load(folder / "labels.npy")
        self.rows = np.memmap(folder / "rows.bin", np.float32, "r").reshape(-1, *SHAPE)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, bags: list[int]) -> tuple[Any, Any]:
        torch = import_module("torch")
        return torch.from_numpy(self.rows[bags]), torch.from_numpy(self.labels[bags])


def keep(batch: Any) -> Any:
    """Collate nothing: ``__getitems__`` returns a whole batch."""
    return batch


def read_torch(folder: Path, memory: int) -> Batches:  # noqa: ARG001
    import_module("torch").manual_seed(SEED)
    options = {"batch_size": BATCH_BAGS, "shuffle": True, "collate_fn": keep}
    for rows, labels in torch_batches(FlatFile(folder), **options):
        yield rows.numpy(), labels.numpy()


@dataclass(frozen=True)
class Peer:
    packages: tuple[str, ...]
    """Distributions whose versions are reported."""
    modules: tuple[str, ...]
    """Modules that are imported before the clock starts."""
    write: Callable[[Path, int], None]
    read: Callable[[Path, int], Batches]


PEERS = {
    "annbatch": Peer(("annbatch", "zarrs"), ("annbatch", "zarrs"), write_annbatch, read_annbatch),
    "tensorstore": Peer(("tensorstore",), ("tensorstore",), write_tensorstore, read_tensorstore),
    "zarr-python": Peer(("zarr",), ("zarr",), write_zarr_python, read_zarr_python),
    "mosaicml-streaming": Peer(("mosaicml-streaming",), ("streaming",), write_mosaic, read_mosaic),
    "datasets": Peer(("datasets",), ("datasets",), write_datasets, read_datasets),
    "datasets-map": Peer(("datasets",), ("datasets",), write_datasets, read_datasets_map),
    "webdataset": Peer(("webdataset",), ("webdataset",), write_webdataset, read_webdataset),
    "lance": Peer(("pylance",), ("lance",), write_lance, read_lance),
    "grain": Peer(
        ("grain",),
        ("grain", "array_record.python.array_record_module"),
        write_grain,
        read_grain,
    ),
    "pread-direct": Peer(("numpy",), (), write_flat, read_pread_direct),
    "torch-dataloader": Peer(("torch",), ("torch.utils.data",), write_flat, read_torch),
}


def absence(peer: Peer) -> str | None:
    """Import the modules of a peer; the reason if that fails."""
    try:
        for name in peer.modules:
            import_module(name)
    except Exception as error:  # Broken installations raise more than ImportError.
        return f"{type(error).__name__}: {error}"
    return None


def cpu_seconds() -> float:
    """Seconds in user and system mode of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def first_values(rows: NDArray) -> NDArray:
    """The first two values of each bag as one number, which tells bags apart."""
    return np.ascontiguousarray(rows.reshape(len(rows), -1)[:, :2]).view(np.int64)[:, 0]


def measure(peer: Peer, folder: Path, memory: int, seconds: float, check: bool) -> dict:
    labels, seen, n_bytes = [], [], 0
    cpu_begin, begin, end = cpu_seconds(), time.perf_counter(), float("inf")
    batches = peer.read(folder, memory)
    for rows, batch_labels in batches:
        now = time.perf_counter()
        end = min(end, now + seconds)
        n_bytes += rows.nbytes
        labels.append(np.array(batch_labels))
        if check and rows.ndim > 1:
            seen.append(first_values(rows))
        if now >= end:
            break
    elapsed = time.perf_counter() - begin
    batches.close()
    del batches
    # Worker processes end here, so that their processor time is counted.
    gc.collect()
    delivered = np.concatenate(labels)
    vif = measured_vif(delivered)
    facts = {
        "bytes": n_bytes,
        "seconds": round(elapsed, 4),
        "cpu_seconds": round(cpu_seconds() - cpu_begin, 4),
        "vif": None if np.isnan(vif) else round(vif, 3),
    }
    if seen:
        values, places = np.unique(np.concatenate(seen), return_index=True)
        wanted = [(first_values(rows), numbers) for rows, numbers in corpus(len(delivered))]
        keys, numbers = (np.concatenate(parts) for parts in zip(*wanted, strict=True))
        order = np.argsort(keys)
        same = np.array_equal(values, keys[order])
        facts["every_bag_once"] = same and np.array_equal(delivered[places], numbers[order])
    return facts


def size(text: str) -> int:
    """Bytes of a text such as 256MiB."""
    match = re.fullmatch(r"(\d+)(|KiB|MiB|GiB)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"write a size such as 256MiB, not {text!r}")
    return int(match[1]) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[match[2]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader_peers")
    parser.add_argument("peer", choices=PEERS)
    verbs = parser.add_subparsers(dest="verb", required=True)
    write = verbs.add_parser("write", help="write the corpus")
    write.add_argument("folder", type=Path)
    write.add_argument("n_bags", type=int)
    read = verbs.add_parser("read", help="stream one epoch")
    read.add_argument("folder", type=Path)
    read.add_argument("--memory", type=size, default=1 << 30)
    read.add_argument("--seconds", type=float, default=float("inf"))
    read.add_argument("--check", action="store_true", help="compare every bag with the corpus")
    options = parser.parse_args()
    peer = PEERS[options.peer]
    reason = absence(peer)
    if reason:
        print(json.dumps({"peer": options.peer, "absent": reason}))
    elif options.verb == "write":
        options.folder.mkdir(parents=True, exist_ok=True)
        peer.write(options.folder, options.n_bags)
    else:
        versions = ", ".join(f"{name} {version(name)}" for name in peer.packages)
        facts = measure(peer, options.folder, options.memory, options.seconds, options.check)
        print(json.dumps({"peer": options.peer, "version": versions, **facts}))


if __name__ == "__main__":
    main()
