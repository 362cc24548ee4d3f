"""Groups of ranges: addresses point to the values that blocks have."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.range_group import Located, RangeGroup, SparseGroup
from tests.stores import BACKENDS, as_sparse, made_block, plain, write_store

RANGES = [(12, 20), (0, 5), (7, 7), (20, 30)]


def values_at(located, counts, dtype, width=1):
    """The values of each range, read from memory."""
    assert located.value_bytes == np.dtype(dtype).itemsize * width
    return [
        np.frombuffer(ctypes.string_at(address, count * located.value_bytes), dtype)
        for address, count in zip(located.addresses.tolist(), counts, strict=True)
    ]


def assert_points_to(group, block, ranges):
    parts = [block.slice(*bags) for bags in ranges]
    assert group.n_bags.tolist() == [len(part) for part in parts]
    for name in ("bag_offsets", "label_offsets"):
        want = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(group, name), want)
    labels = values_at(group.labels, [len(part.label_indices) for part in parts], np.int32)
    for got, part in zip(labels, parts, strict=True):
        np.testing.assert_array_equal(got, part.label_indices)
    rows, n_rows = group.rows, [part.n_rows for part in parts]
    if isinstance(rows, SparseGroup):
        n_values = [len(part.rows.values) for part in parts]
        lengths = values_at(rows.row_lengths, n_rows, np.int64)
        columns = values_at(rows.columns, n_values, np.uint32)
        values = values_at(rows.values, n_values, np.float32)
        bounds = np.concatenate([part.rows.offsets[part.bag_offsets] for part in parts])
        np.testing.assert_array_equal(rows.value_offsets, bounds)
        for i, part in enumerate(parts):
            np.testing.assert_array_equal(lengths[i], np.diff(part.rows.offsets))
            np.testing.assert_array_equal(columns[i], part.rows.columns)
            np.testing.assert_array_equal(values[i], part.rows.values)
        return
    dense = values_at(rows, n_rows, np.float32, block.n_features)
    for got, part in zip(dense, parts, strict=True):
        np.testing.assert_array_equal(got, part.rows.reshape(-1))


@pytest.mark.parametrize("sparse", [False, True])
def test_from_blocks__points_to_the_values_of_the_blocks(sparse):
    block = plain(made_block(30, n_features=4))
    block = as_sparse(block) if sparse else block
    blocks = [block.slice(*bags) for bags in RANGES]
    assert_points_to(RangeGroup.from_blocks(blocks, "float32"), block, RANGES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("sparse", [False, True])
def test_store__points_to_the_values_of_its_bags(tmp_path, backend, codec, sparse):
    block = plain(made_block(30, n_features=4))
    block = as_sparse(block) if sparse else block
    store = write_store(tmp_path / f"x.{backend}", block, codec=codec, chunk_bytes=256)
    assert_points_to(store.read_ranges(RANGES), block, RANGES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sparse", [False, True])
def test_store__without_any_label_is_read_together(tmp_path, backend, sparse):
    block = plain(made_block(30, n_features=4))
    block = as_sparse(block) if sparse else block
    offsets, labels = np.zeros(31, np.int64), np.empty(0, np.int32)
    block = replace(block, label_offsets=offsets, label_indices=labels)
    store = write_store(tmp_path / f"x.{backend}", block, n_labels=3)
    assert_points_to(store.read_ranges(RANGES), block, RANGES)


def test_of_parts__are_the_places_of_ranges_in_one_array():
    joined = np.arange(10, dtype=np.int32)
    located = Located.of_parts(joined, np.array([3, 0, 7]))
    parts = values_at(located, [3, 0, 7], np.int32)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [], list(range(3, 10))]
