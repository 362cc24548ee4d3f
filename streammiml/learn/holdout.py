"""Which bags are held out for early stopping: a hash of the bag number decides, not the seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streammiml._base.hashing import mixed
from streammiml.errors import StreammimlError

MOST_BAGS = 4096
"""About the largest number of held-out bags."""
_KEY = 0x5EED_0F_BA65


@dataclass(frozen=True)
class Holdout:
    """The bags whose hash is at least ``least`` and below ``limit``; none if both are 0."""

    limit: int
    """Upper bound of the hashes, which are from 0 to 2^32 − 1."""
    n_bags: int
    least: int = 0
    """Lower bound of the hashes."""

    @classmethod
    def of(cls, share: float, n_bags: int) -> Holdout:
        """Hold out a share of the bags, or about 4096 bags if that is less."""
        limit = min(share, MOST_BAGS / n_bags) if share else 0.0
        holdout = cls(int(limit * 2**32), n_bags)
        if share and not 0 < holdout.size < n_bags:
            held_out = "every bag" if holdout.size else "no bag"
            raise StreammimlError(
                f"validation {share} of {n_bags} bags holds out {held_out}; "
                "give another share, --validation-store, or --validation 0"
            )
        return holdout

    @classmethod
    def of_all(cls, n_bags: int) -> Holdout:
        """Choose all bags of a validation store, or about 4096 of them if it has more."""
        holdout = cls(int(min(1.0, MOST_BAGS / max(n_bags, 1)) * 2**32), n_bags)
        if not holdout.size:
            raise StreammimlError(f"a validation store of {n_bags} bags has none to validate on")
        return holdout

    @classmethod
    def of_fold(cls, fold: int, k: int, n_bags: int) -> Holdout:
        """Hold out fold number ``fold`` (from 0) of ``k`` folds of about equal size."""
        holdout = cls((fold + 1) * 2**32 // k, n_bags, fold * 2**32 // k)
        if not 0 < holdout.size < n_bags:
            raise StreammimlError(f"{n_bags} bags are too few for {k} folds; give --epochs")
        return holdout

    def chosen(self, bags: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of these bags is held out."""
        hashes = mixed(bags, _KEY) >> np.uint64(32)
        return (hashes < np.uint64(self.limit)) & (hashes >= np.uint64(self.least))

    @property
    def size(self) -> int:
        """Number of held-out bags."""
        return len(self.bags)

    @cached_property
    def bags(self) -> NDArray[np.int64]:
        """Numbers of the held-out bags, ascending; cached, because every bag number is hashed."""
        parts = (
            np.arange(start, min(start + 65536, self.n_bags))
            for start in range(0, self.n_bags, 65536)
        )
        return np.concatenate([np.zeros(0, np.int64), *(part[self.chosen(part)] for part in parts)])
