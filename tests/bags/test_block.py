"""Blocks: slice, take and join give the same bags as the block, bag by bag."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.errors import StreammimlError
from tests.stores import as_sparse, assert_equal, assert_same, made_block, plain
from tests.strategies import blocks


def bag_of(block: BagBlock, bag: int) -> tuple:
    """Everything that belongs to one bag, in plain values."""
    start, stop = block.bag_offsets[bag : bag + 2]
    row_labels = None if block.row_labels is None else block.row_labels[start:stop].tolist()
    name = None if block.bag_ids is None else block.bag_ids[bag]
    kept = {name: values.tolist() for name, values in block.kept_of(bag).items()}
    return block.rows_of(bag).tobytes(), block.labels_of(bag).tolist(), row_labels, name, str(kept)


@given(block=blocks(kept=True), data=st.data())
def test_slice_and_take__hold_the_chosen_bags(block, data):
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(block))] * 2)))
    part = block.slice(start, stop)
    assert [bag_of(part, i) for i in range(len(part))] == [
        bag_of(block, i) for i in range(start, stop)
    ]
    chosen = data.draw(st.lists(st.integers(0, len(block) - 1), max_size=9))
    taken = block.take(np.array(chosen, np.int64))
    assert [bag_of(taken, i) for i in range(len(taken))] == [bag_of(block, i) for i in chosen]
    assert part.bag_offsets[0] == part.label_offsets[0] == taken.bag_offsets[0] == 0


@given(block=blocks(kept=True), data=st.data())
def test_join__undoes_cutting(block, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(block)), max_size=4)))
    ends = [0, *cuts, len(block)]
    parts = [block.slice(a, b) for a, b in pairwise(ends)]
    joined = BagBlock.join(parts)
    assert_same(joined, block)
    assert joined.bag_ids == block.bag_ids


@given(block=blocks())
def test_sparse_rows__dense_gives_every_value(block):
    rows = block.rows
    if not isinstance(rows, SparseRows):
        assert_same(BagBlock.join([as_sparse(block)]), as_sparse(block))
        rows = as_sparse(block).rows
    dense = rows.dense()
    assert dense.shape == (len(rows), rows.n_features)
    for i in range(len(rows)):
        row = slice(rows.offsets[i], rows.offsets[i + 1])
        want = np.zeros(rows.n_features, rows.values.dtype)
        want[rows.columns[row]] = rows.values[row]
        assert_equal(dense[i], want, f"row {i}")


def test_from_bags__sorts_labels_and_joins_rows():
    bags = [np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)]
    block = BagBlock.from_bags(bags, [[2, 0], []], row_labels=[[1, -1], [0]], bag_ids=["a", "b"])
    assert block.bag_offsets.tolist() == [0, 2, 3]
    assert block.label_offsets.tolist() == [0, 2, 2]
    assert block.label_indices.tolist() == [0, 2]
    assert block.label_indices.dtype == block.row_labels.dtype == np.int32
    assert (len(block), block.n_rows, block.n_features) == (2, 3, 3)
    assert block.bag_ids == ["a", "b"]


@pytest.mark.parametrize(("label", "kind"), [(0.5, "f"), (2**40, "i"), ("sea", "U")])
def test_from_bags__keeps_invalid_labels_for_the_writer_to_refuse(label, kind):
    block = BagBlock.from_bags([np.ones((1, 1))], [[label]], row_labels=[[label]])
    assert block.label_indices.dtype.kind == block.row_labels.dtype.kind == kind
    assert block.label_indices.tolist() == [label]


def test_nbytes__counts_every_array():
    block = made_block()
    rows = block.rows
    index = block.bag_offsets.nbytes + block.label_offsets.nbytes + block.label_indices.nbytes
    assert plain(block).nbytes == index + rows.nbytes
    assert block.nbytes == plain(block).nbytes + block.row_labels.nbytes
    packed = as_sparse(plain(block))
    n_bytes = packed.rows.offsets.nbytes + packed.rows.columns.nbytes + packed.rows.values.nbytes
    assert packed.nbytes == index + n_bytes


@pytest.mark.parametrize(
    ("bags", "message"),
    [
        ([np.ones((2, 3)), np.ones((2, 4))], r"^bag 1 has shape \(2, 4\), expected \(rows, 3\)$"),
        ([np.ones(3)], r"^bag 0 has shape \(3,\), expected \(rows, features\)$"),
        ([], "^there are no bags to join$"),
    ],
)
def test_from_bags__names_a_bag_that_does_not_fit(bags, message):
    with pytest.raises(StreammimlError, match=message):
        BagBlock.from_bags(bags, [[0]] * len(bags))
