"""MIMLBoost: codes, weights of machines and votes by hand, and its refusals."""

import math

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.rivals.miml_boost import MIMLBoost, label_codes, machine_weight
from tests.rivals.cases import learn_and_test


def test_label_codes__reach_further_for_many_features():
    assert label_codes(3, 10).tolist() == [0, 0.5, 1]
    np.testing.assert_allclose(label_codes(2, 2499), [0, 2.0])  # ln 2500 / ln 50
    assert label_codes(1, 10).tolist() == [0]


def test_machine_weight__minimises_the_weighted_sum():
    # 0.75 exp(−c) + 0.25 exp(c / 2) is least where exp(1.5 c) = 6.
    weight = machine_weight(np.array([0.75, 0.25]), np.array([0.0, 0.75]))
    assert weight == pytest.approx(math.log(6) / 1.5)
    assert machine_weight(np.array([0.5, 0.5]), np.array([0.0, 1.0])) == pytest.approx(0)
    assert machine_weight(np.array([0.5, 0.5]), np.array([0.0, 0.25])) == 50


def test_mimlboost__a_first_machine_without_errors_is_kept():
    rows = np.repeat(np.array([[0.0], [1.0]]), 30, axis=0)
    model = MIMLBoost().fit(rows, np.repeat([[1], [0]], 30, axis=0))
    assert [weight for weight, _ in model._machines] == [1.0]
    # Every row votes with the weight 1.
    assert model.decision_function([[[0.0], [0.0]], [[1.0], [1.0]]]).tolist() == [[2.0], [-2.0]]


def test_mimlboost__one_class_needs_no_machine():
    model = MIMLBoost().fit(np.zeros((5, 2, 3)), np.ones((5, 2)))
    assert (model.predict(np.zeros((2, 1, 3))) == 1).all()


def test_mimlboost__more_machines_learn_more():
    learn, _ = learn_and_test()
    few, many = (MIMLBoost(rounds=rounds).fit(learn) for rounds in (1, 6))
    truth = [[int(label in bag.labels) for label in range(5)] for bag in learn]
    errors = [(model.predict(learn) != truth).mean() for model in (few, many)]
    assert errors[1] < errors[0] or errors[0] < 0.1


def test_mimlboost__says_beforehand_how_many_pairs_there_are():
    learn, _ = learn_and_test()
    with pytest.raises(StreammimlError, match=r"on [\d,]+ pairs of [\d,]+ rows and 5 labels"):
        MIMLBoost(max_pairs=100).fit(learn)
    with pytest.raises(StreammimlError, match="rounds must be a whole number at least 1, got 0"):
        MIMLBoost(rounds=0).fit(learn)
