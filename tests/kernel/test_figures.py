"""What metrics add up, against plain loops over bags and labels."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.kernel import figures
from streammiml.kernel.rank import relevant_ranks


@st.composite
def ranked(draw):
    """Scores that tie often, label offsets, labels, and the ranks of all pairs."""
    n, n_labels = draw(st.integers(0, 6)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    scores = rng.integers(-2, 3, (n, n_labels)).astype(np.float32)
    truth = rng.random((n, n_labels)) < draw(st.sampled_from([0.0, 0.4, 1.0]))
    offsets = np.concatenate([[0], np.cumsum(truth.sum(axis=1))]).astype(np.int64)
    labels = np.nonzero(truth)[1].astype(np.int32)
    ranks = np.empty((4, len(labels)), np.int64)
    relevant_ranks(scores, offsets, labels, ranks)
    return scores, truth, offsets, labels, ranks


def pairs_of(offsets, ranks):
    """For each bag, the ranks of its pairs."""
    return [ranks[:, a:b].T.tolist() for a, b in itertools.pairwise(offsets)]


@settings(deadline=None)
@given(case=ranked(), data=st.data())
def test_choose_highest__takes_the_first_of_a_stable_sort_and_keeps_what_is_chosen(case, data):
    scores = case[0]
    count = data.draw(st.integers(1, scores.shape[1]))
    before = scores == 2
    chosen = before.copy()
    figures.choose_highest(scores, count, chosen)
    first = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    want = before.copy()
    np.put_along_axis(want, first, True, axis=1)
    np.testing.assert_array_equal(chosen, want)


@settings(deadline=None)
@given(case=ranked(), n_groups=st.integers(1, 3))
def test_count_predicted__counts_by_bag_and_by_label_of_each_group(case, n_groups):
    scores, truth, offsets, labels, _ = case
    predicted = scores > 0
    by_bag = np.empty((2, len(scores)), np.int64)
    by_group = np.full((n_groups, 3, scores.shape[1]), 7, np.int64)
    group = np.random.default_rng(0).integers(0, n_groups, len(scores))
    figures.count_predicted(predicted, offsets, labels, group, by_bag, by_group)
    both = predicted & truth
    np.testing.assert_array_equal(by_bag, [predicted.sum(axis=1), both.sum(axis=1)])
    for number, counts in enumerate(by_group):
        here = group == number
        want = [marks[here].sum(axis=0) for marks in (truth, predicted, both)]
        np.testing.assert_array_equal(counts, want)


@settings(deadline=None)
@given(case=ranked(), k=st.integers(1, 10))
def test_whole_numbers_of_bags__are_those_of_their_pairs(case, k):
    scores, _, offsets, _, ranks = case
    higher, equal, before, relevant = ranks
    first, deepest, wrong = np.full((3, len(scores)), -1, np.int64)
    figures.count_first(higher, before, offsets, k, first)
    figures.deepest_rank(higher, equal, offsets, deepest)
    figures.count_wrong_order(higher, equal, relevant, offsets, wrong)
    pairs = pairs_of(offsets, ranks)
    assert first.tolist() == [sum(h + b < k for h, _, b, _ in bag) for bag in pairs]
    assert deepest.tolist() == [max((h + e for h, e, _, _ in bag), default=0) for bag in pairs]
    assert wrong.tolist() == [sum(h + e - r for h, e, _, r in bag) for bag in pairs]


@settings(deadline=None)
@given(case=ranked(), depth=st.integers(1, 9))
def test_sums_of_bags__are_those_of_their_pairs(case, depth):
    scores, _, offsets, _, ranks = case
    depth = min(depth, scores.shape[1])
    of_rank = [1 / math.log2(rank + 2) if rank < depth else 0 for rank in range(scores.shape[1])]
    gains = np.concatenate([[0.0], np.cumsum(of_rank[:depth])])
    precisions, gain_sums = np.full((2, len(scores)), np.nan)
    figures.sum_precisions(ranks[0], ranks[1], ranks[3], offsets, precisions)
    figures.sum_gains(ranks[0], ranks[1], offsets, gains, gain_sums)
    pairs = pairs_of(offsets, ranks)
    want = [sum(r / (h + e) for h, e, _, r in bag) for bag in pairs]
    np.testing.assert_allclose(precisions, want, rtol=1e-14)
    want = [sum(sum(of_rank[h : h + e]) / e for h, e, _, _ in bag) for bag in pairs]
    np.testing.assert_allclose(gain_sums, want, rtol=1e-14)


@settings(deadline=None)
@given(values=st.lists(st.floats(-1, 1)), data=st.data())
def test_fixed_sums__are_exact_however_figures_are_cut(values, data):
    def total(part):
        high, low, squares, low_squares = map(int, figures.fixed_sums(np.array(part, np.float64)))
        half = figures.HALF
        return (high << half) + low, (squares << half) + low_squares

    cut = data.draw(st.integers(0, len(values)))
    parts = total(values[:cut]), total(values[cut:])
    sums = total(values)
    assert sums == tuple(map(sum, zip(*parts, strict=True)))
    assert sums[0] == sum(round(value * figures.UNIT) for value in values)
    assert sums[1] == sum(round(value * value * figures.UNIT) for value in values)


@pytest.mark.parametrize("n", [2**13, 2**15])
def test_fixed_sums__hold_more_figures_of_one_than_an_integer_of_64_bits(n):
    high, low, _, _ = map(int, figures.fixed_sums(np.ones(n)))
    assert (high << figures.HALF) + low == n * figures.UNIT
