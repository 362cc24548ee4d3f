"""sm.convert: tables of three libraries and paths, with labels in every form."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import streammiml as sm
from streammiml.errors import StoreError, StreammimlError
from streammiml_tools.readers.base import SourceError
from tests.tools.source_files import bags_of

RNG = np.random.default_rng(4)
FRAME = pd.DataFrame(
    {
        "doc_id": ["a", "a", "b", "c", "c", "c"],
        "x": RNG.standard_normal(6).astype(np.float32),
        "y": RNG.standard_normal(6).astype(np.float32),
        "topics": ["sport", "sport", "", "sport;news", "sport;news", "sport;news"],
    }
)
ROWS = FRAME[["x", "y"]].to_numpy()
WANT = [
    ("a", (1,), ROWS[:2].tobytes(), None),
    ("b", (), ROWS[2:3].tobytes(), None),
    ("c", (0, 1), ROWS[3:].tobytes(), None),
]
LABELS = pd.DataFrame({"doc_id": ["c", "b", "a", "d"], "news": [1, 0, 0, 1], "sport": [1, 0, 1, 0]})
KINDS = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_table__with_labels_in_a_column_or_a_second_table(tmp_path, kind):
    table, labels = KINDS[kind](FRAME), KINDS[kind](LABELS)
    done = sm.convert(table, tmp_path / "a.zarr", bag="doc_id", labels="topics")
    assert list(bags_of(done.store)) == WANT
    plain = KINDS[kind](FRAME[["doc_id", "x", "y"]])
    store = sm.convert(plain, tmp_path / "b.zarr", bag="doc_id", labels=labels).store
    assert list(bags_of(store)) == WANT
    assert store.label_names == ["news", "sport"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "b.zarr"]


def test_table__in_any_order_gives_bags_whole(tmp_path):
    shuffled = FRAME.iloc[[3, 0, 2, 4, 1, 5]]
    store = sm.convert(shuffled, tmp_path / "a.zarr", bag="doc_id", labels="topics").store
    assert {bag[0]: bag for bag in bags_of(store)} == {bag[0]: bag for bag in WANT}


def test_table__with_lists_and_an_index(tmp_path):
    frame = pd.DataFrame({"doc_id": FRAME.doc_id, "embedding": list(ROWS)})
    labels = pd.DataFrame(
        {"topics": [["sport"], [], ["news", "sport"]]},
        index=pd.Index(["a", "b", "c"], name="doc_id"),
    )
    store = sm.convert(frame, tmp_path / "a.zarr", bag="doc_id", labels=labels).store
    assert list(bags_of(store)) == WANT
    other = sm.convert(
        frame, tmp_path / "b.zarr", bag="doc_id", labels="none", dtype="float16", seed=3
    ).store
    assert (other.dtype, other.n_labels) == ("float16", 0)


def test_paths__with_a_table_of_labels(tmp_path):
    FRAME.drop(columns="topics").to_csv(tmp_path / "d.csv", index=False)
    LABELS.to_csv(tmp_path / "l.csv", index=False)
    for number, labels in enumerate((LABELS, tmp_path / "l.csv", str(tmp_path / "l.csv"))):
        out = tmp_path / f"{number}.zarr"
        store = sm.convert(tmp_path / "d.csv", out, bag="doc_id", labels=labels).store
        assert [bag[:2] for bag in bags_of(store)] == [bag[:2] for bag in WANT]
    split = sm.convert(
        [tmp_path / "d.csv"],
        tmp_path / "s.zarr",
        bag="doc_id",
        labels=LABELS,
        split="a=.5,b=.5",
        seed=2,
    )
    assert sum(store.n_bags for store in split.stores) == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, r"which column of the table names the bag of a row\? give bag='…'; the columns are d"),
        ({"bag": "slide"}, r"^the table: no column is called 'slide' \(--bag-column\)"),
        ({"bag": "x"}, r"^the table, record 0: ids in 'x' are float, expected text or numbers"),
        ({"bag": "doc_id", "labels": "tags"}, r"^the table: no column is called 'tags'"),
        (
            {"bag": "doc_id", "colour": 1},
            r"no option is called 'colour'; known: chunk_bytes, codec",
        ),
        (
            {"bag": "doc_id", "labels": LABELS[:2]},
            r"^the table: bag 'a' not in the table of labels, column 'doc_id', whose ids are like",
        ),
        ({"bag": "doc_id", "labels": LABELS[:0]}, r"the table of labels has no rows"),
        (
            {"bag": "doc_id", "labels": LABELS.iloc[[0, 0, 1, 2]]},
            r"^the table of labels: bag 'c' stands twice in column 'doc_id'; keep one line",
        ),
    ],
)
def test_tables__that_cannot_be_meant_are_refused_and_leave_nothing(tmp_path, how, message):
    with pytest.raises(StreammimlError, match=message):
        sm.convert(FRAME, tmp_path / "a.zarr", **how)
    assert not any(tmp_path.iterdir())


def test_table__of_what_arrow_cannot_hold_is_refused(tmp_path):
    frame = pd.DataFrame({"doc_id": ["a", "b"], "x": [1.0, object()]})
    with pytest.raises(
        StreammimlError, match=r"the table \(DataFrame\) is no table of plain columns"
    ):
        sm.convert(frame, tmp_path / "a.zarr", bag="doc_id", labels="none")


def test_stopped_conversion__of_a_table_begins_anew(tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sm.convert(FRAME, tmp_path / "a.zarr", bag="doc_id", labels="topics", watch=stop)
    assert not any(tmp_path.iterdir())
    assert sm.convert(FRAME, tmp_path / "a.zarr", bag="doc_id", labels="topics").store.n_bags == 3


def test_conversion_of_files__that_was_stopped_is_kept(tmp_path):
    FRAME.to_csv(tmp_path / "d.csv", index=False)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sm.convert(
            tmp_path / "d.csv", tmp_path / "a.zarr", bag="doc_id", labels="topics", watch=stop
        )
    with pytest.raises(StoreError, match="cannot be resumed"):
        sm.convert(FRAME, tmp_path / "a.zarr", bag="doc_id", labels="topics")
    store = sm.convert(tmp_path / "d.csv", tmp_path / "a.zarr", bag="doc_id", labels="topics").store
    assert list(bags_of(store)) == WANT


def test_rows__that_are_not_finite_are_named_in_the_table(tmp_path):
    frame = FRAME.assign(x=[0, 1, np.nan, 3, 4, 5])
    with pytest.raises(SourceError, match=r"^the table, record 2: .*'x' is n"):
        sm.convert(frame, tmp_path / "a.zarr", bag="doc_id", labels="topics")
