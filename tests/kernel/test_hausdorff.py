"""Hausdorff distances of pairs of bags against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.offsets import from_sizes
from streammiml.kernel.hausdorff import pair_distances
from tests.oracles import hausdorff as oracle


def distances(left, right, is_average):
    rows = [np.concatenate(bags) for bags in (left, right)]
    out = np.empty((len(left), len(right)))
    pair_distances(
        rows[0] @ rows[1].T,
        *((x**2).sum(axis=1) for x in rows),
        *(from_sizes([len(bag) for bag in bags]) for bags in (left, right)),
        is_average,
        out,
    )
    return out


@pytest.mark.parametrize("is_average", [True, False])
@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=7), seed=st.integers(0, 99))
def test_pair_distances__equal_the_double_loop(is_average, sizes, seed):
    rng = np.random.default_rng(seed)
    bags = [rng.normal(size=(size, 3)) for size in sizes]
    want = oracle.distances(bags, bags[:2], is_average)
    np.testing.assert_allclose(distances(bags, bags[:2], is_average), want, atol=1e-7)


def test_pair_distances__of_bags_on_a_line():
    left, right = [np.array([[0.0], [1.0]])], [np.array([[0.0], [4.0]])]
    # From the left 0 and 1, from the right 0 and 3.
    assert distances(left, right, True)[0, 0] == pytest.approx(1.0)
    assert distances(left, right, False)[0, 0] == pytest.approx(3.0)
