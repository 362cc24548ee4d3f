"""Scores of models with restarts: the score of a row is the mean over the restarts.

The score of a bag is the maximum of its rows' scores, to the last bit, as with one restart. A row's
sub-concept is that of the first restart: those of different restarts have nothing to do with each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from streammiml.kernel import njit
from streammiml.kernel.lift import Lift
from streammiml.kernel.row_scores import row_scores
from streammiml.kernel.score import (
    DenseBlock,
    Scores,
    ScoreWeights,
    SparseBlock,
    make_scores,
    score_block,
)
from streammiml.kernel.tile import I64

SCORES_AT_ONCE = 1 << 16
"""Approximate number of row scores of each restart that are held at a time."""


def mean_row_scores(
    block: DenseBlock | SparseBlock, lift: Lift, weights: Sequence[ScoreWeights], n_at_once: int
) -> Iterator[tuple[int, Scores]]:
    """Yield the first row and the scores of up to ``n_at_once`` rows, as ``row_scores`` does."""
    parts = [row_scores(block, lift, each, n_at_once) for each in weights]
    share = np.float32(1 / len(weights))
    for (start, scores), *others in zip(*parts, strict=True):
        for _, other in others:
            scores.value[:] += other.value
        if others:
            scores.value[:] *= share
        yield start, scores


def score_bags(
    block: DenseBlock | SparseBlock, lift: Lift, weights: Sequence[ScoreWeights]
) -> Scores:
    """Score every bag; with several restarts, their row scores are averaged first."""
    if len(weights) == 1:
        return score_block(block, lift, weights[0])
    n_labels = weights[0].n_labels
    out = make_scores(len(block.bag_offsets) - 1, n_labels)
    out.value[:] = -np.inf
    for start, rows in mean_row_scores(block, lift, weights, max(1, SCORES_AT_ONCE // n_labels)):
        keep_highest(rows, start, block.bag_offsets, out)
    return out


@njit
def keep_highest(rows: Scores, start: int, bag_offsets: I64, out: Scores) -> None:
    """Raise ``out`` (bags, L + 1) to ``rows`` (n, L + 1), which begin at row ``start`` of the bags.

    Ties go to the lowest row.
    """
    bag: Any = np.searchsorted(bag_offsets, start, side="right") - 1
    for i in range(rows.value.shape[0]):
        while start + i >= bag_offsets[bag + 1]:
            bag += 1
        for label in range(rows.value.shape[1]):
            if rows.value[i, label] > out.value[bag, label]:
                out.value[bag, label] = rows.value[i, label]
                out.row[bag, label] = start + i - bag_offsets[bag]
                out.subconcept[bag, label] = rows.subconcept[i, label]
