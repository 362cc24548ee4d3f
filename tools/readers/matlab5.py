"""MATLAB files of version 5 to 7: a walk reads outlines of variables, then scipy loads values.

scipy allocates the size that a header declares before it reads the values. So the walk compares
every declared size, at every level, with the available bytes, and allocates nothing itself.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import scipy.io
import scipy.sparse

from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.matlab_layout import Outline
from streammiml_tools.readers.memory_checks import HeldBytes
from streammiml_tools.readers.messages import reason_of
from streammiml_tools.readers.text import BOMB_LINE, BOMB_RATIO, twice

CHUNK = 1 << 16
INT8, INT32, UINT32, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
CELL, STRUCT, TEXT, SPARSE = 1, 2, 4, 5
NUMBERS = range(6, 16)
COMPLEX, LOGICAL = 0x0800, 0x0200
STORES = {1: "int8", 2: "uint8", 3: "int16", 4: "uint16", 5: "int32", 6: "uint32"}
STORES |= {7: "float32", 9: "float64", 12: "int64", 13: "uint64"}
LETTERS = {1, 2, 4, 16, 17, 18}
"""Element types of text."""
MAX_NAME = 4096
MAX_DEPTH = 8
OUTLINE_BYTES = 300
"""Approximate memory for the outline of an item."""
ITEM_BYTES = 200
"""Approximate memory for an item of a cell without its values."""


class _Tag(NamedTuple):
    kind: int
    n_bytes: int
    small: bytes | None
    """A value of up to four bytes, which is stored inside its tag."""


class _EndOfBytes(Exception):
    """The bytes of a variable end too early, or its tags are invalid."""


class _VariableBytes:
    """Bytes of one variable, decompressed in small pieces; at most the declared bytes are read."""

    def __init__(self, file: IO[bytes], n_bytes: int, *, packed: bool) -> None:
        self._file, self._left = file, n_bytes
        self._inflate = zlib.decompressobj() if packed else None
        self._held = b""

    def _more(self) -> bytes:
        if self._inflate is None:
            read = self._file.read(min(self._left, CHUNK))
            self._left -= len(read)
            return read
        while True:
            waiting = self._inflate.unconsumed_tail
            if not waiting:
                waiting = self._file.read(min(self._left, CHUNK))
                self._left -= len(waiting)
            inflated = self._inflate.decompress(waiting, CHUNK)
            if inflated or (not waiting and not self._left) or self._inflate.eof:
                return inflated

    def read(self, n_bytes: int) -> bytes:
        """Read exactly ``n_bytes`` bytes."""
        parts = [self._held]
        left = n_bytes - len(self._held)
        while left > 0:
            parts.append(self._more())
            if not parts[-1]:
                raise _EndOfBytes
            left -= len(parts[-1])
        self._held = b"".join(parts)
        content, self._held = self._held[:n_bytes], self._held[n_bytes:]
        return content

    def skip(self, n_bytes: int) -> None:
        """Skip ``n_bytes`` bytes, without holding them in memory."""
        while n_bytes > len(self._held):
            n_bytes -= len(self._held)
            self._held = self._more()
            if not self._held:
                raise _EndOfBytes
        self._held = self._held[n_bytes:]


def _kind(items: Sequence[Outline], kind: str) -> str:
    """``opaque`` if any item is opaque, otherwise ``kind``."""
    return "opaque" if any(item.kind == "opaque" for item in items) else kind


class _VariableWalk:
    """Walks through the bytes of one variable, level by level."""

    def __init__(self, path: Path, source: _VariableBytes, order: str, held: HeldBytes) -> None:
        self._path, self._source, self._order, self._held = path, source, order, held

    def _wrong(self, name: str, reason: str) -> SourceError:
        return SourceError(f"{self._path}, variable {name!r}: {reason}; save the file again")

    def _tag(self) -> _Tag:
        first, second = struct.unpack(self._order + "II", raw := self._source.read(8))
        if first >> 16:
            size = first >> 16
            if size > 4:
                raise _EndOfBytes
            return _Tag(first & 0xFFFF, size, raw[4 : 4 + size])
        return _Tag(first, second, None)

    def _value(self, left: int, limit: int, kind: int) -> tuple[bytes, int]:
        """Return a short element of type ``kind``, and the bytes left in the outer element."""
        tag = self._tag()
        if tag.kind != kind:
            raise _EndOfBytes
        if tag.small is not None:
            return tag.small, left - 8
        padded = -(-tag.n_bytes // 8) * 8
        if tag.n_bytes > limit or padded > left - 8:
            raise _EndOfBytes
        return self._source.read(padded)[: tag.n_bytes], left - 8 - padded

    def variable(self, tag: _Tag, name: str, depth: int = 0) -> Iterator[Outline]:
        """Yield the outline of a variable, or an outline for each field of a struct."""
        left = tag.n_bytes
        if left == 0:
            yield Outline(name, "matrix", (0, 0))
            return
        flags, left = self._value(left, 8, UINT32)
        if len(flags) < 8:
            raise _EndOfBytes
        flag = struct.unpack(self._order + "I", flags[:4])[0]
        kind = flag & 0xFF
        if kind not in (CELL, STRUCT, TEXT, SPARSE, *NUMBERS) or depth > MAX_DEPTH:
            self._source.skip(left)
            yield Outline(name, "opaque")
            return
        raw, left = self._value(left, 8 * 32, INT32)
        shape = struct.unpack(f"{self._order}{len(raw) // 4}i", raw[: len(raw) // 4 * 4])
        raw_name, left = self._value(left, MAX_NAME, INT8)
        name = name or raw_name.decode("latin-1")
        if min(shape, default=-1) < 0:
            raise self._wrong(name, f"its shape is {shape}")
        if kind == CELL:
            yield self._cell(name, shape, left, depth)
        elif kind == STRUCT:
            yield from self._struct(name, shape, left, depth)
        else:
            yield self._numbers(name, shape, left, kind, flag)

    def _cell(self, name: str, shape: tuple[int, ...], left: int, depth: int) -> Outline:
        count = math.prod(shape)
        # Every item takes at least eight bytes, its tag.
        if count > left // 8:
            raise self._wrong(name, f"a cell of {count:,} items declared in {left:,} bytes")
        items = []
        self._held.add(count * OUTLINE_BYTES)
        for _ in range(count):
            outlines, left = self._item(name, left, depth)
            items.append(
                outlines[0] if len(outlines) == 1 else Outline(name, _kind(outlines, "other"))
            )
        self._source.skip(left)
        n_bytes = sum(item.n_bytes + ITEM_BYTES for item in items)
        return Outline(name, _kind(items, "cell"), shape, items=tuple(items), n_bytes=n_bytes)

    def _struct(
        self, name: str, shape: tuple[int, ...], left: int, depth: int
    ) -> Iterator[Outline]:
        raw, left = self._value(left, 8, INT32)
        length = struct.unpack(self._order + "i", raw[:4])[0] if len(raw) >= 4 else 0
        names, left = self._value(left, left, INT8)
        if not 0 < length <= MAX_NAME:
            raise self._wrong(name, f"names of fields of {length} bytes")
        # The list of names is counted before it is made; there may be more names than items.
        self._held.add(len(names) // length * ITEM_BYTES)
        fields = [names[i : i + length] for i in range(0, len(names), length)]
        count = math.prod(shape) * len(fields)
        if count > left // 8:
            raise self._wrong(name, f"a struct of {count:,} fields declared in {left:,} bytes")
        outlines: list[Outline] = []
        self._held.add(count * OUTLINE_BYTES)
        for i in range(count):
            field = fields[i % len(fields)].partition(b"\0")[0].decode("latin-1")
            field_outlines, left = self._item(f"{name}.{field}", left, depth)
            outlines += field_outlines
        self._source.skip(left)
        if math.prod(shape) == 1:
            yield from outlines
        else:
            n_bytes = sum(outline.n_bytes + ITEM_BYTES for outline in outlines)
            yield Outline(name, _kind(outlines, "other"), shape, n_bytes=n_bytes)

    def _item(self, name: str, left: int, depth: int) -> tuple[list[Outline], int]:
        tag = self._tag()
        if tag.kind != MATRIX or tag.small is not None or tag.n_bytes > left - 8:
            raise self._wrong(name, f"an item of {tag.n_bytes:,} bytes within {left:,}")
        return list(self.variable(tag, name, depth + 1)), left - 8 - tag.n_bytes

    def _numbers(
        self, name: str, shape: tuple[int, ...], left: int, kind: int, flag: int
    ) -> Outline:
        """Outline of a matrix or text; the declared size must equal the available size."""
        sizes, store = [], "float64"
        # Lists of rows and of columns come before the values of a sparse matrix.
        index_kinds = [{INT32, UINT32}] * 2 if kind == SPARSE else []
        for allowed_kinds in [*index_kinds, LETTERS if kind == TEXT else set(STORES)]:
            tag = self._tag()
            # scipy looks types up by number, unchecked.
            if tag.kind not in allowed_kinds:
                raise self._wrong(name, f"values of unknown kind {tag.kind}")
            size = 0 if tag.small is not None else -(-tag.n_bytes // 8) * 8
            if size > left - 8:
                raise self._wrong(name, f"{tag.n_bytes:,} bytes of values within {left:,}")
            self._source.skip(size)
            left -= 8 + size
            sizes.append(tag.n_bytes)
            store = STORES.get(tag.kind, "float64")
        self._source.skip(left)
        if kind == TEXT:
            return Outline(name, "text", shape, n_bytes=4 * math.prod(shape))
        if flag & COMPLEX:
            raise self._wrong(name, "its numbers are complex")
        if kind == SPARSE:
            if len(shape) != 2 or sizes[1] != 4 * (shape[1] + 1):
                raise self._wrong(name, f"a sparse matrix {shape} with {sizes[1]:,} bytes of jc")
            store = "bool" if flag & LOGICAL else store
            return Outline(name, "matrix", shape, store, True, n_bytes=8 * sum(sizes))
        declared = math.prod(shape) * np.dtype(store).itemsize
        if declared != sizes[0]:
            raise self._wrong(
                name,
                f"{declared:,} bytes are declared by its shape {shape}, {sizes[0]:,} are there",
            )
        return Outline(name, "matrix", shape, store, n_bytes=declared)


def outlines(path: Path, limits: Limits) -> list[Outline]:
    """Outlines of all variables of a file; fields of structs are variables too."""
    size = path.stat().st_size
    held = HeldBytes(str(path), "names and shapes of variables", limits)
    variables: list[Outline] = []
    with path.open("rb") as file:
        order = _byte_order(path, file.read(128))
        while raw := file.read(8):
            start = file.tell()
            if len(raw) < 8:
                raise _cut(path, variables)
            kind, n_bytes = struct.unpack(order + "II", raw)
            if kind not in (MATRIX, COMPRESSED):
                raise SourceError(
                    f"{path}, byte {start - 8}: an element of kind {kind}, expected a variable; "
                    "save the file again"
                )
            if n_bytes > size - start:
                raise _cut(path, variables)
            try:
                source = _VariableBytes(file, n_bytes, packed=kind == COMPRESSED)
                walk = _VariableWalk(path, source, order, held)
                tag = _Tag(MATRIX, n_bytes, None)
                if kind == COMPRESSED:
                    tag = walk._tag()
                    _check_bomb(path, tag, n_bytes)
                variables += walk.variable(tag, "")
            except (_EndOfBytes, zlib.error):
                raise _cut(path, variables) from None
            file.seek(start + n_bytes)
    repeated = twice([outline.name for outline in variables])
    if repeated is not None:
        raise SourceError(f"{path}: two variables are called {repeated!r}; save the file again")
    return [outline for outline in variables if not outline.name.startswith("__")]


def _byte_order(path: Path, header: bytes) -> str:
    mark = header[126:128]
    if len(header) < 128 or mark not in (b"IM", b"MI"):
        raise SourceError(
            f"{path} is not a MATLAB file of version 5 or later; save it again with -v7 or -v7.3"
        )
    return "<" if mark == b"IM" else ">"


def _cut(path: Path, outlines: Sequence[Outline]) -> SourceError:
    after = f"after variable {outlines[-1].name!r}" if outlines else "in its first variable"
    return SourceError(f"{path} is damaged or cut short {after}; fetch it again")


def _check_bomb(path: Path, tag: _Tag, n_bytes: int) -> None:
    if tag.n_bytes > max(BOMB_LINE, BOMB_RATIO * n_bytes):
        raise SourceError(
            f"{path}: a variable of {tag.n_bytes:,} bytes in {n_bytes:,} compressed bytes is "
            "refused as a bomb; if it is not, save it again with -v6 or -v7.3"
        )


def load(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Load variables, by full name, after :func:`outlines` has checked the file.

    Matrices are arrays or sparse matrices of scipy; cells are flat object arrays in MATLAB's order.
    """
    top = sorted({name.partition(".")[0] for name in names})
    try:
        loaded = scipy.io.loadmat(path, variable_names=top, spmatrix=False)
    except Exception as error:  # scipy raises many kinds of exceptions for damaged files.
        reason = reason_of(error)
        raise SourceError(f"{path} is damaged ({reason}); fetch it again") from error
    values = {name: _field(loaded, name) for name in names}
    for name, value in values.items():
        for item in value if value.dtype == object else [value]:
            check_sparse(item, f"{path}, variable {name!r}")
    return values


def check_sparse(matrix: Any, where: str) -> None:
    """Refuse a sparse matrix whose indices are out of bounds: scipy would use them unchecked.

    The check of scipy itself skips all indices if the last column pointer is 0.
    """
    if not scipy.sparse.issparse(matrix):
        return
    ends, rows = matrix.indptr, matrix.indices
    is_valid = (
        len(ends) == matrix.shape[1] + 1
        and ends[0] == 0
        and not (ends[1:] < ends[:-1]).any()
        and ends[-1] == len(rows) == len(matrix.data)
        and not ((rows < 0) | (rows >= matrix.shape[0])).any()
    )
    if not is_valid:
        raise SourceError(f"{where}: not a sparse matrix, ir and jc disagree; fetch the file again")


def _field(variables: dict[str, Any], name: str) -> Any:
    first, *rest = name.split(".")
    value = variables[first]
    for field in rest:
        value = value[field][0, 0]
    return value.ravel(order="F") if value.dtype == object else value


def texts(cell: Any) -> tuple[str, ...]:
    """Strings of a loaded cell."""
    return tuple(str(item[0]) if item.size else "" for item in cell)
