"""explain as a user runs it: a table on stdout, one line and 2 for bad input."""

import json
import re

import pytest

from streammiml.verbs.main import run
from tests.measure.models import made_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    made_model(subconcepts=4).save(path)
    return path


def test_explain__prints_a_table_and_writes_everything(model, tiny, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["explain", str(model), str(tiny.path), str(out)]) == 0
    text, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^label +sub-concept +bags +share +right +most typical", text, re.M)
    assert re.search(r"^(sea|sky|sun|tree) +\d +\d+ +\d+\.\d% +\d+\.\d% +bag-\d{4}:\d", text, re.M)
    assert re.search(r"empty: +[\d, ]+$", text, re.M)
    assert {"bags", "explanation.json", "subconcepts.parquet", "_SUCCESS"} <= {
        path.name for path in out.iterdir()
    }
    assert run(["explain", str(model), str(tiny.path), str(out), "--json", "--jsonl"]) == 0
    assert len((out / "bags.jsonl").read_text().splitlines()) == 12
    assert json.loads(capsys.readouterr().out) == json.loads((out / "explanation.json").read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--image", "big"], "image must be a size such as 28x28 or 32x32x3, got 'big'"),
        (["--image", "28x28"], "an image of 28x28 has 784 values, and rows of the store have 3"),
        (["--typical", "0"], "typical must be"),
        (["--block-bytes", "0"], "block_bytes must be at least 1 B, got '0'"),
        (["--scheduler", "nowhere"], "no Dask scheduler answers at nowhere"),
    ],
)
def test_explain__bad_options_get_one_line_and_exit_code_2(
    model, tiny, tmp_path, words, message, capsys
):
    assert run(["explain", str(model), str(tiny.path), str(tmp_path / "out"), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "\n" not in err.strip()
    assert not (tmp_path / "out").exists()
