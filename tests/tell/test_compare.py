"""``compare``: what it returns, and a page that is whole, escaped, and fetches nothing."""

import json

import pytest

import streammiml as sm
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.search import comparison as cells_module
from streammiml.search.cells import measure_cell
from streammiml.tell import compare as module
from streammiml.tell.compare import compare
from tests.planted import planted
from tests.search.contenders import contender
from tests.stores import write_store
from tests.tell.browser import Browser, browser_path
from tests.tell.pages import Page

CONFIG = TrainConfig(epochs=2, shared_dim=8)
EVIL = "<script>alert(1)</script>"
METHODS = ["mimlfast", contender("frequent", grid=({}, {"shift": 1})), contender("refusing")]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    store = write_store(folder / f"{EVIL.replace('/', '')}.zarr", planted(60), n_labels=5)
    with pytest.MonkeyPatch.context() as patch:
        here = lambda task, *shared: measure_cell(*task, *shared)  # noqa: E731
        patch.setattr(cells_module, "run_cell", here)
        options = {"splits": 4, "sizes": "10,20,40", "threads": 1}
        result = compare(store, folder / "out", CONFIG, methods=METHODS[:2], **options)
    return store, folder / "out", result


def test_compare__returns_means_marks_and_cells(compared):
    _, out, result = compared
    assert result["methods"] == {"mimlfast": "MIMLfast, default", "frequent": "The frequent"}
    assert result["reference"] == "mimlfast"
    entry = result["table"]["ranking_loss"]["frequent"]
    assert set(entry) == {"mean", "std", "splits", "mark"}
    assert (entry["splits"], entry["mark"] in ("", "●")) == (4, True)
    lines = (out / "cells.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result["cells"]
    assert len(lines) == 4 * 2 + 3 * 2
    assert result["not_available"] == []


def test_page__shows_figures_charts_and_settings_and_fetches_nothing(compared):
    pytest.importorskip("jinja2", reason="pages need jinja2")
    _, out, result = compared
    page = Page((out / "report.html").read_text("utf-8"))
    assert [address for address in page.addresses if not address.startswith(("#", "data:"))] == []
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 1
    assert EVIL.replace("/", "") in page.text
    loss = result["table"]["ranking_loss"]["mimlfast"]
    assert f"{loss['mean']:.3f}±{loss['std']:.3f}".replace("0.", ".") in page.text
    assert "4 random splits into two thirds" in page.text
    for heading in ("Criteria", "Ranks", "Time by number of bags", "Settings that were chosen"):
        assert heading in page.text
    n_charts = len([tag for tag, _ in page.tags if tag == "svg"])
    assert n_charts == len(result["table"]) + 2
    assert len(page.with_class("best")) == 0


def test_page__says_why_figures_are_missing(compared, tmp_path):
    pytest.importorskip("jinja2", reason="pages need jinja2")
    store, _, _ = compared
    result = compare(store, tmp_path / "out", CONFIG, methods=METHODS[2:], splits=1, threads=1)
    sentence = "The refusing: N/A in 1 split (0): it would hold 7 TiB for 40 bags"
    assert result["not_available"] == [sentence]
    page = Page((tmp_path / "out" / "report.html").read_text("utf-8"))
    assert sentence in page.text
    assert not [tag for tag, _ in page.tags if tag == "svg"]


def test_compare__without_jinja2_writes_all_but_the_page(compared, tmp_path, monkeypatch):
    store, _, _ = compared
    monkeypatch.setattr(module, "has_pages", lambda: False)
    compare(store, tmp_path / "out", CONFIG, methods=METHODS[2:], splits=1, threads=1)
    assert (tmp_path / "out" / "table.md").exists()
    assert not (tmp_path / "out" / "report.html").exists()


def test_compare__unknown_options_are_refused(tmp_path):
    with pytest.raises(StreammimlError, match=r"^no option of compare is called 'fold'; known: cl"):
        compare("x.zarr", tmp_path / "out", fold=3)


def test_public_names__compare():
    assert sm.compare is compare


@pytest.mark.skipif(
    browser_path() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"
)
def test_page__loads_without_complaint_and_asks_for_nothing_else(compared):
    pytest.importorskip("jinja2", reason="pages need jinja2")
    _, out, _ = compared
    with Browser() as browser:
        browser.open(out / "report.html")
        assert browser.complaints == []
        assert len(browser.requests) <= 1
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
