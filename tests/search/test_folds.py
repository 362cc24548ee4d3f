import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.errors import StreammimlError
from streammiml.search.folds import Folds
from tests.stores import made_block, write_store


@given(n_bags=st.integers(2, 300), k=st.integers(2, 12))
def test_folds__hold_every_bag_once_and_are_level(n_bags, k):
    if k > n_bags:
        with pytest.raises(StreammimlError, match=f"^{n_bags} bags cannot be cut into {k} folds; "):
            Folds(n_bags, k)
        return
    folds = Folds(n_bags, k).of_bag()
    assert set(folds.tolist()) == set(range(k))
    sizes = np.bincount(folds)
    assert sizes.max() - sizes.min() <= 1
    assert folds.tolist() == Folds(n_bags, k).of_bag().tolist()


def test_folds__do_not_follow_the_order_of_the_store():
    folds = Folds(3000, 3).of_bag()
    for half in (folds[:1500], folds[1500:]):
        assert (abs(np.bincount(half) - 500) < 80).all()


def test_folds__of_a_store_are_views_of_it(tmp_path):
    store = write_store(tmp_path / "x.zarr", made_block(20), n_labels=4)
    bags = []
    for fold in range(4):
        learn, test = Folds(20, 4).cut(store, fold)
        assert learn.base is test.base is store
        assert sorted([*learn.indices, *test.indices]) == list(range(20))
        assert (np.diff(learn.indices) > 0).all()
        bags += test.indices.tolist()
    assert sorted(bags) == list(range(20))


def test_folds__one_is_none():
    with pytest.raises(StreammimlError, match=r"^folds must be at least 2, got 1$"):
        Folds(5, 1)
