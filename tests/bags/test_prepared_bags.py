"""Preparing bags for writing."""

import pytest

from streammiml.bags.block import BagBlock
from streammiml.bags.fingerprint import digests_of
from streammiml.bags.prepared_bags import prepare
from streammiml.errors import StoreError
from tests.stores import made_block, made_spec


def test_prepare__checks_and_counts():
    bags = prepare(made_block(), made_spec(), "x")
    assert (bags.digests == digests_of(made_block())).all()
    assert bags.facts() == {"dropped": 0, "top_label": bags.block.top_label}


def test_prepare__refuses_with_the_words_given():
    with pytest.raises(StoreError, match=r"^part 3: rows have 3 values, expected 5"):
        prepare(made_block(), made_spec(n_features=5, feature_names=None), "part 3")


def test_facts__of_no_bags_have_no_label():
    bags = prepare(made_block().slice(0, 0), made_spec(), "x")
    assert isinstance(bags.block, BagBlock)
    assert bags.facts() == {"dropped": 0, "top_label": -1}
