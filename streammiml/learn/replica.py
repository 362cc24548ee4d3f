"""A replica's turn in a round: its steps on its own share of the bags, and what they changed.

A turn is a pure function of the job, the weights at the beginning of the round, and its place:
wherever and however often it runs, the result has the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from streammiml._base.hashing import mixed
from streammiml._base.pool_interface import this_thread, this_worker
from streammiml.blocks.plan import BlockPlan
from streammiml.blocks.replica_streams import (
    ReplicaStream,
    ReplicaStreams,
    StreamPlace,
    StreamSource,
)
from streammiml.blocks.stream import ReadSettings
from streammiml.errors import StreammimlError
from streammiml.kernel.average import iterates_before, make_averages
from streammiml.kernel.lift import Lift
from streammiml.kernel.reduce import Change, find_changes
from streammiml.kernel.score import Weights
from streammiml.kernel.step import Settings
from streammiml.kernel.sweep import Learner, Tally, make_tally
from streammiml.kernel.tile import I64, aligned_zeros
from streammiml.learn.checkpoint import aligned
from streammiml.learn.defaults import STREAMS_KEPT, TURNS_AT_ONCE
from streammiml.learn.kernel_threads import Sweeper
from streammiml.learn.probe import arithmetic
from streammiml.learn.round_weights import RoundStart, SentStart, WeightCache, weight_tables
from streammiml.learn.store_weights import Visits

NO_CHANGE = Change(
    np.zeros(0, np.int64), np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32)
)
_SEED_KEY = 0x2E91_1CA5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJob:
    """What every turn of a run needs; sent to each worker once."""

    key: str
    """Tells apart the runs of a process."""
    visits: Visits
    plan: BlockPlan
    read: ReadSettings
    settings: Settings
    lift: Lift
    stride: int
    """Steps from one iterate of the mean to the next; 0 without means."""

    def source(self) -> StreamSource:
        """What the replicas read."""
        return StreamSource(
            key=self.key,
            store=self.visits.listed,
            leave_out=self.visits.left_out,
            plan=self.plan,
            read=self.read,
            n_kept=STREAMS_KEPT,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _received_job, tuple(getattr(self, field.name) for field in fields(self))


def _received_job(*values: Any) -> ReplicaJob:
    """Rebuild a job in another process; its arrays arrive at addresses that kernels cannot use."""
    job = ReplicaJob(**dict(zip((field.name for field in fields(ReplicaJob)), values, strict=True)))
    return replace(job, lift=Lift(*map(_usable, job.lift)))


def _usable(value: Any) -> Any:
    """Copy an array to an address that kernels can use; other values stay as they are."""
    return aligned(value) if isinstance(value, np.ndarray) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What a turn changed, and where the replica has come to."""

    at: StreamPlace
    shared: Change
    labels: Change
    tally: Tally
    diverged_at: int
    """Step at which a score or weight stopped being finite, or -1."""
    n_rows: int
    n_bytes: int
    kernel_seconds: float
    reading_seconds: float
    seconds: float
    """Seconds of the whole turn."""
    thread: int
    """Number of the thread that took the turn, in its process."""
    kept_stream: bool
    """Whether the stream of the turn before was still open."""
    worker: str
    """Address of the worker that took the turn; empty for a thread of the training process."""
    arithmetic: str
    """What the machine computes in the probe of ``learn/probe.py``."""

    @property
    def n_bytes_of_changes(self) -> int:
        """Bytes of the changed vectors and of their means."""
        return self.shared.nbytes + self.labels.nbytes

    def without_changes(self) -> TurnResult:
        """Copy without the arrays of the changes, which may be large."""
        return replace(self, shared=NO_CHANGE, labels=NO_CHANGE)


class NoWeights(NamedTuple):
    """The answer of a worker that does not have the weights of the round before."""

    at: StreamPlace


class TurnCancelled(StreammimlError):
    """The run stopped while the turn ran."""


def replica_seed(seed: int, replica: int) -> int:
    """Seed of a replica's draws; those of replica 0 are those of a run without replicas."""
    if replica == 0:
        return seed
    return int(mixed(np.array([seed]), _SEED_KEY, replica)[0] >> np.uint64(1))


def take_turn(at: StreamPlace, start: RoundStart, job: ReplicaJob) -> TurnResult:
    """Take the steps of one replica in a round."""
    with _STREAMS.turns:
        return _take_turn(at, start, job)


def take_sent_turn(at: StreamPlace, sent: SentStart, job: ReplicaJob) -> TurnResult | NoWeights:
    """Take the steps of one replica on a worker, if it has the weights of the round before."""
    with _STREAMS.turns:
        start = known_start(sent, job)
        return NoWeights(at) if start is None else _take_turn(at, start, job)


def known_start(sent: SentStart, job: ReplicaJob) -> RoundStart | None:
    """Beginning of a round on a worker; None if all weights must be sent."""
    return _WEIGHTS.begin(job.key, sent)


def _take_turn(at: StreamPlace, start: RoundStart, job: ReplicaJob) -> TurnResult:
    begun = time.monotonic()
    _check_not_cancelled(job)
    source = job.source()
    space = _SPACES.pop() if _SPACES else None
    if space is None or not space.fits(job, start.weights):
        space = _TurnSpace(job, start.weights)
    stream = None
    try:
        stream, kept_stream = _STREAMS.take(source, at)
        waited = stream.waited
        done = _take_steps(stream, space, start, job)
    except BaseException:
        if stream is not None:
            stream.close()
        _STREAMS.drop_unused_bags(job.key)
        raise
    shared, labels = space.changes(start, job.key)
    result = TurnResult(
        at=stream.at,
        shared=shared,
        labels=labels,
        tally=done.tally,
        diverged_at=done.diverged_at,
        n_rows=done.n_rows,
        n_bytes=done.n_bytes,
        kernel_seconds=done.seconds,
        reading_seconds=stream.waited - waited,
        seconds=time.monotonic() - begun,
        thread=this_thread(),
        kept_stream=kept_stream,
        worker=this_worker(),
        arithmetic=arithmetic(sparse=job.visits.listed.sparse),
    )
    _SPACES.append(space)
    _STREAMS.give_back(source, stream)
    return result


def end_turns(key: str) -> None:
    """Cancel the turns of a run in this process, and close its streams."""
    _CANCELLED.add(key)
    _STREAMS.close(key)
    _SPACES.clear()
    _WEIGHTS.forget(key)


def _check_not_cancelled(job: ReplicaJob) -> None:
    if job.key in _CANCELLED:
        raise TurnCancelled("the run was stopped")


class _StepsDone(NamedTuple):
    tally: Tally
    diverged_at: int
    n_rows: int
    n_bytes: int
    seconds: float
    """Seconds of the kernel."""


def _take_steps(
    stream: ReplicaStream, space: _TurnSpace, start: RoundStart, job: ReplicaJob
) -> _StepsDone:
    """Take the steps on the next bags of a stream; changes the weights of the space."""
    settings = job.settings._replace(seed=replica_seed(job.settings.seed, stream.at.replica))
    space.begin(start, job.key)
    learner = Learner(space.weights, space.averages, settings, job.lift)
    tally, diverged_at, n_rows, n_bytes, seconds = make_tally(), -1, 0, 0, 0.0
    step, stop = start.step, start.step + start.n_steps
    with Sweeper(learner, 1) as sweeper:
        while step < stop and diverged_at < 0:
            _check_not_cancelled(job)
            batch = stream.take(stop - step)
            begun = time.monotonic()
            weights = job.visits.weights_of(batch.numbers)
            diverged_at = sweeper.sweep(batch.bags, batch.visit, step, tally, weights)
            seconds += time.monotonic() - begun
            step += len(batch.visit)
            rows, size = batch.sizes(batch.visit)
            n_rows, n_bytes = n_rows + rows, n_bytes + size
    return _StepsDone(tally, diverged_at, n_rows, n_bytes, seconds)


class _TurnSpace:
    """Weights and means of one turn at a time."""

    def __init__(self, job: ReplicaJob, weights: Weights) -> None:
        self._stride = job.stride
        self.weights = Weights(*(aligned_zeros(array.shape) for array in weights))
        self.averages = make_averages(*weights, job.stride)
        self._begun: tuple[str, int] | None = None
        """Run and step of the beginning of the last turn that ended."""
        self._changed: list[I64] = []
        """Rows that this turn changed."""

    def fits(self, job: ReplicaJob, weights: Weights) -> bool:
        """Whether a turn of this job can use the space."""
        shapes = [[array.shape for array in tables] for tables in (self.weights, weights)]
        return shapes[0] == shapes[1] and self._stride == job.stride

    def begin(self, start: RoundStart, key: str) -> None:
        """Take the weights, and set the means to zeros that have seen the iterates so far.

        Only what differs is copied: what the last turn here changed, and what the reduction did.
        """
        averages, seen = self.averages, iterates_before(self.averages, start.step)
        tables = zip(
            weight_tables(*self.weights),
            weight_tables(*start.weights),
            weight_tables(averages.shared, averages.labels),
            self._stale_rows(start, key),
            strict=True,
        )
        for mine, given, means, stale in tables:
            rows: Any = stale if stale is not None and 2 * len(stale) < len(mine) else slice(None)
            mine[rows] = given[rows]
            if len(means):
                means[rows] = 0
        averages.shared_seen[...], averages.labels_seen[...] = seen, seen
        self._begun = None

    def _stale_rows(self, start: RoundStart, key: str) -> Sequence[I64 | None]:
        """Rows of both tables that differ from a beginning; None if any row may differ."""
        if self._begun == (key, start.step):
            return self._changed
        if self._begun == (key, start.before):
            pairs = zip(self._changed, start.changed, strict=True)
            return [np.union1d(mine, others) for mine, others in pairs]
        return None, None

    def changes(self, start: RoundStart, key: str) -> tuple[Change, Change]:
        """Changed vectors of the shared space and of the labels."""
        averages, before, after = self.averages, start.weights, self.weights
        steps = (start.step, start.step + start.n_steps)
        iterates = (
            int(iterates_before(averages, steps[0])),
            int(iterates_before(averages, steps[1])),
        )
        width = before.labels.shape[2]
        shared = find_changes(
            before.shared, after.shared, averages.shared, averages.shared_seen, iterates
        )
        labels = find_changes(
            before.labels.reshape(-1, width),
            after.labels.reshape(-1, width),
            averages.labels.reshape(-1, width),
            averages.labels_seen.reshape(-1),
            iterates,
        )
        self._begun, self._changed = (key, start.step), [shared.rows, labels.rows]
        return shared, labels


_STREAMS = ReplicaStreams(TURNS_AT_ONCE)
_SPACES: list[_TurnSpace] = []
"""Spaces of turns that have ended, for the next turns."""
_WEIGHTS = WeightCache()
"""Weights that this process has as a worker."""
_CANCELLED: set[str] = set()
"""Keys of the runs that have ended in this process."""
