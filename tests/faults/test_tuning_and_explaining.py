"""kill −9 in tune and explain, at changes they make and at random: run again, the same bytes."""

import json
import random
import shutil
import time

import pytest

from streammiml.bags.store import open_store
from streammiml.config import TrainConfig
from streammiml.learn.train import train
from tests.faults.killing import ChildOwner
from tests.planted import planted
from tests.stores import content, scratch, write_store

VERBS = ("tune", "explain")
NOT_COMPARED = {"history.jsonl", "origin.json", "checkpoints", "lock", "_lock"}
"""Files and folders that hold times, memory or a process number."""


class Working(ChildOwner):
    """A process that tunes and explains in children of its own, and kills them where it is told."""

    def __init__(self, folder):
        self.folder = folder
        store = write_store(folder / "x.zarr", planted(40), n_labels=5).name
        model = folder / "model.safetensors"
        config = TrainConfig(shared_dim=8, epochs=2, preset="plain", init="random")
        train(open_store(store), config).save(model)
        words = ("tests.faults.folder_child", folder / "tally", str(model), store)
        super().__init__(*words)

    def __call__(self, verb, out, *, at=0, after=0.0):
        """Run a verb; die before the n-th change, or after seconds. Whether it was killed."""
        return self._was_killed(verb=verb, out=str(out), at=at, after=after)


@pytest.fixture(scope="module")
def working():
    with scratch() as folder, Working(folder) as working:
        yield working


@pytest.fixture(scope="module")
def undisturbed(working):
    """What each verb writes if nothing kills it, how many changes it makes, and its seconds."""
    results = {}
    for verb in VERBS:
        out = working.folder / f"undisturbed-{verb}"
        assert not working(verb, out)
        changes = working.changes
        # The first run compiles.
        begun = time.monotonic()
        assert not working(verb, working.folder / f"again-{verb}")
        results[verb] = files(out), changes, time.monotonic() - begun
    return results


def files(out):
    """Hashes of the files that must be the same."""
    hashes = content(out).items()
    return {name: value for name, value in hashes if not {*name.split("/")} & NOT_COMPARED}


def kill_and_go_on(working, verb, want, **where):
    out = working.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    killed = working(verb, out, **where)
    assert not working(verb, out)
    assert files(out) == want
    return killed


@pytest.mark.parametrize("verb", VERBS)
def test_folder__killed_at_some_changes_ends_with_the_same_bytes(working, undisturbed, verb):
    want, changes, _ = undisturbed[verb]
    assert changes > 40
    for at in (1, 5, *range(9, changes, changes // 4), changes - 1):
        assert kill_and_go_on(working, verb, want, at=at)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_folder__killed_at_many_changes_ends_with_the_same_bytes(working, undisturbed, verb):
    want, changes, _ = undisturbed[verb]
    for at in range(2, changes, {"tune": 5, "explain": 2}[verb]):
        assert kill_and_go_on(working, verb, want, at=at)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_folder__killed_at_random_ends_with_the_same_bytes(working, undisturbed, verb):
    draw = random.Random(0)
    want, _, seconds = undisturbed[verb]
    killed = [
        kill_and_go_on(working, verb, want, after=seconds * draw.uniform(0.02, 0.8))
        for _ in range(20)
    ]
    assert any(killed)


def test_control__a_trial_that_changed_between_two_runs_shows(working, undisturbed):
    want, changes, _ = undisturbed["tune"]
    out = working.folder / "changed"
    assert working("tune", out, at=changes - 1)
    trial = sorted((out / "trials").iterdir())[0]
    record = json.loads(trial.read_text())
    record["figures"]["ranking_loss"] = 0.0
    trial.write_text(json.dumps(record))
    assert not working("tune", out)
    assert files(out)["table.json"] != want["table.json"]
