"""Progress on stderr: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from streammiml._base.platform import resident_bytes
from streammiml.config import format_size
from streammiml.verbs.terminal import guard

if TYPE_CHECKING:  # A verb that scores need not load training and the search.
    from streammiml.learn.choice import ChoiceProgress
    from streammiml.learn.progress import TrainProgress
    from streammiml.measure.scoring import ScoreProgress
    from streammiml.search.comparison import CompareProgress
    from streammiml.search.tune import TuneProgress

SHOW_SECONDS = 5.0
LIVE_SECONDS = 0.2


class ProgressDisplay:
    """Base of all displays; a context manager that leaves the terminal as it was."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | Bar | None = None
        self._dashboard: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _start(self) -> None:
        """Begin to draw, if the display draws anything."""
        if self._live is not None:
            self._live.start()
            # While it draws, Rich replaces stdout and stderr with streams of its own.
            guard()

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def _print_dashboard(self, dashboard: str | None) -> None:
        """Print the address of a cluster's dashboard, once."""
        if dashboard and dashboard != self._dashboard:
            self._dashboard = dashboard
            self._print(f"dashboard at {dashboard}")


class ScoreDisplay(ProgressDisplay):
    """Progress of scoring: a bar of bags on a terminal, no bar elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        columns = ("bags", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        is_shown = self._console.is_terminal
        self._live = self._bar = Bar(
            *columns, console=self._console, transient=True, disable=not is_shown
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._start()
        return self

    def __call__(self, progress: ScoreProgress) -> None:
        """Move the bar."""
        self._print_dashboard(progress.dashboard)
        self._bar.update(self._task, completed=progress.bags_done, total=progress.n_bags)


class ChoiceDisplay(ProgressDisplay):
    """Progress of the trials before training: a live line on a terminal, a new line elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._line: Live | None = None
        if self._console.is_terminal:
            self._line = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown_at = time.monotonic()
        self._loss: float | None = None
        self._trial = 0

    def __call__(self, progress: ChoiceProgress) -> None:
        """Show the progress, unless the last line is recent."""
        if self._live is None and self._line is not None:
            self._live = self._line
            self._start()
        if progress.trial != self._trial:
            self._trial, self._loss = progress.trial, None
        if progress.loss is not None:
            self._loss = progress.loss
        now = time.monotonic()
        pause = LIVE_SECONDS if self._line is not None else SHOW_SECONDS
        if now - self._shown_at < pause or progress.seconds_left is None:
            return
        self._shown_at = now
        parts = [f"choosing, trial {progress.trial} of {progress.n_trials}", progress.setting]
        parts += [f"fold {progress.fold} of {progress.n_folds}"] if progress.n_folds > 1 else []
        parts += [f"ranking loss {self._loss:.4f}"] if self._loss is not None else []
        parts += [f"{progress.done:.0%} done, {format_duration(progress.seconds_left)} left"]
        if self._line is not None:
            text = Text(", ".join(parts), overflow="ellipsis", no_wrap=True)
            self._line.update(text, refresh=True)
        else:
            self._print(", ".join(parts))

    def end(self) -> None:
        """Remove the live line; called when training begins."""
        if self._live is not None:
            self._live.stop()
            self._live = self._line = None


class TrainDisplay(ProgressDisplay):
    """Progress of training: a line that is redrawn on a terminal, a new line elsewhere.

    Drawing begins with the first progress, because a verb may print other lines before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bytes_before = resident_bytes()
        self._line: Live | None = None
        if self._console.is_terminal:
            self._line = Live(console=self._console, auto_refresh=False, transient=True)
        self._live = self._line
        self._shown_at = time.monotonic()
        self._loss: float | None = None
        self._last: TrainProgress | None = None

    def __call__(self, progress: TrainProgress) -> None:
        """Show the progress; at the first call, also print how bags are mixed.

        Progress that comes shortly after the last line, or before the pace is known, is not shown.
        """
        if self._last is None:
            self._console.print(progress.mixing, soft_wrap=True)
            self._start()
        self._last = progress
        if progress.validation_loss is not None:
            self._loss = progress.validation_loss
        now = time.monotonic()
        pause = LIVE_SECONDS if self._line is not None else SHOW_SECONDS
        has_pace = progress.seconds_left is not None
        if not progress.is_line and (now - self._shown_at < pause or not has_pace):
            return
        self._shown_at = now
        text = ", ".join(self._phrases(progress))
        if self._line is not None:
            self._line.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)
        else:
            self._print(text)

    def _phrases(self, progress: TrainProgress) -> list[str]:
        phrases = [
            f"epoch {min(progress.epoch + 1, progress.epochs)}/{progress.epochs}",
            f"step {progress.step:,}",
            f"{progress.steps_per_second:,.0f} steps/s",
            f"{progress.mb_per_second:.0f} MB/s",
            f"{format_size(max(0, resident_bytes() - self._bytes_before))} held",
            f"violations {progress.share_of_violations:.2f}",
        ]
        if progress.replicas > 1:
            spent = progress.total
            joining = spent.get("reducing", 0) + spent.get("moving", 0)
            share = joining / max(spent["all"], 1e-9)
            phrases.insert(2, f"{progress.replicas} replicas")
            phrases.append(f"{share:.0%} of the time spent on joining replicas")
        if self._loss is not None:
            phrases.append(f"ranking loss {self._loss:.4f}")
        if progress.seconds_left is not None and progress.done < 1:
            phrases.append(f"{format_duration(progress.seconds_left)} left")
        return phrases

    @property
    def has_trained(self) -> bool:
        """Whether any step was done; a run that was finished before does none."""
        return self._last is not None and self._last.steps_here > 0

    def summary(self) -> list[str]:
        """Lines for the end of a run: why it stopped early, and shares of the time."""
        if self._last is None or not self._last.steps_here:
            return []
        total = self._last.total
        early = "stopped early: no lower ranking loss in as many looks as --patience allows; "
        lines = [early + "--extend continues the run"] if self._last.stopped_early else []
        shares = {name: seconds / max(total["all"], 1e-9) for name, seconds in total.items()}
        del shares["all"]
        if shares.get("compiling", 0) < 0.005:
            shares.pop("compiling", None)
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        return [*lines, f"time: {format_duration(total['all'])}; {parts}"]


class TuneDisplay(ProgressDisplay):
    """Progress of a search: a line after every tenth of a rung."""

    def __init__(self) -> None:
        super().__init__()
        self._last_tenth = (-1, -1)

    def __call__(self, progress: TuneProgress) -> None:
        """Print a line if another tenth of the rung is done."""
        self._print_dashboard(progress.dashboard)
        tenth = progress.rung, 10 * progress.trials_done // max(1, progress.n_trials)
        if tenth == self._last_tenth:
            return
        self._last_tenth = tenth
        best = "" if progress.best_loss is None else f", best ranking loss {progress.best_loss:.4f}"
        self._print(
            f"rung {progress.rung + 1} of {progress.n_rungs}: {progress.trials_done} of "
            f"{progress.n_trials} trials{best}"
        )


class CompareDisplay(ProgressDisplay):
    """Progress of a comparison: a line for each cell."""

    def __call__(self, progress: CompareProgress) -> None:
        """Print what the last cell gave."""
        self._print_dashboard(progress.dashboard)
        done = f"{progress.cells_done} of {progress.n_cells} cells"
        result = progress.result
        if result is None:
            self._print(done)
            return
        bags = "" if result.cell.n_train is None else f", {result.n_train:,} bags"
        name = f"{progress.title}, split {result.cell.split}{bags}"
        if result.reason is not None:
            self._print(f"{done}: {name}: N/A: {result.reason}")
            return
        seconds = (result.choose_seconds, result.fit_seconds, result.score_seconds)
        taken = format_duration(sum(value for value in seconds if value is not None))
        loss = result.figures.get("ranking_loss")
        figure = "" if loss is None else f"ranking loss {loss:.4f}, "
        self._print(f"{done}: {name}: {figure}{taken}")


def format_duration(seconds: float) -> str:
    """Write a time for people: ``41 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86400:.1f} d"
