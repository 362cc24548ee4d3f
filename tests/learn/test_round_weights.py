"""The weights of a round reach a worker whole, or as the vectors that changed."""

import numpy as np
import pytest

from streammiml.kernel.score import Weights
from streammiml.learn import round_weights
from streammiml.learn.round_weights import RoundStart, SentStart, WeightCache, weight_tables


def made_weights(seed):
    rng = np.random.default_rng(seed)
    shared, labels = rng.normal(size=(50, 8)), rng.normal(size=(4, 3, 8))
    return Weights(shared.astype(np.float32), labels.astype(np.float32))


def after_a_round(weights, rows_of_shared, rows_of_labels):
    """The beginning of the next round, in which these rows have other values."""
    changed = [np.array(rows, np.int64) for rows in (rows_of_shared, rows_of_labels)]
    later = Weights(*(table.copy() for table in weights))
    for table, rows in zip(weight_tables(*later), changed, strict=True):
        table[rows] += 1
    return RoundStart(128, 128, True, later, before=0, changed=changed)


def assert_same(one, other):
    for table, wanted in zip(one, other, strict=True):
        np.testing.assert_array_equal(table, wanted)


@pytest.fixture
def rounds():
    first = RoundStart(0, 128, False, made_weights(0))
    return first, after_a_round(first.weights, [3, 17, 49], [0, 11])


def test_sent__are_all_weights_first_and_then_what_changed(rounds):
    first, second = map(SentStart.of, rounds)
    assert first.nbytes == (50 + 12) * 8 * 4
    assert second.nbytes == 5 * (8 * 4 + 8)
    assert second.before == 0


def test_sent__are_all_weights_if_most_of_them_changed(rounds):
    first, _ = rounds
    second = after_a_round(first.weights, range(50), range(12))
    assert SentStart.of(second).before == -1
    assert SentStart.of(second).nbytes == SentStart.of(first).nbytes


def test_cache__has_the_weights_of_the_round_again_and_again(rounds):
    cache = WeightCache()
    for start in rounds:
        for _ in range(2):
            known = cache.begin("run", SentStart.of(start))
            assert_same(known.weights, start.weights)
            assert (known.step, known.n_steps, known.has_means) == (
                *(start.step, start.n_steps, start.has_means),
            )


def test_cache__is_no_copy_that_the_sender_changes(rounds):
    first, _ = rounds
    known = WeightCache().begin("run", SentStart.of(first))
    kept = known.weights.shared.copy()
    first.weights.shared[...] = 7
    np.testing.assert_array_equal(known.weights.shared, kept)


def test_cache__without_the_round_before_asks_for_all_weights(rounds):
    first, second = rounds
    third = after_a_round(second.weights, [4], [])
    third = RoundStart(256, 128, True, third.weights, before=128, changed=third.changed)
    cache = WeightCache()
    assert cache.begin("run", SentStart.of(second)) is None
    cache.begin("run", SentStart.of(first))
    assert cache.begin("run", SentStart.of(third)) is None
    assert cache.begin("another", SentStart.of(second)) is None
    known = cache.begin("run", SentStart.of(third, whole=True))
    assert_same(known.weights, third.weights)


def test_cache__control_weights_of_another_round_would_be_noticed(rounds, monkeypatch):
    first, second = rounds
    cache = WeightCache()
    cache.begin("run", SentStart.of(first))
    monkeypatch.setattr(round_weights, "weight_tables", lambda *_: ())
    known = cache.begin("run", SentStart(*(128, 128, True, 0, second.changed, second.weights)))
    with pytest.raises(AssertionError):
        assert_same(known.weights, second.weights)


def test_cache__keeps_few_runs(rounds):
    first, second = rounds
    cache = WeightCache()
    for key in range(round_weights.RUNS_KEPT + 1):
        cache.begin(f"{key}", SentStart.of(first))
    assert cache.begin("0", SentStart.of(second)) is None
    assert cache.begin("2", SentStart.of(second)) is not None
    cache.forget("2")
    assert cache.begin("2", SentStart.of(second)) is None
