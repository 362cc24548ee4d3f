"""Which kept columns say where rows lie."""

from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.coordinates import coordinate_columns, places_of, where
from streammiml.bags.kept_columns import as_texts
from streammiml.bags.memory import MemoryBags
from streammiml.errors import StoreError
from tests.stores import made_block

BLOCK = made_block(6)
ROWS = np.arange(BLOCK.n_rows)
PAIRS = np.column_stack([ROWS, ROWS * 2.5])
VALUES = {
    "coords": PAIRS,
    "span": PAIRS,
    "x": ROWS,
    "y": ROWS,
    "time": ROWS,
    "times": ROWS,
    "note": as_texts(map(str, ROWS)),
    "rgb": np.column_stack([ROWS, ROWS, ROWS]),
}


def bags(names):
    kept = {name: VALUES[name] for name in names.split()}
    return MemoryBags(replace(BLOCK, kept=kept), n_labels=4)


@pytest.mark.parametrize(
    ("kept", "chosen"),
    [
        ("coords span x y time", "coords"),
        ("span x y time", "span"),
        ("rgb x y time", "x y"),
        ("x time note", "time"),
        ("time times", ""),
        ("rgb note x", ""),
        ("", ""),
    ],
)
def test_coordinate_columns__by_default_are_what_a_slide_or_a_recording_has(kept, chosen):
    columns = coordinate_columns(bags(kept), None)
    assert [column.name for column in columns] == chosen.split()


def test_coordinate_columns__are_those_that_are_named():
    store = bags("coords span x y time")
    for option, names in (("span", ["span"]), ("y, x", ["y", "x"]), ("time", ["time"])):
        assert [column.name for column in coordinate_columns(store, option)] == names
    assert coordinate_columns(store, "none") == ()


@pytest.mark.parametrize("option", ["rgb", "note", "z", "x,coords", "x,y,time", ""])
def test_coordinate_columns__refuse_what_does_not_place_a_row(option):
    store = bags("coords x y time note rgb")
    with pytest.raises(StoreError, match=f"and not '{option}': .* keeps coords \\(2 float64\\), "):
        coordinate_columns(store, option)


def test_places_of__joins_columns_in_the_order_given():
    store = bags("x time")
    columns = coordinate_columns(store, "time,x")
    block = store.read(2, 4)
    np.testing.assert_array_equal(
        places_of(columns, block.kept), np.column_stack([block.kept["time"], block.kept["x"]])
    )
    assert where(columns, block, 1) == f"time {block.kept['time'][1]}; x {block.kept['x'][1]}"
