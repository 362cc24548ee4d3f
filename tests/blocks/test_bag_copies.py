"""Bytes copied into one array, in memory of the buffer pool."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml._base import buffer_pool
from streammiml.blocks import bag_copies
from streammiml.blocks.bag_copies import copy_ranges

SOURCE = np.random.default_rng(0).integers(0, 256, 300_000).astype(np.uint8)


@pytest.fixture(autouse=True)
def _nothing_idle(monkeypatch):
    monkeypatch.setattr(buffer_pool, "_idle", buffer_pool.defaultdict(list))
    monkeypatch.setattr(buffer_pool, "_kept", 0)


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 100_000)), max_size=8))
def test_copy_ranges__has_every_range_in_order(pieces):
    starts = np.array([start for start, _ in pieces], np.int64)
    sizes = np.array([size for _, size in pieces], np.int64)
    want = np.concatenate([SOURCE[:0], *(SOURCE[a : a + n] for a, n in pieces)])
    got, offsets = copy_ranges(SOURCE.ctypes.data + starts, sizes)
    np.testing.assert_array_equal(got, want)
    assert offsets.tolist() == [0, *np.cumsum(sizes)]


def test_copy_ranges__without_a_compiler_is_the_same(monkeypatch):
    monkeypatch.setattr(bag_copies.numba.config, "DISABLE_JIT", 1)
    starts, lengths = np.array([5, 70_000]), np.array([30_000, 3])
    want = np.concatenate([SOURCE[5:90_005], SOURCE[70_000:70_009]])
    got, offsets = copy_ranges(SOURCE.ctypes.data + starts, lengths, 3)
    np.testing.assert_array_equal(got, want)
    assert offsets.tolist() == [0, 30_000, 30_003]
