"""Ranks of relevant labels, and the ranking loss of a block of bags: what early stopping looks at.

A bag's loss is the share of its (relevant, irrelevant) pairs of labels that are in the wrong order;
a tie counts whole, as in scikit-learn. A bag with no or every label relevant has no pairs and
counts as 0, as there too. Shares are summed as multiples of 2⁻⁴⁰, so the sum does not depend on
which bags were summed first, and holds for 2²² bags of the worst loss; add further ones as Python's
integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml.kernel import inner, njit
from streammiml.kernel.tile import F32, I64

UNIT = 1 << 40
"""A loss of 1, in the sums."""


@inner
def wrong_pairs(scores: F32, relevant: npt.NDArray[Any]) -> Any:
    """``scores`` (L,) of one bag, ``relevant`` ascending: irrelevant ones that score no less."""
    wrong = 0
    for label in relevant:
        own = scores[label]
        # A score that is not a number is in the wrong order with all others.
        above = 0
        for other in range(scores.shape[0]):
            above += not scores[other] < own
        for other in relevant:
            above -= not scores[other] < own
        wrong += above
    return wrong


@njit
def ranking_loss_sum(scores: F32, label_offsets: I64, labels: npt.NDArray[Any]) -> Any:
    """``scores`` (n_bags, ≥ L), the dummy's left out by slicing: sum of losses in ``UNIT``."""
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
    """``scores`` (n_bags, L) of finite numbers, ``out`` (4, len(labels)) overwritten.

    For each relevant label of each bag: labels that score higher, labels that score the same
    (itself too), those of them with a lower number, and relevant labels that score no less.
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
    """Mean loss from sums over all blocks; not a number over no bags."""
    return total / (UNIT * n_bags) if n_bags else float("nan")
