"""Sums, maxima and first maxima over the rows of each bag."""

from __future__ import annotations

import numpy as np

from streammiml.rivals.row_blocks import F64, I64


def row_sums(values: F64, offsets: I64) -> F64:
    """(n, k) Sum of ``values`` (rows, k) over the rows of each bag; no bag is empty."""
    return np.asarray(np.add.reduceat(values, offsets[:-1], axis=0))


def row_maxima(values: F64, offsets: I64) -> F64:
    """(n, k) Maximum of ``values`` (rows, k) over the rows of each bag."""
    return np.asarray(np.maximum.reduceat(values, offsets[:-1], axis=0))


def first_maxima(values: F64, offsets: I64) -> I64:
    """(n, k) Row within each bag with the maximum of ``values`` (rows, k); ties: the first row."""
    sizes = np.diff(offsets)
    highest = np.repeat(row_maxima(values, offsets), sizes, axis=0)
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
    candidates = np.where(values == highest, places[:, None], np.iinfo(np.int64).max)
    return np.asarray(np.minimum.reduceat(candidates, offsets[:-1], axis=0))


def softmax_in_bags(values: F64, offsets: I64) -> F64:
    """Positive weights (rows, k) that add up to 1 in each bag, in proportion to exp(``values``)."""
    sizes = np.diff(offsets)
    powers = np.exp(values - np.repeat(row_maxima(values, offsets), sizes, axis=0))
    powers /= np.repeat(row_sums(powers, offsets), sizes, axis=0)
    return powers
