"""report as a user runs it: the path of a page, or one line and 2."""

import pytest

from streammiml.verbs.main import run
from tests.planted import planted
from tests.stores import write_store

pytest.importorskip("jinja2", reason="pages need jinja2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_store(folder / "x.zarr", planted(200))
    words = ["--epochs", "2", "--shared-dim", "8", "--validation", "0.1"]
    assert run(["train", str(folder / "x.zarr"), str(folder / "run"), *words]) == 0
    return folder


def test_report__prints_the_path_of_the_page(folder, tmp_path, monkeypatch, capsys):
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(folder / "run")]) == 0
    assert capsys.readouterr().out == "report.html\n"
    assert (tmp_path / "report.html").stat().st_size > 10_000
    words = ["--store", str(folder / "x.zarr"), "--out", "two.html"]
    assert run(["report", str(folder / "run"), str(folder / "run"), *words]) == 0
    assert capsys.readouterr().out == "two.html\n"


@pytest.mark.slow
def test_report__of_a_local_cluster_is_that_of_threads(folder, tmp_path):
    words = ["report", str(folder / "run"), "--out"]
    assert run([*words, str(tmp_path / "1.html")]) == 0
    assert run([*words, str(tmp_path / "2.html"), "--workers", "2"]) == 0
    same = (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()
    assert same, "the pages differ"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a report needs the folder of a run"),
        (["nowhere"], "nowhere is missing; a report needs the folder of a run"),
        (["{folder}/x.zarr"], "x.zarr is not a run folder; a report needs"),
        (["{folder}/run/model.safetensors"], "model.safetensors is a file; a report needs"),
        (["{folder}/run", "--store", "nowhere.zarr"], "nowhere.zarr"),
        (["{folder}/run", "--out", "no/such/page.html"], "no/such is not a folder"),
        (["{folder}/run", "--out", "{folder}"], "is a folder; name a file for the page"),
        (["{folder}/run", "--image", "8x8"], "an image of 8x8 has 64 values"),
        (["{folder}/run", "--image", "big"], "image must be a size"),
        (["{folder}/run", "--threads", "0"], "threads must be"),
    ],
)
def test_report__bad_input_gets_one_line_and_exit_code_2(
    folder, tmp_path, monkeypatch, capsys, words, message
):
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert run(["report", *(word.format(folder=folder) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "\n" not in err.strip()
    assert not list(tmp_path.iterdir())


def test_report__into_a_url_is_refused(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(folder / "run"), "--out", "s3://bucket/page.html"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("streammiml: s3://bucket/page.html is a URL, and pages are written to f")
    assert not any(tmp_path.iterdir())
