"""Memory that is lent and comes back: arrays of some length that live for a moment, or a while.

Fresh pages cost more than what is read into them: the system clears each, and giving them back
interrupts every other core.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORTEST, LONGEST = 64 << 10, 8 << 20
"""Other arrays are made as always."""
IDLE_BYTES = 8 << 20
"""More than this is not kept for later."""
_UNIT = 64 << 10
"""Sizes are rounded up to these, or to an eighth, so that one fits another's memory."""
_LINE = 64

Memory = tuple[NDArray[np.uint8], int]
"""With its address, which takes longer to ask for than to keep."""

_idle: dict[int, list[Memory]] = defaultdict(list)
_kept = 0


class _Loan:
    """The owner of an array's memory, which takes it back when the last view of it has gone."""

    __slots__ = ("__array_struct__", "_memory")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        # Not the interface, a dictionary: numpy takes twice as long to read it.
        self.__array_struct__: Any = memory[0].__array_struct__

    def __del__(self) -> None:
        global _kept
        # Not exact where threads meet, and need not be: it says what is kept, not what is lent.
        size = len(self._memory[0])
        if _kept >= IDLE_BYTES:
            _drop_another(size)
        if _kept < IDLE_BYTES:
            _kept += size
            _idle[size].append(self._memory)


def _drop_another(size: int) -> None:
    """Let memory of another size go: what came back last is what will be asked for."""
    global _kept
    for other, arrays in list(_idle.items()):
        if other != size and arrays:
            arrays.pop()
            _kept -= other
            return


def lent(n_bytes: int) -> NDArray[np.uint8]:
    """So many bytes of any content; their memory is used again when the array has gone."""
    return lent_at(n_bytes)[0]


def lent_at(n_bytes: int) -> Memory:
    """The same, and where they lie."""
    global _kept
    if not SHORTEST <= n_bytes <= LONGEST:
        return _made(n_bytes)
    unit = max(_UNIT, 1 << n_bytes.bit_length() >> 4)
    # Most ask for a round number and two lines.
    size = -(-(n_bytes - 2 * _LINE) // unit) * unit + 2 * _LINE
    try:
        memory = _idle[size].pop()
        _kept -= size
    except IndexError:
        memory = _made(size)
    return np.asarray(_Loan(memory))[:n_bytes], memory[1]


def _made(n_bytes: int) -> Memory:
    array = np.empty(n_bytes, np.uint8)
    return array, int(array.__array_interface__["data"][0])
