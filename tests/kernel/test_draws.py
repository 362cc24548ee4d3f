import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.kernel import draws
from tests.oracles import draws as oracle

counts = st.integers(0, 2**62)


def key_of(seed, step):
    """numba hands a word back as an int, and would take one below 2**63 for signed."""
    return np.uint64(draws.step_key(seed, step))


@settings(deadline=None)
@given(seed=counts, step=counts, draw=st.integers(0, 2**40), bound=st.integers(1, 2**32 - 1))
def test_below__agrees_with_plain_integers(seed, step, draw, bound):
    key = key_of(seed, step)
    assert int(key) == oracle.step_key(seed, step)
    got = draws.below(key, draw, bound)
    assert got == oracle.below(int(key), draw, bound)
    assert 0 <= got < bound


@settings(deadline=None)
@given(labels=st.sets(st.integers(0, 11)), step=counts, attempt=st.integers(1, 100))
def test_draw_against__agrees_with_listing_what_is_left(labels, step, attempt):
    relevant = np.array(sorted(labels), np.int32)
    key = key_of(5, step)
    for n_against in {12 - len(labels), 13 - len(labels)} - {0}:
        got = draws.draw_against(key, attempt, relevant, n_against)
        assert got == oracle.draw_against(int(key), attempt, relevant, n_against)
        assert got not in labels
    assert draws.draw_label(key, relevant, 12) == oracle.draw_label(int(key), relevant, 12)


def test_draw_ahead__gives_what_the_draws_give_one_by_one():
    relevant = np.array([0, 3, 4, 8], np.int32)
    key, out = key_of(3, 14), np.zeros(16, np.int64)
    for first in (1, 17):
        draws.draw_ahead(key, first, relevant, 9, out)
        want = [draws.draw_against(key, first + i, relevant, 9) for i in range(16)]
        assert list(out) == want


def chi_square(counts):
    mean = counts.sum() / len(counts)
    return ((counts - mean) ** 2 / mean).sum()


@pytest.mark.parametrize(
    ("steps", "tries"),
    [
        (range(6000), [1]),
        ([3], range(1, 6001)),
        (range(2000), [1, 2, 3]),
        ([2**50, 7], range(3000)),
    ],
)
def test_draw_against__is_uniform_along_steps_and_along_tries(steps, tries):
    relevant = np.array([0, 4, 5, 9], np.int32)
    seen = np.zeros(13, np.int64)
    for step in steps:
        key = key_of(1, step)
        for attempt in tries:
            seen[draws.draw_against(key, attempt, relevant, 9)] += 1
    assert seen[relevant].sum() == 0
    # 8 degrees of freedom: exceeded once in a thousand.
    assert chi_square(np.delete(seen, relevant)) < 26.1


def test_draw_label__gives_every_label_and_the_dummy_their_share():
    relevant = np.array([2, 6, 7], np.int32)
    seen = np.zeros(11, np.int64)
    for step in range(4000):
        seen[draws.draw_label(key_of(9, step), relevant, 10)] += 1
    assert chi_square(seen[[2, 6, 7, 10]]) < 16.3
    assert seen.sum() == seen[[2, 6, 7, 10]].sum()


def test_draw_label__of_a_bag_without_labels_is_the_dummy():
    nothing = np.empty(0, np.int32)
    assert {draws.draw_label(key_of(0, step), nothing, 4) for step in range(20)} == {4}


def test_step_key__differs_between_neighbouring_seeds_and_steps():
    keys = {int(key_of(seed, step)) for seed in range(50) for step in range(50)}
    assert len(keys) == 2500
    words = [int(key_of(3, step)) for step in range(400)]
    spread = [(a ^ b).bit_count() for a, b in itertools.pairwise(words)]
    assert 31 < np.mean(spread) < 33
