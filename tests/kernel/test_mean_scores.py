"""Scores of models with restarts agree with their definition, however bags are cut."""

import numpy as np
import pytest

from streammiml.bags.block import BagBlock
from streammiml.kernel import mean_scores
from streammiml.kernel.lift import Lift
from streammiml.kernel.score import Weights, laid_across, make_scores
from streammiml.kernel.tile import aligned_zeros, padded
from streammiml.scorer import kernel_block
from tests.oracles import mean_scores as oracle

D, M, K, L, R = 5, 6, 2, 4, 3
SIZES = [1, 7, 3, 90, 1, 2]


def plain_lift():
    arrays = np.zeros(D, np.float32), np.ones(D, np.float32)
    return Lift(*arrays, 0, 0, np.zeros((D, 0), np.float32), np.zeros(0, np.float32), 0)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    bags = [rng.normal(size=(size, D)).astype(np.float32) for size in SIZES]
    bags[1][4] = bags[1][2]  # equal rows: the lower one is the key instance
    pairs = [
        (rng.normal(size=(D + 1, M)).astype(np.float32), rng.normal(size=(L + 1, K, M)))
        for _ in range(R)
    ]
    weights = []
    for shared, labels in pairs:
        space = aligned_zeros((D + 1, padded(shared).shape[1]))
        space[:] = padded(shared)
        weights.append(laid_across(Weights(space, padded(labels.astype(np.float32)))))
    return bags, pairs, weights


def block_of(bags):
    return kernel_block(BagBlock.from_bags(bags, [[0]] * len(bags)))


def with_constant(rows):
    return np.hstack([rows, np.ones((len(rows), 1))])


@pytest.mark.parametrize("at_once", [1, 20, 1 << 16])
def test_score_bags__agrees_with_the_definition(case, at_once, monkeypatch):
    monkeypatch.setattr(mean_scores, "SCORES_AT_ONCE", at_once)
    bags, pairs, weights = case
    got = mean_scores.score_bags(block_of(bags), plain_lift(), weights)
    for bag, rows in enumerate(bags):
        values, best, subs = oracle.bag_scores(with_constant(rows), pairs)
        np.testing.assert_allclose(got.value[bag], values, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(got.row[bag], best)
        np.testing.assert_array_equal(got.subconcept[bag], subs)


def test_score_bags__has_the_same_bits_however_bags_are_grouped(case):
    bags, _, weights = case
    together = mean_scores.score_bags(block_of(bags), plain_lift(), weights)
    for bag, rows in enumerate(bags):
        alone = mean_scores.score_bags(block_of([rows]), plain_lift(), weights)
        for of_all, of_one in zip(together, alone, strict=True):
            assert of_all[bag].tobytes() == of_one[0].tobytes()


def test_score_bags__of_equal_restarts_are_the_scores_of_one(case):
    bags, _, weights = case
    once = mean_scores.score_bags(block_of(bags), plain_lift(), weights[:1])
    twice = mean_scores.score_bags(block_of(bags), plain_lift(), [weights[0]] * 2)
    for one, two in zip(once, twice, strict=True):
        assert one.tobytes() == two.tobytes()


def test_keep_highest__agrees_with_the_oracle():
    rng = np.random.default_rng(1)
    offsets = np.array([0, 2, 3, 9])
    got, want = make_scores(3, L), make_scores(3, L)
    for out in (got, want):
        out.value[:], out.row[:], out.subconcept[:] = -np.inf, 0, 0
    for start, stop in [(0, 1), (1, 5), (5, 9)]:
        rows = make_scores(stop - start, L)
        rows.value[:] = rng.integers(0, 3, rows.value.shape)
        rows.subconcept[:] = rng.integers(0, K, rows.value.shape)
        mean_scores.keep_highest(rows, start, offsets, got)
        oracle.keep_highest(rows, start, offsets, want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
