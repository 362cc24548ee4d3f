"""Arithmetic with offsets: item i owns the elements ``offsets[i]`` to ``offsets[i + 1]``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

I64 = NDArray[np.int64]


def from_sizes(sizes: ArrayLike) -> I64:
    """Offsets of items of these sizes: ``len(sizes) + 1`` numbers, beginning with 0."""
    sizes = np.asarray(sizes, np.int64)
    out = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=out[1:])
    return out


def gather(offsets: I64, items: NDArray[Any]) -> tuple[I64, I64]:
    """Offsets of the chosen items, laid end to end, and the old index of each element."""
    starts = offsets[items]
    new_offsets = from_sizes(offsets[np.asarray(items) + 1] - starts)
    shift = np.repeat(starts - new_offsets[:-1], np.diff(new_offsets))
    return new_offsets, np.arange(new_offsets[-1], dtype=np.int64) + shift


def runs(sorted_items: NDArray[Any], *, gap: int) -> list[tuple[int, int]]:
    """Half-open ranges that cover the items, split at gaps longer than ``gap``."""
    if len(sorted_items) == 0:
        return []
    cuts = np.flatnonzero(np.diff(sorted_items) > gap + 1) + 1
    parts = np.split(sorted_items, cuts)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]


def cuts_by_bytes(sizes: NDArray[Any], target: int) -> list[tuple[int, int]]:
    """Half-open ranges of items; a range ends as soon as the sum of its sizes reaches ``target``.

    An item whose size is ``target`` or more is a range of its own.
    """
    ranges, start, n_bytes = [], 0, 0
    for i, size in enumerate(sizes.tolist()):
        if size >= target and start < i:
            ranges.append((start, i))
            start, n_bytes = i, 0
        n_bytes += size
        if n_bytes >= target:
            ranges.append((start, i + 1))
            start, n_bytes = i + 1, 0
    return [*ranges, (start, len(sizes))] if start < len(sizes) else ranges
