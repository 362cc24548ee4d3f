"""Calibration of runs: on which bags it is fitted, and that kills and damage change nothing."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn import calibration_folds, defaults, stop_signals
from streammiml.learn.calibration import Standard, bins_of, fitted_calibration
from streammiml.learn.calibration_folds import n_calibration_folds
from streammiml.learn.dry_run import dry_run
from streammiml.learn.holdout import Holdout
from streammiml.learn.run_folder import CALIBRATION
from streammiml.learn.train import train
from streammiml.learn.validation import Validation
from streammiml.measure.evaluate import evaluate
from streammiml.model import Model, load_tensors
from streammiml.scorer import Scorer
from tests.planted import planted
from tests.stores import write_store

SMALL = {"shared_dim": 8, "subconcepts": 2, "epochs": 4, "step_size": 0.05, "preset": "plain"}
SMALL["init"] = "random"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("s") / "s.zarr", planted(150), chunk_bytes=256)


def model_bytes(run):
    return (run / "model.safetensors").read_bytes()


def counts_of(model, store, bags):
    """Margins of some bags by label, one at a time; raw, without the offset of the rule."""
    block = store.read_bags(bags)
    scores = Scorer(model).scores(block).value
    counts = np.zeros((2, model.n_labels, calibration_folds.N_BINS), np.int32)
    for bag, label in np.ndindex(len(block), model.n_labels):
        margin = scores[bag, label : label + 1] - scores[bag, -1]
        carries = int(label in block.labels_of(bag))
        counts[carries, label, bins_of(margin + np.float32(model.rule.offset))[0]] += 1
    return counts


def test_calibrated__on_folds_is_fitted_on_what_each_training_did_not_see(store):
    model = train(store, TrainConfig(**SMALL, calibrate="platt"))
    plain = train(store, TrainConfig(**SMALL))
    assert model.labels.tobytes() == plain.labels.tobytes()
    assert model.settings == {**plain.settings, "calibrate": "platt"}
    # The same trainings, each on a store without the bags of its fold.
    want = np.zeros((2, 5, calibration_folds.N_BINS), np.int32)
    for fold in range(3):
        holdout = Holdout.of_fold(fold, 3, store.n_bags)
        config = TrainConfig(**SMALL)
        run = calibration_folds.begin(
            calibration_folds.RunSettings(
                store=store, config=defaults.resolved(config, store.n_bags), holdout=holdout
            )
        )
        calibration_folds.Loop(run, lambda _: None, stop_signals.StopSignals()).run()
        assert run.state.at.step == 4 * (150 - holdout.size)
        scored = run.state.lift, run.state.returned(), run.plan.budget.read.deadline
        others = np.array([bag for bag in range(150) if bag not in holdout.bags])
        standard = Validation(store, others).standard(*scored)
        want += Validation(store, holdout.bags).label_counts(*scored, standard)
    assert want.sum() == 150 * 5
    scores = Scorer(plain).scores(store.read(0, 150)).value
    got = fitted_calibration(want, "platt", Standard.of_blocks([scores[:99], scores[99:]]))
    np.testing.assert_allclose(got.platt, model.calibration.platt, rtol=1e-6)


@pytest.mark.parametrize("threshold", ["none", "count"])
def test_calibrated__on_held_out_bags_is_fitted_on_their_scores(store, threshold):
    config = TrainConfig(
        **SMALL, calibrate="isotonic", validation=0.3, validate_every=100, threshold=threshold
    )
    model = train(store, config)
    assert bool(model.rule.offset) == (threshold == "count")
    counts = counts_of(model, store, Holdout.of(0.3, store.n_bags).bags)
    want = fitted_calibration(counts, "isotonic", Standard.none(5), model.rule.offset)
    for name, tensor in want.tensors().items():
        np.testing.assert_array_equal(model.calibration.tensors()[name], tensor)


def test_calibrated__ends_at_the_time_limit_with_the_folds_so_far(
    store, tmp_path, monkeypatch, caplog
):
    real = calibration_folds._FoldTraining

    class Clocked(real):
        @property
        def seconds(self):
            return 99.0 if self._fold else 1.0

    monkeypatch.setattr(calibration_folds, "_FoldTraining", Clocked)
    config = TrainConfig(**SMALL, calibrate="platt", time_limit="60s")
    seen = []
    model = train(store, config, run=tmp_path / "run", watch_choice=seen.append)
    assert {progress.fold for progress in seen} == {1, 2}
    assert all(p.seconds_left is None or p.seconds_left <= 60 for p in seen)
    assert (
        "time limit of 60s ended its trainings; probabilities come from 1 of 3 folds" in caplog.text
    )
    # The margins of one fold alone.
    path = tmp_path / "run" / CALIBRATION
    tensors, record = load_tensors(path, kind=calibration_folds._KIND, version=1)
    assert (record["n_done"], record["is_cut"]) == (1, True)
    assert tensors["counts"].sum() == 5 * Holdout.of_fold(0, 3, store.n_bags).size
    # A resumed run does not train the folds that were left out.
    (tmp_path / "run" / "model.safetensors").unlink()
    monkeypatch.setattr(calibration_folds, "_FoldTraining", None)
    again = train(store, TrainConfig(time_limit="60s"), run=tmp_path / "run", resume=True)
    assert again.calibration.platt.tobytes() == model.calibration.platt.tobytes()


def test_calibrated__with_a_limit_before_the_first_fold_uses_the_weights_so_far(store, caplog):
    config = TrainConfig(**{**SMALL, "epochs": 40}, calibrate="platt", time_limit="0s")
    model = train(store, config)
    assert np.isfinite(model.calibration.platt).all()
    assert "probabilities come from 1 of 3 folds" in caplog.text


def test_calibrated__of_one_label():
    block = planted(120, n_labels=2)
    carries = np.array([0 in block.labels_of(bag) for bag in range(120)])
    block = replace(
        block,
        label_offsets=np.concatenate([[0], np.cumsum(carries)]),
        label_indices=np.zeros(carries.sum(), np.int32),
    )
    model = train(MemoryBags(block, n_labels=1), TrainConfig(**SMALL, calibrate="auto"))
    assert model.calibration.platt.shape == (1, 2)


def test_calibrated__probabilities_are_better_than_those_of_a_sigmoid():
    block = planted(1200, noise=0.9)
    bags, test = (
        MemoryBags(block.take(part), n_labels=5) for part in np.split(np.arange(1200), [400])
    )
    model = train(
        bags, TrainConfig(**{**SMALL, "epochs": 60, "lift": "fourier:300:1"}, calibrate="auto")
    )
    sigmoid = replace(model.calibration, platt=np.tile(np.float32([[1, 0]]), (5, 1)))
    uncalibrated = replace(model, calibration=sigmoid)
    names = ("brier_score", "expected_calibration_error")
    ours, theirs = (evaluate(one, test, metrics=names) for one in (model, uncalibrated))
    assert ours["brier_score"] < theirs["brier_score"]
    assert ours[names[1]] < theirs[names[1]] / 2


@pytest.mark.parametrize("fold", [1, 2, 3])
def test_calibrated__killed_goes_on_to_the_same_bytes(store, tmp_path, monkeypatch, fold):
    config = TrainConfig(**SMALL, calibrate="auto")
    train(store, config, run=tmp_path / "whole")
    real, n_runs = calibration_folds.Loop.run, []

    def run(self):
        n_runs.append(1)
        # The run itself comes before its folds.
        if len(n_runs) == 1 + fold:
            os.kill(os.getpid(), signal.SIGTERM)
        real(self)

    monkeypatch.setattr(calibration_folds.Loop, "run", run)
    with pytest.raises(stop_signals.Stopped):
        train(store, config, run=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    n_runs.clear()
    n_runs += [1] * 9
    train(store, config, run=tmp_path / "run", resume=True)
    assert len(n_runs) == 9 + 1 + 4 - fold
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
    assert (tmp_path / "run" / CALIBRATION).read_bytes() == (
        tmp_path / "whole" / CALIBRATION
    ).read_bytes()


def test_calibrated__a_finished_run_can_be_calibrated_later(store, tmp_path, monkeypatch):
    config = TrainConfig(**SMALL)
    train(store, config, run=tmp_path / "run")
    plain = model_bytes(tmp_path / "run")
    train(store, replace(config, calibrate="platt"), run=tmp_path / "begun")
    again = train(store, TrainConfig(calibrate="platt"), run=tmp_path / "run", resume=True)
    assert again.calibration is not None
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "begun") != plain
    # Another method reads the counts, and trains nothing.
    monkeypatch.setattr(calibration_folds, "_FoldTraining", None)
    train(store, TrainConfig(calibrate="isotonic"), run=tmp_path / "run", resume=True)
    assert Model.load(tmp_path / "run").calibration.n_isotonic == 5
    train(store, TrainConfig(calibrate="none"), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == plain


def test_calibrated__an_extended_run_counts_its_folds_again(store, tmp_path):
    config = TrainConfig(**SMALL, calibrate="platt")
    train(store, config, run=tmp_path / "run")
    train(store, config, run=tmp_path / "run", extend=2)
    train(store, replace(config, epochs=6), run=tmp_path / "begun")
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "begun")


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_calibrated__a_damaged_record_is_counted_again(store, tmp_path, damage):
    config = TrainConfig(**SMALL, calibrate="platt")
    train(store, config, run=tmp_path / "run")
    before = model_bytes(tmp_path / "run")
    path = tmp_path / "run" / CALIBRATION
    raw = path.read_bytes()
    flipped = bytearray(raw)
    flipped[-100] ^= 1
    path.write_bytes(
        {"cut": raw[:-9], "flip": flipped, "empty": b"", "other": model_bytes(tmp_path / "run")}[
            damage
        ]
    )
    (tmp_path / "run" / "model.safetensors").unlink()
    train(store, config, run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == before
    assert path.read_bytes() == raw


def test_n_calibration_folds__refuses_runs_without_bags_to_fit_on(store, tmp_path, monkeypatch):
    asked = TrainConfig(calibrate="auto")
    message = (
        r"^--calibrate auto is fitted on held-out bags, and this run holds out none{}; give "
        r"--validation 0.1 or --validation-store, or leave --calibrate out$"
    )
    few = MemoryBags(planted(20), n_labels=5)
    with pytest.raises(StreammimlError, match=message.format(", and 20 bags are too few for f.*s")):
        train(few, asked)
    start = train(store, TrainConfig(**SMALL))
    with pytest.raises(StreammimlError, match=message.format(", and its start model may have .*")):
        train(store, replace(asked, epochs=1), start=start)
    calibrated = train(
        store, TrainConfig(epochs=1, calibrate="platt", validation=0.2, preset="plain"), start=start
    )
    assert calibrated.calibration is not None
    monkeypatch.setattr(defaults, "LEAST_HELD_OUT", 10)
    assert n_calibration_folds(store, asked, has_start=False) == 0
    with pytest.raises(StreammimlError, match=message.format("")):
        train(store, replace(asked, validation=0.0), run=tmp_path / "run")
    assert not (tmp_path / "run" / "settings.toml").exists()


def test_n_calibration_folds__are_in_a_dry_run_and_in_memory(store):
    config = TrainConfig(**SMALL, calibrate="auto")
    estimate = dry_run(store, config)
    assert estimate.calibration_steps == 2 * estimate.steps == 2 * 4 * 150
    assert estimate.memory["calibration"] > estimate.memory["weights"]
    plain = dry_run(store, TrainConfig(**SMALL))
    assert plain.calibration_steps == 0
    assert "calibration" not in plain.memory
    held_out = dry_run(store, replace(config, validation=0.2))
    assert held_out.calibration_steps == 0
    assert held_out.memory["calibration"] < estimate.memory["calibration"]


def test_calibrated__with_max_steps_visits_as_often_as_the_run():
    config = calibration_folds._config_of_folds(TrainConfig(max_steps=100, calibrate="platt"))
    assert (config.max_steps, config.calibrate) == (67, None)


def test_config__refuses_unknown_calibrations():
    with pytest.raises(StreammimlError, match=r"^no calibration is called 'best'; known: auto, i"):
        TrainConfig(calibrate="best")
