"""Compiled parts of mixing bags: whose turn is when, and laying bags end to end.

What is done for every bag is done here, in calls that let other threads run.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streammiml.jit import njit
from streammiml.loans import lent

I64 = NDArray[np.int64]
_NONE = -1


def lay(sources: I64, sizes: I64) -> NDArray[np.uint8]:
    """Bytes at these addresses, end to end; whoever calls keeps alive what is there."""
    out = lent(int(sizes.sum()))
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        at = out.ctypes.data
        for source, size in zip(sources.tolist(), sizes.tolist(), strict=True):
            ctypes.memmove(at, source, size)
            at += size
    else:
        _lay(np.ascontiguousarray(sources), np.ascontiguousarray(sizes), out)
    return out


_intrinsic: Any = intrinsic


@_intrinsic  # type: ignore[untyped-decorator]
def _copy(_: Any, target: Any, source: Any, size: Any) -> Any:  # noqa: ARG001
    """Bytes from one address to another; both are plain integers."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        to, of, n_bytes = arguments
        pointer = ir.IntType(8).as_pointer()
        copy: Any = cgutils.raw_memcpy
        copy(builder, builder.inttoptr(to, pointer), builder.inttoptr(of, pointer), n_bytes, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit
def _lay(sources: I64, sizes: I64, out: NDArray[np.uint8]) -> None:
    # As an integer with a sign: an address plus a size would be a float.
    at = np.int64(out.ctypes.data)
    for i in range(len(sources)):
        _copy(at, sources[i], sizes[i])
        at += sizes[i]


@njit
def locate(
    offsets: I64, sizes: I64, addresses: I64, element: int, starts: I64, lengths: I64
) -> None:
    """Addresses and lengths of what each bag owns, of blocks whose offsets stand end to end.

    A block of n bags has n + 1 offsets, an address, and elements of so many bytes.
    """
    at = line = 0
    for block in range(len(sizes)):
        for _ in range(sizes[block]):
            starts[line] = addresses[block] + (offsets[at]) * element
            lengths[line] = offsets[at + 1] - offsets[at]
            at += 1
            line += 1
        at += 1


@njit
def enter(
    table: I64, batches: I64, lines: I64, following: I64, heads: I64, free: I64, n_free: int
) -> int:
    """Put lines into the lists of their batches; −1 is no batch. Returns how many are free then."""
    for i in range(len(table)):
        if batches[i] < 0:
            continue
        n_free -= 1
        at = free[n_free]
        lines[at] = table[i]
        place = batches[i] % len(heads)
        following[at] = heads[place]
        heads[place] = at
    return n_free


@njit
def collect(
    batch: int, lines: I64, following: I64, heads: I64, free: I64, n_free: int, out: I64
) -> int:
    """Take the lines of a batch out of its list; how many there were."""
    place, found = batch % len(heads), 0
    at = heads[place]
    heads[place] = _NONE
    while at != _NONE:
        out[found] = lines[at]
        free[n_free + found] = at
        found += 1
        at = following[at]
    return found
