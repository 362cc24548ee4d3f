"""Scores of bags on all labels, with the key instance and the sub-concept that gave each.

A bag's score is a maximum over rows and sub-concepts; of equal ones the lowest row wins, then the
lowest sub-concept. Rows are taken in panels of bounded size whatever the bags are, and every dot
product has an order of its own, so how bags are grouped, or how long they are, moves no bit.
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
    peak_tile,
    project_tile,
    sparse_tile,
)

Array = npt.NDArray[Any]

PANEL_ROWS = 64
"""Rows projected at a time; longer bags are taken in several panels."""
FEATURES_AT_ONCE = 128
"""Features of W0 a pass of tiles keeps in the first cache."""
SCORE_COLUMNS = 120
"""About how many (label, sub-concept) pairs are scored at a time; at least 24 labels."""


class Weights(NamedTuple):
    """A model's vectors, widths padded with zeros to whole vectors of eight."""

    shared: F32
    """(d', m_pad) W0 transposed; (0, m_pad) without a shared space, and then m = d'."""
    labels: F32
    """(L + 1, K, m_pad), the dummy last."""


class ScoreWeights(NamedTuple):
    """A model's vectors, those of the labels lying across: what is scored is a matrix product."""

    shared: F32
    """As in :class:`Weights`."""
    labels: F32
    """``at_once`` labels after the other, each a (width, columns) matrix laid end to end.

    Columns are labels side by side, sub-concept after sub-concept; the last labels are filled up
    to eight with zeros. The width has no padding.
    """
    width: int
    """Dimensions of the labels' vectors that are not zero throughout."""
    n_labels: int
    """L + 1."""
    n_sub: int
    at_once: int


class DenseBlock(NamedTuple):
    """Bags of dense rows."""

    rows: Array
    """(n_rows, d)."""
    bag_offsets: I64
    """(n_bags + 1,) in rows."""
    label_offsets: I64
    """(n_bags + 1,) in ``labels``."""
    labels: Array
    """Relevant labels of each bag, ascending and distinct."""


class SparseBlock(NamedTuple):
    """Bags of sparse rows: columns ascend within a row."""

    row_offsets: I64
    columns: Array
    values: Array
    bag_offsets: I64
    label_offsets: I64
    labels: Array


class SparseRows(NamedTuple):
    """Lifted sparse rows of one bag: CSR counted from 0."""

    offsets: I64
    columns: I32
    values: F32
    context: Context = NOTHING_SHARED
    """What they have in common beside that."""


class Scores(NamedTuple):
    """(n_bags, L + 1) each: value, row within the bag, sub-concept."""

    value: F32
    row: I64
    subconcept: I32


class Panel(NamedTuple):
    """Room for the scoring of one panel of rows."""

    projected: F32
    """(rows, m_pad)."""
    dots: F32
    """(rows, columns), columns being (label, sub-concept) pairs, padded to fours."""
    best: F32
    """(columns,) of the panel's rows."""
    row: I32
    """(columns,) where ``best`` was met."""
    sub: I32
    """(columns,) by which sub-concept."""
    chosen: I64
    """(columns,) which vector each column is."""


def make_scores(n_bags: int, n_labels: int) -> Scores:
    """Room for scores; ``n_labels`` counts the dummy."""
    shape = n_bags, n_labels
    return Scores(np.empty(shape, np.float32), np.empty(shape, np.int64), np.empty(shape, np.int32))


def make_panel(width: int, n_columns: int, n_rows: int = PANEL_ROWS) -> Panel:
    """Room for vectors of ``width`` (padded) and ``n_columns`` dot products a row at a time."""
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
    """``rows`` (n, d'), ``shared`` (d', m_pad), ``out`` (n, m_pad) overwritten."""
    n = rows.shape[0]
    n_features, width = shared.shape
    out[:] = np.float32(0)
    for start in range(0, n_features, FEATURES_AT_ONCE):
        stop = min(n_features, start + FEATURES_AT_ONCE)
        column = 0
        # Three vectors wide, but two at the end where one would be left over. Tiles of few sums
        # wait for the adder, so four rows are taken at once where that leaves no narrow tile.
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
def project_sparse(rows: SparseRows, start: int, stop: int, shared: F32, out: F32) -> None:
    """Rows ``start`` to ``stop``, ``shared`` (d', m_pad), ``out`` (stop - start, m_pad)."""
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
    """``rows`` (n, d'), ``out`` (n, d'_pad): without a shared space a row is its own projection."""
    n, d = rows.shape
    for i in range(n):
        for j in range(d):
            out[i, j] = rows[i, j]
        for j in range(d, out.shape[1]):
            out[i, j] = np.float32(0)


@inner
def spread_sparse(rows: SparseRows, start: int, stop: int, out: F32) -> None:
    """Rows ``start`` to ``stop`` as dense ones, ``out`` (stop - start, d'_pad) overwritten."""
    out[:] = np.float32(0)
    for row in range(start, stop):
        for place in range(rows.offsets[row], rows.offsets[row + 1]):
            out[row - start, rows.columns[place]] = rows.values[place]


@inlined
def place_dense(rows: F32, shared: F32, out: F32) -> None:
    """Where lifted ``rows`` (n, d') lie for the labels' vectors: in the shared space, if any."""
    if shared.shape[0]:
        project_dense(rows, shared, out)
    else:
        copy_dense(rows, out)


@inner
def place_sparse(rows: SparseRows, start: int, stop: int, shared: F32, out: F32) -> None:
    """As ``place_dense``, rows ``start`` to ``stop``; their context has been placed."""
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
    block: SparseBlock, start: int, stop: int, lift: Lift, shared: F32, rows: SparseRows
) -> None:
    """Rows ``start`` to ``stop`` of a block, of one bag if there is a context, into ``rows``."""
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
    """Once a bag: it may have many more non-zeros than a row."""
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
    """Columns ``start`` to ``stop`` of ``dots`` and their ``best``, for all rows of ``projected``.

    ``projected`` (n, width), ``vectors`` (n_vectors, width), ``chosen`` names one for each column.
    Fours are filled up with the last column's vector, so there must be room for them.
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
    """Raise ``out`` by rows ``first_row`` onwards of the block, given as ``projected`` (n, m_pad).

    ``first_bag`` holds ``first_row``. What ``out`` has of a bag begun in an earlier panel stays
    where it is not beaten.
    """
    n_rows, width = projected.shape[0], weights.width
    done = 0
    for label in range(0, weights.n_labels, weights.at_once):
        n_here = min(weights.at_once, weights.n_labels - label)
        stride = -(-n_here // LANES) * LANES
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
    """Raise ``out`` by ``panel.dots`` of ``n_rows`` rows from ``first_row`` of the block on.

    ``part``: the first label, how many there are, the columns of a sub-concept, and K. Sub-concept
    k of label i of them is in column ``i + k * stride``.
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
            # Three loops, each of which becomes one of vectors.
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
    """``rows`` (n, d') are lifted: whole bags of the block, from ``first_bag`` on."""
    for start in range(0, rows.shape[0], PANEL_ROWS):
        stop = min(rows.shape[0], start + PANEL_ROWS)
        projected = panel.projected[: stop - start]
        place_dense(rows[start:stop], weights.shared, projected)
        bag = _bag_of(bag_offsets, first_bag, bag_offsets[first_bag] + start)
        score_rows(projected, bag_offsets[first_bag] + start, bag_offsets, bag, weights, panel, out)


@inner
def score_lifted_sparse(
    rows: SparseRows, bag_offsets: I64, bags: Any, weights: ScoreWeights, panel: Panel, out: Scores
) -> None:
    """``rows`` are lifted: bags ``bags[0]`` to ``bags[1]`` of the block, counted from 0."""
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
    while bag_offsets[bag + 1] <= row:
        bag += 1
    return bag


@inner
def _bags_together(bag_offsets: I64, bag: int) -> Any:
    """Count up: where a panel that starts with ``bag`` ends, whole bags only, at least one."""
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
    """``rows`` (≥ PANEL_ROWS and ≥ the longest bag, d') is room; ``out`` overwritten."""
    offsets = block.bag_offsets
    bag: Any = np.int64(0)
    while bag + 1 < offsets.shape[0]:
        stop = _bags_together(offsets, bag)
        lifted = rows[: offsets[stop] - offsets[bag]]
        if lift.context:
            for b in range(bag, stop):
                start, end = offsets[b] - offsets[bag], offsets[b + 1] - offsets[bag]
                lift_bag(lift, block.rows[offsets[b] : offsets[b + 1]], rows[start:end])
        else:
            # Rows know nothing of their bags, and few long loops are faster than many short ones.
            lift_bag(lift, block.rows[offsets[bag] : offsets[stop]], lifted)
        score_lifted_dense(lifted, offsets, bag, weights, panel, out)
        bag = stop


@njit
def score_block_sparse(
    block: SparseBlock, lift: Lift, weights: ScoreWeights, rows: SparseRows, panel: Panel,
    out: Scores,
) -> None:  # fmt: skip
    """``rows`` is room for a panel, or the longest bag, and its non-zeros; ``out`` overwritten."""
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
    block: SparseBlock, bag: int, stop: int, lift: Lift, weights: ScoreWeights, rows: SparseRows,
    panel: Panel, out: Scores,
) -> None:  # fmt: skip
    """Bags that fit a panel, each with a context of its own."""
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
    """Scores of every bag on every label and the dummy; bits do not depend on the grouping.

    Who scores many blocks lays the weights out once, with :func:`laid_across`.
    """
    if isinstance(weights, Weights):
        weights = laid_across(weights)
    out = make_scores(len(block.bag_offsets) - 1, weights.n_labels)
    panel = make_score_panel(weights)
    if isinstance(block, SparseBlock):
        rows = make_sparse_rows(block, lift, weights.shared.shape[1])
        score_block_sparse(block, lift, weights, rows, panel, out)
    else:
        dense = make_dense_rows(block, lift)
        score_block_dense(block, plainest(lift), weights, dense, panel, out)
    return out


def laid_across(weights: Weights) -> ScoreWeights:
    """The weights as scoring takes them; the labels' vectors are copied."""
    n_labels, n_sub, _ = weights.labels.shape
    used = np.flatnonzero(weights.labels.any(axis=(0, 1)))
    width = int(used[-1]) + 1 if len(used) else 1
    # Tiles are three vectors wide: three times eight labels fill them, whatever K is.
    at_once = 3 * LANES * max(1, SCORE_COLUMNS // (3 * LANES * n_sub))
    rounded = -(-n_labels // LANES) * LANES
    labels = aligned_zeros(rounded * n_sub * width)
    lay_labels(weights.labels, width, at_once, labels)
    return ScoreWeights(weights.shared, labels, width, n_labels, n_sub, at_once)


@njit
def lay_labels(labels: F32, width: int, at_once: int, out: F32) -> None:
    """``labels`` (L + 1, K, ≥ width) to ``ScoreWeights.labels``; ``out`` is zero."""
    n_labels, n_sub = labels.shape[:2]
    done = 0
    for label in range(0, n_labels, at_once):
        n_here = min(at_once, n_labels - label)
        stride = -(-n_here // LANES) * LANES
        columns = n_sub * stride
        part = out[done : done + width * columns].reshape(width, columns)
        for i in range(n_here):
            for k in range(n_sub):
                for j in range(width):
                    part[j, k * stride + i] = labels[label + i, k, j]
        done += width * columns


def make_score_panel(weights: ScoreWeights) -> Panel:
    """Room for the scoring of one panel of rows."""
    columns = weights.n_sub * min(weights.at_once, -(-weights.n_labels // LANES) * LANES)
    padded = weights.shared.shape[1]
    return Panel(
        aligned_zeros((PANEL_ROWS, padded)),
        aligned_zeros((PANEL_ROWS, columns)),
        aligned_zeros(weights.at_once),
        aligned_zeros(weights.at_once, np.int32),
        aligned_zeros(weights.at_once, np.int32),
        aligned_zeros(0, np.int64),
    )


def make_dense_rows(block: DenseBlock, lift: Lift) -> F32:
    """Room for the lifted rows of a panel or of the block's longest bag."""
    longest = int(np.diff(block.bag_offsets).max(initial=PANEL_ROWS))
    room: F32 = aligned_zeros((longest, lift_width(lift)))
    return room


def make_sparse_rows(block: SparseBlock, lift: Lift, width: int) -> SparseRows:
    """Room for the lifted rows of a panel or of the block's longest bag, ``width`` if placed."""
    n_rows = np.diff(block.bag_offsets)
    longest = int(n_rows.max(initial=PANEL_ROWS))
    fullest = int(np.diff(block.row_offsets).max(initial=0))
    most = int(np.diff(block.row_offsets[block.bag_offsets]).max(initial=0))
    n_values = max(most + longest, PANEL_ROWS * (fullest + 1))
    return SparseRows(
        np.zeros(longest + 1, np.int64),
        np.zeros(n_values, np.int32),
        aligned_zeros(n_values),
        make_context(lift, most, width),
    )
