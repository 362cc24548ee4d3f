"""Progress of a run and of its trials: values that progress bars show and the history records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
    """Steps of this process, in all restarts; 0 if the run had ended before."""
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
    """Share of the epochs or steps of all restarts that are done, ignoring early stopping."""
    seconds_left: float | None
    """Estimate for all restarts, at the pace since this one began or was resumed; None before the
    first steps."""
    total: dict[str, float]
    """Seconds since the run began or was resumed, as in ``time``; ``all`` is the total."""
    restart: int = 0
    """Number of the restart, from 0. Fields that do not name all restarts are about this one."""
    restarts: int = 1
    """Number of restarts."""

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
    *("done", "seconds_left", "total", "restart", "restarts"),
)
"""Fields for progress bars, which the history does not record."""
_OF_ROUNDS = ("rounds", "moved_mb")
"""Fields that the history records only for runs with replicas."""


class RestartsWatch:
    """Passes the progress of each restart on to a ``watch``, as progress of the whole run."""

    def __init__(self, watch: Callable[[TrainProgress], None], n_restarts: int) -> None:
        self._watch, self._n_restarts = watch, n_restarts
        self._last: dict[int, TrainProgress] = {}
        """The last progress of each restart by itself."""

    def of(self, number: int) -> Callable[[TrainProgress], None]:
        """Return the ``watch`` of one restart, numbered from 0."""

        def note(progress: TrainProgress) -> None:
            self._last[number] = progress
            self._watch(self._of_run(number, progress))

        return note

    def _of_run(self, number: int, progress: TrainProgress) -> TrainProgress:
        totals, left = [each.total for each in self._last.values()], progress.seconds_left
        if left is not None:
            is_at_end = progress.done >= 1
            whole = progress.total["all"] if is_at_end else left / (1 - progress.done)
            left += whole * (self._n_restarts - number - 1)
        return replace(
            progress,
            restart=number,
            restarts=self._n_restarts,
            done=(number + progress.done) / self._n_restarts,
            seconds_left=left,
            steps_here=sum(each.steps_here for each in self._last.values()),
            total={name: sum(each.get(name, 0.0) for each in totals) for name in progress.total},
        )
