"""Compiled parts of mixing: linked lists of bags by batch, and copies of bags into one array.

All work that is done per bag is done here, in calls that release the GIL.
"""

from __future__ import annotations

import ctypes

import numba
import numpy as np
from numpy.typing import NDArray

from streammiml._base.buffer_pool import lent_at
from streammiml._base.compiled import njit
from streammiml.bags.fast_reads import copy

I64 = NDArray[np.int64]
_NONE = -1
"""End of a linked list."""


def copy_ranges(sources: I64, lengths: I64, value_bytes: int = 1) -> tuple[NDArray[np.uint8], I64]:
    """Copy the values at these addresses into one array, one range after the other.

    A range has as many values of ``value_bytes`` bytes as ``lengths`` says. Also returns the bounds
    of the ranges, counted in values. The caller keeps the memory at the addresses alive.
    """
    offsets = np.empty(len(lengths) + 1, np.int64)
    out, target = lent_at(int(lengths.sum()) * value_bytes)
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        offsets[0] = 0
        np.cumsum(lengths, out=offsets[1:])
        starts = (target + offsets * value_bytes).tolist()
        for source, start, end in zip(sources.tolist(), starts, starts[1:], strict=False):
            ctypes.memmove(start, source, end - start)
    else:
        _copy_ranges(sources, lengths, value_bytes, target, offsets)
    return out, offsets


@njit
def _copy_ranges(sources: I64, lengths: I64, value_bytes: int, target: int, offsets: I64) -> None:
    end = np.int64(0)
    for i in range(len(sources)):
        offsets[i] = end
        copy(target + end * value_bytes, sources[i], lengths[i] * value_bytes)
        end += lengths[i]
    offsets[len(sources)] = end


@njit
def locate(
    offsets: I64, sizes: I64, addresses: I64, element_bytes: int, starts: I64, lengths: I64
) -> None:
    """For each bag, write the address of its first element and its number of elements.

    The addresses go to ``starts``, the numbers to ``lengths``. ``sizes`` has the number of bags of
    each block, ``addresses`` the address of each block's array. ``offsets`` has the n + 1 offsets
    of each block, one block after the other. An element has ``element_bytes`` bytes.
    """
    i = bag = 0
    for block in range(len(sizes)):
        for _ in range(sizes[block]):
            starts[bag] = addresses[block] + offsets[i] * element_bytes
            lengths[bag] = offsets[i + 1] - offsets[i]
            i += 1
            bag += 1
        # A block has one offset more than bags.
        i += 1


@njit
def insert(
    table: I64, rounds: I64, first: int, end: int, step: int, lines: I64, following: I64,
    heads: I64, free: I64, n_free: int,
) -> tuple[int, int]:  # fmt: skip
    """Add each line of ``table`` to the list of its batch.

    Batch i has ``step`` rounds, from round ``first`` + i · ``step`` on. Lines whose rounds are not
    from ``first`` to ``end`` are ignored. ``heads`` has the first slot of each list. ``lines``
    has the line in each slot, ``following`` the next slot of its list. ``free`` has the unused
    slots. Returns their number, and the last batch that has a line, or 0.
    """
    last = 0
    for i in range(len(table)):
        if not first <= rounds[i] < end:
            continue
        batch = (rounds[i] - first) // step
        last = max(last, batch)
        n_free -= 1
        slot = free[n_free]
        lines[slot] = table[i]
        head = batch % len(heads)
        following[slot] = heads[head]
        heads[head] = slot
    return n_free, last


@njit
def collect(
    batch: int, lines: I64, following: I64, heads: I64, free: I64, n_free: int, out: I64
) -> int:
    """Move the lines of a batch from its list to ``out``; return the number of lines."""
    head, n_lines = batch % len(heads), 0
    slot = heads[head]
    heads[head] = _NONE
    while slot != _NONE:
        out[n_lines] = lines[slot]
        free[n_free + n_lines] = slot
        n_lines += 1
        slot = following[slot]
    return n_lines
