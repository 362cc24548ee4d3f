"""Numbers from text: the float32 of what is written, or left to a slower parser."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streammiml_tools.readers.number_lists import rows_in

DIGITS = st.text("0123456789", min_size=1, max_size=20)


@st.composite
def numbers(draw):
    """Numbers as JSON writes them, and some that it does not allow."""
    kind = draw(st.sampled_from(["f32", "f64", "int", "digits"]))
    if kind == "f32":
        return str(np.float32(draw(st.floats(width=32, allow_nan=False, allow_infinity=False))))
    if kind == "f64":
        return repr(draw(st.floats(allow_nan=False, allow_infinity=False)))
    if kind == "int":
        return str(draw(st.integers(-(10**20), 10**20)))
    text = draw(st.sampled_from(["", "-", "+"])) + draw(DIGITS)
    if draw(st.booleans()):
        text += "." + draw(st.one_of(DIGITS, st.just("")))
    if draw(st.booleans()):
        text += draw(st.sampled_from(["e", "E", "e+", "e-"])) + draw(
            st.text("0123456789", max_size=3)
        )
    return text


SPACE = st.sampled_from(["", "", " ", "\t", "  "])


@given(st.lists(st.tuples(SPACE, numbers(), SPACE), min_size=1, max_size=4), st.integers(1, 3))
@example([("", "16777217", "")], 1)
@example([("", "1.00000005960464477", "")], 1)
@example([("", "1.0000000596046448", "")], 1)
@example([("", "-0.0", "")], 1)
@example([("", "1e-45", "")], 1)
@example([("", "007", "")], 1)
def test_rows_in__gives_the_float32_of_what_is_written_or_nothing(cells, n_rows):
    row = ",".join(before + number + after for before, number, after in cells)
    text = f"[[{row}]" + f" , [{row}]" * (n_rows - 1) + "], more"
    values = np.empty(len(cells) * n_rows)
    end, n_read = rows_in(text.encode(), 0, len(cells), values)
    if end < 0:
        return
    assert n_read == n_rows
    assert text[end:] == ", more"
    want = np.array(json.loads(text[:end]), float).astype(np.float32)
    assert values.astype(np.float32).tobytes() == want.tobytes()


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)
)
def test_rows_in__takes_all_that_float32_writes_but_the_smallest(row):
    """Otherwise nothing would be gained: what is common must not be left to others."""
    row = np.array([value for value in row if value == 0 or abs(value) > 1e-30], np.float32)
    row = np.abs(row) if not row.all() else row
    if not len(row):
        return
    text = "[[" + ", ".join(map(str, row)) + "]]"
    values = np.empty(len(row))
    assert rows_in(text.encode(), 0, len(row), values) == (len(text), 1)
    np.testing.assert_array_equal(values.astype(np.float32), row)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[[",
        "[]",
        "[[]]",
        "[[1]",
        "[[1],",
        "[[1],]",
        "[[1,]]",
        "[[,1]]",
        "[[1 2]]",
        "[[1],[2,3]]",
        "[[1,2]]",
        '[["1"]]',
        "[[true]]",
        "[[null]]",
        "[[NaN]]",
        "[[1.]]",
        "[[.5]]",
        "[[+1]]",
        "[[01]]",
        "[[1e]]",
        "[[1e+]]",
        "[[-]]",
        "[[1e99]]",
        "[[[1]]]",
        "{}",
        " [[1]]",
    ],
)
def test_rows_in__leaves_all_else_alone(text):
    assert rows_in(text.encode(), 0, 1, np.empty(4))[0] == -1
