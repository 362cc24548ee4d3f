"""Register tiles: the few loops that decide the speed, as LLVM vectors of eight float32.

numba's vectoriser neither keeps a block of sums in registers nor may it reorder them, so these
loops are written as vector IR. LLVM splits the vectors on machines with narrower registers. The
order of every sum follows from the shape alone: features in index order with lanes across
outputs, or eight lanes over the shared dimension added up in one fixed tree. A sum therefore has
the same bits whatever tile it was computed in, and scores do not depend on how rows are grouped.

With the JIT off, plain functions of the same names stand in. They differ in rounding only.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

LANES = 8
"""Widths are padded with zeros to a multiple of this."""


def padded(width: int) -> int:
    """``width`` rounded up to whole vectors, at least one."""
    return max(LANES, -(-width // LANES) * LANES)


def aligned_zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Any:
    """Zeros that start on a cache line: a vector that straddles two lines loads at half speed."""
    counts = (shape,) if isinstance(shape, int) else shape
    n_bytes = math.prod(counts) * np.dtype(dtype).itemsize
    raw = np.zeros(n_bytes + 64, np.uint8)
    # A few microseconds less than raw.ctypes: scoring one bag asks for six of these.
    start = -raw.__array_interface__["data"][0] % 64
    return raw[start : start + n_bytes].view(dtype).reshape(counts)


_F = ir.FloatType()
_D = ir.DoubleType()
_I = ir.IntType(64)
_V = ir.VectorType(_F, LANES)
_VD = ir.VectorType(_D, LANES)
_V4 = ir.VectorType(_F, 4)


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


def _row(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Pointer to the first element of a row of a C-contiguous array (or of an element, in 1-d)."""
    made = context.make_array(array_type)(context, builder, array)
    width = _I(1)
    if array_type.ndim > 1:
        width = builder.extract_value(made.shape, 1)
    return builder.gep(made.data, [builder.mul(index, width)])


def _width(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    made = context.make_array(array_type)(context, builder, array)
    return builder.extract_value(made.shape, array_type.ndim - 1)


class _Loop:
    """``for i in range(start, stop, step)`` with vectors carried from turn to turn."""

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
        """End the body; what was carried is afterwards the value of the last turn."""
        builder = self.builder
        block = builder.block
        self.index.add_incoming(builder.add(self.index, _I(self.step)), block)
        for phi, value in zip(self.values, carried, strict=True):
            phi.add_incoming(value, block)
        builder.branch(self.head)
        builder.position_at_end(self.done)
        return self.values


def _sum4(builder: Any, sums: list[Any]) -> Any:
    """Four vectors of eight lanes → one of four totals, lanes added in one fixed tree."""
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
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        tall, wide = kinds[7].literal_value, kinds[8].literal_value
        numbers = [builder.add(args[1], _I(i)) for i in range(tall)]
        sources = [_row(context, builder, kinds[0], args[0], number) for number in numbers]
        weights = builder.gep(_row(context, builder, kinds[2], args[2], _I(0)), [args[5]])
        stride = _width(context, builder, kinds[2], args[2])
        places = []
        for number in numbers:
            place = builder.gep(_row(context, builder, kinds[6], args[6], number), [args[5]])
            places += [builder.gep(place, [_I(LANES * c)]) for c in range(wide)]
        loop = _Loop(builder, args[3], args[4], 1, [_load(builder, place) for place in places])
        line = builder.gep(weights, [builder.mul(loop.index, stride)])
        # Sixteen registers: the sums, the longer side of the tile one by one, the shorter one held.
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
        return context.get_dummy_value()

    arguments = (rows, row, shared, start, stop, column, out, n_rows, n_vectors)
    return types.void(*arguments), generate


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
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        wide = kinds[8].literal_value
        places = _row(context, builder, kinds[0], args[0], _I(0))
        amounts = _row(context, builder, kinds[1], args[1], _I(0))
        weights = builder.gep(_row(context, builder, kinds[4], args[4], _I(0)), [args[5]])
        stride = _width(context, builder, kinds[4], args[4])
        zero = ir.Constant(_V, [0.0] * LANES)
        loop = _Loop(builder, args[2], args[3], 1, [zero] * wide)

        def line(index: Any) -> Any:
            place = builder.sext(builder.load(builder.gep(places, [index])), _I)
            return builder.gep(weights, [builder.mul(place, stride)])

        # Features of a row lie anywhere in memory: ask for the one that is needed soon.
        ahead = builder.add(loop.index, _I(_AHEAD))
        last = builder.sub(args[3], _I(1))
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
        place = builder.gep(_row(context, builder, kinds[6], args[6], args[7]), [args[5]])
        for c in range(wide):
            _store(builder, sums[c], builder.gep(place, [_I(LANES * c)]))
        return context.get_dummy_value()

    arguments = (columns, values, start, stop, shared, column, out, row, n_vectors)
    return types.void(*arguments), generate


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
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        tall = kinds[7].literal_value
        sources = [
            _row(context, builder, kinds[0], args[0], builder.add(args[1], _I(i)))
            for i in range(tall)
        ]
        picks = builder.gep(_row(context, builder, kinds[3], args[3], _I(0)), [args[4]])
        others = [
            _row(context, builder, kinds[2], args[2], builder.load(builder.gep(picks, [_I(c)])))
            for c in range(4)
        ]
        width = _width(context, builder, kinds[0], args[0])
        zero = ir.Constant(_V, [0.0] * LANES)
        loop = _Loop(builder, _I(0), width, LANES, [zero] * (tall * 4))
        left = [_load(builder, builder.gep(source, [loop.index])) for source in sources]
        sums = list(loop.values)
        for c in range(4):
            right = _load(builder, builder.gep(others[c], [loop.index]))
            for i in range(tall):
                sums[i * 4 + c] = _fused(builder, "v8f32", left[i], right, sums[i * 4 + c])
        sums = loop.close(sums)
        peak = builder.gep(_row(context, builder, kinds[6], args[6], _I(0)), [args[4]])
        most = _load(builder, peak, _V4)
        for i in range(tall):
            totals = _sum4(builder, sums[4 * i : 4 * i + 4])
            place = _row(context, builder, kinds[5], args[5], builder.add(args[1], _I(i)))
            _store(builder, totals, builder.gep(place, [args[4]]))
            more = builder.fcmp_ordered(">", totals, most)
            most = builder.select(more, totals, most)
        _store(builder, most, peak)
        return context.get_dummy_value()

    return types.void(rows, row, vectors, chosen, column, out, best, n_rows), generate


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
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        tall = kinds[8].literal_value
        lines = [
            _row(context, builder, kinds[0], args[0], builder.add(args[1], _I(i)))
            for i in range(tall)
        ]
        up = _row(context, builder, kinds[2], args[2], _I(0))
        down = _row(context, builder, kinds[3], args[3], _I(0))
        gains = _row(context, builder, kinds[4], args[4], args[6])
        losses = _row(context, builder, kinds[5], args[5], args[6])
        gain = [_spread(builder, builder.load(builder.gep(gains, [_I(i)]))) for i in range(tall)]
        loss = [
            _spread(builder, builder.fneg(builder.load(builder.gep(losses, [_I(i)]))))
            for i in range(tall)
        ]
        zero = ir.Constant(_V, [0.0] * LANES)
        width = _width(context, builder, kinds[0], args[0])
        loop = _Loop(builder, _I(0), width, LANES, [zero] * tall)
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
        total = _sum4(builder, [*sums, *([zero] * (4 - tall))])
        _store(builder, total, _row(context, builder, kinds[7], args[7], _I(0)))
        return context.get_dummy_value()

    arguments = (shared, row, plus, minus, more, less, first, squares, n_rows)
    return types.void(*arguments), generate


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
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        wide = kinds[9].literal_value
        word = ir.IntType(32)
        words = ir.VectorType(word, LANES)

        def everywhere(index: Any) -> Any:
            return _spread(builder, builder.trunc(index, word), words)

        nothing = ir.Constant(words, [0] * LANES)
        least = ir.Constant(_V, [-np.inf] * LANES)
        outer = _Loop(builder, args[1], args[2], 1, [least, nothing, nothing] * wide)
        line = builder.gep(_row(context, builder, kinds[0], args[0], outer.index), [args[3]])
        row = everywhere(outer.index)
        inner = _Loop(builder, _I(0), args[5], 1, outer.values)
        sub = everywhere(inner.index)
        here = builder.gep(line, [builder.mul(inner.index, args[4])])
        kept = []
        # Every comparison waits for the one before it, so several vectors are looked at in turn.
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
            kind, array = kinds[6 + i % 3], args[6 + i % 3]
            place = _row(context, builder, kind, array, args[3])
            _store(builder, vector, builder.gep(place, [_I(LANES * (i // 3))]))
        return context.get_dummy_value()

    arguments = (dots, start, stop, column, stride, n_sub, best, rows, subs, n_vectors)
    return types.void(*arguments), generate


@intrinsic
def _sum_squares(_: Any, vector: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        source = _row(context, builder, kind, args[0], _I(0))
        zero = ir.Constant(_VD, [0.0] * LANES)
        loop = _Loop(builder, _I(0), _width(context, builder, kind, args[0]), LANES, [zero])
        value = builder.fpext(_load(builder, builder.gep(source, [loop.index])), _VD)
        (total,) = loop.close([_fused(builder, "v8f64", value, value, loop.values[0])])
        return _sum_lanes(builder, total)

    return types.float64(vector), generate


_AHEAD = 6


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
    """``out[row : row + n_rows, column:]`` += features ``start`` to ``stop``, vector by vector."""
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
    end = column + LANES * n_vectors
    sums = np.zeros(LANES * n_vectors, np.float32)
    for place in range(start, stop):
        sums += values[place] * shared[columns[place], column:end]
    out[row, column:end] = sums


def _dot_tile_plain(
    rows: F32, row: int, vectors: F32, chosen: I64, column: int, out: F32, best: F32, n_rows: int
) -> None:
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
    """Rows from ``row`` on += more · plus - less · minus, factors from ``first`` on; squares."""
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
    """Labels from ``column`` on, eight a vector: best of rows and sub-concepts, the first place.

    Sub-concept k of a label is in column ``label + k * stride`` of ``dots``.
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
    wide = vector.astype(np.float64)
    return float(wide @ wide)


_COMPILED = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]
project_tile: Any = _project_tile if _COMPILED else _project_tile_plain
sparse_tile: Any = _sparse_tile if _COMPILED else _sparse_tile_plain
dot_tile: Any = _dot_tile if _COMPILED else _dot_tile_plain
update_tile: Any = _update_tile if _COMPILED else _update_tile_plain
peak_tile: Any = _peak_tile if _COMPILED else _peak_tile_plain
sum_squares: Any = _sum_squares if _COMPILED else _sum_squares_plain
