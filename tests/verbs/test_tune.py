"""tune as a user runs it: a table on stdout, one line and 2 for bad input."""

import json
import re
import signal

import pytest

from streammiml.learn.train_display import TrainDisplay
from streammiml.verbs.main import run
from tests.planted import planted
from tests.stores import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "x.zarr"
    return write_store(path, planted(60), n_labels=5).name


def words(store, out, tmp_path, *more):
    grid = tmp_path / "grid.toml"
    grid.write_text("subconcepts = [1, 2]\nstep_size = [0.01, 0.1]\n")
    limits = ["--max-steps", "120", "--shared-dim", "8", "--validation", "0.2"]
    return ["tune", store, str(out), "--grid", str(grid), *limits, *more]


@pytest.mark.slow
def test_tune__prints_a_table_and_writes_settings_that_train_takes(store, tmp_path, capsys):
    out = tmp_path / "search"
    assert run(words(store, out, tmp_path, "--workers", "1", "--train")) == 0
    text, err = capsys.readouterr()
    assert re.search(r"^ *subconcepts +step_size +folds +ranking loss", text, re.M)
    assert re.search(r"^ +\d +0\.\d+ +3 +0\.\d{4} ± 0\.\d{4} +0\.\d{4} +0\.\d{4}", text, re.M)
    assert re.search(r"^[\d,]+ steps, \d+% of the steps that the full grid may take$", text, re.M)
    assert "rung 4 of 4: 4 of 4 trials, best ranking loss" in err
    assert re.search(r"^epoch \d+/\d+, step [\d,]+, [\d,]+ steps/s", err, re.M)
    assert re.search(r"^time: .*kernel \d+%, reading \d+%", err, re.M)
    assert (out / "winner" / "model.safetensors").exists()
    assert (out / "winner" / "origin.json").exists()
    assert run(words(store, out, tmp_path, "--workers", "1", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["n_settings"] == 4
    again = ["train", store, str(tmp_path / "run"), "--config", str(out / "settings.toml")]
    assert run(again) == 0


def test_tune__dry_run_prints_what_the_search_would_take(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("streammiml.learn.dry_run.STEP_SECONDS", 0.01)
    out = tmp_path / "search"
    assert run(words(store, out, tmp_path, "--dry-run", "--workers", "2")) == 0
    text = capsys.readouterr().out
    assert re.search(r"^settings +4, on 3 folds$", text, re.M)
    assert re.search(r"^trials +\d+, 2 at the same time$", text, re.M)
    assert re.search(r"^steps, at most +[\d,]+, \d+% of the full grid$", text, re.M)
    assert re.search(r"^memory, each trial +[\d.]+ \w+$", text, re.M)
    assert re.search(r"^time, at most about +.* on one core, without compiling", text, re.M)
    assert run(words(store, out, tmp_path, "--dry-run", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["n_settings"] == 4
    assert not out.exists()


@pytest.mark.slow
def test_tune__a_signal_while_the_winner_is_trained_is_told_and_gone_on_after(
    store, tmp_path, capsys, monkeypatch
):
    out, more = tmp_path / "search", ("--workers", "1", "--train")
    with monkeypatch.context() as patch:
        patch.setattr(TrainDisplay, "__call__", lambda *_: signal.raise_signal(signal.SIGINT))
        assert run(words(store, out, tmp_path, *more)) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"streammiml: stopped at step \d+ of the winner; the same .* continues", last
    )
    assert not (out / "winner" / "model.safetensors").exists()
    assert run(["evaluate", str(out), store]) == 2
    message = f"{out} is a search by tune without a model; tune --train makes {out / 'winner'}"
    assert message in capsys.readouterr().err
    assert run(words(store, out, tmp_path, *more)) == 0
    capsys.readouterr()
    assert run(["evaluate", str(out), store]) == 2
    assert f"{out} is a search by tune; its model is in {out / 'winner'}" in capsys.readouterr().err
    assert run(["evaluate", str(out / "winner"), store]) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--folds", "61"],
            "60 bags cannot be cut into 61 folds; --folds 60 is the largest number",
        ),
        (
            ["--threads", "2"],
            "each trial uses one thread; --workers sets how many trials run at a time",
        ),
        (["--scheduler", "nowhere"], "no Dask scheduler answers at nowhere"),
        (["--grid", "huge"], "no grid is called 'huge'; known: "),
    ],
)
def test_tune__bad_options_get_one_line_and_exit_code_2(store, tmp_path, more, message, capsys):
    limits = ["--max-steps", "120", "--validation", "0.2"]
    assert run(["tune", store, str(tmp_path / "out"), *limits, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "\n" not in err.strip()
    assert not (tmp_path / "out").exists()


def test_tune__needs_a_store_and_a_folder(store, capsys):
    assert run(["tune", store]) == 2
    assert "tune needs a store and a folder for the search" in capsys.readouterr().err
