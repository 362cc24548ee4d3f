"""Scores of all bags by label, as counts in bounded memory: what areas under curves need.

An area under a curve compares the scores of a label over all bags. As long as there are at most
``most`` different scores, every one is kept, and the areas are exact. If there are more, the
lowest bits of all scores are dropped, as few as possible: scores that differ in these bits alone
count as equal, and the areas have bounds.

How many bits are dropped depends on all bags together, never on how they were cut. More bags can
only have more different scores, so a part never drops more bits than the whole, and a sum drops
bits until it fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.offsets import from_sizes
from streammiml.kernel.score_counts import (
    KEY_BITS,
    add_sizes,
    count_keys,
    curve_sums,
    merge_counts,
    score_keys,
)

I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

MOST_RAW = 1 << 20
"""Scores that wait to be sorted together, 4 bytes each."""
_KEY_BITS = np.uint64(KEY_BITS)
_NO_KEY = np.uint32(0xFFFFFFFF)
"""Above the key of every finite score."""


class CountTable(NamedTuple):
    """Counts of distinct keys by label; see ``kernel/score_counts.py``."""

    offsets: I64
    """(L + 1,) Bounds of the entries of each label."""
    keys: U32
    counts: I64

    @property
    def arrays(self) -> tuple[I64, U32, I64]:
        """The table as kernels take it."""
        return self.offsets, self.keys, self.counts

    def merged(self, other: CountTable, dropped: int) -> CountTable:
        """Sum of both, without the lowest ``dropped`` bits of the keys."""
        mask = np.uint32((1 << KEY_BITS) - (1 << dropped))
        size = len(self.keys) + len(other.keys)
        out = CountTable(*_empty(len(self.offsets) - 1, size))
        merge_counts(self.arrays, other.arrays, mask, out.arrays)
        return out.trimmed()

    def coarse(self, dropped: int) -> CountTable:
        """The same counts without the lowest ``dropped`` bits of the keys."""
        return self.merged(CountTable(*_empty(len(self.offsets) - 1, 0)), dropped)

    def pooled(self) -> CountTable:
        """Counts of all labels together, as a table of one label."""
        order = np.argsort(self.keys)
        keys, counts = self.keys[order], self.counts[order]
        if not len(keys):
            return CountTable(np.zeros(2, np.int64), keys, counts)
        starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
        return CountTable(np.array([0, len(starts)]), keys[starts], np.add.reduceat(counts, starts))

    def trimmed(self) -> CountTable:
        """The entries alone; the memory behind them is freed if it is more than a quarter."""
        size = int(self.offsets[-1])
        keys, counts = self.keys[:size], self.counts[:size]
        if 4 * size < 3 * len(self.keys):
            keys, counts = keys.copy(), counts.copy()
        return CountTable(self.offsets, keys, counts)


class Layer(NamedTuple):
    """Scores of some bags without their lowest ``dropped`` bits."""

    dropped: int
    carried: CountTable
    """Scores of (bag, label) pairs whose bag carries the label."""
    others: CountTable
    """Scores of the other pairs."""

    @property
    def size(self) -> int:
        """Number of entries."""
        return len(self.carried.keys) + len(self.others.keys)

    def merged(self, other: Layer, most: int) -> Layer:
        """Scores of the bags of both, in at most ``most`` entries."""
        dropped = max(self.dropped, other.dropped)
        carried = self.carried.merged(other.carried, dropped)
        others = self.others.merged(other.others, dropped)
        return Layer(dropped, carried, others).fitting(most)

    def fitting(self, most: int) -> Layer:
        """Drop as few bits as possible to keep ``most`` entries; one entry per label stays."""
        if self.size <= most:
            return self
        sizes = np.zeros(KEY_BITS + 1, np.int64)
        for table in (self.carried, self.others):
            add_sizes(table.offsets, table.keys, sizes)
        dropped = max(self.dropped, min(int((sizes > most).sum()), KEY_BITS))
        if dropped == self.dropped:
            return self
        return Layer(dropped, self.carried.coarse(dropped), self.others.coarse(dropped))


class Curves(NamedTuple):
    """Figures of each label, NaN where undefined: arrays (L,), with a lower and an upper bound.

    Where no bits were dropped, the bounds equal the figures.
    """

    auc: F64
    auc_low: F64
    auc_high: F64
    precision: F64
    """Average precision: a step for each distinct score, as in scikit-learn."""
    precision_low: F64
    precision_high: F64


class RawScores(NamedTuple):
    """Keys of the scores of some bags, in any order; sorting many at once is faster."""

    keys: U32
    """(L, n) Keys of the scores; ``_NO_KEY`` where the bag carries the label."""
    carried: U64
    """Label and key of each (bag, label) pair whose bag carries the label, in one number."""

    @property
    def size(self) -> int:
        """Number of scores."""
        return self.keys.size

    def joined(self, other: RawScores) -> RawScores:
        """Scores of the bags of both."""
        keys = np.concatenate([self.keys, other.keys], axis=1)
        return RawScores(keys, np.concatenate([self.carried, other.carried]))

    def counted(self) -> Layer:
        """The scores as counts, without dropping bits."""
        n_labels, n_bags = self.keys.shape
        pairs, keys = np.sort(self.carried), np.sort(self.keys, axis=1)
        n_carried = np.bincount((pairs >> _KEY_BITS).astype(np.int64), minlength=n_labels)
        ends = from_sizes(n_carried)
        starts = n_bags * np.arange(n_labels)
        carried = _counted((pairs & _NO_KEY).astype(np.uint32), ends[:-1], ends[1:])
        return Layer(0, carried, _counted(keys.ravel(), starts, starts + n_bags - n_carried))


Sized = TypeVar("Sized", RawScores, Layer)


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Counts of the scores of some bags by label, which can be added in any order."""

    most: int
    """Upper limit for the entries that are kept, unless there are more labels."""
    raw: tuple[RawScores, ...]
    """At most ``MOST_RAW`` scores, or those of one block."""
    layers: tuple[Layer, ...]
    """Scores of all other bags."""

    @classmethod
    def of(cls, scores: F32, carried: tuple[NDArray[Any], NDArray[Any]], most: int) -> ScoreCounts:
        """Scores (n, L) of a block; ``carried``: bags and labels of the relevant pairs."""
        keys = np.empty(scores.shape[::-1], np.uint32)
        score_keys(np.ascontiguousarray(scores).view(np.uint32), keys)
        bags, labels = carried
        pairs = labels.astype(np.uint64) << _KEY_BITS | keys[labels, bags]
        keys[labels, bags] = _NO_KEY
        return cls(most, (RawScores(keys, pairs),), ())

    def add(self, other: ScoreCounts) -> ScoreCounts:
        """Counts of the bags of both."""
        raw, layers = (*self.raw, *other.raw), (*self.layers, *other.layers)
        if sum(scores.size for scores in raw) > MOST_RAW:
            raw, layers = (), (*layers, reduce(RawScores.joined, raw).counted().fitting(self.most))
        return ScoreCounts(self.most, _piled(raw, RawScores.joined), _piled(layers, self._merged))

    def _merged(self, one: Layer, other: Layer) -> Layer:
        return one.merged(other, self.most)

    @cached_property
    def total(self) -> Layer:
        """Counts of all bags in one layer."""
        layers = self.layers
        if self.raw:
            layers = (*layers, reduce(RawScores.joined, self.raw).counted().fitting(self.most))
        return reduce(self._merged, sorted(layers, key=lambda layer: layer.size))

    @property
    def is_exact(self) -> bool:
        """Whether every score was kept whole."""
        return self.total.dropped == 0

    @cached_property
    def by_label(self) -> Curves:
        """Figures of each label."""
        return _curves(self.total.carried, self.total.others, is_exact=self.is_exact)

    @cached_property
    def pooled(self) -> Curves:
        """Figures of all (bag, label) pairs together: arrays of length 1."""
        carried, others = self.total.carried.pooled(), self.total.others.pooled()
        return _curves(carried, others, is_exact=self.is_exact)


def _piled(items: tuple[Sized, ...], merge: Callable[[Sized, Sized], Sized]) -> tuple[Sized, ...]:
    """Merge items of similar size, so that each is more than twice as large as the next.

    A sum of many blocks then merges each entry about as often as the logarithm of their number.
    """
    piled: list[Sized] = []
    for item in sorted(items, key=lambda item: item.size):
        if piled and item.size <= 2 * piled[-1].size:
            piled[-1] = merge(item, piled[-1])
        else:
            piled.append(item)
    return tuple(reversed(piled))


def _empty(n_labels: int, size: int) -> tuple[I64, U32, I64]:
    return np.zeros(n_labels + 1, np.int64), np.empty(size, np.uint32), np.empty(size, np.int64)


def _counted(keys: U32, starts: I64, stops: I64) -> CountTable:
    table = CountTable(*_empty(len(starts), int((stops - starts).sum())))
    count_keys(keys, starts, stops, *table)
    return table.trimmed()


def _curves(carried: CountTable, others: CountTable, *, is_exact: bool) -> Curves:
    n_labels = len(carried.offsets) - 1
    totals, sums = np.empty((n_labels, 2), np.int64), np.empty((n_labels, 5))
    curve_sums(carried.arrays, others.arrays, totals, sums)
    below, ties, *precisions = sums.T
    n_carried, n_others = totals.astype(np.float64).T
    # 0 / 0 is NaN: a label that no bag carries, or every bag.
    with np.errstate(invalid="ignore"):
        pairs = n_carried * n_others
        auc, half = below / pairs, ties / (2 * pairs)
        precision, low, high = (each / n_carried for each in precisions)
    if is_exact:
        return Curves(auc, auc, auc, precision, precision, precision)
    return Curves(auc, auc - half, auc + half, precision, low, high)
