"""Progress of searches and comparisons: plain lines, which stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streammiml._base.display import ProgressDisplay, format_duration

if TYPE_CHECKING:  # Both modules use the displays.
    from streammiml.search.comparison import CompareProgress
    from streammiml.search.tune import TuneProgress


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
        self.say(
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
            self.say(done)
            return
        bags = "" if result.cell.n_train is None else f", {result.n_train:,} bags"
        name = f"{progress.title}, split {result.cell.split}{bags}"
        if result.reason is not None:
            self.say(f"{done}: {name}: N/A: {result.reason}")
            return
        seconds = (result.choose_seconds, result.fit_seconds, result.score_seconds)
        taken = format_duration(sum(value for value in seconds if value is not None))
        loss = result.figures.get("ranking_loss")
        figure = "" if loss is None else f"ranking loss {loss:.4f}, "
        self.say(f"{done}: {name}: {figure}{taken}")
