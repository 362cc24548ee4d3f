"""Bags of the blocks that are mixed: what each is, where it lies in memory, and when its turn is.

Blocks come in groups, so that what is worked out bag by bag is worked out for many at once. A group
is a table with a line for each bag. A calendar holds the lines by the batch in which they are due,
and the blocks until the last of their bags has been laid out. Where a plan mixes all blocks they
are read once, and an epoch is an order of bag numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.blocks.plan import Plan
from streammiml.laying import collect, enter, lay, locate

I64 = NDArray[np.int64]
_SIGN = np.uint64(1 << 63)
# Columns of a group's table. Addresses are those of a bag's first row, label, or value.
ROUND, TURN, NUMBER, LEFT_OUT, ROWS, N_ROWS, LABELS, N_LABELS = range(8)
COLUMNS, VALUES, N_VALUES = range(8, 11)
_WIDTH = 11
NO_LINES = np.empty((0, _WIDTH), np.int64)


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that were read together, and a line for each of their bags."""

    table: I64
    held: list[Any]
    """What the addresses in the table point into."""


def group_of(firsts: Sequence[int], blocks: Sequence[BagBlock], dtype: str) -> Group:
    """Blocks, of which ``firsts`` are the numbers of their first bags; when they come is open."""
    sizes = np.array([len(block) for block in blocks])
    table = np.empty((int(sizes.sum()), _WIDTH), np.int64)
    ends = np.cumsum(sizes)
    table[:, NUMBER] = np.arange(len(table)) + np.repeat(np.array(firsts) - (ends - sizes), sizes)
    return Group(table, _locate(table, sizes, blocks, dtype))


def set_turns(
    table: I64, plan: Plan, epoch: int, positions: I64, left_out: NDArray[np.bool_]
) -> None:
    """Write when each bag comes in an epoch; ``positions`` are those of their blocks."""
    numbers = table[:, NUMBER]
    table[:, ROUND] = positions + plan.delays_of(epoch, numbers)
    # Turns are compared as whole numbers without sign.
    table[:, TURN] = (plan.turns_of(epoch, numbers) ^ _SIGN).view(np.int64)
    table[:, LEFT_OUT] = left_out


def _locate(table: I64, sizes: I64, blocks: Sequence[BagBlock], dtype: str) -> list[Any]:
    """Write where the bags of blocks lie; returns what must live as long as the addresses."""
    labels = [np.ascontiguousarray(block.label_indices, np.int32) for block in blocks]
    ends = [block.bag_offsets for block in blocks]
    # The blocks too, whoever owns their memory: they are held until the last of their bags is out.
    held: list[Any] = [blocks, labels]

    def write(offsets: Sequence[I64], arrays: Sequence[NDArray[Any]], to: int, size: int) -> None:
        """Columns of addresses and of lengths, from offsets of bags into an array of a block."""
        # Not its strides: of an array of one element they may be anything.
        element = arrays[0].itemsize * int(np.prod(arrays[0].shape[1:]))
        joined = np.concatenate(offsets)
        locate(joined, sizes, _addresses(arrays), element, table[:, to], table[:, size])

    write([block.label_offsets for block in blocks], labels, LABELS, N_LABELS)
    sparse = [block.rows for block in blocks if isinstance(block.rows, SparseRows)]
    if sparse:
        lengths = [np.diff(rows.offsets) for rows in sparse]
        columns = [np.ascontiguousarray(rows.columns, np.uint32) for rows in sparse]
        values = [np.ascontiguousarray(rows.values, dtype) for rows in sparse]
        write(ends, lengths, ROWS, N_ROWS)
        of_bags = [rows.offsets[at] for rows, at in zip(sparse, ends, strict=True)]
        write(of_bags, columns, COLUMNS, N_VALUES)
        write(of_bags, values, VALUES, N_VALUES)
        return [*held, lengths, columns, values]
    plain = [np.ascontiguousarray(block.rows, dtype) for block in blocks]
    write(ends, plain, ROWS, N_ROWS)
    return [*held, plain]


def _addresses(arrays: Sequence[NDArray[Any]]) -> I64:
    """Where each array begins."""
    return np.array([array.__array_interface__["data"][0] for array in arrays])


class Calendar:
    """Bags by the batch in which they are due: that of rounds ``first`` + i · step and so on."""

    def __init__(self, plan: Plan, first: int, step: int) -> None:
        self._plan, self._first, self._step = plan, first, step
        n_batches = -(-(plan.n_blocks - first) // step)
        # Lists of lines by batch, in a ring: none is due later than a window and two groups.
        ring = min(n_batches, plan.window // step + 4)
        self._heads = np.full(max(ring, 1), -1)
        self._lines = self._out = NO_LINES
        self._next = self._free = np.empty(0, np.int64)
        self._n_free = 0
        self._held: dict[int, list[Group]] = defaultdict(list)

    def enter(self, group: Group) -> None:
        """Note the bags of a group, but for those that belong to their blocks' other stay."""
        plan, table = self._plan, group.table
        rounds = table[:, ROUND]
        here = (rounds >= self._first) & (rounds < plan.n_blocks)
        batches = np.where(here, (rounds - self._first) // self._step, -1)
        if len(table) > self._n_free:
            self._grow(len(table))
        self._n_free = enter(
            table, batches, self._lines, self._next, self._heads, self._free, self._n_free
        )
        self._held[int(batches.max(initial=0))].append(group)

    def _grow(self, n: int) -> None:
        """Make room for so many lines more than there are, and then some."""
        before = len(self._lines)
        more = max(n, before)
        self._lines = np.concatenate([self._lines, np.empty((more, _WIDTH), np.int64)])
        self._out = np.empty_like(self._lines)
        self._next = np.concatenate([self._next, np.empty(more, np.int64)])
        fresh = np.arange(before, before + more)
        self._free = np.concatenate([self._free[: self._n_free], fresh, np.empty(before, np.int64)])
        self._n_free += more

    def collect(self, number: int) -> tuple[I64, list[Group]]:
        """Lines of a batch in the order of their visit, and groups that may go after it."""
        out = self._out
        found = collect(number, self._lines, self._next, self._heads, self._free, self._n_free, out)
        self._n_free += found
        lines = out[:found]
        in_turn = np.lexsort((lines[:, TURN], lines[:, ROUND]))
        return lines[in_turn], self._held.pop(number, [])


def visits(plan: Plan, epoch: int, step: int) -> Iterator[tuple[int, I64]]:
    """An epoch of a plan that mixes all blocks, so many rounds at a time.

    Gives the place of the first bag and the numbers of the bags in the order of their visit.
    """
    numbers, blocks = np.arange(plan.n_bags), np.arange(plan.n_blocks)
    positions = np.empty(plan.n_blocks, np.int64)
    positions[plan.blocks_at(epoch, blocks)] = blocks
    # A block is there all the time; where blocks come and go, one at the end of the circle has
    # two stays, and its rounds say which.
    rounds = plan.rounds_of(epoch, positions[numbers // plan.block_bags], numbers)
    turns = plan.turns_of(epoch, numbers)
    # Sixteen bits are sorted by counting; the turns of a batch when it is due.
    narrow = rounds.astype(np.uint16) if plan.n_blocks <= 1 << 16 else rounds
    order = np.argsort(narrow, kind="stable")
    ends = np.cumsum(np.bincount(rounds, minlength=plan.n_blocks)).tolist()
    start = 0
    for stop in [*ends[step - 1 : -1 : step], ends[-1]]:
        due = order[start:stop]
        yield start, due[np.lexsort((turns[due], rounds[due]))]
        start = stop


def laid_out(lines: I64, *, n_features: int, dtype: str, sparse: bool) -> BagBlock:
    """Bags end to end, in the order of their lines."""
    n_rows, item = lines[:, N_ROWS], np.dtype(dtype).itemsize
    rows: NDArray[Any] | SparseRows
    if sparse:
        lengths = lay(lines[:, ROWS], n_rows * 8).view(np.int64)
        columns = lay(lines[:, COLUMNS], lines[:, N_VALUES] * 4).view(np.uint32)
        values = lay(lines[:, VALUES], lines[:, N_VALUES] * item).view(dtype)
        rows = SparseRows(from_sizes(lengths), columns, values, n_features)
    else:
        flat = lay(lines[:, ROWS], n_rows * (item * n_features)).view(dtype)
        rows = flat.reshape(-1, n_features)
    return BagBlock(
        bag_offsets=from_sizes(n_rows),
        rows=rows,
        label_offsets=from_sizes(lines[:, N_LABELS]),
        label_indices=lay(lines[:, LABELS], lines[:, N_LABELS] * 4).view(np.int32),
    )
