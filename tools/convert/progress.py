"""Progress of a conversion: stage, share, speed and time left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streammiml._base.display import ProgressDisplay

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


_STAGES = {
    "spill": "reading and sorting",
    "group": "joining the rows of bags",
    "store": "writing the store",
}
"""What a stage does, for people."""
Watch = Callable[[ConvertProgress], None]
"""Is called with the progress after every task."""


class ConvertShow(ProgressDisplay):
    """Shows a conversion. Pass it to ``convert`` as ``watch``, inside a ``with`` block."""

    has_bar = True

    def warn(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self.say(f"streammiml: {text}")

    def __call__(self, progress: ConvertProgress) -> None:
        """Show the progress, unless the last line is recent."""
        if self._is_due():
            self._draw(line(progress), progress.n_bytes / max(progress.total_bytes, 1))


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
    return (
        f"{_STAGES.get(progress.stage, progress.stage)}: {share:.0%}, {speed(progress)}, "
        f"{seconds_left:.0f} s left"
    )
