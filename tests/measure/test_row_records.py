import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.errors import StreammimlError
from streammiml.measure.row_records import (
    ENTRY_BYTES,
    RowEntries,
    highest_rows,
    name_array,
    row_entries,
    row_table,
    rows_at_once,
)
from streammiml.scorer import RowScorer
from tests.measure.models import made_model
from tests.stores import made_block

MODEL, BLOCK = made_model(), made_block(9)


def tuples(entries):
    """Entries as (bag, row, column, score, subconcept)."""
    return list(zip(*(array.tolist() for array in entries), strict=True))


def scored(**options):
    options = {"n_bytes": 1 << 20, "name": "x", **options}
    scorer = RowScorer(MODEL, [3, 0, 2])
    return [tuples(entries) for entries in row_entries(BLOCK, scorer, **options)]


def plainly(wanted=None, top=None):
    """The same by loops over bags, rows and labels."""
    ((_, scores),) = RowScorer(MODEL, [3, 0, 2]).scores(BLOCK, 1000)
    entries = []
    for bag in range(len(BLOCK)):
        first, last = BLOCK.bag_offsets[bag : bag + 2].tolist()
        columns = [c for c in range(3) if wanted is None or wanted[bag, c]]
        own = [
            (bag, i - first, c, float(scores.value[i, c]), int(scores.subconcept[i, c]))
            for i in range(first, last)
            for c in columns
        ]
        if top is not None:
            best = [
                sorted((e for e in own if e[2] == c), key=lambda e: (-e[3], e[1])) for c in columns
            ]
            own = [entry for of_label in best for entry in of_label[:top]]
        entries += own
    return entries


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 30),
    top=st.none() | st.integers(1, 5),
    seed=st.none() | st.integers(0, 99),
)
def test_row_entries__are_those_of_plain_loops_in_any_slices(rows, top, seed):
    wanted = None if seed is None else np.random.default_rng(seed).random((9, 3)) < 0.5
    slices = scored(wanted=wanted, top=top, n_bytes=rows * ENTRY_BYTES * 4)
    assert [entry for part in slices for entry in part] == plainly(wanted, top)


def test_row_entries__take_as_many_rows_as_fit():
    assert rows_at_once(3, 10 * 4 * ENTRY_BYTES) == 10
    assert rows_at_once(1000, 1) == 1
    assert [len(part) for part in scored(n_bytes=5 * 4 * ENTRY_BYTES)][:-1] == [15] * (
        (BLOCK.n_rows - 1) // 5
    )


@given(
    scores=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(-2, 2))),
    top=st.integers(1, 4),
)
def test_highest_rows__ties_go_to_the_lowest_row(scores, top):
    numbers = np.array(scores, int).reshape(-1, 3)
    rows = np.arange(len(numbers))[::-1].copy()
    nothing = np.zeros(len(rows), np.int32)
    entries = RowEntries(
        numbers[:, 0], rows, numbers[:, 1], numbers[:, 2].astype(np.float32), nothing
    )
    ordered = sorted(tuples(entries), key=lambda e: (e[0], e[2], -e[3], e[1]))
    want = [
        entry
        for i, entry in enumerate(ordered)
        if sum((e[0], e[2]) == (entry[0], entry[2]) for e in ordered[:i]) < top
    ]
    assert tuples(highest_rows(entries, top)) == want


def test_row_entries__names_the_row_whose_score_is_no_number():
    block = made_block(9)
    block.rows[block.bag_offsets[4] + 1] = 3e38
    message = "^x: row 1 of bag 104 has a score that is not a finite number: its values are not"
    with pytest.raises(StreammimlError, match=message):
        list(row_entries(block, RowScorer(MODEL, [0]), n_bytes=1000, first=100, name="x"))


def test_row_table__has_a_record_for_each_entry():
    labels = np.array([3, 0], np.int32)
    entries = RowEntries(
        np.array([0, 1]),
        np.array([4, 0]),
        np.array([1, 0]),
        np.array([0.5, 0.25], np.float32),
        np.array([1, 0], np.int32),
    )
    dummy = np.array([0.5, 0.0], np.float32)
    names = name_array(("a", "b", "c", "d"), labels)
    about = {"first": 7, "labels": labels, "dummy": dummy}
    table = row_table(entries, ids=["x", "y"], names=names, **about)
    assert table.to_pylist() == [
        {"bag": 7, "bag_id": "x", "row": 4, "label": 0, "label_name": "a", "score": 0.5}
        | {"subconcept": 1, "above_dummy": False},
        {"bag": 8, "bag_id": "y", "row": 0, "label": 3, "label_name": "d", "score": 0.25}
        | {"subconcept": 0, "above_dummy": True},
    ]
    nameless = row_table(entries, ids=np.array([7, 8]), names=name_array(None, labels), **about)
    assert nameless["bag_id"].to_pylist() == ["7", "8"]
    assert nameless["label_name"].to_pylist() == [None, None]
    assert nameless.schema == table.schema
