"""Folds of a store for cross validation, as views: no bag is copied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml._base.hashing import mixed
from streammiml.bags.views import Bags, StoreView
from streammiml.errors import StreammimlError

I64 = NDArray[np.int64]

_KEY = 0xF01D5
"""Seed of the hash; folds of old searches depend on it."""


@dataclass(frozen=True, slots=True)
class Folds:
    """``k`` folds of equal size; a hash of the bag number decides the fold, whatever the seed."""

    n_bags: int
    k: int

    def __post_init__(self) -> None:
        if self.k < 2:
            raise StreammimlError(f"folds must be at least 2, got {self.k}")
        if self.k > self.n_bags:
            raise StreammimlError(
                f"{self.n_bags} bags cannot be cut into {self.k} folds; "
                f"--folds {max(2, self.n_bags)} is the largest number"
            )

    def of_bag(self) -> I64:
        """(n_bags,) The fold of each bag: bags sorted by hash are dealt to the folds in turn."""
        order = np.argsort(mixed(np.arange(self.n_bags), _KEY), kind="stable")
        folds = np.empty(self.n_bags, np.int64)
        folds[order] = np.arange(self.n_bags) % self.k
        return folds

    def cut(self, store: Bags, fold: int) -> tuple[StoreView, StoreView]:
        """Views of the bags outside the fold and inside it, both in the order of the store."""
        inside = self.of_bag() == fold
        return store.view(~inside), store.view(inside)
