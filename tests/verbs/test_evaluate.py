"""evaluate as a user runs it: figures on stdout, one line and 2 for bad input."""

import json
import os
import re
import subprocess
import sys

import pytest

import streammiml as sm
from streammiml.verbs.evaluate import LABELS_SHOWN, readable
from streammiml.verbs.main import run
from tests.verbs.output import printed


def test_evaluate__json_is_what_the_library_returns(model, tiny, capsys):
    assert run(["evaluate", str(model.parent), str(tiny.path), "--json"]) == 0
    out, err = printed(capsys)
    assert json.loads(out) == sm.evaluate(model, tiny.path)
    assert err == ""


def test_evaluate__is_readable_too(model, tiny, capsys):
    assert run(["evaluate", str(model), str(tiny.path)]) == 0
    out = printed(capsys)[0]
    assert re.search(r"^n bags +12$", out, re.M)
    assert re.search(r"^ranking_loss +0\.\d{4} ± 0\.\d{4} ↓$", out, re.M)
    assert re.search(r"^macro_f1 +0\.\d{4} ± 0\.\d{4} ↑$", out, re.M)
    assert re.search(r"^macro_auc +0\.\d{4} +↑$", out, re.M)
    assert re.search(
        r"^label +support +predicted +precision +recall +f1 +auc +average_pr", out, re.M
    )
    shares = r"( +\d\.\d{4}){5}"
    assert re.search(rf"^sea +\d+ +\d+{shares}$", out, re.M)


def test_evaluate__only_the_metrics_asked_for(model, tiny, capsys):
    words = ["evaluate", str(model), str(tiny.path), "--json", "--metric", "coverage"]
    assert run([*words, "--metric", "ndcg_at_2"]) == 0
    figures = json.loads(printed(capsys)[0])
    assert {"coverage", "ndcg_at_2"} <= set(figures)
    assert "one_error" not in figures


ROW = {"support": 1, "predicted": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
ROW |= {"auc": 0.25, "average_precision": 0.125}


def test_readable__shows_undefined_figures_and_the_first_labels_only():
    row = ROW
    table = [{"label": i, **row} for i in range(LABELS_SHOWN + 5)]
    figures = {"key_instance_accuracy": None, "ndcg_at_7": 0.5, "per_label": table}
    lines = list(readable({**figures, "standard_errors": {}}))
    assert lines[0].split() == ["key_instance_accuracy", "undefined", "↑"]
    assert lines[1].split() == ["ndcg_at_7", "0.5000"]
    assert lines[-1] == f"… {LABELS_SHOWN + 5} labels in all; --json has every one"
    assert len(lines) == LABELS_SHOWN + 5


def test_readable__shows_names_whole_however_long():
    row = ROW
    names = ["sea", "a label " * 20]
    table = [{"label": i, **row, "name": name} for i, name in enumerate(names)]
    *_, head, sea, long = readable({"per_label": table, "standard_errors": {}})
    assert long.startswith(names[1])
    assert len(head) == len(sea) == len(long)


def test_readable__shows_figures_over_labelled_bags_where_they_differ():
    labelled = {"n_bags": 74, "one_error": 0.0, "coverage": 0.25, "standard_errors": {}}
    figures = {"n_bags": 90, "one_error": 0.18, "coverage": 0.25, "standard_errors": {}}
    lines = list(readable({**figures, "labelled_bags": labelled}))
    assert [line.split() for line in lines[3:]] == [
        [],
        ["Over", "the", "74", "bags", "with", "labels:"],
        ["one_error", "0.0000", "↓"],
    ]
    same = {**labelled, "n_bags": 90, "one_error": 0.18}
    assert len(list(readable({**figures, "labelled_bags": same}))) == 3


def test_readable__shows_bounds_of_figures_that_are_not_exact():
    figures = {"macro_auc": 0.5, "bounds": {"macro_auc": [0.4999, 0.5001]}, "standard_errors": {}}
    (line,) = readable(figures)
    assert line.split() == ["macro_auc", "0.5000", "↑", "between", "0.499900", "and", "0.500100"]


def test_readable__shows_undefined_figures_of_labels_as_a_dash():
    rows = [{"label": 0, **ROW, "auc": None, "average_precision": None}]
    *_, line = readable({"per_label": rows, "standard_errors": {}})
    assert line.split()[-2:] == ["–", "–"]


def test_evaluate__help_says_which_average_precision_is_over_bags(capsys):
    assert run(["evaluate", "--help"]) == 0
    text = " ".join(printed(capsys)[0].replace("│", " ").split())
    assert "average_precision is per bag: a mean over bags" in text
    assert "macro_average_precision and macro_auc are per label: means over labels" in text


def test_evaluate__takes_each_new_metric_by_its_name(model, tiny, capsys):
    names = ["macro_auc", "gap_at_2", "perr", "hit_at_2", "micro_average_precision"]
    words = [word for name in names for word in ("--metric", name)]
    assert run(["evaluate", str(model), str(tiny.path), "--json", *words]) == 0
    figures = json.loads(printed(capsys)[0])
    assert set(names) <= set(figures)
    assert set(figures["standard_errors"]) == {"perr", "hit_at_2"}
    assert "labelled_bags" not in figures


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--metric", "haming"],
            "no metric is called 'haming'; known: average_precision, brier_sc",
        ),
        (["--threads", "0"], "threads must be at least 1, got 0"),
        (["--block-bytes", "x"], "block_bytes must be a size such as 256MiB or 2GiB, got 'x'"),
        (["--client", "x"], "--client"),
        (["--scheduler", "nowhere"], "no Dask scheduler answers at nowhere"),
    ],
)
def test_evaluate__bad_options_get_one_line_and_exit_code_2(model, tiny, words, message, capsys):
    assert run(["evaluate", str(model), str(tiny.path), *words]) == 2
    out, err = printed(capsys)
    assert out == ""
    assert message in err
    assert "\n" not in err


def test_evaluate__a_missing_model_or_store_gets_one_line(model, tiny, tmp_path, capsys):
    assert run(["evaluate", str(tmp_path), str(tiny.path)]) == 2
    assert "model.safetensors does not exist; a model file is needed" in printed(capsys)[1]
    assert run(["evaluate", str(model), str(tmp_path / "x.zarr")]) == 2
    assert "x.zarr does not exist" in printed(capsys)[1]
    assert run(["evaluate", str(tiny.path), str(model)]) == 2
    message = f"{tiny.path} is a store, and a model is needed here; give the model before the store"
    assert message in printed(capsys)[1]


@pytest.mark.slow
def test_evaluate__on_a_local_cluster_prints_the_same_and_nothing_else(model, tiny):
    words = [sys.executable, "-m", "streammiml", "evaluate", str(model), str(tiny.path), "--json"]
    done = subprocess.run(
        [*words, "--workers", "2"], capture_output=True, text=True, env={**os.environ}, check=True
    )
    assert json.loads(done.stdout) == sm.evaluate(model, tiny.path)
    assert done.stderr == ""
