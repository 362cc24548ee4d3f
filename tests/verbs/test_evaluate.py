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
    assert re.search(r"^sea +\d+ +\d+ +\d\.\d{4} +\d\.\d{4} +\d\.\d{4}$", out, re.M)


def test_evaluate__only_the_metrics_asked_for(model, tiny, capsys):
    words = ["evaluate", str(model), str(tiny.path), "--json", "--metric", "coverage"]
    assert run([*words, "--metric", "ndcg_at_2"]) == 0
    figures = json.loads(printed(capsys)[0])
    assert {"coverage", "ndcg_at_2"} <= set(figures)
    assert "one_error" not in figures


def test_readable__shows_undefined_figures_and_the_first_labels_only():
    row = {"support": 1, "predicted": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    table = [{"label": i, **row} for i in range(LABELS_SHOWN + 5)]
    figures = {"key_instance_accuracy": None, "ndcg_at_7": 0.5, "per_label": table}
    lines = list(readable({**figures, "standard_errors": {}}))
    assert lines[0].split() == ["key_instance_accuracy", "undefined", "↑"]
    assert lines[1].split() == ["ndcg_at_7", "0.5000"]
    assert lines[-1] == f"… {LABELS_SHOWN + 5} labels in all; --json has every one"
    assert len(lines) == LABELS_SHOWN + 5


def test_readable__shows_names_whole_however_long():
    row = {"support": 1, "predicted": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    names = ["sea", "a label " * 20]
    table = [{"label": i, **row, "name": name} for i, name in enumerate(names)]
    *_, head, sea, long = readable({"per_label": table, "standard_errors": {}})
    assert long.startswith(names[1])
    assert len(head) == len(sea) == len(long)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metric", "haming"], "no metric is called 'haming'; known: average_precision, cover"),
        (["--threads", "0"], "threads must be at least 1, got 0"),
        (["--block-bytes", "x"], "block_bytes must be a size such as 256MiB or 2GiB, got 'x'"),
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
