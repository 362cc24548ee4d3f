"""Validation: blocks that may be written, and the messages that refuse others."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.offsets import from_sizes
from streammiml.bags.validate import StoreSpec, backend_of, clean
from streammiml.errors import StoreError, StreammimlError
from tests.stores import as_sparse, assert_equal, assert_same, made_block, plain
from tests.strategies import corpora


def block_of(rows, labels=None, **more) -> BagBlock:
    """A block in which every bag has one row."""
    rows = np.asarray(rows)
    labels = [[]] * len(rows) if labels is None else labels
    return BagBlock.from_bags([rows[i : i + 1] for i in range(len(rows))], labels, **more)


def spec_of(**settings) -> StoreSpec:
    return StoreSpec(**{"n_features": 2, **settings})


@given(corpus=corpora())
def test_clean__does_not_change_valid_blocks(corpus):
    cleaned, dropped = clean(corpus.block, corpus.spec, "x")
    assert dropped == 0
    assert_same(cleaned, corpus.block)
    assert cleaned.bag_ids == corpus.block.bag_ids


@given(corpus=corpora(), seed=st.integers(0, 99))
def test_clean__sorts_labels_and_columns_within_their_groups(corpus, seed):
    rng, block = np.random.default_rng(seed), corpus.block

    def shuffled(offsets):
        return np.concatenate(
            [np.empty(0, np.int64)] + [a + rng.permutation(b - a) for a, b in pairwise(offsets)]
        )

    mixed = replace(block, label_indices=block.label_indices[shuffled(block.label_offsets)])
    if isinstance(block.rows, SparseRows):
        order = shuffled(block.rows.offsets)
        columns, values = block.rows.columns[order], block.rows.values[order]
        mixed = replace(mixed, rows=replace(block.rows, columns=columns, values=values))
    assert_same(clean(mixed, corpus.spec, "x")[0], block)


def test_clean__brings_values_into_the_stored_type():
    cleaned, _ = clean(block_of([[1.1, 2.0]]), spec_of(), "x")
    assert_equal(cleaned.rows, np.array([[1.1, 2.0]], np.float32), "rows")
    cleaned, _ = clean(block_of([[1.0, 255.0]]), spec_of(dtype="uint8"), "x")
    assert_equal(cleaned.rows, np.array([[1, 255]], np.uint8), "rows")


@pytest.mark.parametrize("sparse", [False, True])
def test_clean__converts_to_the_byte_order_of_the_machine(sparse):
    block = block_of(np.array([[1.5, 2], [3, 4]], np.float32))
    rows = as_sparse(block).rows if sparse else block.rows.astype(">f4")
    block = replace(block, rows=replace(rows, values=rows.values.astype(">f4")) if sparse else rows)
    cleaned, _ = clean(block, spec_of(sparse=sparse), "x")
    values = cleaned.rows.values if sparse else cleaned.rows
    assert values.dtype.isnative
    assert values.reshape(-1).tolist() == [1.5, 2, 3, 4]
    cleaned, _ = clean(block_of([[True, False]]), spec_of(dtype="int8"), "x")
    assert_equal(cleaned.rows, np.array([[1, 0]], np.int8), "rows")


def test_clean__drops_and_counts_empty_bags_on_request():
    block = made_block(3)
    ends = block.bag_offsets
    gaps = replace(
        block,
        bag_offsets=np.array([0, 0, *ends[1:3], ends[2], ends[3]]),
        label_offsets=from_sizes(
            [1, *np.diff(block.label_offsets)[:2], 0, *np.diff(block.label_offsets)[2:]]
        ),
        label_indices=np.array([3, *block.label_indices], np.int32),
        bag_ids=["none", *block.bag_ids[:2], "none either", block.bag_ids[2]],
    )
    settings = {"row_labels": True, "bag_ids": True, "n_features": 3}
    cleaned, dropped = clean(gaps, StoreSpec(**settings, empty_bags="drop"), "x")
    assert dropped == 2
    assert_same(cleaned, block)
    assert cleaned.bag_ids == block.bag_ids
    with pytest.raises(
        StoreError, match=r"x: 2 bags have no rows, the first is bag 'none'; --empty-bags drop"
    ):
        clean(gaps, StoreSpec(**settings), "x")


REFUSED = {
    "NaN": (
        block_of([[0, 1], [np.nan, np.inf]]),
        {},
        r"x, bag 1, row 0: value is nan \(2 such values\); only finite",
    ),
    "infinity": (
        block_of([[0, -np.inf]], bag_ids=["a"]),
        {"bag_ids": True},
        r"x, bag 'a', row 0: value is -inf",
    ),
    "other width": (block_of([[0, 1, 2]]), {}, "x: rows have 3 values, expected 2"),
    "one axis": (
        replace(block_of([[0, 1]]), rows=np.zeros(1)),
        {},
        "x: rows have 1 values, expected 2",
    ),
    "text": (block_of([["a", "b"]]), {}, "x: values are <U1, expected numbers"),
    "too large": (block_of([[0, 1e39]]), {}, r"x, bag 0, row 0: 1e\+39 does not fit into float32"),
    "fraction in uint8": (block_of([[0, 0.5]]), {"dtype": "uint8"}, "0.5 does not fit into uint8"),
    "negative in uint8": (block_of([[0, -1]]), {"dtype": "uint8"}, "-1 does not fit into uint8"),
    "too large for int8": (block_of([[0, 200]]), {"dtype": "int8"}, "200 does not fit into int8"),
    "inexact in float32": (block_of([[0, 2**24 + 1]]), {}, "16777217 does not fit into float32"),
    "inexact in float16": (
        block_of(np.array([[0, 2049]], np.int16)),
        {"dtype": "float16"},
        "2049 does not fit into float16",
    ),
    "too large for float16": (
        block_of([[0, 7e4]]),
        {"dtype": "float16"},
        "70000.0 does not fit into float16",
    ),
    "label below": (
        block_of([[0, 1]], [[-1]]),
        {},
        "x, bag 0: label -1 is outside 0 to 2147483646",
    ),
    "label above": (
        block_of([[0, 1], [0, 1]], [[0], [1, 5]]),
        {"n_labels": 5},
        "x, bag 1: label 5 is outside 0 to 4",
    ),
    "huge label": (block_of([[0, 1]], [[2**40]]), {}, f"label {2**40} is outside"),
    "label twice": (block_of([[0, 1]], [[1, 2, 1]]), {}, "x, bag 0: label 1 comes twice"),
    "label as fraction": (
        block_of([[0, 1]], [[0.5]]),
        {},
        "x: label indices are float64, expected integers",
    ),
    "label as text": (
        block_of([[0, 1]], [["sea"]]),
        {},
        "x: label indices are <U3, expected integers",
    ),
    "row label below": (
        block_of([[0, 1]], row_labels=[[-2]]),
        {"row_labels": True},
        "x, bag 0, row 0: row label -2 is outside -1 to",
    ),
    "row label above": (
        block_of([[0, 1]], row_labels=[[3]]),
        {"row_labels": True, "n_labels": 3},
        "row label 3 is outside -1 to 2",
    ),
    "row label as fraction": (
        block_of([[0, 1]], row_labels=[[0.5]]),
        {"row_labels": True},
        "x: row labels are float64, expected integers",
    ),
    "row labels too few": (
        replace(block_of([[0, 1]] * 2), row_labels=np.zeros(1, np.int32)),
        {"row_labels": True},
        "x: 2 rows but 1 row labels",
    ),
    "row labels lacking": (
        block_of([[0, 1]]),
        {"row_labels": True},
        "x: the block lacks row labels, but the store was begun with row labels",
    ),
    "row labels unasked": (
        block_of([[0, 1]], row_labels=[[0]]),
        {},
        "x: the block has row labels, but the store was begun without",
    ),
    "ids lacking": (
        block_of([[0, 1]]),
        {"bag_ids": True},
        "x: the block lacks bag ids, but the store was begun with bag ids",
    ),
    "ids unasked": (
        block_of([[0, 1]], bag_ids=["a"]),
        {},
        "x: the block has bag ids, but the store was begun without",
    ),
    "ids too few": (
        replace(block_of([[0, 1]]), bag_ids=[]),
        {"bag_ids": True},
        "x: 1 bags but 0 ids",
    ),
    "id no text": (
        block_of([[0, 1]], bag_ids=[7]),
        {"bag_ids": True},
        "x: the id of bag 0 is 7, expected text",
    ),
    "id half a character": (
        block_of([[0, 1]], bag_ids=["\ud800"]),
        {"bag_ids": True},
        r"the id of bag 0 is '\\ud800', expected text",
    ),
    "offsets late": (
        replace(block_of([[0, 1]]), bag_offsets=np.array([1, 1])),
        {},
        "x: bag offsets must begin with 0",
    ),
    "no offsets": (
        replace(block_of([[0, 1]]), bag_offsets=np.empty(0, np.int64)),
        {},
        "x: bag offsets must begin with 0",
    ),
    "offsets fall": (
        replace(block_of([[0, 1]] * 3), bag_offsets=np.array([0, 2, 1, 3])),
        {},
        "x: bag offsets fall at bag 1",
    ),
    "unsigned offsets fall": (
        replace(block_of([[0, 1]] * 3), bag_offsets=np.array([0, 2, 1, 3], np.uint64)),
        {},
        "x: bag offsets fall at bag 1",
    ),
    "offsets short": (
        replace(block_of([[0, 1]] * 3), bag_offsets=np.array([0, 1])),
        {},
        "x: bag offsets end at 1, expected 3",
    ),
    "label offsets short": (
        replace(block_of([[0, 1]], [[1, 2]]), label_offsets=np.array([0, 1])),
        {},
        "x: label offsets end at 1, expected 2",
    ),
    "labels of fewer bags": (
        replace(block_of([[0, 1]] * 2), label_offsets=np.array([0, 0])),
        {},
        "x: 2 bags but labels for 1",
    ),
    "no rows in a bag": (
        replace(
            block_of([[0, 1]]), bag_offsets=np.array([0, 0, 1]), label_offsets=np.zeros(3, np.int64)
        ),
        {},
        "x: 1 bags have no rows, the first is bag 0; --empty-bags drop leaves them out",
    ),
    "sparse rows": (
        as_sparse(block_of([[0, 1]])),
        {},
        "x: rows are sparse, but the store was begun dense",
    ),
    "dense rows": (
        block_of([[0, 1]]),
        {"sparse": True},
        "x: rows are dense, but the store was begun sparse",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_block__is_refused_with_bag_and_row(case):
    block, settings, message = REFUSED[case]
    with pytest.raises(StoreError, match=message):
        clean(block, spec_of(**settings), "x")


def sparse_block(offsets, columns, values) -> BagBlock:
    """A sparse block in which every bag has one row."""
    rows = SparseRows(np.array(offsets), np.array(columns), np.array(values), 4)
    n = len(offsets) - 1
    return BagBlock(np.arange(n + 1), rows, np.zeros(n + 1, np.int64), np.empty(0, np.int32))


SPARSE_REFUSED = {
    "feature above": (
        sparse_block([0, 1, 2], [0, 4], [1.0, 1.0]),
        "x, bag 1, row 0: feature 4 is outside 0 to 3",
    ),
    "feature below": (
        sparse_block([0, 1], [-1], [1.0]),
        "x, bag 0, row 0: feature -1 is outside 0 to 3",
    ),
    "feature twice": (
        sparse_block([0, 3], [2, 1, 2], [1.0] * 3),
        "x, bag 0, row 0: feature 2 comes twice",
    ),
    "feature as fraction": (
        sparse_block([0, 1], [0.5], [1.0]),
        "x: columns are float64, expected integers",
    ),
    "NaN": (sparse_block([0, 0, 1], [1], [np.nan]), "x, bag 1, row 0: value is nan"),
    "too large": (
        sparse_block([0, 1], [1], [1e39]),
        r"x, bag 0, row 0: 1e\+39 does not fit into float32",
    ),
    "values too few": (sparse_block([0, 2], [1, 2], [1.0]), "x: 2 columns but 1 values"),
    "offsets fall": (
        sparse_block([0, 2, 1, 2], [1, 2], [1.0, 1.0]),
        "x: row offsets fall at row 1",
    ),
    "offsets short": (
        sparse_block([0, 1], [1, 2], [1.0, 1.0]),
        "x: row offsets end at 1, expected 2",
    ),
}


@pytest.mark.parametrize("case", SPARSE_REFUSED)
def test_sparse_block__is_refused_with_bag_and_row(case):
    block, message = SPARSE_REFUSED[case]
    with pytest.raises(StoreError, match=message):
        clean(block, StoreSpec(n_features=4, sparse=True), "x")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_features": 0}, "n_features must be 1 to 4294967296, got 0"),
        ({"n_features": 2**32 + 1}, "n_features must be 1 to 4294967296, got 4294967297"),
        (
            {"dtype": "float64"},
            "no dtype is called 'float64'; known: float16, float32, int16, int8, uint8",
        ),
        ({"codec": "gzip"}, "no codec is called 'gzip'; known: auto, lz4, none, zstd"),
        ({"empty_bags": "keep"}, "no policy for empty bags is called 'keep'; known: drop, refuse"),
        ({"chunk_bytes": 0}, "chunk_bytes must be at least 1, got 0"),
        ({"label_names": ("a", "b"), "n_labels": 3}, "2 label names were given for 3 labels"),
        ({"feature_names": ("a",)}, "1 feature names were given for 2 features"),
        ({"label_names": ("a", "b", "a")}, "two labels have the same name: 'a'"),
        ({"feature_names": ("b", "b")}, "two features have the same name: 'b'"),
    ],
)
def test_spec__is_refused_where_it_is_made(settings, message):
    with pytest.raises(StreammimlError, match=message):
        spec_of(**settings)


def test_codec__is_none_for_dense_floats_and_lz4_for_the_rest():
    for dtype in ROW_DTYPES:
        floats = dtype.startswith("float")
        assert spec_of(dtype=dtype).resolved_codec == ("none" if floats else "lz4")
        assert spec_of(dtype=dtype, sparse=True).resolved_codec == "lz4"
        assert spec_of(dtype=dtype, codec="zstd").resolved_codec == "zstd"


def test_backend__is_chosen_by_the_suffix():
    assert backend_of("a/b.zarr") == "zarr"
    assert backend_of("s3://x/b.parquet/") == "parquet"
    with pytest.raises(StoreError, match=r"b.h5: a store's name ends in .zarr or .parquet"):
        backend_of("b.h5")


def test_clean__takes_a_block_without_bags():
    empty = plain(made_block()).slice(0, 0)
    cleaned, dropped = clean(empty, StoreSpec(n_features=3), "x")
    assert (len(cleaned), dropped) == (0, 0)
