"""Lists of lists of numbers in JSON, from text to float64 without a Python object a number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streammiml.jit import njit

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

_POWERS = np.array([float(f"1e{power}") for power in range(61)])
_MAX_DIGITS = 18
_SPACE, _TAB, _RETURN = 32, 9, 13
_OPEN, _CLOSE, _COMMA, _MINUS, _PLUS, _POINT, _ZERO, _NINE = 91, 93, 44, 45, 43, 46, 48, 57
_SMALL_E, _LARGE_E = 101, 69
# Bits of a float64 that a float32 has no room for; half of their range is where rounding turns.
_LOST, _HALF = (1 << 29) - 1, 1 << 28
_NEAR = 16
_TINY = 1.2e-38


@njit
def parse_rows(
    text: U8, start: int, width: int, powers: F64, values: F64, bits: I64
) -> tuple[int, int]:
    """``text`` from the first bracket on; where the list ends, and how many rows it has.

    The end is −1 for all that is not a list of lists of ``width`` plain numbers each, of up to 18
    digits, whose float32 is certain. ``values`` must have room; ``bits`` are the same bytes.
    """
    n, n_values, n_rows, i = len(text), 0, 0, start
    if i >= n or text[i] != _OPEN:
        return -1, 0
    i = _after_space(text, i + 1)
    while i < n and text[i] == _OPEN:
        i = _after_space(text, i + 1)
        for left in range(width - 1, -1, -1):
            i, value = _number(text, i, powers)
            if i < 0:
                return -1, 0
            values[n_values] = value
            if not _is_sure(value, bits[n_values]):
                return -1, 0
            n_values += 1
            i = _after_space(text, i)
            if i >= n or text[i] != (_COMMA if left else _CLOSE):
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
    """Whether a value that may be off by some last places has the float32 of the one written.

    Not where rounding turns, nor where float32 has fewer bits; and −0 is left out, for its sign.
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
    """Where a number ends, −1 if there is none, and its value."""
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
    # No digit at all, or zeros before others, is no JSON.
    if i == first or (text[first] == _ZERO and i > first + 1):
        return -1, 0.0
    if i < n and text[i] == _POINT:
        i += 1
        point = i
        while i < n and _ZERO <= text[i] <= _NINE:
            mantissa = mantissa * 10 + (int(text[i]) - _ZERO)
            # Zeros in front of all others are no digits that count.
            n_digits += mantissa > 0
            if n_digits > _MAX_DIGITS:
                return -1, 0.0
            i += 1
        if i == point:
            return -1, 0.0
        power = point - i
    if i < n and (text[i] == _SMALL_E or text[i] == _LARGE_E):
        i += 1
        down = i < n and text[i] == _MINUS
        if i < n and (text[i] == _MINUS or text[i] == _PLUS):
            i += 1
        point, exponent = i, 0
        while i < n and _ZERO <= text[i] <= _NINE:
            exponent = min(exponent * 10 + (int(text[i]) - _ZERO), 9999)
            i += 1
        if i == point:
            return -1, 0.0
        power += -exponent if down else exponent
    if power < -60 or power > 60:
        return -1, 0.0
    value = mantissa / powers[-power] if power < 0 else mantissa * powers[power]
    if negative and mantissa == 0:
        return -1, 0.0
    return i, -value if negative else value


def rows_in(text: bytes, start: int, width: int, values: F64) -> tuple[int, int]:
    """See :func:`parse_rows`."""
    found = parse_rows(
        np.frombuffer(text, np.uint8), start, width, _POWERS, values, values.view(np.int64)
    )
    return int(found[0]), int(found[1])
