"""The hinge loss of all (relevant, irrelevant) pairs of labels of bags, and its subgradient."""

from __future__ import annotations

import numpy as np

from streammiml.kernel import njit
from streammiml.kernel.figures import Bools
from streammiml.kernel.tile import F64


@njit
def pair_hinge(scores: F64, truth: Bools, slopes: F64) -> float:
    """Sum over bags of the mean hinge loss of their pairs; overwrites ``slopes`` (n, L).

    ``slopes`` is the derivative of the sum by each of the ``scores`` (n, L). A bag with no label
    or all labels has no pairs, no loss and no slope.
    """
    total = 0.0
    n_labels = scores.shape[1]
    slopes[:] = 0
    for bag in range(scores.shape[0]):
        n_relevant = 0
        for label in range(n_labels):
            n_relevant += truth[bag, label]
        n_pairs = n_relevant * (n_labels - n_relevant)
        if n_pairs == 0:
            continue
        loss = 0.0
        for relevant in range(n_labels):
            if not truth[bag, relevant]:
                continue
            for other in range(n_labels):
                if truth[bag, other]:
                    continue
                excess = 1.0 - scores[bag, relevant] + scores[bag, other]
                if excess > 0:
                    loss += excess
                    slopes[bag, relevant] -= 1.0
                    slopes[bag, other] += 1.0
        for label in range(n_labels):
            slopes[bag, label] /= np.float64(n_pairs)
        total += loss / n_pairs
    return total
