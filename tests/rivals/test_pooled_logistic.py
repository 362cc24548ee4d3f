"""PooledLogistic against scikit-learn's model on vectors that are made by hand."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from streammiml.rivals.pooled_logistic import PooledLogistic


def test_pooled_logistic__is_the_model_of_pooled_vectors():
    rng = np.random.default_rng(0)
    bags = rng.normal(size=(80, 3, 2)).astype(np.float32)
    truth = bags.max(axis=1) > 1
    rows = bags.astype(np.float64)
    vectors = np.concatenate([rows.mean(axis=1), rows.max(axis=1), rows.min(axis=1)], axis=1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    model = PooledLogistic(scale="unit", cost=3.0).fit(bags, truth.astype(int))
    for label, own in enumerate(truth.T):
        want = LogisticRegression(C=3.0, max_iter=300, solver="liblinear").fit(vectors, own)
        got = model.decision_function(bags)[:, label] + 0.5
        np.testing.assert_allclose(got, want.predict_proba(vectors)[:, 1], rtol=1e-6)


def test_pooled_logistic__labels_of_all_bags_have_the_probability_one():
    bags = np.random.default_rng(0).normal(size=(20, 2, 3))
    truth = np.column_stack([np.arange(20) % 2, np.ones(20), np.zeros(20)]).astype(int)
    scores = PooledLogistic().fit(bags, truth).decision_function(bags)
    assert (scores[:, 1] == 0.5).all()
    assert (scores[:, 2] == -0.5).all()
