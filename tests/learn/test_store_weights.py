"""Weights of stores: as many visits as they say, no bag held out among them, the same bytes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.bag_weights import read_weights
from streammiml.bags.store import open_store
from streammiml.bags.views import JoinedStore
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn import loop
from streammiml.learn.holdout import Holdout
from streammiml.learn.store_weights import visits_of
from streammiml.learn.train import train
from tests.planted import planted
from tests.stores import write_store

SIZES = (120, 90, 50)
SMALL = {
    "shared_dim": 8, "subconcepts": 2, "block_bags": 8, "mix_blocks": 6, "epochs": 2,
    "validate_every": 90, "checkpoint_every": "70", "patience": 50,
}  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for i, n_bags in enumerate(SIZES):
        write_store(folder / f"{i}.zarr", planted(n_bags, seed=i))
    return [str(folder / f"{i}.zarr") for i in range(len(SIZES))]


def counted(visits, n_epochs):
    """How often each bag of the training store is visited, by what the bags themselves are."""
    listed, seen = visits.listed, Counter()
    for epoch in range(n_epochs):
        numbers = np.flatnonzero(~visits.left_out(epoch, np.arange(listed.n_bags)))
        block = listed.read_bags(numbers)
        seen.update(block.rows_of(i).tobytes() for i in range(len(block)))
    return seen


@given(
    weights=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    share=st.sampled_from([0.0, 0.3]),
)
def test_weights__whole_ones_are_the_visits_of_every_bag_not_held_out(names, weights, share):
    store = open_store(names)
    holdout = Holdout.of(share, store.n_bags)
    visits = visits_of(store, ",".join(map(str, weights)), holdout, 1)
    seen, block = counted(visits, 1), store.read(0, store.n_bags)
    visits_of_bag = np.repeat(weights, SIZES) * ~holdout.chosen(np.arange(store.n_bags))
    want = {block.rows_of(i).tobytes(): int(n) for i, n in enumerate(visits_of_bag) if n}
    assert seen == want


def test_weights__fractions_are_the_mean_over_epochs(names):
    store, epochs = open_store(names), 40
    visits = visits_of(store, "0.25,1.5,1", Holdout.of(0.0, store.n_bags), 1)
    seen, block = counted(visits, epochs), store.read(0, store.n_bags)
    mean_visits = np.array([seen[block.rows_of(i).tobytes()] for i in range(store.n_bags)]) / epochs
    first, second, third = np.split(mean_visits, np.cumsum(SIZES)[:-1])
    # Five standard deviations of a mean over bags and epochs.
    assert abs(first.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / (120 * epochs))
    assert abs(second.mean() - 1.5) < 5 * np.sqrt(0.25 / (90 * epochs))
    assert (third == 1).all()
    assert second.min() >= 1
    assert 0.02 < first.std() < 0.12
    assert visits.steps_an_epoch() == 0.25 * 120 + 1.5 * 90 + 50


def test_weights__a_choice_is_that_of_the_bag_and_epoch_however_it_is_asked(names):
    store = open_store(names)
    visits = visits_of(store, "0.5,1,0.5", Holdout.of(0.2, store.n_bags), 1)
    left_out = visits.left_out(3, np.arange(store.n_bags))
    for part in np.array_split(np.arange(store.n_bags), 7):
        np.testing.assert_array_equal(visits.left_out(3, part), left_out[part])
    assert (visits.left_out(4, np.arange(store.n_bags)) != left_out).any()


def test_train__weights_are_the_stores_listed_as_often(names):
    a, b, c = names
    config = TrainConfig(**SMALL, validation=0.0)
    listed = train([a, a, b, c, c, c], config)
    # Scales and first weights from the bags are fitted to a sample of all bags, listed or not.
    random = replace(config, scale="none", init="random")
    weighted = train([a, b, c], replace(random, weights="2,1,3"))
    plain = train([a, a, b, c, c, c], random)
    np.testing.assert_array_equal(weighted.labels, plain.labels)
    assert listed.provenance["steps"] == weighted.provenance["steps"] == 2 * (240 + 90 + 150)


def test_train__weights_of_1_change_nothing(names):
    one = train(names, TrainConfig(**SMALL))
    two = train(names, TrainConfig(**SMALL, weights="1,1,1"))
    np.testing.assert_array_equal(one.labels, two.labels)
    assert two.settings["weights"] == "1,1,1"


@pytest.mark.parametrize("order", ["blocks", "full", "uniform"])
@pytest.mark.parametrize("mix_blocks", [6, 1000])
def test_resume__with_weights_ends_in_the_same_bytes(order, mix_blocks, names, tmp_path):
    config = TrainConfig(
        **{**SMALL, "mix_blocks": mix_blocks, "order": order, "weights": "2,0.3,1.7"}
    )
    train(names, config, run=tmp_path / "whole")

    class Crash(Exception):
        pass

    for crash in (30, 250, 500):

        def watch(progress, crash=crash):
            if progress.step >= crash:
                raise Crash

        with pytest.raises(Crash):
            train(names, config, run=tmp_path / "run", resume=True, watch=watch)
    train(names, config, run=tmp_path / "run", resume=True)
    one, two = (tmp_path / name / "model.safetensors" for name in ("run", "whole"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("order", ["blocks", "full", "uniform"])
def test_train__no_copy_of_a_bag_held_out_is_visited(order, names, monkeypatch):
    seen, real = [], loop.BagStream.__iter__

    def watched(self):
        for batch in real(self):
            seen.extend(batch.bags.rows_of(i).tobytes() for i in range(len(batch.bags)))
            yield batch

    monkeypatch.setattr(loop.BagStream, "__iter__", watched)
    train(names, TrainConfig(**SMALL, weights="3,1.5,1", order=order, validation=0.1))
    store = open_store(names)
    held_out = store.read_bags(Holdout.of(0.1, store.n_bags).bags)
    assert not set(seen) & {held_out.rows_of(i).tobytes() for i in range(len(held_out))}


def test_weights__another_number_than_stores_is_refused(names):
    for stores, line in ((names, "2 weights for 3 stores"), (names[0], "2 weights for 1 stores")):
        with pytest.raises(StreammimlError, match=line + "; give one for each, in order"):
            train(stores, TrainConfig(**SMALL, weights="2,1"))


def test_weights__others_than_the_run_began_with_are_refused(names, tmp_path):
    config = TrainConfig(**SMALL, weights="2,1,1", max_steps=5)
    train(names, config, run=tmp_path / "run")
    with pytest.raises(StreammimlError, match="was begun with weights '2,1,1', not '1,1,2'"):
        train(names, TrainConfig(**SMALL, weights="1,1,2"), run=tmp_path / "run", resume=True)


def test_weights__a_store_is_read_and_not_copied(names):
    store = open_store(names)
    visits = visits_of(store, "1000,1,1", Holdout.of(0.0, store.n_bags), 0)
    assert isinstance(visits.listed, JoinedStore)
    assert visits.listed.n_bags == 120_000 + 90 + 50
    assert visits.listed.stores[999] is store.stores[0]


def weighted(folder, weights, block=None, name="w.zarr"):
    """A store whose bags have these weights."""
    block = planted(len(weights)) if block is None else block
    kept = {"weight": np.repeat(np.asarray(weights, np.float64), np.diff(block.bag_offsets))}
    return write_store(folder / name, replace(block, kept=kept))


PLAIN = {**SMALL, "scale": "none", "init": "random", "validation": 0.0}
MIXED = np.random.default_rng(5).choice([0.0, 0.3, 1.0, 2.5], 150)


@pytest.mark.parametrize("sparse", [False, True])
def test_bag_weights__of_1_leave_every_byte_and_of_0_learn_nothing(sparse, tmp_path):
    block = planted(150, sparse=sparse)
    store = weighted(tmp_path, np.ones(150), block)
    plain, ones = (
        train(store, TrainConfig(**SMALL, bag_weights=name)) for name in (None, "weight")
    )
    assert "bag_weights" not in plain.settings
    for got, want in ((ones.labels, plain.labels), (ones.shared, plain.shared)):
        assert got.tobytes() == want.tobytes()
    # The rows of the bags of weight 0 are other ones, and the model is the same.
    is_out = np.arange(150) % 3 == 0
    models = []
    for name, seed in (("a.zarr", 0), ("b.zarr", 1)):
        other, bags = planted(150, seed=seed, sparse=sparse), np.arange(150)
        chosen = block.join([block, other]).take(np.where(is_out, 150 + bags, bags))
        store = weighted(tmp_path, ~is_out, chosen, name)
        models.append(train(store, TrainConfig(**PLAIN, bag_weights="weight")))
    assert models[0].labels.tobytes() == models[1].labels.tobytes()
    assert models[0].shared.tobytes() == models[1].shared.tobytes()


@pytest.mark.parametrize(
    "options", [{}, {"shared_space": False}, {"replicas": 3}, {"lift": "context"}]
)
def test_bag_weights__resume_ends_in_the_same_bytes(options, tmp_path):
    store = weighted(tmp_path, MIXED)
    config = TrainConfig(**{**SMALL, **options}, bag_weights="weight")
    train(store, config, run=tmp_path / "whole")

    class Crash(Exception):
        pass

    def watch(progress):
        if progress.step >= 60:
            raise Crash

    with pytest.raises(Crash):
        train(store, config, run=tmp_path / "run", resume=True, watch=watch)
    train(store, config, run=tmp_path / "run", resume=True)
    one, two = (tmp_path / name / "model.safetensors" for name in ("run", "whole"))
    assert one.read_bytes() == two.read_bytes()
    plain = train(store, TrainConfig(**{**SMALL, **options}))
    assert plain.labels.tobytes() != train(store, config).labels.tobytes()


def test_bag_weights__of_listed_stores_are_those_of_their_bags(tmp_path):
    for i, n_bags in enumerate((40, 30)):
        weighted(tmp_path, i * 100 + np.arange(n_bags), name=f"{i}.zarr")
    store = open_store([tmp_path / "0.zarr", tmp_path / "1.zarr"])
    own = read_weights(store, "weight")
    visits = visits_of(store, "2,1.5", Holdout.of(0.0, store.n_bags), 1, own)
    want = [*range(40), *range(40), *range(100, 130), *range(100, 130)]
    assert visits.weights_of(np.arange(visits.listed.n_bags)).tolist() == want
    assert visits_of(store, "2,1.5", Holdout.of(0.0, 70), 1).weights_of(np.arange(9)).size == 0


def test_bag_weights__others_than_the_run_began_with_are_refused(tmp_path):
    config = TrainConfig(**SMALL, bag_weights="weight", max_steps=5)
    run = tmp_path / "run"
    train(weighted(tmp_path, MIXED), config, run=run)
    with pytest.raises(StreammimlError, match="was begun with other weights of bags than the col"):
        train(weighted(tmp_path, MIXED[::-1], name="v.zarr"), config, run=run, resume=True)
    with pytest.raises(
        StreammimlError, match=r"a kept column of one number, and not 'wait': .*w.z"
    ):
        train(open_store(tmp_path / "w.zarr"), TrainConfig(**SMALL, bag_weights="wait"))
