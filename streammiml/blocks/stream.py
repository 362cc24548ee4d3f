"""Bags in the order of a plan, read ahead of whoever consumes them.

Blocks are read and checked by threads, several at a time; one more thread takes the bags of some
rounds out of the blocks that are held and lays them end to end. The consumer gets batches: bags in
the order of their visit, which depends on the plan alone. Bags that are in memory anyway stay where
they are, unless there are more than are mixed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.views import Bags
from streammiml.blocks.mixing import (
    LEFT_OUT,
    NO_LINES,
    NUMBER,
    Calendar,
    Group,
    group_of,
    laid_out,
    set_turns,
    visits,
)
from streammiml.blocks.plan import Plan
from streammiml.blocks.prefetch import DEADLINE, ReadAhead, run_ahead
from streammiml.errors import StoreError

MOST_ROUNDS = 64
"""The deadline is that of so many reads."""

I64 = NDArray[np.int64]
LeaveOut = Callable[[int, I64], NDArray[np.bool_]]
"""Says of bag numbers which are not visited in an epoch: those held out for validation, say."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Bags to be visited, one after the other."""

    epoch: int
    bags: BagBlock
    visit: I64
    """Which of ``bags`` come, in this order."""
    numbers: I64
    """Their numbers in the store."""
    places: I64
    """Their places in the epoch; those of bags left out are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How far and by whom is read ahead; never changes what comes, or in which order."""

    threads: int = 2
    blocks_ahead: int = 16
    batches_ahead: int = 2
    batch_bags: int = 64
    """Bags of a batch, about."""
    deadline: float = DEADLINE

    def rounds(self, plan: Plan) -> int:
        """Rounds of a batch, and blocks that are read together."""
        return min(-(-self.batch_bags // plan.block_bags), MOST_ROUNDS)

    def groups_ahead(self, plan: Plan) -> int:
        """Groups of blocks that are being read or wait to be mixed."""
        return max(self.threads, -(-self.blocks_ahead // self.rounds(plan)))


def blocks_held(plan: Plan, read: ReadSettings) -> int:
    """Blocks that a stream holds at most: mixed, of the batch at hand, and read ahead.

    A group goes when the last of its bags has gone, so up to one more group is held. Where all
    blocks are mixed none goes, and fewer are held than this.
    """
    return plan.window + (2 + read.groups_ahead(plan)) * read.rounds(plan)


class Stream:
    """Batches without end, from a place of an epoch on; a context that lets its threads go."""

    def __init__(
        self,
        store: Bags,
        plan: Plan,
        *,
        epoch: int = 0,
        place: int = 0,
        read: ReadSettings,
        leave_out: LeaveOut | None = None,
    ) -> None:
        self._store, self._plan, self._settings = store, plan, read
        self._leave_out = leave_out or (lambda _, bags: np.zeros(len(bags), bool))
        self._inner: ReadAhead[Any, Any] | None = None
        self._closed = False
        self._block = store.at_hand()
        way = self._drawn
        if plan.order == "blocks":
            way = self._rolling if plan.window < plan.n_blocks else self._kept
        self._ahead = run_ahead(way(epoch, place), depth=read.batches_ahead)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._ahead)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the readers go."""
        self._closed = True
        if self._inner is not None:
            self._inner.close()
        self._ahead.close()

    @property
    def waited(self) -> float:
        """Seconds that the consumer has waited for a batch."""
        return self._ahead.waited

    def _readers(
        self, read: Callable[[Any], Any], wanted: Iterator[Any], depth: int
    ) -> ReadAhead[Any, Any]:
        settings = self._settings
        self._inner = ReadAhead(
            read,
            wanted,
            depth=depth,
            threads=settings.threads,
            deadline=settings.deadline,
        )
        # Whoever closed the stream meanwhile may have seen the readers of the epoch before.
        if self._closed:
            self._inner.close()
        return self._inner

    def _drawn(self, epoch: int, place: int) -> Iterator[Batch]:
        """Orders that name bags one by one."""

        def read(span: _Span) -> Batch:
            numbers = self._plan.bags_at(span.epoch, span.start, span.stop)
            kept = ~self._leave_out(span.epoch, numbers)
            numbers, places = numbers[kept], np.arange(span.start, span.stop)[kept]
            if self._block is not None:
                return Batch(span.epoch, self._block, numbers, numbers, places)
            bags = self._store.read_bags(numbers, row_labels=False)
            return Batch(span.epoch, bags, np.arange(len(bags)), numbers, places)

        settings = self._settings
        spans = _spans(self._plan.n_bags, settings.batch_bags, epoch, place)
        batches = self._readers(read, spans, settings.blocks_ahead)
        yield from (batch for batch in batches if len(batch.numbers))

    def _kept(self, epoch: int, place: int) -> Iterator[Batch]:
        """All blocks mixed with each other: read once, and held."""
        plan, step = self._plan, self._settings.rounds(self._plan)
        # What lines point into is held as long as they are.
        lines, _held = (NO_LINES, []) if self._block is not None else self._everything(step)
        while not self._closed:
            left_out = self._leave_out(epoch, np.arange(plan.n_bags))
            for first, numbers in visits(plan, epoch, step):
                places = first + np.arange(len(numbers))
                kept = ~left_out[numbers] & (places >= place)
                if kept.any():
                    numbers, places = numbers[kept], places[kept]
                    if self._block is not None:
                        yield Batch(epoch, self._block, numbers, numbers, places)
                    else:
                        yield self._laid_out(epoch, lines[numbers], places)
            epoch, place = epoch + 1, 0

    def _everything(self, step: int) -> tuple[I64, list[Any]]:
        """A line for each bag, in the order of the store, and what they point into."""
        plan, n = self._plan, self._plan.n_blocks
        wanted = (list(range(first, min(first + step, n))) for first in range(0, n, step))
        with self._readers(self._read, wanted, self._settings.groups_ahead(plan)) as groups:
            tables, held = zip(*((group.table, group.held) for group in groups), strict=True)
        lines = np.concatenate(tables)
        if len(lines) != plan.n_bags:
            raise StoreError(f"{len(lines)} bags were read of {plan.n_bags}")
        return lines, list(held)

    def _rolling(self, epoch: int, place: int) -> Iterator[Batch]:
        """Blocks that come and go, each mixed with those before and after it."""
        plan, step = self._plan, self._settings.rounds(self._plan)
        depth = self._settings.groups_ahead(plan)
        while True:
            first, before = plan.locate(epoch, place) if place else (0, 0)
            read = partial(self._read_for, epoch)
            with self._readers(read, _loads(plan, epoch, first, step), depth) as groups:
                calendar, at = Calendar(plan, first, step), place - before
                for _ in range(-(-len(_first_positions(plan, first, step)) // step)):
                    calendar.enter(next(groups))
                for number in range(-(-(plan.n_blocks - first) // step)):
                    if number:
                        calendar.enter(next(groups))
                    lines, held = calendar.collect(number)
                    places = at + np.arange(len(lines))
                    kept = (lines[:, LEFT_OUT] == 0) & (places >= place)
                    at += len(lines)
                    batch = self._laid_out(epoch, lines[kept], places[kept])
                    del held
                    if len(batch.numbers):
                        yield batch
            epoch, place = epoch + 1, 0

    def _read(self, blocks: list[int]) -> Group:
        ranges = [self._plan.bags_of(block) for block in blocks]
        firsts = [start for start, _ in ranges]
        return group_of(firsts, self._store.read_ranges(ranges), self._store.dtype)

    def _read_for(self, epoch: int, load: _Load) -> Group:
        """Blocks that have their turns in an epoch."""
        group = self._read(load.blocks)
        numbers = group.table[:, NUMBER]
        sizes = [stop - start for start, stop in map(self._plan.bags_of, load.blocks)]
        positions = np.repeat(np.array(load.positions), sizes)
        set_turns(group.table, self._plan, epoch, positions, self._leave_out(epoch, numbers))
        return group

    def _laid_out(self, epoch: int, lines: I64, places: I64) -> Batch:
        """The bags of these lines, copied end to end."""
        store = self._store
        bags = laid_out(lines, n_features=store.n_features, dtype=store.dtype, sparse=store.sparse)
        return Batch(epoch, bags, np.arange(len(lines)), lines[:, NUMBER].copy(), places)


@dataclass(frozen=True, slots=True)
class _Span:
    epoch: int
    start: int
    stop: int


def _spans(n_bags: int, step: int, epoch: int, place: int) -> Iterator[_Span]:
    while True:
        for start in range(place, n_bags, step):
            yield _Span(epoch, start, min(start + step, n_bags))
        epoch, place = epoch + 1, 0


@dataclass(frozen=True, slots=True)
class _Load:
    """Blocks to be read together, and their positions in an epoch."""

    positions: list[int]
    blocks: list[int]


def _first_positions(plan: Plan, first: int, step: int) -> I64:
    """Positions of the blocks that have bags in the first batch."""
    return np.arange(first - plan.window + 1, min(first + step, plan.n_blocks))


def _loads(plan: Plan, epoch: int, first: int, step: int) -> Iterator[_Load]:
    """Blocks in the order in which batches from the round ``first`` on need them."""
    # Some thousand at a time: an epoch may have billions.
    stretch, end = max(1, 4096 // step) * step, plan.n_blocks
    later = (np.arange(i, min(i + stretch, end)) for i in range(first + step, end, stretch))
    for part in chain([_first_positions(plan, first, step)], later):
        positions, blocks = part.tolist(), plan.blocks_at(epoch, part).tolist()
        for i in range(0, len(positions), step):
            yield _Load(positions[i : i + step], blocks[i : i + step])
