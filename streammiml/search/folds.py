"""Folds of a store for cross validation: views, so nothing is copied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import Bags, StoreView
from streammiml.drawing import mixed
from streammiml.errors import StreammimlError

I64 = NDArray[np.int64]

_KEY = 0xF01D5


@dataclass(frozen=True, slots=True)
class Folds:
    """Bags in ``k`` parts of equal size, by a hash of a bag's number: the same for any seed."""

    n_bags: int
    k: int

    def __post_init__(self) -> None:
        if self.k < 2:
            raise StreammimlError(f"folds must be at least 2, got {self.k}")
        if self.k > self.n_bags:
            raise StreammimlError(
                f"{self.n_bags} bags cannot be cut into {self.k} folds; "
                f"--folds {max(2, self.n_bags)} is the most"
            )

    def of_bag(self) -> I64:
        """(n_bags,) The fold of each bag: bags in the order of their hash are dealt out in turn."""
        order = np.argsort(mixed(np.arange(self.n_bags), _KEY), kind="stable")
        found = np.empty(self.n_bags, np.int64)
        found[order] = np.arange(self.n_bags) % self.k
        return found

    def cut(self, store: Bags, fold: int) -> tuple[StoreView, StoreView]:
        """Bags to train on and bags to measure on, both in the order of the store."""
        inside = self.of_bag() == fold
        return store.view(~inside), store.view(inside)
