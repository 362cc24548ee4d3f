"""How far a conversion is: a bar where somebody watches, a line now and then otherwise."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_SECONDS = 5.0


class Far(Protocol):
    """What is shown; see ``convert.Progress``."""

    @property
    def stage(self) -> str: ...  # noqa: D102
    @property
    def bags(self) -> int: ...  # noqa: D102
    @property
    def n_bytes(self) -> int: ...  # noqa: D102
    @property
    def total_bytes(self) -> int: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def bytes_before(self) -> int: ...  # noqa: D102


class Show:
    """Progress on stderr; a context manager that can be called."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._watched = console.is_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
        )
        self._bar = Bar(*columns, console=console, transient=True, disable=not self._watched)
        self._tasks: dict[str, TaskID] = {}
        self._last = time.monotonic()

    def __enter__(self) -> Show:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._bar.console.print(
            f"streammiml: {text}", highlight=False, markup=False, soft_wrap=True
        )

    def __call__(self, far: Far) -> None:
        """Show how far it is."""
        if self._watched:
            if far.stage not in self._tasks:
                self._tasks[far.stage] = self._bar.add_task(far.stage, speed="")
            self._bar.update(
                self._tasks[far.stage],
                completed=far.n_bytes,
                total=far.total_bytes,
                speed=speed(far),
            )
            return
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(line(far), file=sys.stderr, flush=True)


def speed(far: Far) -> str:
    """Bags and megabytes a second, by this process."""
    seconds = max(far.seconds, 1e-9)
    words = f"{far.bags / seconds:,.0f} bags/s"
    # Where tasks are counted instead of bytes, their number says nothing of megabytes.
    if far.total_bytes > 1 << 16:
        words += f", {(far.n_bytes - far.bytes_before) / seconds / 1e6:.1f} MB/s"
    return words


def line(far: Far) -> str:
    """All of it in words."""
    done = far.n_bytes - far.bytes_before
    left = (far.total_bytes - far.n_bytes) * far.seconds / done if done > 0 else 0.0
    share = far.n_bytes / max(far.total_bytes, 1)
    return f"{far.stage}: {share:.0%}, {speed(far)}, {left:.0f} s left"
