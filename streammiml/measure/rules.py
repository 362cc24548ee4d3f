"""Who is predicted, given the scores of a block of bags: pure functions, defined on ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml.kernel.figures import choose_highest
from streammiml.model import LabelRule

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]

FEW = 8
"""Labels that are found faster one after the other than by sorting."""


def predicted(rule: LabelRule, scores: Floats, dummy: Floats) -> Bools:
    """(n, L), true where a label is predicted; ``scores`` (n, L), ``dummy`` (n,).

    ``dummy`` and ``margin`` compare strictly: a label level with the threshold is not predicted.
    ``top-r`` and ``min_labels`` take the highest scores and, of equal ones, the lowest label; more
    than there are labels means all of them.
    """
    if rule.name == "top-r":
        return highest(scores, max(rule.r, rule.min_labels))
    if rule.name == "margin":
        # 1 + f is exact enough in float64 that only the scores' own rounding decides.
        chosen: Bools = scores.astype(np.float64) + 1.0 > dummy[:, None]
    else:
        chosen = scores > dummy[:, None]
    if rule.min_labels:
        chosen |= highest(scores, rule.min_labels)
    return chosen


def highest(scores: Floats, count: int) -> Bools:
    """(n, L), true for the ``count`` highest of each row; of equal scores the lowest label wins."""
    n_labels = scores.shape[1]
    chosen: Bools
    if not 0 < count < n_labels:
        return np.full(scores.shape, count > 0)
    if count <= FEW:
        chosen = np.zeros(scores.shape, np.bool_)
        choose_highest(np.ascontiguousarray(scores), count, chosen)
        return chosen
    last = np.partition(scores, n_labels - count, axis=1)[:, n_labels - count, None]
    above, level = scores > last, scores == last
    left = count - np.count_nonzero(above, axis=1, keepdims=True)
    chosen = above | (level & (np.cumsum(level, axis=1) <= left))
    return chosen
