"""Figures of the bags of a block, from ranks and predictions: what metrics add up.

A bag's pairs are (bag, relevant label); those of bag b lie at ``offsets[b]`` to ``offsets[b + 1]``.
Sums go over a bag's pairs one after the other, so its bits are its own, however bags are grouped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml.kernel import njit
from streammiml.kernel.tile import F64, I64

UNIT = 1 << 50
"""A figure of 1, in fixed point."""
HALF = 25
"""Bits of the lower half of such a figure."""

Bools = npt.NDArray[np.bool_]
Labels = npt.NDArray[Any]


@njit
def choose_highest(scores: npt.NDArray[Any], count: int, chosen: Bools) -> None:
    """``scores`` (n, L ≥ count), ``chosen`` (n, L): add the ``count`` highest of each bag.

    Of equal scores the lowest label wins. A pass over the labels for each: for few of them.
    """
    for bag in range(scores.shape[0]):
        top, last = scores[bag, 0], -1
        for i in range(count):
            best, at = scores[bag, 0], -1
            for label in range(scores.shape[1]):
                own = scores[bag, label]
                # Behind the one taken last, in the order of falling scores and rising labels.
                behind = i == 0 or own < top or (own == top and label > last)
                if behind and (at < 0 or own > best):
                    best, at = own, label
            chosen[bag, at] = True
            top, last = best, at


@njit
def count_predicted(
    predicted: Bools, offsets: I64, labels: Labels, group: I64, by_bag: I64, by_group: I64
) -> None:
    """``group`` (n,) of each bag; ``by_bag`` (2, n) and ``by_group`` (groups, 3, L), overwritten.

    Of a bag: labels predicted, and relevant ones among them. Of a label: bags of each group that
    carry it, bags predicted it, and both.
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
    """``out`` (n,): pairs among the first ``k`` labels, equal scores listed by label."""
    for bag in range(out.shape[0]):
        found = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            found += higher[place] + before[place] < k
        out[bag] = found


@njit
def deepest_rank(higher: I64, equal: I64, offsets: I64, out: I64) -> None:
    """``out`` (n,): the worst rank of a bag's pairs, from 1, ties counted against it; 0 of none."""
    for bag in range(out.shape[0]):
        deepest = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            deepest = max(deepest, higher[place] + equal[place])
        out[bag] = deepest


@njit
def count_wrong_order(higher: I64, equal: I64, relevant: I64, offsets: I64, out: I64) -> None:
    """``out`` (n,): irrelevant labels that score no less, over a bag's pairs."""
    for bag in range(out.shape[0]):
        wrong = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            wrong += higher[place] + equal[place] - relevant[place]
        out[bag] = wrong


@njit
def sum_precisions(higher: I64, equal: I64, relevant: I64, offsets: I64, out: F64) -> None:
    """``out`` (n,): the share of relevant labels down to the rank of each pair, added up."""
    for bag in range(out.shape[0]):
        total = 0.0
        for place in range(offsets[bag], offsets[bag + 1]):
            total += relevant[place] / (higher[place] + equal[place])
        out[bag] = total


@njit
def sum_gains(higher: I64, equal: I64, offsets: I64, gains: F64, out: F64) -> None:
    """``out`` (n,): the gain of each pair added up; ``gains`` (depth + 1,) of the first ranks.

    Equal scores share the mean of their ranks' gains; behind the depth there are none.
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
    """Sums of the figures and of their squares, each rounded to a multiple of 2⁻⁵⁰, in halves.

    The sum is ``high << 25`` and ``low``, since 2¹³ figures of 1 would not fit into one int64.
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
