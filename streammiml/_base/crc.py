"""crc32c of many pieces of a buffer: by the package crc32c, or by our faster compiled code."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

MANY_BYTES = 1 << 20
"""Buffers smaller than this are checked without the compiled code, which would load numba."""


def first_wrong(buffer: NDArray[np.uint8], sizes: NDArray[Any], crcs: NDArray[Any]) -> int:
    """Return the number of the first piece whose crc32c differs from ``crcs``, or −1.

    Pieces lie end to end in the buffer; ``sizes`` are their lengths in bytes.
    """
    if len(sizes) > 1 and worth_compiling(len(buffer)) and has_fast_way():
        wrong: int = _fast().first_wrong(buffer, sizes, crcs)
        return wrong
    start, view = 0, buffer.data
    for i, (size, crc) in enumerate(zip(sizes.tolist(), crcs.tolist(), strict=True)):
        if crc32c(view[start : start + size]) != crc:
            return i
        start += size
    return -1


def worth_compiling(n_bytes: int) -> bool:
    """Whether ``n_bytes`` bytes justify loading numba, or numba is loaded already."""
    return n_bytes >= MANY_BYTES or "numba" in sys.modules


@cache
def _fast() -> Any:
    return import_module("streammiml._base.crc_compiled")


@cache
def has_fast_way() -> bool:
    """Whether this processor has the instructions of our compiled code, and numba may use them."""
    try:
        return bool(_fast().is_fast())
    except RuntimeError:  # numba raises it without a cache folder; crc32c still works.
        return False
