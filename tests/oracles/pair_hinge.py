"""The hinge loss of pairs of labels from its definition: a loop over bags and pairs."""

import numpy as np


def pair_hinge(scores, truth):
    """Sum over bags of the mean loss of their pairs, and its derivative by the scores."""
    total, slopes = 0.0, np.zeros(scores.shape)
    for bag, (values, own) in enumerate(zip(scores.astype(np.float64), truth, strict=True)):
        pairs = [(p, q) for p in np.flatnonzero(own) for q in np.flatnonzero(~own)]
        for relevant, other in pairs:
            loss = 1 - values[relevant] + values[other]
            if loss > 0:
                total += loss / len(pairs)
                slopes[bag, relevant] -= 1 / len(pairs)
                slopes[bag, other] += 1 / len(pairs)
    return total, slopes
