"""Bags held out: by number alone, about as many as asked, never all and never none in silence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml._base import hashing
from streammiml.errors import StreammimlError
from streammiml.learn.holdout import MOST_BAGS, Holdout


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5, 0.9])
def test_holdout__is_the_share_that_was_asked_for(share):
    n = min(8000, int(MOST_BAGS / share))
    n_held_out = len(Holdout.of(share, n).bags)
    assert abs(n_held_out - share * n) < 5 * np.sqrt(n * share * (1 - share))


@pytest.mark.parametrize("n_bags", [100_000, 1_000_000])
def test_holdout__stays_about_as_large_however_large_the_store(n_bags):
    assert abs(len(Holdout.of(0.1, n_bags).bags) - MOST_BAGS) < 5 * np.sqrt(MOST_BAGS)


def test_holdout__a_share_of_0_holds_nothing_out():
    holdout = Holdout.of(0.0, 50)
    assert holdout.bags.tolist() == []
    assert not holdout.chosen(np.arange(50)).any()


@given(st.integers(30, 200_000), st.data())
def test_holdout__says_the_same_of_a_bag_however_it_is_asked(n_bags, data):
    holdout = Holdout.of(0.2, n_bags)
    bags = holdout.bags
    assert (np.diff(bags) > 0).all()
    asked = np.array(data.draw(st.lists(st.integers(0, n_bags - 1), max_size=50)), np.int64)
    np.testing.assert_array_equal(holdout.chosen(asked), np.isin(asked, bags))


def test_holdout__a_bag_stays_held_out_when_others_are_appended():
    before, after = Holdout.of(0.3, 400).bags, Holdout.of(0.3, 500).bags
    np.testing.assert_array_equal(before, after[after < 400])


def test_holdout__does_not_follow_the_order_of_visits():
    bags = Holdout.of(0.1, 20_000).bags
    for seed in range(3):
        order = hashing.permuted(np.arange(20_000), 20_000, seed, 0)
        places = np.flatnonzero(np.isin(order, bags))
        assert abs(places.mean() / 10_000 - 1) < 0.06


@pytest.mark.parametrize(
    ("share", "n_bags", "line"),
    [
        (1e-9, 100, "validation 1e-09 of 100 bags holds out no bag; give another share"),
        (0.1, 1, "validation 0.1 of 1 bags holds out no bag"),
        (0.999999, 2, "validation 0.999999 of 2 bags holds out every bag"),
    ],
)
def test_holdout__a_share_that_leaves_no_bag_on_either_side_is_refused(share, n_bags, line):
    with pytest.raises(StreammimlError, match=line):
        Holdout.of(share, n_bags)


@pytest.mark.parametrize("n_bags", [1, 700, MOST_BAGS])
def test_of_all__is_every_bag_of_a_store_that_is_not_large(n_bags):
    assert Holdout.of_all(n_bags).bags.tolist() == [*range(n_bags)]


def test_of_all__is_about_as_many_as_are_looked_at_of_a_large_one():
    assert abs(Holdout.of_all(10**6).size - MOST_BAGS) < 5 * np.sqrt(MOST_BAGS)


def test_of_all__of_no_bags_is_refused():
    with pytest.raises(StreammimlError, match="validation store of 0 bags has none to validate on"):
        Holdout.of_all(0)
