"""MIMLSVM worked out by hand, and its medoids."""

import math

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.rivals.miml_svm import MIMLSVM, medoids


def test_mimlsvm__two_bags_by_hand():
    bags, truth = np.array([[0.0], [1.0]]), np.array([[1, 0], [0, 1]])
    model = MIMLSVM(ratio=0.5).fit(bags, truth)
    # One medoid, at distances 0 and 1. Both bags are support vectors with the weight C = 1, so
    # scores are 1 − exp(−0.2 · 1²).
    own = 1 - math.exp(-0.2)
    np.testing.assert_allclose(model.decision_function(bags), [[own, -own], [-own, own]], atol=1e-6)
    assert model.predict(bags).tolist() == truth.tolist()


def test_medoids__find_the_centres_of_two_groups():
    points = np.array([0.0, 1.0, 2.0, 10.0, 11.0, 12.0])
    distances = np.abs(points[:, None] - points)
    chosen = [sorted(medoids(distances, 2, np.random.default_rng(s)).tolist()) for s in range(6)]
    assert [1, 4] in chosen
    for pair in chosen:
        assert len(set(pair)) == 2


def test_mimlsvm__the_highest_label_is_predicted_if_none_is_positive():
    rng = np.random.default_rng(0)
    bags, truth = rng.normal(size=(40, 3, 2)), np.eye(4, dtype=int)[np.arange(40) % 4]
    assert (MIMLSVM().fit(bags, truth).predict(bags).sum(axis=1) >= 1).all()


def test_mimlsvm__says_beforehand_what_it_would_need():
    assert MIMLSVM()._bytes_needed(100_000, 900_000, 200, 20) > 1e11
    with pytest.raises(StreammimlError, match="ratio must be at most 1, got 2"):
        MIMLSVM(ratio=2).fit(np.zeros((4, 2, 3)), np.eye(4))
