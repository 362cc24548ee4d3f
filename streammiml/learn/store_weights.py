"""Weights of stores: how often an epoch visits the bags of each store. Nothing is copied.

Weight 2 visits every bag of a store twice in an epoch. Weight 0.5 visits each bag in about every
other epoch, chosen by a hash of (seed, epoch, bag). Each store is listed as often as its weight,
rounded up, and bags are numbered over that list: order, mixing and memory of the run are those of
one store of that size. Bags that a fractional weight skips in an epoch are still read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml._base.hashing import mixed
from streammiml.bags.bag_weights import NO_WEIGHTS, fingerprint_of
from streammiml.bags.offsets import from_sizes
from streammiml.bags.views import Bags, JoinedStore
from streammiml.config import parse_weights
from streammiml.errors import StreammimlError
from streammiml.kernel.sweep import NO_BAG_WEIGHTS
from streammiml.learn.holdout import Holdout

I64 = NDArray[np.int64]
_KEY = 0x3E16_47ED


@dataclass(frozen=True, slots=True)
class Visits:
    """The bags that an epoch visits, numbered as in ``listed``."""

    listed: Bags
    """The stores, each as often as its weight rounded up."""
    holdout: Holdout
    _ends: I64
    """Bag number at which each entry of the list ends."""
    _firsts: I64
    """Number of each entry's first bag in the training store, which has every store once."""
    _shares: NDArray[np.float64]
    """Share of the epochs in which a bag of each entry is visited."""
    _seed: int
    _bag_weights: NDArray[np.float32]
    """Weight of each bag of the training store, by which its steps are scaled; empty for 1."""

    def weights_of(self, bags: I64) -> NDArray[np.float64]:
        """Weights of these bags; empty if all bags have the weight 1."""
        if not len(self._bag_weights):
            return NO_BAG_WEIGHTS
        return self._bag_weights[self._in_store(bags)[1]].astype(np.float64)

    @property
    def weights_fingerprint(self) -> str:
        """Digest of the weights of all bags."""
        return fingerprint_of(self._bag_weights)

    def left_out(self, epoch: int, bags: I64) -> NDArray[np.bool_]:
        """Whether the epoch skips each of these bags: held out, or by a fractional weight."""
        if len(self._ends) == 1 and self._shares[0] == 1:
            return self.holdout.chosen(bags)
        entry, store_bags = self._in_store(bags)
        hashes = mixed(bags, _KEY, self._seed, epoch) >> np.uint64(11)
        skipped = hashes.astype(np.float64) * 2.0**-53 >= self._shares[entry]
        return self.holdout.chosen(store_bags) | skipped

    def _in_store(self, bags: I64) -> tuple[I64, I64]:
        """Entry of the list that each bag belongs to, and its number in the training store."""
        entry = np.searchsorted(self._ends, bags, "right")
        return entry, bags - np.concatenate([[0], self._ends])[entry] + self._firsts[entry]

    def steps_an_epoch(self) -> float:
        """Expected number of bags that an epoch visits, from the shares of weights and holdout."""
        sizes = np.diff(np.concatenate([[0], self._ends]))
        kept = 1 - self.holdout.size / self.holdout.n_bags
        return float((sizes * self._shares).sum() * kept)


def visits_of(
    store: Bags,
    weights: str | None,
    holdout: Holdout,
    seed: int,
    bag_weights: NDArray[np.float32] = NO_WEIGHTS,
) -> Visits:
    """Plan to visit every bag once, or as often as the weight of its store requires.

    ``bag_weights`` are the weights of all bags of the store; none means 1.
    """
    if weights is None:
        ends = np.array([store.n_bags])
        return Visits(store, holdout, ends, np.zeros(1, np.int64), np.ones(1), seed, bag_weights)
    parts: Sequence[Bags] = store.stores if isinstance(store, JoinedStore) else [store]
    store_weights = parse_weights(weights)
    if len(store_weights) != len(parts):
        raise StreammimlError(
            f"there are {len(store_weights)} weights for {len(parts)} stores; "
            "give one for each, in order"
        )
    firsts = from_sizes([part.n_bags for part in parts])
    entries = [
        (part, first, min(1.0, weight - number))
        for part, first, weight in zip(parts, firsts[:-1].tolist(), store_weights, strict=True)
        for number in range(int(np.ceil(weight)))
    ]
    listed = JoinedStore([part for part, _, _ in entries])
    ends = from_sizes([part.n_bags for part, _, _ in entries])[1:]
    entry_firsts = np.array([first for _, first, _ in entries])
    entry_shares = np.array([share for *_, share in entries])
    return Visits(listed, holdout, ends, entry_firsts, entry_shares, seed, bag_weights)
