"""Bags of every form that scoring takes become the block that arrays give."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.given_bags import given_block
from streammiml.bags.memory import MemoryBags
from streammiml.errors import StreammimlError
from tests.stores import assert_same, made_block, plain

BLOCK = plain(made_block(5))
ARRAYS = [BLOCK.rows_of(bag) for bag in range(len(BLOCK))]
WANT = given_block(ARRAYS)
COLUMNS = ["r", "g", "b"]
FRAMES = [pd.DataFrame(array, columns=COLUMNS, index=range(7, 7 + len(array))) for array in ARRAYS]
FORMS = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "batches": lambda frame: pa.RecordBatch.from_pandas(frame, preserve_index=False),
}


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_given_block__tables_are_arrays_whose_columns_are_matched_by_name(make):
    assert_same(given_block([make(frame) for frame in FRAMES]), WANT)
    others = [frame[[*COLUMNS[::-1]]] if bag else frame for bag, frame in enumerate(FRAMES)]
    assert_same(given_block([make(frame) for frame in others]), WANT)
    assert_same(given_block(make(FRAMES[2])), given_block([ARRAYS[2]]))


def test_given_block__takes_bags_of_a_store():
    bags = MemoryBags(BLOCK, n_labels=4)
    assert_same(given_block(bags[:]), WANT)
    assert_same(given_block(bags[2]), given_block([ARRAYS[2]]))


def test_given_block__tables_of_whole_numbers_truths_and_python_numbers():
    frame = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": np.array([1, 2.5], object)})
    block = given_block([frame])
    assert block.rows.tolist() == [[1, 1, 1], [2, 0, 2.5]]
    assert block.rows.dtype == np.float32
    counts = given_block(
        pd.DataFrame({7: np.array([1, 2], np.uint8), 8: np.array([3, 4], np.uint8)})
    )
    assert counts.rows.tolist() == [[1, 3], [2, 4]]
    assert counts.rows.dtype == np.uint8


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array])
def test_given_block__sparse_matrices_keep_their_zeros_out(form):
    bags = [form(array) for array in ARRAYS]
    block = given_block(bags)
    assert isinstance(block.rows, SparseRows)
    assert block.rows.dense().tobytes() == BLOCK.rows.tobytes()
    np.testing.assert_array_equal(block.bag_offsets, BLOCK.bag_offsets)
    one = given_block(bags[1])
    assert (len(one), one.n_rows) == (1, len(ARRAYS[1]))


def test_given_block__an_array_of_two_dimensions_is_one_bag():
    array = np.arange(12.0).reshape(4, 3)
    one = given_block(array)
    assert (len(one), one.n_rows) == (1, 4)
    assert len(given_block(array[:, None])) == 4


def test_given_block__blocks_stay_and_no_bags_are_none():
    assert given_block(BLOCK) is BLOCK
    assert len(given_block([])) == 0
    assert len(given_block(np.empty((0, 2, 3)))) == 0


EMPTY = BagBlock(np.array([0, 2, 2]), np.ones((2, 3)), np.zeros(3, np.int64), np.empty(0, np.int32))


@pytest.mark.parametrize(
    ("bags", "message"),
    [
        ([FRAMES[0], FRAMES[1][["r"]]], "^bag 1 lacks the columns 'g', 'b', unlike bag 0; all tab"),
        ([FRAMES[0], FRAMES[1].assign(x=1)], "^bag 1 has the column 'x', unlike bag 0; all tables"),
        ([FRAMES[0], ARRAYS[1]], "^bag 1 is a ndarray and other bags are tables; give bags of one"),
        ([FRAMES[0].assign(r="a")], "^bag 0 holds .* in column 'r', expected numbers$"),
        ([FRAMES[0].assign(g=np.nan)], "^bag 0 has missing values in column 'g'; fill them first$"),
        ([pa.table({"a": [1, None]})], "^bag 0 has missing values in column 'a'; fill them first$"),
        ([pl.DataFrame({"a": [1, None]})], "^bag 0 has missing values in column 'a'; fill them"),
        ([FRAMES[0][["r", "r"]]], "^bag 0 has the column 'r' twice; rename one$"),
        ([FRAMES[0][[]]], "^bag 0 has no columns; each feature is a column$"),
        ([FRAMES[0], FRAMES[1][:0]], "^bag 1 has no rows; leave it out$"),
        (np.ones(3), r"^an array of shape \(3,\) is neither a bag nor bags; a bag is an array \(r"),
        ([FRAMES[0]["r"]], r"^bag 0 is a Series, expected an array \(rows, features\)$"),
        (EMPTY, "^bag 1 has no rows; leave it out$"),
        ([sparse.eye(3), ARRAYS[0]], "^bag 1 is dense and bag 0 is not; give bags of one kind$"),
        ({"a": 1}, "^dict is neither a store nor bags; expected a store"),
    ],
)
def test_given_block__bags_that_cannot_be_get_one_line(bags, message):
    with pytest.raises(StreammimlError, match=message):
        given_block(bags)
