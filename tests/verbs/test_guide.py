"""The verb ``guide`` lists pages and shows them."""

from rich.text import Text

from streammiml.tell.guide import PAGES
from streammiml.verbs.main import run


def test_guide__lists_every_page_with_its_title(capsys):
    assert run(["guide"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(PAGES)
    assert "Train a model" in lines[list(PAGES).index("train")]


def test_guide__prints_a_page_as_markdown_in_a_pipe(capsys):
    assert run(["guide", "stores"]) == 0
    assert capsys.readouterr().out.startswith("# What a store is\n")


def test_guide__is_laid_out_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert run(["guide", "stores"]) == 0
    shown = Text.from_ansi(capsys.readouterr().out).plain
    assert "What a store is" in shown
    assert "# What" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_guide__an_unknown_page_is_one_line_that_names_all(capsys):
    assert run(["guide", "trian"]) == 2
    assert "no page of the guide is called 'trian'; known: architecture, buckets, ca" in (
        capsys.readouterr().err
    )
