"""Roles of columns: by common names, by options, and refusals of what is ambiguous."""

from pathlib import Path

import pytest

from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.column_roles import (
    bag_column,
    called,
    chosen,
    is_number_text,
    label_columns,
    looks_like_labels,
    mark_names,
    row_label_column,
)

PATH = Path("a.csv")
NAMES = ("Bag", "f1", "f2", "label_sky", "label_sea", "row_label")


@pytest.mark.parametrize(
    ("cell", "is_number"),
    [("1", True), (" -2.5e3 ", True), ("nan", True), ("1_000", False), ("", False), ("x", False)],
)
def test_is_number_text__follows_python_but_for_underscores(cell, is_number):
    assert is_number_text(cell) is is_number


def test_chosen__takes_names_before_patterns_each_once_in_the_order_given():
    assert chosen(PATH, NAMES, ["f2", "f*"], "--feature-columns") == (2, 1)
    assert chosen(PATH, ("f*", "f1"), ["f*"], "--feature-columns") == (0,)
    with pytest.raises(
        SourceError, match=r"a\.csv: no column is called 'g' \(--bag-column\); the columns are"
    ):
        chosen(PATH, NAMES, ["g"], "--bag-column")


def test_called__ignores_case():
    assert called(NAMES, ("bag", "f2")) == [0, 2]


def test_bag_column__by_name_by_option_or_refused():
    assert bag_column(PATH, NAMES, SourceOptions(), header=True) == 0
    assert bag_column(PATH, NAMES, SourceOptions(bag_column="f2"), header=True) == 2
    with pytest.raises(SourceError, match="columns 'bag' and 'id' may both name the bag"):
        bag_column(PATH, ("bag", "id"), SourceOptions(), header=True)
    with pytest.raises(SourceError, match=r"which column names the bag .*called by their number"):
        bag_column(PATH, ("1", "2"), SourceOptions(), header=False)


def test_row_label_column__by_name_by_option_none_or_refused():
    assert row_label_column(PATH, NAMES, SourceOptions()) == 5
    assert row_label_column(PATH, NAMES[:3], SourceOptions()) is None
    assert row_label_column(PATH, NAMES, SourceOptions(label_columns=("none",))) is None
    assert row_label_column(PATH, NAMES, SourceOptions(row_label_column="f1")) == 1
    with pytest.raises(SourceError, match="may both label rows; give --row-label-column"):
        row_label_column(PATH, ("row_label", "instance_label"), SourceOptions())


def test_label_columns__marks_or_a_list_or_neither():
    assert label_columns(PATH, NAMES, [], SourceOptions(), {0, 5}) == ((3, 4), None)
    assert label_columns(PATH, ("bag", "tags"), [], SourceOptions(), {0}) == ((), 1)
    none = SourceOptions(label_columns=("none",))
    assert label_columns(PATH, NAMES, [], none, {0}) == ((), None)
    one = SourceOptions(label_columns=("f1",))
    sample = [["x", "0", "2", "0", "0", ""], ["x", "1", "2", "0", "0", ""]]
    assert label_columns(PATH, NAMES, sample, one, {0}) == ((1,), None)
    sample[0][1] = "a;b"
    assert label_columns(PATH, NAMES, sample, one, {0}) == ((), 1)


def test_label_columns__refuses_two_kinds_and_none_at_all():
    with pytest.raises(SourceError, match="'labels' and 'label_a' may both hold labels"):
        label_columns(PATH, ("labels", "label_a"), [], SourceOptions(), set())
    with pytest.raises(SourceError, match="which columns hold labels"):
        label_columns(PATH, ("bag", "f1"), [], SourceOptions(), {0})


def test_names_of_labels__are_recognised_and_lose_their_prefix():
    assert looks_like_labels("Label_sky")
    assert looks_like_labels("row_labels")
    assert not looks_like_labels("sky")
    assert mark_names(["label_sky", "label:sea", "target7"]) == ("sky", "sea", "7")
    assert mark_names(["label_sky", "sea"]) == ("label_sky", "sea")
