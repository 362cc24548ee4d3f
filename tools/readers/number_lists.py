"""Lists of lists of numbers in JSON, parsed to float64 without Python objects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streammiml._base.compiled import njit

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

_POWERS = np.array([float(f"1e{power}") for power in range(61)])
_MAX_DIGITS = 18
_SPACE, _TAB, _RETURN = 32, 9, 13
_OPEN, _CLOSE, _COMMA, _MINUS, _PLUS, _POINT, _ZERO, _NINE = 91, 93, 44, 45, 43, 46, 48, 57
_SMALL_E, _LARGE_E = 101, 69
# Bits of a float64 that float32 lacks. Rounding changes direction at half of their range.
_LOST, _HALF = (1 << 29) - 1, 1 << 28
_NEAR = 16
_TINY = 1.2e-38


@njit
def parse_rows(
    text: U8, start: int, width: int, powers: F64, values: F64, bits: I64
) -> tuple[int, int]:
    """Parse the list whose bracket opens at ``start``; return its end and its number of rows.

    The end is −1 unless all rows have ``width`` plain numbers of up to 18 digits whose nearest
    float32 is certain. ``values`` must be large enough; ``bits`` is an int64 view of ``values``.
    """
    n, n_values, n_rows, i = len(text), 0, 0, start
    if i >= n or text[i] != _OPEN:
        return -1, 0
    i = _after_space(text, i + 1)
    while i < n and text[i] == _OPEN:
        i = _after_space(text, i + 1)
        for n_left in range(width - 1, -1, -1):
            i, value = _number(text, i, powers)
            if i < 0:
                return -1, 0
            values[n_values] = value
            if not _is_sure(value, bits[n_values]):
                return -1, 0
            n_values += 1
            i = _after_space(text, i)
            if i >= n or text[i] != (_COMMA if n_left else _CLOSE):
                return -1, 0
            i = _after_space(text, i + 1)
        n_rows += 1
        if i < n and text[i] == _CLOSE:
            return i + 1, n_rows
        if i >= n or text[i] != _COMMA:
            return -1, 0
        i = _after_space(text, i + 1)
    return -1, 0


@njit
def _is_sure(value: float, bits: int) -> bool:
    """Whether a float64 with an error in its last bits still rounds to the right float32.

    Rounding is uncertain near the point where rounding changes direction, and for subnormal float32
    values, which have fewer bits.
    """
    if abs(value) < _TINY:
        return value == 0
    return abs((bits & _LOST) - _HALF) > _NEAR


@njit
def _after_space(text: U8, i: int) -> int:
    while i < len(text) and (text[i] == _SPACE or text[i] == _TAB or text[i] == _RETURN):
        i += 1
    return i


@njit
def _number(text: U8, i: int, powers: F64) -> tuple[int, float]:
    """End of the number at ``i``, −1 if it is not a plain number, and its value."""
    n = len(text)
    negative = i < n and text[i] == _MINUS
    if negative:
        i += 1
    first, mantissa, n_digits, power = i, 0, 0, 0
    while i < n and _ZERO <= text[i] <= _NINE:
        mantissa = mantissa * 10 + (int(text[i]) - _ZERO)
        n_digits += 1
        if n_digits > _MAX_DIGITS:
            return -1, 0.0
        i += 1
    # JSON needs a digit, and allows no leading zeros.
    if i == first or (text[first] == _ZERO and i > first + 1):
        return -1, 0.0
    if i < n and text[i] == _POINT:
        i += 1
        point = i
        while i < n and _ZERO <= text[i] <= _NINE:
            mantissa = mantissa * 10 + (int(text[i]) - _ZERO)
            # Leading zeros are not significant digits.
            n_digits += mantissa > 0
            if n_digits > _MAX_DIGITS:
                return -1, 0.0
            i += 1
        if i == point:
            return -1, 0.0
        power = point - i
    if i < n and (text[i] == _SMALL_E or text[i] == _LARGE_E):
        i += 1
        is_negative = i < n and text[i] == _MINUS
        if i < n and (text[i] == _MINUS or text[i] == _PLUS):
            i += 1
        point, exponent = i, 0
        while i < n and _ZERO <= text[i] <= _NINE:
            exponent = min(exponent * 10 + (int(text[i]) - _ZERO), 9999)
            i += 1
        if i == point:
            return -1, 0.0
        power += -exponent if is_negative else exponent
    if power < -60 or power > 60:
        return -1, 0.0
    value = mantissa / powers[-power] if power < 0 else mantissa * powers[power]
    if negative and mantissa == 0:
        return -1, 0.0
    return i, -value if negative else value


def rows_in(text: bytes, start: int, width: int, values: F64) -> tuple[int, int]:
    """Call :func:`parse_rows` on bytes."""
    result = parse_rows(
        np.frombuffer(text, np.uint8), start, width, _POWERS, values, values.view(np.int64)
    )
    return int(result[0]), int(result[1])
