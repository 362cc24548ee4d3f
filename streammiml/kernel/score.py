"""Scores of bags on all labels, with the key instance and the sub-concept of each score.

A bag's score is a maximum over rows and sub-concepts; ties go to the lowest row, then to the lowest
sub-concept. Rows are taken in panels of bounded size, whatever the lengths of bags, and the order
of additions in a dot product depends on its length alone. So no bit of a score depends on how bags
are grouped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streammiml.kernel import inlined, inner, njit
from streammiml.kernel.lift import (
    NOTHING_SHARED,
    Context,
    Lift,
    PlainLift,
    join_sparse_bag,
    lift_bag,
    lift_sparse_bag,
    lift_width,
    make_context,
    plainest,
)
from streammiml.kernel.tile import (
    F32,
    I32,
    I64,
    LANES,
    aligned_zeros,
    dot_tile,
    padded_width,
    peak_tile,
    project_tile,
    sparse_tile,
)

Array = npt.NDArray[Any]

PANEL_ROWS = 64
"""Rows projected at a time; longer bags are taken in several panels."""
FEATURES_AT_ONCE = 128
"""Features of W0 that stay in the first-level cache while all rows of a panel are projected."""
SCORE_COLUMNS = 120
"""Approximate number of (label, sub-concept) pairs scored at a time; at least 24 labels."""


class Weights(NamedTuple):
    """A model's weights, their last axis padded to m_pad; see ``tile.padded_width``."""

    shared: F32
    """(d', m_pad) W0 transposed; (0, m_pad) without a shared space, and then m = d'."""
    labels: F32
    """(L + 1, K, m_pad), the dummy last."""


class ScoreWeights(NamedTuple):
    """A model's weights for scoring: label vectors are columns of a matrix product."""

    shared: F32
    """As in :class:`Weights`."""
    labels: F32
    """Groups of ``at_once`` labels; each group is a (width, columns) matrix, stored end to end.

    A group has a column for each label of sub-concept 0, then of sub-concept 1, and so on; the
    number of labels is padded with zeros to a multiple of eight. The width is not padded.
    """
    width: int
    """Dimensions of the label vectors, without those at the end that are zero in all of them."""
    n_labels: int
    """L + 1."""
    n_sub: int
    """K."""
    at_once: int
    """Labels in a group."""


class DenseBlock(NamedTuple):
    """Bags of dense rows."""

    rows: Array
    """(n_rows, d)."""
    bag_offsets: I64
    """(n_bags + 1,) Bounds of each bag in ``rows``."""
    label_offsets: I64
    """(n_bags + 1,) Bounds of each bag in ``labels``."""
    labels: Array
    """Relevant labels of each bag, ascending and distinct."""


class SparseBlock(NamedTuple):
    """Bags of sparse rows in CSR form; columns ascend within a row."""

    row_offsets: I64
    columns: Array
    values: Array
    bag_offsets: I64
    label_offsets: I64
    labels: Array


class LiftedCsr(NamedTuple):
    """Lifted sparse rows in CSR form; offsets begin at 0."""

    offsets: I64
    columns: I32
    values: F32
    context: Context = NOTHING_SHARED
    """Features that all rows of the bag share."""


class Scores(NamedTuple):
    """Scores (n_bags, L + 1), and the row within the bag and the sub-concept that gave each."""

    value: F32
    row: I64
    subconcept: I32


class Panel(NamedTuple):
    """Room for the scoring of one panel of rows."""

    projected: F32
    """(rows, m_pad) Rows in the space of the label vectors."""
    dots: F32
    """(rows, columns) A column is a (label, sub-concept) pair; padded to a multiple of four."""
    best: F32
    """(columns,) Maximum over the rows of the panel."""
    row: I32
    """(columns,) Row that gave ``best``."""
    sub: I32
    """(columns,) Sub-concept that gave ``best``."""
    chosen: I64
    """(columns,) Number of the label vector of each column."""


def make_scores(n_bags: int, n_labels: int) -> Scores:
    """Room for scores; ``n_labels`` counts the dummy."""
    shape = n_bags, n_labels
    return Scores(np.empty(shape, np.float32), np.empty(shape, np.int64), np.empty(shape, np.int32))


def make_panel(width: int, n_columns: int, n_rows: int = PANEL_ROWS) -> Panel:
    """Room for rows of (padded) ``width``, with ``n_columns`` dot products of each row."""
    columns = -(-n_columns // 4) * 4 + 4
    return Panel(
        aligned_zeros((n_rows, width)),
        aligned_zeros((n_rows, columns)),
        aligned_zeros(columns),
        aligned_zeros(columns, np.int32),
        aligned_zeros(columns, np.int32),
        aligned_zeros(columns, np.int64),
    )


@inner
def project_dense(rows: F32, shared: F32, out: F32) -> None:
    """Overwrite ``out`` (n, m_pad) with ``rows`` (n, d') · ``shared`` (d', m_pad)."""
    n = rows.shape[0]
    n_features, width = shared.shape
    out[:] = np.float32(0)
    for start in range(0, n_features, FEATURES_AT_ONCE):
        stop = min(n_features, start + FEATURES_AT_ONCE)
        column = 0
        # Tiles are three vectors wide, and two at the end if otherwise one vector would remain.
        # A tile of few sums waits for the adder, so a tile has four rows where this avoids a tile
        # of one row later.
        while width - column > 32 or width - column == 24:
            row = 0
            while n - row >= 8 and (n - row) % 3 == 2:
                project_tile(rows, row, shared, start, stop, column, out, 4, 3)
                row += 4
            while n - row > 4 or n - row == 3:
                project_tile(rows, row, shared, start, stop, column, out, 3, 3)
                row += 3
            if n - row == 4:
                project_tile(rows, row, shared, start, stop, column, out, 4, 3)
            elif n - row == 2:
                project_tile(rows, row, shared, start, stop, column, out, 2, 3)
            elif n - row == 1:
                project_tile(rows, row, shared, start, stop, column, out, 1, 3)
            column += 24
        while width - column >= 16:
            row = 0
            while n - row > 5 or n - row == 4:
                project_tile(rows, row, shared, start, stop, column, out, 4, 2)
                row += 4
            if n - row == 3 or n - row == 5:
                project_tile(rows, row, shared, start, stop, column, out, 3, 2)
                row += 3
            if n - row == 2:
                project_tile(rows, row, shared, start, stop, column, out, 2, 2)
            elif n - row == 1:
                project_tile(rows, row, shared, start, stop, column, out, 1, 2)
            column += 16
        if column < width:
            row = 0
            while n - row >= 8:
                project_tile(rows, row, shared, start, stop, column, out, 8, 1)
                row += 8
            while n - row >= 4:
                project_tile(rows, row, shared, start, stop, column, out, 4, 1)
                row += 4
            while row < n:
                project_tile(rows, row, shared, start, stop, column, out, 1, 1)
                row += 1


@inner
def project_sparse(rows: LiftedCsr, start: int, stop: int, shared: F32, out: F32) -> None:
    """Overwrite ``out`` (stop - start, m_pad) with rows ``start`` to ``stop`` · ``shared``."""
    width = shared.shape[1]
    for row in range(start, stop):
        first, last = rows.offsets[row], rows.offsets[row + 1]
        i = row - start
        column = 0
        while width - column >= 104:
            sparse_tile(rows.columns, rows.values, first, last, shared, column, out, i, 13)
            column += 104
        while width - column >= 32:
            sparse_tile(rows.columns, rows.values, first, last, shared, column, out, i, 4)
            column += 32
        while column < width:
            sparse_tile(rows.columns, rows.values, first, last, shared, column, out, i, 1)
            column += 8


@inner
def copy_dense(rows: F32, out: F32) -> None:
    """Copy ``rows`` (n, d') to ``out`` (n, d'_pad): the projection without a shared space."""
    n, d = rows.shape
    for i in range(n):
        for j in range(d):
            out[i, j] = rows[i, j]
        for j in range(d, out.shape[1]):
            out[i, j] = np.float32(0)


@inner
def spread_sparse(rows: LiftedCsr, start: int, stop: int, out: F32) -> None:
    """Overwrite ``out`` (stop - start, d'_pad) with rows ``start`` to ``stop`` as dense rows."""
    out[:] = np.float32(0)
    for row in range(start, stop):
        for place in range(rows.offsets[row], rows.offsets[row + 1]):
            out[row - start, rows.columns[place]] = rows.values[place]


@inlined
def place_dense(rows: F32, shared: F32, out: F32) -> None:
    """Overwrite ``out`` with lifted ``rows`` (n, d') in the space of the label vectors."""
    if shared.shape[0]:
        project_dense(rows, shared, out)
    else:
        copy_dense(rows, out)


@inner
def place_sparse(rows: LiftedCsr, start: int, stop: int, shared: F32, out: F32) -> None:
    """As ``place_dense``, for sparse rows ``start`` to ``stop``, whose ``context.near`` is set."""
    if shared.shape[0]:
        project_sparse(rows, start, stop, shared, out)
    else:
        spread_sparse(rows, start, stop, out)
    if rows.context.near.shape[0]:
        near = rows.context.near[0]
        for i in range(stop - start):
            for j in range(near.shape[0]):
                out[i, j] += near[j]


@inner
def lift_sparse(
    block: SparseBlock, start: int, stop: int, lift: Lift, shared: F32, rows: LiftedCsr
) -> None:
    """Lift rows ``start`` to ``stop`` of a block into ``rows``; with a context, only one bag."""
    lift_sparse_bag(
        lift, block.row_offsets, block.columns, block.values, start, stop, rows.offsets,
        rows.columns, rows.values,
    )  # fmt: skip
    context = rows.context
    if context.near.shape[0]:
        join_sparse_bag(lift, rows.offsets, rows.columns, rows.values, stop - start, context)
        _place_context(context, shared)


@inner
def _place_context(context: Context, shared: F32) -> None:
    """Write ``context.near`` once for the whole bag, as a context may have many non-zeros."""
    n, near = context.size[0], context.near
    if shared.shape[0]:
        for column in range(0, shared.shape[1], 8):
            sparse_tile(context.columns, context.values, 0, n, shared, column, near, 0, 1)
    else:
        near[:] = np.float32(0)
        for i in range(n):
            near[0, context.columns[i]] = context.values[i]


@inner
def dot_columns(
    projected: F32, vectors: F32, chosen: I64, start: int, stop: int, dots: F32, best: F32
) -> None:
    """Write columns ``start`` to ``stop`` of ``dots`` and ``best``, for all rows of ``projected``.

    ``projected`` (n, width), ``vectors`` (n_vectors, width); ``chosen`` has the vector of each
    column. Columns are computed in fours. The last four are filled up with the vector of the last
    column, so the arrays need room for a multiple of four.
    """
    n = projected.shape[0]
    for column in range(start, stop, 4):
        for spare in range(column, column + 4):
            best[spare] = -np.inf
            if spare >= stop:
                chosen[spare] = chosen[stop - 1]
        row = 0
        while n - row >= 3:
            dot_tile(projected, row, vectors, chosen, column, dots, best, 3)
            row += 3
        if n - row == 2:
            dot_tile(projected, row, vectors, chosen, column, dots, best, 2)
        elif n - row == 1:
            dot_tile(projected, row, vectors, chosen, column, dots, best, 1)


@inner
def score_rows(
    projected: F32, first_row: int, bag_offsets: I64, first_bag: int, weights: ScoreWeights,
    panel: Panel, out: Scores,
) -> None:  # fmt: skip
    """Raise ``out`` to the scores of n rows of the block, given as ``projected`` (n, m_pad).

    The rows begin at ``first_row``, which is a row of ``first_bag``. A score that an earlier panel
    wrote for the same bag stays unless these rows have a higher score.
    """
    n_rows, width = projected.shape[0], weights.width
    done = 0
    for label in range(0, weights.n_labels, weights.at_once):
        n_here = min(weights.at_once, weights.n_labels - label)
        stride = padded_width(n_here)
        columns = weights.n_sub * stride
        vectors = weights.labels[done : done + width * columns].reshape(width, columns)
        project_dense(projected, vectors, panel.dots[:n_rows])
        raise_scores(
            first_row, n_rows, bag_offsets, first_bag, (label, n_here, stride, weights.n_sub),
            panel, out,
        )  # fmt: skip
        done += width * columns


@inner
def raise_scores(
    first_row: int, n_rows: int, bag_offsets: I64, first_bag: int, part: Any, panel: Panel,
    out: Scores,
) -> None:  # fmt: skip
    """Raise ``out`` to ``panel.dots`` of ``n_rows`` rows of the block, from ``first_row`` on.

    ``part`` is (first label, number of labels, stride, K). Sub-concept k of the i-th of these
    labels is in column ``i + k * stride``.
    """
    label, n_here, stride, n_sub = part
    best, rows, subs = panel.best, panel.row, panel.sub
    bag = first_bag
    while bag + 1 < bag_offsets.shape[0] and bag_offsets[bag] < first_row + n_rows:
        start = max(bag_offsets[bag] - first_row, 0)
        stop = min(bag_offsets[bag + 1] - first_row, n_rows)
        i = 0
        while stride - i >= 3 * LANES:
            peak_tile(panel.dots, start, stop, i, stride, n_sub, best, rows, subs, 3)
            i += 3 * LANES
        while i < stride:
            peak_tile(panel.dots, start, stop, i, stride, n_sub, best, rows, subs, 1)
            i += LANES
        to_bag = first_row - bag_offsets[bag]
        if to_bag <= 0:
            # Three loops, because the compiler vectorises each of them.
            for i in range(n_here):
                out.value[bag, label + i] = best[i]
            for i in range(n_here):
                out.row[bag, label + i] = rows[i] + to_bag
            for i in range(n_here):
                out.subconcept[bag, label + i] = subs[i]
        else:
            for i in range(n_here):
                if best[i] > out.value[bag, label + i]:
                    out.value[bag, label + i] = best[i]
                    out.row[bag, label + i] = rows[i] + to_bag
                    out.subconcept[bag, label + i] = subs[i]
        bag += 1


@inner
def score_lifted_dense(
    rows: F32, bag_offsets: I64, first_bag: int, weights: ScoreWeights, panel: Panel, out: Scores
) -> None:
    """Score lifted ``rows`` (n, d'): complete bags of the block, from ``first_bag`` on."""
    for start in range(0, rows.shape[0], PANEL_ROWS):
        stop = min(rows.shape[0], start + PANEL_ROWS)
        projected = panel.projected[: stop - start]
        place_dense(rows[start:stop], weights.shared, projected)
        bag = _bag_of(bag_offsets, first_bag, bag_offsets[first_bag] + start)
        score_rows(projected, bag_offsets[first_bag] + start, bag_offsets, bag, weights, panel, out)


@inner
def score_lifted_sparse(
    rows: LiftedCsr, bag_offsets: I64, bags: Any, weights: ScoreWeights, panel: Panel, out: Scores
) -> None:
    """Score lifted ``rows``: bags ``bags[0]`` to ``bags[1]`` of the block."""
    first = bag_offsets[bags[0]]
    n_rows = bag_offsets[bags[1]] - first
    for start in range(0, n_rows, PANEL_ROWS):
        stop = min(n_rows, start + PANEL_ROWS)
        projected = panel.projected[: stop - start]
        place_sparse(rows, start, stop, weights.shared, projected)
        bag = _bag_of(bag_offsets, bags[0], first + start)
        score_rows(projected, first + start, bag_offsets, bag, weights, panel, out)


@inner
def _bag_of(bag_offsets: I64, bag: int, row: int) -> Any:
    """Find the bag that holds ``row``, searching from ``bag`` on."""
    while bag_offsets[bag + 1] <= row:
        bag += 1
    return bag


@inner
def _bags_together(bag_offsets: I64, bag: int) -> Any:
    """End of a panel that begins with ``bag``: as many complete bags as fit, at least one."""
    stop = bag + 1
    while (
        stop + 1 < bag_offsets.shape[0] and bag_offsets[stop + 1] - bag_offsets[bag] <= PANEL_ROWS
    ):
        stop += 1
    return stop


@njit
def score_block_dense(
    block: DenseBlock,
    lift: Lift | PlainLift,
    weights: ScoreWeights,
    rows: F32,
    panel: Panel,
    out: Scores,
) -> None:
    """Score every bag into ``out``; ``rows`` (n, d') is room.

    n is at least PANEL_ROWS and, if the lift has a context, at least the length of any bag.
    """
    offsets = block.bag_offsets
    bag: Any = np.int64(0)
    while bag + 1 < offsets.shape[0]:
        stop = _bags_together(offsets, bag)
        if lift.context:
            for b in range(bag, stop):
                start, end = offsets[b] - offsets[bag], offsets[b + 1] - offsets[bag]
                lift_bag(lift, block.rows[offsets[b] : offsets[b + 1]], rows[start:end])
            lifted = rows[: offsets[stop] - offsets[bag]]
            score_lifted_dense(lifted, offsets, bag, weights, panel, out)
        else:
            # Without a context, bounds of bags do not matter: one long loop is faster than many.
            for first in range(offsets[bag], offsets[stop], PANEL_ROWS):
                last = min(offsets[stop], first + PANEL_ROWS)
                lifted, projected = rows[: last - first], panel.projected[: last - first]
                lift_bag(lift, block.rows[first:last], lifted)
                place_dense(lifted, weights.shared, projected)
                score_rows(projected, first, offsets, bag, weights, panel, out)
        bag = stop


@njit
def score_block_sparse(
    block: SparseBlock, lift: Lift, weights: ScoreWeights, rows: LiftedCsr, panel: Panel,
    out: Scores,
) -> None:  # fmt: skip
    """Score every bag into ``out``; ``rows`` is room for a panel or the longest bag."""
    offsets = block.bag_offsets
    bag: Any = np.int64(0)
    while bag + 1 < offsets.shape[0]:
        stop = _bags_together(offsets, bag)
        if lift.context and stop - bag > 1:
            _score_together(block, bag, stop, lift, weights, rows, panel, out)
        else:
            lift_sparse(block, offsets[bag], offsets[stop], lift, weights.shared, rows)
            score_lifted_sparse(rows, offsets, (bag, stop), weights, panel, out)
        bag = stop


@inner
def _score_together(
    block: SparseBlock, bag: int, stop: int, lift: Lift, weights: ScoreWeights, rows: LiftedCsr,
    panel: Panel, out: Scores,
) -> None:  # fmt: skip
    """Score several bags in one panel, each with a context of its own."""
    offsets = block.bag_offsets
    first = offsets[bag]
    for b in range(bag, stop):
        start, end = offsets[b], offsets[b + 1]
        lift_sparse(block, start, end, lift, weights.shared, rows)
        there = panel.projected[start - first : end - first]
        place_sparse(rows, 0, end - start, weights.shared, there)
    score_rows(panel.projected[: offsets[stop] - first], first, offsets, bag, weights, panel, out)


def score_block(
    block: DenseBlock | SparseBlock, lift: Lift, weights: Weights | ScoreWeights
) -> Scores:
    """Score every bag on every label and the dummy; bits do not depend on how bags are grouped.

    To score many blocks, lay the weights out once, with :func:`laid_across`.
    """
    if isinstance(weights, Weights):
        weights = laid_across(weights)
    out = make_scores(len(block.bag_offsets) - 1, weights.n_labels)
    panel = make_score_panel(weights)
    if isinstance(block, SparseBlock):
        rows = make_sparse_rows(block, lift, weights.shared.shape[1])
        score_block_sparse(block, lift, weights, rows, panel, out)
    else:
        dense = make_dense_rows(block, lift, in_panels=not lift.context)
        score_block_dense(block, plainest(lift), weights, dense, panel, out)
    return out


def laid_across(weights: Weights) -> ScoreWeights:
    """Lay the weights out for scoring; the label vectors are copied."""
    n_labels, n_sub, _ = weights.labels.shape
    used = np.flatnonzero(weights.labels.any(axis=(0, 1)))
    width = int(used[-1]) + 1 if len(used) else 1
    # Tiles are three vectors wide: a multiple of 3 × 8 labels fills them, whatever K is.
    at_once = 3 * LANES * max(1, SCORE_COLUMNS // (3 * LANES * n_sub))
    labels = aligned_zeros(padded_width(n_labels) * n_sub * width)
    lay_labels(weights.labels, width, at_once, labels)
    return ScoreWeights(weights.shared, labels, width, n_labels, n_sub, at_once)


@njit
def lay_labels(labels: F32, width: int, at_once: int, out: F32) -> None:
    """Write ``labels`` (L + 1, K, ≥ width) as ``ScoreWeights.labels`` to ``out``, which is zero."""
    n_labels, n_sub = labels.shape[:2]
    done = 0
    for label in range(0, n_labels, at_once):
        n_here = min(at_once, n_labels - label)
        stride = padded_width(n_here)
        columns = n_sub * stride
        part = out[done : done + width * columns].reshape(width, columns)
        for i in range(n_here):
            for k in range(n_sub):
                for j in range(width):
                    part[j, k * stride + i] = labels[label + i, k, j]
        done += width * columns


def make_score_panel(weights: ScoreWeights) -> Panel:
    """Room for the scoring of one panel of rows."""
    columns = weights.n_sub * min(weights.at_once, padded_width(weights.n_labels))
    return Panel(
        aligned_zeros((PANEL_ROWS, weights.shared.shape[1])),
        aligned_zeros((PANEL_ROWS, columns)),
        aligned_zeros(weights.at_once),
        aligned_zeros(weights.at_once, np.int32),
        aligned_zeros(weights.at_once, np.int32),
        aligned_zeros(0, np.int64),
    )


def make_dense_rows(block: DenseBlock, lift: Lift, *, in_panels: bool = False) -> F32:
    """Room for the lifted rows of a panel, and unless ``in_panels`` of the block's longest bag."""
    longest = PANEL_ROWS if in_panels else int(np.diff(block.bag_offsets).max(initial=PANEL_ROWS))
    room: F32 = aligned_zeros((longest, lift_width(lift)))
    return room


def make_sparse_rows(block: SparseBlock, lift: Lift, width: int) -> LiftedCsr:
    """Room for the lifted rows of a panel or of the block's longest bag; ``width`` is m_pad."""
    n_rows = np.diff(block.bag_offsets)
    longest = int(n_rows.max(initial=PANEL_ROWS))
    fullest = int(np.diff(block.row_offsets).max(initial=0))
    most = int(np.diff(block.row_offsets[block.bag_offsets]).max(initial=0))
    n_values = max(most + longest, PANEL_ROWS * (fullest + 1))
    return LiftedCsr(
        np.zeros(longest + 1, np.int64),
        np.zeros(n_values, np.int32),
        aligned_zeros(n_values),
        make_context(lift, most, width),
    )
