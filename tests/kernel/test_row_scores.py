"""Scores of rows: those of the definition, and of their bags to the last bit, in any slices."""

import numpy as np
import pytest

from streammiml.kernel import row_scores as kernel
from streammiml.kernel.lift import EVERYTHING, EXTREMES, MEAN, NO_CONTEXT, lift_bag, lift_width
from streammiml.kernel.score import laid_across, score_block
from tests.kernel.cases import (
    dense_block,
    plain_lift,
    random_weights,
    sparse_block,
    with_constant,
)
from tests.oracles import row_scores as oracle

SIZES = [1, 5, 3, 150, 2, 64, 1]
N_ROWS = sum(SIZES)


def made(context=NO_CONTEXT, *, shared=True, unit=0):
    rng = np.random.default_rng(4)
    lift = plain_lift(9, context)._replace(unit=unit)
    block = dense_block(rng, SIZES, 9, 6, density=0.4)
    weights = random_weights(rng, lift_width(lift), 12 if shared else None, 3, 6)
    return block, lift, weights


def joined(slices):
    """Scores of all rows, and the first row of each slice."""
    starts, scores = zip(*slices, strict=True)
    arrays = zip(*scores, strict=True)
    return starts, [np.concatenate(array) for array in arrays]


def rows_of(block, lift, weights, n_at_once=N_ROWS):
    return joined(kernel.row_scores(block, lift, laid_across(weights), n_at_once))[1]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("context", [NO_CONTEXT, EXTREMES, MEAN])
def test_row_scores__agree_with_oracle(context, shared):
    block, lift, weights = made(context, shared=shared)
    value, row, sub = rows_of(block, lift, weights)
    lifted = np.empty((N_ROWS, lift_width(lift)), np.float32)
    for start, stop in zip(block.bag_offsets, block.bag_offsets[1:], strict=False):
        lift_bag(lift, block.rows[start:stop], lifted[start:stop])
    if context == NO_CONTEXT:
        np.testing.assert_array_equal(lifted, with_constant(block.rows))
    labels = weights.labels if shared else weights.labels[..., : lifted.shape[1]]
    want = oracle.row_scores(lifted, weights.shared if shared else None, labels)
    np.testing.assert_allclose(value, want[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(sub, want[1])
    assert not row.any()


@pytest.mark.parametrize("form", [lambda block: block, sparse_block], ids=["dense", "sparse"])
@pytest.mark.parametrize("context", [NO_CONTEXT, EXTREMES, EVERYTHING, MEAN])
@pytest.mark.parametrize("unit", [0, 1])
def test_row_scores__have_the_bits_of_the_bags_in_any_slices(form, context, unit):
    if form is sparse_block and context in (EXTREMES, EVERYTHING):
        pytest.skip("sparse rows have no such context")
    block, lift, weights = made(context, unit=unit)
    block = form(block)
    value, _, sub = rows_of(block, lift, weights)
    bags = score_block(block, lift, weights)
    starts = block.bag_offsets[:-1]
    assert np.maximum.reduceat(value, starts).tobytes() == bags.value.tobytes()
    keys = starts[:, None] + bags.row
    labels = np.broadcast_to(np.arange(7), keys.shape)
    np.testing.assert_array_equal(sub[keys, labels], bags.subconcept)
    for n_at_once in (1, 7, 64, 65, 1000):
        slices = kernel.row_scores(block, lift, laid_across(weights), n_at_once)
        starts_of_slices, (other, _, other_sub) = joined(slices)
        assert list(starts_of_slices) == list(range(0, N_ROWS, n_at_once))
        assert other.tobytes() == value.tobytes()
        assert other_sub.tobytes() == sub.tobytes()


def test_row_scores__of_no_rows_are_none():
    block = dense_block(np.random.default_rng(0), [], 9, 6)
    _, lift, weights = made()
    assert not list(kernel.row_scores(block, lift, laid_across(weights), 10))
