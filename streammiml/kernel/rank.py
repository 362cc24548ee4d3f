"""Ranks of relevant labels, and the ranking loss of a block of bags, which early stopping uses.

A bag's loss is the share of its (relevant, irrelevant) pairs of labels that are in the wrong order.
A tie is a pair in the wrong order, and a bag with no relevant label or only relevant labels has no
pairs and loss 0, both as in scikit-learn. Losses are summed as multiples of 2⁻⁴⁰, so that the sum
does not depend on the order of bags. An int64 holds the sum over 2²² bags of the worst loss; add
sums of several blocks as Python integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml.kernel import inner, njit
from streammiml.kernel.tile import F32, I64

UNIT = 1 << 40
"""The loss 1 in the sums."""


@inner
def wrong_pairs(scores: F32, relevant: npt.NDArray[Any]) -> Any:
    """Number of pairs in the wrong order; ``scores`` (L,) of a bag, ``relevant`` ascending."""
    wrong = 0
    for label in relevant:
        own = scores[label]
        # ``not <`` instead of ``>=``: NaN is in the wrong order with every other score.
        above = 0
        for other in range(scores.shape[0]):
            above += not scores[other] < own
        for other in relevant:
            above -= not scores[other] < own
        wrong += above
    return wrong


@njit
def ranking_loss_sum(scores: F32, label_offsets: I64, labels: npt.NDArray[Any]) -> Any:
    """Sum of losses in ``UNIT``; ``scores`` (n_bags, L), without the column of the dummy."""
    total = np.int64(0)
    n_labels = scores.shape[1]
    for bag in range(scores.shape[0]):
        relevant = labels[label_offsets[bag] : label_offsets[bag + 1]]
        pairs = relevant.shape[0] * (n_labels - relevant.shape[0])
        if pairs > 0:
            total += np.int64(np.rint(UNIT * (wrong_pairs(scores[bag], relevant) / pairs)))
    return total


@njit
def relevant_ranks(
    scores: F32, label_offsets: I64, labels: npt.NDArray[Any], out: npt.NDArray[np.int64]
) -> None:
    """Count labels around each relevant label of each bag; overwrites ``out`` (4, len(labels)).

    ``scores`` (n_bags, L) are finite. The counts are: labels that score higher; labels that score
    the same, with the label itself; labels with the same score and a lower number; relevant labels
    that score no less, with the label itself.
    """
    n_labels = scores.shape[1]
    for bag in range(scores.shape[0]):
        first, last = label_offsets[bag], label_offsets[bag + 1]
        for place in range(first, last):
            label = labels[place]
            own = scores[bag, label]
            higher, equal, before, relevant = 0, 0, 0, 0
            for other in range(n_labels):
                higher += scores[bag, other] > own
                equal += scores[bag, other] == own
            if equal > 1:
                for other in range(label):
                    before += scores[bag, other] == own
            for other in range(first, last):
                relevant += scores[bag, labels[other]] >= own
            out[0, place] = higher
            out[1, place] = equal
            out[2, place] = before
            out[3, place] = relevant


def ranking_loss(total: int, n_bags: int) -> float:
    """Mean loss, from the sum over all blocks; NaN without bags."""
    return total / (UNIT * n_bags) if n_bags else float("nan")
