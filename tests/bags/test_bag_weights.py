"""Weights of bags as a kept column: of every backend, in views and joined stores, checked."""

import shutil
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags import bag_weights as module
from streammiml.bags.bag_weights import checked_weights, read_weights
from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import as_texts
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_store
from streammiml.errors import StoreError, StreammimlError
from tests.stores import made_block, made_kept, write_store

WEIGHTS = np.linspace(0, 3, 20)


@pytest.mark.parametrize("suffix", ["zarr", "parquet"])
def test_read_weights__are_those_that_write_store_was_given(suffix, tmp_path, monkeypatch):
    # Small reads and stretches, so that bags of one store come from several.
    monkeypatch.setattr(module, "READ_BYTES", 100)
    monkeypatch.setattr(module, "SCAN_BAGS", 7)
    block = made_block(20)
    bags, labels = [block.rows_of(i) for i in range(20)], [block.labels_of(i) for i in range(20)]
    times = [np.arange(len(bag)) for bag in bags]
    for name, own in (("x", WEIGHTS), ("y", WEIGHTS[::-1])):
        path = tmp_path / f"{name}.{suffix}"
        sm.write_store(path, bags, labels, weights=own, keep={"time": times})
    store = open_store(tmp_path / f"x.{suffix}")
    want = WEIGHTS.astype(np.float32)
    np.testing.assert_array_equal(read_weights(store, "weight"), want)
    np.testing.assert_array_equal(read_weights(store.view([7, 3]), "weight"), want[[7, 3]])
    both = open_store([tmp_path / f"x.{suffix}", tmp_path / f"y.{suffix}"])
    np.testing.assert_array_equal(read_weights(both, "weight"), [*want, *want[::-1]])


def test_read_weights__reads_one_column_once(tmp_path):
    block = made_block(20)
    rows = np.repeat(WEIGHTS, np.diff(block.bag_offsets))
    kept = {"weight": rows, "other": np.ones_like(rows), "note": as_texts("x" * len(rows))}
    store = write_store(tmp_path / "x.zarr", replace(block, kept=kept))
    # Without the text, only a call that reads it fails.
    shutil.rmtree(tmp_path / "x.zarr" / "kept_note.bytes" / "c")
    with pytest.raises(StoreError, match="kept_note"):
        store.kept(0, 20)
    joined = open_store([tmp_path / "x.zarr", tmp_path / "x.zarr"])
    for bags, want in ((store, WEIGHTS), (joined, [*WEIGHTS, *WEIGHTS])):
        weights = read_weights(bags, "weight")
        assert weights.tolist() == np.float32(want).tolist()
        assert read_weights(bags, "weight") is weights
        assert read_weights(bags, "other").tolist() == [1] * len(want)
        assert read_weights(bags, "weight").tolist() == weights.tolist()


def test_read_weights__hold_little_more_than_they_return():
    n_bags = 400_000
    block = BagBlock(
        rows=np.ones((n_bags, 1), np.float32),
        bag_offsets=np.arange(n_bags + 1),
        label_offsets=np.arange(n_bags + 1),
        label_indices=np.zeros(n_bags, np.int32),
        kept={"weight": np.ones(n_bags, np.float32)},
    )
    store = MemoryBags(block, n_labels=1)
    tracemalloc.start()
    try:
        read_weights(store, "weight")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Beside the weights, some bytes for each bag of one stretch.
    assert peak < 4 * n_bags + 64 * module.SCAN_BAGS


def with_weights(values):
    return MemoryBags(replace(made_block(20), kept=values), n_labels=4)


def test_read_weights__refuses_columns_that_hold_none():
    block = made_block(20)
    n_rows, sizes = block.n_rows, np.diff(block.bag_offsets)
    store = with_weights({"note": as_texts(map(str, range(n_rows))), **made_kept(n_rows)})
    for name in ("note", "coords", "weight"):
        with pytest.raises(
            StoreError, match=f"one number, and not '{name}': bags in memory keeps "
        ):
            read_weights(store, name)
    long = int(np.flatnonzero(sizes > 1)[3])
    rows = np.ones(n_rows)
    rows[block.bag_offsets[long]] = 2
    with pytest.raises(StoreError, match=f"rows of bag {long} have different values in the col"):
        read_weights(with_weights({"weight": rows}), "weight")
    for value, shown in ((-1.5, "-1.5"), (np.nan, "nan"), (np.inf, "inf")):
        rows = np.ones(n_rows)
        rows[block.bag_offsets[4] : block.bag_offsets[5]] = value
        with pytest.raises(StreammimlError, match=f"bag 4 has the weight {shown}; weights are fin"):
            read_weights(with_weights({"weight": rows}), "weight")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"the shape \(3,\); expected \(20,\), one for each bag"),
        (np.ones((20, 1)), r"the shape \(20, 1\)"),
        (["a"] * 20, "^weights of bags must be numbers"),
        (np.zeros(20), "^the weight of every bag is zero"),
        (np.full(20, 1e39), r"^bag 0 has the weight 1e\+39; weights are finite"),
    ],
)
def test_checked_weights__refuses_what_cannot_be_weights(weights, message):
    with pytest.raises(StreammimlError, match=message):
        checked_weights(weights, 20)


def test_write_store__refuses_weights_beside_a_kept_column_of_their_name(tmp_path):
    bags = [np.eye(2)]
    with pytest.raises(
        StreammimlError, match=r"^weights are kept as the column 'weight', and keep"
    ):
        sm.write_store(tmp_path / "x.zarr", bags, [["a"]], weights=[1], keep={"weight": [[1, 1]]})
