"""Compiled parts of reading: many ranges of files, and many compressed chunks, in one call each.

Other threads run meanwhile, and are not woken for every range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streammiml.jit import njit

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()
_intrinsic: Any = intrinsic


@_intrinsic  # type: ignore[untyped-decorator]
def _pread(_: Any, fd: Any, address: Any, size: Any, offset: Any) -> Any:  # noqa: ARG001
    """The system's: bytes of a file to an address; how many, 0 at its end, negative on errors."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        fd, address, size, offset = arguments
        kind = ir.FunctionType(_I64, [_I32, _POINTER, _I64, _I64])
        callee = builder.module.globals.get("pread") or ir.Function(builder.module, kind, "pread")
        to = builder.inttoptr(address, _POINTER)
        return builder.call(callee, [builder.trunc(fd, _I32), to, size, offset])

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _decompress(_: Any, function: Any, source: Any, target: Any, size: Any) -> Any:  # noqa: ARG001
    """Call ``blosc_decompress_ctx`` at an address, with one thread."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        function, source, target, size = arguments
        kind = ir.FunctionType(_I32, [_POINTER, _POINTER, _I64, _I32])
        callee = builder.inttoptr(function, kind.as_pointer())
        of, to = (builder.inttoptr(each, _POINTER) for each in (source, target))
        return builder.sext(builder.call(callee, [of, to, size, _I32(1)]), _I64)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _half_word_at(_: Any, address: Any) -> Any:  # noqa: ARG001
    """Four bytes from an address on."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], _I32.as_pointer()), align=1)
        return builder.zext(loaded, _I64)

    return types.int64(types.int64), generate


@njit
def fetch(fds: I64, offsets: I64, sizes: I64, out: U8) -> int:
    """Fill ``out`` with these ranges of files, end to end; −1, or the first that failed."""
    at = np.int64(out.ctypes.data)
    for i in range(len(fds)):
        done = np.int64(0)
        while done < sizes[i]:
            got = _pread(fds[i], at + done, sizes[i] - done, offsets[i] + done)
            if got <= 0:
                return i
            done += got
        at += sizes[i]
    return -1


@njit
def decompress(function: int, source: U8, lengths: I64, target: U8, sizes: I64) -> int:
    """Decompress blosc chunks that lie end to end; −1, or the first that does not come out.

    The library takes a chunk's word: it would read on behind it, or leave values as they were. So
    what its header says is compared first.
    """
    of, to = np.int64(source.ctypes.data), np.int64(target.ctypes.data)
    for i in range(len(lengths)):
        if lengths[i] < 16 or _half_word_at(of + 12) > lengths[i]:
            return i
        if _half_word_at(of + 4) < sizes[i]:
            return i
        if _decompress(function, of, to, sizes[i]) != sizes[i]:
            return i
        of += lengths[i]
        to += sizes[i]
    return -1
