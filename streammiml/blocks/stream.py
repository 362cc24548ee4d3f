"""Bags in the order of a plan, read ahead of whoever consumes them.

Blocks are read and checked by threads, several at a time; one more thread takes the bags of some
rounds out of the blocks that are held and lays them end to end. The consumer gets batches: bags in
the order of their visit, which depends on the plan alone.
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
from streammiml.blocks.mixing import LEFT_OUT, NUMBER, Calendar, Group, group_of, laid_out
from streammiml.blocks.plan import Plan
from streammiml.blocks.prefetch import DEADLINE, ReadAhead, run_ahead

MOST_ROUNDS = 64
"""The deadline is that of so many reads."""

LeaveOut = Callable[[int, NDArray[np.int64]], NDArray[np.bool_]]
"""Says of bag numbers which are not visited in an epoch: those held out for validation, say."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Bags in the order of their visit."""

    epoch: int
    bags: BagBlock
    numbers: NDArray[np.int64]
    """Numbers of the bags in the store."""
    places: NDArray[np.int64]
    """Places of the bags in the epoch; those of bags left out are missing."""


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

    A group goes when the last of its bags has gone, so up to one more group is held.
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
        self._kept: dict[int, BagBlock] = {}
        made = self._mixed(epoch, place) if plan.order == "blocks" else self._drawn(epoch, place)
        self._ahead = run_ahead(made, depth=read.batches_ahead)

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
            return Batch(
                span.epoch, self._store.read_bags(numbers, row_labels=False), numbers, places
            )

        settings = self._settings
        spans = _spans(self._plan.n_bags, settings.batch_bags, epoch, place)
        batches = self._readers(read, spans, settings.blocks_ahead)
        yield from (batch for batch in batches if len(batch.numbers))

    def _mixed(self, epoch: int, place: int) -> Iterator[Batch]:
        """The order that mixes blocks, epoch after epoch."""
        plan, step = self._plan, self._settings.rounds(self._plan)
        while True:
            first, skip = plan.locate(epoch, place) if place else (0, 0)
            read = partial(self._read, epoch)
            depth = self._settings.groups_ahead(plan)
            with self._readers(read, _loads(plan, epoch, first, step), depth) as groups:
                yield from self._batches(epoch, first, step, place - skip, skip, groups)
            epoch, place = epoch + 1, 0

    def _read(self, epoch: int, load: _Load) -> Group:
        """Read blocks, or take them from memory where the plan keeps all of them anyway."""
        plan = self._plan
        ranges = [plan.bags_of(block) for block in load.blocks]
        blocks = self._blocks(load.blocks, ranges)
        numbers = np.concatenate([np.arange(*part) for part in ranges])
        left_out = self._leave_out(epoch, numbers)
        firsts = [start for start, _ in ranges]
        return group_of(plan, epoch, load.positions, firsts, blocks, left_out, self._store.dtype)

    def _blocks(self, numbers: list[int], ranges: list[tuple[int, int]]) -> list[BagBlock]:
        """Blocks by number, of which all are kept where the plan has all of them mixed."""
        if self._plan.window < self._plan.n_blocks:
            return self._store.read_ranges(ranges)
        new = [i for i, number in enumerate(numbers) if number not in self._kept]
        found = self._store.read_ranges([ranges[i] for i in new])
        self._kept.update({numbers[i]: block for i, block in zip(new, found, strict=True)})
        return [self._kept[number] for number in numbers]

    def _batches(
        self, epoch: int, first: int, step: int, place: int, skip: int, groups: Iterator[Group]
    ) -> Iterator[Batch]:
        """Batches of an epoch from a round on; ``place`` is that of the round's first bag."""
        plan, store = self._plan, self._store
        calendar = Calendar(plan, first, step)
        for _ in range(-(-len(_first_positions(plan, first, step)) // step)):
            calendar.enter(next(groups))
        for number in range(-(-(plan.n_blocks - first) // step)):
            if number and plan.window < plan.n_blocks:
                calendar.enter(next(groups))
            lines, held = calendar.collect(number)
            places = place + np.arange(len(lines))
            kept = lines[:, LEFT_OUT] == 0
            kept[:skip] = False
            place, skip = place + len(lines), max(0, skip - len(lines))
            if not kept.any():
                continue
            lines = lines[kept]
            bags = laid_out(
                lines, n_features=store.n_features, dtype=store.dtype, sparse=store.sparse
            )
            del held
            yield Batch(epoch, bags, lines[:, NUMBER].copy(), places[kept])


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
    positions: list[int]
    blocks: list[int]


def _first_positions(plan: Plan, first: int, step: int) -> NDArray[np.int64]:
    """Positions of the blocks that have bags in the first batch."""
    if plan.window == plan.n_blocks:
        return plan.positions_in(first)
    return np.arange(first - plan.window + 1, min(first + step, plan.n_blocks))


def _loads(plan: Plan, epoch: int, first: int, step: int) -> Iterator[_Load]:
    """Blocks in the order in which batches from the round ``first`` on need them."""
    end = plan.n_blocks if plan.window < plan.n_blocks else 0
    # Some thousand at a time: an epoch may have billions.
    stretch = max(1, 4096 // step) * step
    later = (np.arange(i, min(i + stretch, end)) for i in range(first + step, end, stretch))
    for part in chain([_first_positions(plan, first, step)], later):
        positions, blocks = part.tolist(), plan.blocks_at(epoch, part).tolist()
        for i in range(0, len(positions), step):
            yield _Load(positions[i : i + step], blocks[i : i + step])
