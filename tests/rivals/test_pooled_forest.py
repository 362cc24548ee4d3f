"""PooledForest: what the trees see, and what is predicted."""

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.rivals.pooled_forest import PooledForest


def test_pooled_forest__finds_the_feature_whose_maximum_decides():
    rng = np.random.default_rng(0)
    bags = rng.normal(size=(200, 4, 3))
    truth = bags.max(axis=1)[:, :2] > 1
    model = PooledForest(trees=60).fit(bags[:150], truth[:150].astype(int))
    assert (model.predict(bags[150:]) == truth[150:]).mean() > 0.9
    shares = model.decision_function(bags) + 0.5
    assert 0 <= shares.min() < shares.max() <= 1


def test_pooled_forest__at_least_one_label_if_all_training_bags_have_one():
    rng = np.random.default_rng(0)
    bags, truth = rng.normal(size=(40, 2, 3)), np.eye(4, dtype=int)[np.arange(40) % 4]
    new = rng.normal(size=(40, 2, 3))
    assert (PooledForest(trees=20).fit(bags, truth).predict(new).sum(axis=1) >= 1).all()
    truth[0] = 0
    assert (PooledForest(trees=20).fit(bags, truth).predict(new).sum(axis=1) == 0).any()


def test_pooled_forest__one_label():
    bags = np.arange(20.0).reshape(20, 1, 1)
    truth = (np.arange(20) >= 10).astype(int)[:, None]
    assert PooledForest(trees=30).fit(bags, truth).predict(bags).tolist() == truth.tolist()


def test_pooled_forest__refuses_no_trees():
    with pytest.raises(StreammimlError, match="trees must be a whole number at least 1, got 0"):
        PooledForest(trees=0).fit(np.zeros((4, 2, 3)), np.eye(4))
