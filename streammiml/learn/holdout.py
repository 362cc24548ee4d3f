"""Which bags are held out for early stopping: a hash of the bag's number, the same for any seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streammiml.drawing import mixed
from streammiml.errors import StreammimlError

MOST_BAGS = 4096
_KEY = 0x5EED_0F_BA65


@dataclass(frozen=True)
class Holdout:
    """Bags whose hash falls below a limit, and not below another; none for a share of 0."""

    limit: int
    """Of 2^32."""
    n_bags: int
    least: int = 0
    """Of 2^32."""

    @classmethod
    def of(cls, share: float, n_bags: int) -> Holdout:
        """Hold out this share of the bags, or about 4096 of them if that is less."""
        limit = min(share, MOST_BAGS / n_bags) if share else 0.0
        found = cls(int(limit * 2**32), n_bags)
        if share and not 0 < found.size < n_bags:
            left = "every bag" if found.size else "no bag"
            raise StreammimlError(
                f"validation {share} of {n_bags} bags holds out {left}; "
                "give another share, --validation-store, or --validation 0"
            )
        return found

    @classmethod
    def of_all(cls, n_bags: int) -> Holdout:
        """Choose all bags of a store that is there to be looked at, or about 4096 of them."""
        found = cls(int(min(1.0, MOST_BAGS / max(n_bags, 1)) * 2**32), n_bags)
        if not found.size:
            raise StreammimlError(f"a validation store of {n_bags} bags leaves none to look at")
        return found

    @classmethod
    def of_fold(cls, fold: int, k: int, n_bags: int) -> Holdout:
        """Hold out the bags of one of ``k`` folds, counted from 0; they are of about equal size."""
        found = cls((fold + 1) * 2**32 // k, n_bags, fold * 2**32 // k)
        if not 0 < found.size < n_bags:
            raise StreammimlError(f"{n_bags} bags are too few for {k} folds; give --epochs")
        return found

    def chosen(self, bags: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these bags are held out."""
        found = mixed(bags, _KEY) >> np.uint64(32)
        return (found < np.uint64(self.limit)) & (found >= np.uint64(self.least))

    @property
    def size(self) -> int:
        """How many are held out."""
        return len(self.bags)

    @cached_property
    def bags(self) -> NDArray[np.int64]:
        """All bags held out, in order; found once, since every bag number must be looked at."""
        parts = (
            np.arange(start, min(start + 65536, self.n_bags))
            for start in range(0, self.n_bags, 65536)
        )
        return np.concatenate([np.zeros(0, np.int64), *(part[self.chosen(part)] for part in parts)])
