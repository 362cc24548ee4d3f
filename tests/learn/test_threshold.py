import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.errors import StreammimlError
from streammiml.learn.threshold import (
    CRITERIA,
    empty_counts,
    fitted_offset,
    margin_counts,
    sum_counts,
)
from tests.oracles import threshold as oracle


def random_case(seed, n_bags=12, n_labels=5):
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (n_bags, n_labels + 1)).astype(np.float32)
    truth = rng.random((n_bags, n_labels)) < 0.4
    offsets = np.concatenate([[0], truth.sum(axis=1).cumsum()])
    return scores, truth, offsets, np.nonzero(truth)[1].astype(np.int32)


@given(
    seed=st.integers(0, 2**32),
    min_labels=st.integers(0, 2),
    criterion=st.sampled_from(CRITERIA),
)
def test_fitted_offset__has_the_lowest_cost_of_the_grid(seed, min_labels, criterion):
    scores, truth, offsets, labels = random_case(seed)
    offset = fitted_offset(margin_counts(scores, offsets, labels, min_labels), criterion)
    costs = {
        value: oracle.cost(scores, truth, min_labels, value, criterion)
        for value in oracle.offsets()[:: 1 if seed % 8 == 0 else 16]
    }
    assert oracle.cost(scores, truth, min_labels, offset, criterion) <= min(costs.values())


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 12))
def test_margin_counts__are_the_same_however_bags_are_cut(seed, cut):
    scores, _, offsets, labels = random_case(seed)
    whole = margin_counts(scores, offsets, labels, 1)
    first = margin_counts(scores[:cut], offsets[: cut + 1], labels[: offsets[cut]], 1)
    rest = margin_counts(scores[cut:], offsets[cut:] - offsets[cut], labels[offsets[cut] :], 1)
    np.testing.assert_array_equal(sum_counts([first, rest]), whole)
    assert whole.sum() == scores[:, :-1].size


def test_fitted_offset__moves_a_threshold_that_predicts_too_few():
    scores = np.float32([[3, 1, -1, 2.5], [1, 3, -1, 2.5]])
    counts = margin_counts(scores, np.array([0, 2, 4]), np.int32([0, 1, 0, 1]), 0)
    for criterion in CRITERIA:
        assert -3.5 <= fitted_offset(counts, criterion) < -1.5


def test_fitted_offset__refuses_unknown_criteria():
    with pytest.raises(StreammimlError, match=r"^no criterion is called 'best'; known: count"):
        fitted_offset(empty_counts(), "best")
