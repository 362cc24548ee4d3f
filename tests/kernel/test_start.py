"""Sums of a start from the bags: right, and with the same bits however bags are cut."""

import numpy as np
import pytest

from streammiml.kernel import start as kernel
from streammiml.kernel.tile import aligned_zeros, padded_width
from tests.kernel.cases import dense_block, plain_lift, sparse_block, with_constant
from tests.oracles import start as oracle

SIZES = [1, 4, 2, 7, 3, 70]


def lifted(block, context):
    """Rows with the mean of their bag, if the lift has one, and the constant."""
    rows = block.rows.astype(np.float64)
    if context:
        bags = np.split(rows, block.bag_offsets[1:-1])
        rows = np.concatenate([np.column_stack([bag, bag * 0 + bag.mean(axis=0)]) for bag in bags])
    return with_constant(rows)


def case(form, context=0, seed=0):
    rng = np.random.default_rng(seed)
    block = dense_block(rng, SIZES, 6, 5, density=0.5)
    lift = plain_lift(6, context)
    rows = lifted(block, context)
    shared = aligned_zeros((rows.shape[1], padded_width(10)))
    shared[:, :10] = rng.normal(size=(rows.shape[1], 10))
    return block if form == "dense" else sparse_block(block), lift, rows, shared


FORMS = [("dense", 0), ("dense", 3), ("sparse", 0), ("sparse", 3)]


@pytest.mark.parametrize(("form", "context"), FORMS)
def test_place_bags__agrees_with_oracle(form, context):
    block, lift, rows, shared = case(form, context)
    got = kernel.place_bags(block, lift, shared)
    np.testing.assert_allclose(got, oracle.place_rows(rows, shared), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("form", "context"), FORMS)
def test_add_products__agrees_with_oracle_and_adds_to_what_is_there(form, context):
    block, lift, rows, shared = case(form, context)
    factors = np.random.default_rng(1).normal(size=(len(rows), 10))
    got = np.ones((rows.shape[1], 10))
    kernel.add_products(block, lift, factors, shared, got)
    np.testing.assert_allclose(got - 1, oracle.add_products(rows, factors), rtol=1e-5, atol=1e-5)


def test_add_products__has_the_same_bits_bag_by_bag():
    block, lift, rows, shared = case("dense")
    factors = np.random.default_rng(1).normal(size=(len(rows), 10))
    together, apart = np.zeros((2, rows.shape[1], 10))
    kernel.add_products(block, lift, factors, shared, together)
    for start, stop in zip(block.bag_offsets[:-1], block.bag_offsets[1:], strict=True):
        bag = block._replace(rows=block.rows[start:stop], bag_offsets=np.array([0, stop - start]))
        kernel.add_products(bag, lift, factors[start:stop], shared, apart)
    assert together.tobytes() == apart.tobytes()


def test_orthonormalise__spans_the_columns_and_clears_those_that_depend_on_others():
    columns = np.random.default_rng(2).normal(size=(30, 6))
    columns[:, 3] = columns[:, 0] - 2 * columns[:, 2]
    columns[:, 5] = 0
    # Nearly parallel: one pass of projections would leave them far from orthogonal.
    columns[:, 4] = columns[:, 1] + 1e-4 * columns[:, 4]
    got = columns.copy()
    kept = kernel.orthonormalise(got)
    assert kept.tolist() == [True, True, True, False, True, False]
    np.testing.assert_allclose(got.T @ got, np.diag(kept.astype(float)), atol=1e-12)
    np.testing.assert_allclose(got @ (got.T @ columns), columns, atol=1e-10)


def test_orthonormalise__more_columns_than_dimensions_leave_the_last_ones_empty():
    columns = np.random.default_rng(2).normal(size=(3, 5))
    kept = kernel.orthonormalise(columns)
    assert kept.tolist() == [True, True, True, False, False]
    np.testing.assert_allclose(columns @ columns.T, np.eye(3), atol=1e-12)
    assert not columns[:, 3:].any()


def test_best_rows__agrees_with_oracle_and_takes_the_first_of_equals():
    block, lift, _, shared = case("dense")
    placed = kernel.place_bags(block, lift, shared)
    vectors = np.random.default_rng(3).normal(size=(5, 10))
    vectors[2] = 0
    got = np.full(len(block.labels), -1)
    args = block.bag_offsets, block.label_offsets, block.labels, vectors
    kernel.best_rows(placed, *args, got)
    assert got.tolist() == oracle.best_rows(placed[:, :10], *args)
    assert 2 in block.labels
