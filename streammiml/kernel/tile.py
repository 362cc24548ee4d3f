"""Register tiles: the few loops that decide the speed, as LLVM vectors of eight float32.

numba's vectoriser does not keep a block of sums in registers and may not reorder them, so these
loops are written as vector IR. LLVM splits the vectors on machines with narrower registers. The
order of every sum follows from the shape alone: features in index order with lanes across
outputs, or eight lanes over the shared dimension added up in one fixed tree. A sum therefore has
the same bits in every size of tile, and scores do not depend on how rows are grouped.

With the JIT off, plain functions replace the compiled ones. They differ in rounding only, and their
docstrings say what each tile computes.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, register_jitable

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

LANES = 8
"""Numbers in a vector. The last axis of weights is padded with zeros to a multiple of this."""


@register_jitable(inline="always")
def padded_width(width: int) -> int:
    """Round ``width`` up to a multiple of ``LANES``, at least to one vector."""
    return max(LANES, -(-width // LANES) * LANES)


def padded(weights: F32) -> F32:
    """Copy an array and pad its last axis with zeros to ``padded_width``."""
    out = np.zeros((*weights.shape[:-1], padded_width(weights.shape[-1])), np.float32)
    out[..., : weights.shape[-1]] = weights
    return out


def aligned_zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Any:
    """Zeros that start on a cache line: a vector that lies on two lines loads at half speed."""
    counts = (shape,) if isinstance(shape, int) else shape
    n_bytes = math.prod(counts) * np.dtype(dtype).itemsize
    raw = np.zeros(n_bytes + 64, np.uint8)
    # raw.ctypes would take some microseconds longer, and scoring one bag needs six such arrays.
    start = -raw.__array_interface__["data"][0] % 64
    return raw[start : start + n_bytes].view(dtype).reshape(counts)


_F = ir.FloatType()
_D = ir.DoubleType()
_I = ir.IntType(64)
_V = ir.VectorType(_F, LANES)
_VD = ir.VectorType(_D, LANES)
_V4 = ir.VectorType(_F, 4)
_ZERO = ir.Constant(_V, [0.0] * LANES)


def _fused(builder: Any, vector: Any, a: Any, b: Any, c: Any) -> Any:
    # fmuladd, not fma: where the machine has no fused instruction, fma is a library call.
    kind = {"v8f32": _V, "v8f64": _VD}[vector]
    name = f"llvm.fmuladd.{vector}"
    module = builder.module
    callee = module.globals.get(name) or ir.Function(
        module, ir.FunctionType(kind, [kind, kind, kind]), name
    )
    return builder.call(callee, [a, b, c])


def _spread(builder: Any, scalar: Any, vector: Any = _V) -> Any:
    """Copy a scalar into every lane of a vector."""
    lane0 = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(lane0, ir.Constant(vector, ir.Undefined), zeros)


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(a, b, mask)


def _load(builder: Any, pointer: Any, kind: Any = _V) -> Any:
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=4)


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=4)


class _ArrayArgument:
    """A C-contiguous array that an intrinsic is called with; gives pointers into it."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self._context, self._builder, self._kind, self._value = context, builder, kind, value

    def _struct(self) -> Any:
        return self._context.make_array(self._kind)(self._context, self._builder, self._value)

    def row(self, index: Any) -> Any:
        """Pointer to the first element of a row; in an array of one dimension, to an element."""
        struct, builder = self._struct(), self._builder
        width = _I(1)
        if self._kind.ndim > 1:
            width = builder.extract_value(struct.shape, 1)
        return builder.gep(struct.data, [builder.mul(index, width)])

    def element(self, row: Any, column: Any) -> Any:
        """Pointer to an element."""
        return self._builder.gep(self.row(row), [column])

    @property
    def width(self) -> Any:
        """Length of the last dimension."""
        return self._builder.extract_value(self._struct().shape, self._kind.ndim - 1)


def _intrinsic(emit: Any, *kinds: Any) -> Any:
    """Signature and code generator of an intrinsic that returns nothing.

    ``emit`` writes the code. It gets the builder, then the arguments of the call in order: arrays
    as ``_ArrayArgument``, numbers as LLVM values.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        arguments = (
            _ArrayArgument(context, builder, kind, value)
            if isinstance(kind, types.Array)
            else value
            for kind, value in zip(signature.args, values, strict=True)
        )
        emit(builder, *arguments)
        return context.get_dummy_value()

    return types.void(*kinds), generate


class _Loop:
    """``for i in range(start, stop, step)`` whose body passes vectors on to the next iteration."""

    def __init__(self, builder: Any, start: Any, stop: Any, step: int, carried: list[Any]) -> None:
        self.builder, self.stop, self.step = builder, stop, step
        before = builder.block
        self.head = builder.append_basic_block("tile.head")
        self.body = builder.append_basic_block("tile.body")
        self.done = builder.append_basic_block("tile.done")
        builder.branch(self.head)
        builder.position_at_end(self.head)
        self.index = builder.phi(_I)
        self.index.add_incoming(start, before)
        self.values = []
        for value in carried:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            self.values.append(phi)
        builder.cbranch(builder.icmp_signed("<", self.index, stop), self.body, self.done)
        builder.position_at_end(self.body)

    def close(self, carried: list[Any]) -> list[Any]:
        """End the body with vectors for the next iteration; return those of the last iteration."""
        builder = self.builder
        block = builder.block
        self.index.add_incoming(builder.add(self.index, _I(self.step)), block)
        for phi, value in zip(self.values, carried, strict=True):
            phi.add_incoming(value, block)
        builder.branch(self.head)
        builder.position_at_end(self.done)
        return self.values


def _sum4(builder: Any, sums: list[Any]) -> Any:
    """Add up the lanes of four vectors of eight, in one fixed tree: a vector of four totals."""
    halves = []
    for a, b in ((sums[0], sums[1]), (sums[2], sums[3])):
        low = _shuffle(builder, a, b, [0, 8, 1, 9, 4, 12, 5, 13])
        high = _shuffle(builder, a, b, [2, 10, 3, 11, 6, 14, 7, 15])
        halves.append(builder.fadd(low, high))
    low = _shuffle(builder, halves[0], halves[1], [0, 1, 8, 9, 4, 5, 12, 13])
    high = _shuffle(builder, halves[0], halves[1], [2, 3, 10, 11, 6, 7, 14, 15])
    pairs = builder.fadd(low, high)
    return builder.fadd(
        _shuffle(builder, pairs, pairs, [0, 1, 2, 3]), _shuffle(builder, pairs, pairs, [4, 5, 6, 7])
    )


def _sum_lanes(builder: Any, total: Any) -> Any:
    """Add up the lanes of a vector, in one fixed tree."""
    for shift in (4, 2, 1):
        other = [(lane + shift) % LANES for lane in range(LANES)]
        total = builder.fadd(total, _shuffle(builder, total, total, other))
    return builder.extract_element(total, ir.IntType(32)(0))


def _prefetch(builder: Any, pointer: Any) -> None:
    module = builder.module
    byte = ir.IntType(8).as_pointer()
    word = ir.IntType(32)
    name = "llvm.prefetch.p0"
    callee = module.globals.get(name) or ir.Function(
        module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), name
    )
    builder.call(callee, [builder.bitcast(pointer, byte), word(0), word(3), word(1)])


# In each intrinsic the parameters are numba types; those of its ``emit`` are the values of a call.
# The sizes of a tile, ``n_rows`` and ``n_vectors``, are literals: the code of each size differs.


@intrinsic(prefer_literal=True)
def _project_tile(
    _: Any,
    rows: Any,
    row: Any,
    shared: Any,
    start: Any,
    stop: Any,
    column: Any,
    out: Any,
    n_rows: Any,
    n_vectors: Any,
) -> Any:
    tall, wide = n_rows.literal_value, n_vectors.literal_value

    def emit(
        builder: Any,
        rows: Any,
        row: Any,
        shared: Any,
        start: Any,
        stop: Any,
        column: Any,
        out: Any,
        *_: Any,
    ) -> None:
        numbers = [builder.add(row, _I(i)) for i in range(tall)]
        sources = [rows.row(number) for number in numbers]
        weights = shared.element(_I(0), column)
        stride = shared.width
        places = []
        for number in numbers:
            place = out.element(number, column)
            places += [builder.gep(place, [_I(LANES * c)]) for c in range(wide)]
        loop = _Loop(builder, start, stop, 1, [_load(builder, place) for place in places])
        line = builder.gep(weights, [builder.mul(loop.index, stride)])
        # There are sixteen vector registers. They hold all sums and the shorter side of the tile;
        # the longer side is loaded one vector at a time.
        sums = list(loop.values)
        if tall >= wide:
            vectors = [_load(builder, builder.gep(line, [_I(LANES * c)])) for c in range(wide)]
            for i in range(tall):
                x = _spread(builder, builder.load(builder.gep(sources[i], [loop.index])))
                for c in range(wide):
                    k = i * wide + c
                    sums[k] = _fused(builder, "v8f32", x, vectors[c], sums[k])
        else:
            spread = [
                _spread(builder, builder.load(builder.gep(source, [loop.index])))
                for source in sources
            ]
            for c in range(wide):
                vector = _load(builder, builder.gep(line, [_I(LANES * c)]))
                for i in range(tall):
                    k = i * wide + c
                    sums[k] = _fused(builder, "v8f32", spread[i], vector, sums[k])
        for total, place in zip(loop.close(sums), places, strict=True):
            _store(builder, total, place)

    return _intrinsic(emit, rows, row, shared, start, stop, column, out, n_rows, n_vectors)


@intrinsic(prefer_literal=True)
def _sparse_tile(
    _: Any,
    columns: Any,
    values: Any,
    start: Any,
    stop: Any,
    shared: Any,
    column: Any,
    out: Any,
    row: Any,
    n_vectors: Any,
) -> Any:
    wide = n_vectors.literal_value

    def emit(
        builder: Any,
        columns: Any,
        values: Any,
        start: Any,
        stop: Any,
        shared: Any,
        column: Any,
        out: Any,
        row: Any,
        *_: Any,
    ) -> None:
        features = columns.row(_I(0))
        amounts = values.row(_I(0))
        weights = shared.element(_I(0), column)
        stride = shared.width
        loop = _Loop(builder, start, stop, 1, [_ZERO] * wide)

        def line(index: Any) -> Any:
            feature = builder.sext(builder.load(builder.gep(features, [index])), _I)
            return builder.gep(weights, [builder.mul(feature, stride)])

        # The features of a row lie anywhere in memory: prefetch the one that is needed soon.
        ahead = builder.add(loop.index, _I(_AHEAD))
        last = builder.sub(stop, _I(1))
        near = builder.select(builder.icmp_signed("<", ahead, last), ahead, last)
        soon = line(near)
        for c in range(0, wide, 2):
            _prefetch(builder, builder.gep(soon, [_I(LANES * c)]))
        here = line(loop.index)
        x = _spread(builder, builder.load(builder.gep(amounts, [loop.index])))
        sums = [
            _fused(builder, "v8f32", x, _load(builder, builder.gep(here, [_I(LANES * c)])), total)
            for c, total in enumerate(loop.values)
        ]
        sums = loop.close(sums)
        place = out.element(row, column)
        for c in range(wide):
            _store(builder, sums[c], builder.gep(place, [_I(LANES * c)]))

    return _intrinsic(emit, columns, values, start, stop, shared, column, out, row, n_vectors)


@intrinsic(prefer_literal=True)
def _dot_tile(
    _: Any,
    rows: Any,
    row: Any,
    vectors: Any,
    chosen: Any,
    column: Any,
    out: Any,
    best: Any,
    n_rows: Any,
) -> Any:
    tall = n_rows.literal_value

    def emit(
        builder: Any,
        rows: Any,
        row: Any,
        vectors: Any,
        chosen: Any,
        column: Any,
        out: Any,
        best: Any,
        *_: Any,
    ) -> None:
        sources = [rows.row(builder.add(row, _I(i))) for i in range(tall)]
        picks = chosen.element(_I(0), column)
        others = [vectors.row(builder.load(builder.gep(picks, [_I(c)]))) for c in range(4)]
        loop = _Loop(builder, _I(0), rows.width, LANES, [_ZERO] * (tall * 4))
        left = [_load(builder, builder.gep(source, [loop.index])) for source in sources]
        sums = list(loop.values)
        for c in range(4):
            right = _load(builder, builder.gep(others[c], [loop.index]))
            for i in range(tall):
                sums[i * 4 + c] = _fused(builder, "v8f32", left[i], right, sums[i * 4 + c])
        sums = loop.close(sums)
        peak = best.element(_I(0), column)
        most = _load(builder, peak, _V4)
        for i in range(tall):
            totals = _sum4(builder, sums[4 * i : 4 * i + 4])
            _store(builder, totals, out.element(builder.add(row, _I(i)), column))
            more = builder.fcmp_ordered(">", totals, most)
            most = builder.select(more, totals, most)
        _store(builder, most, peak)

    return _intrinsic(emit, rows, row, vectors, chosen, column, out, best, n_rows)


@intrinsic(prefer_literal=True)
def _update_tile(
    _: Any,
    shared: Any,
    row: Any,
    plus: Any,
    minus: Any,
    more: Any,
    less: Any,
    first: Any,
    squares: Any,
    n_rows: Any,
) -> Any:
    tall = n_rows.literal_value

    def emit(
        builder: Any,
        shared: Any,
        row: Any,
        plus: Any,
        minus: Any,
        more: Any,
        less: Any,
        first: Any,
        squares: Any,
        *_: Any,
    ) -> None:
        lines = [shared.row(builder.add(row, _I(i))) for i in range(tall)]
        up = plus.row(_I(0))
        down = minus.row(_I(0))
        gains = more.row(first)
        losses = less.row(first)
        gain = [_spread(builder, builder.load(builder.gep(gains, [_I(i)]))) for i in range(tall)]
        loss = [
            _spread(builder, builder.fneg(builder.load(builder.gep(losses, [_I(i)]))))
            for i in range(tall)
        ]
        loop = _Loop(builder, _I(0), shared.width, LANES, [_ZERO] * tall)
        a = _load(builder, builder.gep(up, [loop.index]))
        b = _load(builder, builder.gep(down, [loop.index]))
        sums = []
        for i in range(tall):
            place = builder.gep(lines[i], [loop.index])
            value = _fused(builder, "v8f32", gain[i], a, _load(builder, place))
            value = _fused(builder, "v8f32", loss[i], b, value)
            _store(builder, value, place)
            sums.append(_fused(builder, "v8f32", value, value, loop.values[i]))
        sums = loop.close(sums)
        total = _sum4(builder, [*sums, *([_ZERO] * (4 - tall))])
        _store(builder, total, squares.row(_I(0)))

    return _intrinsic(emit, shared, row, plus, minus, more, less, first, squares, n_rows)


@intrinsic(prefer_literal=True)
def _peak_tile(
    _: Any,
    dots: Any,
    start: Any,
    stop: Any,
    column: Any,
    stride: Any,
    n_sub: Any,
    best: Any,
    rows: Any,
    subs: Any,
    n_vectors: Any,
) -> Any:
    wide = n_vectors.literal_value

    def emit(
        builder: Any,
        dots: Any,
        start: Any,
        stop: Any,
        column: Any,
        stride: Any,
        n_sub: Any,
        best: Any,
        rows: Any,
        subs: Any,
        *_: Any,
    ) -> None:
        word = ir.IntType(32)
        words = ir.VectorType(word, LANES)

        def everywhere(index: Any) -> Any:
            return _spread(builder, builder.trunc(index, word), words)

        nothing = ir.Constant(words, [0] * LANES)
        least = ir.Constant(_V, [-np.inf] * LANES)
        outer = _Loop(builder, start, stop, 1, [least, nothing, nothing] * wide)
        line = dots.element(outer.index, column)
        row = everywhere(outer.index)
        inner = _Loop(builder, _I(0), n_sub, 1, outer.values)
        sub = everywhere(inner.index)
        here = builder.gep(line, [builder.mul(inner.index, stride)])
        kept = []
        # A comparison waits for the previous one of its vector, so several vectors take turns.
        for c in range(wide):
            value = _load(builder, builder.gep(here, [_I(LANES * c)]))
            before = inner.values[3 * c : 3 * c + 3]
            more = builder.fcmp_ordered(">", value, before[0])
            kept += [
                builder.select(more, new, old)
                for new, old in zip([value, row, sub], before, strict=True)
            ]
        kept = outer.close(inner.close(kept))
        for i, vector in enumerate(kept):
            place = (best, rows, subs)[i % 3].row(column)
            _store(builder, vector, builder.gep(place, [_I(LANES * (i // 3))]))

    kinds = (dots, start, stop, column, stride, n_sub, best, rows, subs, n_vectors)
    return _intrinsic(emit, *kinds)


@intrinsic
def _sum_squares(_: Any, vector: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = _ArrayArgument(context, builder, signature.args[0], values[0])
        source = array.row(_I(0))
        zero = ir.Constant(_VD, [0.0] * LANES)
        loop = _Loop(builder, _I(0), array.width, LANES, [zero])
        value = builder.fpext(_load(builder, builder.gep(source, [loop.index])), _VD)
        (total,) = loop.close([_fused(builder, "v8f64", value, value, loop.values[0])])
        return _sum_lanes(builder, total)

    return types.float64(vector), generate


_AHEAD = 6
"""How many non-zeros before its use a feature of a sparse row is prefetched."""


def _project_tile_plain(
    rows: F32,
    row: int,
    shared: F32,
    start: int,
    stop: int,
    column: int,
    out: F32,
    n_rows: int,
    n_vectors: int,
) -> None:
    """Add to ``out[row : row + n_rows, column:]`` the products of features ``start`` to ``stop``.

    ``rows`` (n, d'), ``shared`` (d', m_pad), ``out`` (n, m_pad); the tile has ``n_vectors`` vectors
    of columns.
    """
    sums = out[row : row + n_rows, column : column + LANES * n_vectors]
    for feature in range(start, stop):
        weights = shared[feature, column : column + LANES * n_vectors]
        sums += rows[row : row + n_rows, feature, None] * weights


def _sparse_tile_plain(
    columns: I32,
    values: F32,
    start: int,
    stop: int,
    shared: F32,
    column: int,
    out: F32,
    row: int,
    n_vectors: int,
) -> None:
    """Overwrite ``out[row, column:]`` with the product of one sparse row and ``shared``.

    ``columns`` and ``values`` are CSR arrays; their entries ``start`` to ``stop`` are the row.
    """
    end = column + LANES * n_vectors
    sums = np.zeros(LANES * n_vectors, np.float32)
    for place in range(start, stop):
        sums += values[place] * shared[columns[place], column:end]
    out[row, column:end] = sums


def _dot_tile_plain(
    rows: F32, row: int, vectors: F32, chosen: I64, column: int, out: F32, best: F32, n_rows: int
) -> None:
    """Dot products of ``n_rows`` rows with four vectors, written to ``out`` from ``column`` on.

    ``chosen`` (columns,) says which of ``vectors`` belongs to each column; ``best`` (columns,) is
    raised to the maximum over the rows.
    """
    left = rows[row : row + n_rows, None]
    lanes = (left * vectors[chosen[column : column + 4]]).reshape(n_rows, 4, -1, LANES)
    sums = np.zeros((n_rows, 4, LANES), np.float32)
    for part in range(lanes.shape[2]):
        sums += lanes[:, :, part]
    quarters = sums[..., [0, 1, 4, 5]] + sums[..., [2, 3, 6, 7]]
    pairs = quarters[..., [0, 2]] + quarters[..., [1, 3]]
    totals = pairs[..., 0] + pairs[..., 1]
    out[row : row + n_rows, column : column + 4] = totals
    for total in totals:
        best[column : column + 4] = np.where(
            total > best[column : column + 4], total, best[column : column + 4]
        )


def _update_tile_plain(
    shared: F32,
    row: int,
    plus: F32,
    minus: F32,
    more: F32,
    less: F32,
    first: int,
    squares: F32,
    n_rows: int,
) -> None:
    """Add more · plus - less · minus to ``n_rows`` rows of ``shared``, from ``row`` on.

    ``more`` and ``less`` hold a factor for each row, from ``first`` on. ``squares`` (4,) gets the
    squared norms of the new rows.
    """
    squares[:4] = 0
    width = shared.shape[1]
    for i in range(n_rows):
        shared[row + i] += more[first + i] * plus[:width] - less[first + i] * minus[:width]
        squares[i] = (shared[row + i] * shared[row + i]).sum(dtype=np.float32)


def _peak_tile_plain(
    dots: F32,
    start: int,
    stop: int,
    column: int,
    stride: int,
    n_sub: int,
    best: F32,
    rows: I32,
    subs: I32,
    n_vectors: int,
) -> None:
    """Maximum of each label over rows ``start`` to ``stop`` and sub-concepts, and where it is.

    Overwrites ``best``, ``rows`` and ``subs`` for eight labels per vector, from ``column`` on. Ties
    go to the lowest row, then the lowest sub-concept. Sub-concept k of a label is in column
    ``label + k * stride`` of ``dots``.
    """
    here = slice(column, column + LANES * n_vectors)
    best[here], rows[here], subs[here] = -np.inf, 0, 0
    for row in range(start, stop):
        for k in range(n_sub):
            first = column + k * stride
            value = dots[row, first : first + LANES * n_vectors]
            more = value > best[here]
            best[here] = np.where(more, value, best[here])
            rows[here] = np.where(more, row, rows[here])
            subs[here] = np.where(more, k, subs[here])


def _sum_squares_plain(vector: F32) -> float:
    """Sum of squares in float64; the length of ``vector`` is a multiple of ``LANES``."""
    wide = vector.astype(np.float64)
    return float(wide @ wide)


_COMPILED = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]
project_tile: Any = _project_tile if _COMPILED else _project_tile_plain
sparse_tile: Any = _sparse_tile if _COMPILED else _sparse_tile_plain
dot_tile: Any = _dot_tile if _COMPILED else _dot_tile_plain
update_tile: Any = _update_tile if _COMPILED else _update_tile_plain
peak_tile: Any = _peak_tile if _COMPILED else _peak_tile_plain
sum_squares: Any = _sum_squares if _COMPILED else _sum_squares_plain
