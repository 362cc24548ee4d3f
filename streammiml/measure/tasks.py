"""How a store is cut into tasks: ranges of bags that any process can read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.store import BagStore, open_store
from streammiml.bags.views import SCAN_BAGS, Bags, JoinedStore, StoreView
from streammiml.blocks.budget import row_bytes
from streammiml.errors import StoreError

I64 = NDArray[np.int64]

BAG_BYTES = 64
"""Bytes that a bag takes in a block beside its rows and labels."""
NUMBERED_BAGS = 1 << 16
"""Most bags of a remote task of a view: their numbers are sent, 8 bytes for each bag."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Absolute paths or URLs with which another process can open a store."""

    names: tuple[str, ...]
    fingerprint: str

    def open(self) -> Bags:
        """Open the store; each process opens it once."""
        return _open_once(self)


@dataclass(frozen=True, slots=True, eq=False)
class BagRange:
    """Bags ``start`` to ``stop`` of a store; can be pickled if ``store`` is a StoreAddress."""

    store: Bags | StoreAddress
    start: int
    stop: int
    numbers: I64 | None = None
    """Numbers of the bags in ``store``, for a view that is sent to another process."""

    @property
    def source(self) -> Bags:
        """The opened store."""
        return self.store.open() if isinstance(self.store, StoreAddress) else self.store

    def read(self, *, kept: bool = False) -> BagBlock:
        """Read the bags into one block, with the values of kept columns if ``kept`` is True."""
        store = self.source
        if self.numbers is not None:
            return store.read_bags(self.numbers, kept=kept)
        return store.read(self.start, self.stop, kept=kept)

    def bags(self) -> Bags:
        """The bags as a view of the store, or the store itself if the range covers it."""
        store = self.source
        if self.numbers is not None:
            return store.view(self.numbers)
        if (self.start, self.stop) == (0, store.n_bags):
            return store
        return store.view(slice(self.start, self.stop))

    def cut(self, start: int, stop: int) -> BagRange:
        """Bags ``start`` to ``stop`` of this range, in the numbering of ``self.start``."""
        numbers = self.numbers
        if numbers is not None:
            numbers = numbers[start - self.start : stop - self.start]
        return BagRange(self.store, start, stop, numbers)

    def cuts(self, block_bytes: int) -> Iterator[BagRange]:
        """Cut into ranges of at most ``block_bytes``; a larger bag is a range of its own."""
        store, first, last = self.source, self.start, self.stop
        if self.numbers is not None:
            store, first, last = store.view(self.numbers), 0, len(self.numbers)
        for start, stop in range_bounds(store, block_bytes, first, last):
            yield self.cut(start - first + self.start, stop - first + self.start)

    def labels(self) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets and label indices of the bags, without reading rows."""
        if self.numbers is not None:
            return self.source.view(self.numbers).labels(0, len(self.numbers))
        return self.source.labels(self.start, self.stop)

    def bag_numbers(self) -> I64:
        """Numbers of the bags in the base store of nested views."""
        if self.numbers is not None:
            return self.numbers
        store, numbers = self.source, np.arange(self.start, self.stop)
        while isinstance(store, StoreView):
            numbers = store.indices[numbers]
            store = store.base
        return numbers

    def bag_ids(self) -> list[str] | I64:
        """Names of the bags, or their numbers if the store has no names."""
        if not self.source.has_bag_ids and not isinstance(self.source, StoreView):
            # Converting numbers to text here would take as long as scoring a small bag, and would
            # hold the interpreter lock.
            return np.arange(self.start, self.stop) if self.numbers is None else self.numbers
        if self.numbers is not None:
            return self.source.view(self.numbers).bag_ids(0, len(self.numbers))
        return self.source.bag_ids(self.start, self.stop)


def all_bags(store: Bags, *, remote: bool) -> BagRange:
    """All bags of a store as one range; ``remote`` if other processes will read it."""
    base, numbers = _flat(store) if remote and isinstance(store, StoreView) else (store, None)
    return BagRange(_address(base) if remote else base, 0, store.n_bags, numbers)


def split_into_tasks(
    store: Bags, task_bytes: int, *, remote: bool, most_bags: int | None = None
) -> Iterator[BagRange]:
    """Cut a store, in order, into tasks of at most ``task_bytes``, or of one larger bag.

    Only offsets are read. ``remote`` tasks can be sent to other processes; those of a view carry
    the numbers of their bags, so they have at most ``NUMBERED_BAGS`` bags.
    """
    everything = all_bags(store, remote=remote)
    for start, stop in range_bounds(store, task_bytes):
        step = min(stop - start, most_bags or stop - start)
        if everything.numbers is not None:
            step = min(step, NUMBERED_BAGS)
        for first in range(start, stop, step):
            yield everything.cut(first, min(first + step, stop))


def range_bounds(
    store: Bags, block_bytes: int, begin: int = 0, end: int | None = None
) -> Iterator[tuple[int, int]]:
    """Start and stop of each range of at most ``block_bytes`` among bags ``begin`` to ``end``."""
    end = store.n_bags if end is None else end
    bytes_per_row = row_bytes(store)
    bytes_per_bag = BAG_BYTES + 4 * store.n_label_entries / max(1, store.n_bags)
    # Bytes of all bags before ``start``, and before the bags that are scanned now.
    start, start_bytes, scan_bytes = begin, 0.0, 0.0
    for first in range(begin, end, SCAN_BAGS):
        sizes = store.bag_sizes(first, min(first + SCAN_BAGS, end))
        ends = scan_bytes + np.cumsum(sizes * bytes_per_row + bytes_per_bag)
        while True:
            n_fitting = int(np.searchsorted(ends, start_bytes + block_bytes, "right"))
            if n_fitting == len(ends):
                break  # The range goes on with the next scan.
            stop = max(start + 1, first + n_fitting)
            yield start, stop
            start = stop
            start_bytes = scan_bytes if start == first else float(ends[start - first - 1])
        scan_bytes = float(ends[-1])
    if start < end:
        yield start, end


def store_bytes(store: Bags) -> float:
    """Estimate of the bytes that all bags of a store would take in memory."""
    labels = 4 * store.n_label_entries + BAG_BYTES * store.n_bags
    return row_bytes(store) * store.n_rows + labels


def _flat(view: StoreView) -> tuple[Bags, I64]:
    """The base store of nested views, and the numbers of the view's bags in that store."""
    if isinstance(view.base, StoreView):
        base, numbers = _flat(view.base)
        return base, numbers[view.indices]
    return view.base, view.indices


def _address(store: Bags) -> StoreAddress:
    members = store.stores if isinstance(store, JoinedStore) else [store]
    names = []
    for member in members:
        if not isinstance(member, BagStore):
            raise StoreError(f"{store.name} cannot be sent to workers; use threads instead")
        # A worker may have another working directory.
        names.append(member.name if "://" in member.name else str(Path(member.name).absolute()))
    return StoreAddress(tuple(names), store.fingerprint)


@lru_cache(4)
def _open_once(address: StoreAddress) -> Bags:
    store = open_store(address.names)
    if store.fingerprint != address.fingerprint:
        raise StoreError(
            f"a worker sees another store at {store.name}: its fingerprint is "
            f"{store.fingerprint}, not {address.fingerprint}; workers must see the same files"
        )
    return store
