"""Bag ids: no two bags of a store may have the same id."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streammiml.errors import RepeatedIdError


def id_hashes(names: list[str]) -> NDArray[np.uint64]:
    """64-bit hash of each id, to find repeated ids."""
    raw = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(raw, np.uint64)


def split_names(offsets: NDArray[np.int64], raw: NDArray[np.uint8]) -> list[str]:
    """Decode strings whose UTF-8 bytes lie end to end; ``offsets`` begin at 0."""
    text, ends = raw.tobytes(), offsets.tolist()
    return [text[start:stop].decode() for start, stop in pairwise(ends)]


def refuse_twice(hashes: NDArray[np.uint64], name_of: Callable[[int], str], where: str) -> None:
    """Refuse two bags with the same id, given a hash for each bag and a function for its id.

    Ids are compared only where hashes are equal, because different ids may share a hash. ``where``
    is the beginning of the message.
    """
    order = np.argsort(hashes, kind="stable")
    same = np.diff(hashes[order]) == 0
    if not same.any():
        return
    # Runs of bags with equal hashes, each in rising order of bags. The run with the earliest
    # repetition comes first, so that the message names the first repeated id.
    starts = np.flatnonzero(same & ~np.r_[False, same[:-1]])
    ends = np.flatnonzero(same & ~np.r_[same[1:], False]) + 2
    for run in np.argsort(order[starts + 1]).tolist():
        seen: dict[str, int] = {}
        for bag in order[starts[run] : ends[run]].tolist():
            name = name_of(bag)
            if name in seen:
                raise RepeatedIdError(
                    f"{where}: {same.sum()} bag ids come twice, the first is {name!r} "
                    f"(bags {seen[name]} and {bag})"
                )
            seen[name] = bag
