"""Going on from a model: better than from nothing, new labels at the end, to the same bytes."""

from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.block import BagBlock
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.dry_run import dry_run
from streammiml.learn.train import train
from streammiml.model import Model
from tests.planted import planted
from tests.stores import write_store

SMALL = {
    "shared_dim": 8, "subconcepts": 2, "block_bags": 8, "mix_blocks": 6, "epochs": 2,
    "validation": 0.1, "validate_every": 90, "checkpoint_every": "70",
}  # fmt: skip
NAMES = ("a", "b", "c", "d", "e")


def config(**changes):
    return TrainConfig(**{**SMALL, **changes})


def first_labels(block, n):
    """The same bags, of which only those labels are known that come first."""
    kept = [block.labels_of(i)[block.labels_of(i) < n] for i in range(len(block))]
    bags = [block.rows_of(i) for i in range(len(block))]
    return BagBlock.from_bags(bags, kept)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("new") / "new.zarr"
    return write_store(path, planted(), label_names=NAMES)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Trained on the first three labels of other bags."""
    folder = tmp_path_factory.mktemp("old")
    block = first_labels(planted(seed=0), 3)
    old = write_store(folder / "old.zarr", block, n_labels=3, label_names=NAMES[:3])
    model = train(old, config(epochs=15, lift="fourier:5"))
    model.save(folder / "model.safetensors")
    return folder / "model.safetensors"


def test_start__weights_scaling_and_lift_are_those_of_the_model(store, model):
    old = Model.load(model)
    # A look at step 0 only, and a step so small that nothing moves.
    new = train(store, config(start=str(model), max_steps=1, step_size=1e-30, validation=0.0))
    np.testing.assert_array_equal(new.shared, old.shared)
    np.testing.assert_array_equal(new.labels[:3], old.labels[:3])
    np.testing.assert_array_equal(new.labels[-1], old.labels[-1])
    norms = np.linalg.norm(new.labels[3:5], axis=-1) / np.sqrt(8 / 12)
    assert ((norms > 0.2) & (norms < 2.5)).all()
    for ours, theirs in zip(new.lift, old.lift, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert new.label_names == NAMES
    assert new.settings["scale"] == old.settings["scale"]
    assert new.provenance["start_fingerprint"] == old.fingerprint


def test_start__gets_further_in_the_same_steps_than_from_nothing(model, tmp_path):
    store = write_store(tmp_path / "s.zarr", first_labels(planted(), 3), n_labels=3)

    def best(**changes):
        losses = []
        train(
            store,
            config(max_steps=180, lift="fourier:5", **changes),
            watch=lambda p: losses.append(p.best_loss),
        )
        return losses[-1]

    assert best(start=str(model)) < 0.5 * best(init="random")


def test_start__with_validation_never_ends_worse_than_it_began(model, tmp_path):
    same = first_labels(planted(seed=0), 3)
    old = write_store(tmp_path / "old.zarr", same, n_labels=3)
    seen = []
    wild = config(start=str(model), step_size=5.0, max_steps=200)
    train(old, wild, watch=lambda p: seen.append((p.step, p.validation_loss, p.best_loss)))
    first = [loss for step, loss, _ in seen if step == 0 and loss is not None]
    assert len(first) == 1
    assert seen[-1][2] <= first[0]


def test_start__a_model_and_its_path_give_the_same_bytes(store, model, tmp_path):
    train(store, config(start=str(model)), run=tmp_path / "path")
    train(store, config(), start=Model.load(model), run=tmp_path / "model")
    one, two = (tmp_path / name / "model.safetensors" for name in ("path", "model"))
    assert one.read_bytes() == two.read_bytes()
    assert str(model).encode() not in one.read_bytes()


class Crash(Exception):
    pass


@pytest.mark.parametrize("crashes", [(1,), (0, 100), (75, 200, 300)])
def test_start__resumes_to_the_same_bytes_without_the_model(crashes, store, model, tmp_path):
    train(store, config(start=str(model)), run=tmp_path / "whole")
    moved = tmp_path / "start.safetensors"
    moved.write_bytes(model.read_bytes())
    for crash in crashes:

        def watch(progress, crash=crash):
            if progress.step >= crash:
                raise Crash

        with pytest.raises(Crash):
            train(store, config(start=str(moved)), run=tmp_path / "run", resume=True, watch=watch)
    moved.unlink()
    train(store, config(), run=tmp_path / "run", resume=True)
    one, two = (tmp_path / name / "model.safetensors" for name in ("run", "whole"))
    assert one.read_bytes() == two.read_bytes()
    lines = [
        (tmp_path / name / "history.jsonl").read_text().count("\n") for name in ("run", "whole")
    ]
    assert lines[0] == lines[1]


def test_start__before_the_first_checkpoint_the_model_is_needed_again(store, model, tmp_path):
    run, given = tmp_path / "run", Model.load(model)
    train(store, config(max_steps=5), start=given, run=run)
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(StreammimlError, match="stopped before its first checkpoint and needs"):
        train(store, config(), run=run, resume=True)
    train(store, config(max_steps=5), start=given, run=run, resume=True)


def test_start__another_model_than_the_run_began_from_is_refused(store, model, tmp_path):
    given = Model.load(model)
    other = replace(given, labels=given.labels + 1)
    train(store, config(max_steps=5), start=given, run=tmp_path / "run")
    line = f"begun from a model of fingerprint {given.fingerprint}, not {other.fingerprint}"
    with pytest.raises(StreammimlError, match=line):
        train(store, config(), start=other, run=tmp_path / "run", resume=True)
    train(store, config(max_steps=5), run=tmp_path / "plain")
    with pytest.raises(StreammimlError, match="begun from a model of fingerprint None, not"):
        train(store, config(), start=other, run=tmp_path / "plain", resume=True)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"shared_dim": 9}, "the model to start from has shared_dim 8, not 9; leave it out"),
        ({"subconcepts": 3}, "the model to start from has subconcepts 2, not 3"),
        ({"shared_space": False}, "the model to start from has shared_space True, not False"),
        ({"scale": "unit"}, "the model to start from has scale 'standard', not 'unit'"),
        ({"lift": "context"}, "the model to start from has lift 'fourier:5:0.5', not 'context'"),
        ({"start": "no.safetensors"}, "no.safetensors does not exist; a model file is needed"),
    ],
)
def test_start__settings_that_the_model_contradicts_are_named(changes, line, store, model):
    with pytest.raises(StreammimlError, match=line):
        train(store, config(**{"start": str(model), **changes}))


def test_start__is_what_a_dry_run_goes_by_too(store, model):
    estimate = dry_run(store, TrainConfig(start=str(model)))
    plain = dry_run(store, TrainConfig(shared_dim=8, subconcepts=2, lift="fourier:5", restarts=1))
    assert estimate.memory == plain.memory
    with pytest.raises(StreammimlError, match="the model to start from has shared_dim 8, not 9"):
        dry_run(store, config(start=str(model), shared_dim=9))


@pytest.mark.parametrize(
    ("kind", "spec_changes", "line"),
    [
        ({"n_features": 7}, {}, "takes rows of 6 features and .*s.zarr has 7; use a store made"),
        ({"n_labels": 2}, {}, "has 3 labels and .*s.zarr has 2; its labels must be those"),
        ({}, {"label_names": ("a", "c", "b", "d", "e")}, "label 1 is 'b' in the model .* and 'c'"),
        ({"sparse": True}, {}, "was trained on dense rows and .*s.zarr has sparse rows; convert"),
    ],
)
def test_start__stores_that_do_not_follow_the_model_are_refused(
    kind, spec_changes, line, model, tmp_path
):
    store = write_store(tmp_path / "s.zarr", planted(60, **kind), **spec_changes)
    with pytest.raises(StreammimlError, match=line):
        train(store, config(start=str(model)))


def test_start__without_a_shared_space_and_of_sparse_rows(tmp_path):
    for changes in ({"shared_space": False}, {"average": False}):
        old = write_store(tmp_path / f"{len(changes)}{changes}.zarr", planted(80, sparse=True))
        begun = train(old, config(**changes))
        again = train(old, config(validation=0.0), start=begun)
        assert again.has_shared_space == begun.has_shared_space
        assert np.isfinite(again.labels).all()
