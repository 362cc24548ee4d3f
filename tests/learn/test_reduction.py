"""The reduction of a round: groups of replicas are summed first, always the same ones."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from streammiml.blocks.replica_streams import StreamPlace
from streammiml.config import ModelConfig
from streammiml.kernel.reduce import Change
from streammiml.kernel.sweep import make_tally
from streammiml.learn.checkpoint import new_state
from streammiml.learn.reduction import FAN_IN, GroupResult, Reduction, sum_group
from streammiml.learn.replica import NO_CHANGE, TurnResult, end_turns
from streammiml.learn.round_weights import RoundStart, SentStart
from tests.learn.test_checkpoint import made_lift
from tests.oracles import reduce as oracle


def made_turn(replica, shared, labels):
    return TurnResult(
        at=StreamPlace(replica, 0, 0), shared=shared, labels=labels, tally=make_tally(),
        diverged_at=-1, n_rows=0, n_bytes=0, kernel_seconds=0.0, reading_seconds=0.0,
        seconds=0.0, thread=0, kept_stream=True, worker="", arithmetic="",
    )  # fmt: skip


def made_change(before, seed):
    """Every vector moves a little."""
    rng = np.random.default_rng(seed)
    after = (before + rng.normal(size=before.shape)).astype(np.float32)
    return Change(np.arange(len(before)), after, np.zeros((0, before.shape[1]), np.float32))


def begun(start):
    reduction = Reduction()
    reduction.begin(start)
    return reduction


def summed(results, start):
    """Sums of a group, as a worker forms them."""
    try:
        return sum_group(results, SentStart.of(start, whole=True), SimpleNamespace(key="a run"))
    finally:
        end_turns("a run")


@pytest.mark.parametrize("n_replicas", [2, FAN_IN, FAN_IN + 1, 3 * FAN_IN - 1])
def test_reduction__of_any_number_of_replicas_is_the_definition(n_replicas):
    state = new_state(ModelConfig(shared_dim=5, subconcepts=2, average=False), made_lift(), 3)
    tables = [state.weights.shared, state.weights.labels.reshape(8, -1)]
    before = [table.copy() for table in tables]
    start = RoundStart(0, 1, False, state.weights)
    reduction, results, turns = begun(start), [], []
    for replica in range(n_replicas):
        changes = [made_change(table, 100 * replica + i) for i, table in enumerate(before)]
        turns.append(changes)
        results.append(made_turn(replica, *changes))
    for first in range(0, n_replicas, FAN_IN):
        reduction.add(GroupResult.of(results[first : first + FAN_IN]))
    assert reduction.apply(state, n_replicas, (0, 0), 10.0)
    for number, table in enumerate(tables):
        for row in range(len(table)):
            after = [changes[number].vectors[row] for changes in turns]
            expected = oracle.next_vector(before[number][row], after, 10.0)
            np.testing.assert_allclose(table[row], expected, rtol=3e-7, atol=1e-7)


def test_reduction__a_round_that_changed_nothing_keeps_the_weights():
    state = new_state(ModelConfig(shared_dim=5, subconcepts=2), made_lift(), 3)
    before = [table.copy() for table in state.weights]
    start = RoundStart(0, 1, True, state.weights)
    reduction = begun(start)
    empty = Change(np.zeros(0, np.int64), *np.zeros((2, 0, before[0].shape[1]), np.float32))
    reduction.add(GroupResult.of([made_turn(0, empty, empty)]))
    assert reduction.apply(state, 1, (0, 2), 10.0)
    for table, kept in zip(state.weights, before, strict=True):
        np.testing.assert_array_equal(table, kept)


def test_no_change__is_what_a_result_keeps_without_its_arrays():
    change = made_change(np.zeros((2, 8), np.float32), 0)
    assert made_turn(1, change, change).without_changes().shared is NO_CHANGE


@pytest.mark.parametrize("has_means", [False, True])
def test_group__that_was_sent_has_only_changed_vectors_and_gives_the_same_bits(has_means):
    """The arrays of a group that comes from another process may be read-only."""
    settings = ModelConfig(shared_dim=5, subconcepts=2, average=has_means)
    results = []
    for replica in range(3):
        rows = np.array([1 + replica, 5])
        vectors = np.full((2, 8), replica + 0.1, np.float32)
        means = vectors * 2 if has_means else vectors[:0]
        change = Change(rows, vectors, means)
        results.append(made_turn(replica, change, change))
    states = [new_state(settings, made_lift(), 3) for _ in range(2)]
    iterates = (0, 2) if has_means else (0, 0)
    for is_sent, state in enumerate(states):
        start = RoundStart(0, 1, has_means, state.weights)
        reduction = begun(start)
        group = GroupResult.of(results)
        if is_sent:
            group = summed(results, start)
            sent = pickle.dumps(group)
            assert [list(packed.rows) for packed in group.sums] == [[1, 2, 3, 5]] * 2
            group = pickle.loads(sent)
            for packed in group.sums:
                for array in packed.sums:
                    array.flags.writeable = False
        reduction.add(group)
        assert reduction.apply(state, 3, iterates, 10.0)
    for here, there in zip(states[0].weights, states[1].weights, strict=True):
        np.testing.assert_array_equal(here, there)
    for here, there in zip(states[0].averages[:2], states[1].averages[:2], strict=True):
        np.testing.assert_array_equal(here, there)


def test_reduction__control_another_order_of_the_replicas_gives_other_weights():
    """In float64 the order shows only between numbers of very different size."""
    weights = []
    for order in ((0, 1, 2), (0, 2, 1)):
        state = new_state(ModelConfig(shared_dim=5, subconcepts=2, average=False), made_lift(), 3)
        state.weights.shared[...] = 0
        start = RoundStart(0, 1, False, state.weights)
        results = []
        for replica, value in enumerate((1e17, -1e17, 1.0)):
            vectors = np.full_like(state.weights.shared, value)
            change = Change(np.arange(len(vectors)), vectors, vectors[:0])
            results.append(made_turn(replica, change, made_change(np.zeros((8, 8), np.float32), 0)))
        reduction = begun(start)
        reduction.add(GroupResult.of([results[i] for i in order]))
        assert reduction.apply(state, 3, (0, 0), 10.0)
        weights.append(state.weights.shared[0, :5].tolist())
    assert weights == [[1.0] * 5, [0.0] * 5]
