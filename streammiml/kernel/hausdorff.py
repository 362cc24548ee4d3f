"""Hausdorff distances of pairs of bags, from products of their rows."""

from __future__ import annotations

import numpy as np

from streammiml.kernel import njit
from streammiml.kernel.tile import F64, I64


@njit
def pair_distances(
    products: F64,
    left_squares: F64,
    right_squares: F64,
    left_offsets: I64,
    right_offsets: I64,
    is_average: bool,
    out: F64,
) -> None:
    """Distance of each left bag to each right bag; overwrites ``out`` (left bags, right bags).

    ``products`` (left rows, right rows) has the inner products of rows, ``left_squares`` and
    ``right_squares`` the squared lengths. With ``is_average``, the distance is the mean over the
    rows of both bags of the distance to the nearest row of the other bag; else it is the maximum.
    """
    longest = 0
    for right in range(out.shape[1]):
        longest = max(longest, right_offsets[right + 1] - right_offsets[right])
    nearest_left = np.empty(longest)
    for left in range(out.shape[0]):
        for right in range(out.shape[1]):
            start, stop = right_offsets[right], right_offsets[right + 1]
            nearest_left[: stop - start] = np.inf
            total = 0.0
            largest = 0.0
            for a in range(left_offsets[left], left_offsets[left + 1]):
                nearest_right = np.inf
                for b in range(start, stop):
                    # Rounding can make the square of a distance slightly negative.
                    square = max(0.0, left_squares[a] + right_squares[b] - 2.0 * products[a, b])
                    nearest_right = min(nearest_right, square)
                    nearest_left[b - start] = min(nearest_left[b - start], square)
                total += np.sqrt(nearest_right)
                largest = max(largest, nearest_right)
            total_left = 0.0
            for b in range(stop - start):
                total_left += np.sqrt(nearest_left[b])
                largest = max(largest, nearest_left[b])
            if is_average:
                n_rows = left_offsets[left + 1] - left_offsets[left] + stop - start
                out[left, right] = (total + total_left) / n_rows
            else:
                out[left, right] = np.sqrt(largest)
