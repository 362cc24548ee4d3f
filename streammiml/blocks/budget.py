"""The memory that streaming will hold, and the block plan that fits into it.

A run that would not fit is refused before the first row is read.

Memory is computed in one of two ways. *Alike* takes every block for as long as the largest, and
lets reading be fast. *By size* adds up the largest blocks that can be held at the same time, and
long bags are not copied. It is used where blocks counted alike would not fit, or would leave less
than a thirty-second of the blocks to mix: one very long bag among short ones would cost as much as
hundreds of its length. The order of bags depends on the plan alone, so that stores whose blocks fit
alike keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import SCAN_BAGS, Bags
from streammiml.blocks.plan import BlockPlan
from streammiml.blocks.stream import ReadSettings, blocks_held
from streammiml.config import TrainConfig, format_size, parse_size
from streammiml.errors import StreammimlError

I64 = NDArray[np.int64]

MIX_BLOCKS = 512
# How well bags are mixed depends on the number of blocks, not on their size. Disks read long blocks
# faster.
BLOCK_BYTES = 256 << 10
SHORT_BLOCK_BYTES = 64 << 10
# A batch should be some milliseconds of work: between two batches, the reading thread and the
# learning thread wait for each other.
BATCH_BYTES = 4 << 20
SHORT_BATCH_BYTES = 256 << 10
BATCH_BAGS = 16384
# Blocks that are read together: the longer the group, the less time is spent between reads.
GROUP_BYTES = 16 << 20
MOST_AHEAD = 4
"""Upper limit for the batches that are kept ready."""
READ_THREADS, FEW_THREADS = 4, 2
"""Number of reading threads, if memory allows, and otherwise: a disk serves several reads at a
time."""
# Chunk tables, index chunks, open buffers and the buffer pool: an upper limit for large stores.
STORE_BYTES, INDEX_BYTES, INDEX_BAG_BYTES = 28 << 20, 16 << 20, 24
# Bytes that are read and held beside those of a block, on average: the rest of its first and of its
# last chunk.
ALONG_BYTES = 64 << 10
# Bytes of a nonzero value: its column and the value. Bytes of a sparse row: an offset and a length.
SPARSE_VALUE, SPARSE_ROW = 8, 16
# Bags of at least as many bytes are batches of their own if blocks are charged by size.
LONG_BAG_BYTES = 4 << 20
LEAST_MIXED = 32
"""If counting blocks alike would leave less than one in so many to mix, they are counted by
size."""
FEW_AHEAD = 2
"""Groups, or single reads, that are read ahead if blocks are counted by size."""
MOST_LISTED = 4096
"""Upper limit for the blocks and bags whose sizes are listed; others count as the last of them."""
DOUBLED = 2
"""Copies that a read of rows needs which are not stored as they are in memory."""
# Bytes of a bag beside its rows: two copies of offsets and labels, Python integers, and its line in
# the mixing table.
BAG_BYTES = 320


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The memory that a run will hold, and the block plan that fits into it."""

    plan: BlockPlan
    read: ReadSettings
    held: dict[str, int]
    """Bytes by what they are held for."""
    allowed: int
    """Upper limit in bytes."""
    by_size: bool = False
    """Whether blocks are counted by their sizes; see the top of the module."""

    @property
    def total(self) -> int:
        """Sum of all bytes that are held."""
        return sum(self.held.values())


def row_bytes(store: Bags) -> float:
    """Bytes of a row in memory; for sparse rows, the mean."""
    if store.sparse:
        return store.n_values / max(store.n_rows, 1) * SPARSE_VALUE + SPARSE_ROW
    return store.n_features * np.dtype(store.dtype).itemsize


def bag_bytes(store: Bags, start: int, stop: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of the rows of bags ``start`` to ``stop``; ``sizes`` are their numbers of rows."""
    if store.sparse:
        return store.bag_values(start, stop) * SPARSE_VALUE + SPARSE_ROW * sizes
    return sizes * int(row_bytes(store))


def stretches(store: Bags, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yield ranges of bags whose offsets need little memory.

    Every range but the last has a multiple of ``multiple`` bags.
    """
    # In sparse stores every row has an offset, not only every bag.
    offsets_per_bag = store.n_rows / max(store.n_bags, 1) if store.sparse else 1
    step = max(1, int(SCAN_BAGS / max(offsets_per_bag, 1)) // multiple) * multiple
    for start in range(0, store.n_bags, step):
        yield start, min(start + step, store.n_bags)


def largest_block(store: Bags, block_bags: int, below: int | None = None) -> int:
    """Bytes of the rows of the largest block, without bags of ``below`` bytes or more.

    Only offsets are read.
    """
    return int(largest_blocks(store, block_bags, 1, below)[0])


def largest_blocks(store: Bags, block_bags: int, n: int, below: int | None = None) -> I64:
    """Bytes of the rows of the ``n`` largest blocks, or of all; the largest comes first.

    Bags of ``below`` bytes or more are not counted.
    """
    return _largest(
        (
            np.add.reduceat(
                sizes if below is None else np.where(sizes < below, sizes, 0),
                np.arange(0, len(sizes), block_bags),
            )
            for sizes in _sizes(store, block_bags)
        ),
        n,
    )


def largest_bags(store: Bags, n_bags: int, below: int | None = None) -> I64:
    """Bytes of the rows of the ``n_bags`` largest bags, of those with fewer than ``below``.

    The largest comes first.
    """
    parts = (sizes if below is None else sizes[sizes < below] for sizes in _sizes(store))
    return _largest(parts, n_bags)


def _sizes(store: Bags, multiple: int = 1) -> Iterator[I64]:
    """Yield the bytes of the rows of each bag, for many bags at a time."""
    for stretch in stretches(store, multiple):
        yield bag_bytes(store, *stretch, store.bag_sizes(*stretch))


def _largest(parts: Iterable[I64], n: int) -> I64:
    """The ``n`` largest of all numbers, or all; the largest comes first."""
    largest = np.empty(0, np.int64)
    for part in parts:
        largest = np.sort(np.concatenate([largest, part]))[-n:]
    return largest[::-1]


def fit(
    store: Bags,
    config: TrainConfig,
    fixed: dict[str, int],
    *,
    fixed_by_size: dict[str, int] | None = None,
    replicas: int = 1,
    streams: int = 1,
    exact: bool = False,
    exact_bags: int | None = None,
    subject: str = "training",
) -> Budget:
    """Plan the blocks of a store so that streaming stays within ``config.memory``.

    ``fixed`` has the bytes that do not depend on the plan, such as those of weights; if blocks are
    counted by size, ``fixed_by_size`` replaces some of them. The plan is that of replica 0, which
    has the most blocks; its numbers are right for all ``replicas``. This process holds as many of
    their ``streams`` at the same time.

    With ``exact``, all batches have ``exact_bags`` bags, or as many as the budget chooses; without,
    batches may have any size. Raises StreammimlError if no plan fits; the message begins with
    ``subject`` and names settings that would fit.
    """
    store_bytes = STORE_BYTES + min(INDEX_BYTES, INDEX_BAG_BYTES * store.n_bags)
    fixed = {**fixed, "store": store_bytes}
    wish = _Wish(
        store=store,
        config=config,
        fixed=fixed,
        fixed_by_size={**fixed, **(fixed_by_size or {})},
        replicas=replicas,
        streams=streams,
        exact=exact,
        exact_bags=exact_bags,
        allowed=parse_size(config.memory),
    )
    outcome = _fitted(wish)
    if isinstance(outcome, Budget):
        return outcome
    raise _too_much(subject, wish, outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """The arguments of ``fit``, and the upper limit in bytes."""

    store: Bags
    config: TrainConfig
    fixed: dict[str, int]
    fixed_by_size: dict[str, int]
    replicas: int
    streams: int
    exact: bool
    exact_bags: int | None
    allowed: int

    @property
    def is_mixing_set(self) -> bool:
        """Whether the user has decided how many blocks to mix."""
        return self.config.mix_blocks is not None or self.config.max_vif is not None

    @property
    def mean_bag_bytes(self) -> float:
        """Mean bytes of the rows of a bag."""
        return row_bytes(self.store) * self.store.n_rows / self.store.n_bags

    def left_bytes(self, fixed: dict[str, int]) -> int:
        """Bytes that are left for each stream."""
        return (self.allowed - sum(fixed.values())) // self.streams


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """The smallest sum of bytes that was found, and the plan that needs it."""

    plan: BlockPlan
    held: dict[str, int]
    n_fitting: int
    """Number of blocks to mix that would fit with this plan; less than 1 if none would."""

    @property
    def total(self) -> int:
        """Sum of all bytes that would be held."""
        return sum(self.held.values())


def _fitted(wish: _Wish) -> Budget | _Refusal:
    """Plan the blocks, counted alike or by size.

    Batches of exact size never take blocks by size to mix more: a position in a stream that was
    saved names the number of blocks.
    """
    alike = _fit_alike(wish)
    if isinstance(alike, Budget) and (
        wish.is_mixing_set
        or wish.exact
        or alike.plan.order != "blocks"
        or alike.plan.window * LEAST_MIXED >= min(MIX_BLOCKS, alike.plan.n_blocks)
    ):
        return alike
    by_size = _fit_by_size(wish, fewer=not isinstance(alike, Budget))
    if isinstance(by_size, Budget) or isinstance(alike, Budget):
        return by_size if isinstance(by_size, Budget) else alike
    n_fitting = max(alike.n_fitting, by_size.n_fitting)
    return replace(min(alike, by_size, key=lambda way: way.total), n_fitting=n_fitting)


def _fit_alike(wish: _Wish) -> Budget | _Refusal:
    """Plan the blocks, and count each for as much as the largest."""
    store, streams = wish.store, wish.streams
    left_bytes, mean_bag_bytes = wish.left_bytes(wish.fixed), wish.mean_bag_bytes
    plan = _plan_within(wish, left_bytes)
    block_bytes = _with_rest(largest_blocks(store, plan.block_bags, 1), plan.block_bags).item()
    n_exact = min(wish.exact_bags or 0, store.n_bags)
    exact_bytes = None
    if n_exact:
        exact_bytes = int(largest_bags(store, n_exact).sum()) + BAG_BYTES * n_exact
    for threads, group_bytes, cuts in _ways_to_read(plan.order, left_bytes, wish.exact):
        n_bags = int(min(max(1, group_bytes // mean_bag_bytes), BATCH_BAGS))
        batch = {}
        if cuts:
            most_bags = ReadSettings(batch_bags=n_bags).rounds(plan) * plan.block_bags
            n_exact = wish.exact_bags or min(most_bags, int(max(1, BATCH_BYTES // mean_bag_bytes)))
            # If batches are short, more of them are kept ready.
            n_ahead = min(max(1, 2 * n_bags // n_exact), MOST_AHEAD)
            batch = {"exact_bags": n_exact, "batches_ahead": n_ahead}
        read = ReadSettings(threads=threads, batch_bags=n_bags, **batch)
        held = _held(plan, read, block_bytes, wish.fixed, exact_bytes, streams)
        if sum(held.values()) <= wish.allowed:
            return Budget(plan=plan, read=read, held=held, allowed=wish.allowed)
    n_over = -(-(sum(held.values()) - wish.allowed) // (block_bytes * streams))
    n_fitting = plan.window - n_over
    if plan.order != "blocks" or wish.is_mixing_set or n_fitting < 1:
        return _Refusal(plan=plan, held=held, n_fitting=n_fitting)
    plan = replace(plan, mix_blocks=n_fitting)
    held = _held(plan, read, block_bytes, wish.fixed, exact_bytes, streams)
    return Budget(plan=plan, read=read, held=held, allowed=wish.allowed)


def _plan_within(wish: _Wish, left_bytes: int) -> BlockPlan:
    """Plan blocks whose mean length suits the memory; refuse too large a variance inflation."""
    store, config, mean_bag_bytes = wish.store, wish.config, wish.mean_bag_bytes
    plan = _plan(store, config, SHORT_BLOCK_BYTES / mean_bag_bytes, wish.replicas)
    # Make blocks longer if memory allows; a quarter of it is kept for blocks that are read ahead.
    long_block_bytes = min(left_bytes * 3 // 4 // plan.window - ALONG_BYTES, BLOCK_BYTES)
    if long_block_bytes > SHORT_BLOCK_BYTES:
        plan = _plan(store, config, long_block_bytes / mean_bag_bytes, wish.replicas)
    if config.max_vif is not None and plan.vif > config.max_vif:
        raise StreammimlError(
            f"--mix-blocks {config.mix_blocks} gives a variance inflation of {plan.vif:.2f}, "
            f"more than --max-vif {config.max_vif:g}; "
            f"--mix-blocks {_blocks_for(plan, config.max_vif)} would do"
        )
    return plan


def _with_rest(block_bytes: I64, block_bags: int) -> I64:
    """Add to the bytes of blocks those that are read along, and what is kept of each bag."""
    return block_bytes + np.maximum(ALONG_BYTES, block_bytes // 8) + BAG_BYTES * block_bags


# Counting by size.


def _fit_by_size(wish: _Wish, *, fewer: bool) -> Budget | _Refusal:
    """Plan the blocks and add up the largest that can be held; ``fewer`` may be mixed to fit."""
    plan = _plan_within(wish, wish.left_bytes(wish.fixed))
    sizes = _Sizes.of(wish, plan)
    refusals = []
    for group_bytes in (BATCH_BYTES, SHORT_BATCH_BYTES):
        read = _read_by_size(wish, plan, group_bytes)
        held = sizes.held(plan, read)
        if sum(held.values()) <= wish.allowed:
            return Budget(plan=plan, read=read, held=held, allowed=wish.allowed, by_size=True)
        refusals.append(held)
    held = min(refusals, key=lambda held: sum(held.values()))
    # Fewest first: every plan in the range below fits, every plan above does not.
    low, high = 0, plan.window if plan.order == "blocks" else 0
    while low < high:
        middle = (low + high + 1) // 2
        here = sizes.held(replace(plan, mix_blocks=middle), read)
        low, high = (middle, high) if sum(here.values()) <= wish.allowed else (low, middle - 1)
    if low >= 1 and fewer and not wish.is_mixing_set:
        plan = replace(plan, mix_blocks=low)
        held = sizes.held(plan, read)
        return Budget(plan=plan, read=read, held=held, allowed=wish.allowed, by_size=True)
    return _Refusal(plan=plan, held=held, n_fitting=low)


def _read_by_size(wish: _Wish, plan: BlockPlan, group_bytes: int) -> ReadSettings:
    """Read short groups, and few of them ahead."""
    n_bags = int(min(max(1, group_bytes // wish.mean_bag_bytes), BATCH_BAGS))
    if plan.order != "blocks":
        n_bags = 1 if wish.mean_bag_bytes > SHORT_BATCH_BYTES else min(n_bags, 64)
        return ReadSettings(threads=FEW_THREADS, batch_bags=n_bags, blocks_ahead=FEW_AHEAD)
    rounds = ReadSettings(batch_bags=n_bags).rounds(plan)
    return ReadSettings(
        threads=FEW_THREADS,
        batch_bags=n_bags,
        blocks_ahead=FEW_AHEAD * rounds,
        long_bytes=None if wish.exact else LONG_BAG_BYTES,
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The largest blocks and bags of a store, and what streaming holds of them."""

    wish: _Wish
    blocks: I64
    """Bytes of the largest blocks; the largest comes first."""
    all_blocks: int
    """Bytes of all blocks."""
    bags: I64
    """Bytes of the largest bags that are copied."""

    @classmethod
    def of(cls, wish: _Wish, plan: BlockPlan) -> _Sizes:
        """Sizes of the blocks of a plan; reads offsets and no rows."""
        store, block_bags = wish.store, plan.block_bags
        blocks = _with_rest(largest_blocks(store, block_bags, MOST_LISTED), block_bags)
        rest = int(blocks[-1]) * (plan.n_blocks_of_store - len(blocks))
        below = LONG_BAG_BYTES if plan.order == "blocks" and not wish.exact else None
        return cls(
            wish,
            blocks,
            int(blocks.sum()) + rest,
            largest_bags(store, MOST_LISTED, below) + BAG_BYTES,
        )

    def held(self, plan: BlockPlan, read: ReadSettings) -> dict[str, int]:
        """Bytes by what they are held for."""
        wish = self.wish
        of_stream = self._of_blocks(plan, read) if plan.order == "blocks" else self._of_bags(read)
        if wish.exact:
            # The pieces of a batch, and the batch that they are joined to.
            n_exact = wish.exact_bags or read.batch_bags
            of_stream["next batch"] = 2 * _sum_of(self.bags, n_exact, 1)
        if not wish.store.reads_in_place:
            of_stream["reading"] = of_stream.get("reading", 0) + DOUBLED * _sum_of(
                self.blocks, read.threads, 1
            )
        return {
            **wish.fixed_by_size,
            **{name: wish.streams * size for name, size in of_stream.items()},
        }

    def _of_blocks(self, plan: BlockPlan, read: ReadSettings) -> dict[str, int]:
        """Bytes of blocks and batches, for the order ``blocks``."""
        n_batches = read.batches_ahead + 2
        # A batch of a long bag holds the group of its block.
        n_blocks = blocks_held(plan, read) + n_batches * read.rounds(plan)
        # Blocks are read in turn. Of as many successive blocks as an epoch has, each can be there
        # twice: at the end of an epoch, and at the beginning of the next.
        n_times = 2 if n_blocks <= plan.n_blocks else -(-n_blocks // plan.n_blocks) + 2
        mixing = _sum_of(self.blocks, n_blocks, n_times)
        if plan.window == plan.n_blocks and plan.replicas == 1:
            # All blocks are read once and held.
            mixing = min(mixing, self.all_blocks)
        # The number of bags in a round varies as if they were drawn.
        mean = n_batches * read.rounds(plan) * plan.block_bags
        n_bags = mean + int(4 * mean**0.5) + 4
        return {"mixing": mixing, "batches": _sum_of(self.bags, n_bags, 2)}

    def _of_bags(self, read: ReadSettings) -> dict[str, int]:
        """Bytes of the orders that read single bags."""
        # A read joins its pieces, so that it holds its bags twice for a moment.
        n_spans = read.blocks_ahead + read.batches_ahead + 2 + read.threads
        n_bags = n_spans * read.batch_bags
        n_times = n_bags if self.wish.config.order == "uniform" else 3
        return {"reading": _sum_of(self.bags, n_bags, n_times)}


def _sum_of(largest: I64, n: int, n_times: int) -> int:
    """Sum of the ``n`` largest, if each can be there ``n_times``; ``largest`` comes sorted.

    If ``largest`` is as long as a list can be, others are taken for as large as the last.
    """
    n_whole, n_more = divmod(n, n_times)
    other = int(largest[-1]) if len(largest) == MOST_LISTED else 0
    n_others = max(0, n_whole - len(largest))
    last = int(largest[n_whole]) if n_whole < len(largest) else other
    return n_times * (int(largest[:n_whole].sum()) + n_others * other) + n_more * last


# Both.


def _ways_to_read(order: str, left_bytes: int, exact: bool) -> Iterator[tuple[int, int, bool]]:
    """Yield threads, bytes of a group, and whether groups are cut into batches of exact size.

    The fastest way comes first; the last way holds least: whoever needs an exact size then cuts the
    batches.
    """
    share = max(SHORT_BATCH_BYTES, left_bytes // 64)
    if order == "blocks":
        yield READ_THREADS, min(share, GROUP_BYTES), True
    yield FEW_THREADS, min(share, BATCH_BYTES), exact
    yield FEW_THREADS, SHORT_BATCH_BYTES, False


def _held(
    plan: BlockPlan,
    read: ReadSettings,
    block: int,
    fixed: dict[str, int],
    exact_bytes: int | None,
    streams: int,
) -> dict[str, int]:
    """Bytes by what they are held for, beginning with ``fixed``."""
    of_stream = _held_by_stream(plan, read, block, exact_bytes)
    return {**fixed, **{name: streams * size for name, size in of_stream.items()}}


def _held_by_stream(
    plan: BlockPlan, read: ReadSettings, block: int, exact_bytes: int | None
) -> dict[str, int]:
    """Bytes of one stream, by what they are held for; a block has ``block`` bytes.

    A batch of exact size has at most ``exact_bytes``, if that is known.
    """
    held: dict[str, int] = {}
    rounds = read.rounds(plan)
    if read.exact_bags is None and exact_bytes is not None:
        # The pieces of a batch, and the batch that they are joined to.
        held["next batch"] = 2 * exact_bytes
    if plan.order != "blocks":
        ahead = read.blocks_ahead + read.batches_ahead + 2
        return {**held, "reading": ahead * rounds * block}
    batch_bytes, n_batches = (rounds + 1) * block, read.batches_ahead + 2
    if read.exact_bags is not None:
        # One more: bags that are copied twice, because they waited long for their batch to be full.
        n_batches += 1
        batch_bytes = exact_bytes or batch_bytes
    n_blocks = blocks_held(plan, read)
    if read.threads == READ_THREADS:
        # Groups are so long that the buffer pool may keep one.
        n_blocks += rounds
    return {**held, "mixing": n_blocks * block, "batches": n_batches * batch_bytes}


def _plan(store: Bags, config: TrainConfig, block_bags: float, replicas: int) -> BlockPlan:
    """Make a plan from the config; ``block_bags`` is the default for its bags per block.

    The default is lowered so that each replica has a block.

    The number of blocks to mix is ``config.mix_blocks``; if that is None, as many as
    ``config.max_vif`` needs; if that is None too, ``MIX_BLOCKS``.
    """
    plan = BlockPlan(
        order=config.order,
        n_bags=store.n_bags,
        seed=config.seed,
        block_bags=config.block_bags
        or max(1, int(min(block_bags, 1024, store.n_bags // replicas))),
        mix_blocks=config.mix_blocks or MIX_BLOCKS,
        replicas=replicas,
    )
    if config.max_vif is not None and config.mix_blocks is None:
        return replace(plan, mix_blocks=_blocks_for(plan, config.max_vif))
    return plan


def _blocks_for(plan: BlockPlan, max_vif: float) -> int:
    """Fewest blocks to mix for a variance inflation of at most ``max_vif``."""
    low, high = 1, plan.n_blocks
    while low < high:
        middle = (low + high) // 2
        if replace(plan, mix_blocks=middle).vif <= max_vif:
            high = middle
        else:
            low = middle + 1
    return low


def _too_much(subject: str, wish: _Wish, refusal: _Refusal) -> StreammimlError:
    """Make the error that lists what would be held and which settings would fit."""
    config, held = wish.config, refusal.held
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in held.items() if size)
    advice = [*_cheaper(wish, refusal), f"--memory {_memory_needed(wish, refusal)} would do"]
    return StreammimlError(
        f"{subject} would hold {format_size(refusal.total)} ({parts}), more than --memory "
        f"{config.memory}; {', or '.join(advice)}",
        page="train",
    )


def _cheaper(wish: _Wish, refusal: _Refusal) -> Iterator[str]:
    """Name settings that fit into the same memory."""
    config = wish.config
    if refusal.plan.order != "blocks" or config.max_vif is not None:
        return
    if refusal.n_fitting >= 1:
        # The message names the block length too: with fewer blocks to mix, ``fit`` would choose
        # longer blocks.
        length = "" if config.block_bags else f" --block-bags {refusal.plan.block_bags}"
        yield f"--mix-blocks {refusal.n_fitting}{length} would fit"
    elif config.mix_blocks is None and config.block_bags is None:
        full = replace(wish, config=replace(config, order="full"), exact=False)
        if isinstance(_fitted(full), Budget):
            yield "--order full would fit"


def _memory_needed(wish: _Wish, refusal: _Refusal) -> str:
    """Smallest memory that is known to be enough; with more memory, blocks may be longer."""
    n_mib = 0
    outcome: Budget | _Refusal = refusal
    while isinstance(outcome, _Refusal):
        n_mib = max(n_mib + 1, -(-outcome.total >> 20) + 1)
        outcome = _fitted(replace(wish, allowed=n_mib << 20))
    return f"{n_mib}MiB"
