"""Labels by name and by number."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.labelling import (
    Labelling,
    label_numbers_of,
    labelling_of,
    labels_of_marks,
    numbered_names,
)

SEA = ("sea", "sky", "sun")


def test_labelling_of__numbers_stay_names_are_sorted_and_the_user_decides():
    assert labelling_of(["3", "0"], SourceOptions()) == Labelling(None)
    assert labelling_of(["b", "a", "3"], SourceOptions()).names == ("3", "a", "b")
    assert labelling_of(["b", "a"], SourceOptions(labels=("b", "a"))).names == ("b", "a")


@pytest.mark.parametrize("label", ["-1", "+1", "1.5", "-.5e3", -1])
def test_labelling_of__numbers_that_are_no_places_are_refused(label):
    match = f"a.csv: label '{re.escape(str(label))}' is a number, but labels are counted 0, 1, 2"
    with pytest.raises(SourceError, match=match):
        labelling_of([label, "1"], SourceOptions(), "a.csv")
    assert labelling_of([label], SourceOptions(labels=("-1", "a"))).names == ("-1", "a")


def test_indices__names_or_numbers():
    assert Labelling(SEA).indices(["sun", "sea"], "a") == [0, 2]
    assert Labelling(SEA).indices(["2", 0], "a") == [0, 2]
    assert Labelling(None).indices(["11", "2"], "a") == [2, 11]
    assert Labelling(("7", "5")).indices(["5"], "a") == [1]


@pytest.mark.parametrize(
    ("labelling", "label", "match"),
    [
        (Labelling(SEA), "moon", r"a.csv, line 3: label 'moon' is not known; known: sea, sky, sun"),
        (Labelling(SEA), "3", r"label '3' is not known; .*add it to --labels"),
        (Labelling(("7", "5")), "0", r"label '0' is not known; known: 7, 5"),
        (Labelling(None), "-1", r"label '-1' is not among the numbers 0; list all labels"),
        (Labelling(None), "1.5", r"label '1.5' is not among the numbers 0"),
        (Labelling(None), True, r"label True is not among the numbers 0"),
        (Labelling(None, 3), "3", r"label '3' is not among the numbers 0 to 2"),
        (Labelling(tuple(f"l{i}" for i in range(50))), "x", r"l11, … \(50 in all\)"),
    ],
)
def test_index__what_is_unknown_is_refused(labelling, label, match):
    with pytest.raises(SourceError, match=match):
        labelling.index(label, "a.csv, line 3")


def test_indices__a_label_twice_is_refused():
    with pytest.raises(SourceError, match="bag 3: label 'sky' occurs twice; remove one"):
        Labelling(SEA).indices(["sky", "1"], "bag 3")


def test_label_numbers_of__columns_go_by_name():
    options = SourceOptions(labels=("sun", "moon", "sea"))
    assert label_numbers_of(["sea", "sun"], options, "a").tolist() == [2, 0]
    with pytest.raises(SourceError, match="a: label 'sky' is not known; known: sun, moon, sea"):
        label_numbers_of(["sky"], options, "a")
    with pytest.raises(SourceError, match="a: two labels are called 'sky'; rename one"):
        label_numbers_of(["sky", "sun", "sky"], options, "a")


def test_numbered_names__must_be_as_many_as_there_are_columns():
    assert numbered_names(3, SourceOptions(labels=SEA), "a") == SEA
    with pytest.raises(SourceError, match="a: 2 label columns, but --labels gives 3 names"):
        numbered_names(2, SourceOptions(labels=SEA), "a")


@given(
    marks=st.integers(0, 4).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=5)
    ),
    off=st.sampled_from([0, -1]),
    data=st.data(),
)
def test_labels_of_marks__either_way_of_marking_and_any_order_of_columns(marks, off, data):
    n_columns = len(marks[0])
    places = np.array(data.draw(st.permutations(range(n_columns))), np.int64)
    matrix = np.where(np.array(marks, bool).reshape(len(marks), n_columns), 1, off)
    offsets, labels = labels_of_marks(matrix, "a", places)
    for bag, row in enumerate(marks):
        want = sorted(int(places[i]) for i, on in enumerate(row) if on)
        assert labels[offsets[bag] : offsets[bag + 1]].tolist() == want


@pytest.mark.parametrize(
    ("marks", "match"),
    [
        (
            [[0, 1], [1, 2]],
            r"a, bag 1: the mark of label 1 is 2 \(1 such marks\), expected 0 and 1",
        ),
        ([[0, 1], [0, -1]], r"bag 1: the mark of label 1 is -1"),
        ([[0, np.nan]], r"bag 0: the mark of label 1 is nan"),
        ([[-1, -1, 0]], r"bag 0: the mark of label 2 is 0"),
    ],
)
def test_labels_of_marks__other_values_are_refused(marks, match):
    with pytest.raises(SourceError, match=match):
        labels_of_marks(np.array(marks), "a")


def test_labelling_of__numbers_among_names_are_refused():
    with pytest.raises(
        SourceError, match=r"given by number \(0\) and by name \('cat'\); give --lab"
    ):
        labelling_of(["cat", 0], SourceOptions())
    assert labelling_of(["cat", 0], SourceOptions(labels=("dog", "cat"))).index(0, "") == 0
