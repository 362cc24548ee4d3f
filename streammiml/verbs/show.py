"""A progress bar of bags, where somebody watches."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from streammiml.measure.scored import Progress


class Show:
    """A bar on stderr where somebody watches, and the address of a cluster's dashboard."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = ("bags", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._dashboard: str | None = None

    def __enter__(self) -> Show:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Move the bar."""
        if progress.dashboard and progress.dashboard != self._dashboard:
            self._dashboard = progress.dashboard
            print(f"dashboard at {self._dashboard}", file=sys.stderr, flush=True)
        self._bar.update(self._task, completed=progress.bags_done, total=progress.n_bags)
