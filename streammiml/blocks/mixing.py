"""Bags of the blocks that are mixed: what each is, where it lies in memory, and when its turn is.

Blocks come in groups, so that what is worked out bag by bag is worked out for many at once. A group
is a table with a line for each bag; a calendar holds the lines by the batch in which they are due,
and with them the blocks, until the last of their bags has been laid out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.blocks.plan import Plan
from streammiml.laying import lay

I64 = NDArray[np.int64]
_SIGN = np.uint64(1 << 63)
# Columns of a group's table. Addresses are those of a bag's first row, label, or value.
ROUND, TURN, NUMBER, LEFT_OUT, ROWS, N_ROWS, LABELS, N_LABELS = range(8)
COLUMNS, VALUES, N_VALUES = range(8, 11)
_WIDTH = 11


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that were read together, and a line for each of their bags."""

    table: I64
    held: list[Any]
    """What the addresses in the table point into."""


def group_of(
    plan: Plan,
    epoch: int,
    positions: Sequence[int],
    firsts: Sequence[int],
    blocks: Sequence[BagBlock],
    left_out: NDArray[np.bool_],
    dtype: str,
) -> Group:
    """Blocks at these positions of an epoch; ``firsts`` are the numbers of their first bags."""
    sizes = np.array([len(block) for block in blocks])
    table = np.empty((int(sizes.sum()), _WIDTH), np.int64)
    ends = np.cumsum(sizes)
    numbers = np.arange(len(table)) + np.repeat(np.array(firsts) - (ends - sizes), sizes)
    rounds = np.repeat(np.array(positions), sizes) + plan.delays_of(epoch, numbers)
    if plan.window == plan.n_blocks:
        # Every block stays all the time; elsewhere a block has two stays in the circle.
        rounds %= plan.n_blocks
    table[:, ROUND] = rounds
    # Turns are compared as whole numbers without sign.
    table[:, TURN] = (plan.turns_of(epoch, numbers) ^ _SIGN).view(np.int64)
    table[:, NUMBER] = numbers
    table[:, LEFT_OUT] = left_out
    held = _locate(table, sizes, blocks, dtype)
    return Group(table, held)


def _locate(table: I64, sizes: I64, blocks: Sequence[BagBlock], dtype: str) -> list[Any]:
    """Write where the bags of blocks lie; returns what must live as long as the addresses."""
    labels = [np.ascontiguousarray(block.label_indices, np.int32) for block in blocks]
    ends = [block.bag_offsets for block in blocks]
    starts, table[:, N_LABELS] = _spans([block.label_offsets for block in blocks], sizes)
    table[:, LABELS] = _addresses(labels, sizes) + starts * 4
    starts, table[:, N_ROWS] = _spans(ends, sizes)
    # The blocks too, whoever owns their memory: they are held until the last of their bags is out.
    held: list[Any] = [blocks, labels]
    sparse = [block.rows for block in blocks if isinstance(block.rows, SparseRows)]
    if sparse:
        lengths = [np.diff(rows.offsets) for rows in sparse]
        columns = [np.ascontiguousarray(rows.columns, np.uint32) for rows in sparse]
        values = [np.ascontiguousarray(rows.values, dtype) for rows in sparse]
        table[:, ROWS] = _addresses(lengths, sizes) + starts * 8
        of_bags = [rows.offsets[at] for rows, at in zip(sparse, ends, strict=True)]
        starts, table[:, N_VALUES] = _spans(of_bags, sizes)
        table[:, COLUMNS] = _addresses(columns, sizes) + starts * 4
        table[:, VALUES] = _addresses(values, sizes) + starts * values[0].itemsize
        return [*held, lengths, columns, values]
    plain = [np.ascontiguousarray(block.rows, dtype) for block in blocks]
    table[:, ROWS] = _addresses(plain, sizes) + starts * plain[0].strides[0]
    return [*held, plain]


def _spans(offsets: Sequence[I64], sizes: I64) -> tuple[I64, I64]:
    """Starts and lengths of everything between the offsets of each block."""
    joined = np.concatenate(offsets)
    # The last offset of a block begins nothing.
    begins = np.arange(int(sizes.sum())) + np.repeat(np.arange(len(sizes)), sizes)
    return joined[begins], joined[begins + 1] - joined[begins]


def _addresses(arrays: Sequence[NDArray[Any]], sizes: I64) -> I64:
    """The address of each block's array, for each of its bags."""
    return np.repeat([array.__array_interface__["data"][0] for array in arrays], sizes)


class Calendar:
    """Bags by the batch in which they are due: that of rounds ``first`` + i·step and so on."""

    def __init__(self, plan: Plan, first: int, step: int) -> None:
        self._first, self._last, self._step = first, plan.n_blocks, step
        self._due: dict[int, list[tuple[I64, Group]]] = defaultdict(list)

    def enter(self, group: Group) -> None:
        """Note the bags of a group, but for those that belong to their blocks' other stay."""
        rounds = group.table[:, ROUND]
        here = (rounds >= self._first) & (rounds < self._last)
        table = group.table if here.all() else group.table[here]
        if not len(table):
            return
        batch = (table[:, ROUND] - self._first) // self._step
        order = np.argsort(batch, kind="stable")
        table, batch = table[order], batch[order]
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        stops = [*starts[1:].tolist(), len(batch)]
        for start, stop, number in zip(starts.tolist(), stops, batch[starts].tolist(), strict=True):
            self._due[number].append((table[start:stop], group))

    def collect(self, number: int) -> tuple[I64, list[Group]]:
        """Lines of a batch in the order of their visit, and what keeps their memory alive."""
        found = self._due.pop(number, [])
        if not found:
            return np.empty((0, _WIDTH), np.int64), []
        lines = np.concatenate([lines for lines, _ in found])
        order = np.lexsort((lines[:, TURN], lines[:, ROUND]))
        return lines[order], [group for _, group in found]


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
