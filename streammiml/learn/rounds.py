"""Runs with several replicas: rounds of steps on the same weights, then one reduction.

A round begins with the same weights for all replicas. Each takes the same number of steps on its
own share of the blocks (``learn/replica.py``). Then their changes are joined in the order of the
replicas (``kernel/reduce.py``). Where turns run, on how many threads or workers, and which ends
first, does not change a bit of the result.

Steps are those of each replica: a run of R replicas visits R bags in a step.

Measured (parallel steps of one replica divided by those of 8 replicas, to the same ranking loss of
held-out bags; T is the length of rounds, limited to 4096; planted: 20 000 bags, d = 200, L = 100):

    ==========================  =============  ================  ==============
    T                           planted, .005  Reuters sentences  MNIST bags,
                                               (sparse), .010     .015
    ==========================  =============  ================  ==============
    512, then a quarter         4.4            3.9                3.7
    64, then a quarter          5.3            3.8                above .015
    64, then an eighth          5.2            4.9                3.5
    128, then a 16th            7.0            6.5                4.1
    64, then a 32nd             6.1            7.6                3.9
    ==========================  =============  ================  ==============

"A 16th" means that a round is as long as a 16th of the steps before it. One seed each.
"""

from __future__ import annotations

import math
import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streammiml._base.pool_interface import Pool, this_worker
from streammiml.blocks.replica_streams import StreamPlace
from streammiml.errors import DivergedError, StreammimlError
from streammiml.kernel.average import STRIDE, iterates_before
from streammiml.kernel.tile import I64
from streammiml.learn.begin import Ready
from streammiml.learn.checkpoint import Position
from streammiml.learn.events import RunEvents
from streammiml.learn.kernel_threads import step_settings
from streammiml.learn.loop import diverged
from streammiml.learn.probe import arithmetic
from streammiml.learn.progress import TrainProgress
from streammiml.learn.reduction import FAN_IN, GroupResult, Reduction
from streammiml.learn.replica import (
    ReplicaJob,
    TurnResult,
    end_turns,
    take_turn,
)
from streammiml.learn.round_weights import RoundStart
from streammiml.learn.run_plan import check_worker_memory
from streammiml.learn.stop_signals import Interrupted, StopSignals
from streammiml.learn.timing import KERNEL, MOVING, READING, REDUCING, WAITING
from streammiml.learn.worker_turns import WorkerTurns

FIRST_STEPS = 128
"""Steps of the first rounds, in which the basis of the shared space and the order of sub-concepts
are chosen."""
WORKERS_SECONDS = 1.0
"""How often the loop asks which workers there are, at most."""
GROWTH = 16
"""A later round is at most this fraction of the steps before it."""


class RoundSchedule:
    """The steps at which rounds end, as a function of the settings alone."""

    def __init__(self, round_steps: int, every: int, end: int) -> None:
        self._most, self._every, self.end = round_steps, every, end

    def next_end(self, step: int) -> int:
        """Step at which the round that begins at ``step`` ends, if the run does not end before."""
        grown = step // GROWTH // STRIDE * STRIDE
        return step + min(self._most, max(FIRST_STEPS, grown))

    def is_look(self, step: int) -> bool:
        """Whether the round that ends at ``step`` passes a multiple of the steps between looks."""
        before, end = 0, self.next_end(0)
        while end < step:
            before, end = end, self.next_end(end)
            if end - before == self._most:
                # From here on all rounds have the same length.
                before += (step - before - 1) // self._most * self._most
                end = before + self._most
        return step == 0 or (end == step and step // self._every > before // self._every)

    def share_done(self, at: Position) -> float:
        """Share of the steps that are done, ignoring early stopping."""
        return min(1.0, at.step / self.end)


class RoundLoop:
    """Takes the rounds of a run with replicas on a pool, and calls its events after each."""

    def __init__(
        self,
        ready: Ready,
        watch: Callable[[TrainProgress], None],
        stop: StopSignals,
        pool: Pool,
        *,
        mixed_machines: bool = False,
    ) -> None:
        self._ready, self._stop, self._pool = ready, stop, pool
        self._mixed_machines = mixed_machines
        self._state, self._config = ready.state, ready.config
        self._schedule = round_schedule(ready)
        self._events = RunEvents(ready, self._schedule, watch, stop)
        if not ready.state.at.replicas:
            ready.state.at.replicas = [[0, 0] for _ in range(ready.config.replicas)]
        self._job = replica_job(ready)
        self._worker_of: dict[int, str] = {}
        """Address of the worker that took the last turn of each replica."""
        self._threads_of: dict[str, int] = {}
        self._workers_known_until = 0.0
        self._reduction = Reduction()
        self._before, self._changed = -1, list[I64]()
        """Step at which the round before began, and what has changed since."""
        self._sent = 0
        """Bytes of the weights that were sent to workers in this round."""

    def run(self) -> None:
        """Train to the end, and look once more at the held-out bags.

        A last round that is shorter than it would be in a longer run comes after the last
        checkpoint: if the run is extended, the result must be that of a run that did not end here.
        """
        self._check_workers()
        job = self._pool.share(self._job)
        try:
            if not self._is_done():
                self._events.begin()
            while not self._is_done():
                end = self._schedule.next_end(self._state.at.step)
                if end > self._schedule.end:
                    self._events.save()
                    self._take_round(job, self._schedule.end)
                    break
                self._take_round(job, end)
                self._events.after_steps()
            else:
                self._events.save()
            self._events.last_look()
        finally:
            self._end_turns()

    def _check_workers(self) -> None:
        """Refuse workers that cannot read the stores, before the first step."""
        if not self._pool.is_remote:
            return
        visits = pickle.dumps(self._job.visits)
        for address, answer in self._pool.on_every_worker(_open_stores, visits).items():
            # A worker that gives no answer may be gone; then its tasks run elsewhere.
            if isinstance(answer, Exception) and not isinstance(answer, OSError):
                raise StreammimlError(
                    f"the worker at {address} cannot read the store: {answer}; workers must see "
                    "the same files at the same paths"
                )
        check_worker_memory(self._ready.plan, self._pool.least_memory())
        self._probe_workers()

    def _probe_workers(self) -> None:
        """Refuse workers that compute other bits; those that join later are checked by a turn."""
        if self._mixed_machines:
            return
        is_sparse, addresses = self._ready.plan.visits.listed.sparse, [*self._pool.workers()]
        for worker, bits in self._pool.map(
            _probe, addresses, is_sparse, prefer=lambda address: address
        ):
            self._check_arithmetic(worker, bits)

    def _end_turns(self) -> None:
        end_turns(self._job.key)
        if self._pool.is_remote:
            try:
                self._pool.on_every_worker(end_turns, self._job.key)
            except StreammimlError:
                return  # The scheduler is gone; workers close idle streams themselves.

    def _is_done(self) -> bool:
        return self._state.at.step >= self._schedule.end or self._ready.stopped_early

    def _take_round(self, job: Any, end: int) -> None:
        """Let all replicas take their steps, and join what they changed."""
        state, clock, begun = self._state, self._events.clock, time.monotonic()
        at, n_replicas = state.at, self._config.replicas
        first, last = (int(iterates_before(state.averages, step)) for step in (at.step, end))
        start = RoundStart(
            *(at.step, end - at.step, last > first, state.weights),
            before=self._before,
            changed=self._changed,
        )
        reduction = self._reduction
        reduction.begin(start)
        spent = dict.fromkeys((KERNEL, READING, REDUCING, WAITING), 0.0)
        results: list[TurnResult] = []
        moved = 0
        with self._saving_before_the_round():
            for group in self._groups(start, job):
                for result in group.turns:
                    self._check(result)
                reducing = time.monotonic()
                reduction.add(group)
                spent[REDUCING] += time.monotonic() - reducing + group.seconds
                moved += group.moved
                results += [result.without_changes() for result in group.turns]
        assert [result.at.replica for result in results] == list(range(n_replicas))
        reducing = time.monotonic()
        is_finite = reduction.apply(state, n_replicas, (first, last), self._config.max_norm)
        self._before, self._changed = at.step, reduction.changed_rows()
        spent[REDUCING] += time.monotonic() - reducing
        if not is_finite:
            raise diverged(end, self._config.step_size)
        n_at_once = min(self._pool.n_threads, n_replicas)
        for purpose, seconds in seconds_of_turns(results, n_at_once).items():
            spent[purpose] += seconds
        for result in results:
            self._worker_of[result.at.replica] = result.worker
            self._events.tally.counts[:] += result.tally.counts
            self._events.tally.loss[:] += result.tally.loss
            clock.did(0, result.n_rows, result.n_bytes)
        for purpose, seconds in spent.items():
            clock.add(purpose, seconds)
        clock.add(MOVING, max(0.0, time.monotonic() - begun - sum(spent.values())))
        clock.did(end - at.step, 0, 0)
        clock.did_round(moved + self._sent if self._pool.is_remote else 0)
        at.step, at.replicas = end, [list(result.at[1:]) for result in results]
        at.epoch, at.place = min(result.at.epoch for result in results), 0

    @contextmanager
    def _saving_before_the_round(self) -> Iterator[None]:
        """If a signal or an error ends the round, save the state, which the round has not changed.

        In this context a signal interrupts the main thread.
        """
        try:
            with self._stop.interrupting():
                yield
        except (Interrupted, KeyboardInterrupt):
            end_turns(self._job.key)
            if not self._stop.number:
                raise
            self._events.save_and_stop()
        except DivergedError:
            raise
        except StreammimlError:
            self._events.save()
            raise

    def _check(self, result: TurnResult) -> None:
        """Refuse a turn that diverged, and one of a machine that computes other bits."""
        if result.diverged_at >= 0:
            raise diverged(result.diverged_at, self._config.step_size)
        self._check_arithmetic(result.worker, result.arithmetic)

    def _check_arithmetic(self, worker: str, arithmetic: str) -> None:
        """Refuse a machine that computes other bits; ``arithmetic`` is the result of its probe."""
        at = self._state.at
        at.arithmetic = at.arithmetic or arithmetic
        if arithmetic != at.arithmetic and not self._mixed_machines:
            machine = f"the worker at {worker}" if worker else "this machine"
            raise StreammimlError(
                f"{machine} computes other bits than the machines that the run began on, so its "
                "processor is of another kind; use machines of one kind, or give --mixed-machines: "
                "then the result depends on which machine takes which turn"
            )

    def _groups(self, start: RoundStart, job: Any) -> Iterator[GroupResult]:
        """Take the turns of a round; yield the results of each group, in the order of replicas."""
        places = self._state.at.replicas
        turns = [StreamPlace(replica, *place) for replica, place in enumerate(places)]
        groups = [turns[first : first + FAN_IN] for first in range(0, len(turns), FAN_IN)]
        if self._pool.is_remote:
            workers = self._wanted_workers()
            there = WorkerTurns(self._pool, start, job, lambda turn: workers.get(turn.replica))
            yield from there.results(groups)
            self._sent = there.sent_bytes
            return
        results = self._pool.map(take_turn, turns, start, job)
        for group in groups:
            yield GroupResult.of([next(results) for _ in group])

    def _wanted_workers(self) -> dict[int, str]:
        """Choose the worker of each replica: the one that has its stream, unless it has too many.

        Workers may come and go, so each gets as many replicas as its share of all threads.
        """
        if not self._pool.is_remote:
            return {}
        if time.monotonic() >= self._workers_known_until:
            self._threads_of = self._pool.workers()
            self._workers_known_until = time.monotonic() + WORKERS_SECONDS
        threads = self._threads_of
        n_replicas, n_threads = self._config.replicas, max(1, sum(threads.values()))
        room = {
            address: math.ceil(n_replicas * count / n_threads) for address, count in threads.items()
        }
        wanted = {}
        for replica in range(n_replicas):
            address = self._worker_of.get(replica, "")
            if room.get(address, 0) > 0:
                wanted[replica] = address
                room[address] -= 1
        for replica in range(n_replicas):
            if replica not in wanted and room:
                address = max(room, key=lambda candidate: room[candidate])
                wanted[replica] = address
                room[address] -= 1
        return wanted


def seconds_of_turns(turns: Sequence[TurnResult], n_at_once: int) -> dict[str, float]:
    """Seconds of the turns of a round, of which ``n_at_once`` run at a time, by purpose."""
    kernel = sum(turn.kernel_seconds for turn in turns) / n_at_once
    reading = sum(turn.reading_seconds for turn in turns) / n_at_once
    busy: dict[tuple[str, int], float] = {}
    for turn in turns:
        thread = turn.worker, turn.thread
        busy[thread] = busy.get(thread, 0.0) + turn.seconds
    mean = sum(busy.values()) / n_at_once
    return {
        KERNEL: kernel,
        READING: reading,
        REDUCING: max(0.0, mean - kernel - reading),
        WAITING: max(0.0, max(busy.values()) - mean),
    }


def _probe(_address: str, is_sparse: bool) -> tuple[str, str]:
    """Address of the worker that runs this, and what it computes in the probe."""
    return this_worker(), arithmetic(sparse=is_sparse)


def _open_stores(visits: bytes) -> None:
    """Open the stores of a run, as a worker's first turn does."""
    pickle.loads(visits)


def round_schedule(ready: Ready) -> RoundSchedule:
    """Schedule of a run with replicas: its end is counted in steps of each replica."""
    config = ready.config
    assert config.round_steps is not None, "the length of rounds is filled in before a run begins"
    end = last_step(config.n_epochs, ready.plan.visits.steps_an_epoch(), config.replicas)
    if config.max_steps is not None:
        end = min(end, config.max_steps)
    return RoundSchedule(config.round_steps, ready.plan.every, end)


def last_step(n_epochs: int, steps_an_epoch: float, n_replicas: int) -> int:
    """Steps of each replica in a number of epochs; an epoch has ``steps_an_epoch`` in all."""
    return max(1, math.ceil(n_epochs * steps_an_epoch / n_replicas))


def replica_job(ready: Ready) -> ReplicaJob:
    """Collect what the turns of a run need."""
    return ReplicaJob(
        key=uuid.uuid4().hex,
        visits=ready.plan.visits,
        plan=ready.plan.budget.plan,
        read=ready.plan.budget.read,
        settings=step_settings(ready.config),
        lift=ready.state.lift,
        stride=ready.state.averages.stride,
    )
