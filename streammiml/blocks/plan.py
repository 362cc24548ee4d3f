"""Which bags are visited, in which order: pure functions of (seed, epoch, place).

Three orders. ``full`` is a permutation of all bags, ``uniform`` draws each bag independently, as
the paper does. ``blocks`` reads contiguous blocks and mixes them: blocks stand in random order,
and each bag leaves its block a random number of rounds later, up to ``mix_blocks``; so at every
round bags come from that many blocks, each as likely as the others. Rounds are counted in a
circle, so that the first and last rounds of an epoch are mixed as well as all others, and every
bag comes exactly once. Nothing depends on what was read before: any round can be computed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.config import ORDERS
from streammiml.drawing import below, mixed, permuted
from streammiml.errors import unknown

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

VIF_WINDOW = 256
STRETCH_BAGS = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The order of a run, fixed by these numbers alone."""

    order: str
    n_bags: int
    seed: int
    block_bags: int = 16
    mix_blocks: int = 256

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown("order", self.order, ORDERS)

    @property
    def n_blocks(self) -> int:
        """Blocks of the store; the last may be shorter."""
        return -(-self.n_bags // self.block_bags)

    @property
    def window(self) -> int:
        """Blocks that are mixed at any time."""
        return min(self.mix_blocks, self.n_blocks)

    @property
    def vif(self) -> float:
        """Variance of label counts in 256 bags, against a full shuffle, on a label-sorted store.

        There the bags of a block have one label, so the variance grows by one for each of its
        other bags that is expected among the same 256.
        """
        if self.order != "blocks" or self.window == self.n_blocks:
            return 1.0
        window, rounds = self.window, VIF_WINDOW / self.block_bags
        apart = np.abs(np.arange(1 - window, window))
        both = np.maximum(0, 1 - apart / rounds) if rounds >= 1 else (apart == 0) * rounds
        return 1 + (self.block_bags - 1) * float((both * (window - apart)).sum()) / window**2

    def bags_at(self, epoch: int, start: int, stop: int) -> I64:
        """Bags at these places of an epoch, for the orders ``full`` and ``uniform``."""
        places = np.arange(start, stop)
        if self.order == "full":
            return permuted(places, self.n_bags, self.seed, epoch)
        return below(mixed(places, self.seed, epoch), self.n_bags)

    # The order ``blocks``.

    def blocks_at(self, epoch: int, positions: NDArray[Any]) -> I64:
        """Blocks that stand at these positions of an epoch."""
        return permuted(np.asarray(positions) % self.n_blocks, self.n_blocks, self.seed, epoch)

    def bags_of(self, block: int) -> tuple[int, int]:
        """Half-open range of a block's bags."""
        return block * self.block_bags, min((block + 1) * self.block_bags, self.n_bags)

    def rounds_of(self, epoch: int, positions: NDArray[Any], bags: NDArray[Any]) -> I64:
        """Rounds in which bags are visited; ``positions`` are those of their blocks."""
        rounds: I64 = (positions + self.delays_of(epoch, bags)) % self.n_blocks
        return rounds

    def delays_of(self, epoch: int, bags: NDArray[Any]) -> I64:
        """How many rounds after its block each bag is visited."""
        return below(mixed(bags, self.seed, epoch, 1), self.window)

    def turns_of(self, epoch: int, bags: NDArray[Any]) -> U64:
        """What the bags of one round are sorted by."""
        return mixed(bags, self.seed, epoch, 2)

    def round_sizes(self, epoch: int) -> I64:
        """Bags of each round of an epoch."""
        sizes = np.zeros(self.n_blocks, np.int64)
        # About 65536 bags at a time: a run that resumes has no memory for all of them.
        step = max(1, STRETCH_BAGS // self.block_bags)
        for start in range(0, self.n_blocks, step):
            positions = np.arange(start, min(start + step, self.n_blocks))
            first = self.blocks_at(epoch, positions) * self.block_bags
            bags = first[:, None] + np.arange(self.block_bags)
            where = np.broadcast_to(positions[:, None], bags.shape)[bags < self.n_bags]
            rounds = self.rounds_of(epoch, where, bags[bags < self.n_bags])
            # They lie within a window behind the first position: adding to all would be quadratic.
            counts = np.bincount((rounds - start) % self.n_blocks)
            sizes[(start + np.arange(len(counts))) % self.n_blocks] += counts
        return sizes

    def locate(self, epoch: int, place: int) -> tuple[int, int]:
        """The round that holds a place of an epoch, and how many of its bags come before."""
        ends = np.cumsum(self.round_sizes(epoch))
        number = int(np.searchsorted(ends, place, "right"))
        return number, place - (int(ends[number - 1]) if number else 0)
