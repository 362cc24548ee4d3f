"""RankLossSIM: a step by hand, its objective against loops, blocks that are read again."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.errors import StreammimlError
from streammiml.rivals import rank_loss_sim
from streammiml.rivals.rank_loss_sim import RankLossSIM
from streammiml.rivals.rival import Rival, truth_of
from streammiml.rivals.row_blocks import RowBlock
from tests.oracles import pair_hinge as oracle
from tests.rivals.cases import in_small_blocks, learn_and_test


def test_ranklosssim__one_step_by_hand():
    bags, truth = np.array([[[1.0]], [[-1.0]]]), np.array([[1, 0], [0, 1]])
    model = RankLossSIM(regularisation=0.5, rounds=1, steps=1).fit(bags, truth)
    # Both pairs are violated: the slope is (−1, 1), the step 1 / 0.5 leads to (2, −2), and the
    # ball with the radius 1 / √0.5 brings the weights back to (1, −1). No pair is violated then.
    np.testing.assert_allclose(model.coef_, [[1, 0], [-1, 0]], atol=1e-12)
    assert model.objective_ == pytest.approx(0.25 * 2)
    margins = model.decision_function(bags) + model.cutoff_
    np.testing.assert_allclose(margins, [[1, -1], [-1, 1]], atol=1e-12)
    assert model.predict(bags).tolist() == truth.tolist()


@pytest.mark.parametrize("aggregation", rank_loss_sim.AGGREGATIONS)
@given(seed=st.integers(0, 50))
def test_block_loss__agrees_with_support_instances_in_loops(aggregation, seed):
    rng = np.random.default_rng(seed)
    offsets, rows = np.array([0, 2, 3, 7]), rng.normal(size=(7, 3))
    weights, held = rng.normal(size=(2, 4, 4))
    truth = rng.random((3, 4)) < 0.5
    supports = np.empty((3, 4, 4))
    for bag in range(3):
        own = np.column_stack([rows, np.ones(7)])[offsets[bag] : offsets[bag + 1]]
        for label in range(4):
            scores = own @ held[label]
            shares = {
                "softmax": np.exp(scores) / np.exp(scores).sum(),
                "max": np.arange(len(own)) == scores.argmax(),
                "mean": np.full(len(own), 1 / len(own)),
            }[aggregation]
            supports[bag, label] = shares @ own
    want, slopes = oracle.pair_hinge(np.einsum("blf,lf->bl", supports, weights), truth)
    frozen = rank_loss_sim._Supports(held, aggregation, {}, False)
    loss, slope = rank_loss_sim._block_loss(RowBlock(0, 0, offsets, rows), weights, frozen, truth)
    np.testing.assert_allclose(loss, want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(slope, np.einsum("bl,blf->lf", slopes, supports), atol=1e-10)


@pytest.mark.parametrize("aggregation", rank_loss_sim.AGGREGATIONS)
def test_ranklosssim__blocks_that_are_read_again_give_the_same_bits(monkeypatch, aggregation):
    learn, _ = learn_and_test()
    in_small_blocks(monkeypatch)
    settings = {"aggregation": aggregation, "rounds": 2, "steps": 20}
    held = RankLossSIM(**settings).fit(learn)
    monkeypatch.setattr(Rival, "_check_memory", lambda *_: 0)
    read_again = RankLossSIM(**settings).fit(learn)
    np.testing.assert_array_equal(held.coef_, read_again.coef_)


def test_ranklosssim__key_instances_have_the_highest_score():
    learn, test = learn_and_test()
    model = RankLossSIM(aggregation="max", rounds=2, steps=50).fit(learn)
    scores, keys = model.decision_function(test) + model.cutoff_, model.key_instances(test)
    scaled = [model._scaling.apply(bag.rows.astype(float)) for bag in test]
    for bag, rows in enumerate(scaled):
        of_rows = rows @ model.coef_[:, :-1].T + model.coef_[:, -1]
        np.testing.assert_array_equal(keys[bag], of_rows.argmax(axis=0))
        np.testing.assert_allclose(scores[bag], of_rows.max(axis=0), atol=1e-12)


def test_ranklosssim__says_that_it_is_worse_than_no_model(caplog):
    learn, _ = learn_and_test(noise=30.0)
    with caplog.at_level(logging.WARNING, "streammiml"):
        model = RankLossSIM(regularisation=1e-9, rounds=1, steps=1).fit(learn)
    assert "that of no model is 1: raise steps or regularisation" in caplog.text
    assert model.objective_ > 1


def test_ranklosssim__needs_bags_with_some_labels_and_not_others():
    bags = np.zeros((4, 2, 3))
    for truth in (np.ones((4, 1)), np.ones((4, 2)), np.zeros((4, 2))):
        with pytest.raises(StreammimlError, match="bags that carry some labels and not others"):
            RankLossSIM().fit(bags, truth)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregation": "median"}, "no aggregation is called 'median'; known: max, mean, softmax"),
        ({"scale": "range"}, "no scale is called 'range'; known: standard, unit"),
        ({"regularisation": 0}, "regularisation must be .* above 0, got 0"),
        ({"rounds": 0}, "rounds must be a whole number at least 1, got 0"),
        ({"steps": 0}, "steps must be a whole number at least 1, got 0"),
    ],
)
def test_ranklosssim__refuses_settings(settings, message):
    learn, _ = learn_and_test()
    assert truth_of(learn).any()
    with pytest.raises(StreammimlError, match=message):
        RankLossSIM(**settings).fit(learn)
