"""Ranking loss of a block of bags: what early stopping looks at.

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

from streammiml.kernel import njit
from streammiml.kernel.tile import F32, I64

UNIT = 1 << 40
"""A loss of 1, in the sums."""


@njit
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


def ranking_loss(total: int, n_bags: int) -> float:
    """Mean loss from sums over all blocks; not a number over no bags."""
    return total / (UNIT * n_bags) if n_bags else float("nan")
