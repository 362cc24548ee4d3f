"""Stores of different weight: how often the bags of each are visited, without copying any.

A store of weight 2 has every bag visited twice an epoch; one of weight 0.5 has each bag visited in
about every other epoch, by a hash of (seed, epoch, bag). So weights 2 and 1 train on a bag of the
first store twice as often as on one of the second, and an epoch is longer by that. Each store is
listed as often as its weight, rounded up, says, and numbers run over the list: the order, mixing
and memory of a run are those of a store that large. Bags that a fraction leaves out are read along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.offsets import from_sizes
from streammiml.bags.views import Bags, JoinedStore
from streammiml.config import parse_weights
from streammiml.drawing import mixed
from streammiml.errors import StreammimlError
from streammiml.learn.holdout import Holdout

I64 = NDArray[np.int64]
_KEY = 0x3E16_47ED


@dataclass(frozen=True, slots=True)
class Visits:
    """The bags that an epoch goes over, numbered as in ``listed``."""

    listed: Bags
    """The stores, each as often as the largest number of visits to one of its bags."""
    holdout: Holdout
    _ends: I64
    """Where each entry of the list ends."""
    _firsts: I64
    """The number in the training store of each entry's first bag."""
    _shares: NDArray[np.float64]
    """The share of epochs in which a bag of each entry is visited."""
    _seed: int

    def left_out(self, epoch: int, bags: I64) -> NDArray[np.bool_]:
        """Which of these are not visited in an epoch: held out, or not chosen by a fraction."""
        if len(self._ends) == 1 and self._shares[0] == 1:
            return self.holdout.chosen(bags)
        entry = np.searchsorted(self._ends, bags, "right")
        own = bags - np.concatenate([[0], self._ends])[entry] + self._firsts[entry]
        chance = mixed(bags, _KEY, self._seed, epoch) >> np.uint64(11)
        skipped = chance.astype(np.float64) * 2.0**-53 >= self._shares[entry]
        return self.holdout.chosen(own) | skipped

    def steps_an_epoch(self) -> float:
        """Bags visited in an epoch, about: fractions and what is held out are counted as shares."""
        sizes = np.diff(np.concatenate([[0], self._ends]))
        kept = 1 - self.holdout.size / self.holdout.n_bags
        return float((sizes * self._shares).sum() * kept)


def visits_of(store: Bags, weights: str | None, holdout: Holdout, seed: int) -> Visits:
    """Every bag once, or as often as the weights of the stores say."""
    if weights is None:
        ends = np.array([store.n_bags])
        return Visits(store, holdout, ends, np.zeros(1, np.int64), np.ones(1), seed)
    parts: Sequence[Bags] = store.stores if isinstance(store, JoinedStore) else [store]
    shares = parse_weights(weights)
    if len(shares) != len(parts):
        raise StreammimlError(
            f"there are {len(shares)} weights for {len(parts)} stores; give one for each, in order"
        )
    firsts = from_sizes([part.n_bags for part in parts])
    entries = [
        (part, first, min(1.0, weight - number))
        for part, first, weight in zip(parts, firsts[:-1].tolist(), shares, strict=True)
        for number in range(int(np.ceil(weight)))
    ]
    listed = JoinedStore([part for part, _, _ in entries])
    ends = from_sizes([part.n_bags for part, _, _ in entries])[1:]
    where = np.array([first for _, first, _ in entries])
    return Visits(listed, holdout, ends, where, np.array([each for *_, each in entries]), seed)
