"""Sums and maxima of bags against loops."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.offsets import from_sizes
from streammiml.rivals.segments import first_maxima, row_maxima, row_sums, softmax_in_bags


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), seed=st.integers(0, 50))
def test_segments__agree_with_loops(sizes, seed):
    offsets = from_sizes(sizes)
    # Few different values, so that there are ties.
    values = np.random.default_rng(seed).integers(0, 3, (offsets[-1], 2)).astype(float)
    bags = [values[a:b] for a, b in pairwise(offsets)]
    np.testing.assert_array_equal(row_sums(values, offsets), [bag.sum(axis=0) for bag in bags])
    np.testing.assert_array_equal(row_maxima(values, offsets), [bag.max(axis=0) for bag in bags])
    np.testing.assert_array_equal(first_maxima(values, offsets), [b.argmax(axis=0) for b in bags])
    want = np.concatenate([np.exp(bag) / np.exp(bag).sum(axis=0) for bag in bags])
    np.testing.assert_allclose(softmax_in_bags(values, offsets), want)


def test_softmax_in_bags__of_large_values_is_finite():
    shares = softmax_in_bags(np.array([[1000.0], [0.0]]), np.array([0, 2]))
    assert shares.tolist() == [[1.0], [0.0]]
