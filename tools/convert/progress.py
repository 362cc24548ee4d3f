"""Progress of a conversion: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_SECONDS = 5.0
COUNTS_BYTES = 1 << 16
"""A stage whose total is at most this number counts tasks; any other stage counts bytes."""


@dataclass(frozen=True, slots=True)
class ConvertProgress:
    """How far a stage of a conversion is."""

    stage: str
    bags: int
    n_bytes: int
    """Bytes of the source that are done. A stage that reads spilled bags counts tasks instead."""
    total_bytes: int
    seconds: float
    """Seconds since this process began the stage."""
    bytes_before: int
    """Bytes that an earlier, interrupted process had done."""


Watch = Callable[[ConvertProgress], None]
"""Is called with the progress after every task."""


class ConvertShow:
    """Shows progress on stderr. Pass it to ``convert`` as ``watch``, inside a ``with`` block."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._is_terminal = console.is_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
        )
        self._bar = Bar(*columns, console=console, transient=True, disable=not self._is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._last_line = time.monotonic()

    def __enter__(self) -> ConvertShow:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._bar.console.print(
            f"streammiml: {text}", highlight=False, markup=False, soft_wrap=True
        )

    def __call__(self, progress: ConvertProgress) -> None:
        """Update the bar, or print a line if the last one is old enough."""
        if self._is_terminal:
            if progress.stage not in self._tasks:
                self._tasks[progress.stage] = self._bar.add_task(progress.stage, speed="")
            self._bar.update(
                self._tasks[progress.stage],
                completed=progress.n_bytes,
                total=progress.total_bytes,
                speed=speed(progress),
            )
            return
        now = time.monotonic()
        if now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            print(line(progress), file=sys.stderr, flush=True)


def speed(progress: ConvertProgress) -> str:
    """Return the bags and megabytes per second of this process, as text."""
    seconds = max(progress.seconds, 1e-9)
    text = f"{progress.bags / seconds:,.0f} bags/s"
    if progress.total_bytes > COUNTS_BYTES:
        n_bytes = progress.n_bytes - progress.bytes_before
        text += f", {n_bytes / seconds / 1e6:.1f} MB/s"
    return text


def line(progress: ConvertProgress) -> str:
    """Return stage, share, speed and time left, as text."""
    done = progress.n_bytes - progress.bytes_before
    to_do = progress.total_bytes - progress.n_bytes
    seconds_left = to_do * progress.seconds / done if done > 0 else 0.0
    share = progress.n_bytes / max(progress.total_bytes, 1)
    return f"{progress.stage}: {share:.0%}, {speed(progress)}, {seconds_left:.0f} s left"
