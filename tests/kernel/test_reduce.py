"""The reduction of a round: against its definition in float64, and what it must keep."""

import numpy as np
import pytest

from streammiml.kernel.reduce import (
    Change,
    add_change,
    add_sums,
    apply_sums,
    find_changes,
    make_sums,
)
from tests.oracles import reduce as oracle

N, WIDTH, C = 12, 8, 3.0
ROUND = (5, 9)
"""Iterates at the beginning and at the end of the round."""


def numbers(seed, *shape, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def replicas(before, n, *, touched=0.6, seed=1):
    """Vectors and round means of each replica; some vectors stay as they were."""
    rng = np.random.default_rng(seed)
    for number in range(n):
        changed = rng.random(len(before)) < touched
        after = np.where(changed[:, None], before + numbers(seed + number, *before.shape), before)
        means = np.where(changed[:, None], numbers(90 + number, *before.shape), before)
        rows = np.flatnonzero(changed)
        yield after, means, Change(rows, after[rows], means[rows].astype(np.float32))


def reduced(before, changes, *, has_means=True, iterates=ROUND, averages=None, max_norm=C):
    """Vectors, means and numbers of seen iterates after the reduction."""
    sums = make_sums(before.shape, has_means=has_means)
    for change in changes:
        add_change(sums, before, change)
    vectors = before.copy()
    means, seen = averages or (np.zeros((0, WIDTH)), np.zeros(0, np.int64))
    means, seen = means.copy(), seen.copy()
    finite = apply_sums(sums, vectors, means, seen, len(changes), *iterates, max_norm)
    return vectors, means, seen, finite


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_apply_sums__is_the_definition_in_float64(n):
    before = numbers(0, N, WIDTH)
    made = list(replicas(before, n))
    means = np.random.default_rng(7).normal(size=(N, WIDTH))
    seen = np.full(N, ROUND[0])
    vectors, new_means, new_seen, finite = reduced(
        before, [change for *_, change in made], averages=(means, seen)
    )
    assert finite
    for row in range(N):
        touched = [row in change.rows for *_, change in made]
        if not any(touched):
            np.testing.assert_array_equal(vectors[row], before[row])
            np.testing.assert_array_equal(new_means[row], means[row])
            assert new_seen[row] == ROUND[0]
            continue
        expected = oracle.next_vector(before[row], [after[row] for after, *_ in made], C)
        np.testing.assert_allclose(vectors[row], expected, rtol=3e-7)
        expected = oracle.next_mean(means[row], [mean[row] for _, mean, _ in made], *ROUND)
        np.testing.assert_allclose(new_means[row], expected, rtol=1e-12)
        assert new_seen[row] == ROUND[1]


def test_apply_sums__replicas_that_agree_are_averaged_and_others_are_summed():
    before = np.zeros((3, WIDTH), np.float32)
    east, north = (np.eye(WIDTH, dtype=np.float32)[i] for i in (0, 1))
    rows, no_means = np.arange(3), np.zeros((0, WIDTH), np.float32)
    one = Change(rows, np.stack([east, east, east]), no_means)
    other = Change(rows[:2], np.stack([east, north]), no_means)
    vectors, *_ = reduced(before, [one, other], has_means=False)
    np.testing.assert_array_equal(vectors, [east, east + north, east])


def test_apply_sums__projects_onto_the_ball():
    before = numbers(0, N, WIDTH)
    change = Change(np.arange(N), 100 * before, np.zeros((0, WIDTH), np.float32))
    vectors, *_ = reduced(before, [change], has_means=False)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), C, rtol=1e-6)


def test_apply_sums__vectors_that_waited_are_brought_up_to_date_first():
    before = numbers(0, 1, WIDTH)
    means, change = np.full((1, WIDTH), 9.0), next(replicas(before, 1, touched=1.0))[2]
    _, late, *_ = reduced(before, [change], averages=(means, np.array([2])))
    # Iterates 3 to 5 were the vector itself.
    weights = [oracle.weight(0, 2), oracle.weight(2, 5)]
    current = (weights[0] * means + weights[1] * before.astype(float)) / sum(weights)
    _, now, *_ = reduced(before, [change], averages=(current, np.array([5])))
    np.testing.assert_allclose(late, now, rtol=1e-12)


def test_apply_sums__a_round_without_iterates_brings_means_up_to_date():
    before = numbers(0, 1, WIDTH)
    change = Change(np.array([0]), before + 1, np.zeros((0, WIDTH), np.float32))
    averages = np.full((1, WIDTH), 9.0), np.array([2])
    _, means, seen, _ = reduced(
        before, [change], has_means=False, iterates=(5, 5), averages=averages
    )
    weights = [oracle.weight(0, 2), oracle.weight(2, 5)]
    expected = (weights[0] * averages[0] + weights[1] * before.astype(float)) / sum(weights)
    np.testing.assert_allclose(means, expected, rtol=1e-12)
    assert seen.tolist() == [5]


def test_apply_sums__says_that_a_vector_is_not_finite():
    before = numbers(0, 2, WIDTH)
    after = before.copy()
    after[1, 3] = np.nan
    change = Change(np.arange(2), after, np.zeros((0, WIDTH), np.float32))
    assert not reduced(before, [change], has_means=False)[-1]


def test_add_sums__of_groups_is_the_sum_of_all():
    before = numbers(0, N, WIDTH)
    changes = [change for *_, change in replicas(before, 6)]
    whole, first, second = (make_sums(before.shape, has_means=True) for _ in range(3))
    for number, change in enumerate(changes):
        add_change(whole, before, change)
        add_change(first if number < 3 else second, before, change)
    add_sums(first, second)
    for one, other in zip(first, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_find_changes__sends_only_changed_vectors_and_their_means():
    before = numbers(0, N, WIDTH)
    after = before.copy()
    after[3] += 1
    # Vector 7 was changed and came back: its mean was brought up to date meanwhile.
    seen = np.full(N, ROUND[0])
    means = np.zeros((N, WIDTH))
    weights = [oracle.weight(5, 7), oracle.weight(7, 9)]
    for row in (3, 7):
        seen[row] = 7
        # Iterates 6 and 7 were ones; the first five are not counted.
        means[row] = weights[0] / oracle.weight(0, 7)
    change = find_changes(before, after, means, seen, ROUND)
    assert change.rows.tolist() == [3, 7]
    np.testing.assert_array_equal(change.vectors, after[[3, 7]])
    expected = (weights[0] * 1.0 + weights[1] * after[[3, 7]]) / sum(weights)
    np.testing.assert_allclose(change.means, expected, rtol=1e-6)
    assert change.nbytes == 2 * 8 + 2 * 2 * WIDTH * 4


def test_find_changes__without_averages_sends_no_means():
    before = numbers(0, N, WIDTH)
    nothing = np.zeros((0, WIDTH)), np.zeros(0, np.int64)
    change = find_changes(before, before + 1, *nothing, (0, 0))
    assert len(change.rows) == N
    assert change.means.shape == (0, WIDTH)
