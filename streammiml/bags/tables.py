"""Bags as an Arrow table or a pandas DataFrame, with one record for each bag.

Names of columns are those of Parquet stores (``FORMAT.md``). Other Arrow tables, too, become
DataFrames of pandas or Polars here.
"""

from __future__ import annotations

import json
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streammiml.bags.block import SparseRows
from streammiml.bags.parquet_read import KEY
from streammiml.errors import StreammimlError

if TYPE_CHECKING:  # Types only: views.py loads this module late.
    import pandas as pd
    import polars as pl

    from streammiml.bags.views import Bags

I64 = NDArray[np.int64]


def arrow_table(store: Bags, start: int, stop: int) -> pa.Table:
    """Arrow table of bags ``start`` to ``stop``; it shares the memory of the rows that are read.

    Lists have 64-bit offsets whatever their length, so tables of all ranges have one schema.
    """
    block = store.read(start, stop)
    numbers = _flat(block.label_indices)
    columns: dict[str, pa.Array] = {
        "bag": pa.array(np.arange(start, stop, dtype=np.int64)),
        "bag_id": pa.array(store.bag_ids(start, stop), pa.large_string()),
    }
    rows = block.rows
    if isinstance(rows, SparseRows):
        for name, flat in (("columns", rows.columns), ("values", rows.values)):
            columns[name] = _lists(block.bag_offsets, _lists(rows.offsets, _flat(flat)))
    else:
        values = _flat(rows.reshape(-1))
        kind = pa.list_(_element(values.type), store.n_features)
        of_rows = pa.FixedSizeListArray.from_arrays(values, type=kind)
        columns["rows"] = _lists(block.bag_offsets, of_rows)
    columns["labels"] = _lists(block.label_offsets, numbers)
    if store.label_names is not None:
        names = pa.array(store.label_names, pa.large_string()).take(numbers)
        columns["label_names"] = _lists(block.label_offsets, names)
    if block.row_labels is not None:
        columns["row_labels"] = _lists(block.bag_offsets, _flat(block.row_labels))
    for column in store.kept_columns:
        items = kept_items(block.kept[column.name])
        columns[column.array] = _lists(block.bag_offsets, items)
    fields = [pa.field(name, array.type, nullable=False) for name, array in columns.items()]
    return pa.table(columns, schema=pa.schema(fields, metadata={KEY: _description(store)}))


def _description(store: Bags) -> str:
    """Counts and names of a store as JSON, as in the schema of Parquet stores."""
    counts: dict[str, Any] = {"n_features": store.n_features, "n_labels": store.n_labels}
    names = {"label_names": store.label_names, "feature_names": store.feature_names}
    return json.dumps(counts | {key: value for key, value in names.items() if value is not None})


def _flat(values: NDArray[Any]) -> pa.Array:
    """Arrow array that shares the memory of values in this machine's byte order."""
    return pa.array(np.ascontiguousarray(values, values.dtype.newbyteorder("=")))


def kept_items(values: NDArray[Any]) -> pa.Array:
    """Values of a kept column, with a list for each row of a wide column."""
    if values.dtype == object:
        return pa.array(values.tolist(), pa.large_string())
    flat = _flat(values.reshape(-1))
    if values.ndim == 1:
        return flat
    return pa.FixedSizeListArray.from_arrays(
        flat, type=pa.list_(_element(flat.type), values.shape[1])
    )


def _element(kind: pa.DataType) -> pa.Field:
    return pa.field("element", kind, nullable=False)


def _lists(offsets: I64, items: pa.Array) -> pa.Array:
    """List array from offsets and items."""
    kind = pa.large_list(_element(items.type))
    return pa.LargeListArray.from_arrays(pa.array(offsets), items, type=kind)


def data_frame(store: Bags, start: int, stop: int) -> pd.DataFrame:
    """Frame of bags ``start`` to ``stop``; its arrays share the memory of the rows that are read.

    Raises StreammimlError if pandas is not installed.
    """
    pandas = _package("pandas")
    block = store.read(start, stop)
    columns: dict[str, Any] = {
        "bag": np.arange(start, stop, dtype=np.int64),
        "bag_id": store.bag_ids(start, stop),
    }
    rows = block.rows
    if isinstance(rows, SparseRows):
        for name, flat in (("columns", rows.columns), ("values", rows.values)):
            of_rows = _parts(flat, rows.offsets)
            columns[name] = _cells(_parts(of_rows, block.bag_offsets))
    else:
        columns["rows"] = _cells(_parts(rows, block.bag_offsets))
    labels = _parts(block.label_indices, block.label_offsets)
    columns["labels"] = _cells(labels)
    if store.label_names is not None:
        names = store.label_names
        columns["label_names"] = _cells([[names[i] for i in own.tolist()] for own in labels])
    if block.row_labels is not None:
        columns["row_labels"] = _cells(_parts(block.row_labels, block.bag_offsets))
    for column in store.kept_columns:
        columns[column.array] = _cells(_parts(block.kept[column.name], block.bag_offsets))
    return pandas.DataFrame(columns)


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """Convert an Arrow table to a pandas DataFrame."""
    _package("pandas")
    frame: pd.DataFrame = table.to_pandas()
    return frame


def polars_frame(table: pa.Table) -> pl.DataFrame:
    """Convert an Arrow table to a Polars DataFrame."""
    frame: pl.DataFrame = _package("polars").from_arrow(table)
    return frame


def _package(name: str) -> Any:
    """Load a package that only some callers have, or say how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        if error.name != name:
            raise
        raise StreammimlError(f"to_{name} needs {name}: pip install {name}") from None


def _parts(items: Any, offsets: I64) -> list[Any]:
    """Slices of an array or a list between successive offsets."""
    return [items[start:stop] for start, stop in pairwise(offsets.tolist())]


def _cells(values: list[Any]) -> NDArray[Any]:
    """Array of objects; NumPy would join arrays of equal shapes to one array."""
    out = np.empty(len(values), object)
    for number, value in enumerate(values):
        out[number] = value
    return out
