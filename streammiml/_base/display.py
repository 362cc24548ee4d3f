"""What all progress displays share: a live line in a terminal or notebook, plain lines elsewhere.

Rich is loaded when a display is made, and IPython is there in a notebook, so that a call without
progress imports neither. Notebooks need no ipywidgets: the cell's output is replaced.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from html import escape
from importlib import import_module
from typing import Any, Protocol, Self, TypeVar

from streammiml._base.terminal import SafeStream, guard

SHOW_SECONDS = 5.0
"""Shortest time between two plain lines."""
LIVE_SECONDS = 0.2
"""Shortest time between two drawings of a live line."""
BAR_WIDTH = 30

Progress = TypeVar("Progress")


class Surface(Protocol):
    """Where a live line is drawn."""

    def draw(self, text: str, share: float, *, bar: bool) -> None:
        """Replace the line; ``share`` is the share of the work that is done."""

    def end(self) -> None:
        """Draw no more until the next call of ``draw``."""


class TerminalLine:
    """One line of a terminal, which goes away at the end."""

    def __init__(self, console: Any) -> None:
        live = import_module("rich.live").Live
        self._live = live(console=console, auto_refresh=False, transient=True)

    def draw(self, text: str, share: float, *, bar: bool) -> None:
        """Replace the line; long text is cut."""
        if not self._live.is_started:
            is_guarded = isinstance(sys.stderr, SafeStream)
            self._live.start()
            if is_guarded:
                # While it draws, Rich replaces stdout and stderr with streams of its own.
                guard()
        line = import_module("rich.text").Text(text, overflow="ellipsis", no_wrap=True)
        if bar:
            drawn = import_module("rich.progress_bar").ProgressBar(
                total=1.0, completed=share, width=BAR_WIDTH
            )
            grid = import_module("rich.table").Table.grid(padding=(0, 1))
            grid.add_row(drawn, line)
            line = grid
        self._live.update(line, refresh=True)

    def end(self) -> None:
        """Remove the line."""
        self._live.stop()


class NotebookLine:
    """A bar and a line in the output of a notebook's cell; the last one stays."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, text: str, share: float, *, bar: bool) -> None:  # noqa: ARG002
        """Replace the output."""
        drawn = f'<progress max="1" value="{share:.4f}"></progress> {escape(text)}'
        content = {"text/plain": text, "text/html": drawn}
        if self._handle is None:
            show = import_module("IPython.display").display
            self._handle = show(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def end(self) -> None:
        """Leave the output as it is; the next line gets one of its own."""
        self._handle = None


def is_notebook() -> bool:
    """Whether the interpreter runs the cells of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _surface() -> Surface | None:
    """Where live lines are drawn; None if progress is printed as plain lines."""
    if is_notebook():
        return NotebookLine()
    if sys.stderr is None:
        return None
    console = import_module("rich.console").Console(stderr=True, highlight=False)
    return TerminalLine(console) if console.is_terminal else None


class ProgressDisplay:
    """Base of all displays; a context manager that leaves the terminal as it was."""

    has_bar = False
    """Whether a bar stands before the line in a terminal."""

    def __init__(self) -> None:
        self._surface = _surface()
        self._shown_at = time.monotonic()
        self._dashboard: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Remove the live line; the next progress draws another."""
        if self._surface is not None:
            self._surface.end()

    def _is_due(self) -> bool:
        """Whether the last line is old enough for another."""
        pause = SHOW_SECONDS if self._surface is None else LIVE_SECONDS
        return time.monotonic() - self._shown_at >= pause

    def _draw(self, text: str, share: float) -> None:
        """Show a line: replace the live line, or print."""
        self._shown_at = time.monotonic()
        if self._surface is None:
            self.say(text)
        else:
            self._surface.draw(text, share, bar=self.has_bar)

    def say(self, line: str) -> None:
        """Print a line that stays. A notebook shows stderr as an error, so it gets stdout."""
        stream = sys.stdout if isinstance(self._surface, NotebookLine) else sys.stderr
        # If stderr is closed (2>&-), print would write to stdout, among the results.
        if stream is not None:
            print(line, file=stream, flush=True)

    def _print_dashboard(self, dashboard: str | None) -> None:
        """Print the address of a cluster's dashboard, once."""
        if dashboard and dashboard != self._dashboard:
            self._dashboard = dashboard
            self.say(f"dashboard at {dashboard}")


@contextmanager
def shown(
    display: Callable[[], AbstractContextManager[Callable[[Progress], None]]],
    watch: Callable[[Progress], None],
    *,
    progress: bool,
) -> Iterator[Callable[[Progress], None]]:
    """Give what a call reports its progress to: ``watch``, after a display if ``progress``."""
    if not progress:
        yield watch
        return
    with display() as show:

        def both(moment: Progress) -> None:
            show(moment)
            watch(moment)

        yield both


def format_duration(seconds: float) -> str:
    """Write a time for people: ``41 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86400:.1f} d"
