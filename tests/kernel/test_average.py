import numpy as np
import pytest

from streammiml.kernel import average
from tests.oracles import sweep as oracle


def share_kept(seen, now):
    return average.weight_until(seen) / average.weight_until(now)


def test_weight_until__is_the_sum_of_weights_up_to_a_factor():
    weights = [oracle.weight_of(i, average.POWER) for i in range(1, 41)]
    for seen in (0, 1, 5, 39):
        want = sum(weights[:seen]) / sum(weights[:40])
        assert share_kept(seen, 40) == pytest.approx(want, rel=1e-12)


def test_weight_until__holds_for_a_trillion_steps():
    now = 10**12 // average.STRIDE
    step = 1 - share_kept(now - 1, now)
    assert step == pytest.approx((average.POWER + 1) / (now + average.POWER), rel=1e-3)


def test_catch_up__in_jumps_equals_the_mean_of_all_iterates():
    rng = np.random.default_rng(0)
    iterates, means, seen = [], np.zeros((3, 8)), 0
    for length in (1, 4, 1, 9, 2):
        vectors = rng.normal(size=(3, 8)).astype(np.float32)
        iterates += [vectors[1].astype(np.float64)] * length
        average.catch_up(means, vectors, 1, seen, average.weight_until(seen + length))
        seen += length
        np.testing.assert_allclose(means[1], oracle.mean_of(iterates, average.POWER), rtol=1e-12)
    assert not means[[0, 2]].any()


def test_weight_until__forgets_the_first_half_of_a_long_run():
    assert share_kept(500_000, 1_000_000) < 0.005
    assert 0.08 < share_kept(750_000, 1_000_000) < 0.12


@pytest.mark.parametrize("stride", [0, 64])
def test_averaged__before_the_first_iterate_is_the_last_one(stride):
    rng = np.random.default_rng(0)
    shared, labels = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 8), (2, 2, 8)))
    averages = average.make_averages(shared, labels, stride)
    got = average.averaged(shared, labels, averages, 63)
    np.testing.assert_array_equal(got[0], shared)
    np.testing.assert_array_equal(got[1], labels)
    assert not np.shares_memory(got[0], shared)


def test_make_averages__without_averaging_holds_nothing():
    averages = average.make_averages(
        np.zeros((3, 8), np.float32), np.zeros((2, 2, 8), np.float32), 0
    )
    assert sum(array.nbytes for array in averages[:4]) == 0
