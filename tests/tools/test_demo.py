"""The demo: real digits to figures that only a model that learned reaches."""

import re

import pytest

pytest.importorskip("sklearn", reason="digits come with scikit-learn")

from streammiml.verbs.main import run


def test_demo__runs_twice_and_its_figures_are_good(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run(["demo"]) == 0
        said = capsys.readouterr().out
        figures = dict(re.findall(r"^([a-z ]+?) {2,}([0-9.]+)$", said, re.M))
        assert float(figures["ranking loss"]) < 0.03
        assert float(figures["key instance accuracy"]) > 0.95
    assert run(["verify", "streammiml-demo/digits-train.zarr"]) == 0


def test_demo__leaves_a_folder_that_is_not_its_own_alone(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert run(["demo", str(tmp_path / "mine")]) == 2
    assert "was not made by a demo" in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis.txt").exists()
