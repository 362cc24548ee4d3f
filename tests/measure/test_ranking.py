import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn

from streammiml.measure import ranking
from tests.measure.cases import block_of, figure, relevant_of, scored, truth_of
from tests.oracles import ranking as oracle

CLOSE = {"rel": 0, "abs": 1e-12}
SAME = {
    "one_error": oracle.one_error,
    "coverage": oracle.coverage,
    "ranking_loss": oracle.ranking_loss,
    "average_precision": oracle.average_precision,
}


def bags_of(block):
    return list(zip(block.scores.tolist(), relevant_of(block), strict=True))


@pytest.mark.parametrize("name", SAME)
@given(block=scored())
def test_ranking_metrics__agree_with_plain_loops(name, block):
    got = figure(getattr(ranking, name), block).value
    assert got == pytest.approx(float(SAME[name](bags_of(block))), **CLOSE)


@given(block=scored(), k=st.integers(1, 10))
def test_metrics_at_k__agree_with_plain_loops(block, k):
    for name in ("precision_at", "ndcg_at"):
        got = figure(getattr(ranking, name)(k), block).value
        assert got == pytest.approx(float(getattr(oracle, name)(bags_of(block), k)), **CLOSE)


@given(block=scored(), k=st.integers(1, 10))
def test_metrics_of_youtube_8m__agree_with_plain_loops_over_bags_with_labels(block, k):
    bags = bags_of(block)
    for metric, want in (
        (ranking.perr, oracle.perr(bags)),
        (ranking.hit_at(k), oracle.hit_at(bags, k)),
    ):
        got = figure(metric, block).value
        assert got is None if want is None else got == pytest.approx(float(want), **CLOSE)


def test_metrics_of_youtube_8m__have_the_standard_error_of_a_mean_over_bags_with_labels():
    truth = np.array([[True, True, False], [True, False, False], [False] * 3, [False, False, True]])
    block = block_of(np.array([[3, 1, 2]] * 4), truth)
    perr, hit = figure(ranking.perr, block), figure(ranking.hit_at(1), block)
    assert (perr.value, hit.value) == (0.5, pytest.approx(2 / 3))
    assert perr.standard_error == pytest.approx(np.std([0.5, 1, 0], ddof=1) / 3**0.5)
    assert hit.standard_error == pytest.approx(np.std([1, 1, 0], ddof=1) / 3**0.5)


@given(block=scored(min_labels=2), k=st.integers(1, 10))
def test_ranking_metrics__agree_with_scikit_learn(block, k):
    truth, scores = truth_of(block), block.scores.astype(np.float64)
    n_labels = block.n_labels
    want = {
        ranking.coverage: (sklearn.coverage_error(truth, scores) - 1) / n_labels,
        ranking.ranking_loss: sklearn.label_ranking_loss(truth, scores),
        ranking.average_precision: sklearn.label_ranking_average_precision_score(truth, scores),
        ranking.ndcg_at(k): sklearn.ndcg_score(truth, scores, k=k),
    }
    for metric, value in want.items():
        assert figure(metric, block).value == pytest.approx(value, **CLOSE), metric.name


def test_ranking_metrics__of_bags_with_no_labels_and_all_are_as_written():
    scores = np.array([[3, 2, 1], [3, 2, 1]])
    none, every = block_of(scores, np.zeros((2, 3), bool)), block_of(scores, np.ones((2, 3), bool))
    expected = {
        ranking.one_error: (1, 0),
        ranking.coverage: (-1 / 3, 2 / 3),
        ranking.ranking_loss: (0, 0),
        ranking.average_precision: (1, 1),
        ranking.precision_at(1): (0, 1),
        ranking.precision_at(5): (0, 3 / 5),
        ranking.ndcg_at(3): (0, 1),
    }
    for metric, values in expected.items():
        assert (figure(metric, none).value, figure(metric, every).value) == values, metric.name


def test_standard_error__is_that_of_a_mean_over_bags():
    rng = np.random.default_rng(0)
    scores, truth = rng.normal(size=(200, 9)), rng.random((200, 9)) < 0.3
    block = block_of(scores, truth)
    for metric in (
        ranking.one_error,
        ranking.coverage,
        ranking.ranking_loss,
        ranking.average_precision,
        ranking.precision_at(3),
        ranking.ndcg_at(3),
    ):
        of_each_bag = [
            figure(metric, block_of(scores[[i]], truth[[i]])).value for i in range(len(scores))
        ]
        of_all = figure(metric, block)
        assert of_all.value == pytest.approx(np.mean(of_each_bag), **CLOSE)
        assert of_all.standard_error == pytest.approx(
            np.std(of_each_bag, ddof=1) / 200**0.5, rel=1e-9
        )


def test_standard_error__of_two_bags_is_half_their_difference():
    two = block_of(np.array([[1, 0], [0, 1]]), np.array([[True, False], [True, False]]))
    assert figure(ranking.ranking_loss, two).standard_error == 0.5
    assert figure(ranking.one_error, two).standard_error == 0.5


def test_standard_error__of_one_bag_is_unknown():
    one = block_of(np.array([[1, 0]]), np.array([[True, False]]))
    assert figure(ranking.ranking_loss, one).standard_error is None
    assert figure(ranking.one_error, one).standard_error is None


def test_figures__of_no_bags_are_none():
    empty = block_of(np.empty((0, 3)), np.empty((0, 3), bool))
    assert figure(ranking.ranking_loss, empty).value is None
    assert figure(ranking.coverage, empty).value is None
