"""Restarts: the joined model averages its trainings, and kills and resumes change no byte."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import LiftSpec, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn import choice, restarts
from streammiml.learn.checkpoint import n_weights
from streammiml.learn.dry_run import dry_run
from streammiml.learn.restarts import FOLDER, joined, restart_seed
from streammiml.learn.run_plan import plan_run
from streammiml.learn.stop_signals import Stopped
from streammiml.learn.train import train
from streammiml.learn.validation import Validation, largest_lifted
from streammiml.measure.predict import predict
from streammiml.measure.row_scores import row_scores
from streammiml.model import load_model
from tests.planted import planted
from tests.stores import write_store

SMALL = {"shared_dim": 8, "subconcepts": 2, "epochs": 3, "step_size": 0.05, "preset": "plain"}
SMALL["init"] = "random"
SETTLED = {"epochs": 1, "validation": 0.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("s") / "s.zarr", planted(120), chunk_bytes=256)


def model_bytes(run):
    return (run / "model.safetensors").read_bytes()


def test_restart_seed__of_the_first_is_that_of_the_run_and_others_differ():
    seeds = [restart_seed(7, number) for number in range(20)]
    assert seeds[0] == 7
    assert len({*seeds, *(restart_seed(8, number) for number in range(20))}) == 40
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_train__with_restarts_averages_the_row_scores_of_trainings_with_their_seeds(store):
    model = train(store, TrainConfig(**SMALL, restarts=3, seed=5))
    assert (model.restarts, model.subconcepts, model.shared_dim) == (3, 2, 8)
    assert model.settings["restarts"] == 3
    ones = [train(store, TrainConfig(**SMALL, seed=restart_seed(5, number))) for number in range(3)]
    # All restarts have the scaling of the first; without random features, any seed gives it.
    for number, one in enumerate(ones):
        assert model.restart(number).labels.tobytes() == one.labels.tobytes()
    block = store.read(0, store.n_bags)

    def scores_of(model):
        return np.concatenate([*row_scores(model, block)])

    want = np.mean([scores_of(one) for one in ones], axis=0)
    np.testing.assert_allclose(scores_of(model), want, rtol=1e-5, atol=1e-6)


def test_train__with_one_restart_gives_the_bytes_of_a_run_without(store, tmp_path):
    train(store, TrainConfig(**SMALL, restarts=1), run=tmp_path / "one")
    train(store, TrainConfig(**SMALL), run=tmp_path / "none")
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "none")
    assert b"restarts" not in model_bytes(tmp_path / "none")


def test_train__restarts_share_random_features_of_the_lift(store):
    config = TrainConfig(**SMALL, lift="fourier:5", restarts=2)
    first = train(store, replace(config, restarts=1))
    model = train(store, config)
    assert model.lift.frequencies.tobytes() == first.lift.frequencies.tobytes()
    assert model.restart(0).labels.tobytes() == first.labels.tobytes()
    assert model.restart(1).labels.tobytes() != first.labels.tobytes()


@pytest.mark.parametrize("stopped_at", [1, 2, 3])
def test_train__stopped_in_any_restart_and_resumed_gives_the_same_bytes(
    store, tmp_path, stopped_at
):
    config = TrainConfig(**SMALL, restarts=3, checkpoint_every="50")
    train(store, config, run=tmp_path / "whole")
    n_begun = 0

    def kill(progress):
        nonlocal n_begun
        n_begun += progress.step == 0
        if n_begun == stopped_at and progress.step > 100:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train(store, config, run=tmp_path / "stopped", watch=kill)
    assert not (tmp_path / "stopped" / "model.safetensors").exists()
    train(store, config, run=tmp_path / "stopped", resume=True)
    assert model_bytes(tmp_path / "stopped") == model_bytes(tmp_path / "whole")
    folders = (tmp_path / "stopped" / FOLDER).iterdir()
    assert sorted(folder.name for folder in folders) == ["2", "3"]


def test_train__progress_is_that_of_all_restarts(store):
    seen = []
    train(store, TrainConfig(**SMALL, restarts=3), watch=seen.append)
    assert {progress.restart for progress in seen} == {0, 1, 2}
    assert {progress.restarts for progress in seen} == {3}
    done = [progress.done for progress in seen]
    assert (done, done[-1]) == (sorted(done), 1.0)
    assert sum(progress.done == 1 for progress in seen if progress.restart < 2) == 0
    seconds = [progress.total["all"] for progress in seen]
    assert seconds == sorted(seconds)


def test_train__extended_equals_a_longer_run(store, tmp_path):
    config = TrainConfig(**SMALL, restarts=2)
    train(store, config, run=tmp_path / "run")
    train(store, TrainConfig(), run=tmp_path / "run", extend=2)
    train(store, replace(config, epochs=5), run=tmp_path / "longer")
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "longer")


def test_train__from_a_model_with_restarts_goes_on_with_each(store):
    first = train(store, TrainConfig(**SMALL, restarts=2))
    settings = {**SMALL, "epochs": 1, "validation": 0.0}
    model = train(store, TrainConfig(**settings), start=first)
    assert model.restarts == 2
    for number in range(2):
        seed = restart_seed(0, number)
        one = train(store, TrainConfig(**settings, seed=seed), start=first.restart(number))
        assert model.restart(number).labels.tobytes() == one.labels.tobytes()


@pytest.mark.parametrize("options", [{"restarts": 1}, {"replicas": 2}])
def test_train__from_a_model_with_restarts_goes_on_with_the_first_alone(store, options, tmp_path):
    first = train(store, TrainConfig(**SMALL, restarts=2))
    config = TrainConfig(**{**SMALL, "epochs": 1, "validation": 0.0, **options})
    model = train(store, config, start=first, run=tmp_path / "run")
    assert model.restarts == 1
    want = train(store, config, start=first.restart(0))
    assert model.labels.tobytes() == want.labels.tobytes()
    train(store, config, start=first, run=tmp_path / "run", resume=True)


def test_train__from_a_model_refuses_other_restarts_than_its_own_or_one(store):
    first = train(store, TrainConfig(**SMALL, restarts=2))
    with pytest.raises(StreammimlError, match=r"has restarts 2, not 3; .* give --restarts 1, or"):
        train(store, TrainConfig(**SMALL, restarts=3), start=first)


def test_train__refuses_other_restarts_than_those_of_the_run(store, tmp_path):
    train(store, TrainConfig(**SMALL, restarts=2), run=tmp_path / "run")
    with pytest.raises(StreammimlError, match="was begun with restarts 2, not 3"):
        train(store, TrainConfig(restarts=3), run=tmp_path / "run", resume=True)


def test_train__fits_the_offset_to_the_joined_scores(store):
    settings = {**SMALL, "validation": 0.3, "threshold": "count", "restarts": 3}
    model = train(store, TrainConfig(**settings))
    assert model.rule.offset != train(store, TrainConfig(**{**settings, "restarts": 1})).rule.offset


def test_train__calibrates_the_joined_scores(store):
    config = TrainConfig(**SMALL, restarts=2)
    model = train(store, replace(config, calibrate="platt"))
    assert model.calibration is not None
    assert model.labels.tobytes() == train(store, config).labels.tobytes()
    one = train(store, replace(config, restarts=1, calibrate="platt"))
    assert not np.array_equal(model.calibration.platt, one.calibration.platt)


def test_train__small_stores_get_restarts_by_default_where_folds_choose_the_epochs(monkeypatch):
    store = MemoryBags(planted(60), n_labels=5, name="small")
    monkeypatch.setattr("streammiml.learn.defaults.MOST_STEPS", 400)
    model = train(store, TrainConfig(shared_dim=8, lift="none", time_limit="1s"))
    assert model.restarts == 5
    assert train(store, TrainConfig(shared_dim=8, preset="plain")).restarts == 1
    assert train(store, TrainConfig(shared_dim=8, epochs=1)).restarts == 1


def test_train__restarts_by_default_are_fewer_where_rows_are_many(monkeypatch):
    store = MemoryBags(planted(60), n_labels=5, name="small")
    config = TrainConfig(shared_dim=8, lift="none", shared_space=True, subconcepts=1)
    assert dry_run(store, config).restarts == 5
    one = train(store, replace(config, restarts=1))
    work = choice.step_work(replace(config, **SETTLED), store, 7) * 60 * one.settings["epochs"]
    for share, count in [(0.5, 1), (1.5, 2), (3.5, 4), (9, 5)]:
        complete = replace(config, epochs=one.settings["epochs"], validation=0.0)
        plan = choice.plan_choice(store, config, {"lift": "none"}, has_start=False)
        monkeypatch.setattr(choice, "MOST_WORK", share * work)
        assert choice.with_n_restarts(complete, store, plan).restarts == count
        monkeypatch.undo()


def test_train__reads_held_out_bags_once_for_all_restarts(store, monkeypatch):
    read, n_reads = Validation._read, 0

    def counted(self, deadline):
        nonlocal n_reads
        n_reads += 1
        return read(self, deadline)

    monkeypatch.setattr(Validation, "_read", counted)
    train(store, TrainConfig(**SMALL, validation=0.3, threshold="count", restarts=3))
    assert n_reads == 1


def test_plan_run__counts_a_lifted_bag_for_each_restart_that_scores_it(store):
    def held(lift, count):
        return plan_run(store, TrainConfig(**SMALL, lift=lift, restarts=count)).budget.held

    for lift, n_bags in (("none", 0), ("context", 2)):
        n_lifted = LiftSpec.parse(lift).width(store.n_features)
        lifted = n_bags * largest_lifted(store, n_lifted)
        config = TrainConfig(**SMALL, lift=lift)
        n_values = n_weights(config, n_lifted, store.n_labels)
        two, four = (held(lift, count)["restarts"] for count in (2, 4))
        assert four - two == 2 * 16 * n_values + lifted


def test_dry_run__counts_the_restarts(store):
    one, three = (dry_run(store, TrainConfig(**SMALL, restarts=count)) for count in (1, 3))
    assert (one.restarts, three.restarts) == (1, 3)
    assert one.steps == three.steps
    assert three.memory["restarts"] > 0
    assert "restarts" not in one.memory


def test_model__with_restarts_is_saved_and_loaded(store, tmp_path):
    model = train(store, TrainConfig(**SMALL, restarts=2))
    model.save(tmp_path / "m.safetensors")
    loaded = load_model(tmp_path / "m.safetensors")
    assert (loaded.restarts, loaded.fingerprint) == (2, model.fingerprint)
    block = store.read(0, 20)
    assert predict(loaded, block).scores.tobytes() == predict(model, block).scores.tobytes()
    assert b'"format":6' in (tmp_path / "m.safetensors").read_bytes().replace(b"\\", b"")


def test_joined__of_models_without_a_shared_space(store):
    ones = [train(store, TrainConfig(**SMALL, shared_space=False, seed=s)) for s in (0, 1)]
    model = joined(ones)
    assert not model.has_shared_space
    assert model.restart(1).labels.tobytes() == ones[1].labels.tobytes()


@pytest.fixture
def first(store, tmp_path, monkeypatch):
    """A model with restarts, from which a run began that stopped before its second restart."""
    first = train(store, TrainConfig(**SMALL, restarts=2))
    first.save(tmp_path / "start.safetensors")
    settings = {**SMALL, "epochs": 1, "validation": 0.0}
    config = TrainConfig(**settings, start=str(tmp_path / "start.safetensors"))

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restarts, "begin", fail)
        with pytest.raises(KeyboardInterrupt):
            train(store, config, run=tmp_path / "run")
    return first


def test_start__of_a_restart_must_be_the_model_that_the_run_began_from(store, tmp_path, first):
    other = train(store, TrainConfig(**SMALL, restarts=2, seed=9))
    other.save(tmp_path / "start.safetensors")
    match = f"was begun from a model of fingerprint {first.fingerprint}, not {other.fingerprint}"
    with pytest.raises(StreammimlError, match=match):
        train(store, TrainConfig(), run=tmp_path / "run", resume=True)
    first.save(tmp_path / "start.safetensors")
    assert train(store, TrainConfig(), run=tmp_path / "run", resume=True).restarts == 2


def test_start__is_named_if_a_restart_needs_it_and_it_is_gone(store, tmp_path, first):
    (tmp_path / "start.safetensors").unlink()
    with pytest.raises(StreammimlError, match="a restart that did not begin yet"):
        train(store, TrainConfig(), run=tmp_path / "run", resume=True)
    model = train(store, TrainConfig(), run=tmp_path / "run", resume=True, start=first)
    assert model.restarts == 2
