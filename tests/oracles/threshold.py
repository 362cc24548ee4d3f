"""Plain twin of ``learn/threshold.py``: every offset of the grid is tried on every bag."""

import numpy as np

from streammiml.learn.threshold import BINS_OF_ONE, LARGEST


def offsets():
    return np.arange(-LARGEST * BINS_OF_ONE, LARGEST * BINS_OF_ONE + 1) / BINS_OF_ONE


def outcome(scores, truth, min_labels, offset):
    """Numbers of predicted, correctly predicted and relevant labels."""
    n_predicted = n_right = 0
    for bag, relevant in zip(scores.astype(float), truth, strict=True):
        forced = sorted(range(len(bag) - 1), key=lambda i: (-bag[i], i))[:min_labels]
        for label in range(len(bag) - 1):
            if label in forced or bag[label] - bag[-1] > offset:
                n_predicted += 1
                n_right += bool(relevant[label])
    return n_predicted, n_right, int(truth.sum())


def cost(scores, truth, min_labels, offset, criterion):
    n_predicted, n_right, n_relevant = outcome(scores, truth, min_labels, offset)
    return {
        "count": abs(n_predicted - n_relevant),
        "hamming": n_predicted - 2 * n_right,
        "f1": -2 * n_right / max(1, n_predicted + n_relevant),
    }[criterion]
