"""Bytes that streaming will hold, and the plan that fits; says no before the first row is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import SCAN_BAGS, Bags
from streammiml.blocks.plan import Plan
from streammiml.blocks.stream import ReadSettings, blocks_held
from streammiml.config import TrainConfig, format_size, parse_size
from streammiml.errors import StreammimlError

MIX_BLOCKS = 512
# How well bags are mixed depends on the number of blocks, not on their size; disks like them long.
BLOCK_BYTES = 256 << 10
SHORT_BLOCK_BYTES = 64 << 10
# A batch is some milliseconds of work: between two of them the reader and the learner wait for
# each other.
BATCH_BYTES = 4 << 20
SHORT_BATCH_BYTES = 256 << 10
BATCH_BAGS = 16384
# Chunk tables, index chunks, open buffers and memory on loan, which stop growing with a store.
STORE_BYTES, INDEX_BYTES, INDEX_BAG_BYTES = 28 << 20, 16 << 20, 24
# What is fetched with a block and held as long: the rest of its first and last pieces, on average.
ALONG_BYTES = 64 << 10
# A column and a value; an offset and a length.
SPARSE_VALUE, SPARSE_ROW = 8, 16
# Beside its rows: offsets and labels, twice, as integers of Python too, and its turn in the buffer.
BAG_BYTES = 320


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run will hold, in bytes by name, and the plan that was made to fit."""

    plan: Plan
    read: ReadSettings
    held: dict[str, int]
    allowed: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.held.values())


def row_bytes(store: Bags) -> float:
    """Bytes of a row in memory; the mean, for sparse rows."""
    if store.sparse:
        return store.n_values / max(store.n_rows, 1) * SPARSE_VALUE + SPARSE_ROW
    return store.n_features * np.dtype(store.dtype).itemsize


def bag_bytes(store: Bags, start: int, stop: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of each bag's rows in memory; ``sizes`` are their rows."""
    if store.sparse:
        return store.bag_values(start, stop) * SPARSE_VALUE + SPARSE_ROW * sizes
    return sizes * int(row_bytes(store))


def stretches(store: Bags, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """The store in ranges whose offsets take little; each a multiple of so many bags."""
    # Of sparse rows every row has an offset.
    rows = store.n_rows / max(store.n_bags, 1) if store.sparse else 1
    step = max(1, int(SCAN_BAGS / max(rows, 1)) // multiple) * multiple
    for start in range(0, store.n_bags, step):
        yield start, min(start + step, store.n_bags)


def largest_block(store: Bags, block_bags: int) -> int:
    """Bytes of the rows of the largest block; only offsets are read."""
    return max(
        int(np.add.reduceat(sizes, np.arange(0, len(sizes), block_bags)).max())
        for part in stretches(store, block_bags)
        for sizes in (bag_bytes(store, *part, store.bag_sizes(*part)),)
    )


def fit(store: Bags, config: TrainConfig, fixed: dict[str, int]) -> Budget:
    """The plan for a store within ``config.memory``; ``fixed`` is what weights and the like take.

    Raises StreammimlError, with the setting that would fit, if it cannot be kept.
    """
    allowed = parse_size(config.memory)
    index = min(INDEX_BYTES, INDEX_BAG_BYTES * store.n_bags)
    fixed = {**fixed, "store": STORE_BYTES + index}
    left = allowed - sum(fixed.values())
    bag = row_bytes(store) * store.n_rows / store.n_bags
    plan = _plan(store, config, SHORT_BLOCK_BYTES / bag)
    # Longer ones if there is room, with a quarter for what is read ahead.
    longer = min(left * 3 // 4 // plan.window - ALONG_BYTES, BLOCK_BYTES)
    if longer > SHORT_BLOCK_BYTES:
        plan = _plan(store, config, longer / bag)
    if config.max_vif is not None and plan.vif > config.max_vif:
        raise StreammimlError(
            f"--mix-blocks {config.mix_blocks} mixes to a variance inflation of {plan.vif:.2f}, "
            f"more than --max-vif {config.max_vif:g}; "
            f"--mix-blocks {_blocks_for(plan, config.max_vif)} would do"
        )
    block = largest_block(store, plan.block_bags)
    block += max(ALONG_BYTES, block // 8) + BAG_BYTES * plan.block_bags
    for batch in (min(max(SHORT_BATCH_BYTES, left // 64), BATCH_BYTES), SHORT_BATCH_BYTES):
        read = ReadSettings(batch_bags=int(min(max(1, batch // bag), BATCH_BAGS)))
        held = _held(plan, read, block, fixed)
        if sum(held.values()) <= allowed:
            return Budget(plan=plan, read=read, held=held, allowed=allowed)
    fits = plan.window - -(-(sum(held.values()) - allowed) // block)
    asked = config.mix_blocks is not None or config.max_vif is not None
    if plan.order != "blocks" or asked or fits < 1:
        mixes = plan.order == "blocks" and fits >= 1 and config.max_vif is None
        # Where fewer blocks are mixed longer ones would be taken.
        length = "" if config.block_bags else f" --block-bags {plan.block_bags}"
        raise _too_much(held, config, f"--mix-blocks {fits}{length} would fit" if mixes else "")
    plan = replace(plan, mix_blocks=fits)
    return Budget(plan=plan, read=read, held=_held(plan, read, block, fixed), allowed=allowed)


def _held(plan: Plan, read: ReadSettings, block: int, fixed: dict[str, int]) -> dict[str, int]:
    """Bytes by name, with blocks of so many bytes."""
    rounds = read.rounds(plan)
    if plan.order != "blocks":
        ahead = read.blocks_ahead + read.batches_ahead + 2
        return {**fixed, "reading": ahead * rounds * block}
    return {
        **fixed,
        "mixing": blocks_held(plan, read) * block,
        "batches": (read.batches_ahead + 2) * (rounds + 1) * block,
    }


def _plan(store: Bags, config: TrainConfig, block_bags: float) -> Plan:
    """As asked for, or with blocks of about as many bags and as many blocks as mix well."""
    plan = Plan(
        order=config.order,
        n_bags=store.n_bags,
        seed=config.seed,
        block_bags=config.block_bags or int(min(max(1, block_bags), 1024, store.n_bags)),
        mix_blocks=config.mix_blocks or MIX_BLOCKS,
    )
    if config.max_vif is not None and config.mix_blocks is None:
        return replace(plan, mix_blocks=_blocks_for(plan, config.max_vif))
    return plan


def _blocks_for(plan: Plan, max_vif: float) -> int:
    """The fewest blocks that mix this well."""
    low, high = 1, plan.n_blocks
    while low < high:
        middle = (low + high) // 2
        if replace(plan, mix_blocks=middle).vif <= max_vif:
            high = middle
        else:
            low = middle + 1
    return low


def _too_much(held: dict[str, int], config: TrainConfig, way: str) -> StreammimlError:
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in held.items() if size)
    total = sum(held.values())
    needed = f"--memory {-(-total >> 20) + 1}MiB would do"
    return StreammimlError(
        f"training would hold {format_size(total)} ({parts}), more than --memory {config.memory}; "
        + (f"{way}, or {needed}" if way else needed)
    )
