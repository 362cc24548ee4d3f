import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.kernel import score
from streammiml.kernel.lift import MEAN
from streammiml.kernel.tile import aligned_zeros, padded_width
from tests.kernel.cases import dense_block, plain_lift, random_weights, sparse_block, with_constant
from tests.oracles import score as oracle


def same(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.tobytes() == b.tobytes()


@st.composite
def scored_block(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    n_features, n_labels, n_sub, width = (
        draw(st.integers(1, 9)),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 20)),
    )
    block = dense_block(rng, sizes, n_features, n_labels)
    has_shared = draw(st.booleans())
    return block, random_weights(
        rng, n_features + 1, width if has_shared else None, n_sub, n_labels
    )


@settings(deadline=None, max_examples=30)
@given(case=scored_block())
def test_score_block__agrees_with_oracle(case):
    block, weights = case
    got = score.score_block(block, plain_lift(block.rows.shape[1]), weights)
    shared = weights.shared if len(weights.shared) else None
    for bag, (start, stop) in enumerate(itertools.pairwise(block.bag_offsets)):
        rows = with_constant(block.rows[start:stop])
        labels = weights.labels if len(weights.shared) else weights.labels[..., : rows.shape[1]]
        value, row, sub = oracle.bag_scores(rows, shared, labels)
        np.testing.assert_allclose(got.value[bag], value, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(got.row[bag], row)
        np.testing.assert_array_equal(got.subconcept[bag], sub)


@pytest.mark.parametrize(("n_labels", "n_sub"), [(23, 1), (24, 5), (130, 1), (71, 2), (9, 200)])
def test_score_block__agrees_with_oracle_on_more_labels_than_are_scored_at_once(n_labels, n_sub):
    rng = np.random.default_rng(n_labels)
    block = dense_block(rng, [3, 70, 1], 6, n_labels)
    weights = random_weights(rng, 7, 11, n_sub, n_labels)
    got = score.score_block(block, plain_lift(6), weights)
    for bag, (start, stop) in enumerate(itertools.pairwise(block.bag_offsets)):
        rows = with_constant(block.rows[start:stop])
        value, row, sub = oracle.bag_scores(rows, weights.shared, weights.labels)
        np.testing.assert_allclose(got.value[bag], value, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(got.row[bag], row)
        np.testing.assert_array_equal(got.subconcept[bag], sub)


def test_score_block__of_weights_laid_across_before_has_the_same_bits():
    rng = np.random.default_rng(5)
    block, weights = dense_block(rng, [3, 70, 1], 6, 40), random_weights(rng, 7, 11, 2, 40)
    before = score.laid_across(weights)
    assert before.width == 11
    lift = plain_lift(6)
    same(score.score_block(block, lift, before), score.score_block(block, lift, weights))


def test_score_block__of_weights_that_are_all_zero_is_zero():
    rng = np.random.default_rng(5)
    block, weights = dense_block(rng, [3, 2], 6, 4), random_weights(rng, 7, 11, 2, 4)
    weights.labels[:] = 0
    assert not score.score_block(block, plain_lift(6), weights).value.any()


@settings(deadline=None, max_examples=20)
@given(case=scored_block(), data=st.data())
def test_score_block__has_the_same_bits_however_bags_are_grouped(case, data):
    block, weights = case
    lift = plain_lift(block.rows.shape[1])
    scores_of_block = score.score_block(block, lift, weights)
    n_bags = len(block.bag_offsets) - 1
    cut = data.draw(st.integers(0, n_bags))
    for start, stop in ((0, cut), (cut, n_bags)):
        offsets = block.bag_offsets[start : stop + 1]
        part = block._replace(
            rows=block.rows[offsets[0] : offsets[-1]], bag_offsets=offsets - offsets[0]
        )
        same(
            score.score_block(part, lift, weights), [array[start:stop] for array in scores_of_block]
        )


@pytest.mark.parametrize("has_shared", [True, False])
def test_score_block__sparse_equals_dense_to_the_bit(has_shared):
    rng = np.random.default_rng(4)
    block = dense_block(rng, [1, 5, 3, 70, 2], 40, 6, density=0.2)
    weights = random_weights(rng, 41, 12 if has_shared else None, 2, 6)
    lift = plain_lift(40)
    same(
        score.score_block(sparse_block(block), lift, weights),
        score.score_block(block, lift, weights),
    )


@pytest.mark.parametrize("unit", [0, 1])
@pytest.mark.parametrize("has_shared", [True, False])
def test_score_block__sparse_with_a_context_equals_dense_in_any_grouping(has_shared, unit):
    rng = np.random.default_rng(4)
    sizes = [1, 5, 3, 70, 2, 60, 4, 1]
    block = dense_block(rng, sizes, 40, 6, density=0.2)
    weights = random_weights(rng, 81, 12 if has_shared else None, 2, 6)
    lift = plain_lift(40, MEAN)._replace(unit=unit)
    want = score.score_block(block, lift, weights)
    scores_of_block = score.score_block(sparse_block(block), lift, weights)
    np.testing.assert_allclose(scores_of_block.value, want.value, atol=1e-5)
    np.testing.assert_array_equal(scores_of_block.row, want.row)
    for bag in range(len(sizes)):
        rows = slice(*block.bag_offsets[bag : bag + 2])
        alone = block._replace(
            rows=block.rows[rows],
            bag_offsets=np.array([0, sizes[bag]]),
            label_offsets=np.zeros(2, np.int64),
        )
        same(
            score.score_block(sparse_block(alone), lift, weights),
            [array[bag : bag + 1] for array in scores_of_block],
        )


@pytest.mark.parametrize("n_rows", [1, 2, 63, 64, 65, 200])
def test_score_block__of_a_bag_longer_than_a_panel_is_that_of_its_best_row(n_rows):
    rng = np.random.default_rng(n_rows)
    block = dense_block(rng, [n_rows], 7, 5)
    weights = random_weights(rng, 8, 10, 3, 5)
    bag_score = score.score_block(block, plain_lift(7), weights)
    alone = block._replace(
        bag_offsets=np.arange(n_rows + 1), label_offsets=np.zeros(n_rows + 1, np.int64)
    )
    rows = score.score_block(alone, plain_lift(7), weights)
    np.testing.assert_array_equal(bag_score.value[0], rows.value.max(axis=0))
    np.testing.assert_array_equal(bag_score.row[0], rows.value.argmax(axis=0))


def test_score_block__gives_ties_to_the_lowest_row_then_the_lowest_subconcept():
    rng = np.random.default_rng(0)
    row = rng.normal(size=(1, 4)).astype(np.float32)
    other = -100 * np.abs(row)
    block = dense_block(rng, [150], 4, 3)
    block.rows[:] = other
    block.rows[[70, 90, 140]] = row
    weights = random_weights(rng, 5, 6, 3, 3)
    # Any row but those three scores far less; sub-concepts 1 and 2 are alike and beat 0.
    weights.shared[:] = 0
    weights.shared[:4, 0] = np.sign(row)
    weights.labels[:] = 0
    weights.labels[:, :, 0] = [0.5, 1, 1]
    got = score.score_block(block, plain_lift(4), weights)
    assert (got.row == 70).all()
    assert (got.subconcept == 1).all()


def test_score_block__of_all_zero_rows_is_zero_at_the_first_row():
    rng = np.random.default_rng(0)
    block = dense_block(rng, [3], 4, 2)
    block.rows[:] = 0
    weights = random_weights(rng, 5, 6, 2, 2)
    weights.shared[4] = 0
    got = score.score_block(block, plain_lift(4), weights)
    assert not got.value.any()
    assert not got.row.any()
    assert not got.subconcept.any()


def test_score_block__of_no_bags_is_empty():
    rng = np.random.default_rng(0)
    block = dense_block(rng, [], 4, 2)
    assert score.score_block(block, plain_lift(4), random_weights(rng, 5, 6, 2, 2)).value.shape == (
        0,
        3,
    )


@pytest.mark.parametrize("n_rows", range(1, 10))
@pytest.mark.parametrize("width", [1, 8, 16, 24, 40, 100, 112])
def test_project_dense__has_the_same_bits_in_every_tile(n_rows, width):
    rng = np.random.default_rng(width)
    rows = rng.normal(size=(n_rows, 5)).astype(np.float32)
    shared = aligned_zeros((5, padded_width(width)))
    shared[:] = rng.normal(size=shared.shape)
    in_tiles, alone = np.empty((2, n_rows, padded_width(width)), np.float32)
    score.project_dense(rows, shared, in_tiles)
    for i in range(n_rows):
        score.project_dense(rows[i : i + 1], shared, alone[i : i + 1])
    assert in_tiles.tobytes() == alone.tobytes()
    np.testing.assert_allclose(in_tiles, rows @ shared, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_score_block__of_a_million_rows_needs_room_for_a_panel_only():
    rng = np.random.default_rng(0)
    block = dense_block(rng, [1_000_000], 4, 3)
    weights = random_weights(rng, 5, 6, 2, 3)
    got = score.score_block(block, plain_lift(4), weights)
    value, row, sub = oracle.bag_scores(with_constant(block.rows), weights.shared, weights.labels)
    np.testing.assert_allclose(got.value[0], value, rtol=1e-5)
    np.testing.assert_array_equal(got.row[0], row)
    np.testing.assert_array_equal(got.subconcept[0], sub)
