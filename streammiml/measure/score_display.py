"""Progress of scoring: a bar of bags and the time left."""

from __future__ import annotations

import time

from streammiml._base.display import ProgressDisplay, format_duration
from streammiml.measure.scoring import ScoreProgress


class ScoreDisplay(ProgressDisplay):
    """Shows how many bags are scored."""

    has_bar = True

    def __init__(self) -> None:
        super().__init__()
        self._begun: tuple[float, int] | None = None
        """Time of the first progress, and the bags that an earlier process had scored."""

    def __call__(self, progress: ScoreProgress) -> None:
        """Show the progress, unless the last line is recent."""
        self._print_dashboard(progress.dashboard)
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, progress.bags_done
        if not self._is_due():
            return
        text = f"{progress.bags_done:,} of {progress.n_bags:,} bags"
        begun, before = self._begun
        if progress.bags_done > before:
            to_do = progress.n_bags - progress.bags_done
            left = (now - begun) * to_do / (progress.bags_done - before)
            text += f", {format_duration(left)} left"
        self._draw(text, progress.bags_done / max(1, progress.n_bags))
