"""Bytes laid end to end, in memory that is lent and comes back."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml import laying, loans
from streammiml.laying import lay
from streammiml.loans import lent

WHOLE = np.random.default_rng(0).integers(0, 256, 300_000).astype(np.uint8)


@pytest.fixture(autouse=True)
def _nothing_idle(monkeypatch):
    monkeypatch.setattr(loans, "_idle", loans.defaultdict(list))
    monkeypatch.setattr(loans, "_kept", 0)


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 100_000)), max_size=8))
def test_lay__is_every_piece_in_order(pieces):
    starts = np.array([start for start, _ in pieces], np.int64)
    sizes = np.array([size for _, size in pieces], np.int64)
    want = np.concatenate([WHOLE[:0], *(WHOLE[a : a + n] for a, n in pieces)])
    np.testing.assert_array_equal(lay(WHOLE.ctypes.data + starts, sizes), want)


def test_lay__without_a_compiler_is_the_same(monkeypatch):
    monkeypatch.setattr(laying.numba.config, "DISABLE_JIT", 1)
    starts, sizes = np.array([5, 70_000]), np.array([90_000, 3])
    want = np.concatenate([WHOLE[5:90_005], WHOLE[70_000:70_003]])
    np.testing.assert_array_equal(lay(WHOLE.ctypes.data + starts, sizes), want)


@given(st.lists(st.tuples(st.integers(0, 400_000), st.booleans()), max_size=40))
def test_lent__memory_that_is_still_seen_is_never_lent_again(wishes):
    live = []
    for number, (size, is_kept) in enumerate(wishes):
        array = lent(size)
        assert len(array) == size
        array[:] = number
        if is_kept:
            # A view is enough to keep it.
            live.append((number, array[size // 2 :].reshape(-1, 1)))
        del array
    for number, view in live:
        assert (view == number).all()


def test_lent__memory_is_used_again_once_the_last_view_has_gone():
    first = lent(200_000)
    where, view = first.ctypes.data, first[7:].view()
    del first
    gc.collect()
    assert lent(200_000).ctypes.data != where
    del view
    gc.collect()
    found = {lent(200_000).ctypes.data for _ in range(2)}
    assert where in found


def test_lent__keeps_no_more_than_it_may():
    several = [lent(loans.LONGEST) for _ in range(5)]
    del several
    gc.collect()
    kept = sum(memory.nbytes for of in loans._idle.values() for memory, _ in of)
    assert loans.IDLE_BYTES <= kept <= loans.IDLE_BYTES + loans.LONGEST + 65536


def test_lent__memory_of_sizes_no_longer_wanted_makes_room():
    old = [lent(1 << 20) for _ in range(9)]
    del old
    gc.collect()
    where = set()
    for _ in range(20):
        array = lent(300_000)
        where.add(array.ctypes.data)
        del array
    assert len(where) == 1
