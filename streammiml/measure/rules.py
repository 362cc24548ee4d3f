"""Who is predicted, given the scores of a block of bags: pure functions, defined on ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml.model import LabelRule

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]


def predicted(rule: LabelRule, scores: Floats, dummy: Floats) -> Bools:
    """(n, L), true where a label is predicted; ``scores`` (n, L), ``dummy`` (n,).

    ``dummy`` and ``margin`` compare strictly: a label level with the threshold is not predicted.
    ``top-r`` and ``min_labels`` take the highest scores and, of equal ones, the lowest label; more
    than there are labels means all of them.
    """
    if rule.name == "top-r":
        return highest(scores, max(rule.r, rule.min_labels))
    # 1 + f is exact enough in float64 that only the scores' own rounding decides.
    margin = 1.0 if rule.name == "margin" else 0.0
    chosen: Bools = scores.astype(np.float64) + margin > dummy[:, None]
    if rule.min_labels:
        chosen |= highest(scores, rule.min_labels)
    return chosen


def highest(scores: Floats, count: int) -> Bools:
    """(n, L), true for the ``count`` highest of each row; of equal scores the lowest label wins."""
    chosen = np.zeros(scores.shape, np.bool_)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen
