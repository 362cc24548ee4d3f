"""Mixing the bags of blocks: a table of their addresses in memory and of their rounds.

Blocks are read in groups, so that the table is computed for many bags at once. The table of a group
has one line per bag. A ``Calendar`` sorts the lines by the batch in which their bags are due, and
holds the blocks of a group until the last of their bags has been copied into a batch. A plan that
mixes all blocks needs no calendar: the blocks are read once and held, and an epoch is an order of
bag numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.bags.range_group import Located, RangeGroup, SparseGroup
from streammiml.blocks.bag_copies import collect, copy_ranges, insert, locate
from streammiml.blocks.plan import BlockPlan

I64 = NDArray[np.int64]
_SIGN = np.uint64(1 << 63)
"""Flipping this bit of unsigned integers gives signed integers in the same order."""
# Columns of a group's table. ROWS, LABELS, COLUMNS and VALUES are addresses of the first element of
# a bag; N_ROWS, N_LABELS and N_VALUES count its elements.
ROUND, TURN, NUMBER, LEFT_OUT, ROWS, N_ROWS, LABELS, N_LABELS = range(8)
COLUMNS, VALUES, N_VALUES = range(8, 11)
FIRST_ADDRESS, _WIDTH = ROWS, 11
NO_LINES = np.empty((0, _WIDTH), np.int64)


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Blocks that were read together, and a table with one line per bag."""

    table: I64
    held: list[Any]
    """Objects that own the memory at the addresses in the table."""


def group_of(firsts: Sequence[int], bags: RangeGroup) -> BlockGroup:
    """Make a group; ``firsts`` are the numbers of the first bags of the ranges of ``bags``.

    ``set_turns`` fills the columns that depend on the epoch.
    """
    sizes = bags.n_bags
    table = np.empty((int(sizes.sum()), _WIDTH), np.int64)
    ends = np.cumsum(sizes)
    table[:, NUMBER] = np.arange(len(table)) + np.repeat(np.array(firsts) - (ends - sizes), sizes)

    def write(offsets: I64, values: Located, starts: int, lengths: int) -> None:
        """Fill the columns ``starts`` and ``lengths`` of the table."""
        addresses, value_bytes = values.addresses, values.value_bytes
        locate(offsets, sizes, addresses, value_bytes, table[:, starts], table[:, lengths])

    write(bags.label_offsets, bags.labels, LABELS, N_LABELS)
    rows = bags.rows
    if isinstance(rows, SparseGroup):
        write(bags.bag_offsets, rows.row_lengths, ROWS, N_ROWS)
        write(rows.value_offsets, rows.columns, COLUMNS, N_VALUES)
        write(rows.value_offsets, rows.values, VALUES, N_VALUES)
    else:
        write(bags.bag_offsets, rows, ROWS, N_ROWS)
    return BlockGroup(table, [bags])


def set_turns(
    table: I64, plan: BlockPlan, epoch: int, positions: I64, left_out: NDArray[np.bool_]
) -> None:
    """Write round and turn of each bag in an epoch, and whether the bag is left out.

    The turn is the sort key of a bag within its round. ``positions`` has, for each bag, the
    position of its block in the epoch.
    """
    numbers = table[:, NUMBER]
    table[:, ROUND] = positions + plan.delays_of(epoch, numbers)
    # Turns are unsigned; the column is signed and must have the same order.
    table[:, TURN] = (plan.turns_of(epoch, numbers) ^ _SIGN).view(np.int64)
    table[:, LEFT_OUT] = left_out


class Calendar:
    """Lines of bags, listed by the batch in which the bags are due.

    Batch i has ``step`` rounds, beginning with round ``first`` + i · ``step``.
    """

    def __init__(self, plan: BlockPlan, first: int, step: int) -> None:
        self._plan, self._first, self._step = plan, first, step
        n_batches = -(-(plan.n_blocks - first) // step)
        # A ring of linked lists, one per batch. Lines are due at most a window and two groups
        # ahead, so two batches never share a list.
        ring = min(n_batches, plan.window // step + 4)
        self._heads = np.full(max(ring, 1), -1)
        self._lines = self._out = NO_LINES
        self._next = self._free = np.empty(0, np.int64)
        self._n_free = 0
        self._held: dict[int, list[BlockGroup]] = defaultdict(list)

    def insert(self, group: BlockGroup) -> None:
        """Add the lines of a group whose rounds are in the rest of this epoch.

        Rounds are counted modulo their number, so the last blocks of an epoch are read twice: at
        its beginning and at its end. Other lines of the group are ignored: they are inserted when
        their block is read for the other time, or their rounds come before ``first``.
        """
        plan, table = self._plan, group.table
        if len(table) > self._n_free:
            self._grow(len(table))
        self._n_free, last = insert(
            table,
            table[:, ROUND],
            self._first,
            plan.n_blocks,
            self._step,
            self._lines,
            self._next,
            self._heads,
            self._free,
            self._n_free,
        )
        self._held[last].append(group)

    def _grow(self, n: int) -> None:
        """Allocate slots for at least ``n`` more lines; the number of slots at least doubles."""
        n_before = len(self._lines)
        n_added = max(n, n_before)
        self._lines = np.concatenate([self._lines, np.empty((n_added, _WIDTH), np.int64)])
        self._out = np.empty_like(self._lines)
        self._next = np.concatenate([self._next, np.empty(n_added, np.int64)])
        added = np.arange(n_before, n_before + n_added)
        self._free = np.concatenate(
            [self._free[: self._n_free], added, np.empty(n_before, np.int64)]
        )
        self._n_free += n_added

    def groups(self) -> Iterator[BlockGroup]:
        """Yield the groups that are held."""
        for groups in self._held.values():
            yield from groups

    def collect(self, number: int) -> tuple[I64, list[BlockGroup]]:
        """Remove the lines of a batch; returns them in the order of their visit.

        Also returns the groups whose last bags are in this batch; the caller must hold the groups
        until the bags are copied.
        """
        out = self._out
        n_lines = collect(
            number, self._lines, self._next, self._heads, self._free, self._n_free, out
        )
        self._n_free += n_lines
        lines = out[:n_lines]
        order = np.lexsort((lines[:, TURN], lines[:, ROUND]))
        return lines[order], self._held.pop(number, [])


def visits(plan: BlockPlan, epoch: int, step: int) -> Iterator[tuple[int, I64, bool]]:
    """Order the bags of an epoch, ``step`` rounds at a time, for a plan that mixes all blocks.

    Yields the place of the first bag, the numbers of the bags in the order of their visit, and
    whether they are the last of the epoch.
    """
    blocks = plan.blocks_at(epoch, np.arange(plan.n_blocks))
    numbers = (blocks[:, None] * plan.block_bags + np.arange(plan.block_bags)).ravel()
    positions = np.repeat(np.arange(plan.n_blocks), plan.block_bags)[numbers < plan.n_bags]
    numbers = numbers[numbers < plan.n_bags]
    # Rounds are taken modulo their number here, because all blocks stay in memory.
    # ``Calendar.insert`` takes no modulo, because its blocks are read and released.
    rounds = plan.rounds_of(epoch, positions, numbers)
    turns = plan.turns_of(epoch, numbers)
    # numpy sorts 16-bit integers by radix sort, in linear time. Turns are sorted batch by batch.
    sort_keys = rounds.astype(np.uint16) if plan.n_blocks <= 1 << 16 else rounds
    order = np.argsort(sort_keys, kind="stable")
    ends = np.cumsum(np.bincount(rounds, minlength=plan.n_blocks)).tolist()
    start = 0
    stops = [*ends[step - 1 : -1 : step], ends[-1]]
    for number, stop in enumerate(stops, 1):
        due = order[start:stop]
        yield start, numbers[due[np.lexsort((turns[due], rounds[due]))]], number == len(stops)
        start = stop


def bag_bytes(lines: I64, *, n_features: int, dtype: str, sparse: bool) -> I64:
    """Bytes of the rows of each bag, without the offsets of sparse rows."""
    value_bytes = np.dtype(dtype).itemsize
    if sparse:
        return lines[:, N_VALUES] * (4 + value_bytes)
    return lines[:, N_ROWS] * (n_features * value_bytes)


def owner_of(line: I64, groups: Iterable[BlockGroup]) -> BlockGroup:
    """Find the group that holds the bag of a line."""
    return next(group for group in groups if (group.table[:, ROWS] == line[ROWS]).any())


def bag_in_place(
    line: I64, owner: Any, *, n_features: int, dtype: str, sparse: bool
) -> BagBlock | None:
    """Make a block of one bag whose values stay where they are, in memory that ``owner`` holds.

    None if the values are not aligned, as kernels need them.
    """
    value_bytes = np.dtype(dtype).itemsize
    addresses = [(COLUMNS, 4), (VALUES, value_bytes)] if sparse else [(ROWS, value_bytes)]
    if any(line[column] % alignment for column, alignment in addresses):
        return None
    rows: NDArray[Any] | SparseRows
    if sparse:
        n_values = int(line[N_VALUES])
        lengths, _ = copy_ranges(line[[ROWS]], line[[N_ROWS]], 8)
        rows = SparseRows(
            from_sizes(lengths.view(np.int64)),
            _array_at(int(line[COLUMNS]), (n_values,), "uint32", owner),
            _array_at(int(line[VALUES]), (n_values,), dtype, owner),
            n_features,
        )
    else:
        rows = _array_at(int(line[ROWS]), (int(line[N_ROWS]), n_features), dtype, owner)
    labels, label_offsets = copy_ranges(line[[LABELS]], line[[N_LABELS]], 4)
    bag_offsets = np.array([0, line[N_ROWS]])
    return BagBlock(bag_offsets, rows, label_offsets, labels.view(np.int32))


class _Memory:
    """Memory at an address, for NumPy; arrays made of it keep the owner alive."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, owner: Any) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "version": 3,
        }
        self._owner = owner


def _array_at(address: int, shape: tuple[int, ...], dtype: str, owner: Any) -> NDArray[Any]:
    return np.asarray(_Memory(address, shape, dtype, owner))


def copied_bags(lines: I64, *, n_features: int, dtype: str, sparse: bool) -> BagBlock:
    """Copy bags into one block, in the order of their lines."""
    value_bytes = np.dtype(dtype).itemsize
    rows: NDArray[Any] | SparseRows
    if sparse:
        n_values = lines[:, N_VALUES]
        lengths, bag_offsets = copy_ranges(lines[:, ROWS], lines[:, N_ROWS], 8)
        columns, _ = copy_ranges(lines[:, COLUMNS], n_values, 4)
        values, _ = copy_ranges(lines[:, VALUES], n_values, value_bytes)
        row_offsets = from_sizes(lengths.view(np.int64))
        rows = SparseRows(row_offsets, columns.view(np.uint32), values.view(dtype), n_features)
    else:
        row_bytes = value_bytes * n_features
        flat, bag_offsets = copy_ranges(lines[:, ROWS], lines[:, N_ROWS], row_bytes)
        rows = flat.view(dtype).reshape(-1, n_features)
    labels, label_offsets = copy_ranges(lines[:, LABELS], lines[:, N_LABELS], 4)
    return BagBlock(bag_offsets, rows, label_offsets, labels.view(np.int32))
