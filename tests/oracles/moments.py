"""The same statistics from all rows at once."""

import numpy as np

from tests.oracles.lift import transformed


def of_values(columns, values, n_features, transform):
    """(seen, mean, spread, max_abs) of each feature over the values given for it."""
    out = np.zeros((4, n_features))
    for j in range(n_features):
        mine = transformed(values[columns == j].astype(np.float64), transform)
        if len(mine):
            out[:, j] = len(mine), mine.mean(), mine.var() * len(mine), np.abs(mine).max()
    return out
