"""Kept columns: values beside the rows, such as coordinates, times or texts, that no model reads.

In memory, a column of numbers is an array (rows,) or (rows, width), and a column of text is an
array of Python strings. In a store, a column of text is two arrays: offsets, and UTF-8 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.offsets import from_sizes
from streammiml.errors import StoreError, unknown

Kept = dict[str, NDArray[Any]]
"""Values of kept columns, by name."""

TEXT = "text"
KEPT_DTYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", TEXT),
)
MOST_VALUES = 2**16
"""Upper limit for the values of one row in one column."""
MOST_ITEM = 8
"""Bytes of the widest number."""
OBJECT_BYTES = 64
"""Approximate memory for a Python string, without its characters."""
# Names are parts of paths of files and of URLs. A dot separates them from the kind of an array.
_NAME = re.compile(r"\w(?:[\w -]{0,62}[\w-])?")
_PREFIX, _OFFSETS, _BYTES = "kept_", ".offsets", ".bytes"


class KeptColumn(NamedTuple):
    """Name and type of a kept column."""

    name: str
    dtype: str
    """Type of numbers, or ``text``."""
    width: int = 1
    """Values of each row."""

    @property
    def array(self) -> str:
        """Name of its array in a Zarr store if it holds numbers, and of its Parquet column."""
        return f"{_PREFIX}{self.name}"

    @property
    def arrays(self) -> dict[str, tuple[str, int]]:
        """Type and width of each array that a store has for this column, by name."""
        if self.dtype == TEXT:
            return {self.array + _OFFSETS: ("int64", 1), self.array + _BYTES: ("uint8", 1)}
        return {self.array: (self.dtype, self.width)}

    @property
    def values(self) -> str:
        """Name of the array that holds the values."""
        return self.array + _BYTES if self.dtype == TEXT else self.array

    @property
    def offsets(self) -> str | None:
        """Name of the array of offsets, if it holds text."""
        return self.array + _OFFSETS if self.dtype == TEXT else None

    def empty(self) -> NDArray[Any]:
        """Values of no rows."""
        shape = (0,) if self.width == 1 else (0, self.width)
        return np.empty(shape, object if self.dtype == TEXT else self.dtype)

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype if self.width == 1 else f'{self.width} {self.dtype}'})"


def is_kept(array: str) -> bool:
    """Whether an array of a store belongs to a kept column."""
    return array.startswith(_PREFIX)


def column_name(array: str) -> str:
    """Name of the kept column that an array belongs to."""
    return array.removeprefix(_PREFIX).removesuffix(_OFFSETS).removesuffix(_BYTES)


def is_offsets(array: str) -> bool:
    """Whether an array of a store holds offsets."""
    return array.endswith(_OFFSETS if is_kept(array) else "_offsets")


def name_problem(name: str) -> str:
    """Say why a column cannot be kept under a name; empty if it can."""
    if _NAME.fullmatch(name):
        return ""
    return "names of kept columns have up to 64 letters, digits, _, - and inner spaces; rename it"


def check_columns(columns: Sequence[KeptColumn]) -> tuple[KeptColumn, ...]:
    """Return columns by name; refuse names and types that no store can have."""
    first_of: dict[str, str] = {}
    for column in columns:
        if problem := name_problem(column.name):
            raise StoreError(f"{column.name!r} cannot be kept: {problem}")
        # Some file systems take names in upper and lower case for the same.
        first = first_of.setdefault(column.name.casefold(), column.name)
        if first is not column.name:
            raise StoreError(
                f"kept columns {first!r} and {column.name!r} have the same name; rename one"
            )
        if column.dtype not in KEPT_DTYPES:
            raise unknown("type of kept columns", column.dtype, KEPT_DTYPES)
        if not 1 <= column.width <= (1 if column.dtype == TEXT else MOST_VALUES):
            raise StoreError(
                f"{column.name!r} cannot be kept: a row has {column.width} values, expected 1"
                + ("" if column.dtype == TEXT else f" to {MOST_VALUES}")
            )
    return tuple(sorted(columns))


def columns_in(arrays: Mapping[str, tuple[str, int]]) -> tuple[KeptColumn, ...]:
    """Kept columns of a store, given type and width of each array."""
    columns = []
    for array, (dtype, width) in arrays.items():
        if not is_kept(array) or is_offsets(array):
            continue
        if array.endswith(_BYTES):
            dtype, width = TEXT, 1
        columns.append(KeptColumn(column_name(array), dtype, width))
    return tuple(sorted(columns))


def columns_of(kept: Kept) -> tuple[KeptColumn, ...]:
    """Names and types of values in memory."""
    return tuple(
        KeptColumn(name, TEXT if values.dtype == object else values.dtype.name, _width(values))
        for name, values in sorted(kept.items())
    )


def _width(values: NDArray[Any]) -> int:
    return int(np.prod(values.shape[1:]))


def common_column(one: KeptColumn, other: KeptColumn) -> KeptColumn | None:
    """Column that holds the values of both; None if widths differ, or only one holds text."""
    if one == other:
        return one
    if one.width != other.width or TEXT in (one.dtype, other.dtype):
        return None
    return one._replace(dtype=np.result_type(one.dtype, other.dtype).name)


def storable(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Values of one column in a form that can be kept; others are refused.

    Booleans become uint8. ``where`` names file or bag, and column, for the message.
    """
    kind = values.dtype.kind
    width = int(np.prod(values.shape[1:]))
    is_text = kind in "UT" or (
        kind == "O" and all(isinstance(value, str) for value in values.reshape(-1).tolist())
    )
    is_number = kind in "iub" or (kind == "f" and values.itemsize <= MOST_ITEM)
    fits = 1 <= values.ndim <= 2 and 1 <= width <= (1 if is_text else MOST_VALUES)
    if not (is_text or is_number) or not fits:
        held = "other values" if kind == "O" else values.dtype
        raise StoreError(
            f"{where} holds {held} of shape {values.shape}, which cannot be kept; expected numbers "
            "(rows,) or (rows, values), or texts (rows,)"
        )
    if is_text:
        return as_texts(values.reshape(-1).tolist())
    if kind == "b":
        values = values.astype(np.uint8)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    return values.reshape(-1) if width == 1 else values


def as_texts(texts: Iterable[str]) -> NDArray[Any]:
    """Array of Python strings."""
    items = list(texts)
    out = np.empty(len(items), object)
    out[:] = items
    return out


def encoded(texts: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Offsets of texts, and their UTF-8 bytes end to end."""
    raw = [text.encode() for text in texts.tolist()]
    return from_sizes([*map(len, raw)]), np.frombuffer(b"".join(raw), np.uint8)


def kept_arrays(kept: Kept) -> Kept:
    """Arrays of a store by name; :func:`kept_from` is the inverse."""
    arrays: Kept = {}
    for column in columns_of(kept):
        values = kept[column.name]
        if column.offsets is None:
            arrays[column.array] = values
        else:
            arrays[column.offsets], arrays[column.values] = encoded(values)
    return arrays


def kept_from(arrays: Mapping[str, NDArray[Any]]) -> Kept:
    """Values of kept columns, by name; other arrays are ignored.

    Bytes that are not UTF-8 raise UnicodeDecodeError.
    """
    kept: Kept = {}
    for column in columns_in({name: (array.dtype.name, 1) for name, array in arrays.items()}):
        values = arrays[column.values]
        if column.offsets is not None:
            values = decoded(arrays[column.offsets], values)
        kept[column.name] = values
    return kept


def decoded(offsets: NDArray[np.int64], raw: NDArray[np.uint8]) -> NDArray[Any]:
    """Texts whose UTF-8 bytes lie end to end; ``offsets`` begin at 0."""
    text, ends = raw.tobytes(), offsets.tolist()
    return as_texts(text[start:stop].decode() for start, stop in pairwise(ends))


def n_bytes(values: NDArray[Any]) -> int:
    """Approximate memory of the values of a column."""
    if values.dtype != object:
        return int(values.nbytes)
    return sum(map(len, values.tolist())) + OBJECT_BYTES * len(values)


def plain_values(values: NDArray[Any]) -> list[Any]:
    """Values as JSON has them: lists, numbers and texts, None for what is not finite."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    out = values.astype(object)
    out[~np.isfinite(values)] = None
    return list(out.tolist())


def shown(kept: Mapping[str, Any]) -> str:
    """Values of one row in words, such as ``coords 512, 1024; time 3.5``."""
    parts = []
    for name, value in kept.items():
        values = value if isinstance(value, list) else [value]
        parts.append(f"{name} {', '.join('none' if v is None else _short(v) for v in values)}")
    return "; ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


SHOWN = 60
"""Upper limit for the characters of a text that is shown."""
