"""Trials before a run: what is tried, what decides, and what a kill or a limit leaves."""

import json
import os
import re
import signal
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import DivergedError, StreammimlError
from streammiml.learn import choice, defaults, stop_signals
from streammiml.learn.begin import settle
from streammiml.learn.choice import MOST_WORK, mean_curve, plan_choice
from streammiml.learn.run_folder import choice_reasons
from streammiml.learn.train import train
from streammiml.learn.validation import Validation
from streammiml.measure.evaluate import evaluate
from streammiml.model import load_model
from streammiml.verbs.train_options import TrainOptions
from tests.planted import planted
from tests.stores import write_store

SMALL = {"step_size": 0.05, "init": "random"}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Trials of a few hundred steps."""
    monkeypatch.setattr(defaults, "MOST_STEPS", 1600)
    monkeypatch.setattr(defaults, "LOOK_EVERY", 200)
    monkeypatch.setattr(choice, "MOST_STEPS", 1600)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("s") / "s.zarr", planted(120), chunk_bytes=256)


def model_path(folder):
    return folder / "run" / "model.safetensors"


def model_bytes(run):
    return (run / "model.safetensors").read_bytes()


def test_train__takes_the_setting_and_epochs_that_trials_chose(store, tmp_path):
    seen = []
    model = train(store, TrainConfig(**SMALL), run=tmp_path / "run", watch_choice=seen.append)
    record = json.loads((tmp_path / "run" / "choice.json").read_text())
    setting = record["chosen"]["setting"]
    assert set(setting) == {"lift", "shared_space", "subconcepts"}
    given = {**SMALL, **setting, "epochs": model.settings["epochs"], "validation": 0.0}
    same = train(store, TrainConfig(**given, preset="plain"))
    first = model.restart(0)
    assert same.labels.tobytes() == first.labels.tobytes()
    assert same.shared.tobytes() == first.shared.tobytes()
    assert model.rule == replace(same.rule, offset=record["chosen"]["offset"])
    assert model.rule.offset
    assert seen[-1].trial == seen[-1].n_trials == len(record["trials"])
    assert seen[-1].done > 0.9
    assert all(progress.seconds_left is None or progress.seconds_left >= 0 for progress in seen)
    lines = (tmp_path / "run" / "settings.toml").read_text().splitlines()
    reasons = choice_reasons(tmp_path / "run")
    assert lines[: len(reasons)] == [f"# {reason}" for reason in reasons]
    assert any(reason.endswith(", chosen") for reason in reasons)
    assert reasons[1] == f"epochs = {model.settings['epochs']}"


@pytest.mark.parametrize("preset", ["auto", "plain"])
def test_train__killed_between_trials_goes_on_to_the_same_bytes(store, tmp_path, preset):
    config = TrainConfig(**SMALL, preset=preset, lift="fourier:5", shared_space=False)
    train(store, config, run=tmp_path / "whole")
    n_trials = len(json.loads((tmp_path / "whole" / "choice.json").read_text())["trials"])

    def interrupt(progress):
        if progress.trial == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(stop_signals.Stopped):
        train(store, config, run=tmp_path / "run", watch_choice=interrupt)
    assert not (tmp_path / "run" / "settings.toml").exists()
    numbers = []
    train(
        store,
        config,
        run=tmp_path / "run",
        resume=True,
        watch_choice=lambda progress: numbers.append(progress.trial),
    )
    # The first trial is not repeated.
    assert set(numbers) == set(range(2, n_trials + 1))
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_train__refuses_to_go_on_with_trials_of_other_settings(store, tmp_path):
    def interrupt(progress):
        if progress.trial == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(stop_signals.Stopped):
        train(store, TrainConfig(**SMALL), run=tmp_path / "run", watch_choice=interrupt)
    with pytest.raises(StreammimlError, match=r"run exists already; --resume goes on with it"):
        train(store, TrainConfig(**SMALL), run=tmp_path / "run")
    with pytest.raises(StreammimlError, match=r"was begun with step_size 0\.05, not 0\.02; give"):
        train(store, TrainConfig(), run=tmp_path / "run", resume=True)


def test_train__refuses_to_go_on_with_trials_of_other_weights_of_bags(tmp_path):
    def interrupt(progress):
        if progress.trial == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    block = planted(120)
    rows = np.repeat(np.linspace(0.5, 1.5, 120), np.diff(block.bag_offsets))
    first, other = (
        write_store(tmp_path / name, replace(block, kept={"weight": kept}))
        for name, kept in (("a.zarr", rows), ("b.zarr", np.full_like(rows, 2)))
    )
    assert first.fingerprint == other.fingerprint
    config = TrainConfig(**SMALL, preset="plain", bag_weights="weight")
    with pytest.raises(stop_signals.Stopped):
        train(first, config, run=tmp_path / "run", watch_choice=interrupt)
    assert not (tmp_path / "run" / "settings.toml").exists()
    with pytest.raises(
        StreammimlError, match=r"run was begun with weights_fingerprint '[0-9a-f]+', not '"
    ):
        train(other, config, run=tmp_path / "run", resume=True)
    with pytest.raises(StreammimlError, match="was begun with bag_weights 'weight', not None"):
        train(first, replace(config, bag_weights=None), run=tmp_path / "run", resume=True)
    train(first, config, run=tmp_path / "run", resume=True)
    with pytest.raises(StreammimlError, match="was begun with other weights of bags than the col"):
        train(other, config, run=tmp_path / "run", resume=True)


def test_train__refuses_to_go_on_where_other_settings_would_be_tried(store, tmp_path):
    def interrupt(progress):
        if progress.trial == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    given = TrainOptions(**SMALL, lift="none", subconcepts=5)
    with pytest.raises(stop_signals.Stopped):
        train(store, given, run=tmp_path / "run", watch_choice=interrupt)
    with pytest.raises(StreammimlError, match=r"run was begun with tried \['shared space true', "):
        train(store, TrainOptions(**SMALL), run=tmp_path / "run", resume=True)


def test_trials__look_at_the_same_steps_whichever_fold_is_first(store, monkeypatch):
    """A resumed run may begin with another fold than the run that was killed."""
    real = choice.plan_run

    def plan_by_fold(bags, config, holdout):
        return replace(real(bags, config, holdout), every=200 + holdout.bags[0])

    monkeypatch.setattr(choice, "plan_run", plan_by_fold)
    config = TrainConfig(**SMALL, preset="plain")
    settings = settle(store, config)
    plan = choice.plan_choice(store, config, config.given(), has_start=False)
    looks = []
    for folds in ((0, 1, 2), (2, 1, 0)):
        trials = choice.Choice(settings, plan, stop_signals.StopSignals(), lambda _: None)
        for fold in folds:
            trial = choice.ChoiceTrial(0, fold, plan.steps)
            looks.append(trials._trial_settings(trial)[0].validate_every)
    assert len(set(looks)) == 1


def test_train__a_time_limit_before_the_first_look_needs_no_counts(store):
    start = train(store, TrainConfig(**SMALL, epochs=1))
    model = train(store, TrainConfig(**SMALL, time_limit="0s"), start=start)
    # So short a trial does not decide how long to train.
    assert model.settings["epochs"] >= defaults.LEAST_EPOCHS


def test_train__a_time_limit_in_the_first_trials_takes_the_best_that_ended(store, monkeypatch):
    real, n_runs = choice.Loop.run, []

    def run(self):
        n_runs.append(1)
        if len(n_runs) == 4:
            raise choice._TimeUp
        real(self)

    monkeypatch.setattr(choice.Loop, "run", run)
    monkeypatch.setattr(
        choice.Choice, "_loss", lambda _, setting: -float(setting if setting < 3 else 0)
    )
    config = TrainConfig(**SMALL)
    chosen = choice.with_defaults(
        settle(store, config), stop_signals.StopSignals(), given=config.given()
    )
    third = choice.plan_choice(store, config, config.given(), has_start=False).settings[2]
    assert {name: getattr(chosen.config, name) for name in third} == third


def test_train__a_time_limit_ends_the_trials_and_what_was_decided_is_kept(store, tmp_path):
    config = TrainConfig(**SMALL, time_limit="0.001s", restarts=1)
    model = train(store, config, run=tmp_path / "run")
    reasons = choice_reasons(tmp_path / "run")
    assert "The time limit of 0.001s ended the trials." in reasons
    # The first look ended the first trial, whose setting is that of ``plain``.
    assert model.settings["lift"] == "none"
    assert len(json.loads((tmp_path / "run" / "choice.json").read_text())["trials"]) == 1
    for name in ("settings.toml", "model-card.md"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "model.safetensors").rename(tmp_path / "before")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    (tmp_path / "run" / "history.jsonl").unlink(missing_ok=True)
    train(store, replace(config, time_limit="10min"), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == (tmp_path / "before").read_bytes()


def test_train__large_stores_race_on_their_held_out_bags(monkeypatch):
    monkeypatch.setattr(defaults, "LEAST_HELD_OUT", 10)
    monkeypatch.setattr(choice, "MOST_STEPS", 400)
    seen = []
    config = TrainConfig(**SMALL, patience=1, subconcepts=2)
    model = train(MemoryBags(planted(200)), config, watch_choice=seen.append)
    assert model.settings["validation"] == 0.1
    assert model.settings["epochs"] == defaults.EPOCHS
    assert model.settings["subconcepts"] == 2
    # Four settings for a quarter of the steps, and the best two for all steps.
    assert seen[-1].trial == 6
    assert {progress.n_folds for progress in seen} == {1}


def test_train__leaves_out_settings_that_diverge_and_says_if_all_do(store, monkeypatch):
    real = choice.Loop.run

    def diverge(self):
        if self._config.lift == "none" or diverges_always:
            raise DivergedError("training diverged")
        real(self)

    monkeypatch.setattr(choice.Loop, "run", diverge)
    diverges_always = False
    config = TrainConfig(**SMALL)
    chosen = choice.with_defaults(
        settle(store, config), stop_signals.StopSignals(), given=config.given()
    )
    assert chosen.config.lift == "fourier:300:1"
    diverges_always = True
    with pytest.raises(DivergedError, match=r"^training diverged with every setting that was tri"):
        train(store, TrainConfig(**SMALL))


@pytest.mark.parametrize("length", [{"epochs": 2}, {"max_steps": 90}])
def test_train__of_a_given_length_tries_nothing(store, length):
    seen = []
    model = train(store, TrainConfig(**SMALL, **length), watch_choice=seen.append)
    assert not seen
    assert model.settings["lift"] == "none"


def test_train__starts_from_a_model_without_a_race(store):
    start = train(store, TrainConfig(**SMALL, epochs=1))
    seen = []
    train(store, TrainConfig(**SMALL), start=start, watch_choice=seen.append)
    assert {progress.setting for progress in seen} == {"the settings of the run"}


def ratio(model, store):
    """Predicted labels over true labels."""
    figures = evaluate(model, store)
    return sum(label["predicted"] for label in figures["per_label"]) / store.n_label_entries


@pytest.mark.parametrize("threshold", ["count", "hamming", "f1"])
def test_threshold__is_fitted_on_folds_and_recorded(threshold, store, tmp_path):
    config = TrainConfig(**SMALL, preset="plain", threshold=threshold)
    model = train(store, config, run=tmp_path / "run")
    settings = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert (
        settings["threshold_offset"]
        == model.rule.offset
        == load_model(model_path(tmp_path)).rule.offset
    )
    assert model.settings["threshold"] == threshold
    resumed = train(store, config, run=tmp_path / "run", resume=True)
    assert resumed.rule == model.rule
    with pytest.raises(StreammimlError, match=r"was begun with threshold '\w+', not 'none'; leave"):
        train(store, TrainOptions(threshold="none"), run=tmp_path / "run", resume=True)


def test_threshold__count_predicts_as_many_labels_as_there_are():
    store = MemoryBags(planted(400, n_labels=30, seed=1))
    other = MemoryBags(planted(300, n_labels=30, seed=1))
    fixed = {"lift": "none", "shared_space": True, "subconcepts": 1, "validation": 0.25}
    model = train(store, TrainConfig(**fixed, epochs=8))
    assert model.rule.offset
    assert 0.8 < ratio(model, other) < 1.25


@pytest.mark.parametrize("threshold", [None, "none"])
def test_threshold__is_not_moved_in_plain_runs_or_without_held_out_bags(threshold, store):
    config = TrainConfig(**SMALL, epochs=2, threshold=threshold)
    assert train(store, config).rule.offset == 0
    plain = TrainConfig(**SMALL, preset="plain", validation=0.2, epochs=2, threshold=threshold)
    model = train(store, plain)
    assert model.rule.offset == 0
    assert "threshold" not in model.settings


def test_threshold__is_refused_without_held_out_bags(store):
    config = TrainConfig(**SMALL, epochs=2, threshold="f1")
    with pytest.raises(StreammimlError, match=r"^--threshold f1 is fitted on held-out bags, and"):
        train(store, config)
    with pytest.raises(StreammimlError, match=r"^--threshold f1 moves the threshold of --rule du"):
        TrainConfig(threshold="f1", rule="top-r")
    with pytest.raises(StreammimlError, match=r"^no threshold is called 'best'; known: count, f1"):
        TrainConfig(threshold="best")


def test_plan_choice__bounds_the_arithmetic_of_all_trials():
    config, sizes = TrainConfig(), []
    for n_features in (10, 3000, 200_000):
        store = MemoryBags(planted(60, n_features=n_features))
        plan = plan_choice(store, config, {}, has_start=False)
        assert plan.total_work <= MOST_WORK
        assert plan.settings[0]["lift"] == "none"
        sizes.append((len(plan.settings), plan.steps))
    assert sizes[0][0] == 8
    assert sizes == sorted(sizes, reverse=True)


def counted_work(store, monkeypatch, *, most, loss):
    """The plan of the trials, the epochs they chose, and the multiplications of the run's steps.

    ``loss`` gives the loss of a look from its number.
    """
    monkeypatch.setattr(choice, "MOST_WORK", most)
    monkeypatch.setattr(choice, "MOST_EXTRA_WORK", 2 * most)
    looks = iter(range(10**6))
    monkeypatch.setattr(Validation, "loss", lambda *_: loss(next(looks)))
    config = TrainConfig(shared_dim=8, init="random", lift="none")
    settings = settle(store, config)
    plan = plan_choice(store, config, config.given(), has_start=False)
    chosen = choice.with_defaults(settings, stop_signals.StopSignals(), given=config.given())
    per_step = choice._work(store, chosen.config)
    return plan, chosen.config.n_epochs, per_step * chosen.config.n_epochs * store.n_bags


def test_choice__bounds_the_work_of_the_run_if_short_trials_end_while_the_loss_falls(
    monkeypatch,
):
    monkeypatch.setattr(choice, "LEAST_STEPS", 50)
    store = MemoryBags(planted(60, n_features=400))
    work = choice._work(store, TrainConfig(shared_dim=8, subconcepts=1))
    for most in (400 * work, 3000 * work):
        plan, epochs, spent = counted_work(
            store, monkeypatch, most=most, loss=lambda n: 1 / (n + 1)
        )
        assert plan.total_work <= most
        assert plan.is_shortened(store.n_bags)
        assert most < spent <= 2 * most
        assert epochs < defaults.STEPS / store.n_bags
    # Where the default is less than the bound allows, it is taken.
    *_, epochs, _ = counted_work(store, monkeypatch, most=10**7 * work, loss=lambda n: 1 / (n + 1))
    assert epochs <= -(-defaults.STEPS // store.n_bags)


def test_choice__says_that_the_bound_of_work_set_the_epochs(monkeypatch, tmp_path):
    store = MemoryBags(planted(60, n_features=400))
    work = choice._work(store, TrainConfig(shared_dim=8, subconcepts=1))
    monkeypatch.setattr(choice, "LEAST_STEPS", 50)
    monkeypatch.setattr(choice, "MOST_WORK", 400 * work)
    monkeypatch.setattr(choice, "MOST_EXTRA_WORK", 600 * work)
    looks = iter(range(10**6))
    monkeypatch.setattr(Validation, "loss", lambda *_: 1 / (next(looks) + 1))
    train(store, TrainConfig(shared_dim=8, init="random"), run=tmp_path / "run")
    reason = choice_reasons(tmp_path / "run")[1]
    assert re.fullmatch(
        r"epochs = \d+ by the bound of work: the loss still fell when the trials ended, so "
        r"--extend or --epochs 667 may give a better model",
        reason,
    )


def test_plan_choice__leaves_out_settings_that_do_not_fit_in_memory():
    store = MemoryBags(planted(60, n_features=2000))
    settings = {
        memory: plan_choice(store, TrainConfig(shared_dim=8, memory=memory), {}, has_start=False)
        for memory in ("40MiB", "1GiB")
    }
    few, all_of_them = settings["40MiB"].settings, settings["1GiB"].settings
    assert len(few) < len(all_of_them) == 8
    largest = {"lift": "fourier:300:1", "shared_space": False, "subconcepts": 5}
    assert largest in all_of_them
    assert largest not in few


def test_mean_curve__is_over_the_steps_that_all_curves_have():
    assert mean_curve([{1: 0.5, 2: 0.25}, {2: 0.75, 3: 1.0}]) == {2: 0.5}
    assert mean_curve([]) == {}
