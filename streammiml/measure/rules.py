"""Which labels are predicted from the scores of bags, and how ties are decided."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml.kernel.figures import choose_highest
from streammiml.model import LabelRule

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]

FEW = 8
"""Up to this many highest labels are found faster one by one than by partitioning."""


def predicted(rule: LabelRule, scores: Floats, dummy: Floats) -> Bools:
    """Array (n, L), true where a label is predicted; ``scores`` (n, L), ``dummy`` (n,).

    The rules ``dummy`` and ``margin`` compare strictly: a label that equals the threshold is not
    predicted. ``top-r`` and ``min_labels`` take the highest scores; ties go to the lowest label. A
    number larger than L means all labels.
    """
    if rule.name == "top-r":
        return highest(scores, max(rule.r, rule.min_labels))
    if rule.name == "margin":
        # In float64 the rounding of 1 + score is far smaller than that of the float32 scores.
        chosen: Bools = scores.astype(np.float64) + 1.0 > dummy[:, None]
    else:
        chosen = scores > dummy[:, None]
    if rule.min_labels:
        chosen |= highest(scores, rule.min_labels)
    return chosen


def highest(scores: Floats, count: int) -> Bools:
    """Array (n, L), true for the ``count`` highest scores of a row; ties go to the lowest label."""
    n_labels = scores.shape[1]
    chosen: Bools
    if not 0 < count < n_labels:
        return np.full(scores.shape, count > 0)
    if count <= FEW:
        chosen = np.zeros(scores.shape, np.bool_)
        choose_highest(np.ascontiguousarray(scores), count, chosen)
        return chosen
    threshold = np.partition(scores, n_labels - count, axis=1)[:, n_labels - count, None]
    above, tied = scores > threshold, scores == threshold
    n_left = count - np.count_nonzero(above, axis=1, keepdims=True)
    chosen = above | (tied & (np.cumsum(tied, axis=1) <= n_left))
    return chosen
