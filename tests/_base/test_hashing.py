"""Words and orders: those of plain integers, even, and the same for any part of the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml._base.hashing import below, mixed, permuted, shuffled

WORD = 1 << 64
KEYS = st.lists(st.integers(-(2**70), 2**70), max_size=4)


def finalised(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def word(value, *keys):
    for key in keys:
        value = finalised((value + key * 0x9E3779B97F4A7C15) % WORD)
    return finalised((value + 0x632BE59BD9B4E019) % WORD)


def place(at, n, *keys):
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    while True:
        left, right = at >> half, at % (1 << half)
        for number in range(6):
            left, right = right, left ^ (word(right, number, *keys) % (1 << half))
        at = (left << half) + right
        if at < n:
            return at


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), KEYS)
def test_mixed__is_what_whole_numbers_give(values, keys):
    got = mixed(np.array(values, np.int64), *keys)
    assert got.tolist() == [word(value % WORD, *keys) for value in values]


def test_mixed__keeps_shape_whatever_the_order_in_memory_and_leaves_its_argument():
    values = np.arange(12).reshape(3, 4)
    got = mixed(values.T, 5)
    np.testing.assert_array_equal(got, mixed(values, 5).T)
    np.testing.assert_array_equal(values.ravel(), np.arange(12))
    np.testing.assert_array_equal(mixed(values[:, 1], 5), mixed(values, 5)[:, 1])


@given(st.integers(1, 2**62), st.data(), KEYS)
def test_permuted__is_what_whole_numbers_give(n, data, keys):
    places = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    got = permuted(np.array(places, np.int64), n, *keys)
    assert got.tolist() == [place(at, n, *keys) for at in places]


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 100))
def test_permuted__is_a_permutation(n, seed, epoch):
    order = permuted(np.arange(n), n, seed, epoch)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


def test_permuted__any_part_equals_that_part_of_the_whole():
    permutation = permuted(np.arange(5000), 5000, 7)
    np.testing.assert_array_equal(permuted(np.arange(700, 900), 5000, 7), permutation[700:900])


def test_permuted__orders_of_small_sets_are_all_as_likely():
    orders = np.array([permuted(np.arange(4), 4, seed) for seed in range(6000)])
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 250) ** 2 / 250).sum() < 60  # chi-square, 23 degrees: p ≈ 4e-5


def test_below__covers_its_range_evenly():
    counts = np.bincount(below(mixed(np.arange(70_000), 3), 7), minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 30


@pytest.mark.parametrize("at", [-1, 4, 1 << 20])
def test_permuted__refuses_places_outside(at):
    with pytest.raises(IndexError, match="a place is outside of an order of 4 numbers"):
        permuted(np.array([0, at]), 4, 1)


@pytest.mark.parametrize("n", [0, 1, 5000])
def test_shuffled__is_the_whole_order(n):
    assert list(shuffled(n, 3)) == permuted(np.arange(n), n, 3).tolist()
