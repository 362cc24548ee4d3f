"""A pool of buffers: the memory of deleted arrays is reused.

Fresh memory pages cost more time than reading data into them: the system clears each page, and
returning pages interrupts every other core.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORTEST, LONGEST = 64 << 10, 32 << 20
"""Sizes in bytes of buffers that the pool handles; NumPy allocates all others."""
IDLE_BYTES = 8 << 20
"""Upper limit for the bytes of idle buffers; the last buffer kept may exceed it."""
_UNIT = 64 << 10
"""Sizes are rounded up, so that a buffer fits many requests: to a multiple of this, or of an eighth
of the largest power of two that is not above the size, if that is more."""
_LINE = 64

Memory = tuple[NDArray[np.uint8], int]
"""An array and its address, which is stored because NumPy takes long to return it."""

_idle: dict[int, list[Memory]] = defaultdict(list)
_kept = 0


class _Lease:
    """The owner of an array's memory; returns it to the pool when the last view is gone."""

    __slots__ = ("__array_struct__", "_memory")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        # NumPy takes twice as long to read __array_interface__, which is a dictionary.
        self.__array_struct__: Any = memory[0].__array_struct__

    def __del__(self) -> None:
        global _kept
        # There is no lock: if two threads miscount, only the limit on idle memory is inexact.
        size = len(self._memory[0])
        if _kept >= IDLE_BYTES:
            _drop_another(size)
        if _kept < IDLE_BYTES:
            _kept += size
            _idle[size].append(self._memory)


def _drop_another(size: int) -> None:
    """Free an idle buffer of another size: the size returned last is likely to be needed next."""
    global _kept
    for idle_size, memories in list(_idle.items()):
        if idle_size != size and memories:
            memories.pop()
            _kept -= idle_size
            return


def lent(n_bytes: int) -> NDArray[np.uint8]:
    """Return a buffer of undefined content; its memory returns to the pool with the last view."""
    return lent_at(n_bytes)[0]


def lent_at(n_bytes: int) -> Memory:
    """Return a buffer and its address."""
    global _kept
    if not SHORTEST <= n_bytes <= LONGEST:
        return _allocate(n_bytes)
    unit = max(_UNIT, 1 << n_bytes.bit_length() >> 4)
    # Most callers request a round number of bytes plus two cache lines.
    size = -(-(n_bytes - 2 * _LINE) // unit) * unit + 2 * _LINE
    try:
        memory = _idle[size].pop()
        _kept -= size
    except IndexError:
        memory = _allocate(size)
    return np.asarray(_Lease(memory))[:n_bytes], memory[1]


def _allocate(n_bytes: int) -> Memory:
    array = np.empty(n_bytes, np.uint8)
    return array, int(array.__array_interface__["data"][0])
