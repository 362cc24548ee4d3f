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

from streammiml._base.platform import will_need_advice
from streammiml.fast_crc import first_wrong_at
from streammiml.jit import inner, njit

I64 = NDArray[np.int64]
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()
_intrinsic: Any = intrinsic
_WILL_NEED = will_need_advice()
PAGE = 4096
ADVICE = 256 << 10
"""What the page cache is told of at once: of long stretches Linux may hear only the beginning."""
HOT_BYTES = 2 << 20
MOST_BLOCK = 16 << 20
"""Of the blocks that the library cuts a chunk into: it takes memory for three."""
_UNKNOWN = 8  # The flag of a format to come, which it looks at only when it unpacks whole chunks.


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
def _posix_fadvise(_: Any, fd: Any, offset: Any, size: Any) -> Any:  # noqa: ARG001
    """The system's: bytes of a file will be wanted soon."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        fd, offset, size = arguments
        kind, name = ir.FunctionType(_I32, [_I32, _I64, _I64, _I32]), "posix_fadvise"
        callee = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        soon = _I32(_WILL_NEED)
        return builder.sext(
            builder.call(callee, [builder.trunc(fd, _I32), offset, size, soon]), _I64
        )

    return types.int64(types.int64, types.int64, types.int64), generate


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
def _take(_: Any, function: Any, source: Any, start: Any, n: Any, target: Any) -> Any:  # noqa: ARG001
    """Call ``blosc_getitem`` at an address: some items of a chunk; the bytes that came."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        function, source, start, n, target = arguments
        kind = ir.FunctionType(_I32, [_POINTER, _I32, _I32, _POINTER])
        callee = builder.inttoptr(function, kind.as_pointer())
        of, to = (builder.inttoptr(each, _POINTER) for each in (source, target))
        first, many = (builder.trunc(each, _I32) for each in (start, n))
        return builder.sext(builder.call(callee, [of, first, many, to]), _I64)

    return types.int64(*[types.int64] * 5), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _half_word_at(_: Any, address: Any) -> Any:  # noqa: ARG001
    """Four bytes from an address on."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], _I32.as_pointer()), align=1)
        return builder.zext(loaded, _I64)

    return types.int64(types.int64), generate


@njit
def _nothing(fd: int, offset: int, size: int) -> int:  # noqa: ARG001
    """Where the system takes no advice."""
    return 0


_advise: Any = _nothing if _WILL_NEED is None else _posix_fadvise


@inner
def _tell(fd: int, offset: int, size: int) -> None:
    """Let the page cache know what will be wanted."""
    for at in range(offset, offset + size, ADVICE):
        _advise(fd, at, min(ADVICE, offset + size - at))


@njit
def fetch(ranges: I64, sizes: I64, crcs: NDArray[np.uint64]) -> int:
    """Read ranges of files, each to its address, and check the pieces of which it consists.

    ``ranges`` has lines of (descriptor, 1 past the page cache, what the cache is told of before any
    is read: offset and bytes; then offset, bytes, address, number of pieces). Returns −1, or the
    first that could not be read or is wrong.
    """
    for i in range(len(ranges)):
        _tell(ranges[i, 0], ranges[i, 2], ranges[i, 3])
    piece: Any = np.int64(0)
    for i in range(len(ranges)):
        fd, past, _, _, offset, size, address, n_pieces = ranges[i]
        if not _fetch(fd, past, offset, size, address, sizes, crcs, piece, piece + n_pieces):
            return i
        piece += n_pieces
    return -1


@njit
def fetch_one(
    fd: int, past: int, told: int, told_bytes: int, offset: int, size: int, address: int,
    sizes: I64, crcs: NDArray[np.uint64], piece: int, stop: int,
) -> bool:  # fmt: skip
    """One range, which consists of pieces ``piece`` to ``stop``; whether all is right."""
    _tell(fd, told, told_bytes)
    return bool(_fetch(fd, past, offset, size, address, sizes, crcs, piece, stop))


@inner
def _fetch(
    fd: int, past: int, offset: Any, size: int, address: Any, sizes: I64, crcs: NDArray[np.uint64],
    piece: int, stop: int,
) -> Any:  # fmt: skip
    if past:
        skip = offset % PAGE
        if _read_pages(fd, offset - skip, skip + size, address - skip) < skip + size:
            return False
    while piece < stop:
        # So few bytes at once that they are checked while they are in the cache.
        some, n_bytes = piece, np.int64(0)
        while some < stop and (past or n_bytes < HOT_BYTES):
            n_bytes += sizes[some]
            some += 1
        if not past and _read(fd, offset, n_bytes, address) < n_bytes:
            return False
        if first_wrong_at(address, sizes[piece:some], crcs[piece:some]) >= 0:
            return False
        piece, offset, address = some, offset + n_bytes, address + n_bytes
    return True


@inner
def _read(fd: int, offset: int, size: Any, address: int) -> Any:
    """How many of the bytes wanted came."""
    done = np.int64(0)
    while done < size:
        got = _pread(fd, address + done, size - done, offset + done)
        if got <= 0:
            break
        done += got
    return done


@inner
def _read_pages(fd: int, offset: int, size: int, address: int) -> Any:
    """The same by whole pages, from a page on to a page; the last may come along."""
    done, whole = np.int64(0), -(-size // PAGE) * PAGE
    while done < size:
        got = _pread(fd, address + done, whole - done, offset + done)
        done += max(got, 0)
        # Where pages end in the middle, so does the file.
        if got <= 0 or done % PAGE:
            break
    return done


@njit
def decompress(
    whole: int, part: int, ranges: I64, lengths: I64, firsts: I64, counts: I64, element: int,
    end: int,
) -> int:  # fmt: skip
    """Decompress blosc chunks, or parts of them; −1, or the first range that fails.

    ``ranges`` has lines of (first element wanted, end of them, number of chunks, address of the
    chunks, which lie end to end, address for the elements). A chunk has its length in bytes, and
    the number of its first element and of all; elements have ``element`` bytes, and the chunk with
    the last of all, before ``end``, may hold more.
    """
    chunk = 0
    for i in range(len(ranges)):
        start, stop, n_chunks, of, to = ranges[i]
        for j in range(chunk, chunk + n_chunks):
            first, behind = firsts[j], firsts[j] + counts[j]
            # Chunks that do not follow each other, or hold nothing that is wanted, are a lie.
            if not first <= start < min(behind, stop):
                return i
            some = min(behind, stop) - start
            skip, wanted, holds = (start - first) * element, some * element, counts[j] * element
            if not _unpack(whole, part, of, lengths[j], holds, behind == end, skip, wanted, to):
                return i
            start, of, to = start + some, of + lengths[j], to + wanted
        if start != stop:
            return i
        chunk += n_chunks
    return -1


@inner
def _unpack(
    whole: int, part: int, of: int, length: int, size: int, padded: bool, skip: int, wanted: int,
    to: int,
) -> bool:  # fmt: skip
    """Of the ``size`` bytes in a chunk, or at least if ``padded``, the ``wanted`` after ``skip``.

    The library's functions, at ``whole`` and ``part``, take a chunk's word: they would read on
    behind it, leave values as they were, or ask for as much memory as it says. So what its header
    says is compared first.
    """
    if length < 16 or _half_word_at(of + 12) > length:
        return False
    holds = _half_word_at(of + 4)
    if holds < size or (holds > size and not padded):
        return False
    if holds == wanted:
        return bool(_decompress(whole, of, to, holds) == holds)
    item, flags = _half_word_at(of) >> 24, _half_word_at(of) >> 16
    if item == 0 or skip % item or wanted % item or flags & _UNKNOWN:
        return False
    if _half_word_at(of + 8) > MOST_BLOCK:
        return False
    return bool(_take(part, of, skip // item, wanted // item, to) == wanted)
