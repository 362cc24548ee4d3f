"""The offset of the threshold: a number that is added to the dummy's score.

The dummy is one direction for all labels, and training places it only roughly where there are many
labels. So the offset is fitted on scores of bags that were held out: counts of margins (a label's
score minus the dummy's) are kept in bins, apart for relevant and irrelevant labels. Counts are
integers, so the offset does not depend on the order of bags or on how they are cut.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from streammiml.config import Threshold
from streammiml.errors import unknown

I64 = NDArray[np.int64]

BINS_OF_ONE = 32
"""Bins for a margin of 1."""
LARGEST = 8
"""Largest offset; margins beyond it are counted in the outermost bins."""
N_BINS = 2 * LARGEST * BINS_OF_ONE + 2
CRITERIA = ("count", "hamming", "f1")
FORCED = N_BINS
"""Column of the labels that are predicted whatever the threshold is."""


def empty_counts() -> I64:
    """Counts (2, bins + 1) of irrelevant and of relevant labels, by margin.

    The last column counts labels that are predicted whatever the threshold is.
    """
    return np.zeros((2, N_BINS + 1), np.int64)


def margin_counts(
    scores: NDArray[np.float32], label_offsets: I64, labels: NDArray[np.int32], min_labels: int
) -> I64:
    """Count the margins of a block of bags; ``scores`` (n, L + 1), the dummy last.

    The ``min_labels`` highest labels of each bag are predicted in any case.
    """
    n_bags, n_labels = len(scores), scores.shape[1] - 1
    margins = scores[:, :-1].astype(np.float64) - scores[:, -1:].astype(np.float64)
    # A label is predicted with the offset j / BINS_OF_ONE if its bin is above that of j.
    first = -LARGEST * BINS_OF_ONE
    bins = np.clip(np.ceil(margins * BINS_OF_ONE), first, -first + 1).astype(np.int64) - first
    if min_labels:
        order = np.argsort(-scores[:, :-1], axis=1, kind="stable")[:, :min_labels]
        np.put_along_axis(bins, order, FORCED, axis=1)
    relevant = np.zeros((n_bags, n_labels), np.bool_)
    bag_of_label = np.repeat(np.arange(n_bags), np.diff(label_offsets))
    relevant[bag_of_label, labels] = True
    return np.stack(
        [np.bincount(bins[relevant == kind], minlength=N_BINS + 1) for kind in (False, True)]
    )


def fitted_offset(counts: I64, criterion: Threshold) -> float:
    """Offset that is best for the criterion; the middle one of equally good offsets.

    ``count`` predicts as many labels as there are, ``hamming`` has the lowest Hamming loss, ``f1``
    the highest micro-averaged F1.
    """
    # Column j: labels in bins above j, and those that are predicted in any case.
    above = counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:-1] if counts.size else counts
    n_predicted, n_right, n_relevant = above.sum(axis=0), above[1], int(counts[1].sum())
    if criterion == "count":
        cost = np.abs(n_predicted - n_relevant).astype(np.float64)
    elif criterion == "hamming":
        cost = (n_predicted - 2 * n_right).astype(np.float64)
    elif criterion == "f1":
        cost = -2 * n_right / np.maximum(1, n_predicted + n_relevant)
    else:
        raise unknown("criterion", criterion, CRITERIA)
    best = np.flatnonzero(cost == cost.min())
    return float((best[len(best) // 2] - LARGEST * BINS_OF_ONE) / BINS_OF_ONE)


def sum_counts(parts: Iterable[I64]) -> I64:
    """Add counts of several folds or blocks."""
    total = empty_counts()
    for part in parts:
        total += part
    return total
