"""Planted bags for the tests of rivals, and criteria of their scores."""

import numpy as np
from sklearn.metrics import label_ranking_average_precision_score

from streammiml.bags.memory import MemoryBags
from streammiml.rivals import row_blocks
from streammiml.rivals.rival import truth_of
from tests.planted import planted

N_LABELS = 5


def learn_and_test(**settings):
    """Two stores in memory, of bags that can be learned from."""
    block = planted(180, n_labels=N_LABELS, **settings)
    return (
        MemoryBags(block.slice(0, 120), n_labels=N_LABELS),
        MemoryBags(block.slice(120, 180), n_labels=N_LABELS),
    )


def average_precision(estimator, store):
    scores = estimator.decision_function(store)
    return label_ranking_average_precision_score(truth_of(store), scores)


def chance(store, rng=None):
    """Mean average precision of random scores."""
    rng = rng or np.random.default_rng(0)
    truth = truth_of(store)
    draws = [rng.random(truth.shape) for _ in range(20)]
    return np.mean([label_ranking_average_precision_score(truth, draw) for draw in draws])


def in_small_blocks(monkeypatch, n_bytes=600):
    """Cut stores into many blocks, as if they were large."""
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", n_bytes)
