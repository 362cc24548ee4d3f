"""Displays: where lines are drawn, and that nothing is imported before it is needed."""

import subprocess
import sys
import types

import pytest

from streammiml._base import display
from streammiml._base.display import ProgressDisplay, format_duration, shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (99.4, "99 s"),
        (100, "2 min"),
        (3600, "60 min"),
        (7200, "2.0 h"),
        (1e6, "11.6 d"),
    ],
)
def test_format_duration__has_the_unit_that_fits(seconds, words):
    assert format_duration(seconds) == words


class Handle:
    """What IPython's display gives: the outputs of a cell, each with all that it showed."""

    outputs = []  # noqa: RUF012

    def __init__(self, content):
        self.contents = [content]
        Handle.outputs.append(self)

    def update(self, content, raw):
        assert raw
        self.contents.append(content)


@pytest.fixture
def notebook(monkeypatch):
    """A kernel of Jupyter, as far as displays see one; gives the outputs of the cell."""
    ipython, shows = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=1)

    def show(content, *, raw, display_id):
        assert raw
        assert display_id
        return Handle(content)

    shows.display = show
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    monkeypatch.setattr(Handle, "outputs", [])
    return Handle.outputs


def test_display__in_a_notebook_replaces_its_output(notebook, capsys):
    with ProgressDisplay() as show:
        show.say("a line that stays")
        show._draw("1 of 4 <bags>", 0.25)
        show._draw("2 of 4", 0.5)
        show.end()
        show._draw("the next part", 0.0)
    assert [len(handle.contents) for handle in notebook] == [2, 1]
    first = notebook[0].contents[0]
    assert first["text/plain"] == "1 of 4 <bags>"
    assert first["text/html"] == '<progress max="1" value="0.2500"></progress> 1 of 4 &lt;bags&gt;'
    # Notebooks show stderr as an error.
    assert capsys.readouterr() == ("a line that stays\n", "")


def test_is_notebook__is_false_in_a_terminal_with_ipython(monkeypatch):
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not display.is_notebook()
    ipython.get_ipython = lambda: None
    assert not display.is_notebook()


def test_display__elsewhere_prints_plain_lines(capsys):
    with ProgressDisplay() as show:
        show._draw("1 of 4 bags", 0.25)
        assert not show._is_due()
    assert capsys.readouterr() == ("", "1 of 4 bags\n")


def test_display__without_stderr_prints_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    with ProgressDisplay() as show:
        show._draw("1 of 4 bags", 0.25)
    assert capsys.readouterr().out == ""


def test_shown__calls_the_display_only_if_asked_and_the_function_always(capsys):
    class Display(ProgressDisplay):
        def __call__(self, number):
            self.say(f"number {number}")

    seen = []
    for progress in (False, True):
        with shown(Display, seen.append, progress=progress) as watch:
            watch(progress)
    assert seen == [False, True]
    assert capsys.readouterr().err == "number True\n"


def test_import__of_the_library_loads_neither_rich_nor_ipython():
    code = (
        "import sys, streammiml as sm; sm.train, sm.evaluate, sm.predict, sm.explain, sm.tune, "
        "sm.compare, sm.convert; "
        "print([name for name in ('rich', 'IPython', 'ipywidgets') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
