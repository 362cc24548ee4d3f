"""Errors of users: what they carry to the command line, and that the pages they name exist."""

import ast
import pickle
import traceback
from pathlib import Path

import pytest

import streammiml
from streammiml.errors import StoreError, StreammimlError, unknown
from streammiml.tell.guide import PAGES
from streammiml.verbs.main import run

ROOT = Path(streammiml.__file__).parent
TOOLS = ROOT.parent / "tools"


def named_pages():
    """(file, page) for each error that is made with a page."""
    for path in [*ROOT.rglob("*.py"), *TOOLS.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg == "page" and isinstance(keyword.value, ast.Constant):
                        yield path, keyword.value.value


def test_errors__name_pages_that_exist():
    pages = [page for _, page in named_pages()]
    assert set(pages) <= set(PAGES)
    assert len(pages) >= 10
    assert {"convert", "train", "evaluate", "clusters", "trouble"} <= set(pages)


def test_error__its_page_is_no_part_of_the_message():
    error = StoreError("corpus.zarr is unfinished", page="convert")
    assert str(error) == "corpus.zarr is unfinished"
    assert "streammiml guide convert says more" in "".join(traceback.format_exception(error))


def test_error__its_page_comes_back_from_another_process():
    error = pickle.loads(pickle.dumps(StoreError("damaged", page="trouble")))
    assert (type(error), str(error), error.page) == (StoreError, "damaged", "trouble")


def test_unknown__lists_what_is_known_and_may_name_a_page():
    error = unknown("metric", "haming", ["f1", "auc"], page="evaluate")
    assert str(error) == "no metric is called 'haming'; known: auc, f1"
    assert error.page == "evaluate"
    assert StreammimlError("x").page is None


@pytest.mark.parametrize(
    ("words", "page"),
    [(["info", "."], "stores"), (["convert", "notes.bin", "x.zarr"], "convert")],
)
def test_command__prints_the_page_behind_the_message(words, page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.bin").write_bytes(bytes(range(256)))
    assert run(words) == 2
    line = capsys.readouterr().err
    assert line.endswith(f"(streammiml guide {page})\n")
    assert line.count("\n") == 1
