"""The order in which bags are visited, as pure functions of (seed, epoch, place).

There are three orders:

- ``full`` is a permutation of all bags.
- ``uniform`` draws every bag independently, as the paper does.
- ``blocks`` reads contiguous blocks and mixes their bags. Blocks have a random order, one block per
  round. A bag is visited 0 to ``mix_blocks`` − 1 rounds after the round of its block, at random. So
  the bags of a round come from ``mix_blocks`` blocks, all equally likely.

Blocks can be dealt out to several replicas. Replica r of R takes positions r, r + R, … of the
random order of blocks, and mixes its blocks as if there were no others. Orders ``full`` and
``uniform`` deal out places in the same way. Each epoch deals anew.

Rounds are counted modulo their number. So the first and the last rounds of an epoch are mixed as
well as all others, and every bag is visited exactly once. Any round can be computed without the
rounds before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.hashing import below, mixed, permuted
from streammiml.config import ORDERS
from streammiml.errors import unknown

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

VIF_WINDOW = 256
"""Bags over which the variance inflation is measured."""
STRETCH_BAGS = 65536
"""About how many bags of an epoch are computed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """The order of bags in a run; it depends on these fields alone."""

    order: str
    n_bags: int
    seed: int
    block_bags: int = 16
    mix_blocks: int = 256
    replica: int = 0
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown("order", self.order, ORDERS)

    @property
    def n_blocks_of_store(self) -> int:
        """Number of blocks of the store; the last may be shorter."""
        return -(-self.n_bags // self.block_bags)

    @property
    def n_blocks(self) -> int:
        """Number of blocks that this replica visits in an epoch."""
        return self._dealt(self.n_blocks_of_store)

    def _dealt(self, n: int) -> int:
        """Of ``n`` positions, the number that this replica gets."""
        return -(-(n - self.replica) // self.replicas)

    @property
    def window(self) -> int:
        """Number of blocks that are mixed at any time."""
        return min(self.mix_blocks, self.n_blocks)

    @property
    def vif(self) -> float:
        """Variance inflation of label counts in 256 successive bags, for a label-sorted store.

        A full shuffle has 1. In a label-sorted store all bags of a block have the same label. So
        each bag adds the number of other bags of its block that are expected among the 256.
        """
        if self.order != "blocks" or self.window == self.n_blocks:
            return 1.0
        window, rounds = self.window, VIF_WINDOW / self.block_bags
        apart = np.abs(np.arange(1 - window, window))
        both = np.maximum(0, 1 - apart / rounds) if rounds >= 1 else (apart == 0) * rounds
        return 1 + (self.block_bags - 1) * float((both * (window - apart)).sum()) / window**2

    def bags_at(self, epoch: int, start: int, stop: int) -> I64:
        """Bags at places ``start`` to ``stop`` of an epoch, for orders ``full`` and ``uniform``."""
        places = self.replica + self.replicas * np.arange(start, stop)
        if self.order == "full":
            return permuted(places, self.n_bags, self.seed, epoch)
        return below(mixed(places, self.seed, epoch), self.n_bags)

    def n_places(self, epoch: int) -> int:
        """Number of visits of this replica in an epoch."""
        if self.order != "blocks":
            return self._dealt(self.n_bags)
        if self.replicas == 1:
            return self.n_bags
        return sum(map(len, self.bags_in(epoch)))

    def bags_in(self, epoch: int) -> Iterator[I64]:
        """Yield the bags of this replica in an epoch, some at a time, not in order of visit."""
        if self.order != "blocks":
            n = self._dealt(self.n_bags)
            for start in range(0, n, STRETCH_BAGS):
                yield self.bags_at(epoch, start, min(start + STRETCH_BAGS, n))
            return
        step = max(1, STRETCH_BAGS // self.block_bags)
        for start in range(0, self.n_blocks, step):
            positions = np.arange(start, min(start + step, self.n_blocks))
            first = self.blocks_at(epoch, positions) * self.block_bags
            bags = (first[:, None] + np.arange(self.block_bags)).ravel()
            yield bags[bags < self.n_bags]

    # The order ``blocks``.

    def blocks_at(self, epoch: int, positions: NDArray[Any]) -> I64:
        """Blocks at these positions of an epoch, which are taken modulo the number of blocks."""
        dealt = self.replica + self.replicas * (np.asarray(positions) % self.n_blocks)
        return permuted(dealt, self.n_blocks_of_store, self.seed, epoch)

    def bags_of(self, block: int) -> tuple[int, int]:
        """Start and stop of the bags of a block."""
        return block * self.block_bags, min((block + 1) * self.block_bags, self.n_bags)

    def rounds_of(self, epoch: int, positions: NDArray[Any], bags: NDArray[Any]) -> I64:
        """Rounds in which bags are visited; ``positions`` are the positions of their blocks."""
        rounds: I64 = (positions + self.delays_of(epoch, bags)) % self.n_blocks
        return rounds

    def delays_of(self, epoch: int, bags: NDArray[Any]) -> I64:
        """For each bag, the number of rounds from the round of its block to its own round."""
        return below(mixed(bags, self.seed, epoch, 1), self.window)

    def turns_of(self, epoch: int, bags: NDArray[Any]) -> U64:
        """Sort keys of bags within their round."""
        return mixed(bags, self.seed, epoch, 2)

    def round_sizes(self, epoch: int) -> I64:
        """Number of bags in each round of an epoch."""
        sizes = np.zeros(self.n_blocks, np.int64)
        # In stretches: all bags at once would not fit into the memory of a run.
        step = max(1, STRETCH_BAGS // self.block_bags)
        for start in range(0, self.n_blocks, step):
            positions = np.arange(start, min(start + step, self.n_blocks))
            first = self.blocks_at(epoch, positions) * self.block_bags
            bags = first[:, None] + np.arange(self.block_bags)
            bag_positions = np.broadcast_to(positions[:, None], bags.shape)[bags < self.n_bags]
            rounds = self.rounds_of(epoch, bag_positions, bags[bags < self.n_bags])
            # These rounds are less than ``step`` + ``window`` after ``start``. Adding zeros to all
            # the other rounds would make the loop quadratic.
            counts = np.bincount((rounds - start) % self.n_blocks)
            sizes[(start + np.arange(len(counts))) % self.n_blocks] += counts
        return sizes

    def locate(self, epoch: int, place: int) -> tuple[int, int]:
        """Round that holds a place of an epoch, and the number of its bags before that place."""
        ends = np.cumsum(self.round_sizes(epoch))
        round_number = int(np.searchsorted(ends, place, "right"))
        return round_number, place - (int(ends[round_number - 1]) if round_number else 0)
