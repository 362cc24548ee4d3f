"""Compiled parts of mixing: linked lists of bags by batch, and copies of bags into one array.

All work that is done per bag is done here, in calls that release the GIL.
"""

from __future__ import annotations

import ctypes

import numba
import numpy as np
from numpy.typing import NDArray

from streammiml._base.buffer_pool import lent
from streammiml._base.compiled import njit
from streammiml.bags.fast_reads import copy

I64 = NDArray[np.int64]
_NONE = -1
"""End of a linked list."""


def copy_ranges(sources: I64, sizes: I64) -> NDArray[np.uint8]:
    """Copy the bytes at these addresses into one array, one range after the other.

    ``sizes`` are the bytes of each range. The caller keeps the memory at the addresses alive.
    """
    out = lent(int(sizes.sum()))
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        target = out.ctypes.data
        for source, size in zip(sources.tolist(), sizes.tolist(), strict=True):
            ctypes.memmove(target, source, size)
            target += size
    else:
        _copy_ranges(np.ascontiguousarray(sources), np.ascontiguousarray(sizes), out)
    return out


@njit
def _copy_ranges(sources: I64, sizes: I64, out: NDArray[np.uint8]) -> None:
    # Signed: in numba an unsigned address plus a signed size is a float.
    target = np.int64(out.ctypes.data)
    for i in range(len(sources)):
        copy(target, sources[i], sizes[i])
        target += sizes[i]


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
    table: I64, batches: I64, lines: I64, following: I64, heads: I64, free: I64, n_free: int
) -> int:
    """Add each line of ``table`` to the list of its batch; return the number of free slots.

    A line whose batch is −1 is ignored. ``heads`` has the first slot of each list. ``lines`` has
    the line in each slot, ``following`` the next slot of its list. ``free`` has the unused slots.
    """
    for i in range(len(table)):
        if batches[i] < 0:
            continue
        n_free -= 1
        slot = free[n_free]
        lines[slot] = table[i]
        head = batches[i] % len(heads)
        following[slot] = heads[head]
        heads[head] = slot
    return n_free


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
