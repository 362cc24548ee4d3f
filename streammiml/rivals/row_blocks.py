"""Passes over the bags of a store, in blocks of dense float64 rows that are scaled while read.

The blocks depend on the store alone: neither on threads nor on memory. Results of blocks come back
in order, so a sum over blocks has the same bits whether the blocks are held or read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.block import SparseRows
from streammiml.bags.offsets import cuts_by_bytes
from streammiml.bags.views import Bags
from streammiml.errors import unknown
from streammiml.rivals.costs import BLOCK_BYTES, PLAIN_BYTES

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
BlockResult = TypeVar("BlockResult")
Task = TypeVar("Task")


ROW_SCALES = ("range", "unit")
"""Scales of methods that compare rows by their distance."""


CALLS_OF_THREAD = 4
"""Results that are held for each thread."""


class RowBlock(NamedTuple):
    """Bags ``first`` and following, with their rows."""

    number: int
    """Number of the block."""
    first: int
    offsets: I64
    """(n + 1,) Bounds of each bag in ``rows``."""
    rows: F64

    @property
    def bags(self) -> slice:
        """Numbers of the bags in the store."""
        return slice(self.first, self.first + len(self.offsets) - 1)

    @property
    def bag_of_row(self) -> I64:
        """(rows,) Number of each row's bag within the block."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


class Scaling(NamedTuple):
    """Rows become ``(rows - shift) * factor``, feature by feature, and of length 1 if ``unit``."""

    shift: F64
    factor: F64
    unit: bool = False

    def apply(self, rows: F64) -> F64:
        """Scale rows (rows, features); a row of zeros stays."""
        rows = (rows - self.shift) * self.factor
        if self.unit:
            lengths = np.sqrt((rows**2).sum(axis=1, keepdims=True))
            rows /= np.where(lengths > 0, lengths, 1.0)
        return rows

    @classmethod
    def called(cls, name: str, blocks: RowBlocks, known: Sequence[str]) -> Scaling:
        """``range`` is :meth:`to_unit_interval`; ``unit`` gives each row the length 1.

        ``standard`` is :meth:`to_unit_deviation`, divided by the root of the number of features.
        A name that is not in ``known`` is refused.
        """
        if name not in known:
            raise unknown("scale", name, known)
        n_features = blocks.store.n_features
        if name == "range":
            return cls.to_unit_interval(blocks)
        if name == "standard":
            shift, factor, _ = cls.to_unit_deviation(blocks)
            return cls(shift, factor / math.sqrt(n_features))
        return cls(np.zeros(n_features), np.ones(n_features), unit=True)

    @classmethod
    def to_unit_interval(cls, blocks: RowBlocks) -> Scaling:
        """Map the range of each feature to [0, 1]; a constant feature becomes 0."""
        ranges = list(blocks.map(_ranges))
        low = np.min([lowest for lowest, _ in ranges], axis=0)
        width = np.max([highest for _, highest in ranges], axis=0) - low
        return cls(low, np.divide(1.0, width, out=np.zeros_like(width), where=width > 0))

    @classmethod
    def to_unit_deviation(cls, blocks: RowBlocks) -> Scaling:
        """Give each feature the mean 0 and the deviation 1; a constant feature becomes 0."""
        n_rows = sum(blocks.map(_row_count))
        mean = sum(blocks.map(_row_sums), np.zeros(blocks.store.n_features)) / n_rows
        squares = sum(blocks.map(_square_sums, mean), np.zeros(blocks.store.n_features))
        deviation = np.sqrt(squares / n_rows)
        is_constant = deviation <= 1e-12 * np.maximum(np.abs(mean), 1.0)
        factor = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=~is_constant)
        return cls(mean, factor)


def _ranges(block: RowBlock) -> tuple[F64, F64]:
    return block.rows.min(axis=0), block.rows.max(axis=0)


def _row_count(block: RowBlock) -> int:
    return len(block.rows)


def _row_sums(block: RowBlock) -> F64:
    return np.asarray(block.rows.sum(axis=0))


def _square_sums(block: RowBlock, mean: F64) -> F64:
    return np.asarray(((block.rows - mean) ** 2).sum(axis=0))


class RowBlocks:
    """The bags of a store in blocks of about ``block_bytes``, by default 16 MiB.

    ``width`` is the number of values that tasks make for each row, if that is more than the row
    has. Blocks are held if all of them, with these values, take at most ``held_bytes``.
    """

    def __init__(
        self,
        store: Bags,
        *,
        scaling: Scaling | None = None,
        block_bytes: int | None = None,
        width: int = 0,
        held_bytes: int = 0,
        threads: int = 1,
    ) -> None:
        self.store, self.scaling, self.threads = store, scaling, threads
        sizes = store.bag_sizes(0, store.n_bags)
        widest = PLAIN_BYTES * max(store.n_features, width)
        self.ranges = cuts_by_bytes(sizes * widest, block_bytes or BLOCK_BYTES)
        n_bytes = int(sizes.sum()) * PLAIN_BYTES * (store.n_features + width)
        self.is_held = n_bytes <= held_bytes
        """Whether blocks stay in memory after they were read."""
        self._held: dict[int, RowBlock] = {}

    def __len__(self) -> int:
        return len(self.ranges)

    def read(self, number: int) -> RowBlock:
        """Read a block, or return the block that is held."""
        if number in self._held:
            return self._held[number]
        start, stop = self.ranges[number]
        stored = self.store.read(start, stop, row_labels=False, kept=False)
        dense = stored.rows.dense() if isinstance(stored.rows, SparseRows) else stored.rows
        rows = np.ascontiguousarray(dense, np.float64)
        if self.scaling is not None:
            rows = self.scaling.apply(rows)
        block = RowBlock(number, start, stored.bag_offsets, rows)
        if self.is_held:
            self._held[number] = block
        return block

    def map(self, task: Callable[..., BlockResult], *shared: Any) -> Iterator[BlockResult]:
        """Yield ``task(block, *shared)`` of each block, in order."""
        return in_order(
            partial(_on_block, blocks=self, task=task, shared=shared),
            range(len(self)),
            self.threads,
        )


def _on_block(
    number: int,
    *,
    blocks: RowBlocks,
    task: Callable[..., BlockResult],
    shared: tuple[Any, ...],
) -> BlockResult:
    return task(blocks.read(number), *shared)


def in_order(task: Callable[[Any], BlockResult], items: Any, threads: int) -> Iterator[BlockResult]:
    """Yield ``task(item)`` for each item, in order, on so many threads.

    With one thread no pool is opened, so that this can run inside a task of another pool.
    """
    if threads == 1:
        yield from map(task, items)
        return
    remaining = iter(items)
    with open_pool(PoolOptions(threads=threads)) as pool:
        # The pool holds the results of a call until they are taken, so calls are short.
        while calls := list(islice(remaining, CALLS_OF_THREAD * threads)):
            yield from pool.map(task, calls)
