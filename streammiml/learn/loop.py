"""The loop of a run: stream → sweep → events, from the position in its state to its end.

An event is what happens between two calls of the kernel: a look at the held-out bags, a line of the
history, a checkpoint, a stop signal. A look measures the ranking loss of the held-out bags.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from streammiml._base.compiled import compile_seconds
from streammiml.blocks.stream import BagStream, Batch
from streammiml.errors import DivergedError, StoreError
from streammiml.kernel.score import Weights
from streammiml.kernel.sweep import Learner, make_tally
from streammiml.learn.begin import Ready
from streammiml.learn.checkpoint import save_checkpoint, tally_of
from streammiml.learn.kernel_threads import Sweeper, step_settings
from streammiml.learn.progress import TrainProgress
from streammiml.learn.run_plan import mixing_in_words
from streammiml.learn.stop_signals import Interrupted, Stopped, StopSignals
from streammiml.learn.timing import CHECKPOINTS, KERNEL, VALIDATION, TrainClock, WorkDone

CALL_SECONDS = 0.25
"""Approximate duration of a kernel call. Signals are handled between two calls. The result does not
depend on the number of steps in a call."""
FIRST_CALL = 64
"""Steps of the first call, before the duration of a step has been measured."""
MOST_GROWTH = 16
"""Upper limit for the factor by which the steps of a call grow. A measured duration may be too
short: seconds in which other threads compile are subtracted from it."""


class Loop:
    """Takes the steps of a run and handles its events."""

    def __init__(
        self, ready: Ready, watch: Callable[[TrainProgress], None], stop: StopSignals
    ) -> None:
        self._ready, self._watch, self._stop = ready, watch, stop
        self._state, self._config, self._plan = ready.state, ready.config, ready.plan
        self._call_steps = FIRST_CALL
        self._seconds_waited = 0.0
        """Seconds spent waiting for bags, without the seconds in which reading threads compiled."""
        self._tally = tally_of(ready.state.at)
        self._clock = TrainClock()
        self._at_last_line = self._after_first_call = WorkDone()
        self._mixing = mixing_in_words(ready.plan.budget.plan)
        self._seconds_before = ready.state.at.seconds
        self._share_before = self._share_done()
        self._saved_at = (0, time.monotonic())
        """Step and time of the last checkpoint of this process."""

    def run(self) -> None:
        """Train to the end, save a checkpoint there, and look once more at the held-out bags."""
        if not self._is_done():
            self._train()
        if self._ready.folder is not None:
            self._save()
        self._last_look()

    def _train(self) -> None:
        state, config, plan = self._state, self._config, self._plan
        learner = Learner(state.weights, state.averages, step_settings(config), state.lift)
        self._watch(self._progress(None, is_line=False))
        if state.at.step == 0 and "start_fingerprint" in self._ready.fingerprints:
            state.at.history_bytes = self._note(self._look())
        with (
            BagStream(
                plan.visits.listed,
                plan.budget.plan,
                epoch=state.at.epoch,
                place=state.at.place,
                read=plan.budget.read,
                leave_out=plan.visits.left_out,
            ) as stream,
            Sweeper(learner, config.threads) as sweeper,
        ):
            for batch in self._batches(stream):
                if not self._sweep_batch(batch, sweeper):
                    return

    def _sweep_batch(self, batch: Batch, sweeper: Sweeper) -> bool:
        """Visit the bags of a batch, in calls that end at events; False at the end of the run."""
        at, done = self._state.at, 0
        while done < len(batch.numbers):
            if batch.epoch >= self._config.n_epochs:
                at.epoch, at.place = batch.epoch, 0
                return False
            n_steps = min(len(batch.numbers) - done, self._steps_to_event(), self._call_steps)
            visit = batch.visit[done : done + n_steps]
            with self._clock.spending(KERNEL) as seconds:
                diverged_at = sweeper.sweep(batch.bags, visit, at.step, self._tally)
            if diverged_at >= 0:
                raise DivergedError(
                    f"training diverged at step {diverged_at:,}: a score or weight is not a "
                    f"finite number; a smaller --step-size than {self._config.step_size} may help"
                )
            steps_in_time = n_steps * CALL_SECONDS / max(seconds(), 1e-6)
            most_steps = MOST_GROWTH * max(n_steps, self._call_steps)
            self._call_steps = max(1, int(min(steps_in_time, most_steps)))
            offsets = batch.bags.bag_offsets
            n_rows = int((offsets[visit + 1] - offsets[visit]).sum())
            n_bytes = batch.bags.nbytes * n_rows // max(1, batch.bags.n_rows)
            self._clock.did(n_steps, n_rows, n_bytes)
            done += n_steps
            at.step += n_steps
            at.epoch, at.place = batch.epoch, int(batch.places[done - 1]) + 1
            if not self._after_first_call.steps:
                # The first call loads kernels and is slow, so the pace is measured after it.
                self._after_first_call = self._clock.work()
                self._share_before = self._share_done()
            self._events()
            if self._is_done():
                return False
        return True

    def _batches(self, stream: BagStream) -> Iterator[Batch]:
        """Batches of the stream; saves the state if a read fails or is interrupted by a signal."""
        batches = iter(stream)
        compiled_while_waiting = 0.0
        while True:
            try:
                with self._stop.interrupting():
                    compiled, waited = compile_seconds(), stream.waited
                    batch = next(batches, None)
                    compiled, waited = compile_seconds() - compiled, stream.waited - waited
                    compiled_while_waiting += min(compiled, waited)
            except Interrupted:
                self._save_and_stop()
            except StoreError:
                if self._ready.folder is not None:
                    self._save()
                raise
            self._seconds_waited = stream.waited - compiled_while_waiting
            if batch is None:
                return
            yield batch

    # Events.

    def _steps_to_event(self) -> int:
        """Steps until the next event that is due at an exact step."""
        at, config, every = self._state.at, self._config, self._plan.every
        steps = [every - at.step % every]
        between_saves, _ = config.checkpoint_interval()
        if between_saves:
            steps.append(between_saves - at.step % between_saves)
        if config.max_steps:
            steps.append(config.max_steps - at.step)
        return min(steps)

    def _is_done(self) -> bool:
        at, config = self._state.at, self._config
        if config.max_steps is not None and at.step >= config.max_steps:
            return True
        return at.epoch >= config.n_epochs or self._ready.stopped_early

    def _events(self) -> None:
        at = self._state.at
        self._clock.waited(self._seconds_waited)
        at.tally_counts, at.tally_loss = self._tally.counts.tolist(), float(self._tally.loss[0])
        if at.step % self._plan.every == 0:
            at.history_bytes = self._note(self._look())
            self._tally = make_tally()
            at.tally_counts, at.tally_loss = self._tally.counts.tolist(), 0.0
            self._at_last_line = self._clock.work()
        else:
            self._watch(self._progress(None, is_line=False))
        if self._ready.folder is not None and self._is_save_due():
            self._save()
        if self._stop.number:
            self._save_and_stop()

    def _is_save_due(self) -> bool:
        steps, seconds = self._config.checkpoint_interval()
        saved_step, saved_time = self._saved_at
        step = self._state.at.step
        by_steps = steps is not None and step % steps == 0
        by_time = seconds is not None and time.monotonic() - saved_time >= seconds
        return step != saved_step and (by_steps or by_time)

    def _save_and_stop(self) -> NoReturn:
        if self._ready.folder is not None:
            self._save()
        raise Stopped(self._stop.number, self._state.at.step)

    def _save(self) -> None:
        folder = self._ready.folder
        assert folder is not None, "only runs in a folder are saved"
        with self._clock.spending(CHECKPOINTS):
            save_checkpoint(folder.checkpoints, self._state, self._ready.key)
        self._saved_at = (self._state.at.step, time.monotonic())

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

    def _last_look(self) -> None:
        """Look at the weights of the last step, so that the returned weights are no worse.

        The checkpoint was saved before this look: if the run is extended, the result must be that
        of a run that did not end here.
        """
        if self._state.at.step % self._plan.every:
            self._note(self._look())

    def _validation_loss(self, weights: Weights) -> float:
        assert self._plan.validation is not None, "called only if there are held-out bags"
        with self._clock.spending(VALIDATION):
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
        at, now = self._state.at, self._clock.work()
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
            epochs=self._config.n_epochs,
            mixing=self._mixing,
            stopped_early=self._ready.stopped_early,
            done=self._share_done(),
            seconds_left=self._seconds_left(now),
            total={**now.times(), "all": now.seconds},
        )

    def _share_done(self) -> float:
        at, config = self._state.at, self._config
        by_epochs = (at.epoch + at.place / self._plan.budget.plan.n_bags) / config.n_epochs
        by_steps = at.step / config.max_steps if config.max_steps else 0.0
        return min(1.0, max(by_epochs, by_steps))

    def _seconds_left(self, now: WorkDone) -> float | None:
        """Seconds to the last epoch or step, at the pace of this process; None before a pace."""
        done = self._share_done()
        done_here = done - self._share_before
        if done_here <= 0:
            return None
        return (now - self._after_first_call).seconds_at_work / done_here * (1 - done)
