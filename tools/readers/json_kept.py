"""Kept columns in JSON: a list with a value, or a list of values, for each row of a bag.

A column is a field of the record, or of its object ``kept``, as ``export`` writes it. It holds
integers if every value is one, float64 if every value is a number or null (NaN), else text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.kept_columns import MOST_VALUES, TEXT, KeptColumn, as_texts

KEPT = "kept"
"""Field of a record whose object has the kept columns."""
INT64, UINT64 = range(-(2**63), 2**63), range(2**64)
SHOWN = 40


class KeptValueError(Exception):
    """A value that cannot be kept, with the reason; the reader adds file and line number."""


def kept_in(record: dict[str, Any], name: str) -> list[Any]:
    """Values of a column in a record, one for each row; raises KeptValueError."""
    own = record.get(KEPT)
    values = record[name] if name in record else own.get(name) if isinstance(own, dict) else None
    if not isinstance(values, list):
        what = "missing" if values is None else f"{_shown(values)}, expected a list"
        raise KeptValueError(f"{name!r} (--keep) is {what}; it needs a value for each row")
    return values


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _flat(name: str, values: Sequence[Any]) -> tuple[int, list[Any]]:
    """Number of values of each row, and all values."""
    widths = {len(value) if isinstance(value, list) else 0 for value in values}
    if len(widths) > 1 or not widths <= {*range(MOST_VALUES + 1)}:
        raise KeptValueError(f"{name!r} (--keep) has rows of different numbers of values")
    width = widths.pop()
    if width == 0:
        if any(isinstance(value, list) for value in values):
            raise KeptValueError(f"{name!r} (--keep) has rows without values")
        return 1, list(values)
    return width, list(chain.from_iterable(values))


class JsonTypes:
    """Types of kept columns, found record by record."""

    def __init__(self, names: Iterable[str]) -> None:
        self._kinds: dict[str, set[type]] = {name: set() for name in names}
        self._widths: dict[str, int] = {}
        self._lowest = dict.fromkeys(self._kinds, 0)
        self._highest = dict.fromkeys(self._kinds, 0)

    def add(self, record: dict[str, Any]) -> None:
        """Take the columns of a record into account; raises KeptValueError."""
        for name, kinds in self._kinds.items():
            values = kept_in(record, name)
            if not values:
                continue
            width, flat = _flat(name, values)
            if self._widths.setdefault(name, width) != width:
                raise KeptValueError(
                    f"{name!r} (--keep) has {width} values a row, expected {self._widths[name]}, "
                    "as in earlier records"
                )
            new = {*map(type, flat)}
            kinds |= new
            texts = str in kinds
            allowed = {str} if texts else {int, float, type(None)}
            if not kinds <= allowed:
                wrong = next((value for value in flat if type(value) not in allowed), flat[0])
                raise KeptValueError(
                    f"{name!r} (--keep) holds {_shown(wrong)}; expected numbers in all rows, or "
                    "text in all rows"
                )
            if texts and width > 1:
                raise KeptValueError(f"{name!r} (--keep) has {width} texts a row, expected one")
            if new == {int}:
                self._lowest[name] = min(self._lowest[name], min(flat))
                self._highest[name] = max(self._highest[name], max(flat))

    def columns(self) -> tuple[KeptColumn, ...]:
        """The columns by name; a column without any value holds text."""
        out = []
        for name, kinds in sorted(self._kinds.items()):
            dtype = "float64"
            if kinds <= {str}:
                dtype = TEXT
            elif kinds == {int}:
                lowest, highest = self._lowest[name], self._highest[name]
                if lowest in INT64 and highest in INT64:
                    dtype = "int64"
                elif lowest in UINT64 and highest in UINT64:
                    dtype = "uint64"
            out.append(KeptColumn(name, dtype, self._widths.get(name, 1)))
        return tuple(out)


def kept_values(record: dict[str, Any], column: KeptColumn, n_rows: int) -> NDArray[Any]:
    """Values of a column in a record; raises KeptValueError."""
    name = column.name
    values = kept_in(record, name)
    if len(values) != n_rows:
        raise KeptValueError(f"{name!r} (--keep) has {len(values)} values for {n_rows} rows")
    if not values:
        return column.empty()
    width, flat = _flat(name, values)
    kinds = {*map(type, flat)}
    allowed: set[type] = {str} if column.dtype == TEXT else {int, float, type(None)}
    if column.dtype in ("int64", "uint64"):
        allowed = {int}
    if width != column.width or not kinds <= allowed:
        raise KeptValueError(
            f"{name!r} (--keep) is not {column}, as in the first pass; has the file changed?"
        )
    if column.dtype == TEXT:
        return as_texts(flat)
    try:
        numbers = np.array(flat, column.dtype)
    except OverflowError:
        raise KeptValueError(f"{name!r} (--keep) holds numbers beyond {column.dtype}") from None
    return numbers if width == 1 else numbers.reshape(-1, width)
