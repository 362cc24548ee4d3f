"""Bags in the order of a plan, read ahead of whoever consumes them.

Blocks are read and checked by threads; one more thread takes the bags of each round out of the
blocks that are held and lays them end to end. The consumer gets batches: bags in the order of
their visit. Which batches, and what is in them, depends on the plan alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.bags.store import Bags
from streammiml.blocks.plan import Plan
from streammiml.blocks.prefetch import DEADLINE, ReadAhead, run_ahead

BATCH_BAGS = 64


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
    batches_ahead: int = 4
    deadline: float = DEADLINE


def blocks_held(plan: Plan, read: ReadSettings) -> int:
    """Blocks that a stream holds at most: mixed, read ahead, in hand, and not yet in a batch."""
    return plan.window + read.blocks_ahead + read.threads + -(-BATCH_BAGS // plan.block_bags)


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

    def _readers(self, read: Callable[[Any], Any], wanted: Iterator[Any]) -> ReadAhead[Any, Any]:
        settings = self._settings
        self._inner = ReadAhead(
            read,
            wanted,
            depth=settings.blocks_ahead,
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
            return Batch(span.epoch, self._store.read_bags(numbers), numbers, places)

        batches = self._readers(read, _spans(self._plan.n_bags, epoch, place))
        yield from (batch for batch in batches if len(batch.numbers))

    def _mixed(self, epoch: int, place: int) -> Iterator[Batch]:
        """The order that mixes blocks, epoch after epoch."""
        while True:
            number, skip = self._plan.locate(epoch, place) if place else (0, 0)
            read = partial(self._read, epoch)
            with self._readers(read, _loads(self._plan, epoch, number)) as blocks:
                yield from _rounds(self._plan, epoch, number, place - skip, skip, blocks)
            epoch, place = epoch + 1, 0

    def _read(self, epoch: int, load: _Load) -> _Held:
        """Read a block, or take it from memory where the plan keeps all of them anyway."""
        start, stop = self._plan.bags_of(load.block)
        block = self._kept.get(load.block) or self._store.read(start, stop)
        if self._plan.window == self._plan.n_blocks:
            self._kept[load.block] = block
        return _Held(block, start, load.position, self._leave_out(epoch, np.arange(start, stop)))


@dataclass(frozen=True, slots=True)
class _Span:
    epoch: int
    start: int
    stop: int


def _spans(n_bags: int, epoch: int, place: int) -> Iterator[_Span]:
    while True:
        for start in range(place, n_bags, BATCH_BAGS):
            yield _Span(epoch, start, min(start + BATCH_BAGS, n_bags))
        epoch, place = epoch + 1, 0


@dataclass(frozen=True, slots=True)
class _Load:
    position: int
    block: int


def _loads(plan: Plan, epoch: int, first_round: int) -> Iterator[_Load]:
    """Blocks in the order in which rounds from ``first_round`` on need them."""
    later = np.arange(first_round + 1, plan.n_blocks)
    if plan.window == plan.n_blocks:
        later = later[:0]
    for part in (plan.positions_in(first_round), *np.array_split(later, len(later) // 4096 + 1)):
        blocks = plan.blocks_at(epoch, part).tolist()
        yield from map(_Load, part.tolist(), blocks)


class _Held:
    """A block in the buffer, with its offsets as plain integers: they are asked for bag by bag."""

    __slots__ = ("block", "first_bag", "label_ends", "left_out", "position", "row_ends")

    def __init__(
        self, block: BagBlock, first_bag: int, position: int, left_out: NDArray[np.bool_]
    ) -> None:
        self.block, self.first_bag, self.position = block, first_bag, position
        self.left_out: list[bool] = left_out.tolist()
        self.row_ends: list[int] = block.bag_offsets.tolist()
        self.label_ends: list[int] = block.label_offsets.tolist()


_Visit = tuple[int, _Held, int]
"""Turn, block, and bag within the block."""


def _rounds(
    plan: Plan, epoch: int, first_round: int, place: int, skip: int, blocks: Iterator[_Held]
) -> Iterator[Batch]:
    """Batches of an epoch from a round on; ``place`` is that of the first round's first bag."""
    waiting: dict[int, list[_Visit]] = defaultdict(list)
    for held in islice(blocks, plan.window):
        _enter(plan, epoch, held, first_round, waiting)
    visits: list[_Visit] = []
    for number in range(first_round, plan.n_blocks):
        if number > first_round and plan.window < plan.n_blocks:
            _enter(plan, epoch, next(blocks), number, waiting)
        visits += sorted(waiting.pop(number, ()), key=itemgetter(0))
        if len(visits) - skip >= BATCH_BAGS or number + 1 == plan.n_blocks:
            batch = _batch(epoch, place, skip, visits)
            place, skip, visits = place + len(visits), max(0, skip - len(visits)), []
            if batch is not None:
                yield batch


def _enter(plan: Plan, epoch: int, held: _Held, now: int, waiting: dict[int, list[_Visit]]) -> None:
    """Put the bags of a block into the rounds in which they are visited.

    Those whose round is over, or lies beyond the end of the circle, belong to the block's other
    stay in the buffer; where all blocks stay all the time there is only one.
    """
    bags = np.arange(len(held.block)) + held.first_bag
    rounds = held.position + plan.delays_of(epoch, bags)
    if plan.window == plan.n_blocks:
        rounds %= plan.n_blocks
    turns = plan.turns_of(epoch, bags).tolist()
    for bag, number in enumerate(rounds.tolist()):
        if now <= number < plan.n_blocks:
            waiting[number].append((turns[bag], held, bag))


def _batch(epoch: int, place: int, skip: int, visits: list[_Visit]) -> Batch | None:
    """Lay bags end to end, in order, but for the first ``skip`` and those that are left out."""
    numbered = list(enumerate(visits, place))[skip:]
    chosen = [(at, held, bag) for at, (_, held, bag) in numbered if not held.left_out[bag]]
    if not chosen:
        return None
    rows: list[Any] = []
    labels: list[NDArray[np.int32]] = []
    for _, held, bag in chosen:
        block, start, stop = held.block, held.row_ends[bag], held.row_ends[bag + 1]
        is_sparse = isinstance(block.rows, SparseRows)
        rows.append(block.rows.slice(start, stop) if is_sparse else block.rows[start:stop])  # type: ignore[union-attr,index]
        labels.append(block.label_indices[held.label_ends[bag] : held.label_ends[bag + 1]])
    bags = BagBlock(
        bag_offsets=from_sizes(list(map(len, rows))),
        rows=SparseRows.join(rows) if isinstance(rows[0], SparseRows) else np.concatenate(rows),
        label_offsets=from_sizes(list(map(len, labels))),
        label_indices=np.concatenate(labels),
    )
    numbers = np.array([held.first_bag + bag for _, held, bag in chosen])
    return Batch(epoch, bags, numbers, np.array([at for at, _, _ in chosen]))
