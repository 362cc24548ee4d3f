"""Events of a run: looks at held-out bags, lines of the history, checkpoints, stop signals.

A look measures the ranking loss of the held-out bags. ``learn/loop.py`` and ``learn/rounds.py``
take the steps, and call :meth:`RunEvents.after_steps` in between.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from streammiml.config import TrainConfig
from streammiml.kernel.score import Weights
from streammiml.kernel.sweep import make_tally
from streammiml.learn.begin import Ready
from streammiml.learn.checkpoint import Position, save_checkpoint, tally_of
from streammiml.learn.progress import TrainProgress
from streammiml.learn.run_plan import mixing_in_words
from streammiml.learn.stop_signals import Stopped, StopSignals
from streammiml.learn.timing import CHECKPOINTS, VALIDATION, TrainClock, WorkDone

_LOG = logging.getLogger("streammiml.train")


class RunSchedule(Protocol):
    """When a run ends and looks at the held-out bags; depends on the position alone."""

    def share_done(self, at: Position) -> float:
        """Share of the epochs or steps that are done, ignoring early stopping."""

    def is_look(self, step: int) -> bool:
        """Whether a run that comes to this step looks at the held-out bags there."""


def last_epoch(config: TrainConfig, epoch_steps: float) -> int:
    """Number of epochs that a run begins; ``max_steps`` may end it before the last.

    An epoch of one replica has about ``epoch_steps``, of R replicas a share of them.
    """
    if config.max_steps is None:
        return config.n_epochs
    by_steps = math.ceil(config.max_steps * config.replicas / max(epoch_steps, 1))
    return min(config.n_epochs, max(1, by_steps))


class RunEvents:
    """Handles the events of a run, and measures its progress."""

    def __init__(
        self,
        ready: Ready,
        schedule: RunSchedule,
        watch: Callable[[TrainProgress], None],
        stop: StopSignals,
    ) -> None:
        self._ready, self._schedule, self._watch, self._stop = ready, schedule, watch, stop
        self._state, self._config, self._plan = ready.state, ready.config, ready.plan
        self.tally = tally_of(ready.state.at)
        """Sums over the steps since the last line of the history."""
        self.clock = TrainClock()
        self._at_last_line = self._after_first_call = WorkDone()
        self._mixing = mixing_in_words(ready.plan.budget.plan)
        self._n_epochs = last_epoch(ready.config, ready.plan.visits.steps_an_epoch())
        self._seconds_before = ready.state.at.seconds
        self._share_before = schedule.share_done(ready.state.at)
        self._saved_at = (ready.state.at.step, time.monotonic())
        """Step and time of the last checkpoint."""
        self._step_before = ready.state.at.step
        """Step of the last events."""

    def begin(self) -> None:
        """Show the beginning; a run that starts from a model looks at the held-out bags first."""
        self._watch(self._progress(None, is_line=False))
        at = self._state.at
        # A run that was stopped in its first round has a checkpoint of step 0, with the look.
        is_new = at.step == 0 and not at.history_bytes
        if is_new and "start_fingerprint" in self._ready.fingerprints:
            at.history_bytes = self._note(self._look())

    def after_steps(self) -> None:
        """Handle what is due after the steps since the last call."""
        at = self._state.at
        if not self._after_first_call.steps:
            # The first call loads kernels and is slow, so the pace is measured after it.
            self._after_first_call = self.clock.work()
            self._share_before = self._schedule.share_done(at)
        self._keep_tally()
        if self._schedule.is_look(at.step):
            at.history_bytes = self._note(self._look())
            self.tally = make_tally()
            at.tally_counts, at.tally_loss = self.tally.counts.tolist(), 0.0
            self._at_last_line = self.clock.work()
        else:
            self._watch(self._progress(None, is_line=False))
        if self._is_save_due():
            self.save()
        self._step_before = at.step
        if self._stop.number:
            self.save_and_stop()

    def _keep_tally(self) -> None:
        """Copy the sums over steps to the state."""
        at = self._state.at
        at.tally_counts, at.tally_loss = self.tally.counts.tolist(), float(self.tally.loss[0])

    def _is_save_due(self) -> bool:
        steps, seconds = self._config.checkpoint_interval()
        saved_step, saved_time = self._saved_at
        step = self._state.at.step
        by_steps = steps is not None and step // steps > self._step_before // steps
        by_time = seconds is not None and time.monotonic() - saved_time >= seconds
        return step != saved_step and (by_steps or by_time)

    def save_and_stop(self) -> NoReturn:
        """Save a checkpoint and end the run as the signal demands."""
        self.save()
        raise Stopped(self._stop.number, self._state.at.step)

    def save(self) -> None:
        """Save a checkpoint, if the run has a folder."""
        folder = self._ready.folder
        if folder is None:
            return
        with self.clock.spending(CHECKPOINTS):
            save_checkpoint(folder.checkpoints, self._state, self._ready.key)
        self._saved_at = (self._state.at.step, time.monotonic())
        _LOG.info("checkpoint of step %s in %s", f"{self._state.at.step:,}", folder.checkpoints)

    # Looks at the held-out bags.

    def _look(self) -> float | None:
        """Ranking loss of the held-out bags under the weights that would be returned."""
        if self._plan.validation is None:
            return None
        at, weights = self._state.at, self._state.returned()
        loss = self._validation_loss(weights)
        if at.best_loss is None or loss < at.best_loss:
            at.best_loss, at.best_step, at.bad_checks = loss, at.step, 0
            self._state.best = weights
        else:
            at.bad_checks += 1
        return loss

    def last_look(self) -> None:
        """Look at the weights of the last step, so that the returned weights are no worse.

        The checkpoint was saved before this look: if the run is extended, the result must be that
        of a run that did not end here.
        """
        if not self._schedule.is_look(self._state.at.step):
            self._keep_tally()
            self._note(self._look())

    def _validation_loss(self, weights: Weights) -> float:
        assert self._plan.validation is not None, "called only if there are held-out bags"
        with self.clock.spending(VALIDATION):
            deadline = self._plan.budget.read.deadline
            return self._plan.validation.loss(self._state.lift, weights, deadline)

    # Progress.

    def _note(self, loss: float | None) -> int:
        """Append a line to the history; returns the new size of the file."""
        progress, folder = self._progress(loss, is_line=True), self._ready.folder
        size = folder.note(progress.line()) if folder is not None else 0
        self._watch(progress)
        return size

    def _progress(self, loss: float | None, *, is_line: bool) -> TrainProgress:
        at, now = self._state.at, self.clock.work()
        at.seconds = self._seconds_before + now.seconds
        since_line, n_steps = now - self._at_last_line, max(1, at.tally_counts[0])
        rates_begun = max(self._at_last_line, self._after_first_call, key=lambda work: work.steps)
        steady = now - rates_begun
        rates = steady if steady.steps else since_line
        return TrainProgress(
            epoch=at.epoch,
            step=at.step,
            seconds=round(at.seconds, 3),
            steps_per_second=round(rates.per_second(rates.steps), 1),
            rows_per_second=round(rates.per_second(rates.rows), 1),
            mb_per_second=round(rates.per_second(rates.n_bytes) / 1e6, 3),
            loss=at.tally_loss / n_steps,
            share_of_violations=at.tally_counts[1] / n_steps,
            time=since_line.times(),
            validation_loss=loss,
            best_loss=at.best_loss,
            steps_here=now.steps,
            is_line=is_line,
            epochs=self._n_epochs,
            replicas=self._config.replicas,
            rounds=since_line.rounds,
            rounds_here=now.rounds,
            moved_mb=round(since_line.moved / 1e6, 3),
            mixing=self._mixing,
            stopped_early=self._ready.stopped_early,
            done=self._schedule.share_done(at),
            seconds_left=self._seconds_left(now),
            total={**now.times(), "all": now.seconds},
        )

    def _seconds_left(self, now: WorkDone) -> float | None:
        """Seconds to the last epoch or step, at the pace of this process; None before a pace."""
        done = self._schedule.share_done(self._state.at)
        done_here = done - self._share_before
        if done_here <= 0:
            return None
        return (now - self._after_first_call).seconds_at_work / done_here * (1 - done)
