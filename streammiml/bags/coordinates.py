"""Kept columns that say where a row lies: coordinates in a plane, or a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import TEXT, Kept, KeptColumn, plain_values, shown
from streammiml.bags.views import Bags
from streammiml.errors import StoreError

NONE = "none"
"""Option that asks for no pictures of coordinates."""
IN_A_PLANE = ("coords", "coordinates", "xy")
"""Names of columns of two numbers that are chosen before others."""
TIMES = ("time", "times")
"""Names of columns of one number that are times."""


def coordinate_columns(store: Bags, option: str | None) -> tuple[KeptColumn, ...]:
    """Return the columns that place the rows of a store: none, one, or two of one number each.

    ``option`` is a column of one or two numbers, two columns of one number such as ``x,y``, or
    ``none``. By default, coordinates are the column ``coords``, ``coordinates`` or ``xy``, or else
    the only column of two numbers, or else the columns ``x`` and ``y``, or else the column ``time``
    or ``times``.
    """
    if option == NONE:
        return ()
    numbers = {column.name: column for column in store.kept_columns if column.dtype != TEXT}
    if option is None:
        return _by_default(numbers.values())
    names = [name.strip() for name in option.split(",")]
    chosen = tuple(numbers[name] for name in names if name in numbers)
    if len(chosen) != len(names) or [column.width for column in chosen] not in ([2], [1], [1, 1]):
        columns = ", ".join(map(str, store.kept_columns)) or "no columns"
        raise StoreError(
            f"coordinates are one kept column of two numbers or of one, or two columns of one "
            f"number such as x,y, and not {option!r}: {store.name} keeps {columns}"
        )
    return chosen


def _by_default(columns: Collection[KeptColumn]) -> tuple[KeptColumn, ...]:
    pairs = [column for column in columns if column.width == 2]
    named = [column for column in pairs if column.name.lower() in IN_A_PLANE]
    for candidates in (named, pairs):
        if len(candidates) == 1:
            return tuple(candidates)
    single = {column.name.lower(): column for column in columns if column.width == 1}
    if "x" in single and "y" in single:
        return single["x"], single["y"]
    times = [single[name] for name in TIMES if name in single]
    return tuple(times) if len(times) == 1 else ()


def places_of(columns: Sequence[KeptColumn], kept: Kept) -> NDArray[np.float64]:
    """(rows, 1 or 2) Where rows lie, by the columns of :func:`coordinate_columns`."""
    values = [kept[column.name].reshape(-1, column.width) for column in columns]
    return np.concatenate(values, axis=1).astype(np.float64)


def where(columns: Sequence[KeptColumn], block: BagBlock, row: int) -> str:
    """Where a row of a block lies, in words: ``coords 512, 1024``."""
    here = {column.name: block.kept[column.name][row : row + 1] for column in columns}
    return shown({name: plain_values(values)[0] for name, values in here.items()})
