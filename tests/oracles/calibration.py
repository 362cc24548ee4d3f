"""Probabilities of labels, one at a time, with scikit-learn where it has the same."""

import math
from itertools import pairwise

import numpy as np


def cost(margins, carried, slope, intercept, common, strength):
    """Platt's cross entropy of one label, with the penalty that draws slopes to the common one."""
    n_carried, n_others = int(carried.sum()), int((~carried).sum())
    high, low = (n_carried + 1) / (n_carried + 2), 1 / (n_others + 2)
    total = strength / 2 * (slope - common) ** 2
    for margin, is_carried in zip(margins.tolist(), carried.tolist(), strict=True):
        z = slope * margin + intercept
        total += max(z, 0) + math.log1p(math.exp(-abs(z))) - (high if is_carried else low) * z
    return total


def probability(margin, slope, intercept, knots):
    """Probability of one margin; ``knots`` are pairs, or empty."""
    if not knots:
        return 1 / (1 + math.exp(-(slope * margin + intercept)))
    if margin <= knots[0][0]:
        return knots[0][1]
    for (x0, y0), (x1, y1) in pairwise(knots):
        if margin <= x1:
            return y0 + (y1 - y0) * (margin - x0) / (x1 - x0)
    return knots[-1][1]


def calibration_error(probabilities, truth, n_bins):
    """Expected calibration error over all pairs."""
    bins = [[] for _ in range(n_bins)]
    for p, y in zip(probabilities.ravel().tolist(), truth.ravel().tolist(), strict=True):
        bins[min(int(p * n_bins), n_bins - 1)].append((p, y))
    gaps = (abs(sum(p for p, _ in pairs) - sum(y for _, y in pairs)) for pairs in bins)
    return sum(gaps) / np.size(truth)
