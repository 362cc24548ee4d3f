"""Figures of the bags of a block, computed from ranks and predictions; metrics add them up.

A pair is (bag, relevant label); the pairs of bag b are ``offsets[b]`` to ``offsets[b + 1]``. The
arrays ``higher``, ``equal``, ``before`` and ``relevant`` have a value for each pair; they are the
four rows that ``rank.relevant_ranks`` writes. The pairs of a bag are summed in order, so the bits
of a sum do not depend on how bags are grouped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml.kernel import njit
from streammiml.kernel.tile import F64, I64

UNIT = 1 << 50
"""The figure 1 in fixed point."""
HALF = 25
"""Bits of the lower half of a figure in fixed point."""

Bools = npt.NDArray[np.bool_]
Labels = npt.NDArray[Any]


@njit
def choose_highest(scores: npt.NDArray[Any], count: int, chosen: Bools) -> None:
    """Set ``chosen`` (n, L) for the ``count`` highest of ``scores`` (n, L ≥ count) of each bag.

    Ties go to the lowest label. Each choice takes a pass over the labels, so ``count`` should be
    small.
    """
    for bag in range(scores.shape[0]):
        top, last = scores[bag, 0], -1
        for i in range(count):
            best, at = scores[bag, 0], -1
            for label in range(scores.shape[1]):
                own = scores[bag, label]
                # Whether the label comes after the last choice, by descending score, then by label.
                behind = i == 0 or own < top or (own == top and label > last)
                if behind and (at < 0 or own > best):
                    best, at = own, label
            chosen[bag, at] = True
            top, last = best, at


@njit
def count_predicted(
    predicted: Bools, offsets: I64, labels: Labels, group: I64, by_bag: I64, by_group: I64
) -> None:
    """Count predictions by bag, and by the group ``group`` (n,) of a bag; overwrites the counts.

    ``by_bag`` (2, n) counts the predicted labels of a bag, and the relevant ones among them.
    ``by_group`` (groups, 3, L) counts the bags that carry a label, the bags for which it is
    predicted, and the bags for which both hold.
    """
    by_group[:] = 0
    for bag in range(predicted.shape[0]):
        by_label = by_group[group[bag]]
        total = hits = 0
        for label in range(predicted.shape[1]):
            total += predicted[bag, label]
        if total:
            for label in range(predicted.shape[1]):
                by_label[1, label] += predicted[bag, label]
        for place in range(offsets[bag], offsets[bag + 1]):
            label = labels[place]
            hit = predicted[bag, label]
            by_label[0, label] += 1
            by_label[2, label] += hit
            hits += hit
        by_bag[0, bag] = total
        by_bag[1, bag] = hits


@njit
def count_first(higher: I64, before: I64, offsets: I64, k: int, out: I64) -> None:
    """``out`` (n,): number of pairs among the first ``k`` labels; ties are ordered by label."""
    for bag in range(out.shape[0]):
        n_first = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            n_first += higher[place] + before[place] < k
        out[bag] = n_first


@njit
def deepest_rank(higher: I64, equal: I64, offsets: I64, out: I64) -> None:
    """``out`` (n,): worst rank, from 1, of a bag's pairs; a tie has its last rank; 0 if no pair."""
    for bag in range(out.shape[0]):
        deepest = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            deepest = max(deepest, higher[place] + equal[place])
        out[bag] = deepest


@njit
def count_wrong_order(higher: I64, equal: I64, relevant: I64, offsets: I64, out: I64) -> None:
    """``out`` (n,): irrelevant labels that score no less than a pair, summed over pairs."""
    for bag in range(out.shape[0]):
        wrong = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            wrong += higher[place] + equal[place] - relevant[place]
        out[bag] = wrong


@njit
def sum_precisions(higher: I64, equal: I64, relevant: I64, offsets: I64, out: F64) -> None:
    """``out`` (n,): share of relevant labels down to the rank of a pair, summed over the pairs."""
    for bag in range(out.shape[0]):
        total = 0.0
        for place in range(offsets[bag], offsets[bag + 1]):
            total += relevant[place] / (higher[place] + equal[place])
        out[bag] = total


@njit
def sum_gains(higher: I64, equal: I64, offsets: I64, gains: F64, out: F64) -> None:
    """``out`` (n,): gain of a pair's rank, summed over a bag's pairs.

    ``gains`` (depth + 1,) are cumulative sums over the first ranks; ranks below the depth gain
    nothing. Each of several equal scores gains the mean over their ranks.
    """
    depth = gains.shape[0] - 1
    for bag in range(out.shape[0]):
        total = 0.0
        for place in range(offsets[bag], offsets[bag + 1]):
            above, same = higher[place], equal[place]
            if above < depth:
                total += (gains[min(above + same, depth)] - gains[above]) / same
        out[bag] = total


@njit
def fixed_sums(figures: F64) -> Any:
    """Sums of the figures and of their squares, each figure rounded to a multiple of 2⁻⁵⁰.

    A sum is ``(high << 25) + low``, since 2¹³ figures of 1 would not fit into one int64.
    """
    high = low = high_squares = low_squares = np.int64(0)
    for figure in figures:
        one = np.int64(np.rint(figure * UNIT))
        square = np.int64(np.rint(figure * figure * UNIT))
        high += one >> HALF
        low += one & ((1 << HALF) - 1)
        high_squares += square >> HALF
        low_squares += square & ((1 << HALF) - 1)
    return high, low, high_squares, low_squares
