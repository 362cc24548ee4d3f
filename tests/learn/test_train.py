"""Training: the same bytes however it was cut, read or stored; every refusal in one line."""

import json
import math
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.bags.offsets import from_sizes
from streammiml.bags.views import JoinedStore
from streammiml.blocks import budget
from streammiml.blocks.stream import ReadSettings
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn import begin, defaults, events, loop, stop_signals
from streammiml.learn.holdout import Holdout
from streammiml.learn.kernel_threads import Sweeper
from streammiml.learn.run_plan import plan_run
from streammiml.learn.train import train
from streammiml.learn.validation import steps_between_looks
from streammiml.model import Model
from tests.planted import planted
from tests.stores import as_sparse, sizes, write_store

N_BAGS = 300
# Blocks of 8 bags of which 6 are mixed: several windows an epoch, and looks and checkpoints that
# fall into the middle of batches.
SMALL = {
    "shared_dim": 8, "subconcepts": 2, "block_bags": 8, "mix_blocks": 6, "epochs": 3,
    "validation": 0.1, "validate_every": 90, "patience": 50, "checkpoint_every": "70",
}  # fmt: skip


def small(**changes):
    return TrainConfig(**{**SMALL, **changes})


@pytest.fixture(scope="module")
def store_of(tmp_path_factory):
    """Makes a store of planted bags once for each set of arguments."""
    stores = {}

    def store(suffix="zarr", chunk_bytes=1 << 18, **kind):
        key = (suffix, chunk_bytes, *sorted(kind.items()))
        if key not in stores:
            path = tmp_path_factory.mktemp("made") / f"s.{suffix}"
            stores[key] = write_store(path, planted(**kind), chunk_bytes=chunk_bytes)
        return stores[key]

    return store


def model_bytes(run):
    return (run / "model.safetensors").read_bytes()


def history(run):
    """What does not depend on the clock; times and speeds differ from run to run."""
    lines = (run / "history.jsonl").read_text().splitlines()
    kept = ("step", "epoch", "validation_loss", "best_loss", "loss", "share_of_violations")
    return [tuple(entry[name] for name in kept) for entry in map(json.loads, lines)]


# The same bytes.


def test_train__the_same_seed_gives_the_same_bytes_and_another_gives_others(store_of, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(store_of(), small(seed=seed), run=tmp_path / name)
    assert model_bytes(tmp_path / "a") == model_bytes(tmp_path / "b")
    assert history(tmp_path / "a") == history(tmp_path / "b")
    a, c = Model.load(tmp_path / "a"), Model.load(tmp_path / "c")
    assert (a.shared != c.shared).mean() > 0.99
    assert (a.labels != c.labels).mean() > 0.99


def test_train__what_is_returned_is_what_is_saved_and_a_folder_changes_nothing(store_of, tmp_path):
    saved = train(store_of(), small(), run=tmp_path / "run")
    free = train(store_of(), small())
    free.save(tmp_path / "free.safetensors")
    saved.save(tmp_path / "saved.safetensors")
    assert (tmp_path / "free.safetensors").read_bytes() == model_bytes(tmp_path / "run")
    assert (tmp_path / "saved.safetensors").read_bytes() == model_bytes(tmp_path / "run")


def test_train__learns(store_of):
    model = train(store_of(), small(epochs=20))
    start = train(store_of(), small(max_steps=1, init="random"))
    holdout = Holdout.of(0.1, N_BAGS).bags
    seen = {}
    for name, candidate in (("trained", model), ("start", start)):
        rows = store_of().read_bags(holdout)
        seen[name] = loss_of(candidate, rows)
    assert seen["trained"] < 0.05 < 0.2 < seen["start"]


def loss_of(model, bags):
    """Ranking loss in plain loops, for dense rows without lift."""
    total = 0.0
    for i in range(len(bags)):
        rows = (bags.rows_of(i).astype(np.float64) - model.lift.shift) * model.lift.scale
        rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
        scores = np.einsum("rm,lkm->lkr", rows @ model.shared, model.labels).max(axis=(1, 2))[:-1]
        own = bags.labels_of(i)
        others = np.setdiff1d(np.arange(len(scores)), own)
        total += np.mean(scores[own][:, None] <= scores[others][None, :])
    return total / len(bags)


KINDS = {
    "dense": ({}, {}),
    "sparse": ({"sparse": True}, {}),
    "uint8": ({"dtype": "uint8"}, {}),
    "float16": ({"dtype": "float16"}, {}),
    "full": ({}, {"order": "full"}),
    "uniform": ({}, {"order": "uniform"}),
    "last": ({}, {"average": False}),
    "no space": ({}, {"shared_space": False}),
    "lifted": ({}, {"lift": "fourier:9,context"}),
    "sparse context": ({"sparse": True}, {"lift": "context:mean"}),
    "all mixed": ({}, {"mix_blocks": 1000}),
    "no holdout": ({}, {"validation": 0.0}),
    "parquet": ({"suffix": "parquet", "chunk_bytes": 500}, {}),
    "sparse parquet": ({"suffix": "parquet", "sparse": True}, {"order": "full"}),
    "whole scaler": ({}, {"fit_scaler": "full", "scale": "standard+unit"}),
}


@pytest.fixture(scope="module")
def uninterrupted(store_of, tmp_path_factory):
    """The run that was never interrupted, once for each kind."""
    runs = {}

    def run(kind):
        if kind not in runs:
            stored, changes = KINDS[kind]
            runs[kind] = tmp_path_factory.mktemp("whole") / "run"
            train(store_of(**stored), small(**changes), run=runs[kind])
        return runs[kind]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_resume__after_any_number_of_steps_ends_in_the_same_bytes(
    kind, store_of, uninterrupted, tmp_path
):
    stored, changes = KINDS[kind]
    store, run = store_of(**stored), tmp_path / "run"
    rng = np.random.default_rng(len(kind))
    # The step of a look, the last of an epoch, the first of all, and any.
    stops = sorted({1, 90, N_BAGS - len(Holdout.of(0.1, N_BAGS).bags), *rng.integers(1, 700, 3)})
    for stop in stops:
        train(store, small(**changes, max_steps=int(stop)), run=run, resume=True)
    train(store, small(**changes, max_steps=10**9), run=run, resume=True)
    assert_same_model(run, uninterrupted(kind))
    assert history(run) == history(uninterrupted(kind))


def assert_same_model(run, other):
    """The same bytes, but for the number of steps at which the caller wanted to stop."""
    models = [Model.load(path) for path in (run, other)]
    raw = []
    for model in models:
        kept = {k: v for k, v in model.settings.items() if k != "max_steps"}
        replace(model, settings=kept).save(run / "compared.safetensors")
        raw.append((run / "compared.safetensors").read_bytes())
    (run / "compared.safetensors").unlink()
    assert raw[0] == raw[1]


class Crash(Exception):
    pass


@pytest.mark.parametrize("every", ["33", "64", "1000", "0s", "1h"])
@pytest.mark.parametrize("kind", ["dense", "full"])
def test_resume__from_wherever_the_last_checkpoint_is(
    kind, every, store_of, uninterrupted, tmp_path
):
    rng = np.random.default_rng(3)
    config = small(**KINDS[kind][1], checkpoint_every=every)
    for crash in sorted(rng.integers(1, 800, 3).tolist()):
        crash_at(store_of(), config, tmp_path / "run", crash)
    train(store_of(), config, run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == model_bytes(uninterrupted(kind))
    assert history(tmp_path / "run") == history(uninterrupted(kind))


def crashing(step):
    def watch(progress):
        if progress.step >= step:
            raise Crash

    return watch


def crash_at(store, config, run, step):
    with pytest.raises(Crash):
        train(store, config, run=run, resume=True, watch=crashing(step))


@settings(max_examples=8)
@given(crashes=st.lists(st.integers(1, 800), min_size=1, max_size=4), data=st.data())
def test_resume__with_any_read_ahead_memory_and_checkpoints(
    crashes, data, store_of, uninterrupted, tmp_path_factory
):
    run = tmp_path_factory.mktemp("ahead") / "run"
    for crash in [*sorted(crashes), None]:
        read = ReadSettings(
            threads=data.draw(st.integers(1, 4)),
            blocks_ahead=data.draw(st.integers(1, 20)),
            batches_ahead=data.draw(st.integers(1, 5)),
        )
        config = small(
            memory=data.draw(st.sampled_from(["64MiB", "1GiB", "3GiB"])),
            checkpoint_every=data.draw(st.sampled_from(["90", "0s", "1d"])),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(budget, "ReadSettings", lambda read=read, **_: read)
            if crash is None:
                train(store_of(), config, run=run, resume=True)
            else:
                crash_at(store_of(), config, run, crash)
    assert model_bytes(run) == model_bytes(uninterrupted("dense"))


@pytest.mark.parametrize("what", ["joined", "view", "joined views"])
def test_resume__of_several_stores_and_of_views(what, store_of, tmp_path):
    one, two = store_of(), store_of(n_bags=170)
    store = {
        "joined": lambda: JoinedStore([one, two]),
        "view": lambda: one.view(np.random.default_rng(0).permutation(N_BAGS)[:200]),
        "joined views": lambda: JoinedStore(
            [two.view(slice(9, 99)), one.view(slice(None, None, 2))]
        ),
    }[what]
    train(store(), small(), run=tmp_path / "whole")
    for crash in (100, 300):
        crash_at(store(), small(), tmp_path / "run", crash)
    train(store(), small(), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_train__a_view_of_all_bags_and_the_store_itself_learn_the_same(store_of):
    direct, view = train(store_of(), small()), train(store_of().view(slice(None)), small())
    np.testing.assert_array_equal(direct.shared, view.shared)
    np.testing.assert_array_equal(direct.labels, view.labels)


@pytest.mark.parametrize("kind", ["dense", "sparse", "uint8"])
def test_train__chunk_size_and_backend_change_nothing(kind, store_of, uninterrupted, tmp_path):
    with sizes():
        for i, (suffix, chunk_bytes) in enumerate(
            [("zarr", 64), ("zarr", 1 << 12), ("parquet", 200), ("parquet", 1 << 20)]
        ):
            store = store_of(suffix=suffix, chunk_bytes=chunk_bytes, **KINDS[kind][0])
            train(store, small(), run=tmp_path / f"{i}")
            assert model_bytes(tmp_path / f"{i}") == model_bytes(uninterrupted(kind)), (
                suffix,
                chunk_bytes,
            )


def test_train__sparse_rows_and_their_context_are_learned_as_if_they_were_dense(tmp_path):
    block = planted(80)
    models = [
        train(
            write_store(tmp_path / f"{name}.zarr", rows),
            small(lift="context:mean", scale="unit", max_steps=60, validation=0.0),
        )
        for name, rows in (("dense", block), ("sparse", as_sparse(block)))
    ]
    assert models[0].shared.shape == (2 * block.n_features + 1, models[0].shared.shape[1])
    for name in ("shared", "labels"):
        np.testing.assert_allclose(*(getattr(model, name) for model in models), atol=1e-4)


def test_resume__from_another_copy_of_the_store(store_of, uninterrupted, tmp_path):
    crash_at(store_of(), small(), tmp_path / "run", 200)
    other = store_of(suffix="parquet", chunk_bytes=500)
    train(other, small(), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == model_bytes(uninterrupted("dense"))


def test_resume__of_a_finished_run_writes_the_same_model_again(store_of, uninterrupted):
    before = model_bytes(uninterrupted("dense"))
    (uninterrupted("dense") / "model.safetensors").unlink()
    train(store_of(), run=uninterrupted("dense"), resume=True)
    assert model_bytes(uninterrupted("dense")) == before


def test_resume__keeps_the_settings_that_the_run_began_with(store_of, uninterrupted, tmp_path):
    crash_at(store_of(), small(), tmp_path / "run", 200)
    train(store_of(), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == model_bytes(uninterrupted("dense"))


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_train__learns_the_same_wherever_calls_of_the_kernel_are_cut(
    seconds, store_of, uninterrupted, tmp_path, monkeypatch
):
    uncut = model_bytes(uninterrupted("dense"))
    monkeypatch.setattr(loop, "CALL_SECONDS", seconds)
    cuts, sweep = [], Sweeper.sweep

    def noted(self, bags, visit, *at):
        cuts.append(len(visit))
        return sweep(self, bags, visit, *at)

    monkeypatch.setattr(Sweeper, "sweep", noted)
    train(store_of(), small(), run=tmp_path / "run")
    assert model_bytes(tmp_path / "run") == uncut
    assert set(cuts[1:]) == {1} if seconds < 1 else max(cuts) > 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal__while_folds_are_tried_stops_the_run_and_it_can_be_begun_again(
    number, store_of, tmp_path, monkeypatch
):
    store, config, of_fold = store_of(), TrainConfig(shared_dim=8), Holdout.of_fold
    monkeypatch.setattr(defaults, "MOST_STEPS", 3000)
    monkeypatch.setattr(defaults, "LOOK_EVERY", 500)
    uninterrupted_model = train(store, config)
    sent = []

    def signalled(*fold):
        # A second signal would end the process at once.
        if not sent:
            sent.append(os.kill(os.getpid(), number))
        return of_fold(*fold)

    with monkeypatch.context() as patched:
        patched.setattr(Holdout, "of_fold", signalled)
        with pytest.raises(stop_signals.Stopped) as stopped:
            train(store, config, run=tmp_path / "run")
    assert stopped.value.number == number
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    train(store, config, run=tmp_path / "run", resume=True)
    uninterrupted_model.save(tmp_path / "whole.safetensors")
    assert model_bytes(tmp_path / "run") == (tmp_path / "whole.safetensors").read_bytes()


def test_resume__an_end_that_the_run_has_passed_is_refused(store_of, tmp_path):
    train(store_of(), small(epochs=3), run=tmp_path / "run")
    before = model_bytes(tmp_path / "run")
    for less, line in (
        ({"epochs": 2}, "^--epochs 2 is less than the 3 that the run has done"),
        ({"max_steps": 70}, "^--max-steps 70 is less than the \\d+ that the run has done"),
    ):
        with pytest.raises(StreammimlError, match=line):
            train(store_of(), small(**{"epochs": 3, **less}), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == before


@pytest.mark.parametrize("sparse", [False, True])
def test_resume__on_the_same_bags_as_sparse_or_dense_rows_is_refused(sparse, tmp_path):
    block = planted(60)
    begun, other = (
        write_store(tmp_path / f"{is_sparse}.zarr", as_sparse(block) if is_sparse else block)
        for is_sparse in (sparse, not sparse)
    )
    assert begun.fingerprint == other.fingerprint
    train(begun, small(max_steps=50), run=tmp_path / "run")
    kinds = ["sparse", "dense"] if sparse else ["dense", "sparse"]
    line = f"was begun on {kinds[0]} rows, and .* has {kinds[1]} rows, which are scaled"
    with pytest.raises(StreammimlError, match=line):
        train(other, small(max_steps=90), run=tmp_path / "run", resume=True)


def test_resume__with_more_epochs_is_the_longer_run(store_of, tmp_path):
    for epochs in (2, 5):
        train(store_of(), small(epochs=epochs), run=tmp_path / "run", resume=True)
    train(store_of(), small(epochs=5), run=tmp_path / "whole")
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_extend__is_the_run_that_was_begun_with_more_epochs(store_of, tmp_path):
    train(store_of(), small(epochs=5), run=tmp_path / "whole")
    train(store_of(), small(epochs=2), run=tmp_path / "finished")
    train(store_of(), run=tmp_path / "finished", extend=3)
    crash_at(store_of(), small(epochs=2), tmp_path / "killed", 200)
    train(store_of(), small(epochs=2), run=tmp_path / "killed", extend=3)
    train(store_of(), small(epochs=1), run=tmp_path / "again")
    for _ in range(4):
        train(store_of(), run=tmp_path / "again", extend=1)
    for name in ("finished", "killed", "again"):
        assert model_bytes(tmp_path / name) == model_bytes(tmp_path / "whole"), name
        assert history(tmp_path / name) == history(tmp_path / "whole"), name


def test_extend__once_told_is_remembered_by_a_run_that_is_killed(store_of, tmp_path):
    train(store_of(), small(epochs=5), run=tmp_path / "whole")
    train(store_of(), small(epochs=2), run=tmp_path / "run")
    with pytest.raises(Crash):
        train(store_of(), run=tmp_path / "run", extend=3, watch=crashing(700))
    train(store_of(), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_extend__repeated_after_a_kill_has_the_same_end(store_of, monkeypatch, tmp_path):
    train(store_of(), small(epochs=5), run=tmp_path / "whole")
    train(store_of(), small(epochs=2), run=tmp_path / "run")
    with pytest.raises(Crash):
        train(store_of(), run=tmp_path / "run", extend=3, watch=crashing(700))
    with pytest.raises(
        StreammimlError, match=r"is being extended from 2 to 5 epochs; --resume finishes"
    ):
        train(store_of(), run=tmp_path / "run", extend=4)
    real = Model.save

    def killed(self, path):
        real(self, path)
        raise Crash

    monkeypatch.setattr(Model, "save", killed)
    with pytest.raises(Crash):
        train(store_of(), run=tmp_path / "run", extend=3)
    monkeypatch.undo()
    for _ in range(2):
        assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
        assert history(tmp_path / "run") == history(tmp_path / "whole")
        # Before this one ends, the extension is not known to have finished.
        train(store_of(), run=tmp_path / "run", resume=True)
    settings = [(tmp_path / name / "settings.toml").read_text() for name in ("run", "whole")]
    assert settings[0] == settings[1]
    train(store_of(), run=tmp_path / "run", extend=1)
    train(store_of(), small(epochs=6), run=tmp_path / "longer")
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "longer")


def test_extend__repeated_after_a_kill_adds_patience_once(store_of, monkeypatch, tmp_path):
    losses = [0.5, 0.4, 0.6, 0.6, 0.6, 0.6, 0.3, *[0.6] * 9]
    with_losses(monkeypatch, losses)
    train(store_of(), small(epochs=15, patience=6), run=tmp_path / "whole")
    with_losses(monkeypatch, losses)
    train(store_of(), small(epochs=10, patience=3), run=tmp_path / "run")
    for n_seen in (5, 13):  # Killed before the first step, then after the last.
        with_losses(monkeypatch, losses[5:])
        with pytest.raises(Crash):
            train(store_of(), run=tmp_path / "run", extend=5, watch=crashing(n_seen * 90))
    with_losses(monkeypatch, losses[5:])
    train(store_of(), run=tmp_path / "run", extend=5)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_extend__a_run_that_stopped_early_gets_as_much_patience_again(
    store_of, monkeypatch, tmp_path
):
    losses = [0.5, 0.4, 0.6, 0.6, 0.6, 0.6, 0.3, *[0.6] * 9]
    with_losses(monkeypatch, losses)
    train(store_of(), small(epochs=15, patience=6), run=tmp_path / "whole")
    with_losses(monkeypatch, losses)
    model = train(store_of(), small(epochs=10, patience=3), run=tmp_path / "run")
    assert model.provenance["steps"] == 5 * 90
    with_losses(monkeypatch, losses[5:])
    model = train(store_of(), run=tmp_path / "run", extend=5)
    assert (model.provenance["steps"], model.provenance["best_step"]) == (13 * 90, 7 * 90)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_resume__with_more_patience_is_the_more_patient_run(store_of, monkeypatch, tmp_path):
    losses = [0.5, 0.4, 0.6, 0.6, 0.6, 0.6, 0.6]
    with_losses(monkeypatch, losses)
    train(store_of(), small(epochs=9, patience=5), run=tmp_path / "whole")
    with_losses(monkeypatch, losses)
    train(store_of(), small(epochs=9, patience=2), run=tmp_path / "run")
    with_losses(monkeypatch, losses[4:])
    train(store_of(), small(epochs=9, patience=5), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


@pytest.mark.parametrize(
    ("config", "how", "line"),
    [
        (small(epochs=9), {"extend": 2}, "--extend 2 adds to the 3 epochs of .*--epochs 9 sets"),
        (None, {"extend": -1}, "extend must be a whole number at least 0, got -1"),
        (small(max_steps=9), {"extend": 1}, "ends after 9 steps, .*--resume with a larger --max"),
        (None, {"extend": 1, "run": None}, "extend continues a run; name its folder"),
        (None, {"extend": 1, "run": "other"}, "other holds no run to extend; leave --extend out"),
    ],
)
def test_extend__what_cannot_be_extended_is_one_line(
    config, how, line, store_of, uninterrupted, tmp_path
):
    where = {"run": uninterrupted("dense"), **how}
    if where["run"] == "other":
        where["run"] = tmp_path / "other"
    before = model_bytes(uninterrupted("dense"))
    with pytest.raises(StreammimlError, match=line):
        train(store_of(), config, **where)
    assert model_bytes(uninterrupted("dense")) == before


def test_resume__control_any_part_of_the_state_that_is_lost_shows(
    store_of, uninterrupted, tmp_path
):
    def forget_place(state):
        state.at.place = 0

    def forget_averages(state):
        state.averages.labels[...] = 0

    def forget_step(state):
        state.at.step -= 1

    def forget_seen(state):
        state.averages.labels_seen[...] = 0

    real = begin.load_checkpoint
    for number, forget in enumerate((forget_place, forget_averages, forget_step, forget_seen)):
        run = tmp_path / f"{number}"
        crash_at(store_of(), small(), run, 200)

        def load(*args, forget=forget):
            state = real(*args)
            forget(state)
            return state

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(begin, "load_checkpoint", load)
            train(store_of(), small(), run=run, resume=True)
        assert model_bytes(run) != model_bytes(uninterrupted("dense")), forget.__name__


# When it ends, and with what.


@pytest.mark.parametrize("order", ["blocks", "full"])
@pytest.mark.parametrize("validation", [0.0, 0.1])
@pytest.mark.parametrize("epochs", [1, 4])
def test_train__an_epoch_is_one_step_for_each_training_bag(order, validation, epochs, store_of):
    held_out = len(Holdout.of(validation, N_BAGS).bags)
    model = train(store_of(), small(order=order, validation=validation, epochs=epochs))
    assert model.provenance["steps"] == epochs * (N_BAGS - held_out)


@pytest.mark.parametrize("order", ["blocks", "full", "uniform"])
def test_train__no_step_is_made_on_a_bag_held_out(order, store_of, monkeypatch):
    held_out = set(Holdout.of(0.1, N_BAGS).bags.tolist())
    seen, real = [], loop.BagStream.__iter__

    def watched(self):
        for batch in real(self):
            seen.extend(batch.numbers.tolist())
            yield batch

    monkeypatch.setattr(loop.BagStream, "__iter__", watched)
    train(store_of(), small(order=order))
    assert not set(seen) & held_out
    if order != "uniform":
        assert set(seen) | held_out == set(range(N_BAGS))


def test_train__max_steps_is_exact(store_of):
    for steps in (1, 63, 64, 65, 500):
        assert train(store_of(), small(max_steps=steps)).provenance["steps"] == steps


def with_losses(monkeypatch, losses):
    """Looks at held-out bags find these, one after the other."""
    remaining = iter(losses)
    monkeypatch.setattr(events.RunEvents, "_validation_loss", lambda *_: next(remaining))


def test_early_stop__keeps_the_best_model(store_of, monkeypatch, tmp_path):
    with_losses(monkeypatch, [0.5, 0.3, 0.2, 0.25, 0.2, 0.9])
    model = train(store_of(), small(epochs=100, patience=3), run=tmp_path / "run")
    assert model.provenance["steps"] == 6 * 90
    assert model.provenance["best_step"] == 3 * 90
    monkeypatch.undo()
    at_best = train(store_of(), small(max_steps=270, validation=0.1, validate_every=10**9))
    np.testing.assert_array_equal(model.shared, at_best.shared)
    np.testing.assert_array_equal(model.labels, at_best.labels)


@pytest.mark.parametrize("patience", [1, 4])
def test_early_stop__after_as_many_looks_without_a_lower_loss_as_patience_says(
    patience, store_of, monkeypatch, tmp_path
):
    with_losses(monkeypatch, [0.5, 0.6, 0.4, *([0.4] * 20)] if patience > 1 else [0.5, 0.5])
    train(store_of(), small(epochs=100, patience=patience), run=tmp_path / "run")
    assert len(history(tmp_path / "run")) == (2 if patience == 1 else 3 + patience)


def test_early_stop__patience_goes_on_counting_after_a_resume(store_of, monkeypatch, tmp_path):
    losses = [0.5, 0.6, 0.4, 0.7, 0.7, 0.7, 0.7, 0.7]
    with_losses(monkeypatch, losses)
    config = small(epochs=100, patience=4)
    train(store_of(), config, run=tmp_path / "whole")
    for cut in range(1, 7):
        run = tmp_path / f"{cut}"
        with_losses(monkeypatch, losses)
        train(store_of(), replace(config, max_steps=90 * cut), run=run)
        with_losses(monkeypatch, losses[cut:])
        train(store_of(), replace(config, max_steps=10**9), run=run, resume=True)
        assert history(run) == history(tmp_path / "whole")
        assert_same_model(run, tmp_path / "whole")


def test_validation__of_0_looks_at_nothing_and_returns_the_end(store_of, tmp_path):
    model = train(store_of(), small(validation=0.0), run=tmp_path / "run")
    assert [line[:3] for line in history(tmp_path / "run")] == [
        (step, (step - 1) // N_BAGS, None) for step in range(90, 3 * N_BAGS + 1, 90)
    ]
    assert model.provenance["best_step"] == 0
    assert model.provenance["steps"] == 3 * N_BAGS


def test_validation__the_loss_is_that_of_the_model_which_is_returned(store_of, tmp_path):
    model = train(store_of(), small(), run=tmp_path / "run")
    bags = store_of().read_bags(Holdout.of(0.1, N_BAGS).bags)
    best = min(line[2] for line in history(tmp_path / "run"))
    assert loss_of(model, bags) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("last", [0.1, 0.9])
def test_last_look__the_end_is_looked_at_and_returned_if_it_is_best(last, store_of, monkeypatch):
    steps = []
    with_losses(monkeypatch, [0.5, 0.3, last])
    model = train(store_of(), small(max_steps=200), watch=lambda p: steps.append(p.step))
    assert model.provenance["best_step"] == (200 if last < 0.3 else 180)
    monkeypatch.undo()
    if last < 0.3:
        end = train(store_of(), small(max_steps=200, validation=0.1, validate_every=10**9))
        np.testing.assert_array_equal(model.labels, end.labels)


def test_last_look__leaves_no_trace_in_a_run_that_goes_on(store_of, monkeypatch, tmp_path):
    run = tmp_path / "run"
    # The last looks find losses lower than any other; those of the run that goes on do not.
    with_losses(monkeypatch, [0.5, 0.4, 0.01])
    assert train(store_of(), small(max_steps=200), run=run).provenance["best_step"] == 200
    with_losses(monkeypatch, [0.3, 0.2])
    longer = train(store_of(), small(max_steps=360), run=run, resume=True)
    assert longer.provenance["best_step"] == 360
    assert [line[2] for line in history(run)] == [0.5, 0.4, 0.3, 0.2]


# A store of its own to look at.


def test_validation_store__its_bags_are_looked_at_and_all_others_trained_on(store_of, tmp_path):
    other = store_of(seed=5, n_bags=60, suffix="parquet")
    config = small(validation_store=other.name)
    model = train(store_of(), config, run=tmp_path / "run")
    assert model.provenance["steps"] == 3 * N_BAGS
    assert model.provenance["validation_fingerprint"] == other.fingerprint
    best = min(line[2] for line in history(tmp_path / "run"))
    assert loss_of(model, other.read(0, 60)) == pytest.approx(best, abs=1e-6)
    assert other.name.encode() not in model_bytes(tmp_path / "run")


def test_validation_store__resumes_to_the_same_bytes_from_wherever_it_lies(store_of, tmp_path):
    one, two = store_of(seed=5, n_bags=60), store_of(seed=5, n_bags=60, suffix="parquet")
    train(store_of(), small(validation_store=one.name), run=tmp_path / "whole")
    for crash in (100, 300):
        crash_at(store_of(), small(validation_store=one.name), tmp_path / "run", crash)
    train(store_of(), small(validation_store=two.name), run=tmp_path / "run", resume=True)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
    assert history(tmp_path / "run") == history(tmp_path / "whole")


def test_validation_store__several_are_joined_and_the_share_of_bags_is_bounded(
    store_of, monkeypatch
):
    names = ",".join(store_of(seed=5, n_bags=n).name for n in (60, 40))
    assert plan_run(store_of(), small(validation_store=names)).validation.bags.tolist() == [
        *range(100)
    ]
    monkeypatch.setattr("streammiml.learn.holdout.MOST_BAGS", 20)
    assert 5 < len(plan_run(store_of(), small(validation_store=names)).validation.bags) < 40


def test_validation_store__another_one_than_the_run_began_with_is_refused(store_of, tmp_path):
    one, two = store_of(seed=5, n_bags=60), store_of(seed=6, n_bags=60)
    config = small(validation_store=one.name, max_steps=95)
    train(store_of(), config, run=tmp_path / "run")
    train(store_of(), small(max_steps=100), run=tmp_path / "run", resume=True)
    line = f"begun with a validation store of fingerprint {one.fingerprint}, .*{two.fingerprint}"
    with pytest.raises(StreammimlError, match=line):
        train(store_of(), small(validation_store=two.name), run=tmp_path / "run", resume=True)
    train(store_of(), small(max_steps=95), run=tmp_path / "plain")
    with pytest.raises(StreammimlError, match="begun with a validation store of fingerprint None"):
        train(store_of(), config, run=tmp_path / "plain", resume=True)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (
            {"n_features": 7},
            "has 6 features and the validation store .* 7; use a validation store that was",
        ),
        (
            {"n_labels": 6},
            "has 5 labels and the validation store .* 6; use a validation store that was",
        ),
        ({"sparse": True}, "has dense rows and the validation store .* sparse rows; convert"),
    ],
)
def test_validation_store__that_a_model_could_not_score_is_refused(
    other, line, store_of, tmp_path, monkeypatch
):
    name = store_of(n_bags=80, **other).name
    refused(store_of(), small(validation_store=name), line, tmp_path, monkeypatch)


def test_validation_store__labels_of_other_names_are_refused(tmp_path):
    names = ("a", "b", "c", "d", "e"), ("a", "b", "d", "c", "e")
    stores = [
        write_store(tmp_path / f"{i}.zarr", planted(60), label_names=names_of_store)
        for i, names_of_store in enumerate(names)
    ]
    line = "label 2 is 'c' in .*0.zarr and 'd' in the validation store .*1.zarr"
    refused(stores[0], small(validation_store=stores[1].name), line, tmp_path)


# How often.


@given(
    held_out=st.integers(1, 10**5),
    n_labels=st.integers(1, 2000),
    shared=st.booleans(),
    lift=st.sampled_from(["none", "fourier:100"]),
)
def test_looks__cost_a_tenth_of_the_multiplications_at_most(held_out, n_labels, shared, lift):
    class Shape:
        n_rows, n_bags, sparse, n_features, n_values = 4000, 1000, False, 20, 80_000

    Shape.n_labels = n_labels
    config = TrainConfig(shared_dim=30, subconcepts=4, shared_space=shared, lift=lift)
    width = 121 if lift != "none" else 21
    every = steps_between_looks(config, Shape, width, held_out)
    per_label, before = (4 * 30, width * 30) if shared else (4 * width, 0)
    before += 20 * 100 if lift != "none" else 0
    look = held_out * (before + (n_labels + 1) * per_label)
    steps = every * 4 * (before + 2 * per_label)
    assert look <= 0.1 * steps
    assert every == 1000 or look > 0.0999 * (steps - 4 * (before + 2 * per_label))
    four = steps_between_looks(replace(config, replicas=4), Shape, width, held_out)
    assert four == math.ceil(every / 2)


# The history.


def test_pace__leaves_the_first_call_of_the_kernel_out(store_of, monkeypatch):
    real, ended, moments = Sweeper.sweep, [], []

    def slow_at_first(self, *words):
        if not ended:
            time.sleep(1.0)
        wrong = real(self, *words)
        ended.append(time.monotonic())
        return wrong

    def watch(moment):
        moments.append((moment, time.monotonic() - ended[0] if ended else None))

    monkeypatch.setattr(Sweeper, "sweep", slow_at_first)
    train(store_of(), small(max_steps=400, validation=0.0), watch=watch)
    first = next(moment for moment, _ in moments if moment.step)
    later = [(moment, after) for moment, after in moments if moment.step > first.step]
    assert first.seconds_left is None
    assert later
    # However slow the machine is, the pace is at least that of the time since the first call. With
    # the second that the call itself took, it would be lower.
    second, after = later[0]
    assert second.seconds > 1
    assert second.steps_per_second >= (second.step - first.step) / after - 0.1
    for moment, after in later:
        left = after / (moment.done - first.done) * (1 - moment.done)
        assert moment.seconds_left <= left + 0.001


def test_history__says_where_the_time_went_and_goes_on_counting(store_of, tmp_path):
    run = tmp_path / "run"
    train(store_of(), small(max_steps=400), run=run)
    train(store_of(), small(max_steps=700), run=run, resume=True)
    entries = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    seconds = [entry["seconds"] for entry in entries]
    assert seconds == sorted(seconds)
    for entry in entries:
        parts = {"kernel", "reading", "validation", "checkpoints", "compiling"}
        assert set(entry["time"]) == parts
        assert min(entry["time"].values()) >= 0
        assert entry["time"]["validation"] > 0
        assert sum(entry["time"].values()) <= entry["seconds"] + 0.01
        assert entry["rows_per_second"] > entry["steps_per_second"] > 0
        assert entry["mb_per_second"] > 0
        assert 0 <= entry["share_of_violations"] <= 1
        assert entry["loss"] > 0


def test_history__loss_and_violations_are_those_since_the_line_before(store_of, tmp_path):
    train(store_of(), small(validation=0.0, validate_every=100), run=tmp_path / "fine")
    train(store_of(), small(validation=0.0, validate_every=300), run=tmp_path / "coarse")
    fine, coarse = history(tmp_path / "fine"), history(tmp_path / "coarse")
    for i, line in enumerate(coarse):
        part = fine[3 * i : 3 * i + 3]
        assert line[4] == pytest.approx(np.mean([fine_line[4] for fine_line in part]))
        assert line[5] == pytest.approx(np.mean([fine_line[5] for fine_line in part]))


def test_model__says_what_it_was_made_of_and_nothing_of_where(store_of, tmp_path):
    model = train(store_of(), small(memory="512MiB"), run=tmp_path / "run")
    assert not {"memory", "checkpoint_every"} & set(model.settings)
    assert model.settings["block_bags"] == 8
    assert model.settings["scale"] == "standard"
    assert model.provenance["fingerprint"] == store_of().fingerprint
    assert str(tmp_path).encode() not in model_bytes(tmp_path / "run")


def test_model__min_labels_and_r_follow_from_the_bags(store_of, tmp_path):
    assert train(store_of(), small(max_steps=1)).rule.min_labels == 1
    block = planted(60)
    offsets = block.label_offsets.copy()
    offsets[30:] = offsets[30]
    without = replace(
        block, label_offsets=offsets, label_indices=block.label_indices[: offsets[30]]
    )
    store = write_store(tmp_path / "s.zarr", without)
    assert train(store, small(max_steps=1)).rule.min_labels == 0


# Refusals.


def no_rows(monkeypatch):
    """Whoever reads a row of any store is told off."""

    def read(*_, **__):
        raise AssertionError("a row was read")

    for kind in ("store.BagStore", "views.StoreView", "views.JoinedStore"):
        monkeypatch.setattr(f"streammiml.bags.{kind}.read", read)


def refused(store, config, line, tmp_path, monkeypatch=None):
    if monkeypatch is not None:
        no_rows(monkeypatch)
    with pytest.raises(StreammimlError, match=line) as caught:
        train(store, config, run=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run/settings.toml").exists()
    assert not (tmp_path / "run/model.safetensors").exists()


def unlabelled(n_labels):
    block = planted(50)
    return replace(
        block, label_offsets=np.zeros(51, np.int64), label_indices=np.zeros(0, np.int32)
    ), {"n_labels": n_labels}


@pytest.mark.parametrize("n_labels", [0, 7])
def test_refused__bags_without_labels(n_labels, tmp_path, monkeypatch):
    block, spec_changes = unlabelled(n_labels)
    store = write_store(tmp_path / "s.zarr", block, **spec_changes)
    refused(store, small(), "s.zarr has no labels to learn from", tmp_path, monkeypatch)


def test_refused__a_view_of_no_bags(store_of, tmp_path, monkeypatch):
    line = "view of .* has no bags to learn from"
    refused(store_of().view([]), small(), line, tmp_path, monkeypatch)


def test_refused__a_share_that_holds_out_no_bag(store_of, tmp_path, monkeypatch):
    line = "validation 1e-06 of 300 bags holds out no bag"
    refused(store_of(), small(validation=1e-6), line, tmp_path, monkeypatch)


def test_refused__held_out_bags_that_have_no_order_to_be_right_about(tmp_path, monkeypatch):
    block = planted(100, n_labels=3)
    every = replace(
        block,
        label_offsets=np.arange(101) * 3,
        label_indices=np.tile(np.arange(3, dtype=np.int32), 100),
    )
    store = write_store(tmp_path / "s.zarr", every)
    line = r"none of the \d+ bags held out has both .*--validation 0"
    refused(store, small(), line, tmp_path, monkeypatch)
    monkeypatch.undo()
    train(store, small(validation=0.0))


def one_label(n_bags=60):
    has = np.arange(n_bags) % 2
    block = planted(n_bags)
    rows = block.rows.copy()
    rows[np.repeat(has, np.diff(block.bag_offsets)) == 1] += 3
    indices = np.zeros(int(has.sum()), np.int32)
    return replace(block, rows=rows, label_offsets=from_sizes(has), label_indices=indices)


def test_refused__one_label_has_no_ranking_and_trains_without_validation(tmp_path, monkeypatch):
    store = write_store(tmp_path / "s.zarr", one_label(), n_labels=1)
    refused(store, small(), "s.zarr has one label .*--validation 0", tmp_path, monkeypatch)
    monkeypatch.undo()
    model = train(store, small(validation=0.0, epochs=20))
    assert model.n_labels == 1
    assert np.isfinite(model.shared).all()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scale", ["auto", "standard", "unit"])
def test_refused__features_that_are_all_zero(sparse, scale, tmp_path):
    block = planted(50, sparse=sparse)
    rows = np.zeros((block.bag_offsets[-1], 6), np.float32)
    if sparse:
        rows = replace_rows_by_none(block)
    store = write_store(tmp_path / "s.zarr", replace(block, rows=rows))
    line = "every feature is zero over the .* rows"
    refused(store, small(scale=scale), line, tmp_path)


def replace_rows_by_none(block):
    rows = block.rows
    kind = type(rows)
    return kind(np.zeros_like(rows.offsets), rows.columns[:0], rows.values[:0], rows.n_features)


def test_refused__features_that_never_vary(tmp_path):
    block = planted(50)
    store = write_store(tmp_path / "s.zarr", replace(block, rows=np.full_like(block.rows, 2.5)))
    refused(store, small(), "no feature varies over the .* rows", tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"shared_dim": 10**9},
        {"subconcepts": 10**9},
        {"lift": "fourier:9999999"},
        {"shared_space": False, "lift": "fourier:9999999"},
    ],
    ids=str,
)
def test_refused__a_model_that_does_not_fit_with_the_number_that_would(
    changes, store_of, tmp_path, monkeypatch
):
    line = r"training would hold [\d.]+ [GT]iB \(weights [\d.]+ [GT]iB, .*more than --memory 1GiB; "
    refused(store_of(), small(**changes), line + r"--memory \d+MiB would do", tmp_path, monkeypatch)


def test_refused__a_sparse_store_cannot_be_lifted(store_of, tmp_path):
    line = "lift 'context' needs dense rows, .*; use lift none or context:mean, or convert"
    refused(store_of(sparse=True), small(lift="context"), line, tmp_path)


def test_diverged__names_the_step_and_leaves_no_model(store_of, tmp_path):
    config = small(step_size=1e38, max_norm=1e38, validation=0.0)
    with pytest.raises(StreammimlError, match=r"training diverged at step \d+: .*--step-size than"):
        train(store_of(), config, run=tmp_path / "run")
    assert not (tmp_path / "run/model.safetensors").exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"seed": 5}, "was begun with seed 0, not 5"),
        ({"order": "full"}, "was begun with order 'blocks', not 'full'"),
        ({"mix_blocks": 7}, "was begun with mix_blocks 6, not 7"),
        ({"validate_every": 91}, "was begun with validate_every 90, not 91"),
        ({"min_labels": 2}, "was begun with min_labels None, not 2"),
        ({"step_size": 0.5}, r"was begun with step_size 0\.02, not 0\.5"),
    ],
)
def test_resume__a_setting_that_contradicts_is_refused_by_name(
    changes, line, store_of, uninterrupted
):
    before = model_bytes(uninterrupted("dense"))
    with pytest.raises(StreammimlError, match=line):
        train(store_of(), small(**changes), run=uninterrupted("dense"), resume=True)
    assert model_bytes(uninterrupted("dense")) == before


def test_resume__on_another_store_is_refused_by_fingerprint(store_of, uninterrupted):
    other = store_of(seed=1)
    line = f"fingerprint {store_of().fingerprint}, .* has {other.fingerprint}"
    with pytest.raises(StreammimlError, match=line):
        train(other, small(), run=uninterrupted("dense"), resume=True)


def test_resume__with_too_little_memory_for_the_recorded_buffer_is_refused(store_of, tmp_path):
    store = store_of(n_bags=400, n_features=600)
    config = small(block_bags=None, mix_blocks=None, max_steps=3)
    train(store, config, run=tmp_path / "run")
    with pytest.raises(StreammimlError, match=r"more than --memory 28MiB; .*--memory \d+MiB"):
        train(store, replace(config, memory="28MiB"), run=tmp_path / "run", resume=True)


@pytest.mark.parametrize("content", ["colour = 3", "memory = 3.5", "scale = 1", "seed = 'x'"])
def test_resume__settings_that_were_edited_are_one_line(content, store_of, tmp_path):
    train(store_of(), small(max_steps=3), run=tmp_path / "run")
    path = tmp_path / "run/settings.toml"
    name = content.split()[0]
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{name} ")]
    path.write_text("\n".join([*lines, content]))
    with pytest.raises(StreammimlError, match=name):
        train(store_of(), small(), run=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 2),
        ("shared_dim", 6),
        ("subconcepts", 3),
        ("step_size", 0.5),
        ("decay", 0.5),
        ("max_norm", 0.5),
        ("scale", "none"),
        ("lift", "fourier:7"),
        ("average", False),
        ("shared_space", False),
        ("order", "full"),
        ("validation", 0.3),
    ],
)
def test_resume__checkpoints_of_another_run_are_refused(name, value, store_of, tmp_path):
    for run, changes in (("ours", {}), ("theirs", {name: value})):
        train(store_of(), small(max_steps=100, **changes), run=tmp_path / run)
    before = model_bytes(tmp_path / "ours")
    for path in (tmp_path / "theirs/checkpoints").iterdir():
        path.replace(tmp_path / "ours/checkpoints" / path.name)
    match = rf"step-0+100\.safetensors belongs to another run: its {name} is "
    with pytest.raises(StreammimlError, match=match):
        train(store_of(), small(max_steps=200), run=tmp_path / "ours", resume=True)
    assert model_bytes(tmp_path / "ours") == before
