"""Names of bags: no two bags of a store have the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streammiml.errors import StoreError


def refuse_twice(hashes: NDArray[np.uint64], name_of: Callable[[int], str], where: str) -> None:
    """Refuse two bags of one name, given a hash of each bag's name and the names themselves.

    Names are looked at only where hashes are the same: different names may share one.
    """
    order = np.argsort(hashes, kind="stable")
    same = np.diff(hashes[order]) == 0
    if not same.any():
        return
    # Runs of bags that share a hash, each in rising order; first the one that repeats first.
    starts = np.flatnonzero(same & ~np.r_[False, same[:-1]])
    ends = np.flatnonzero(same & ~np.r_[same[1:], False]) + 2
    for run in np.argsort(order[starts + 1]).tolist():
        seen: dict[str, int] = {}
        for bag in order[starts[run] : ends[run]].tolist():
            name = name_of(bag)
            if name in seen:
                raise StoreError(
                    f"{where}: {same.sum()} bag ids come twice, the first is {name!r} "
                    f"(bags {seen[name]} and {bag})"
                )
            seen[name] = bag
