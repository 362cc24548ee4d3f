"""Offsets of ragged things: pure functions on arrays of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

I64 = NDArray[np.int64]


def from_sizes(sizes: ArrayLike) -> I64:
    """Offsets, one more than sizes, beginning with 0."""
    sizes = np.asarray(sizes, np.int64)
    out = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=out[1:])
    return out


def gather(offsets: I64, items: NDArray[Any]) -> tuple[I64, I64]:
    """Offsets of the chosen items laid end to end, and the place of each of their elements."""
    starts = offsets[items]
    new = from_sizes(offsets[np.asarray(items) + 1] - starts)
    shift = np.repeat(starts - new[:-1], np.diff(new))
    return new, np.arange(new[-1], dtype=np.int64) + shift


def runs(sorted_items: NDArray[Any], *, gap: int) -> list[tuple[int, int]]:
    """Half-open ranges that cover the items, leaving out gaps longer than ``gap``."""
    if len(sorted_items) == 0:
        return []
    cuts = np.flatnonzero(np.diff(sorted_items) > gap + 1) + 1
    parts = np.split(sorted_items, cuts)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]


def cuts_by_bytes(sizes: NDArray[Any], target: int) -> list[tuple[int, int]]:
    """Half-open ranges of items, each ended as soon as it holds ``target``; at least one item.

    An item as large as that is alone.
    """
    out, start, held = [], 0, 0
    for i, size in enumerate(sizes.tolist()):
        if size >= target and start < i:
            out.append((start, i))
            start, held = i, 0
        held += size
        if held >= target:
            out.append((start, i + 1))
            start, held = i + 1, 0
    return [*out, (start, len(sizes))] if start < len(sizes) else out
