import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.kernel import average, rank, score, step, sweep
from streammiml.kernel.lift import MEAN, NO_CONTEXT, lift_width
from tests.kernel.cases import dense_block, plain_lift, random_weights, sparse_block
from tests.oracles import lift as lift_oracle
from tests.oracles import step as step_oracle
from tests.oracles import sweep as oracle

SETTINGS = step.Settings(seed=3, step_size=0.05, decay=1e-3, max_norm=0.8)


def learner_for(
    n_features, size=11, n_sub=2, n_labels=7, stride=4, given_settings=SETTINGS, context=0
):
    """Small weights after the lift, projected, with empty averages."""
    lift = plain_lift(n_features, context)
    width = lift_width(lift)
    weights = random_weights(np.random.default_rng(1), width, size, n_sub, n_labels)
    sweep.project_all(weights, given_settings.max_norm)
    averages = average.make_averages(*weights, stride=stride)
    return sweep.Learner(weights, averages, given_settings, lift)


def room_for(learner, block):
    longest = int(np.diff(block.bag_offsets).max())
    values = len(block.values) if isinstance(block, score.SparseBlock) else None
    return sweep.make_sweep_room(learner.weights, learner.lift, longest, values)


def bytes_of(learner, tally):
    arrays = (*learner.weights, *learner.averages[:4], *tally)
    return [array.tobytes() for array in arrays]


def bags_of(block, lift):
    bags = []
    for rows in np.split(block.rows, block.bag_offsets[1:-1]):
        bags.append(np.empty((len(rows), lift_width(lift))))
        lift_oracle.lift_bag(lift, rows, bags[-1])
    return bags, np.split(block.labels, block.label_offsets[1:-1])


def small_block(form="dense", seed=0):
    block = dense_block(np.random.default_rng(seed), [1, 4, 2, 9, 3, 1, 5], 6, 7, density=0.6)
    return block if form == "dense" else sparse_block(block)


@pytest.mark.parametrize("bag_weights", [None, np.linspace(0, 3, 301) % 1.5])
@pytest.mark.parametrize("context", [NO_CONTEXT, MEAN])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_sweep__agrees_with_oracle_and_so_does_the_average(form, context, bag_weights):
    block = small_block()
    learner = learner_for(6, context=context)
    weights = learner.weights
    twin = step_oracle.Model(
        weights.shared[:, :11].astype("f8"), weights.labels[..., :11].astype("f8")
    )
    visit = np.random.default_rng(0).integers(0, 7, 301)
    outcomes, iterates = oracle.sweep(
        *bags_of(block, learner.lift), visit, 0, twin, SETTINGS, stride=4, bag_weights=bag_weights
    )
    tally = sweep.make_tally()
    given_block = block if form == "dense" else sparse_block(block)
    room = room_for(learner, given_block)
    given_weights = () if bag_weights is None else (bag_weights,)
    assert sweep.sweep(given_block, visit, 0, learner, room, tally, *given_weights) == -1
    want = [sum(getattr(outcome, name) for outcome in outcomes) for name in ("tries", "distinct")]
    violations = sum(outcome.against >= 0 for outcome in outcomes)
    assert list(tally.counts) == [301, violations, *want]
    assert tally.loss[0] == pytest.approx(sum(outcome.loss for outcome in outcomes), rel=1e-4)
    np.testing.assert_allclose(weights.shared[:, :11], twin.shared, atol=1e-5)
    np.testing.assert_allclose(weights.labels[..., :11], twin.labels, atol=1e-5)
    shared, labels = average.averaged(*weights, learner.averages, 301)
    assert len(iterates) == 75
    for got, index in ((shared[:, :11], 0), (labels[..., :11], 1)):
        mean = oracle.mean_of([pair[index] for pair in iterates], average.POWER)
        np.testing.assert_allclose(got, mean, atol=1e-5)
        assert np.abs(mean - iterates[-1][index]).max() > 1e-3


@settings(deadline=None, max_examples=15)
@given(
    cuts=st.lists(st.integers(0, 120), max_size=5),
    form=st.sampled_from(["dense", "sparse"]),
    size=st.sampled_from([11, None]),
    context=st.sampled_from([NO_CONTEXT, MEAN]),
)
def test_sweep__cut_anywhere_goes_on_to_the_same_bytes(cuts, form, size, context):
    block = small_block(form)
    visit = np.random.default_rng(0).integers(0, 7, 120)
    results = []
    for places in ([0, 120], sorted([0, *cuts, 120])):
        learner = learner_for(6, size, context=context)
        tally = sweep.make_tally()
        for start, stop in itertools.pairwise(places):
            room = room_for(learner, block)
            assert sweep.sweep(block, visit[start:stop], start, learner, room, tally) == -1
            average.averaged(*learner.weights, learner.averages, stop)
        results.append(bytes_of(learner, tally))
    assert results[0] == results[1]


@pytest.mark.parametrize("context", [NO_CONTEXT, MEAN])
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("bag_weights", [np.zeros(0), np.array([2, 0, 1, 0.5, 0, 3, 1, 0.1])])
def test_sweep__takes_long_bags_among_short_ones(form, context, bag_weights):
    block = dense_block(np.random.default_rng(3), [2, 90, 3, 70, 100, 1], 6, 7)
    block = block if form == "dense" else sparse_block(block)
    visit = np.array([1, 0, 2, 3, 4, 5, 0, 1])
    results = []
    for longest in (1, 100):
        learner, tally = learner_for(6, context=context), sweep.make_tally()
        room = room_for(learner, block)._replace(step=step.make_room(learner.weights, longest))
        assert (room.step.panel.projected.shape[0] < 70) is (longest == 1)
        assert sweep.sweep(block, visit, 0, learner, room, tally, bag_weights) == -1
        results.append(bytes_of(learner, tally))
    assert results[0] == results[1]


@pytest.mark.parametrize("longest", [1, 100])
def test_sweep__stops_at_a_long_bag_that_diverged(longest):
    block = dense_block(np.random.default_rng(3), [2, 90, 3], 6, 7)
    block.rows[60] = np.inf
    learner, tally = learner_for(6), sweep.make_tally()
    room = room_for(learner, block)._replace(step=step.make_room(learner.weights, longest))
    with np.errstate(all="ignore"):
        assert sweep.sweep(block, np.array([0, 2, 1, 2]), 5, learner, room, tally) == 7
    assert tally.counts[0] == 3


def test_sweep__depends_on_the_number_of_its_first_step():
    block = small_block()
    visit = np.arange(7)
    results = []
    for first in (0, 1):
        learner, tally = learner_for(6), sweep.make_tally()
        sweep.sweep(block, visit, first, learner, room_for(learner, block), tally)
        results.append(bytes_of(learner, tally))
    assert results[0] != results[1]


def test_sweep__without_averaging_leaves_the_same_weights():
    block = small_block()
    visit = np.random.default_rng(0).integers(0, 7, 100)
    weights = []
    for stride in (0, 4):
        learner = learner_for(6, stride=stride)
        sweep.sweep(block, visit, 0, learner, room_for(learner, block), sweep.make_tally())
        weights.append([array.tobytes() for array in learner.weights])
    assert weights[0] == weights[1]


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("kind", [np.uint8, np.int16])
def test_sweep__takes_small_integers_as_they_are(form, kind):
    block = small_block()
    block.rows[:] = np.rint(np.abs(block.rows) * 2)
    block = block if form == "dense" else sparse_block(block)
    name = "rows" if form == "dense" else "values"
    same = block._replace(**{name: getattr(block, name).astype(kind)})
    results = []
    for typed_block in (block, same):
        learner, tally = learner_for(6), sweep.make_tally()
        sweep.sweep(typed_block, np.arange(7), 0, learner, room_for(learner, typed_block), tally)
        results.append(bytes_of(learner, tally))
    assert results[0] == results[1]


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_sweep__stops_at_the_step_that_diverged(form):
    block = small_block(form)
    values = block.rows if form == "dense" else block.values
    start = block.bag_offsets[3] if form == "dense" else block.row_offsets[block.bag_offsets[3]]
    values[start] = np.nan
    learner, tally = learner_for(6), sweep.make_tally()
    visit = np.array([0, 1, 2, 4, 3, 5, 6])
    with np.errstate(all="ignore"):
        assert sweep.sweep(block, visit, 100, learner, room_for(learner, block), tally) == 104
    assert tally.counts[0] == 5
    assert np.isfinite(learner.weights.labels).all()


def test_project_all__holds_all_lengths_at_the_start_and_leaves_short_vectors_alone():
    weights = random_weights(np.random.default_rng(0), 30, 9, 3, 20, spread=0.3)
    before = score.Weights(*(array.copy() for array in weights))
    # The check has teeth: at the start some are too long.
    for array in before:
        assert 0.2 < (np.linalg.norm(array, axis=-1) > 0.9).mean() < 0.8
    sweep.project_all(weights, 0.9)
    for got, was in zip(weights, before, strict=True):
        lengths = np.linalg.norm(was, axis=-1)
        assert np.linalg.norm(got, axis=-1).max() < 0.9 + 1e-6
        np.testing.assert_array_equal(got[lengths < 0.9], was[lengths < 0.9])
        scaled = was * np.minimum(1, 0.9 / lengths)[..., None]
        np.testing.assert_allclose(got, scaled, rtol=1e-6)


def planted_block(n_bags, seed):
    """Bags of four rows near the centres of their labels: easy to learn."""
    centres = np.random.default_rng(99).normal(size=(8, 12))
    rng = np.random.default_rng(seed)
    block = dense_block(rng, [4] * n_bags, 12, 8)
    block.rows[:] *= 0.3
    for bag in range(n_bags):
        for i, label in enumerate(block.labels[slice(*block.label_offsets[bag : bag + 2])]):
            block.rows[4 * bag + i] += centres[label]
    block.rows[:] /= np.linalg.norm(block.rows, axis=1, keepdims=True)
    return block


def loss_of(learner, steps, block):
    weights = score.Weights(*average.averaged(*learner.weights, learner.averages, steps))
    scores = score.score_block(block, learner.lift, weights)
    total = rank.ranking_loss_sum(scores.value[:, :-1], block.label_offsets, block.labels)
    return rank.ranking_loss(total, len(block.bag_offsets) - 1)


def test_sweep__threads_that_share_weights_learn_as_well_as_one():
    train, test = planted_block(300, 0), planted_block(100, 1)
    n_steps = 1200
    visit = np.random.default_rng(0).integers(0, 300, n_steps)
    losses = []
    for n_threads in (0, 1, 2):
        learner = learner_for(12, n_labels=8, given_settings=SETTINGS._replace(max_norm=5.0))
        tallies = [sweep.make_tally() for _ in range(n_threads)]

        def work(mine, learner, tally):
            room = room_for(learner, train)
            for start in mine:
                assert (
                    sweep.sweep(train, visit[start : start + 50], start, learner, room, tally) == -1
                )

        threads = [
            threading.Thread(
                target=work, args=(range(50 * i, n_steps, 50 * n_threads), learner, tally)
            )
            for i, tally in enumerate(tallies)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(tally.counts[0] for tally in tallies) == n_steps * (n_threads > 0)
        losses.append(loss_of(learner, n_steps if n_threads else 0, test))
    untrained, alone, together = losses
    assert untrained > 0.3
    assert alone < 0.1
    assert together < 0.1


@pytest.mark.slow
def test_sweep__of_a_bag_of_a_million_rows_among_small_ones():
    rng = np.random.default_rng(0)
    block = dense_block(rng, [3, 1_000_000, 2], 5, 7)
    learner, tally = learner_for(5), sweep.make_tally()
    room = room_for(learner, block)
    assert sum(array.nbytes for array in room.step.panel) < 3 * step.KEPT_BYTES
    visit = np.array([0, 1, 2, 1])
    assert sweep.sweep(block, visit, 0, learner, room, tally) == -1
    twin_learner = learner_for(5)
    weights = twin_learner.weights
    twin = step_oracle.Model(
        weights.shared[:, :11].astype("f8"), weights.labels[..., :11].astype("f8")
    )
    outcomes, _ = oracle.sweep(*bags_of(block, learner.lift), visit, 0, twin, SETTINGS)
    assert tally.counts[2] == sum(outcome.tries for outcome in outcomes)
    np.testing.assert_allclose(learner.weights.shared[:, :11], twin.shared, atol=1e-5)
