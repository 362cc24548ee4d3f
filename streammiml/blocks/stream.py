"""The stream of bags in the order of a plan, read ahead of the consumer.

Several threads read and verify blocks. Another thread copies the bags of some rounds from the
blocks into a batch. The consumer gets batches: bags in the order of their visit, which depends on
the plan alone. Bags of a store in memory are not copied, unless the plan mixes only a part of the
blocks at a time. Long bags are not copied either, if the settings say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.range_group import RangeGroup
from streammiml.bags.views import Bags
from streammiml.blocks.mixing import (
    FIRST_ADDRESS,
    LEFT_OUT,
    NUMBER,
    BlockGroup,
    Calendar,
    bag_bytes,
    bag_in_place,
    copied_bags,
    group_of,
    owner_of,
    set_turns,
    visits,
)
from streammiml.blocks.plan import BlockPlan
from streammiml.blocks.prefetch import DEADLINE, ReadAhead, run_ahead
from streammiml.errors import StoreError

MOST_WAITING = 2
"""Upper limit for the groups that are held because some of their bags wait for an exact batch."""
MOST_ROUNDS = 64
"""Upper limit for the rounds of a batch, and so for the blocks that share one deadline."""

I64 = NDArray[np.int64]
LeaveOut = Callable[[int, I64], NDArray[np.bool_]]
"""Function of an epoch and bag numbers: whether the epoch leaves out each bag."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Bags to visit, one after the other."""

    epoch: int
    bags: BagBlock
    visit: I64
    """Indices into ``bags``, in the order of the visit; in rising order if bags come from disk."""
    numbers: I64
    """Numbers of the visited bags in the store."""
    places: I64
    """Places of the visited bags in the epoch; places of bags that are left out are missing."""

    def sizes(self, visit: I64) -> tuple[int, int]:
        """Rows of these bags, and about how many bytes they take."""
        offsets = self.bags.bag_offsets
        n_rows = int((offsets[visit + 1] - offsets[visit]).sum())
        return n_rows, self.bags.nbytes * n_rows // max(1, self.bags.n_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How far to read ahead, with how many threads; changes neither bags nor their order."""

    threads: int = 2
    """Reading threads. While a thread waits for the disk, another one checks what it has read."""
    blocks_ahead: int = 16
    batches_ahead: int = 2
    batch_bags: int = 64
    """About how many bags are mixed at a time; a batch has as many, or ``exact_bags``."""
    exact_bags: int | None = None
    """Exact number of bags in a batch, fewer only at the end of an epoch; for order ``blocks``."""
    long_bytes: int | None = None
    """Bags of at least as many bytes are batches of their own, which use the memory of the block:
    nothing is copied. None if all bags are copied, as ``exact_bags`` requires."""
    deadline: float = DEADLINE

    def rounds(self, plan: BlockPlan) -> int:
        """Number of rounds in a batch, and of blocks that are read together."""
        return min(-(-self.batch_bags // plan.block_bags), MOST_ROUNDS)

    def groups_ahead(self, plan: BlockPlan) -> int:
        """Number of block groups that are being read or wait to be mixed."""
        return max(self.threads, -(-self.blocks_ahead // self.rounds(plan)))


def blocks_held(plan: BlockPlan, read: ReadSettings) -> int:
    """Upper limit for the blocks that a stream holds: being mixed, in the next batch, read ahead.

    A group is held until its last bag is copied, so up to one more group is held. Bags that wait
    for an exact batch to be full hold some more. A plan that mixes all blocks holds fewer.
    """
    n_groups = 2 + read.groups_ahead(plan) + (MOST_WAITING if read.exact_bags else 0)
    return plan.window + n_groups * read.rounds(plan)


class BagStream:
    """Endless batches, beginning at a place of an epoch; leaving the context ends the threads."""

    def __init__(
        self,
        store: Bags,
        plan: BlockPlan,
        *,
        epoch: int = 0,
        place: int = 0,
        read: ReadSettings,
        leave_out: LeaveOut | None = None,
        held: HeldBags | None = None,
    ) -> None:
        self._store, self._plan, self._settings = store, plan, read
        self._leave_out = leave_out or (lambda _, bags: np.zeros(len(bags), bool))
        self._inner: ReadAhead[Any, Any] | None = None
        self._closed = False
        self._form: dict[str, Any] = {
            "n_features": store.n_features,
            "dtype": store.dtype,
            "sparse": store.sparse,
        }
        self._block, self._held = store.at_hand(), held
        batches = self._bag_by_bag
        if plan.order == "blocks":
            # The blocks of a replica change with the epoch: to hold them, it must hold the store.
            has_all = plan.replicas == 1 or held is not None or self._block is not None
            mixes_all = plan.window == plan.n_blocks
            batches = self._fully_mixed if mixes_all and has_all else self._partly_mixed
        self._ahead = run_ahead(batches(epoch, place), depth=read.batches_ahead)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._ahead)

    def __enter__(self) -> BagStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the reading threads."""
        self._closed = True
        if self._inner is not None:
            self._inner.close()
        self._ahead.close()

    @property
    def waited(self) -> float:
        """Seconds that the consumer has waited for a batch."""
        return self._ahead.waited

    def _readers(
        self, read: Callable[[Any], Any], items: Iterator[Any], depth: int
    ) -> ReadAhead[Any, Any]:
        settings = self._settings
        self._inner = ReadAhead(
            read,
            items,
            depth=depth,
            threads=settings.threads,
            deadline=settings.deadline,
        )
        # If another thread closed the stream meanwhile, it closed the previous readers, not these.
        if self._closed:
            self._inner.close()
        return self._inner

    def _bag_by_bag(self, epoch: int, place: int) -> Iterator[Batch]:
        """Batches of the orders ``full`` and ``uniform``, which read single bags."""

        def read(span: _Span) -> Batch:
            numbers = self._plan.bags_at(span.epoch, span.start, span.stop)
            kept = ~self._leave_out(span.epoch, numbers)
            numbers, places = numbers[kept], np.arange(span.start, span.stop)[kept]
            if self._block is not None:
                return Batch(span.epoch, self._block, numbers, numbers, places)
            bags = self._store.read_bags(numbers, row_labels=False, kept=False)
            return Batch(span.epoch, bags, np.arange(len(bags)), numbers, places)

        settings = self._settings
        spans = _spans(self._plan.n_places(epoch), settings.batch_bags, epoch, place)
        batches = self._readers(read, spans, settings.blocks_ahead)
        yield from (batch for batch in batches if len(batch.numbers))

    def _fully_mixed(self, epoch: int, place: int) -> Iterator[Batch]:
        """Batches of a plan that mixes all blocks: all are read once and held."""
        step = self._settings.rounds(self._plan)
        if self._block is None:
            lines, held = self._held or self._read_all()
            parts = self._all_visits(epoch, place, step)
            yield from self._batches(
                visits
                for part in parts
                for visits in self._long_alone(
                    _Visits(
                        part.epoch, lines[part.numbers], part.places, held, part.ends_epoch, False
                    )
                )
            )
            return
        for part in self._all_visits(epoch, place, step):
            if len(part.numbers):
                yield Batch(part.epoch, self._block, part.numbers, part.numbers, part.places)

    def _all_visits(self, epoch: int, place: int, step: int) -> Iterator[_NumberedVisits]:
        """Yield visits of a plan that mixes all blocks."""
        plan = self._plan
        while not self._closed:
            for first, numbers, is_last in visits(plan, epoch, step):
                places = first + np.arange(len(numbers))
                kept = ~self._leave_out(epoch, numbers) & (places >= place)
                yield _NumberedVisits(epoch, numbers[kept], places[kept], is_last)
            epoch, place = epoch + 1, 0

    def _read_all(self) -> HeldBags:
        """Read all blocks of the store."""
        items = _groups_of_all(self._plan, self._settings)
        depth = self._settings.groups_ahead(self._plan)
        with self._readers(self._read, items, depth) as groups:
            return _joined_groups(groups, self._plan.n_bags)

    def _partly_mixed(self, epoch: int, place: int) -> Iterator[Batch]:
        """Batches of a plan that mixes a window of blocks, which are read and released in turn."""
        plan, step = self._plan, self._settings.rounds(self._plan)
        depth = self._settings.groups_ahead(plan)
        first, n_before = plan.locate(epoch, place) if place else (0, 0)
        loads = _loads(plan, epoch, first, step)
        with self._readers(self._read_for, loads, depth) as groups:
            yield from self._batches(self._window_visits(groups, epoch, place, first, n_before))

    def _window_visits(
        self, groups: Iterator[BlockGroup], epoch: int, place: int, first: int, n_before: int
    ) -> Iterator[_Visits]:
        """Yield visits in the order of the plan, from a place of an epoch on.

        The place is in round ``first``, after ``n_before`` bags of that round.
        """
        plan, step = self._plan, self._settings.rounds(self._plan)
        while True:
            calendar, batch_place = Calendar(plan, first, step), place - n_before
            for _ in range(-(-len(_first_positions(plan, first, step)) // step)):
                calendar.insert(next(groups))
            n_batches = -(-(plan.n_blocks - first) // step)
            for number in range(n_batches):
                if number:
                    calendar.insert(next(groups))
                lines, held = calendar.collect(number)
                places = batch_place + np.arange(len(lines))
                kept = (lines[:, LEFT_OUT] == 0) & (places >= place)
                batch_place += len(lines)
                is_last = number == n_batches - 1
                due = _Visits(epoch, lines[kept], places[kept], held, is_last)
                pieces = self._long_alone(due, chain(held, calendar.groups()))[::-1]
                # This frame must not hold the groups while it waits.
                del held, due
                while pieces:
                    yield pieces.pop()
            epoch, place, first, n_before = epoch + 1, 0, 0, 0

    def _long_alone(
        self, visits: _Visits, groups: Iterable[BlockGroup] | None = None
    ) -> list[_Visits]:
        """Cut visits so that each long bag is alone, with what owns its memory.

        The owner is one of ``groups``; without these, all that the visits hold.
        """
        limit, lines = self._settings.long_bytes, visits.lines
        if limit is None:
            return [visits]
        long = np.flatnonzero(bag_bytes(lines, **self._form) >= limit).tolist()
        if not long:
            return [visits]
        among = None if groups is None else list(groups)
        cuts = sorted({0, *long, *(i + 1 for i in long), len(lines)})
        pieces = []
        for start, stop in pairwise(cuts):
            part = replace(visits, lines=lines[start:stop], places=visits.places[start:stop])
            if start in long:
                owner = visits.held if among is None else owner_of(lines[start], among)
                part = replace(part, held=[owner], in_place=True)
            pieces.append(part)
        return pieces

    def _batches(self, due: Iterator[_Visits]) -> Iterator[Batch]:
        """Copy the bags of visits into batches, of an exact size if the settings say so."""
        exact = self._settings.exact_bags
        waiting: list[_Visits] = []
        for part in due:
            waiting.append(part)
            n_bags = sum(len(due_part.lines) for due_part in waiting)
            n_left = 0 if exact is None or part.ends_epoch else n_bags % exact
            del part
            while n_bags > n_left:
                now, waiting = _split(waiting, min(exact or n_bags, n_bags))
                batch = self._batch(now)
                n_bags -= len(batch.numbers)
                del now
                yield batch
                del batch
            if not n_bags:
                waiting = []
            in_groups = [part for part in waiting if part.holds_groups]
            if len(in_groups) > MOST_WAITING:
                # These bags would hold all blocks of their groups until the batch is full.
                n_compact = len(waiting) - len(in_groups)
                waiting = [*waiting[:n_compact], self._compacted(in_groups)]
            del in_groups

    def _compacted(self, parts: Sequence[_Visits]) -> _Visits:
        """Join visits and copy their bags, so that nothing else is held."""
        lines = np.concatenate([part.lines for part in parts])
        places = np.concatenate([part.places for part in parts])
        copies = group_of([0], RangeGroup.from_blocks([self._copied(lines)], self._store.dtype))
        lines[:, FIRST_ADDRESS:] = copies.table[:, FIRST_ADDRESS:]
        return _Visits(parts[0].epoch, lines, places, copies.held, False, holds_groups=False)

    def _read(self, blocks: list[int]) -> BlockGroup:
        return _read_blocks(self._store, self._plan, blocks)

    def _read_for(self, load: _Load) -> BlockGroup:
        """Read blocks, and write the rounds and turns of their bags in the epoch of the load."""
        group, epoch = self._read(load.blocks), load.epoch
        numbers = group.table[:, NUMBER]
        sizes = [stop - start for start, stop in map(self._plan.bags_of, load.blocks)]
        positions = np.repeat(np.array(load.positions), sizes)
        set_turns(group.table, self._plan, epoch, positions, self._leave_out(epoch, numbers))
        return group

    def _batch(self, parts: Sequence[_Visits]) -> Batch:
        """Copy the bags of visits into a batch."""
        lines = np.concatenate([part.lines for part in parts])
        places = np.concatenate([part.places for part in parts])
        bags = None
        if parts[0].in_place:
            bags = bag_in_place(lines[0], parts[0].held, **self._form)
        if bags is None:
            bags = self._copied(lines)
        return Batch(parts[0].epoch, bags, np.arange(len(lines)), lines[:, NUMBER].copy(), places)

    def _copied(self, lines: I64) -> BagBlock:
        return copied_bags(lines, **self._form)


class HeldBags(NamedTuple):
    """All bags of a store in memory; several streams can share them."""

    lines: I64
    """A line of the mixing table for each bag, in the order of the store."""
    owners: list[Any]
    """Objects that own the memory at the addresses in the lines."""


def hold_all(store: Bags, plan: BlockPlan, read: ReadSettings) -> HeldBags:
    """Read all bags of a store, for several streams."""
    with ReadAhead(
        lambda blocks: _read_blocks(store, plan, blocks),
        _groups_of_all(plan, read),
        depth=read.groups_ahead(plan),
        threads=read.threads,
        deadline=read.deadline,
    ) as groups:
        return _joined_groups(groups, plan.n_bags)


def _groups_of_all(plan: BlockPlan, read: ReadSettings) -> Iterator[list[int]]:
    """Yield all blocks of the store, in groups that are read together."""
    step, n = read.rounds(plan), plan.n_blocks_of_store
    return (list(range(first, min(first + step, n))) for first in range(0, n, step))


def _joined_groups(groups: Iterator[BlockGroup], n_bags: int) -> HeldBags:
    tables, owners = zip(*((group.table, group.held) for group in groups), strict=True)
    lines = np.concatenate(tables)
    if len(lines) != n_bags:
        raise StoreError(f"only {len(lines)} of {n_bags} bags were read")
    return HeldBags(lines, list(owners))


def _read_blocks(store: Bags, plan: BlockPlan, blocks: list[int]) -> BlockGroup:
    ranges = [plan.bags_of(block) for block in blocks]
    firsts = [start for start, _ in ranges]
    return group_of(firsts, store.read_ranges(ranges))


class _NumberedVisits(NamedTuple):
    """Bags that are due in an epoch, in the order of their visit, by number."""

    epoch: int
    numbers: I64
    places: I64
    ends_epoch: bool


@dataclass(frozen=True, slots=True)
class _Visits:
    """Bags that are due in an epoch, in the order of their visit; not copied yet."""

    epoch: int
    lines: I64
    """A line of the mixing table for each bag."""
    places: I64
    held: list[Any]
    """Objects that own the memory at the addresses in the lines."""
    ends_epoch: bool
    holds_groups: bool = True
    """Whether copying the bags would let blocks be freed."""
    in_place: bool = False
    """Whether this is a single bag that is not copied."""


def _split(parts: Sequence[_Visits], n: int) -> tuple[list[_Visits], list[_Visits]]:
    """Split visits into the first ``n`` and the rest; the rest holds nothing of parts before it."""
    for i, part in enumerate(parts):
        if n < len(part.lines):
            head = replace(part, lines=part.lines[:n], places=part.places[:n])
            tail = replace(part, lines=part.lines[n:], places=part.places[n:])
            return [*parts[:i], head], [tail, *parts[i + 1 :]]
        n -= len(part.lines)
    return list(parts), []


@dataclass(frozen=True, slots=True)
class _Span:
    """Places of an epoch whose bags are read together."""

    epoch: int
    start: int
    stop: int


def _spans(n_places: int, step: int, epoch: int, place: int) -> Iterator[_Span]:
    """Yield spans of ``step`` places, epoch after epoch."""
    while True:
        for start in range(place, n_places, step):
            yield _Span(epoch, start, min(start + step, n_places))
        epoch, place = epoch + 1, 0


@dataclass(frozen=True, slots=True)
class _Load:
    """Blocks to be read together, and their positions in an epoch."""

    epoch: int
    positions: list[int]
    blocks: list[int]


def _first_positions(plan: BlockPlan, first: int, step: int) -> I64:
    """Positions of the blocks that have bags in the first batch."""
    return np.arange(first - plan.window + 1, min(first + step, plan.n_blocks))


def _loads(plan: BlockPlan, epoch: int, first: int, step: int) -> Iterator[_Load]:
    """Yield blocks in the order in which batches need them, from a round of an epoch on.

    The next epoch follows, so that its first blocks are read while the last bags are delivered.
    """
    while True:
        # A few thousand positions at a time: an epoch may have billions.
        stretch, end = max(1, 4096 // step) * step, plan.n_blocks
        later = (np.arange(i, min(i + stretch, end)) for i in range(first + step, end, stretch))
        for part in chain([_first_positions(plan, first, step)], later):
            positions, blocks = part.tolist(), plan.blocks_at(epoch, part).tolist()
            for i in range(0, len(positions), step):
                yield _Load(epoch, positions[i : i + step], blocks[i : i + step])
        epoch, first = epoch + 1, 0
