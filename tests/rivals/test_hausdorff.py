"""Distances of all bags a pair of blocks at a time, and the nearest bags."""

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.rivals.hausdorff import (
    all_distances,
    check_longest_bag,
    distance_blocks,
    distances_to,
    nearest_others,
)
from streammiml.rivals.row_blocks import Scaling
from tests.oracles import hausdorff as oracle
from tests.rivals.cases import learn_and_test

AS_IS = Scaling(np.zeros(6), np.ones(6))


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.setattr("streammiml.rivals.hausdorff.BLOCK_ROWS", 30)
    blocks = [distance_blocks(store, AS_IS) for store in learn_and_test()]
    assert len(blocks[0]) > 5
    return blocks


@pytest.mark.parametrize("is_average", [True, False])
def test_distances__of_blocks_equal_the_double_loop(blocks, is_average):
    learn, test = blocks
    bags, others = ([bag.rows.astype(float) for bag in part.store] for part in blocks)
    want = oracle.distances(bags, bags, is_average)
    np.testing.assert_allclose(all_distances(learn, is_average=is_average), want, atol=1e-7)
    want = oracle.distances(others[:20], bags, is_average)
    got = distances_to(test, learn, is_average=is_average)[:20]
    np.testing.assert_allclose(got, want, atol=1e-7)


def test_nearest_others__are_the_first_of_the_sorted_distances(blocks):
    distances = all_distances(blocks[0], is_average=True)
    np.fill_diagonal(distances, np.inf)
    nearest = nearest_others(blocks[0], 7, is_average=True)
    want = np.argsort(distances, axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(nearest.numbers, want)
    np.testing.assert_array_equal(nearest.distances, np.take_along_axis(distances, want, axis=1))


def test_check_longest_bag__refuses_products_that_do_not_fit():
    learn, _ = learn_and_test()
    check_longest_bag(learn, 1000)
    with pytest.raises(StreammimlError, match=r"bag \d+ of .* has 5 rows; its distances"):
        check_longest_bag(learn, 100)
