"""How a run stands, for whoever shows it or writes it down."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A moment of a run.

    Rates are since the last line of the history, or since it was resumed. Seconds in which kernels
    are compiled count neither for rates nor for the time left; nor does the first call of the
    kernel, once there is another.
    """

    epoch: int
    step: int
    seconds: float
    """Since the run began, pauses left out."""
    steps_per_second: float
    rows_per_second: float
    mb_per_second: float
    """Of bags in memory."""
    loss: float
    """Mean loss of a step, since the last line."""
    share_of_violations: float
    """Share of steps that found a label ranked wrongly, since the last line."""
    time: dict[str, float]
    """Seconds of the kernel, of waiting for bags, of looks, of checkpoints and of compiling."""
    validation_loss: float | None
    """Ranking loss of the held-out bags, where they have just been looked at."""
    best_loss: float | None
    """The lowest so far."""
    is_line: bool
    """Whether the history gets a line for it."""
    epochs: int
    """After which it ends."""
    mixing: str
    """What is mixed, and the variance inflation that it leaves at worst."""
    stopped_early: bool
    """Whether patience has run out."""
    done: float
    """Share of the way to the last epoch or step, unless it stops early."""
    seconds_left: float | None
    """At the pace since the run began or was resumed; None before there is one."""
    total: dict[str, float]
    """Where the time has gone since then, in seconds; ``all`` is all of it."""

    def line(self) -> dict[str, Any]:
        """What the history keeps."""
        live = ("is_line", "epochs", "mixing", "stopped_early", "done", "seconds_left", "total")
        return {name: value for name, value in asdict(self).items() if name not in live}
