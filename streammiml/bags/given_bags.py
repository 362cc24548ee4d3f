"""Bags that a caller has in memory, for scoring: arrays, SciPy matrices, DataFrames, Arrow tables.

Tables are recognised by their methods, so that neither pandas nor Polars is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import Bag, BagBlock, check_shapes
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StreammimlError

GivenBags = Any
"""A list of bags, each an array (rows, features), a SciPy sparse matrix, a table, or a bag of a
store (``store[0]``); one such bag; an array (bags, rows, features); or a block."""


def given_block(bags: GivenBags) -> BagBlock:
    """Convert bags of any accepted form to a block without labels."""
    if isinstance(bags, BagBlock):
        return _checked(bags)
    if isinstance(bags, Bag):
        bags = [bags]
    if _is_table(bags) or _is_scipy(bags) or (isinstance(bags, np.ndarray) and bags.ndim == 2):
        bags = [bags]
    if not isinstance(bags, Sequence) and np.ndim(bags) == 0:
        raise StreammimlError(
            f"{type(bags).__name__} is neither a store nor bags; expected a store, paths of stores,"
            " or a list of arrays (rows, features)"
        )
    if isinstance(bags, np.ndarray) and bags.ndim == 1 and bags.dtype != object:
        raise StreammimlError(
            f"an array of shape {bags.shape} is neither a bag nor bags; a bag is an array "
            "(rows, features): row[None] is a bag of one row"
        )
    bags = [bag.rows if isinstance(bag, Bag) else bag for bag in bags]
    if any(map(_is_scipy, bags)):
        # Loaded late: only callers with SciPy matrices need SciPy.
        joined: BagBlock = import_module("streammiml.bags.from_arrays").block_of(bags)
        return joined
    arrays = _tables(bags) if any(map(_is_table, bags)) else bags
    arrays = [_array(bag, number) for number, bag in enumerate(arrays)]
    check_shapes(arrays)
    rows = np.concatenate(arrays) if arrays else np.empty((0, 0), np.float32)
    if rows.dtype.kind not in "iuf" or rows.dtype == np.float64 or rows.dtype.itemsize > 4:
        rows = rows.astype(np.float32)
    no_labels = np.zeros(len(bags) + 1, np.int64), np.empty(0, np.int32)
    return _checked(BagBlock(from_sizes([len(bag) for bag in arrays]), rows, *no_labels))


def _checked(block: BagBlock) -> BagBlock:
    sizes = np.diff(block.bag_offsets)
    if not sizes.all():
        raise StreammimlError(f"bag {int(sizes.argmin())} has no rows; leave it out")
    return block


def _is_scipy(bag: Any) -> bool:
    return type(bag).__module__.startswith("scipy.sparse")


def _is_table(bag: Any) -> bool:
    """Whether this is a table of Arrow, or a DataFrame of pandas or Polars."""
    return hasattr(bag, "column_names") or (hasattr(bag, "columns") and hasattr(bag, "to_numpy"))


def _array(bag: Any, number: int) -> NDArray[Any]:
    """Check that a bag holds numbers; arrays of Python numbers are converted."""
    if not isinstance(bag, np.ndarray):
        raise StreammimlError(
            f"bag {number} is a {type(bag).__name__}, expected an array (rows, features)"
        )
    if bag.dtype == object:
        with suppress(TypeError, ValueError):
            return bag.astype(np.float64)
    if bag.dtype.kind not in "biuf":
        raise StreammimlError(f"bag {number} holds {bag.dtype}, expected numbers")
    return bag


def _tables(bags: Sequence[Any]) -> list[NDArray[Any]]:
    """Arrays (rows, features) of tables, all with the columns of the first, in its order."""
    names: list[str] = []
    arrays = []
    for number, bag in enumerate(bags):
        if not _is_table(bag):
            raise StreammimlError(
                f"bag {number} is a {type(bag).__name__} and other bags are tables; give bags of "
                "one kind"
            )
        columns = _columns(bag, number)
        names = names if number else [*columns]
        lacking = [name for name in names if name not in columns]
        extra = [name for name in columns if name not in names]
        if lacking or extra:
            raise StreammimlError(
                f"bag {number} {_listed('lacks the', lacking) or _listed('has the', extra)}, "
                f"unlike bag 0; all tables need the same columns"
            )
        numbers = [_numbers(columns[name], name, number) for name in names]
        if not numbers:
            raise StreammimlError(f"bag {number} has no columns; each feature is a column")
        arrays.append(np.column_stack(numbers))
    return arrays


def _listed(verb: str, names: list[str]) -> str:
    noun = "column" if len(names) == 1 else "columns"
    return f"{verb} {noun} {', '.join(map(repr, names))}" if names else ""


def _columns(table: Any, number: int) -> dict[str, NDArray[Any]]:
    """Columns of a table by name."""
    is_arrow = hasattr(table, "column_names")
    names = [str(name) for name in (table.column_names if is_arrow else table.columns)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise StreammimlError(f"bag {number} has the column {twice!r} twice; rename one")
    if is_arrow:
        # Arrays of Arrow refuse to copy unless told to.
        arrays = [column.to_numpy(zero_copy_only=False) for column in table.columns]
    else:
        arrays = [table[name].to_numpy() for name in table.columns]
    return dict(zip(names, map(np.asarray, arrays), strict=True))


def _numbers(values: NDArray[Any], name: str, bag: int) -> NDArray[Any]:
    """Values of a column; missing values and values that are not numbers are refused."""
    if values.dtype == object:
        with suppress(TypeError, ValueError):
            values = values.astype(np.float64)
    if values.dtype.kind not in "biuf":
        raise StreammimlError(
            f"bag {bag} holds {values.dtype} in column {name!r}, expected numbers"
        )
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise StreammimlError(f"bag {bag} has missing values in column {name!r}; fill them first")
    return values
