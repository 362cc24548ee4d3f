"""The loop of a run: it ends where the settings say, and a signal saves the state first."""

import signal

import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import DivergedError
from streammiml.learn.begin import begin, settle
from streammiml.learn.checkpoint import has_checkpoint
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
