"""crc32c of many pieces of a buffer: by the package, or twice as fast where that is worth it."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

MANY_BYTES = 1 << 20
"""Less is checked by the package until the faster way has been loaded, which loads a compiler."""


def first_wrong(buffer: NDArray[np.uint8], sizes: NDArray[Any], crcs: NDArray[Any]) -> int:
    """Number of the first piece of the buffer whose crc32c is another one, or −1.

    Pieces lie end to end; ``sizes`` are their bytes.
    """
    if len(sizes) > 1 and worth_compiling(len(buffer)) and has_fast_way():
        found: int = _fast().first_wrong(buffer, sizes, crcs)
        return found
    at, whole = 0, buffer.data
    for i, (size, crc) in enumerate(zip(sizes.tolist(), crcs.tolist(), strict=True)):
        if crc32c(whole[at : at + size]) != crc:
            return i
        at += size
    return -1


def worth_compiling(n_bytes: int) -> bool:
    """Whether so many bytes are worth loading a compiler.

    Or it is there anyway, as it is wherever something is trained or scored.
    """
    return n_bytes >= MANY_BYTES or "numba" in sys.modules


@cache
def _fast() -> Any:
    return import_module("streammiml.fast_crc")


@cache
def has_fast_way() -> bool:
    """Whether this processor multiplies wide vectors without carry, and we may compile for it."""
    try:
        return bool(_fast().is_fast())
    except RuntimeError:  # Numba's, where no folder takes what it compiles: reading goes on.
        return False
