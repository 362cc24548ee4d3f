"""Commands of the corpora: ``python -m streammiml_tools.synth``, ``.mnist`` and ``.reuters``."""

import json
import subprocess
import sys

import pytest

import streammiml as sm

DOCUMENT = {"title": "Grain", "body": "Wheat rose. Corn fell.", "topics": ["grain"]}


def command(name, *words, cwd):
    return subprocess.run(
        [sys.executable, "-m", f"streammiml_tools.{name}", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def test_synth__writes_a_store(tmp_path):
    done = command("synth", "a.zarr", "--n-bags", "30", "--n-features", "4", cwd=tmp_path)
    assert done.stdout.startswith("a.zarr: 30 bags, "), done.stderr
    assert sm.open_store(tmp_path / "a.zarr").n_bags == 30


def test_reuters__writes_a_store_and_its_vocabulary(tmp_path):
    lines = [json.dumps({"id": str(i), **DOCUMENT}) for i in range(6)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines) + "\n")
    done = command("reuters", "d.jsonl", "d.zarr", cwd=tmp_path)
    assert "d.zarr: 6 documents of 18 sentences" in done.stdout, done.stderr
    assert (tmp_path / "d.vocabulary.json").exists()


@pytest.mark.parametrize("name", ["synth", "mnist", "reuters"])
def test_commands__have_help_and_one_line_for_a_wrong_word(tmp_path, name):
    shown = command(name, "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert f"Usage: python -m streammiml_tools.{name} " in shown.stdout
    wrong = command(name, "--wrong", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("streammiml: ")
    assert wrong.stderr.count("\n") == 1
