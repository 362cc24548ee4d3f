"""Compiled reading: one call fetches many ranges of files, or decompresses many chunks.

The calls release the interpreter's lock once for all ranges, so other threads run meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streammiml._base.compiled import inner, njit
from streammiml._base.crc_compiled import first_wrong_at
from streammiml._base.platform import will_need_advice

I64 = NDArray[np.int64]
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()
_intrinsic: Any = intrinsic
_WILL_NEED = will_need_advice()
PAGE = 4096
ADVICE = 256 << 10
"""Bytes of one advice to the page cache; Linux may ignore the rest of a longer advice."""
HOT_BYTES = 2 << 20
"""Bytes that are read at a time, few enough to be still in the processor's cache when checked."""
MOST_BLOCK = 16 << 20
"""Limit in bytes of a block of a blosc chunk; the library allocates memory for three blocks."""
# Flag that is reserved for future formats of blosc; blosc_getitem does not check it.
_RESERVED_FLAG = 8


@_intrinsic  # type: ignore[untyped-decorator]
def _pread(_: Any, fd: Any, address: Any, size: Any, offset: Any) -> Any:  # noqa: ARG001
    """Call ``pread``: read bytes to an address; return their number, or < 0 on errors."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        fd, address, size, offset = arguments
        signature = ir.FunctionType(_I64, [_I32, _POINTER, _I64, _I64])
        module = builder.module
        callee = module.globals.get("pread") or ir.Function(module, signature, "pread")
        target = builder.inttoptr(address, _POINTER)
        return builder.call(callee, [builder.trunc(fd, _I32), target, size, offset])

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _posix_fadvise(_: Any, fd: Any, offset: Any, size: Any) -> Any:  # noqa: ARG001
    """Call ``posix_fadvise`` with the advice that bytes of a file will be needed soon."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        fd, offset, size = arguments
        signature, name = ir.FunctionType(_I32, [_I32, _I64, _I64, _I32]), "posix_fadvise"
        callee = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
        advice = _I32(_WILL_NEED)
        return builder.sext(
            builder.call(callee, [builder.trunc(fd, _I32), offset, size, advice]), _I64
        )

    return types.int64(types.int64, types.int64, types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _decompress(_: Any, function: Any, source: Any, target: Any, size: Any) -> Any:  # noqa: ARG001
    """Call ``blosc_decompress_ctx`` at an address, with one thread."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        function, source, target, size = arguments
        signature = ir.FunctionType(_I32, [_POINTER, _POINTER, _I64, _I32])
        callee = builder.inttoptr(function, signature.as_pointer())
        pointers = [builder.inttoptr(address, _POINTER) for address in (source, target)]
        return builder.sext(builder.call(callee, [*pointers, size, _I32(1)]), _I64)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _take(_: Any, function: Any, source: Any, start: Any, n: Any, target: Any) -> Any:  # noqa: ARG001
    """Call ``blosc_getitem`` at an address: copy items of a chunk; return the number of bytes."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        function, source, start, n, target = arguments
        signature = ir.FunctionType(_I32, [_POINTER, _I32, _I32, _POINTER])
        callee = builder.inttoptr(function, signature.as_pointer())
        origin, goal = (builder.inttoptr(address, _POINTER) for address in (source, target))
        first, count = (builder.trunc(number, _I32) for number in (start, n))
        return builder.sext(builder.call(callee, [origin, first, count, goal]), _I64)

    return types.int64(*[types.int64] * 5), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _uint32_at(_: Any, address: Any) -> Any:  # noqa: ARG001
    """Load the four bytes at an address."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], _I32.as_pointer()), align=1)
        return builder.zext(loaded, _I64)

    return types.int64(types.int64), generate


@njit
def _no_advice(fd: int, offset: int, size: int) -> int:  # noqa: ARG001
    """Do nothing: this system has no ``posix_fadvise``."""
    return 0


_advise: Any = _no_advice if _WILL_NEED is None else _posix_fadvise


@inner
def _announce(fd: int, offset: int, size: int) -> None:
    """Advise the page cache that bytes of a file will be needed."""
    for at in range(offset, offset + size, ADVICE):
        _advise(fd, at, min(ADVICE, offset + size - at))


@njit
def fetch(ranges: I64, sizes: I64, crcs: NDArray[np.uint64]) -> int:
    """Read ranges of files, each to its address, and check the pieces of each range.

    A line of ``ranges`` is (descriptor, 1 to bypass the page cache or 0, offset of the advice to
    the cache, bytes of the advice, offset, bytes, address, number of pieces). ``sizes`` and
    ``crcs`` are the bytes and the crc32c of the pieces of all ranges. All advice is given before
    the first read. Returns −1, or the index of the first range that cannot be read or fails a
    checksum.
    """
    for i in range(len(ranges)):
        _announce(ranges[i, 0], ranges[i, 2], ranges[i, 3])
    piece: Any = np.int64(0)
    for i in range(len(ranges)):
        fd, bypass, _, _, offset, size, address, n_pieces = ranges[i]
        if not _fetch(fd, bypass, offset, size, address, sizes, crcs, piece, piece + n_pieces):
            return i
        piece += n_pieces
    return -1


@njit
def fetch_one(
    fd: int, bypass: int, advised: int, advised_bytes: int, offset: int, size: int, address: int,
    sizes: I64, crcs: NDArray[np.uint64], piece: int, stop: int,
) -> bool:  # fmt: skip
    """Read the range of pieces ``piece`` to ``stop``; return whether all pass their checksums."""
    _announce(fd, advised, advised_bytes)
    return bool(_fetch(fd, bypass, offset, size, address, sizes, crcs, piece, stop))


@inner
def _fetch(
    fd: int, bypass: int, offset: Any, size: int, address: Any,
    sizes: I64, crcs: NDArray[np.uint64], piece: int, stop: int,
) -> Any:  # fmt: skip
    """Read and check pieces ``piece`` to ``stop``; return whether all pass their checksums.

    With ``bypass``, one read fetches all pieces as full pages; the buffer has room for them.
    """
    if bypass:
        skip = offset % PAGE
        if _read_pages(fd, offset - skip, skip + size, address - skip) < skip + size:
            return False
    while piece < stop:
        end, n_bytes = piece, np.int64(0)
        while end < stop and (bypass or n_bytes < HOT_BYTES):
            n_bytes += sizes[end]
            end += 1
        if not bypass and _read(fd, offset, n_bytes, address) < n_bytes:
            return False
        if first_wrong_at(address, sizes[piece:end], crcs[piece:end]) >= 0:
            return False
        piece, offset, address = end, offset + n_bytes, address + n_bytes
    return True


@inner
def _read(fd: int, offset: int, size: Any, address: int) -> Any:
    """Read bytes to an address; return the number of bytes read."""
    done = np.int64(0)
    while done < size:
        n_read = _pread(fd, address + done, size - done, offset + done)
        if n_read <= 0:
            break
        done += n_read
    return done


@inner
def _read_pages(fd: int, offset: int, size: int, address: int) -> Any:
    """Read full pages to an aligned address; return the number of bytes read."""
    done, n_bytes = np.int64(0), -(-size // PAGE) * PAGE
    while done < size:
        n_read = _pread(fd, address + done, n_bytes - done, offset + done)
        done += max(n_read, 0)
        # A read that ends within a page has reached the end of the file.
        if n_read <= 0 or done % PAGE:
            break
    return done


@njit
def decompress(
    full: int, part: int, ranges: I64, lengths: I64, firsts: I64, counts: I64, element: int,
    end: int,
) -> int:  # fmt: skip
    """Decompress ranges of elements from blosc chunks; return −1, or the first range that fails.

    ``full`` and ``part`` are the addresses of ``blosc_decompress_ctx`` and ``blosc_getitem``.
    A line of ``ranges`` is (first element, end, number of chunks, address of the chunks, address
    for the elements); the chunks of a range lie end to end. For each chunk of all ranges,
    ``lengths`` has its bytes, ``firsts`` its first element and ``counts`` its number of elements.
    An element has ``element`` bytes. The array has ``end`` elements; its last chunk may be padded.
    """
    chunk = 0
    for i in range(len(ranges)):
        start, stop, n_chunks, source, target = ranges[i]
        for j in range(chunk, chunk + n_chunks):
            first, chunk_end = firsts[j], firsts[j] + counts[j]
            # Each chunk must continue where the last one ended, and hold an element of the range.
            if not first <= start < min(chunk_end, stop):
                return i
            count = min(chunk_end, stop) - start
            skip, size, expected = (start - first) * element, count * element, counts[j] * element
            if not _unpack(
                full, part, source, lengths[j], expected, chunk_end == end, skip, size, target
            ):
                return i
            start, source, target = start + count, source + lengths[j], target + size
        if start != stop:
            return i
        chunk += n_chunks
    return -1


@inner
def _unpack(
    full: int, part: int, source: int, length: int, expected: int, padded: bool, skip: int,
    size: int, target: int,
) -> bool:  # fmt: skip
    """Unpack ``size`` bytes of a chunk to ``target``, from byte ``skip`` on; return success.

    The unpacked chunk must have ``expected`` bytes, or more if ``padded``. The header
    is checked first, because the library trusts it: the library would read beyond the chunk, leave
    values unset, or allocate as much memory as the header says.
    """
    if length < 16 or _uint32_at(source + 12) > length:
        return False
    unpacked = _uint32_at(source + 4)
    if unpacked < expected or (unpacked > expected and not padded):
        return False
    if unpacked == size:
        return bool(_decompress(full, source, target, unpacked) == unpacked)
    item, flags = _uint32_at(source) >> 24, _uint32_at(source) >> 16
    if item == 0 or skip % item or size % item or flags & _RESERVED_FLAG:
        return False
    if _uint32_at(source + 8) > MOST_BLOCK:
        return False
    return bool(_take(part, source, skip // item, size // item, target) == size)
