"""Arrow tables and pandas frames hold what the store gives bag by bag."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.bags.tables import pandas_frame, polars_frame
from streammiml.errors import StoreError
from tests.stores import (
    BACKENDS,
    as_sparse,
    assert_equal,
    made_block,
    scratch,
    sizes,
    write_parts,
    write_store,
)
from tests.strategies import corpora, cuttings

NAMES = ("sea", "sky", "sun", "tree")
DTYPES = ["uint8", "int16", "float16", "float32"]


def rows_of(table, record, store):
    """Rows of a record of an Arrow table as a dense array."""
    dtype = np.dtype(store.dtype)
    if "rows" in table.column_names:
        lists = table["rows"][record].as_py()
        return np.array(lists, dtype).reshape(len(lists), store.n_features)
    columns, values = table["columns"][record].as_py(), table["values"][record].as_py()
    out = np.zeros((len(columns), store.n_features), dtype)
    for row, (own_columns, own_values) in enumerate(zip(columns, values, strict=True)):
        out[row, own_columns] = own_values
    return out


def check_table(store, start, stop):
    table, names = store.to_arrow(start, stop), store.label_names
    table.validate(full=True)
    assert table["bag"].to_pylist() == [*range(start, stop)]
    assert table["bag_id"].to_pylist() == store.bag_ids(start, stop)
    assert ("label_names" in table.column_names) == (names is not None)
    assert ("row_labels" in table.column_names) == store.has_row_labels
    for record, number in enumerate(range(start, stop)):
        bag = store[number]
        assert_equal(rows_of(table, record, store), bag.rows, "rows")
        assert table["labels"][record].as_py() == bag.labels.tolist()
        if names is not None:
            assert table["label_names"][record].as_py() == [names[i] for i in bag.labels]
        if store.has_row_labels:
            of_rows = store.read(number, number + 1).row_labels
            assert table["row_labels"][record].as_py() == of_rows.tolist()
    assert table.schema == store.to_arrow(0, 0).schema


def check_frame(store, start, stop):
    pytest.importorskip("pandas")
    frame, names = store.to_pandas(start, stop), store.label_names
    assert list(frame) == store.to_arrow(start, stop).column_names
    assert frame["bag"].tolist() == [*range(start, stop)]
    assert frame["bag_id"].tolist() == store.bag_ids(start, stop)
    for record, number in enumerate(range(start, stop)):
        bag, block = store[number], store.read(number, number + 1)
        if store.sparse:
            of_bag = [block.rows.slice(i, i + 1) for i in range(len(block.rows))]
            for name in ("columns", "values"):
                for got, row in zip(frame[name][record], of_bag, strict=True):
                    assert_equal(got, getattr(row, name), name)
        else:
            assert_equal(frame["rows"][record], bag.rows, "rows")
        assert_equal(frame["labels"][record], bag.labels, "labels")
        if names is not None:
            assert frame["label_names"][record] == [names[i] for i in bag.labels]
        if store.has_row_labels:
            assert_equal(frame["row_labels"][record], block.row_labels, "row_labels")


@given(corpus=corpora(), backend=st.sampled_from(BACKENDS), cut=cuttings(), data=st.data())
def test_tables__hold_each_bag_of_any_store(corpus, backend, cut, data):
    stop = data.draw(st.integers(0, len(corpus.block)))
    start = data.draw(st.integers(0, stop))
    with scratch() as folder, sizes(**cut):
        store = write_parts(folder / f"x.{backend}", corpus.spec, corpus.parts)
        check_table(store, start, stop)
        check_frame(store, start, stop)


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tables__hold_the_bags_of_views_and_of_several_stores(backend, dtype, is_sparse, tmp_path):
    block = made_block(dtype=dtype)
    block = as_sparse(block) if is_sparse else block
    for name in "ab":
        write_store(tmp_path / f"{name}.{backend}", block, label_names=NAMES)
    one = sm.open_store(tmp_path / f"a.{backend}")
    joined = sm.open_store([tmp_path / f"a.{backend}", tmp_path / f"b.{backend}"])
    memory = MemoryBags(block, label_names=list(NAMES))
    for store in (one, joined, memory, joined.view([20, 3, 3, 11]), one.with_label("sky")):
        for bags in ((0, store.n_bags), (1, 3), (2, 2)):
            check_table(store, *bags)
            check_frame(store, *bags)
    assert one.to_arrow() == one.to_arrow(0, 12) == memory.to_arrow()
    assert one.to_arrow(9) == one.to_arrow(9, 12)
    assert joined.to_arrow().num_rows == len(joined.to_pandas()) == 24


def test_table__has_types_and_names_of_parquet_stores(tmp_path):
    dense = write_store(tmp_path / "x.zarr", made_block(), label_names=NAMES)
    schema = dense.to_arrow(0, 2).schema
    row = pa.list_(pa.field("element", pa.float32(), nullable=False), 3)
    assert schema.field("rows").type == pa.large_list(pa.field("element", row, nullable=False))
    assert not any(field.nullable for field in schema)
    assert json.loads(schema.metadata[b"streammiml"]) == {
        "n_features": 3,
        "n_labels": 4,
        "label_names": [*NAMES],
    }
    block = as_sparse(made_block())
    in_parquet = write_store(tmp_path / "x.parquet", block)
    part = pq.read_schema(next(tmp_path.glob("x.parquet/part-*")))
    assert {*part.names} == {*in_parquet.to_arrow(0, 1).schema.names} - {"bag"}


def test_table__can_be_written_and_read_again(tiny, tmp_path):
    store = sm.open_store(tiny.path)
    table = store.to_arrow()
    pq.write_table(table, tmp_path / "table.parquet")
    assert pq.read_table(tmp_path / "table.parquet").to_pylist() == table.to_pylist()


def test_table__shares_the_memory_of_rows():
    block = made_block()
    values = MemoryBags(block).to_arrow()["rows"].chunk(0).flatten().flatten()
    assert np.shares_memory(values.to_numpy(), block.rows)


def test_table__takes_rows_in_any_memory_order():
    block = made_block()
    for rows in (np.asfortranarray(block.rows), block.rows[:, ::-1], block.rows.astype(">f4")):
        check_table(MemoryBags(replace(block, rows=rows)), 0, 12)


def test_frame__arrays_of_equal_shapes_stay_apart():
    pytest.importorskip("pandas")
    bags = [np.full((2, 3), i, np.float32) for i in range(4)]
    frame = MemoryBags(BagBlock.from_bags(bags, [[0]] * 4)).to_pandas()
    assert [cell.shape for cell in frame["rows"]] == [(2, 3)] * 4
    assert frame["labels"][2].tolist() == [0]


@pytest.mark.parametrize("method", ["to_arrow", "to_pandas"])
@pytest.mark.parametrize("bags", [(0, 13), (-1, 3), (5, 4), (13,)])
def test_tables__bad_ranges_are_refused(tiny, method, bags):
    store = sm.open_store(tiny.path)
    for any_store in (store, store.view(slice(None))):
        with pytest.raises(StoreError, match=r"has bags 0 to 12, requested -?\d+ to \d+"):
            getattr(any_store, method)(*bags)
    with pytest.raises(StoreError, match=r"numbers of bags must be integers, got float64"):
        getattr(store, method)(0.5)


def test_frame__without_pandas_one_line_says_what_to_install(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(sm.StreammimlError, match=r"^to_pandas needs pandas: pip install pandas$"):
        sm.open_store(tiny.path).to_pandas()


def test_arrow__is_not_loaded_before_it_is_needed(tmp_path):
    write_store(tmp_path / "x.zarr", made_block())
    code = (
        "import sys, streammiml as sm; store = sm.open_store('x.zarr'); store[0:3]; "
        "print({'pyarrow', 'pandas'} & {*sys.modules}); store.to_arrow(); "
        "print('pyarrow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:2] == ["set()", "True"], done.stderr


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames__any_arrow_table_becomes_one(package, monkeypatch):
    pytest.importorskip(package)
    make = {"pandas": pandas_frame, "polars": polars_frame}[package]
    frame = make(pa.table({"a": [1, 2], "b": [[1.5], []]}))
    assert type(frame).__module__.startswith(package)
    assert list(frame["a"]) == [1, 2]
    assert [list(cell) for cell in frame["b"]] == [[1.5], []]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        sm.StreammimlError, match=f"^to_{package} needs {package}: pip install {package}$"
    ):
        make(pa.table({"a": [1]}))
