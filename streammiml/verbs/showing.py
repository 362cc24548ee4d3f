"""Progress of training on stderr: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from streammiml._base.platform import resident_bytes
from streammiml.config import format_size
from streammiml.learn.progress import Progress

SHOW_SECONDS = 5.0
LIVE_SECONDS = 0.2


class Show:
    """A watcher of training; a context that leaves the terminal as it was.

    The line begins to live with the first moment: there may be other things to show before.
    """

    def __init__(self) -> None:
        self._held = resident_bytes()
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown = time.monotonic()
        self._loss: float | None = None
        self._last: Progress | None = None

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show how training stands; before the first moment, how bags are mixed.

        A moment is passed over if another was shown just now, or before there is a pace to show.
        """
        if self._last is None:
            self._console.print(progress.mixing, soft_wrap=True)
            if self._live is not None:
                self._live.start()
        self._last = progress
        if progress.validation_loss is not None:
            self._loss = progress.validation_loss
        now = time.monotonic()
        pause = LIVE_SECONDS if self._live is not None else SHOW_SECONDS
        has_pace = progress.seconds_left is not None
        if not progress.is_line and (now - self._shown < pause or not has_pace):
            return
        self._shown = now
        words = ", ".join(self._words(progress))
        if self._live is not None:
            self._live.update(Text(words, overflow="ellipsis", no_wrap=True), refresh=True)
        else:
            print(words, file=sys.stderr, flush=True)

    def _words(self, progress: Progress) -> list[str]:
        words = [
            f"epoch {min(progress.epoch + 1, progress.epochs)}/{progress.epochs}",
            f"step {progress.step:,}",
            f"{progress.steps_per_second:,.0f} steps/s",
            f"{progress.mb_per_second:.0f} MB/s",
            f"{format_size(max(0, resident_bytes() - self._held))} held",
            f"violations {progress.share_of_violations:.2f}",
        ]
        if self._loss is not None:
            words.append(f"ranking loss {self._loss:.4f}")
        if progress.seconds_left is not None and progress.done < 1:
            words.append(f"{spoken(progress.seconds_left)} left")
        return words

    def summary(self) -> list[str]:
        """Why it ended, if early, and where the time went, as shares of all of it."""
        if self._last is None:
            return []
        total = self._last.total
        early = "stopped early: no lower ranking loss for as many looks as --patience says; "
        lines = [early + "--extend goes on"] if self._last.stopped_early else []
        shares = {name: seconds / max(total["all"], 1e-9) for name, seconds in total.items()}
        del shares["all"]
        if shares.get("compiling", 0) < 0.005:
            shares.pop("compiling", None)
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        return [*lines, f"time: {spoken(total['all'])}; {parts}"]


def spoken(seconds: float) -> str:
    """A time for people: ``41 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86400:.1f} d"
