"""Progress of a run: the history keeps what is measured and not what is only shown."""

from dataclasses import replace

from streammiml.learn.progress import RestartsWatch, TrainProgress

NAMES = [
    *("epoch", "step", "seconds", "steps_per_second", "rows_per_second", "mb_per_second"),
    *("loss", "share_of_violations", "time", "validation_loss", "best_loss"),
]


def made_progress(replicas):
    return TrainProgress(
        epoch=1, step=20, seconds=2.0, steps_per_second=10.0, rows_per_second=30.0,
        mb_per_second=0.1, loss=0.5, share_of_violations=0.25, time={"kernel": 1.0},
        validation_loss=None, best_loss=0.2, steps_here=20, is_line=True, epochs=3, mixing="all",
        replicas=replicas, rounds=4, rounds_here=9, moved_mb=0.5, stopped_early=False, done=0.5,
        seconds_left=2.0, total={"all": 2.0},
    )  # fmt: skip


def test_line__keeps_what_is_measured():
    assert [*made_progress(1).line()] == NAMES


def test_line__of_replicas_has_their_rounds_and_what_they_moved():
    assert [*made_progress(2).line()] == [*NAMES, "rounds", "moved_mb"]


def test_restarts_watch__gives_the_progress_of_the_run():
    seen = []
    watch, one = RestartsWatch(seen.append, 4), made_progress(1)
    watch.of(0)(one)
    watch.of(0)(replace(one, done=1.0, seconds_left=0.0, total={"all": 4.0}))
    watch.of(1)(replace(one, seconds_left=None))
    watch.of(1)(one)
    assert [(run.restart, run.restarts) for run in seen] == [(0, 4), (0, 4), (1, 4), (1, 4)]
    assert [run.done for run in seen] == [0.125, 0.25, 0.375, 0.375]
    assert [run.seconds_left for run in seen] == [14.0, 12.0, None, 10.0]
    assert [run.total["all"] for run in seen] == [2.0, 4.0, 6.0, 6.0]
    assert [run.steps_here for run in seen] == [20, 20, 40, 40]
    assert [*seen[-1].line()] == NAMES


def test_restarts_watch__of_one_restart_changes_nothing():
    seen, one = [], made_progress(2)
    RestartsWatch(seen.append, 1).of(0)(one)
    assert seen == [one]
