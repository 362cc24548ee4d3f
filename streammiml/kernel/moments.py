"""Statistics of each feature over transformed rows; the result does not depend on block bounds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streammiml.kernel import inner, njit
from streammiml.kernel.lift import transformed, widen

Array = np.ndarray[Any, np.dtype[Any]]


class Moments(NamedTuple):
    """Statistics of the rows so far; for sparse rows, over the stored values only."""

    seen: Array
    """(d,) int64: number of values in each feature's mean and spread."""
    mean: Array
    """(d,) float64: mean of the transformed values."""
    spread: Array
    """(d,) float64: sum of squared distances from the mean."""
    max_abs: Array
    """(d,) float64: largest absolute transformed value."""
    counts: Array
    """(4,) int64: rows, then non-zero, negative and fractional values before the transform."""


def empty_moments(n_features: int) -> Moments:
    """Statistics of no rows."""
    return Moments(
        np.zeros(n_features, np.int64),
        np.zeros(n_features),
        np.zeros(n_features),
        np.zeros(n_features),
        np.zeros(4, np.int64),
    )


@inner
def _add_value(moments: Moments, transform: int, column: int, stored: Any) -> None:
    """Update the mean and the spread by Welford's method."""
    raw = widen(stored)
    value = np.float64(transformed(raw, transform))
    moments.seen[column] += 1
    delta = value - moments.mean[column]
    moments.mean[column] += delta / moments.seen[column]
    moments.spread[column] += delta * (value - moments.mean[column])
    moments.max_abs[column] = max(moments.max_abs[column], abs(value))
    moments.counts[1] += raw != 0
    moments.counts[2] += raw < 0
    moments.counts[3] += raw != np.rint(raw)


@njit
def add_dense(moments: Moments, transform: int, rows: Array) -> None:
    """Add ``rows`` (n, d) of any stored type, as ``plain_rows`` returns them, to ``moments``."""
    moments.counts[0] += rows.shape[0]
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            _add_value(moments, transform, j, rows[i, j])


@njit
def add_sparse(
    moments: Moments, transform: int, n_rows: int, columns: Array, values: Array
) -> None:
    """Add ``n_rows`` sparse rows to ``moments``: their ``columns`` and ``values``, in order."""
    moments.counts[0] += n_rows
    for p in range(columns.shape[0]):
        _add_value(moments, transform, columns[p], values[p])
