"""How fast a stream delivers the bags of a store, compared with the disk that holds it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streammiml.bags.block import SparseRows
from streammiml.bags.location import LocalFolder
from streammiml.bags.store import BagStore, open_one
from streammiml.blocks.disk_speed import Limit, device_limit, drop_from_cache, pread_speed
from streammiml.blocks.loader import BagBatch, stream
from streammiml.config import format_size
from streammiml.errors import StreammimlError

LEAST_BYTES = 8 << 20
"""Stores with fewer bytes on disk are refused: their figures would depend on chance."""
CASE_SECONDS = 0.5
"""Seconds of each case of the disk, and of reading from the page cache."""
STREAM_SECONDS, STREAM_BYTES = 5.0, 10**9
"""Upper limits for streaming after the first batch: seconds, and bytes of rows."""
BLOCK_BYTES, BLOCKS_TOGETHER = 256 << 10, 32
"""Bytes of rows in a block of :func:`block_speed`, and the blocks that are read by one call."""
MEGA, GIGA = 10**6, 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpeed:
    """Speed, processor time and mixing of a stream."""

    bytes_per_second: float
    """Bytes of rows in memory."""
    cpu_seconds_per_gb: float
    """Processor time of all threads for 10^9 bytes of rows."""
    vif: float
    """How unevenly labels are mixed; see :attr:`BagLoader.vif`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpeed:
    """Speeds of the disk and of a stream that reads a store from it."""

    limit: Limit
    cached: float
    """Bytes per second of one thread that reads from the page cache."""
    blocks: float
    """Bytes of rows per second of one thread that reads and checks random blocks, and does not mix
    them."""
    mixed: StreamSpeed
    stored_share: float
    """Bytes on disk, divided by the bytes of rows in memory."""
    cold: bool
    """Whether the page cache could be emptied before the stream began."""

    def figures(self) -> dict[str, Any]:
        """Figures with the names that ``streammiml info --speed --json`` prints.

        ``mixed_of_limit`` compares bytes on disk: those that the stream needed in a second, and
        those that the disk gave.
        """
        stored = self.mixed.bytes_per_second * self.stored_share
        return {
            "limit_mb_s": self.limit.bytes_per_second / MEGA,
            "limit_read": f"{_unspaced(self.limit.read_bytes)} x {self.limit.threads}",
            "limit_direct": self.limit.direct,
            "pread_mb_s": self.cached / MEGA,
            "read_mb_s": self.blocks / MEGA,
            "read_stored_mb_s": self.blocks * self.stored_share / MEGA,
            "mixed_mb_s": self.mixed.bytes_per_second / MEGA,
            "mixed_stored_mb_s": stored / MEGA,
            "mixed_of_limit": stored / self.limit.bytes_per_second,
            "mixed_cold": self.cold,
            "cpu_seconds_per_gb": self.mixed.cpu_seconds_per_gb,
            "vif": self.mixed.vif,
        }


def _unspaced(n_bytes: int) -> str:
    return format_size(n_bytes).replace(" ", "")


def store_speed(store: BagStore) -> StoreSpeed:
    """Measure the disk of a local store, and a stream of its bags, in about ten seconds.

    The page cache forgets the files of the store before the stream begins. Raises StreammimlError
    for a store under a URL, and for a store of less than ``LEAST_BYTES``.
    """
    if not isinstance(store.location, LocalFolder):
        raise StreammimlError(f"{store.name} is under a URL; --speed needs a local store")
    stored_bytes = sum(size for _, size, _ in store.manifest.files)
    streamed_bytes = stored_bytes - _unread_bytes(store)
    if stored_bytes < LEAST_BYTES:
        raise StreammimlError(
            f"{store.name} is too small to measure its speed: it has {format_size(stored_bytes)}, "
            f"--speed needs at least {format_size(LEAST_BYTES)}"
        )
    folder = store.location.path
    files = [folder / key for key, _, _ in store.manifest.files]
    limit = device_limit(files, seconds=CASE_SECONDS)
    cached = pread_speed(files, seconds=CASE_SECONDS)
    _begin_stream(folder)
    cold = drop_from_cache(files)
    blocks = block_speed(folder)
    cold &= drop_from_cache(files)
    return StoreSpeed(
        limit=limit,
        cached=cached,
        blocks=blocks,
        mixed=stream_speed(folder),
        stored_share=streamed_bytes / _all_row_bytes(store),
        cold=cold,
    )


def _unread_bytes(store: BagStore) -> int:
    """Bytes of arrays that streams do not read: row labels, ids and kept columns.

    In Zarr, an array has files of its own; files of Parquet hold all arrays.
    """
    unread = ("row_labels/", "bag_id_bytes/", "bag_id_offsets/", "kept_")
    return sum(size for key, size, _ in store.manifest.files if key.startswith(unread))


def block_speed(folder: Path) -> float:
    """Bytes of rows per second of one thread that reads and checks random groups of blocks."""
    store = open_one(folder)
    block_bags = max(1, store.n_bags * BLOCK_BYTES // _all_row_bytes(store))
    bag_bytes = _all_row_bytes(store) / store.n_bags
    starts = np.random.default_rng(0).permutation(-(-store.n_bags // block_bags)) * block_bags
    begun, n_bytes = time.perf_counter(), 0.0
    for first in range(0, len(starts), BLOCKS_TOGETHER):
        group = starts[first : first + BLOCKS_TOGETHER].tolist()
        ranges = [(start, min(start + block_bags, store.n_bags)) for start in group]
        store.read_ranges(ranges)
        n_bytes += sum(stop - start for start, stop in ranges) * bag_bytes
        if time.perf_counter() - begun > 2 * CASE_SECONDS:
            break
    return n_bytes / (time.perf_counter() - begun)


def _begin_stream(folder: Path) -> None:
    """Read a first batch, so that compiled code is loaded before the measurement."""
    with stream(folder) as batches:
        for _ in batches:
            return


class _Moment(NamedTuple):
    """Clock, processor time and delivered bytes at one moment of a stream."""

    seconds: float
    cpu_seconds: float
    n_bytes: int


def _now(n_bytes: int) -> _Moment:
    return _Moment(time.perf_counter(), time.process_time(), n_bytes)


def stream_speed(folder: Path) -> StreamSpeed:
    """Measure a stream with default settings over a local store, at most one epoch.

    The store is opened anew: a store that was read before believes that the page cache has its
    files, and reads otherwise.
    """
    store = open_one(folder)
    with stream(store) as batches:
        held = sum(n_bytes for name, n_bytes in batches.held.items() if name != "store")
        total = _all_row_bytes(store)
        # From the first batch on, a stream reads as much as it delivers. Near the end of an epoch
        # it delivers what it holds, so that only the part before counts. A stream that holds a
        # large share of the store is measured as a whole instead.
        is_steady = total >= 2 * held
        moments = _delivered(batches, total - held if is_steady else total)
        vif = batches.vif
    first, last = moments[1 if is_steady and len(moments) > 2 else 0], moments[-1]
    n_bytes = last.n_bytes - first.n_bytes
    return StreamSpeed(
        bytes_per_second=n_bytes / (last.seconds - first.seconds),
        cpu_seconds_per_gb=(last.cpu_seconds - first.cpu_seconds) / n_bytes * GIGA,
        vif=vif,
    )


def _delivered(batches: Iterable[BagBatch], most_bytes: int) -> list[_Moment]:
    """Take batches until a limit is reached; return the start and the moment of each batch."""
    moments = [_now(0)]
    for batch in batches:
        moments.append(_now(moments[-1].n_bytes + _row_bytes(batch)))
        first, last = moments[1], moments[-1]
        if (
            last.n_bytes >= most_bytes
            or last.n_bytes - first.n_bytes >= STREAM_BYTES
            or last.seconds - first.seconds >= STREAM_SECONDS
        ):
            break
    return moments


def _row_bytes(batch: BagBatch) -> int:
    rows = batch.rows
    if isinstance(rows, SparseRows):
        return rows.columns.nbytes + rows.values.nbytes
    return rows.nbytes


def _all_row_bytes(store: BagStore) -> int:
    """Bytes of all rows of a store in memory, counted like those of a batch."""
    columns = np.dtype(np.uint32).itemsize if store.sparse else 0
    return store.n_values * (np.dtype(store.dtype).itemsize + columns)
