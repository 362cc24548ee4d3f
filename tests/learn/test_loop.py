"""The loop of a run: it ends where the settings say, and a signal saves the state first."""

import signal

import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import DivergedError
from streammiml.learn.begin import begin, settle
from streammiml.learn.checkpoint import has_checkpoint
from streammiml.learn.events import last_epoch
from streammiml.learn.loop import Loop
from streammiml.learn.run_folder import RunFolder
from streammiml.learn.stop_signals import Stopped, StopSignals
from tests.planted import planted

BAGS = MemoryBags(planted(60), n_labels=5)


def ready(folder=None, **settings):
    config = TrainConfig(**{"epochs": 3, "validation": 0.0, "shared_dim": 4, **settings})
    return begin(settle(BAGS, config, folder))


def test_loop__takes_one_step_for_each_bag_of_each_epoch():
    run = ready()
    Loop(run, lambda _: None, StopSignals()).run()
    assert run.state.at.step == 180
    assert run.state.at.epoch == 3


def test_loop__ends_after_max_steps_and_tells_the_share_that_is_done():
    run, shares = ready(max_steps=100), []
    Loop(run, lambda progress: shares.append(progress.done), StopSignals()).run()
    assert run.state.at.step == 100
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ({"max_steps": 100}, 2),
        ({"max_steps": 120}, 2),
        ({"max_steps": 121}, 3),
        ({"max_steps": 10_000}, 3),
        ({"max_steps": 1}, 1),
        ({"max_steps": 50, "validation": 0.5}, 2),
    ],
)
def test_loop__tells_the_epoch_in_which_max_steps_ends_the_run(settings, epochs):
    run, told = ready(**settings), []
    Loop(run, lambda progress: told.append((progress.epoch, progress.epochs)), StopSignals()).run()
    assert {n_epochs for _, n_epochs in told} == {epochs}
    assert max(epoch for epoch, _ in told) in (epochs - 1, epochs)


def test_last_epoch__of_replicas_is_by_the_share_of_each():
    config = TrainConfig(max_steps=100, replicas=3, epochs=50)
    assert last_epoch(config, 60.0) == 5
    assert last_epoch(TrainConfig(max_steps=100, epochs=50), 60.0) == 2
    assert last_epoch(TrainConfig(epochs=50), 60.0) == 50


def test_loop__a_run_that_is_done_takes_no_step():
    run = ready()
    Loop(run, lambda _: None, StopSignals()).run()
    before = run.state.weights.shared.tobytes()
    Loop(run, lambda _: None, StopSignals()).run()
    assert run.state.at.step == 180
    assert run.state.weights.shared.tobytes() == before


def test_loop__a_signal_saves_a_checkpoint_and_stops(tmp_path):
    stop = StopSignals()

    def signalled(_):
        stop.number = signal.SIGTERM

    with RunFolder(tmp_path / "run", resume=False) as folder:
        run = ready(folder)
        with pytest.raises(Stopped, match="stopped at step "):
            Loop(run, signalled, stop).run()
        assert has_checkpoint(folder.checkpoints)
    assert run.state.at.step < 180


def test_loop__a_divergence_names_the_step():
    run = ready()
    run.state.weights.labels[:] = float("nan")
    with pytest.raises(DivergedError, match="training diverged at step 0: a score or weight"):
        Loop(run, lambda _: None, StopSignals()).run()
