"""MIMLkNN worked out by hand, its counts against loops, and its refusals."""

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.rivals.hausdorff import NearestBags
from streammiml.rivals.miml_knn import MIMLkNN, label_counts


def test_mimlknn__four_bags_by_hand():
    bags, truth = np.array([[0.0], [0.1], [0.9], [1.0]]), np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    model = MIMLkNN(n_references=1, n_citers=1).fit(bags, truth)
    # Each training bag has its twin as reference and as citer: counts of 2, and scores of 1 or −1.
    np.testing.assert_allclose(model.decision_function(bags[1:2] - 0.08), [[1.5, -1.5]])
    # 0.02 has one reference (0), and both 0 and 0.1 cite it: it is nearer to them than their twin.
    np.testing.assert_allclose(model.decision_function([[[0.02]]]), [[1.5, -1.5]])
    # 0.3 has the reference 0.1, and nobody cites it.
    np.testing.assert_allclose(model.decision_function([[[0.3]]]), [[0.5, -0.5]])
    assert model.predict([[[0.3]]]).tolist() == [[1, 0]]


def test_label_counts__a_bag_that_is_both_counts_twice():
    nearest = NearestBags(np.zeros((3, 1)), np.array([[1], [0], [1]]))
    truth = np.eye(3, dtype=bool)
    # 0 and 1 have each other twice; 2 has the reference 1 and no citer, and 1 the citer 2.
    assert label_counts(nearest, truth, 1, 1).tolist() == [[0, 2, 0], [2, 0, 1], [0, 1, 0]]


def test_mimlknn__more_neighbours_than_bags_are_all_bags():
    rng = np.random.default_rng(0)
    bags, truth = rng.normal(size=(5, 2, 3)), np.eye(5, dtype=int)
    many = MIMLkNN(n_references=99, n_citers=99).fit(bags, truth)
    all_others = MIMLkNN(n_references=4, n_citers=4).fit(bags, truth)
    np.testing.assert_array_equal(many.decision_function(bags), all_others.decision_function(bags))


def test_mimlknn__refuses_settings_and_a_single_bag():
    bags = np.zeros((4, 2, 3))
    with pytest.raises(StreammimlError, match="n_citers must be a whole number at least 1, got 0"):
        MIMLkNN(n_citers=0).fit(bags, np.eye(4))
    with pytest.raises(StreammimlError, match="no scale is called 'length'; known: range, unit"):
        MIMLkNN(scale="length").fit(bags, np.eye(4))
    with pytest.raises(StreammimlError, match="compares bags, so it needs at least 2"):
        MIMLkNN().fit(bags[:1], np.eye(4)[:1])
