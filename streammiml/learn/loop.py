"""The loop of a run with one replica: stream → sweep → events, to the end of the run.

Events happen between two calls of the kernel. Runs with several replicas are in
``learn/rounds.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from streammiml._base.compiled import compile_seconds
from streammiml.blocks.stream import BagStream, Batch
from streammiml.errors import DivergedError, StoreError
from streammiml.kernel.sweep import Learner
from streammiml.learn.begin import Ready
from streammiml.learn.checkpoint import Position
from streammiml.learn.events import RunEvents
from streammiml.learn.kernel_threads import Sweeper, step_settings
from streammiml.learn.progress import TrainProgress
from streammiml.learn.stop_signals import Interrupted, StopSignals
from streammiml.learn.timing import KERNEL

CALL_SECONDS = 0.25
"""Approximate duration of a kernel call. Signals are handled between two calls. The result does not
depend on the number of steps in a call."""
FIRST_CALL = 64
"""Steps of the first call, before the duration of a step has been measured."""
MOST_GROWTH = 16
"""Upper limit for the factor by which the steps of a call grow. A measured duration may be too
short: seconds in which other threads compile are subtracted from it."""


class Loop:
    """Takes the steps of a run, and calls its events at exact steps."""

    def __init__(
        self, ready: Ready, watch: Callable[[TrainProgress], None], stop: StopSignals
    ) -> None:
        self._ready, self._stop = ready, stop
        self._state, self._config, self._plan = ready.state, ready.config, ready.plan
        self._events = RunEvents(ready, self, watch, stop)
        self._call_steps = FIRST_CALL
        self._seconds_waited = 0.0
        """Seconds spent waiting for bags, without the seconds in which reading threads compiled."""

    def run(self) -> None:
        """Train to the end, save a checkpoint there, and look once more at the held-out bags."""
        if not self._is_done():
            self._train()
        self._events.save()
        self._events.last_look()

    def _train(self) -> None:
        state, config, plan = self._state, self._config, self._plan
        learner = Learner(state.weights, state.averages, step_settings(config), state.lift)
        self._events.begin()
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
        at, done, clock = self._state.at, 0, self._events.clock
        weights = self._plan.visits.weights_of(batch.numbers)
        while done < len(batch.numbers):
            if batch.epoch >= self._config.n_epochs:
                at.epoch, at.place = batch.epoch, 0
                return False
            n_steps = min(len(batch.numbers) - done, self._steps_to_event(), self._call_steps)
            part = slice(done, done + n_steps)
            visit = batch.visit[part]
            with clock.spending(KERNEL) as seconds:
                diverged_at = sweeper.sweep(
                    batch.bags, visit, at.step, self._events.tally, weights[part]
                )
            if diverged_at >= 0:
                raise diverged(diverged_at, self._config.step_size)
            steps_in_time = n_steps * CALL_SECONDS / max(seconds(), 1e-6)
            most_steps = MOST_GROWTH * max(n_steps, self._call_steps)
            self._call_steps = max(1, int(min(steps_in_time, most_steps)))
            clock.did(n_steps, *batch.sizes(visit))
            done += n_steps
            at.step += n_steps
            at.epoch, at.place = batch.epoch, int(batch.places[done - 1]) + 1
            clock.waited(self._seconds_waited)
            self._events.after_steps()
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
                self._events.save_and_stop()
            except StoreError:
                self._events.save()
                raise
            self._seconds_waited = stream.waited - compiled_while_waiting
            if batch is None:
                return
            yield batch

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

    # The schedule of the run, for its events.

    def is_look(self, step: int) -> bool:
        """Whether a run that comes to this step looks at the held-out bags there."""
        return step % self._plan.every == 0

    def share_done(self, at: Position) -> float:
        """Share of the epochs or steps that are done, ignoring early stopping."""
        config = self._config
        by_epochs = (at.epoch + at.place / self._plan.budget.plan.n_bags) / config.n_epochs
        by_steps = at.step / config.max_steps if config.max_steps else 0.0
        return min(1.0, max(by_epochs, by_steps))


def diverged(step: int, step_size: float) -> DivergedError:
    """Make the error of a run whose weights or scores are no longer finite."""
    return DivergedError(
        f"training diverged at step {step:,}: a score or weight is not a finite number; "
        f"a smaller --step-size than {step_size} may help",
        page="trouble",
    )
