"""Counts of scores: the same however bags are cut, in bounded memory, with bounds that hold."""

import pickle
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.measure import score_counts
from streammiml.measure.score_counts import ScoreCounts
from tests.measure.cases import scored as scored_bags
from tests.measure.cases import truth_of

PLENTY = 1 << 20


def counted(scores, truth, most=PLENTY):
    return ScoreCounts.of(scores, np.nonzero(truth), most)


def tables(counts):
    """Everything that figures are computed from."""
    total = counts.total
    arrays = [array.tolist() for table in (total.carried, total.others) for array in table]
    return total.dropped, arrays


@given(
    block=scored_bags(max_bags=30),
    seed=st.integers(0, 99),
    n_cuts=st.integers(0, 12),
    most=st.sampled_from([1, 7, 20, 50, PLENTY]),
    most_raw=st.sampled_from([1, 30, PLENTY]),
)
def test_score_counts__do_not_depend_on_how_bags_are_cut_and_ordered(
    block, seed, n_cuts, most, most_raw
):
    truth, rng = truth_of(block), np.random.default_rng(seed)
    want = tables(counted(block.scores, truth, most))
    order = rng.permutation(block.n_bags)
    ends = np.sort(np.concatenate([[0, block.n_bags], rng.integers(0, block.n_bags + 1, n_cuts)]))
    parts = [order[a:b] for a, b in pairwise(ends.tolist())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_counts, "MOST_RAW", most_raw)
        pieces = [counted(block.scores[bags], truth[bags], most) for bags in parts]
        # Neighbours first, as tasks add up their blocks, and then their sums.
        middle = len(pieces) // 2
        halves = [
            reduce(ScoreCounts.add, half) for half in (pieces[:middle], pieces[middle:]) if half
        ]
        assert tables(reduce(ScoreCounts.add, halves)) == want
        assert tables(reduce(ScoreCounts.add, pieces)) == want
        assert tables(pickle.loads(pickle.dumps(reduce(ScoreCounts.add, pieces)))) == want


@given(block=scored_bags(max_bags=30), most=st.integers(1, 60))
def test_score_counts__drop_as_few_bits_as_possible(block, most):
    counts = counted(block.scores, truth_of(block), most)
    dropped, size = counts.total.dropped, counts.total.size
    assert size <= max(most, 2 * block.n_labels)
    whole = counted(block.scores, truth_of(block))
    assert whole.is_exact
    sizes = [
        len(whole.total.carried.coarse(bits).keys) + len(whole.total.others.coarse(bits).keys)
        for bits in range(33)
    ]
    assert dropped == next((bits for bits in range(33) if sizes[bits] <= most), 32)
    assert size == sizes[dropped]


@given(block=scored_bags(max_bags=30), most=st.integers(1, 60))
def test_curves__of_scores_without_their_lowest_bits_have_bounds_that_hold(block, most):
    coarse = counted(block.scores, truth_of(block), most)
    exact = counted(block.scores, truth_of(block))
    for got, want in ((coarse.by_label, exact.by_label), (coarse.pooled, exact.pooled)):
        for name in ("auc", "precision"):
            value, low, high = (getattr(got, name + end) for end in ("", "_low", "_high"))
            true = getattr(want, name)
            known = ~np.isnan(true)
            np.testing.assert_array_equal(np.isnan(value), ~known)
            assert (low[known] <= true[known] + 1e-12).all()
            assert (high[known] >= true[known] - 1e-12).all()
            assert (low[known] <= value[known] + 1e-12).all()
            assert (high[known] >= value[known] - 1e-12).all()


def test_score_counts__keep_few_entries_of_many_scores(monkeypatch):
    monkeypatch.setattr(score_counts, "MOST_RAW", 2000)
    rng = np.random.default_rng(0)
    total = None
    for _ in range(40):
        part = counted(
            rng.normal(size=(500, 3)).astype(np.float32), rng.random((500, 3)) < 0.2, 999
        )
        total = part if total is None else total.add(part)
        assert sum(layer.size for layer in total.layers) <= 2 * 999
        assert sum(scores.size for scores in total.raw) <= 2000
    assert total.total.size <= 999
    assert not total.is_exact
    assert (total.by_label.auc_high - total.by_label.auc_low < 0.03).all()


def test_score_counts__sort_many_small_blocks_together(monkeypatch):
    monkeypatch.setattr(score_counts, "MOST_RAW", 64)
    one = counted(np.array([[0.5]], np.float32), np.array([[True]]))
    total = reduce(ScoreCounts.add, [one] * 200)
    assert sum(scores.size for scores in total.raw) <= 64
    assert len(total.raw) <= 7
    assert total.total.carried.counts.tolist() == [200]


def test_score_counts__both_zeros_are_equal():
    scores = np.array([[0.0], [-0.0]], np.float32)
    assert counted(scores, np.array([[True], [False]])).by_label.auc.tolist() == [0.5]
