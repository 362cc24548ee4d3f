"""Blocks of rows, what is held of them, and scalings."""

import numpy as np
import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.rivals.row_blocks import RowBlocks, Scaling, in_order
from tests.planted import planted
from tests.rivals.cases import in_small_blocks, learn_and_test


@pytest.fixture
def store(monkeypatch):
    in_small_blocks(monkeypatch)
    return learn_and_test()[0]


def rows_of(store):
    return store.read(0, store.n_bags).rows.astype(np.float64)


def test_row_blocks__have_every_bag_once_in_order(store):
    blocks = list(RowBlocks(store).map(lambda block: block))
    np.testing.assert_array_equal(np.concatenate([block.rows for block in blocks]), rows_of(store))
    bags = np.concatenate([np.arange(120)[block.bags] for block in blocks])
    assert bags.tolist() == list(range(120))
    assert [block.number for block in blocks] == list(range(len(blocks)))
    np.testing.assert_array_equal(np.bincount(blocks[3].bag_of_row), np.diff(blocks[3].offsets))


def test_row_blocks__are_held_where_all_of_them_fit(store):
    for held_bytes, is_held in ((1 << 20, True), (100, False)):
        blocks = RowBlocks(store, held_bytes=held_bytes)
        assert blocks.is_held == is_held
        assert (blocks.read(0) is blocks.read(0)) == is_held


def test_row_blocks__are_shorter_where_tasks_make_more_values(store):
    assert len(RowBlocks(store, width=60)) > 3 * len(RowBlocks(store))


def test_row_blocks__sparse_rows_become_dense(monkeypatch):
    in_small_blocks(monkeypatch)
    block = planted(20, sparse=True)
    got = [part.rows for part in RowBlocks(MemoryBags(block)).map(lambda block: block)]
    np.testing.assert_array_equal(np.concatenate(got), block.rows.dense())


def test_scaling__to_unit_interval_of_all_blocks(store):
    scaled = Scaling.to_unit_interval(RowBlocks(store)).apply(rows_of(store))
    np.testing.assert_allclose([scaled.min(axis=0), scaled.max(axis=0)], [[0] * 6, [1] * 6])


def test_scaling__to_unit_deviation_of_all_blocks(store):
    scaled = Scaling.called("standard", RowBlocks(store), ["standard"]).apply(rows_of(store))
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(axis=0), 1 / np.sqrt(6))


@pytest.mark.parametrize("name", ["range", "standard"])
def test_scaling__a_constant_feature_becomes_zero(name):
    bags = [np.array([[5.0, 1.0], [5.0, 2.0]], np.float32)]
    store = MemoryBags(type(planted(1)).from_bags(bags, [[0]]))
    scaled = Scaling.called(name, RowBlocks(store), [name]).apply(rows_of(store))
    assert scaled[:, 0].tolist() == [0, 0]
    assert scaled[0, 1] != scaled[1, 1]


def test_scaling__unit_rows_have_the_length_one_and_zeros_stay():
    scaling = Scaling(np.zeros(2), np.ones(2), unit=True)
    np.testing.assert_allclose(scaling.apply(np.array([[3.0, 4.0], [0, 0]])), [[0.6, 0.8], [0, 0]])


@pytest.mark.parametrize("threads", [1, 3])
def test_in_order__yields_in_the_order_of_the_items(threads):
    assert list(in_order(lambda x: x * x, range(50), threads)) == [x * x for x in range(50)]
