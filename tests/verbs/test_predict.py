"""predict as a user runs it: a summary on stdout, one line and 2 for bad input."""

import json
import os
import re
import subprocess
import sys

import pyarrow.dataset as ds
import pytest

from streammiml.verbs.main import run
from streammiml.verbs.predict import readable
from tests.verbs.output import printed


def test_predict__writes_records_and_sums_up(model, tiny, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["predict", str(model.parent), str(tiny.path), str(out)]) == 0
    text, err = printed(capsys)
    assert re.search(rf"^{out}: 12 bags in 1 part$", text, re.M)
    assert re.search(r"^labels per bag +\d\.\d{3}$", text, re.M)
    assert re.search(r"^bags without a label +0$", text, re.M)
    assert err == ""
    assert ds.dataset(out).count_rows() == 12
    assert run(["predict", str(model), str(tiny.path), str(out), "--json"]) == 0
    assert json.loads(printed(capsys)[0])["n_parts_kept"] == 1


def test_predict__top_k_and_zarr(model, tiny, tmp_path, capsys):
    words = ["predict", str(model), str(tiny.path)]
    assert run([*words, str(tmp_path / "a"), "--top-k", "2"]) == 0
    assert "score_labels" in ds.dataset(tmp_path / "a").schema.names
    assert run([*words, str(tmp_path / "b"), "--format", "zarr"]) == 0
    assert (tmp_path / "b" / "predictions.zarr" / "scores" / "zarr.json").exists()
    assert printed(capsys)[1] == ""


def test_predict__rows_beside_the_predictions(model, tiny, tmp_path, capsys):
    words = ["predict", str(model), str(tiny.path), str(tmp_path / "out"), "--rows", "top:2"]
    assert run([*words, "--labels", "sky,0"]) == 0
    text, err = printed(capsys)
    table = ds.dataset(tmp_path / "out" / "_rows").to_table()
    assert set(table["label_name"].to_pylist()) == {"sea", "sky"}
    assert re.search(rf"^row scores in _rows +{table.num_rows}$", text, re.M)
    assert err == ""
    assert run([*words, "--labels", "sky,0", "--json"]) == 0
    assert json.loads(printed(capsys)[0])["n_row_scores"] == table.num_rows


def test_readable__says_what_was_there_already():
    summary = {"n_bags": 1200, "n_parts": 9, "n_parts_kept": 4, "labels_per_bag": 1.5}
    summary |= {"n_bags_without_label": 3, "bags_per_second": 1234.5}
    lines = list(readable("x", summary))
    assert lines[0] == "x: 1,200 bags in 9 parts, 4 of them there already"
    assert lines[-1] == "bags per second          1,234"
    assert "per second" not in list(readable("x", {**summary, "n_parts_kept": 9}))[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top-k", "0"], "top_k must be"),
        (["--block-bytes", "0"], "block_bytes must be at least 1 B, got '0'"),
        (["--workers", "1", "--worker-memory", "0"], "worker_memory must be at least 1 B, got"),
        (["--format", "csv"], "csv"),
        (["--rows", "20"], "rows is '20'; expected all, or top:N for the N highest rows of each"),
        (["--labels", "sky"], "labels says which row scores are written; give rows too, such as"),
        (["--rows", "all", "--labels", "moon"], "no label is called 'moon'; known: sea, sky,"),
        (["--scheduler", "nowhere"], "no Dask scheduler answers at nowhere"),
    ],
)
def test_predict__bad_options_get_one_line_and_exit_code_2(
    model, tiny, tmp_path, words, message, capsys
):
    assert run(["predict", str(model), str(tiny.path), str(tmp_path / "out"), *words]) == 2
    out, err = printed(capsys)
    assert out == ""
    assert message in err
    assert "\n" not in err
    assert not (tmp_path / "out").exists()


def test_predict__a_folder_of_others_gets_one_line(model, tiny, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert run(["predict", str(model), str(tiny.path), str(tmp_path)]) == 2
    assert "holds other files (thesis.txt) and no predictions; name a new" in printed(capsys)[1]


@pytest.mark.slow
def test_predict__on_a_local_cluster(model, tiny, tmp_path):
    words = [sys.executable, "-m", "streammiml", "predict", str(model), str(tiny.path)]
    subprocess.run([*words, str(tmp_path / "a")], check=True, capture_output=True)
    done = subprocess.run(
        [*words, str(tmp_path / "b"), "--workers", "2"],
        capture_output=True,
        text=True,
        env={**os.environ},
        check=True,
    )
    assert done.stderr == ""
    one, other = ((tmp_path / name / "part-000000.parquet").read_bytes() for name in ("a", "b"))
    assert one == other
