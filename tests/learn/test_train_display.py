"""Progress of runs: one line that is written over on a terminal, plain lines elsewhere."""

import os
import pty
import re
import subprocess
import sys

from streammiml._base import display as displays
from streammiml.config import TrainConfig
from streammiml.learn.progress import ChoiceProgress, TrainProgress
from streammiml.learn.train import train
from streammiml.learn.train_display import ChoiceDisplay, RunDisplay, TrainDisplay
from tests.planted import planted
from tests.stores import write_store


def moment(**changes):
    usual = {
        "epoch": 3, "step": 12_345, "seconds": 9.0, "steps_per_second": 1000.0,
        "rows_per_second": 9000.0, "mb_per_second": 42.0, "loss": 0.7, "share_of_violations": 0.25,
        "time": {"kernel": 1.0}, "validation_loss": 0.0625, "best_loss": 0.05, "is_line": True,
        "steps_here": 300, "replicas": 1, "rounds": 0, "rounds_here": 0, "moved_mb": 0.0,
        "epochs": 10, "mixing": "bags are mixed", "stopped_early": False, "done": 0.3,
        "seconds_left": 3600.0 * 4,
        "total": {"kernel": 6, "reading": 1, "validation": 2, "checkpoints": 0, "all": 10},
    }  # fmt: skip
    return TrainProgress(**{**usual, **changes})


def trial(**changes):
    usual = {
        "setting": "lift none, subconcepts 5", "trial": 2, "n_trials": 15, "fold": 1, "n_folds": 3,
        "loss": 0.0625, "done": 0.25, "seconds_left": 12.0,
    }  # fmt: skip
    return ChoiceProgress(**{**usual, **changes})


def test_choice__prints_trial_fold_loss_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr(displays, "SHOW_SECONDS", 0.0)
    with ChoiceDisplay() as show:
        show(trial(seconds_left=None))
        show(trial())
        show(trial(loss=None))
        show(trial(trial=3, n_folds=1, loss=None))
        show.end()
    lines = capsys.readouterr().err.splitlines()
    first = "choosing, trial 2 of 15, lift none, subconcepts 5, fold 1 of 3, ranking loss 0.0625, "
    assert lines[:2] == [first + "25% done, 12 s left"] * 2
    assert lines[2] == "choosing, trial 3 of 15, lift none, subconcepts 5, 25% done, 12 s left"


def test_choice__of_a_calibration_names_the_fold_and_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(displays, "SHOW_SECONDS", 0.0)
    with RunDisplay() as show:
        show.watch_choice(trial())
        show.watch(moment())
        show.watch_choice(trial(stage="calibrating", setting="", fold=2, loss=None))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "calibrating, fold 2 of 3, 25% done, 12 s left"


def test_train__shows_its_trials_its_steps_and_its_calibration(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(displays, "SHOW_SECONDS", 0.0)
    store = write_store(tmp_path / "s.zarr", planted(60))
    seen = []
    config = TrainConfig(
        preset="plain", calibrate="platt", validation=0, epochs=4, shared_dim=8, subconcepts=2
    )
    train(store, config, progress=True, watch=seen.append, watch_choice=seen.append)
    out, err = capsys.readouterr()
    assert not out
    assert re.search(r"epoch \d/4, step [\d,]+, ", err)
    assert "calibrating, fold 3 of 3, " in err
    assert re.search(r"^time: \d+ s; kernel", err, re.M)
    stages = [progress.stage for progress in seen if isinstance(progress, ChoiceProgress)]
    assert set(stages) == {"calibrating"}
    assert any(isinstance(progress, TrainProgress) for progress in seen)
    train(store, config)
    assert "epoch" not in capsys.readouterr().err


def test_show__elsewhere_than_on_a_terminal_prints_plain_lines(capsys):
    with TrainDisplay() as show:
        show(moment())
        show(moment(step=12_400, validation_loss=None, is_line=False))
        show(moment(step=13_000, validation_loss=None, done=1.0))
    lines = capsys.readouterr().err.splitlines()
    words = r"epoch 4/10, step 12,345, 1,000 steps/s, 42 MB/s, \S+ \S+ held, violations 0\.25, "
    assert re.fullmatch(words + r"ranking loss 0\.0625, 4\.0 h left", lines[1])
    assert lines[0] == "bags are mixed"
    # What was shown just now is not shown again; a line of the history always is.
    assert len(lines) == 3
    assert lines[2].startswith("epoch 4/10, step 13,000")
    assert "left" not in lines[2]
    assert "ranking loss 0.0625" in lines[2]
    spent = "time: 10 s; kernel 60%, reading 10%, validation 20%, checkpoints 0%"
    assert show.summary() == [spent]
    show(moment(stopped_early=True))
    early = "stopped early: no lower ranking loss in as many looks as --patience allows; "
    assert show.summary() == [early + "--extend continues the run", spent]


def test_show__tells_of_replicas_and_the_time_that_joins_them(capsys):
    with TrainDisplay() as show:
        spent = {"kernel": 6, "reducing": 1, "waiting": 0.5, "moving": 2, "all": 10}
        show(moment(replicas=8, rounds_here=1234, total=spent))
    line = capsys.readouterr().err.splitlines()[-1]
    assert "step 12,345, 1,234 rounds of 8 replicas, 1,000 steps/s" in line
    assert "time: reducing 10%, waiting 5%, moving 20%, ranking loss" in line


def test_show__names_the_restart_and_forgets_the_loss_of_the_last(capsys):
    with TrainDisplay() as show:
        show(moment(restarts=5, stopped_early=True))
        show(moment(restarts=5, restart=1, validation_loss=None))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].startswith("restart 1/5, epoch 4/10, step 12,345, ")
    assert lines[2].startswith("restart 2/5, epoch 4/10, step 12,345, ")
    assert "ranking loss" in lines[1]
    assert "ranking loss" not in lines[2]
    assert show.summary()[0].startswith("stopped early")


def test_show__passes_over_moments_before_there_is_a_pace(capsys):
    with TrainDisplay() as show:
        show._shown_at -= 60
        show(moment(step=64, seconds_left=None, is_line=False))
        assert capsys.readouterr().err.splitlines() == ["bags are mixed"]
        show(moment(step=200, seconds_left=3.0, is_line=False))
    assert "step 200, " in capsys.readouterr().err


def test_summary__is_empty_where_there_was_nothing_to_do():
    with TrainDisplay() as show:
        assert (show.summary(), show.has_trained) == ([], False)
        show(moment(steps_here=0))
        assert (show.summary(), show.has_trained) == ([], False)
        show(moment(steps_here=1))
        assert show.has_trained


def test_summary__names_compiling_where_it_took_time():
    total = {"kernel": 6, "reading": 1, "validation": 2, "checkpoints": 0}
    show = TrainDisplay()
    show(moment(total={**total, "compiling": 5, "all": 20}))
    assert show.summary()[0].endswith("checkpoints 0%, compiling 25%")
    show(moment(total={**total, "compiling": 0.01, "all": 20}))
    assert show.summary()[0].endswith("checkpoints 0%")


def test_show__on_a_terminal_is_one_line_that_goes_away(tmp_path):
    store = tmp_path / "s.zarr"
    write_store(store, planted())
    ours, theirs = pty.openpty()
    words = ["train", store, tmp_path / "run", "--epochs=20", "--validate-every=200"]
    words += ["--validation=0.1"]
    with subprocess.Popen(
        [sys.executable, "-m", "streammiml", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "160", "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # What a terminal says when the other side has gone.
                break
            if not part:
                break
            shown += part
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, shown
    text = shown.decode()
    assert "bags are drawn from" in text
    assert text.count("ranking loss") >= 3
    assert re.search(r"epoch \d+/20, step [\d,]+, [\d,]+ steps/s, .* held, violations", text)
    # Each line is erased before the next is written, so that lines do not pile up.
    assert text.count("\x1b[2K") >= 3
    assert re.search(r"time: .*kernel \d+%, reading \d+%, validation \d+%", text)
    assert b"Model(" in out


def test_choice__shows_no_time_left_before_it_can_be_told(capsys, monkeypatch):
    monkeypatch.setattr(displays, "SHOW_SECONDS", 0.0)
    with ChoiceDisplay() as show:
        show(trial(done=0.01, seconds_left=8000.0))
        show.end()
    line = capsys.readouterr().err.splitlines()[0]
    assert line.endswith("1% done")
