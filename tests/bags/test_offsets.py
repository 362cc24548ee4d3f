"""Offsets: sizes and back, gathering, runs, cuts."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags import offsets as module
from tests.strategies import offsets


@given(sizes=st.lists(st.integers(0, 9)))
def test_from_sizes__begins_with_0_and_differs_by_the_sizes(sizes):
    offsets = module.from_sizes(sizes)
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert np.diff(offsets).tolist() == sizes


@given(ends=offsets(), data=st.data())
def test_gather__lays_chosen_items_end_to_end(ends, data):
    n = len(ends) - 1
    items = data.draw(st.lists(st.integers(0, n - 1), max_size=8)) if n else []
    new, places = module.gather(ends, np.array(items, np.int64))
    want = [list(range(ends[i], ends[i + 1])) for i in items]
    assert places.tolist() == [place for span in want for place in span]
    assert np.diff(new).tolist() == [len(span) for span in want]


@given(items=st.sets(st.integers(0, 60)).map(sorted), gap=st.integers(0, 9))
def test_runs__cover_the_items_and_leave_out_long_gaps(items, gap):
    ranges = module.runs(np.array(items, np.int64), gap=gap)
    covered = {i for start, stop in ranges for i in range(start, stop)}
    assert covered >= set(items)
    for start, stop in ranges:
        assert {start, stop - 1} <= set(items)
        inside = [i for i in items if start <= i < stop]
        assert all(b - a <= gap + 1 for a, b in pairwise(inside))
    for (_, stop), (start, _) in pairwise(ranges):
        assert start - stop > gap


@given(sizes=st.lists(st.integers(0, 50)), target=st.integers(1, 100))
def test_cuts_by_bytes__end_as_soon_as_they_hold_the_target(sizes, target):
    ranges = module.cuts_by_bytes(np.array(sizes, np.int64), target)
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(sizes)))
    for number, (start, stop) in enumerate(ranges):
        assert start < stop
        assert sum(sizes[start : stop - 1]) < target
        full = number == len(ranges) - 1 or sum(sizes[start:stop]) >= target
        assert full or sizes[stop] >= target
        assert stop - start == 1 or max(sizes[start:stop]) < target
