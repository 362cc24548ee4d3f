"""Compiled reading: one call reads, checks and decodes many ranges of an array.

The call releases the interpreter's lock once for all ranges, so other threads run meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
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
HOT_BYTES = 1 << 20
"""Bytes that are read at a time, few enough to be still in the processor's cache when checked."""
# Fields of a chunk table, in the order in which a page stores them.
FIRST, COUNT, OFFSET, SIZE, CRC, RUN, FILE_FIELD = range(7)
# Columns of a read. ``plan_reads`` writes the first eleven: the range, the page of the chunk table,
# the first chunk and the number of chunks, the elements, the bytes of the first chunk before the
# first element, whether the bytes stay where they are read to, and the file, offset and bytes to
# read. The caller writes the others: the address for the elements (for the first byte, if the bytes
# stay), the descriptor, whether the read bypasses the page cache, and offset and bytes of advice to
# the cache.
RANGE, PAGE_NUMBER, CHUNK, N_CHUNKS, START, STOP, SKIPPED, STAYS, FILE, AT, N_BYTES = range(11)
TARGET, DESCRIPTOR, BYPASS, ADVISED, ADVISED_BYTES = range(11, 16)
N_COLUMNS = 16
# Codings of a chunk: its bytes are values, end with the values, or are values packed by blosc.
RAW, TAIL, BLOSC = range(3)
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
def _int64_at(_: Any, address: Any) -> Any:  # noqa: ARG001
    """Load the eight bytes at an address."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _I64.as_pointer()), align=8)

    return types.int64(types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def copy(_: Any, target: Any, source: Any, size: Any) -> Any:  # noqa: ARG001
    """Copy bytes from one address to another; all arguments are integers."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        to, start = (builder.inttoptr(address, _POINTER) for address in arguments[:2])
        copy_bytes: Any = cgutils.raw_memcpy
        copy_bytes(builder, to, start, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


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


@inner
def _field(page: int, n_records: int, field: int, i: Any) -> Any:
    """Return a field of record ``i`` of a page of a chunk table; fields are stored one by one."""
    return _int64_at(page + 8 * (field * n_records + i))


@inner
def _chunk_of(page: int, n_records: int, element: int) -> Any:
    """Return the number of the last chunk of a page that begins at or before an element."""
    low, high = np.int64(0), np.int64(n_records)
    while high - low > 1:
        middle = (low + high) // 2
        if _field(page, n_records, FIRST, middle) <= element:
            low = middle
        else:
            high = middle
    return low


@njit
def plan_reads(
    spans: I64, pages: I64, in_place: bool, most_surplus: int, element: int, item: int, reads: I64
) -> int:
    """Plan the reads of ranges of elements; return their number, even if ``reads`` has fewer lines.

    A line of ``spans`` is (range, start, stop, page) for elements that are on one page of the chunk
    table; the spans of a range follow each other. A line of ``pages`` is (address of the fields,
    number of records). ``reads`` gets a line for each read, as many as fit; its columns are listed
    above. An element has ``element`` bytes, a single value ``item``.

    A read fetches chunks that lie end to end in one file. With ``in_place``, the bytes of a file
    are values, and a range that one read can fetch is read to the memory where it stays, unless the
    surplus, which is the rest of the first and of the last chunk, is larger than the range, or
    larger than both ``most_surplus`` bytes and an eighth of the range. All other reads go to a
    scratch buffer and fetch about ``HOT_BYTES``.
    """
    n_reads = 0
    for i in range(len(spans)):
        number, start, stop, page_number = spans[i]
        page, n_records = pages[page_number]
        chunk = _chunk_of(page, n_records, start)
        last = _chunk_of(page, n_records, stop - 1)
        is_alone = (i == 0 or spans[i - 1, 0] != number) and (
            i + 1 == len(spans) or spans[i + 1, 0] != number
        )
        is_one_run = _field(page, n_records, RUN, chunk) == _field(page, n_records, RUN, last)
        offset = _field(page, n_records, OFFSET, chunk)
        n_bytes = _field(page, n_records, OFFSET, last) + _field(page, n_records, SIZE, last)
        surplus = n_bytes - offset - (stop - start) * element
        limit = max(most_surplus, (stop - start) * element // 8)
        stays = in_place and is_alone and is_one_run and offset % item == 0
        stays = stays and surplus <= min((stop - start) * element, limit)
        while chunk <= last:
            end, n_bytes = chunk, np.int64(0)
            run = _field(page, n_records, RUN, chunk)
            while end <= last and _field(page, n_records, RUN, end) == run:
                if n_bytes >= HOT_BYTES and not stays:
                    break
                n_bytes += _field(page, n_records, SIZE, end)
                end += 1
            if n_reads < len(reads):
                line = reads[n_reads]
                line[RANGE], line[PAGE_NUMBER], line[CHUNK] = number, page_number, chunk
                line[N_CHUNKS], line[FILE] = end - chunk, _field(page, n_records, FILE_FIELD, chunk)
                line[AT], line[N_BYTES] = _field(page, n_records, OFFSET, chunk), n_bytes
                line[START] = max(start, _field(page, n_records, FIRST, chunk))
                line[STOP] = stop
                if end <= last:
                    line[STOP] = _field(page, n_records, FIRST, end)
                line[SKIPPED] = (line[START] - _field(page, n_records, FIRST, chunk)) * element
                line[STAYS] = stays
            n_reads += 1
            chunk = end
    return n_reads


@njit
def read_all(
    reads: I64, pages: I64, scratch: int, coding: int, element: int, length: int, full: int,
    part: int,
) -> int:  # fmt: skip
    """Read, check and decode; return −1, or the number of the first read that fails.

    ``reads`` and ``pages`` are those of ``plan_reads``. ``scratch`` is the address of a buffer for
    the reads that do not stay where they are read to. ``coding`` says what the bytes of a chunk
    are. The array has ``length`` elements of ``element`` bytes; its last chunk may be padded.
    ``full`` and ``part`` are the addresses of ``blosc_decompress_ctx`` and ``blosc_getitem``.
    """
    for i in range(len(reads)):
        _announce(reads[i, DESCRIPTOR], reads[i, ADVISED], reads[i, ADVISED_BYTES])
    for i in range(len(reads)):
        line = reads[i]
        page, n_records = pages[line[PAGE_NUMBER]]
        chunk, n_chunks = line[CHUNK], line[N_CHUNKS]
        sizes, crcs = np.empty(n_chunks, np.int64), np.empty(n_chunks, np.uint64)
        for j in range(n_chunks):
            sizes[j] = _field(page, n_records, SIZE, chunk + j)
            crcs[j] = np.uint64(_field(page, n_records, CRC, chunk + j))
        source = line[TARGET] if line[STAYS] else scratch + line[AT] % PAGE
        if not _fetch(
            line[DESCRIPTOR], line[BYPASS], line[AT], line[N_BYTES], source, sizes, crcs, 0,
            n_chunks,
        ):  # fmt: skip
            return i
        if line[STAYS]:
            continue
        start, target = line[START], line[TARGET]
        for j in range(n_chunks):
            first = _field(page, n_records, FIRST, chunk + j)
            count = _field(page, n_records, COUNT, chunk + j)
            n_wanted = min(first + count, line[STOP]) - start
            skip, size = (start - first) * element, n_wanted * element
            if coding == BLOSC:
                is_padded = first + count == length
                if not _unpack(
                    full, part, source, sizes[j], count * element, is_padded, skip, size, target
                ):
                    return i
            else:
                if coding == TAIL:
                    skip += sizes[j] - count * element
                copy(target, source + skip, size)
            start, source, target = start + n_wanted, source + sizes[j], target + size
    return -1


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
