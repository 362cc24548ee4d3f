"""A start from the bags: a function of store, settings and seed, far ahead of random weights."""

from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig, parse_size
from streammiml.errors import StreammimlError
from streammiml.kernel.rank import ranking_loss, ranking_loss_sum
from streammiml.kernel.score import score_block
from streammiml.learn import bag_start
from streammiml.learn.bag_start import cluster_centres, fit_levels
from streammiml.learn.begin import begin, settle
from streammiml.learn.holdout import Holdout
from streammiml.learn.run_folder import RunFolder
from streammiml.learn.run_plan import plan_run
from streammiml.learn.stretches import read_stretches
from streammiml.learn.train import train
from streammiml.model import Model
from streammiml.scorer import Scorer, kernel_block
from tests.planted import planted
from tests.stores import as_sparse, write_store

SMALL = {"shared_dim": 12, "subconcepts": 3, "epochs": 2, "validation": 0.2}
FROM_BAGS = ("means", "clusters")


def config(**changes):
    return TrainConfig(**{**SMALL, **changes})


def bags_of(block):
    return MemoryBags(block, n_labels=5)


def first_state(store, **changes):
    return begin(settle(store, config(**changes))).state


def first_bytes(store, **changes):
    weights = first_state(store, **changes).weights
    return weights.shared.tobytes() + weights.labels.tobytes()


def first_scores(block, **changes):
    """Scores (n, L + 1) of bags under the first weights."""
    state = first_state(bags_of(block), **changes)
    return score_block(kernel_block(block), state.lift, state.weights).value


def first_loss(block, **changes):
    scores = np.ascontiguousarray(first_scores(block, **changes)[:, :-1])
    return ranking_loss(
        int(ranking_loss_sum(scores, block.label_offsets, block.label_indices)), len(block)
    )


# What it is a function of.


@pytest.mark.parametrize("init", FROM_BAGS)
def test_start__is_the_same_in_any_store_order_and_cutting(init, tmp_path, monkeypatch):
    monkeypatch.setattr(bag_start, "SLICE_BYTES", 1 << 12)
    expected = first_bytes(bags_of(planted()), init=init)
    for suffix, chunk_bytes in (("zarr", 1 << 10), ("zarr", 1 << 18), ("parquet", 1 << 12)):
        store = write_store(
            tmp_path / f"{chunk_bytes}.{suffix}", planted(), chunk_bytes=chunk_bytes
        )
        assert first_bytes(store, init=init) == expected
    for change in (
        {"mix_blocks": 3, "block_bags": 4},
        {"order": "full"},
        {"threads": 2},
        {"replicas": 3, "block_bags": 8},
        {"memory": "200MiB"},
        {"step_size": 0.1},
    ):
        assert first_bytes(bags_of(planted()), init=init, **change) == expected
    assert first_bytes(bags_of(planted()), init=init, seed=1) != expected


@pytest.mark.parametrize("init", FROM_BAGS)
def test_start__does_not_look_at_held_out_bags(init):
    block = planted()
    is_held_out = Holdout.of(0.2, len(block)).chosen(np.arange(len(block)))
    rows = np.where(np.repeat(is_held_out, np.diff(block.bag_offsets))[:, None], 9.0, block.rows)
    labels = [block.labels_of(i) if not is_held_out[i] else [0] for i in range(len(block))]
    parts = np.split(rows.astype(np.float32), block.bag_offsets[1:-1])
    other = BagBlock.from_bags(parts, labels)
    assert first_bytes(bags_of(other), init=init) == first_bytes(bags_of(block), init=init)


def test_start__of_a_large_store_reads_a_sample_that_the_seed_decides(monkeypatch):
    monkeypatch.setattr(bag_start, "STRETCH_BYTES", 1 << 10)
    whole = first_bytes(bags_of(planted()))
    monkeypatch.setattr(bag_start, "SAMPLE_BYTES", 8 << 10)
    assert first_bytes(bags_of(planted())) == first_bytes(bags_of(planted())) != whole
    assert first_loss(planted()) < 0.5 * first_loss(planted(), init="random")


def test_start__is_random_if_no_sampled_bag_is_for_training(monkeypatch):
    monkeypatch.setattr(bag_start, "STRETCH_BYTES", 1)
    monkeypatch.setattr(bag_start, "SAMPLE_BYTES", 1)
    # One bag is sampled; nearly all are held out.
    got, random = (
        first_bytes(bags_of(planted()), init=init, validation=0.97) for init in ("auto", "random")
    )
    assert got == random


# What it is worth.


@pytest.mark.parametrize("init", FROM_BAGS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shared_space": False},
        {"shared_dim": 4},
        {"lift": "fourier:9"},
        {"lift": "context:all"},
        {"scale": "none"},
        {"max_norm": 0.5},
        {"subconcepts": 1},
        {"average": False},
    ],
    ids=str,
)
def test_start__ranks_labels_before_the_first_step(init, changes):
    random = first_loss(planted(), init="random", **changes)
    assert first_loss(planted(), init=init, **changes) < 0.6 * random


@pytest.mark.parametrize("changes", [{}, {"lift": "context:mean"}, {"shared_space": False}])
def test_start__of_sparse_rows_is_that_of_the_same_dense_rows(changes):
    block = planted(sparse=True)
    changes = {"scale": "unit", **changes}
    dense = replace(block, rows=block.rows.dense())
    got, expected = (first_scores(bags, **changes) for bags in (as_sparse(dense), dense))
    np.testing.assert_allclose(got, expected, atol=1e-3)
    assert np.abs(expected).max() > 0.5


@pytest.mark.parametrize("init", FROM_BAGS)
def test_start__the_dummy_lets_as_many_labels_pass_as_bags_carry(init):
    block = planted()
    scores = first_scores(block, init=init)
    n_predicted = (scores[:, :-1] > scores[:, -1:]).sum()
    assert 0.8 < n_predicted / len(block.label_indices) < 1.25


def test_start__gives_the_sub_concepts_of_a_label_a_group_of_its_rows_each():
    rng = np.random.default_rng(0)
    centres = np.eye(9)
    # Label l has three kinds of rows: 3 l, 3 l + 1 and 3 l + 2.
    kinds = rng.integers(0, 9, 600)
    rows = [
        rng.normal(scale=0.1, size=(3, 9)) + (np.arange(3) == 1)[:, None] * centres[k]
        for k in kinds
    ]
    block = BagBlock.from_bags([bag.astype(np.float32) for bag in rows], [[k // 3] for k in kinds])
    used = {}
    for init in ("random", "clusters"):
        model = train(MemoryBags(block, n_labels=3), config(init=init, validation=0.0, epochs=4))
        subs = Scorer(model).scores(block).subconcept[np.arange(600), kinds // 3]
        # The share of bags that the most frequent sub-concept of their kind scores.
        tables = [np.bincount(subs[kinds == kind], minlength=3) for kind in range(9)]
        winners = [table.argmax() for table in tables]
        used[init] = [len({*winners[3 * label : 3 * label + 3]}) for label in range(3)]
    assert used["clusters"] == [3, 3, 3]
    assert sum(used["random"]) < 9


@pytest.mark.parametrize("seed", range(8))
def test_start__every_separable_label_is_learned_in_ten_epochs(seed):
    """At random weights one of four labels stayed unlearned for two of these seeds."""
    rng = np.random.default_rng(5)
    carries = rng.random((267, 4)) < 0.4
    bags = []
    for own in carries:
        rows = rng.normal(scale=0.3, size=(6, 10))
        rows[np.arange(4)[own], np.arange(4)[own]] += 3
        bags.append(rows.astype(np.float32))
    block = BagBlock.from_bags(bags, [np.flatnonzero(own) for own in carries])
    settings = TrainConfig(epochs=10, validation=0.0, seed=seed)
    model = train(MemoryBags(block, n_labels=4), settings)
    scores = Scorer(model).scores(block).value
    for label in range(4):
        own, others = (scores[carries[:, label] == carry, label] for carry in (True, False))
        assert (own[:, None] > others).mean() > 0.95


def test_cluster_centres__finds_groups_and_repeats_rows_where_there_are_too_few():
    rng = np.random.default_rng(1)
    groups = rng.normal(size=(4, 5))
    rows = np.repeat(groups, 10, axis=0) + rng.normal(scale=0.01, size=(40, 5))
    centres = cluster_centres(rows, 4, np.random.default_rng(0))
    distances = ((groups[:, None] - centres) ** 2).sum(axis=-1)
    assert sorted(distances.argmin(axis=1)) == [0, 1, 2, 3]
    assert distances.min(axis=1).max() < 1e-3
    same = cluster_centres(np.ones((3, 5)), 4, np.random.default_rng(0))
    np.testing.assert_array_equal(same, np.ones((4, 5)))


def test_fit_levels__weak_labels_get_a_smaller_factor_than_their_gap_asks_for():
    rng = np.random.default_rng(2)
    carries = rng.random((2000, 3)) < 0.3
    clear = carries * 1.0 + [0, 5, -5]
    levels = fit_levels(clear, carries, 10.0)
    assert levels.factor == pytest.approx(2.0)
    np.testing.assert_allclose(levels.offsets, [-0.5, -5.5, 4.5])
    assert levels.dummy == pytest.approx(0.0)
    scores = clear + rng.normal(scale=2, size=carries.shape)
    noisy = fit_levels(scores, carries, 10.0)
    assert noisy.factor == pytest.approx(2 * 0.25 / 4.25, rel=0.2)
    n_above = (noisy.factor * (scores + noisy.offsets) > noisy.dummy).sum()
    assert n_above == carries.sum()
    # Labels that every bag carries, or none, leave the factor alone.
    for everywhere in (True, False):
        same = fit_levels(clear, np.full(carries.shape, everywhere), 10.0)
        assert same.factor == 1.0
        assert np.isfinite([*same.offsets, same.dummy]).all()


# Runs.


def test_start__is_in_a_checkpoint_before_the_first_step_and_resumes_to_the_same_bytes(tmp_path):
    store = bags_of(planted())
    settings = replace(config(), threshold="none")
    train(store, settings, run=tmp_path / "whole")
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    for name in ("kept", "lost"):
        with RunFolder(tmp_path / name, resume=False) as folder:
            begin(settle(store, replace(settings, init="clusters"), folder))
        (checkpoint,) = (tmp_path / name / "checkpoints").glob("step-*0000.safetensors")
        if name == "lost":
            checkpoint.unlink()
        train(store, TrainConfig(init="auto"), run=tmp_path / name, resume=True)
        assert (tmp_path / name / "model.safetensors").read_bytes() == expected


def test_start__extending_equals_a_longer_run(tmp_path):
    store = bags_of(planted())
    train(store, config(epochs=4), run=tmp_path / "long")
    train(store, config(epochs=1), run=tmp_path / "short")
    train(store, TrainConfig(), run=tmp_path / "short", extend=3)
    long, short = ((tmp_path / name / "model.safetensors") for name in ("long", "short"))
    assert long.read_bytes() == short.read_bytes()


def test_start__replicas_begin_with_it(tmp_path):
    store = bags_of(planted())
    settings = config(replicas=2, block_bags=8, epochs=1)
    first, again = (train(store, settings, run=tmp_path / name) for name in "ab")
    assert first.fingerprint == again.fingerprint
    assert first.settings["init"] == "clusters"


def test_start__another_init_than_the_run_began_with_is_refused(tmp_path):
    store = bags_of(planted())
    train(store, config(), run=tmp_path / "run")
    with pytest.raises(StreammimlError, match="was begun with init 'clusters', not 'means'"):
        train(store, TrainConfig(init="means"), run=tmp_path / "run", resume=True)


def test_start__random_is_recorded_as_nothing_in_the_model(tmp_path):
    model = train(bags_of(planted()), config(init="random"), run=tmp_path / "run")
    assert not {"init", "loss"} & {*Model.load(tmp_path / "run").settings}
    assert model.settings["shared_dim"] == 12


def test_start__a_model_to_start_from_sets_the_first_weights():
    store = bags_of(planted())
    model = train(store, config(epochs=1))
    ready = begin(settle(store, config(), start=model))
    assert ready.config.init == "random"
    np.testing.assert_array_equal(ready.state.returned().shared[:, :12], model.shared)
    with pytest.raises(
        StreammimlError, match="--init means sets the first weights, and a run from"
    ):
        settle(store, config(init="means"), start=model)


def test_start__that_does_not_fit_into_memory_is_refused_and_auto_is_random():
    store, large = bags_of(planted()), {"shared_dim": 20_000, "subconcepts": 1, "average": False}

    def begun(init, memory):
        return begin(settle(store, config(init=init, memory=memory, **large))).config.init

    fitting = memory_advised(lambda: begun("random", "20MiB"))
    assert begun("auto", fitting) == "random"
    more = memory_advised(lambda: begun("means", fitting))
    assert parse_size(more) > parse_size(fitting)
    assert begun("means", more) == "means"
    assert begun("auto", more) == "clusters"


def memory_advised(begun):
    with pytest.raises(StreammimlError, match=r"would hold .* more than --memory") as refusal:
        begun()
    return str(refusal.value).rsplit("--memory ", 1)[1].split()[0]


def test_start__needs_two_dimensions():
    store = bags_of(planted())
    assert begin(settle(store, config(shared_dim=1))).config.init == "random"
    with pytest.raises(StreammimlError, match="--init means needs a dimension for the constant"):
        begin(settle(store, config(shared_dim=1, init="means")))


def test_start__of_a_plan_by_size_leaves_out_bags_that_are_longer_than_a_sample(monkeypatch):
    block, large = planted(300), {"memory": "40MiB", "epochs": 1}
    rng = np.random.default_rng(0)
    long = BagBlock.from_bags([rng.random((90_000, block.n_features), np.float32)], [[0]])
    block = BagBlock.join([replace(block, row_labels=None, bag_ids=None), long])
    store = bags_of(block)
    plan = plan_run(store, config(**large))
    assert plan.budget.by_size
    monkeypatch.setattr(bag_start, "SAMPLE_BYTES", 1 << 20)
    n_rows, real = [], read_stretches

    def counted(*arguments):
        for part in real(*arguments):
            n_rows.append(part.n_rows)
            yield part

    monkeypatch.setattr(bag_start, "read_stretches", counted)
    ready = begin(settle(store, config(**large, init="clusters")))
    assert ready.config.init == "clusters"
    assert 0 < max(n_rows) < 90_000
    # With memory for the longest block as often as for any, the start is that of all bags.
    n_rows.clear()
    monkeypatch.setattr(bag_start, "SAMPLE_BYTES", 1 << 30)
    begin(settle(store, config(**{**large, "memory": "40GiB"}, init="clusters")))
    assert max(n_rows) >= 90_000
