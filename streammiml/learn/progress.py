"""Progress of a run and of its trials: values that progress bars show and the history records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from streammiml.learn.timing import OF_REPLICAS


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceProgress:
    """How far the trials before a run are, or the trainings after it that calibrate it."""

    stage: str = "choosing"
    """``choosing`` before the run, ``calibrating`` after it."""
    setting: str
    """The setting that is being tried, in words; empty if all trials have the same."""
    trial: int
    """Number of this trial, from 1."""
    n_trials: int
    fold: int
    """Number of the held-out fold, from 1."""
    n_folds: int
    loss: float | None
    """The last measured ranking loss; None before the first, and where none is measured."""
    done: float
    """Share of the arithmetic of all trials that is done."""
    seconds_left: float | None
    """Estimate, at the pace of this process; None before a pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainProgress:
    """Progress at one moment of a run.

    Rates are measured since the last line of the history, or since the run began or was resumed.
    Rates and the time left ignore seconds of compiling. They also ignore the first kernel call,
    unless there was no other.
    """

    epoch: int
    step: int
    seconds: float
    """Seconds since the run began, without the pauses between two processes."""
    steps_per_second: float
    rows_per_second: float
    mb_per_second: float
    """Megabytes of bags in memory."""
    loss: float
    """Mean loss of a step, since the last line."""
    share_of_violations: float
    """Share of steps that found a wrongly ranked label, since the last line."""
    time: dict[str, float]
    """Seconds by purpose, such as kernel, reading or validation; see ``learn/timing.py``."""
    validation_loss: float | None
    """Ranking loss of the held-out bags; None if this moment did not measure it."""
    best_loss: float | None
    """The lowest ranking loss so far."""
    steps_here: int
    """Steps of this process; 0 if the run had ended before."""
    is_line: bool
    """Whether this moment is a line of the history."""
    epochs: int
    """Number of epochs after which the run ends; fewer than its settings say if it has a largest
    number of steps."""
    replicas: int
    """Number of replicas that take steps at the same time."""
    rounds_here: int
    """Rounds of replicas since the run began or was resumed."""
    rounds: int
    """Rounds of replicas since the last line; 0 without replicas."""
    moved_mb: float
    """Megabytes that these rounds sent to workers and back; 0 for replicas on threads."""
    mixing: str
    """How many blocks are mixed, and the variance inflation in the worst case, in words."""
    stopped_early: bool
    """Whether patience has run out."""
    done: float
    """Share of the epochs or steps that are done, ignoring early stopping."""
    seconds_left: float | None
    """Estimate, at the pace since the run began or was resumed; None before the first steps."""
    total: dict[str, float]
    """Seconds since the run began or was resumed, as in ``time``; ``all`` is the total."""

    def line(self) -> dict[str, Any]:
        """Return the fields that the history records."""
        left_out = _LIVE if self.replicas > 1 else (*_LIVE, *_OF_ROUNDS)
        line = {name: value for name, value in asdict(self).items() if name not in left_out}
        if self.replicas == 1:
            line["time"] = {
                name: seconds for name, seconds in self.time.items() if name not in OF_REPLICAS
            }
        return line


_LIVE = (
    *("steps_here", "rounds_here", "is_line", "epochs", "replicas", "mixing", "stopped_early"),
    *("done", "seconds_left", "total"),
)
"""Fields for progress bars, which the history does not record."""
_OF_ROUNDS = ("rounds", "moved_mb")
"""Fields that the history records only for runs with replicas."""
