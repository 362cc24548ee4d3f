"""Kept columns: values of arrays as a store keeps them, and types and values in lines of text.

In lines of text, a column holds int64 if every cell is a whole number, float64 if every cell is a
number or empty (NaN), and text otherwise. Numbers with leading zeros are texts: they are codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streammiml.bags.kept_columns import (
    TEXT,
    Kept,
    KeptColumn,
    as_texts,
    columns_of,
    name_problem,
    storable,
)
from streammiml.errors import StoreError
from streammiml_tools.readers.base import SourceError

WHOLE = r"^-?(0|[1-9][0-9]{0,17})$"
CODE = r"^[+-]?0[0-9]"
EMPTY, INTEGER, FLOAT = "empty", "int64", "float64"
_WIDTH = {EMPTY: 0, INTEGER: 1, FLOAT: 2, TEXT: 3}


def check_names(path: Path | str, names: Iterable[str]) -> None:
    """Refuse names under which no store keeps a column."""
    first_of: dict[str, str] = {}
    for name in names:
        if problem := name_problem(name):
            raise SourceError(f"{path}: {name!r} cannot be kept: {problem}")
        first = first_of.setdefault(name.casefold(), name)
        if first != name:
            raise SourceError(f"{path}: {first!r} and {name!r} cannot both be kept; rename one")


def kept_column(where: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> KeptColumn:
    """Type of a column by the header of its array; one leading axis of length 1 is allowed."""
    inner = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    sample = storable_values(np.empty((0, *inner[1:]), dtype), where)
    return columns_of({name: sample})[0]


def storable_values(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Values as a store keeps them; bytes are texts in UTF-8."""
    try:
        if values.dtype.kind == "S":
            values = np.char.decode(values, "utf-8")
        return storable(values, where)
    except UnicodeDecodeError:
        raise SourceError(f"{where} holds bytes that are not UTF-8 text") from None
    except StoreError as error:
        raise SourceError(str(error)) from None


def type_of_cells(cells: pa.ChunkedArray) -> str:
    """Narrowest type of the cells: empty, int64, float64 or text."""
    given = cells.filter(pc.not_equal(cells, ""))
    if not len(given):
        return EMPTY
    if len(given) == len(cells) and pc.all(pc.match_substring_regex(given, WHOLE)).as_py():
        return INTEGER
    if pc.any(pc.match_substring_regex(given, CODE)).as_py():
        return TEXT
    try:
        given.cast(pa.float64())
    except pa.ArrowInvalid:
        return TEXT
    return FLOAT


class CellTypes:
    """Types of columns, found block by block."""

    def __init__(self, names: Iterable[str]) -> None:
        self._types = dict.fromkeys(names, EMPTY)
        self._has_empty = dict.fromkeys(self._types, False)

    def add(self, name: str, cells: pa.ChunkedArray) -> None:
        """Take the cells of a column in a block into account."""
        if self._types[name] == TEXT:
            return
        of_block = type_of_cells(cells)
        self._has_empty[name] |= bool(pc.any(pc.equal(cells, "")).as_py())
        self._types[name] = max(self._types[name], of_block, key=_WIDTH.__getitem__)

    def columns(self) -> tuple[KeptColumn, ...]:
        """The columns by name; a column that is empty throughout holds text."""
        out = []
        for name, kind in sorted(self._types.items()):
            if kind == INTEGER and self._has_empty[name]:
                kind = FLOAT
            out.append(KeptColumn(name, TEXT if kind == EMPTY else kind))
        return tuple(out)


def values_of_cells(
    cells: pa.ChunkedArray, column: KeptColumn, locate: Callable[[int], str]
) -> NDArray[Any]:
    """Values of a column; a cell that its type does not hold is refused."""
    if column.dtype == TEXT:
        return as_texts(cells.to_pylist())
    kind = pa.int64() if column.dtype == INTEGER else pa.float64()
    try:
        numbers = _numbers(cells, kind)
    except pa.ArrowInvalid:
        row, cell = next(
            (row, cell) for row, cell in enumerate(cells.to_pylist()) if not _is_number(cell, kind)
        )
        raise SourceError(
            f"{locate(row)}: column {column.name!r} to keep is {cell[:40]!r}, expected "
            f"{column.dtype} as in the first pass; has the file changed?"
        ) from None
    return np.asarray(numbers.to_numpy())


def _numbers(cells: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind == pa.float64():
        cells = pc.if_else(pc.equal(cells, ""), "nan", cells)
    return cells.cast(kind)


def _is_number(cell: str, kind: pa.DataType) -> bool:
    try:
        _numbers(pa.chunked_array([[cell]]), kind)
    except pa.ArrowInvalid:
        return False
    return True


def kept_cells(
    table: pa.Table,
    number_of: Callable[[str], int],
    columns: Iterable[KeptColumn],
    locate: Callable[[int], str],
) -> Kept:
    """Kept columns of a table whose columns are named by their numbers."""
    return {
        column.name: values_of_cells(table.column(str(number_of(column.name))), column, locate)
        for column in columns
    }
