import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import label_ranking_loss

from streammiml.kernel import rank
from tests.oracles import rank as oracle


def block_of(truth):
    """Label offsets and labels of a matrix of truths (n_bags, L)."""
    offsets = np.concatenate([[0], np.cumsum(truth.sum(axis=1))]).astype(np.int64)
    return offsets, np.nonzero(truth)[1].astype(np.int32)


@st.composite
def scored(draw):
    n_bags, n_labels = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    # Whole numbers tie often.
    scores = rng.integers(-2, 3, (n_bags, n_labels)).astype(np.float32)
    return scores, rng.random((n_bags, n_labels)) < draw(st.sampled_from([0.0, 0.4, 0.8, 1.0]))


@settings(deadline=None)
@given(case=scored())
def test_ranking_loss__agrees_with_pairs_and_with_scikit_learn(case):
    scores, truth = case
    offsets, labels = block_of(truth)
    total = rank.ranking_loss_sum(scores, offsets, labels)
    exact = oracle.ranking_loss_sum(scores, offsets, labels)
    assert abs(total - exact * rank.UNIT) <= len(scores)
    if scores.shape[1] > 1:
        got = rank.ranking_loss(total, len(scores))
        assert got == pytest.approx(label_ranking_loss(truth, scores), abs=1e-9)


@settings(deadline=None)
@given(case=scored(), cut=st.integers(0, 6))
def test_ranking_loss_sum__does_not_depend_on_the_cut(case, cut):
    scores, truth = case
    loss_sum = rank.ranking_loss_sum(scores, *block_of(truth))
    first = rank.ranking_loss_sum(scores[:cut], *block_of(truth[:cut]))
    assert loss_sum == first + rank.ranking_loss_sum(scores[cut:], *block_of(truth[cut:]))


def test_wrong_pairs__of_scores_that_are_not_numbers_are_all_wrong():
    scores = np.array([1.0, np.nan, 0.5], np.float32)
    assert rank.wrong_pairs(scores, np.array([1], np.int32)) == 2
    assert rank.wrong_pairs(scores, np.array([0], np.int32)) == 1


def test_ranking_loss__over_no_bags_is_not_a_number():
    assert np.isnan(rank.ranking_loss(0, 0))


@settings(deadline=None)
@given(case=scored())
def test_relevant_ranks__agree_with_oracle(case):
    scores, truth = case
    offsets, labels = block_of(truth)
    got, want = np.full((2, 4, len(labels)), -1)
    rank.relevant_ranks(scores, offsets, labels, got)
    oracle.relevant_ranks(scores, offsets, labels, want)
    np.testing.assert_array_equal(got, want)
