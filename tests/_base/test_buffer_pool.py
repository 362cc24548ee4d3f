"""Memory of the buffer pool: used again, and never while somebody still sees it."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml._base import buffer_pool
from streammiml._base.buffer_pool import lent


@pytest.fixture(autouse=True)
def _nothing_idle(monkeypatch):
    monkeypatch.setattr(buffer_pool, "_idle", buffer_pool.defaultdict(list))
    monkeypatch.setattr(buffer_pool, "_kept", 0)


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
    addresses = {lent(200_000).ctypes.data for _ in range(2)}
    assert where in addresses


def test_lent__keeps_no_more_than_it_may():
    several = [lent(buffer_pool.LONGEST) for _ in range(5)]
    del several
    gc.collect()
    kept = sum(memory.nbytes for buffers in buffer_pool._idle.values() for memory, _ in buffers)
    assert buffer_pool.IDLE_BYTES <= kept <= buffer_pool.IDLE_BYTES + buffer_pool.LONGEST + 65536


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
