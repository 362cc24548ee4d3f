"""Tables of any library as tables of PyArrow."""

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streammiml.errors import StreammimlError
from streammiml_tools.convert.tables import arrow_table, is_sorted, is_table

FRAME = pd.DataFrame({"doc": ["a", "b", "b"], "x": [1.0, 2.0, 3.0]})


def test_tables__of_three_libraries_are_the_same():
    for table in (FRAME, pl.from_pandas(FRAME), pa.table({"doc": ["a", "b", "b"], "x": [1, 2, 3]})):
        assert is_table(table)
        assert arrow_table(table, "it").to_pydict() == FRAME.to_dict("list")
    assert arrow_table(FRAME.set_index("doc"), "it", index="doc").column_names == ["doc", "x"]
    assert arrow_table(FRAME.set_index("doc"), "it").column_names == ["x"]
    assert not is_table(["a.csv"])


def test_table__of_what_arrow_cannot_hold_is_refused():
    frame = pd.DataFrame({"x": [1.0, object()]})
    with pytest.raises(StreammimlError, match=r"^it \(DataFrame\) is no table of plain columns: "):
        arrow_table(frame, "it")


@pytest.mark.parametrize(("ids", "sorted_"), [("aabb", True), ("aba", False), ("a", True)])
def test_order__counts_rows_of_a_bag_that_are_apart(ids, sorted_):
    for kind in (pa.string(), pa.string_view()):
        assert is_sorted(pa.table({"doc": pa.array(list(ids), kind)}), "doc") == sorted_
    assert is_sorted(pa.table({"doc": list(ids)}), "bag")
