"""Sums over lifted bags for a start from the bags; ``learn/bag_start.py`` says what they are for.

Sums are float64 and go over bags, rows and features in their order, one after the other. So their
bits do not depend on how bags are cut into blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streammiml.kernel import inner, njit
from streammiml.kernel.lift import Lift, PlainLift, lift_bag, plainest
from streammiml.kernel.score import (
    Array,
    DenseBlock,
    LiftedCsr,
    SparseBlock,
    lift_sparse,
    make_dense_rows,
    make_sparse_rows,
    place_dense,
    place_sparse,
)
from streammiml.kernel.tile import F32, F64, I64, aligned_zeros

RELATIVE_ZERO = 1e-5
"""A column that keeps less than this share of its norm depends on the columns before it."""


@njit
def place_bags_dense(
    block: DenseBlock, lift: Lift | PlainLift, shared: F32, room: F32, out: F32
) -> None:
    """Write all lifted rows times ``shared`` (d', width) to ``out`` (n_rows, width)."""
    offsets = block.bag_offsets
    for bag in range(offsets.shape[0] - 1):
        start, stop = offsets[bag], offsets[bag + 1]
        rows = room[: stop - start]
        lift_bag(lift, block.rows[start:stop], rows)
        place_dense(rows, shared, out[start:stop])


@njit
def place_bags_sparse(
    block: SparseBlock, lift: Lift, shared: F32, room: LiftedCsr, out: F32
) -> None:
    """As ``place_bags_dense``, for sparse rows."""
    offsets = block.bag_offsets
    for bag in range(offsets.shape[0] - 1):
        start, stop = offsets[bag], offsets[bag + 1]
        lift_sparse(block, start, stop, lift, shared, room)
        place_sparse(room, 0, stop - start, shared, out[start:stop])


@inner
def _add_multiple(value: Any, factors: F64, out: F64) -> None:
    for j in range(out.shape[0]):
        out[j] += np.float64(value) * factors[j]


@njit
def add_products_dense(
    block: DenseBlock, lift: Lift | PlainLift, factors: F64, room: F32, out: F64
) -> None:
    """Add lifted rows, transposed, times ``factors`` (n_rows, width) to ``out`` (d', width)."""
    offsets = block.bag_offsets
    for bag in range(offsets.shape[0] - 1):
        start, stop = offsets[bag], offsets[bag + 1]
        rows = room[: stop - start]
        lift_bag(lift, block.rows[start:stop], rows)
        for i in range(rows.shape[0]):
            for feature in range(rows.shape[1]):
                if rows[i, feature] != 0:
                    _add_multiple(rows[i, feature], factors[start + i], out[feature])


@njit
def add_products_sparse(
    block: SparseBlock, lift: Lift, factors: F64, shared: F32, room: LiftedCsr, out: F64
) -> None:
    """As ``add_products_dense``, for sparse rows; ``shared`` (d', width) may have any values."""
    offsets, context = block.bag_offsets, room.context
    total = np.zeros(factors.shape[1])
    for bag in range(offsets.shape[0] - 1):
        start, stop = offsets[bag], offsets[bag + 1]
        lift_sparse(block, start, stop, lift, shared, room)
        for i in range(stop - start):
            for p in range(room.offsets[i], room.offsets[i + 1]):
                _add_multiple(room.values[p], factors[start + i], out[room.columns[p]])
        if context.near.shape[0]:
            # All rows of the bag have the features of the context.
            total[:] = 0.0
            for i in range(start, stop):
                _add_multiple(1.0, factors[i], total)
            for p in range(context.size[0]):
                _add_multiple(context.values[p], total, out[context.columns[p]])


@njit
def orthonormalise(columns: F64) -> Any:
    """Make the columns (n, m) orthonormal, in order; returns which of them are not zero (m,).

    A column that depends on those before it becomes zero. The projections are subtracted twice:
    rounding would leave the columns of a single pass far from orthogonal.
    """
    n, m = columns.shape
    is_kept = np.zeros(m, np.bool_)
    shares, n_kept = np.zeros(m), 0
    for c in range(m):
        if n_kept == n:
            # The columns before span everything.
            columns[:, c] = 0.0
            continue
        before = 0.0
        for i in range(n):
            before += columns[i, c] * columns[i, c]
        for _ in range(2):
            shares[:c] = 0.0
            for i in range(n):
                value = columns[i, c]
                for b in range(c):
                    shares[b] += columns[i, b] * value
            for i in range(n):
                total = 0.0
                for b in range(c):
                    total += columns[i, b] * shares[b]
                columns[i, c] -= total
        after = 0.0
        for i in range(n):
            after += columns[i, c] * columns[i, c]
        is_kept[c] = after > RELATIVE_ZERO * RELATIVE_ZERO * before
        n_kept += is_kept[c]
        factor = 1.0 / np.sqrt(after) if is_kept[c] else 0.0
        for i in range(n):
            columns[i, c] *= factor
    return is_kept


@njit
def best_rows(
    placed: F32, bag_offsets: I64, label_offsets: I64, labels: Array, vectors: F64, out: I64
) -> None:
    """Write the key row of each label of each bag to ``out`` (len(labels),).

    ``placed`` (n_rows, ≥ width), ``vectors`` (L, width). The key row has the highest score for the
    label; a tie goes to the lowest row.
    """
    for bag in range(bag_offsets.shape[0] - 1):
        for place in range(label_offsets[bag], label_offsets[bag + 1]):
            best, vector = -np.inf, vectors[labels[place]]
            out[place] = bag_offsets[bag]
            for row in range(bag_offsets[bag], bag_offsets[bag + 1]):
                score = 0.0
                for j in range(vector.shape[0]):
                    score += np.float64(placed[row, j]) * vector[j]
                if score > best:
                    best = score
                    out[place] = row


def place_bags(block: DenseBlock | SparseBlock, lift: Lift, shared: F32) -> F32:
    """Multiply all lifted rows of a block by ``shared`` (d', width); returns (n_rows, width)."""
    out: F32 = aligned_zeros((int(block.bag_offsets[-1]), shared.shape[1]))
    if isinstance(block, SparseBlock):
        place_bags_sparse(block, lift, shared, make_sparse_rows(block, lift, out.shape[1]), out)
    else:
        place_bags_dense(block, plainest(lift), shared, make_dense_rows(block, lift), out)
    return out


def add_products(
    block: DenseBlock | SparseBlock, lift: Lift, factors: F64, shared: F32, out: F64
) -> None:
    """Add lifted rows, transposed, times ``factors`` (n_rows, width) to ``out`` (d', width)."""
    if isinstance(block, SparseBlock):
        room = make_sparse_rows(block, lift, shared.shape[1])
        add_products_sparse(block, lift, factors, shared, room, out)
    else:
        add_products_dense(block, plainest(lift), factors, make_dense_rows(block, lift), out)
