"""Runs of rows become complete bags, wherever pieces and spans are cut."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.long_form import RowRun, run_starts, whole_bags
from tests.stores import assert_same


def piece_of(ids, first, labels=None):
    """Rows ``first`` and after, with these ids; the row number is the only feature."""
    starts = run_starts(np.array([a != b for a, b in zip(ids[1:], ids[:-1], strict=True)], bool))
    bags = [np.arange(first + a, first + b)[:, None] for a, b in itertools.pairwise(starts)]
    names = [ids[start] for start in starts[:-1]]
    own = [[(labels or {}).get(first + int(start), 0)] for start in starts[:-1]]
    return RowRun(BagBlock.from_bags(bags, own, bag_ids=names), lambda row: f"row {first + row}")


def pieces_of(ids, cuts):
    ends = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    return [piece_of(ids[a:b], a) for a, b in itertools.pairwise(ends)]


def test_run_starts__are_offsets_of_runs():
    assert run_starts(np.array([False, True, True, False])).tolist() == [0, 2, 3, 5]
    assert run_starts(np.array([], bool)).tolist() == [0, 1]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 24), max_size=6),
    span=st.integers(0, 24),
)
def test_whole_bags__two_spans_of_any_pieces_give_every_bag_once(sizes, cuts, span):
    ids = [f"b{bag}" for bag, size in enumerate(sizes) for _ in range(size)]
    span = min(span, len(ids))
    pieces = pieces_of(ids, [*cuts, span])
    owned = [piece for piece in pieces if piece.block.rows[0, 0] < span]
    rest = pieces[len(owned) :]
    blocks = [*whole_bags(owned, lambda: rest, None)]
    blocks += whole_bags(rest, lambda: [], ids[span - 1] if span else None)
    assert_same(BagBlock.join(blocks), piece_of(ids, 0).block)


def test_whole_bags__a_bag_that_returns_is_refused_or_given_again():
    pieces = [piece_of(["a", "b"], 0), piece_of(["a"], 2)]
    with pytest.raises(SourceError, match=r"^row 2: bag 'a' returns after other bags; --group"):
        list(whole_bags(pieces, lambda: [], None))
    grouped = BagBlock.join(list(whole_bags(pieces, lambda: [], None, group=True)))
    assert grouped.bag_ids == ["a", "b", "a"]


def test_whole_bags__labels_that_change_within_a_bag_are_refused():
    pieces = [piece_of(["a"], 0), piece_of(["a"], 1, labels={1: 1})]
    with pytest.raises(SourceError, match=r"^row 1: bag 'a' has other labels here"):
        list(whole_bags(pieces, lambda: [], None))


def test_whole_bags__a_bag_or_ids_beyond_the_memory_are_refused():
    limits = Limits(memory=1000)
    bag = [piece_of(["a"] * 100, 0), piece_of(["a"] * 100, 100)]
    with pytest.raises(SourceError, match=r"s\.csv, bag 'a': a block of .* more than --memory"):
        list(whole_bags(bag, lambda: [], None, where="s.csv", limits=limits))
    ids = [piece_of([f"b{i}" for i in range(20)], 0)]
    with pytest.raises(SourceError, match=r"s\.csv: ids of bags must be held in memory"):
        list(whole_bags(ids, lambda: [], None, where="s.csv", limits=limits))
