"""Bags and labels from arrays; ``tests/test_estimator.py`` tests the forms and the messages."""

import subprocess
import sys

import numpy as np
import pytest

from streammiml.bags.from_arrays import LISTS, MATRIX, SPARSE_MATRIX, block_of, in_form, labels_of
from streammiml.errors import StreammimlError


def test_block_of__a_list_of_bags():
    block = block_of([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]])
    assert block.bag_offsets.tolist() == [0, 1, 3]
    assert block.rows_of(1).tolist() == [[3, 4], [5, 6]]


def test_labels_of__forms_come_back_in_form():
    chosen = np.array([[True, False], [True, True]])
    names = labels_of([["b"], ["a", "b"]], None)
    assert (names.form, names.classes.tolist(), names.indices.tolist()) == (
        LISTS,
        ["a", "b"],
        [1, 0, 1],
    )
    assert in_form(LISTS, names.classes, chosen) == [("a",), ("a", "b")]
    assert in_form(MATRIX, names.classes, chosen).tolist() == [[1, 0], [1, 1]]
    assert in_form(SPARSE_MATRIX, names.classes, chosen).toarray().tolist() == [[1, 0], [1, 1]]


def test_labels_of__names_the_estimator_that_lacks_labels():
    with pytest.raises(StreammimlError, match="KISAR requires y to be passed"):
        labels_of(None, None, estimator="KISAR")


def test_import__without_scipy_says_what_to_install():
    code = "import sys; sys.modules['scipy'] = None; import streammiml.bags.from_arrays"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.rstrip().splitlines()[-1]
    assert "StreammimlError: estimators need scikit-learn" in last
    assert last.endswith("pip install 'streammiml[sklearn]'")
