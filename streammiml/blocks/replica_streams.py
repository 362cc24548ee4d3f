"""Streams of replicas that a process keeps open from one turn of a replica to the next.

A replica that comes back to the place where its stream stands goes on with it. Otherwise a new
stream is opened, which costs time and delivers the same bags.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from streammiml.bags.views import Bags
from streammiml.blocks.plan import BlockPlan
from streammiml.blocks.stream import BagStream, Batch, HeldBags, LeaveOut, ReadSettings, hold_all

IDLE_SECONDS = 300.0
"""Streams that no turn has used for this long are closed: their run may be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """What all replicas of a run read, and how."""

    key: str
    """Tells apart the runs of a process."""
    store: Bags
    leave_out: LeaveOut
    plan: BlockPlan
    """Plan of replica 0."""
    read: ReadSettings
    n_kept: int = 16
    """Most streams that a process keeps open."""


class StreamPlace(NamedTuple):
    """A place in the epoch of a replica."""

    replica: int
    epoch: int
    place: int


class ReplicaStream:
    """The bags of one replica, and the place of the next."""

    def __init__(self, source: StreamSource, at: StreamPlace, held: HeldBags | None) -> None:
        self._stream = BagStream(
            source.store,
            replace(source.plan, replica=at.replica),
            epoch=at.epoch,
            place=at.place,
            read=source.read,
            leave_out=source.leave_out,
            held=held,
        )
        self._batches: Iterator[Batch] = iter(self._stream)
        self._batch: Batch | None = None
        self._n_taken = 0
        self.at = at
        self.used = time.monotonic()

    def take(self, n: int) -> Batch:
        """Return the next visits, at most ``n`` of them."""
        while self._batch is None or self._n_taken == len(self._batch.numbers):
            self._batch, self._n_taken = next(self._batches), 0
        batch, first = self._batch, self._n_taken
        part = slice(first, min(first + n, len(batch.numbers)))
        self._n_taken = part.stop
        self.at = StreamPlace(self.at.replica, batch.epoch, int(batch.places[part.stop - 1]) + 1)
        visit, numbers, places = batch.visit[part], batch.numbers[part], batch.places[part]
        return Batch(batch.epoch, batch.bags, visit, numbers, places)

    @property
    def waited(self) -> float:
        """Seconds that the consumer has waited for bags."""
        return self._stream.waited

    def close(self) -> None:
        """End the reading threads."""
        self._stream.close()


class ReplicaStreams:
    """The streams of this process that wait for the next turn of their replica."""

    def __init__(self, turns_at_once: int = 8) -> None:
        self.turns = threading.BoundedSemaphore(turns_at_once)
        """Held by each turn: the memory of a process is planned for so many at the same time."""
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], ReplicaStream] = {}
        self._reading_all = threading.Lock()
        self._held: dict[str, HeldBags] = {}
        """Bags of the runs whose replicas mix all their blocks, by the key of the run."""
        self._timer: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._open)

    def take(self, source: StreamSource, at: StreamPlace) -> tuple[ReplicaStream, bool]:
        """Return a stream that stands at a place, and whether it was open."""
        with self._lock:
            stream = self._open.pop((source.key, at.replica), None)
        if stream is not None:
            if stream.at == at:
                return stream, True
            stream.close()
        return ReplicaStream(source, at, self._all_bags(source)), False

    def _all_bags(self, source: StreamSource) -> HeldBags | None:
        """Return all bags of the store if replicas mix all their blocks; they are read once.

        Without it the streams of all replicas would hold as many blocks.
        """
        plan, store = source.plan, source.store
        if plan.order != "blocks" or plan.window < plan.n_blocks or store.at_hand() is not None:
            return None
        with self._reading_all:
            if source.key not in self._held:
                self._held[source.key] = hold_all(store, plan, source.read)
            return self._held[source.key]

    def give_back(self, source: StreamSource, stream: ReplicaStream) -> None:
        """Keep a stream for the next turn of its replica."""
        stream.used = time.monotonic()
        with self._lock:
            before = self._open.pop((source.key, stream.at.replica), None)
            # The dictionary begins with the least recently used stream.
            self._open[source.key, stream.at.replica] = stream
            names = [name for name in self._open if name[0] == source.key]
            surplus = self._remove(names[: max(0, len(names) - source.n_kept)])
            if self._timer is None:
                self._start_timer()
        for unused in [*surplus, *([before] if before is not None else [])]:
            unused.close()

    def drop_unused_bags(self, key: str) -> None:
        """Forget the bags of a run that has no open stream; a later turn reads them again."""
        with self._lock:
            if not any(name[0] == key for name in self._open):
                self._held.pop(key, None)

    def _start_timer(self) -> None:
        self._timer = threading.Timer(IDLE_SECONDS, self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def _close_idle(self) -> None:
        """Close streams that are idle for long, and come back later if there are others."""
        limit = time.monotonic() - IDLE_SECONDS
        with self._lock:
            self._timer = None
            idle = [name for name, stream in self._open.items() if stream.used <= limit]
            streams = self._remove(idle)
            if self._open:
                self._start_timer()
        for stream in streams:
            stream.close()

    def close(self, key: str) -> None:
        """Close the streams of a run."""
        with self._lock:
            streams = self._remove([name for name in self._open if name[0] == key])
            self._held.pop(key, None)
        for stream in streams:
            stream.close()

    def _remove(self, names: list[tuple[str, int]]) -> list[ReplicaStream]:
        """Forget streams, and the bags of runs that have no streams any more."""
        streams = [self._open.pop(name) for name in names]
        for key in {key for key, _ in names} - {key for key, _ in self._open}:
            self._held.pop(key, None)
        return streams
