"""Tables in memory, of any library, as tables of PyArrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streammiml.errors import StreammimlError
from streammiml_tools.readers.arrow_tables import is_text


def is_table(value: Any) -> bool:
    """Whether a value is a table: a DataFrame of pandas or Polars, or a table of PyArrow."""
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "columns")


def arrow_table(value: Any, what: str, index: str | None = None) -> pa.Table:
    """A table of any library as one of PyArrow; ``index`` may name the index of a DataFrame.

    ``what`` is what messages call the table.
    """
    try:
        if isinstance(value, pa.Table):
            return value
        if type(value).__module__.partition(".")[0] == "pandas":
            if index is not None and index not in value.columns and index == value.index.name:
                value = value.reset_index()
            return pa.Table.from_pandas(value, preserve_index=False)
        return pa.table(value)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise StreammimlError(
            f"{what} ({type(value).__name__}) is no table of plain columns: {reason}"
        ) from None


def is_sorted(table: pa.Table, bag: str) -> bool:
    """Whether the rows of each bag are adjacent; a missing column is refused by the reader."""
    if bag not in table.column_names:
        return True
    column = table.column(bag)
    if is_text(column.type):
        # Polars gives views of texts, which pyarrow cannot count.
        column = column.cast(pa.large_string())
    changes = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
    n_changes = int(pc.sum(changes).as_py() or 0)
    return n_changes + 1 <= int(pc.count_distinct(column).as_py())
