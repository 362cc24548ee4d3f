"""The memory that streaming will hold, and the block plan that fits into it.

A run that would not fit is refused before the first row is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import SCAN_BAGS, Bags
from streammiml.blocks.plan import BlockPlan
from streammiml.blocks.stream import ReadSettings, blocks_held
from streammiml.config import TrainConfig, format_size, parse_size
from streammiml.errors import StreammimlError

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


def largest_block(store: Bags, block_bags: int) -> int:
    """Bytes of the rows of the largest block; reads offsets and no rows."""
    return max(
        int(np.add.reduceat(sizes, np.arange(0, len(sizes), block_bags)).max())
        for stretch in stretches(store, block_bags)
        for sizes in (bag_bytes(store, *stretch, store.bag_sizes(*stretch)),)
    )


def largest_bags(store: Bags, n_bags: int) -> int:
    """Bytes of the rows of the ``n_bags`` largest bags; reads offsets and no rows."""
    largest = np.empty(0, np.int64)
    for stretch in stretches(store):
        sizes = bag_bytes(store, *stretch, store.bag_sizes(*stretch))
        largest = np.sort(np.concatenate([largest, sizes]))[-n_bags:]
    return int(largest.sum())


def fit(
    store: Bags,
    config: TrainConfig,
    fixed: dict[str, int],
    *,
    replicas: int = 1,
    exact: bool = False,
    exact_bags: int | None = None,
    subject: str = "training",
) -> Budget:
    """Plan the blocks of a store so that streaming stays within ``config.memory``.

    ``fixed`` has the bytes that do not depend on the plan, such as those of weights. The plan is
    that of replica 0, which has the most blocks; its numbers are right for all ``replicas``.

    With ``exact``, all batches have ``exact_bags`` bags, or as many as the budget chooses; without,
    batches may have any size. Raises StreammimlError if no plan fits; the message begins with
    ``subject`` and names a setting that would fit.
    """
    allowed = parse_size(config.memory)
    index = min(INDEX_BYTES, INDEX_BAG_BYTES * store.n_bags)
    fixed = {**fixed, "store": STORE_BYTES + index}
    left_bytes = allowed - sum(fixed.values())
    mean_bag_bytes = row_bytes(store) * store.n_rows / store.n_bags
    plan = _plan(store, config, SHORT_BLOCK_BYTES / mean_bag_bytes, replicas)
    # Make blocks longer if memory allows; a quarter of it is kept for blocks that are read ahead.
    long_block_bytes = min(left_bytes * 3 // 4 // plan.window - ALONG_BYTES, BLOCK_BYTES)
    if long_block_bytes > SHORT_BLOCK_BYTES:
        plan = _plan(store, config, long_block_bytes / mean_bag_bytes, replicas)
    if config.max_vif is not None and plan.vif > config.max_vif:
        raise StreammimlError(
            f"--mix-blocks {config.mix_blocks} gives a variance inflation of {plan.vif:.2f}, "
            f"more than --max-vif {config.max_vif:g}; "
            f"--mix-blocks {_blocks_for(plan, config.max_vif)} would do"
        )
    block_bytes = largest_block(store, plan.block_bags)
    block_bytes += max(ALONG_BYTES, block_bytes // 8) + BAG_BYTES * plan.block_bags
    n_exact = min(exact_bags or 0, store.n_bags)
    exact_bytes = largest_bags(store, n_exact) + BAG_BYTES * n_exact if n_exact else None
    for threads, group_bytes, cuts in _ways_to_read(plan.order, left_bytes, exact):
        n_bags = int(min(max(1, group_bytes // mean_bag_bytes), BATCH_BAGS))
        batch = {}
        if cuts:
            most_bags = ReadSettings(batch_bags=n_bags).rounds(plan) * plan.block_bags
            n_exact = exact_bags or min(most_bags, int(max(1, BATCH_BYTES // mean_bag_bytes)))
            # If batches are short, more of them are kept ready.
            n_ahead = min(max(1, 2 * n_bags // n_exact), MOST_AHEAD)
            batch = {"exact_bags": n_exact, "batches_ahead": n_ahead}
        read = ReadSettings(threads=threads, batch_bags=n_bags, **batch)
        held = _held(plan, read, block_bytes, fixed, exact_bytes)
        if sum(held.values()) <= allowed:
            return Budget(plan=plan, read=read, held=held, allowed=allowed)
    n_fitting = plan.window - -(-(sum(held.values()) - allowed) // block_bytes)
    is_mixing_set = config.mix_blocks is not None or config.max_vif is not None
    if plan.order != "blocks" or is_mixing_set or n_fitting < 1:
        can_mix_fewer = plan.order == "blocks" and n_fitting >= 1 and config.max_vif is None
        # The message names the block length too: with fewer blocks to mix, ``fit`` would choose
        # longer blocks.
        length = "" if config.block_bags else f" --block-bags {plan.block_bags}"
        raise _too_much(
            subject,
            held,
            config,
            f"--mix-blocks {n_fitting}{length} would fit" if can_mix_fewer else "",
        )
    plan = replace(plan, mix_blocks=n_fitting)
    held = _held(plan, read, block_bytes, fixed, exact_bytes)
    return Budget(plan=plan, read=read, held=held, allowed=allowed)


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
    plan: BlockPlan, read: ReadSettings, block: int, fixed: dict[str, int], exact_bytes: int | None
) -> dict[str, int]:
    """Bytes by what they are held for; a block has ``block`` bytes.

    A batch of exact size has at most ``exact_bytes``, if that is known.
    """
    rounds = read.rounds(plan)
    if read.exact_bags is None and exact_bytes is not None:
        # The pieces of a batch, and the batch that they are joined to.
        fixed = {**fixed, "next batch": 2 * exact_bytes}
    if plan.order != "blocks":
        ahead = read.blocks_ahead + read.batches_ahead + 2
        return {**fixed, "reading": ahead * rounds * block}
    batch_bytes, n_batches = (rounds + 1) * block, read.batches_ahead + 2
    if read.exact_bags is not None:
        # One more: bags that are copied twice, because they waited long for their batch to be full.
        n_batches += 1
        batch_bytes = exact_bytes or batch_bytes
    n_blocks = blocks_held(plan, read)
    if read.threads == READ_THREADS:
        # Groups are so long that the buffer pool may keep one.
        n_blocks += rounds
    return {**fixed, "mixing": n_blocks * block, "batches": n_batches * batch_bytes}


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


def _too_much(
    subject: str, held: dict[str, int], config: TrainConfig, advice: str
) -> StreammimlError:
    """Make the error that lists what would be held and which settings would fit."""
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in held.items() if size)
    total = sum(held.values())
    needed = f"--memory {-(-total >> 20) + 1}MiB would do"
    return StreammimlError(
        f"{subject} would hold {format_size(total)} ({parts}), more than --memory {config.memory}; "
        + (f"{advice}, or {needed}" if advice else needed)
    )
