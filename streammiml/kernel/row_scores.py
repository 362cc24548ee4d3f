"""Scores of single rows on all labels, with the bits of the scores of their bags.

A row's score is a maximum over sub-concepts, so it is the score of a bag that has only this row.
The score of a bag is therefore the maximum of the scores of its rows, to the last bit. Only the
context of a lift needs the row's own bag: such bags are lifted as a whole, then scored in slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from streammiml.kernel import njit
from streammiml.kernel.lift import Lift, lift_bag
from streammiml.kernel.score import (
    PANEL_ROWS,
    DenseBlock,
    LiftedCsr,
    Panel,
    Scores,
    ScoreWeights,
    SparseBlock,
    lift_sparse,
    make_dense_rows,
    make_score_panel,
    make_scores,
    make_sparse_rows,
    place_sparse,
    score_block,
    score_lifted_dense,
    score_rows,
)
from streammiml.kernel.tile import F32, I64


def row_scores(
    block: DenseBlock | SparseBlock, lift: Lift, weights: ScoreWeights, n_at_once: int
) -> Iterator[tuple[int, Scores]]:
    """Score every row of the block: yield the first row and the scores of up to ``n_at_once`` rows.

    Slices follow each other and cover the block, whatever the bounds of bags. Their cut changes no
    bit. ``Scores.row`` is 0 everywhere.
    """
    in_bags = _RowsInBags(block, lift, weights) if lift.context else None
    n_rows = int(block.bag_offsets[-1])
    for start in range(0, n_rows, n_at_once):
        stop = min(start + n_at_once, n_rows)
        if in_bags is None:
            yield start, score_block(_single_rows(block, start, stop), lift, weights)
        else:
            yield start, in_bags.scores(start, stop)


def _single_rows(
    block: DenseBlock | SparseBlock, start: int, stop: int
) -> DenseBlock | SparseBlock:
    """Rows ``start`` to ``stop`` as bags of one row each, without labels."""
    offsets = np.arange(stop - start + 1)
    no_labels = {"label_offsets": np.zeros_like(offsets), "labels": block.labels[:0]}
    if isinstance(block, DenseBlock):
        return block._replace(rows=block.rows[start:stop], bag_offsets=offsets, **no_labels)
    row_offsets = block.row_offsets[start : stop + 1]
    return block._replace(row_offsets=row_offsets, bag_offsets=offsets, **no_labels)


class _RowsInBags:
    """Scores slices of rows of a block, where the context of the lift needs complete bags.

    A bag is lifted once, when its first row is scored, so slices must be taken in order.
    """

    def __init__(self, block: DenseBlock | SparseBlock, lift: Lift, weights: ScoreWeights) -> None:
        self._block, self._lift, self._weights = block, lift, weights
        self._panel, self._lifted_bag = make_score_panel(weights), -1
        self._rows: Any
        if isinstance(block, DenseBlock):
            self._rows = make_dense_rows(block, lift)
        else:
            self._rows = make_sparse_rows(block, lift, weights.shared.shape[1])

    def scores(self, start: int, stop: int) -> Scores:
        """Scores of rows ``start`` to ``stop`` of the block."""
        bounds, row = self._block.bag_offsets, start
        out = make_scores(stop - start, self._weights.n_labels)
        offsets = np.arange(stop - start + 1)
        while row < stop:
            bag = int(np.searchsorted(bounds, row, "right")) - 1
            first, end = int(bounds[bag]), min(int(bounds[bag + 1]), stop)
            if bag != self._lifted_bag:
                self._lift_bag(first, int(bounds[bag + 1]))
                self._lifted_bag = bag
            here = slice(row - start, end - start)
            piece = Scores(out.value[here], out.row[here], out.subconcept[here])
            room = self._weights, self._panel, piece
            if isinstance(self._rows, LiftedCsr):
                score_each_sparse(self._rows, row - first, end - first, offsets, *room)
            else:
                score_each_dense(self._rows[row - first : end - first], offsets, *room)
            row = end
        return out

    def _lift_bag(self, first: int, last: int) -> None:
        """Lift the bag that has rows ``first`` to ``last``."""
        block, lift, rows = self._block, self._lift, self._rows
        if isinstance(block, DenseBlock):
            lift_bag(lift, block.rows[first:last], rows[: last - first])
        else:
            lift_sparse_rows(block, first, last, lift, self._weights.shared, rows)


@njit
def score_each_dense(
    lifted: F32, offsets: I64, weights: ScoreWeights, panel: Panel, out: Scores
) -> None:
    """Score each of ``lifted`` (n, d') into ``out`` (n, L + 1); ``offsets`` are 0 to n or more."""
    for start in range(0, lifted.shape[0], PANEL_ROWS):
        stop = min(lifted.shape[0], start + PANEL_ROWS)
        score_lifted_dense(lifted[start:stop], offsets, start, weights, panel, out)


@njit
def lift_sparse_rows(
    block: SparseBlock, start: int, stop: int, lift: Lift, shared: F32, rows: LiftedCsr
) -> None:
    """Lift rows ``start`` to ``stop`` of one bag, and its context, into ``rows``."""
    lift_sparse(block, start, stop, lift, shared, rows)


@njit
def score_each_sparse(
    rows: LiftedCsr, first: int, last: int, offsets: I64, weights: ScoreWeights, panel: Panel,
    out: Scores,
) -> None:  # fmt: skip
    """Score lifted rows ``first`` to ``last`` (n of them) into ``out`` (n, L + 1)."""
    for start in range(first, last, PANEL_ROWS):
        stop = min(last, start + PANEL_ROWS)
        projected = panel.projected[: stop - start]
        place_sparse(rows, start, stop, weights.shared, projected)
        score_rows(projected, start - first, offsets, start - first, weights, panel, out)
