"""Lifting of rows: scaling, Fourier features and the context of the bag, before W0 is applied.

A lifted dense row is ``[scaled d | Fourier n | context | 1]``. The context is the same for all rows
of a bag: maximum and minimum of the d scaled features, or their mean, or maximum, minimum and mean
of all d + n. A lifted sparse row consists of its scaled non-zeros and the constant in the last
column; its context can only be the mean, which is kept once for the bag. A lifted row depends on
its bag alone. So rows are lifted while they stream, in any grouping of bags, and are never stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from streammiml.kernel import inner, njit
from streammiml.kernel.tile import aligned_zeros, project_tile

F32 = np.ndarray[Any, np.dtype[np.float32]]
Array = np.ndarray[Any, np.dtype[Any]]

NO_TRANSFORM, SQRT, LOG1P = 0, 1, 2
NO_CONTEXT, EXTREMES, EVERYTHING, MEAN = 0, 1, 2, 3
FOURIER_ROWS = 32
"""Rows whose Fourier angles are held at a time."""


class Lift(NamedTuple):
    """How rows of d features are lifted; arrays are contiguous and writable, absent ones empty."""

    shift: F32
    """(d,) Subtracted from each transformed value; ignored for sparse rows."""
    scale: F32
    """(d,) Factor of each shifted value."""
    transform: int
    """First step: ``NO_TRANSFORM``, ``SQRT`` or ``LOG1P`` of each value, which keeps its sign."""
    unit: int
    """1: the scaled row is divided by its L2 norm; a row of zeros stays zero."""
    frequencies: F32
    """(d, n) Fourier frequencies, in turns (radians / 2π) per unit of the scaled feature."""
    phases: F32
    """(n,) Fourier phases, in turns."""
    context: int
    """What is appended to every row of a bag. ``EXTREMES``: maximum and minimum of each scaled
    feature over the bag. ``EVERYTHING``: maximum, minimum and mean of scaled and Fourier features.
    ``MEAN``: the mean of each scaled feature, divided by its norm if ``unit`` is 1."""


class PlainLift(NamedTuple):
    """A :class:`Lift` without Fourier features and context, for which kernels compile faster."""

    shift: F32
    scale: F32
    transform: int
    unit: int
    context: int = NO_CONTEXT


def plainest(lift: Lift) -> Any:
    """Return a ``PlainLift`` if the lift adds no features, else the lift; only for dense rows."""
    if len(lift.phases) or lift.context != NO_CONTEXT:
        return lift
    return PlainLift(lift.shift, lift.scale, lift.transform, lift.unit)


class Context(NamedTuple):
    """Room for the context of one bag of sparse rows; empty arrays if the lift has no context."""

    columns: Array
    """Columns of the context, in the order of their first non-zero in the rows."""
    values: F32
    """Value of each column."""
    sums: Array
    """Sum of each column over the rows, in float64."""
    size: Array
    """(1,) Number of columns in use."""
    places: Array
    """(d,) While the context is computed: index of a feature in ``columns``, plus 1; else 0."""
    near: F32
    """(1, m_pad) The context in the space of the label vectors; no row without a context."""


NOTHING_SHARED = Context(
    np.zeros(0, np.int32),
    np.zeros(0, np.float32),
    np.zeros(0),
    np.zeros(1, np.int64),
    np.zeros(0, np.int32),
    np.zeros((0, 0), np.float32),
)


def make_context(lift: Lift, most_values: int, width: int) -> Context:
    """Room for bags of up to ``most_values`` non-zeros; label vectors have length ``width``."""
    if lift.context == NO_CONTEXT:
        return NOTHING_SHARED
    d = len(lift.scale)
    n = min(most_values, d)
    return Context(
        np.zeros(n, np.int32),
        np.zeros(n, np.float32),
        np.zeros(n),
        np.zeros(1, np.int64),
        np.zeros(d, np.int32),
        aligned_zeros((1, width)),
    )


@njit
def lift_width(lift: Lift) -> int:
    """Number d' of features of a lifted row; ``config.LiftSpec.width`` is the same formula."""
    d, n = len(lift.scale), len(lift.phases)
    if lift.context == EVERYTHING:
        return 4 * (d + n) + 1
    if lift.context == EXTREMES:
        return 3 * d + n + 1
    if lift.context == MEAN:
        return 2 * d + n + 1
    return d + n + 1


def plain_rows(rows: Array) -> Array:
    """Convert rows for kernels: to the byte order of the machine, float16 to its uint16 bits.

    numba supports neither another byte order nor float16.
    """
    if not rows.dtype.isnative:
        rows = rows.astype(rows.dtype.newbyteorder("="))
    return rows.view(np.uint16) if rows.dtype == np.float16 else rows


@inner
def half_to_single(bits: Any) -> Any:
    """Convert the bits of a float16 to float32, exactly, also subnormal numbers and infinities."""
    magnitude = np.uint32((np.uint32(bits) & np.uint32(0x7FFF)) << np.uint32(13))
    sign = np.uint32((np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16))
    # The bias of the exponent is 15 in float16 and 127 in float32: a factor of 2¹¹², exactly.
    widened = np.float32(np.uint32(magnitude).view(np.float32) * np.float32(2.0**112))
    single = np.float32(widened).view(np.uint32)
    special = magnitude | np.uint32(0x7F800000)
    finite = magnitude < np.uint32(0x0F800000)
    return np.uint32(sign | (single if finite else special)).view(np.float32)


def widen(value: Any) -> Any:
    """Convert a stored value to float32; a uint16 holds the bits of a float16."""
    return half_to_single(value) if isinstance(value, np.uint16) else np.float32(value)


@overload(widen)
def _widen_compiled(value: Any) -> Any:
    if value == types.uint16:

        def half(value: Any) -> Any:
            return half_to_single(value)

        return half

    def single(value: Any) -> Any:
        return np.float32(value)

    return single


@inner
def log_of_one_plus(value: Any) -> Any:
    """log(1 + value) for 0 ≤ value < 2¹²⁶ in float32, with an error below 1.5e-7; vectorises.

    1 + value = 2ᵉ (1 + m) with -1/4 ≤ m < 1/2, m rounded once. The polynomial approximates
    (log(1 + m) - m) / m² with the smallest error of its degree.
    """
    bits = np.int32(np.float32(np.float32(1) + value).view(np.int32) - np.int32(0x3F400000))
    exponent = np.int32(bits & np.int32(-0x800000))
    down = np.int32(np.int32(0x3F800000) - exponent).view(np.float32)
    m = value * down + (down - np.float32(1))
    p = m * np.float32(0.05413) - np.float32(0.12066891)
    p = m * p + np.float32(0.14983672)
    p = m * p - np.float32(0.16822805)
    p = m * p + np.float32(0.19977097)
    p = m * p - np.float32(0.24993445)
    p = m * p + np.float32(0.3333355)
    p = m * p - np.float32(0.5000006)
    return np.float32(exponent) * np.float32(2.0**-23 * np.log(2.0)) + (m + m * m * p)


@inner
def transformed(value: Any, transform: int) -> Any:
    """Apply the count transform to the absolute value and keep the sign, so nothing becomes NaN."""
    if transform == SQRT:
        return np.copysign(np.sqrt(np.abs(value)), value)
    if transform == LOG1P:
        return np.copysign(log_of_one_plus(np.abs(value)), value)
    return value


@inner
def _square_sum(values: F32) -> float:
    """Sum of squares in float64, in eight lanes added in a fixed tree."""
    a = b = c = d = e = f = g = h = 0.0
    whole = values.shape[0] & ~7
    for j in range(0, whole, 8):
        a += np.float64(values[j]) * np.float64(values[j])
        b += np.float64(values[j + 1]) * np.float64(values[j + 1])
        c += np.float64(values[j + 2]) * np.float64(values[j + 2])
        d += np.float64(values[j + 3]) * np.float64(values[j + 3])
        e += np.float64(values[j + 4]) * np.float64(values[j + 4])
        f += np.float64(values[j + 5]) * np.float64(values[j + 5])
        g += np.float64(values[j + 6]) * np.float64(values[j + 6])
        h += np.float64(values[j + 7]) * np.float64(values[j + 7])
    for j in range(whole, values.shape[0]):
        a += np.float64(values[j]) * np.float64(values[j])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@inner
def _divide_by_norm(values: F32) -> None:
    """Divide a vector by its L2 norm; zeros stay zeros."""
    total = _square_sum(values)
    if total > 0.0:
        factor = np.float32(1.0 / np.sqrt(total))
        for j in range(values.shape[0]):
            values[j] *= factor


@inner
def _scale_rows(lift: Lift | PlainLift, rows: Array, out: F32) -> None:
    """Write the scaled ``rows`` (z, d) to the first d columns of ``out``."""
    shift, scale = lift.shift, lift.scale
    d = scale.shape[0]
    for i in range(rows.shape[0]):
        if lift.transform == NO_TRANSFORM:
            for j in range(d):
                out[i, j] = (widen(rows[i, j]) - shift[j]) * scale[j]
        elif lift.transform == SQRT:
            for j in range(d):
                out[i, j] = (transformed(widen(rows[i, j]), SQRT) - shift[j]) * scale[j]
        else:
            for j in range(d):
                out[i, j] = (transformed(widen(rows[i, j]), LOG1P) - shift[j]) * scale[j]
        if lift.unit:
            _divide_by_norm(out[i, :d])


@inner
def cosine_of_turns(turns: Any) -> Any:
    """cos(2π turns), with an error below 2.5e-7 for the given float32; vectorises.

    Angles are in turns because s, a quarter turn less the distance to the nearest whole turn, is
    then exact. The polynomial approximates sin(2πs) for |s| ≤ 1/4 with the smallest error of its
    degree.
    """
    # Adding 1.5·2²³ rounds to a whole number. Beyond 2²² turns a float32 has no bits left for the
    # angle; the clamp keeps the result within -1 and 1.
    whole = (turns + np.float32(12582912.0)) - np.float32(12582912.0)
    s = np.float32(0.25) - np.abs(turns - whole)
    s = max(s, np.float32(-0.25))
    u = s * s
    p = u * np.float32(39.53714) - np.float32(76.549835)
    p = u * p + np.float32(81.601006)
    p = u * p - np.float32(41.341656)
    p = u * p + np.float32(6.283185)
    return s * p


@inner
def _add_products(rows: F32, first: int, n_rows: int, frequencies: F32, angles: F32) -> None:
    """Add rows · frequencies to ``angles`` (≥ n_rows, n), for ``n_rows`` rows from ``first`` on.

    Features are added in order. Columns are taken in strips: a strip of ``frequencies`` stays in
    the first-level cache for all rows.
    """
    d, n = frequencies.shape
    here = rows[first : first + n_rows]
    column = 0
    while n - column >= 16:
        row = 0
        while n_rows - row >= 4:
            project_tile(here, row, frequencies, 0, d, column, angles, 4, 2)
            row += 4
        if n_rows - row >= 2:
            project_tile(here, row, frequencies, 0, d, column, angles, 2, 2)
            row += 2
        if row < n_rows:
            project_tile(here, row, frequencies, 0, d, column, angles, 1, 2)
        column += 16
    for row in range(n_rows):
        for j in range(d):
            for f in range(column, n):
                angles[row, f] += here[row, j] * frequencies[j, f]


@inner
def _add_fourier(lift: Lift, out: F32) -> None:
    """Write √(2/n) cos(x·ω + b) to columns d to d + n of ``out``; x are its first d columns."""
    d, n = lift.frequencies.shape
    amplitude = np.float32(np.sqrt(2.0 / n))
    angles = np.empty((min(FOURIER_ROWS, out.shape[0]), n), np.float32)
    for first in range(0, out.shape[0], FOURIER_ROWS):
        n_rows = min(FOURIER_ROWS, out.shape[0] - first)
        for i in range(n_rows):
            for f in range(n):
                angles[i, f] = lift.phases[f]
        _add_products(out, first, n_rows, lift.frequencies, angles)
        for i in range(n_rows):
            features = out[first + i, d : d + n]
            for f in range(n):
                features[f] = cosine_of_turns(angles[i, f]) * amplitude


@inner
def _add_extremes(d: int, start: int, out: F32) -> None:
    """Write maximum and minimum of the first d columns to columns ``start`` to ``start + 2d``."""
    top = out[0, start : start + d]
    low = out[0, start + d : start + 2 * d]
    for j in range(d):
        top[j] = low[j] = out[0, j]
    for i in range(1, out.shape[0]):
        row = out[i, :d]
        for j in range(d):
            top[j] = max(top[j], row[j])
            low[j] = min(low[j], row[j])
    for i in range(1, out.shape[0]):
        copy = out[i, start : start + d]
        for j in range(d):
            copy[j] = top[j]
        copy = out[i, start + d : start + 2 * d]
        for j in range(d):
            copy[j] = low[j]


@inner
def _add_mean(d: int, start: int, out: F32) -> None:
    """Write the mean over rows of the first d columns to columns ``start`` to ``start + d``."""
    sums = np.zeros(d, np.float64)
    for i in range(out.shape[0]):
        row = out[i, :d]
        for j in range(d):
            sums[j] += np.float64(row[j])
    for i in range(out.shape[0]):
        copy = out[i, start : start + d]
        for j in range(d):
            copy[j] = np.float32(sums[j] / out.shape[0])


@inner
def _add_all(lift: Lift, out: F32) -> None:
    """Add Fourier features and context to ``out`` (z, d') from its first d columns."""
    d, n = lift.scale.shape[0], lift.phases.shape[0]
    if n:
        _add_fourier(lift, out)
    if lift.context == EXTREMES:
        _add_extremes(d, d + n, out)
    if lift.context == EVERYTHING:
        _add_extremes(d + n, d + n, out)
        _add_mean(d + n, 3 * (d + n), out)
    if lift.context == MEAN:
        _add_mean(d, d + n, out)
        if lift.unit:
            for i in range(out.shape[0]):
                _divide_by_norm(out[i, d + n : 2 * d + n])


def add_features(lift: Lift | PlainLift, out: F32) -> None:
    """Add Fourier features and context to ``out`` (z, d'), if the lift has any."""
    if isinstance(lift, Lift):
        _add_all(lift, out)


@overload(add_features)
def _add_features_compiled(lift: Any, out: Any) -> Any:  # noqa: ARG001
    if lift.instance_class is PlainLift:

        def nothing(lift: Any, out: Any) -> None:
            pass

        return nothing

    def everything(lift: Any, out: Any) -> None:
        _add_all(lift, out)

    return everything


@njit
def lift_bag(lift: Lift | PlainLift, rows: Array, out: F32) -> None:
    """Lift ``rows`` (z ≥ 1, d) of one bag, in ``plain_rows`` form, into ``out`` (z, d')."""
    _scale_rows(lift, rows, out)
    add_features(lift, out)
    last = out.shape[1] - 1
    for i in range(rows.shape[0]):
        out[i, last] = np.float32(1)


@inner
def lift_sparse_bag(
    lift: Lift,
    row_offsets: Array,
    columns: Array,
    values: Array,
    start: int,
    stop: int,
    out_offsets: Array,
    out_columns: Array,
    out_values: F32,
) -> None:
    """Lift rows ``start`` to ``stop`` of a CSR block: scaled non-zeros, then 1 in the last column.

    ``out_offsets`` (stop - start + 1,) begins at 0; ``out_columns`` and ``out_values`` need room
    for the non-zeros and one more value per row. Sparse rows are not centred and get no Fourier
    features; ``join_sparse_bag`` computes their context.
    """
    last = lift_width(lift) - 1
    place = 0
    out_offsets[0] = 0
    for row in range(start, stop):
        first = place
        for p in range(row_offsets[row], row_offsets[row + 1]):
            column = columns[p]
            out_columns[place] = column
            out_values[place] = transformed(widen(values[p]), lift.transform) * lift.scale[column]
            place += 1
        if lift.unit:
            _divide_by_norm(out_values[first:place])
        out_columns[place] = last
        out_values[place] = np.float32(1)
        place += 1
        out_offsets[row - start + 1] = place


@inner
def join_sparse_bag(
    lift: Lift, row_offsets: Array, columns: Array, values: F32, n_rows: int, context: Context
) -> None:
    """Compute the ``context`` of a bag of ``n_rows`` lifted rows, except the field ``near``."""
    d, n = lift.scale.shape[0], 0
    places, sums = context.places, context.sums
    for row in range(n_rows):
        # The last value of a row is the constant.
        for p in range(row_offsets[row], row_offsets[row + 1] - 1):
            column = columns[p]
            if places[column] == 0:
                context.columns[n] = d + column
                sums[n] = 0.0
                n += 1
                places[column] = n
            sums[places[column] - 1] += np.float64(values[p])
    for i in range(n):
        context.values[i] = np.float32(sums[i] / n_rows)
        places[context.columns[i] - d] = 0
    if lift.unit:
        _divide_by_norm(context.values[:n])
    context.size[0] = n
