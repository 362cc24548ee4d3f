"""Copies many pieces of memory end to end in one call that lets other threads run."""

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

I64 = NDArray[np.int64]


def lay(sources: I64, sizes: I64) -> NDArray[np.uint8]:
    """Bytes at these addresses, end to end; whoever calls keeps alive what is there."""
    out = np.empty(int(sizes.sum()), np.uint8)
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
    at = out.ctypes.data
    for i in range(len(sources)):
        _copy(at, sources[i], sizes[i])
        at += sizes[i]
