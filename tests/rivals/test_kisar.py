"""KISAR: relations, widths and scores by hand, and the objective against a general minimiser."""

import numpy as np
import pytest
from scipy.optimize import minimize

from streammiml.errors import StreammimlError
from streammiml.rivals import kisar
from streammiml.rivals.kisar import KISAR, alternate, cluster_widths, related_labels, sampled_rows
from streammiml.rivals.row_blocks import RowBlock, RowBlocks
from tests.rivals.cases import in_small_blocks, learn_and_test


def test_related_labels__occur_together_more_often_than_the_mean_pair():
    truth = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1]], bool)
    # Labels 0 and 1 occur together twice, 1 and 2 once, 0 and 2 never: the mean is 1.
    assert related_labels(truth).tolist() == [[0, 0], [1, 1], [2, 2], [0, 1]]
    assert related_labels(truth[:, :1]).tolist() == [[0, 0]]


def test_cluster_widths__are_mean_distances_of_two_rows():
    rows = np.array([[0.0], [2.0], [5.0], [7.0], [7.0]])
    widths = cluster_widths(rows, np.array([0, 0, 1, 2, 2]), 3, np.random.default_rng(0))
    # The second cluster has one row and the third equal ones: they have the width of the first.
    assert widths.tolist() == [2.0, 2.0, 2.0]
    assert cluster_widths(rows[:1], np.array([0]), 1, np.random.default_rng(0)).tolist() == [1.0]


def test_scores_and_keys__of_one_bag_by_hand():
    block = RowBlock(0, 0, np.array([0, 3]), np.array([[0.0], [1.0], [3.0]]))
    centres, widths = np.array([[0.5], [3.0]]), np.array([0.25, 1.0])
    weights = np.array([[2.0, 1.0, 0.5], [0.0, -1.0, 0.0], [1.0, 3.0, 0.0]])
    scores, keys = kisar._scores_and_keys(block, centres, widths, weights)
    # The bag is at e⁻¹ of the first prototype and on the second one.
    near = np.exp(-1)
    np.testing.assert_allclose(scores, [[2 * near + 1.5, -1, near + 3]])
    # Label 0 has most from the second prototype (1 > 2/e), where row 2 lies; label 1 has least
    # harm from the first one, to which rows 0 and 1 are equally near.
    assert keys.tolist() == [[2, 0, 2]]


def test_alternate__finds_the_minimum_of_the_objective():
    rng = np.random.default_rng(1)
    features, truth = rng.random((30, 4)), rng.random((30, 2)) < 0.5
    pairs = np.array([[0, 0], [1, 1], [0, 1]])
    weights, objectives = alternate(features, truth, pairs, 5.0)
    assert (np.diff(objectives) < 1e-6 * objectives[0]).all()

    def objective(flat):
        return kisar._objective(flat.reshape(2, 5), features, truth, pairs, 5.0).value

    best = minimize(objective, weights.ravel() + 0.01, method="Powell", options={"maxiter": 200})
    assert objective(weights.ravel()) == pytest.approx(objectives[-1])
    assert objectives[-1] < best.fun * 1.01


def test_objective__of_related_labels_by_hand():
    weights = np.array([[3.0, 0.0, 1.0], [4.0, 2.0, 0.0]])
    features, truth = np.array([[1.0, 0.0]]), np.array([[True, False]])
    pairs = np.array([[0, 0], [0, 1]])
    value, lengths = kisar._objective(weights, features, truth, pairs, 2.0)
    assert lengths.tolist() == [[3, 0], [5, 2]]
    # Penalties 3² and 7², the intercept 1, and 2 · (1 + 4)² of the second label.
    assert value == pytest.approx(9 + 49 + 1 + 2 * 25)


def test_sampled_rows__are_different_rows_of_all_blocks(monkeypatch):
    learn, _ = learn_and_test()
    rows = learn.read(0, learn.n_bags).rows
    in_small_blocks(monkeypatch)
    everything = sampled_rows(RowBlocks(learn), np.random.default_rng(0))
    np.testing.assert_array_equal(everything, rows)
    monkeypatch.setattr(kisar, "SAMPLED_ROWS", 50)
    some = sampled_rows(RowBlocks(learn), np.random.default_rng(0))
    assert len(np.unique(some, axis=0)) == 50
    assert {tuple(row) for row in some} <= {tuple(row) for row in rows.astype(float)}


def test_kisar__objective_falls_and_the_highest_label_is_always_predicted():
    learn, test = learn_and_test()
    model = KISAR().fit(learn)
    assert (np.diff(model.objectives_) < 1e-6 * model.objectives_[0]).all()
    assert model.prototypes_.shape == (60, 6)
    assert (model.predict(test).sum(axis=1) >= 1).all()
    assert KISAR(max_prototypes=7).fit(learn).prototypes_.shape == (7, 6)


def test_kisar__refuses_settings():
    with pytest.raises(StreammimlError, match="max_prototypes must be a whole number at least 1"):
        KISAR(max_prototypes=0).fit(learn_and_test()[0])
