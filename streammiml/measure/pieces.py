"""Pieces of a store, each the work of one task, that any process can read."""

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
"""What a bag takes in a block beside rows and labels."""


@dataclass(frozen=True, slots=True)
class Named:
    """A store by what another process can open."""

    names: tuple[str, ...]
    fingerprint: str

    def open(self) -> Bags:
        """The store; each process opens it once."""
        return _opened(self)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Bags ``start`` to ``stop`` of a store."""

    store: Bags | Named
    start: int
    stop: int
    numbers: I64 | None = None
    """Of a view sent elsewhere: which bags of ``store`` they are."""

    @property
    def source(self) -> Bags:
        """The store, open."""
        return self.store.open() if isinstance(self.store, Named) else self.store

    def read(self) -> BagBlock:
        """The bags."""
        store = self.source
        if self.numbers is not None:
            return store.read_bags(self.numbers)
        return store.read(self.start, self.stop)

    def bags(self) -> Bags:
        """The bags, as a store of their own."""
        store = self.source
        if self.numbers is not None:
            return store.view(self.numbers)
        if (self.start, self.stop) == (0, store.n_bags):
            return store
        return store.view(slice(self.start, self.stop))

    def cut(self, start: int, stop: int) -> Piece:
        """Bags ``start`` to ``stop`` of those it is cut from, numbered as ``self.start`` is."""
        numbers = self.numbers
        if numbers is not None:
            numbers = numbers[start - self.start : stop - self.start]
        return Piece(self.store, start, stop, numbers)

    def cuts(self, block_bytes: int) -> Iterator[Piece]:
        """The same bags in pieces of ``block_bytes`` at most, or of one longer bag."""
        store, first, last = self.source, self.start, self.stop
        if self.numbers is not None:
            store, first, last = store.view(self.numbers), 0, len(self.numbers)
        for start, stop in ranges(store, block_bytes, first, last):
            yield self.cut(start - first + self.start, stop - first + self.start)

    def labels(self) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets and label indices of the bags, without reading rows."""
        if self.numbers is not None:
            return self.source.view(self.numbers).labels(0, len(self.numbers))
        return self.source.labels(self.start, self.stop)

    def bag_numbers(self) -> I64:
        """Numbers of the bags in the store behind, however many views lie between."""
        if self.numbers is not None:
            return self.numbers
        store, numbers = self.source, np.arange(self.start, self.stop)
        while isinstance(store, StoreView):
            numbers = store.indices[numbers]
            store = store.base
        return numbers

    def bag_ids(self) -> list[str] | I64:
        """Names of the bags, or the numbers that stand for them where a store has none."""
        if not self.source.has_bag_ids and not isinstance(self.source, StoreView):
            # Making text of each would take as long as scoring a small bag, one thread at a time.
            return np.arange(self.start, self.stop) if self.numbers is None else self.numbers
        if self.numbers is not None:
            return self.source.view(self.numbers).bag_ids(0, len(self.numbers))
        return self.source.bag_ids(self.start, self.stop)


def whole(store: Bags, *, remote: bool) -> Piece:
    """All bags of a store as one piece; ``remote`` if it is to be sent to other processes."""
    base, numbers = _flat(store) if remote and isinstance(store, StoreView) else (store, None)
    return Piece(_named(base) if remote else base, 0, store.n_bags, numbers)


def pieces(store: Bags, block_bytes: int, *, remote: bool) -> Iterator[Piece]:
    """All bags in order, in pieces of ``block_bytes`` at most, or of one longer bag.

    Only offsets are read. ``remote`` pieces can be sent to other processes.
    """
    everything = whole(store, remote=remote)
    for start, stop in ranges(store, block_bytes):
        yield everything.cut(start, stop)


def ranges(
    store: Bags, block_bytes: int, begin: int = 0, end: int | None = None
) -> Iterator[tuple[int, int]]:
    """Start and stop of each piece of bags ``begin`` to ``end``, or of all."""
    end = store.n_bags if end is None else end
    a_row = row_bytes(store)
    a_bag = BAG_BYTES + 4 * store.n_label_entries / max(1, store.n_bags)
    for first in range(begin, end, SCAN_BAGS):
        sizes = store.bag_sizes(first, min(first + SCAN_BAGS, end))
        ends = np.cumsum(sizes * a_row + a_bag)
        start, done = 0, 0.0
        while start < len(sizes):
            stop = max(start + 1, int(np.searchsorted(ends, done + block_bytes, "right")))
            yield first + start, first + stop
            start, done = stop, float(ends[stop - 1])


def store_bytes(store: Bags) -> float:
    """Bytes that all its bags would take in memory, about."""
    labels = 4 * store.n_label_entries + BAG_BYTES * store.n_bags
    return row_bytes(store) * store.n_rows + labels


def _flat(view: StoreView) -> tuple[Bags, I64]:
    """The store behind a view of a view, and the numbers of the view's bags there."""
    if isinstance(view.base, StoreView):
        base, numbers = _flat(view.base)
        return base, numbers[view.indices]
    return view.base, view.indices


def _named(store: Bags) -> Named:
    parts = store.stores if isinstance(store, JoinedStore) else [store]
    names = []
    for part in parts:
        if not isinstance(part, BagStore):
            raise StoreError(f"{store.name} cannot be sent to workers; leave it to threads")
        # Workers may have started in another folder.
        names.append(part.name if "://" in part.name else str(Path(part.name).absolute()))
    return Named(tuple(names), store.fingerprint)


@lru_cache(4)
def _opened(named: Named) -> Bags:
    store = open_store(named.names)
    if store.fingerprint != named.fingerprint:
        raise StoreError(
            f"{store.name} is another store to a worker, of fingerprint {store.fingerprint} and "
            f"not {named.fingerprint}; workers must see the same files"
        )
    return store
