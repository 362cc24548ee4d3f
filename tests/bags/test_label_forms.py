"""Labels in memory: every form gives the same numbers, and ambiguous ones are refused."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from streammiml.bags.label_forms import number_labels
from streammiml.errors import StreammimlError


def lists_of(numbered):
    offsets, indices = numbered.offsets, numbered.indices
    return [indices[a:b].tolist() for a, b in pairwise(offsets)]


@given(
    matrix=arrays(
        np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.integers(0, 1)
    )
)
def test_matrices_names_and_numbers__give_the_same(matrix):
    n_bags, n_labels = matrix.shape
    names = [f"l{i}" for i in range(n_labels)]
    want = [np.flatnonzero(row).tolist() for row in matrix]
    forms = [matrix, matrix.astype(bool), matrix.astype(float), sparse.csr_matrix(matrix)]
    forms += [sparse.coo_array(matrix), pd.DataFrame(matrix, columns=names)]
    forms += [[[names[i] for i in own] for own in want]]
    for form in forms:
        assert lists_of(number_labels(form, n_bags, names)) == want
    assert number_labels(forms[5], n_bags).names == tuple(names)
    assert number_labels(matrix, n_bags).n_labels == n_labels


def test_lists__of_names_or_numbers():
    numbered = number_labels([["sky"], [], {"sea", "sky"}, "moon"], 4)
    assert numbered.names == ("moon", "sea", "sky")
    assert lists_of(numbered) == [[2], [], [1, 2], [0]]
    numbered = number_labels([[3], np.array([1, 0]), (2,), 5], 4)
    assert (numbered.names, numbered.n_labels) == (None, None)
    assert lists_of(numbered) == [[3], [0, 1], [2], [5]]
    assert lists_of(number_labels([1, 0, 1], 3)) == [[1], [0], [1]]
    assert lists_of(number_labels([[1], [0], [1]], 3, ["a", "b"])) == [[1], [0], [1]]
    assert lists_of(number_labels([[1, 0], [0, 1]], 2, ["a", "b", "c"])) == [[0, 1], [0, 1]]
    assert lists_of(number_labels([[2, 0]], 1, ["a", "b", "c"])) == [[0, 2]]
    assert number_labels(None, 2).n_labels == 0


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        (
            [[0, 1], [1, 0]],
            None,
            r"rows of an indicator matrix, or numbers of labels\? an indicato",
        ),
        (
            [[0, 0, 1], [1, 0, 1]],
            None,
            r"an indicator matrix must be an array: np\.array\(labels\)",
        ),
        (
            [[1, 1], [2]],
            None,
            r"bag 0 has a label twice: \[1, 1\]; an indicator matrix must be an a",
        ),
        (
            [[True], [False]],
            None,
            r"bag 0 has the label True; labels are names or whole numbers, an",
        ),
        ([[0.5], [1]], None, r"bag 0 has the label 0\.5; labels are names or whole"),
        (
            [["a"], [1]],
            None,
            r"labels are both names, such as 'a', and numbers, such as 1; give one",
        ),
        ([[-1], [1]], None, r"label -1 is outside of the numbers 0$"),
        ([[3], [1]], ["a", "b"], r"label 3 is outside of the numbers 0 to 1"),
        ([["c"], ["a"]], ["a", "b"], r"the label 'c' is not among the label_names"),
        ([None, ["a"]], None, r"the labels of bag 0 are NoneType; give a list of names or numbers"),
        ([["a"]], None, r"2 bags, but labels for 1"),
        (
            np.array([[0, 2], [1, 1]]),
            None,
            r"a matrix that holds 2, expected 0 and 1; give numbers",
        ),
        (
            np.array([["a", "b"]] * 2),
            None,
            r"labels are a matrix of <U1, expected 0 and 1; give na",
        ),
        (np.zeros((3, 2)), None, r"2 bags, but labels for 3"),
        (np.zeros((2, 2)), ["a"], r"labels have 2 columns for 1 label names"),
        (pd.DataFrame({"a": [0, 1]}), ["b"], r"label_names differ from the columns of labels"),
        ([[0], [1]], None, r"rows of an indicator matrix, or numbers of labels\? an indicator"),
        ([np.array([1]), [0]], ["a"], r"rows of an indicator matrix, or numbers of labels\? an"),
        (
            {"a": ["x"], "b": ["y"]},
            None,
            r"labels are a dict, expected the labels of each bag in the order of the bags: \[lab",
        ),
        ({"x", "y"}, None, r"labels are a set, expected the labels of each bag in the order of"),
        ("xy", None, r"labels are a str, expected the labels of each bag in the order of the bag"),
        ([[2**40], [1]], None, r"label 1099511627776 is more than a label number may be"),
    ],
)
def test_labels__that_cannot_be_meant_are_refused(labels, names, message):
    with pytest.raises(StreammimlError, match=message):
        number_labels(labels, 2, names)


def test_tables_with_an_index__follow_the_ids():
    frame = pd.DataFrame({"x": [1, 0, 0], "y": [0, 1, 0]}, index=["b", "c", "a"])
    assert lists_of(number_labels(frame, 3, ids=["a", "b", "c"])) == [[], [0], [1]]
    series = pd.Series([["x"], ["y"], []], index=[7, 5, 6])
    assert lists_of(number_labels(series, 3, ids=["5", "6", "7"])) == [[1], [], [0]]
    plain = frame.reset_index(drop=True)
    assert lists_of(number_labels(plain, 3)) == [[0], [1], []]
    assert lists_of(number_labels(plain, 3, ids=["a", "b", "c"])) == [[0], [1], []]


@pytest.mark.parametrize(
    ("index", "ids", "message"),
    [
        (
            ["b", "a"],
            None,
            r"labels have an index, 'b' first; give ids, by which it is ordered, or",
        ),
        ([1, 0], None, r"labels have an index, '1' first; give ids, by which it is ordered, or"),
        (
            ["b", "x"],
            ["a", "b"],
            r"the index of labels differs from ids: it lacks 'a'; give labels",
        ),
        (["b", "b"], ["a", "b"], r"the index of labels names 'b' twice"),
        ([0, 2], None, r"labels\.reset_index\(drop=True\)"),
    ],
)
def test_index__that_is_not_that_of_the_ids_is_refused(index, ids, message):
    for labels in (pd.DataFrame({"x": [1, 0]}, index=index), pd.Series([["x"], []], index=index)):
        with pytest.raises(StreammimlError, match=message):
            number_labels(labels, 2, ids=ids)
