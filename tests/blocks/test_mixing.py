"""Mixing: bags are copied as they are, and an epoch that mixes all blocks has every bag once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.range_group import RangeGroup
from streammiml.blocks.mixing import (
    NUMBER,
    ROWS,
    VALUES,
    bag_bytes,
    bag_in_place,
    copied_bags,
    group_of,
    owner_of,
    visits,
)
from streammiml.blocks.plan import BlockPlan
from tests.stores import as_sparse, assert_same, made_block, plain


@pytest.mark.parametrize("sparse", [False, True])
def test_copied_bags__are_the_bags_of_the_blocks_in_the_order_of_their_lines(sparse):
    block = plain(made_block(30, n_features=4))
    block = as_sparse(block) if sparse else block
    ranges = [(12, 20), (0, 5), (20, 30)]
    blocks = [block.take(np.arange(*bags)) for bags in ranges]
    group = group_of([start for start, _ in ranges], RangeGroup.from_blocks(blocks, "float32"))
    numbers = np.concatenate([np.arange(*bags) for bags in ranges])
    np.testing.assert_array_equal(group.table[:, NUMBER], numbers)
    order = np.random.default_rng(0).permutation(len(numbers))
    bags = copied_bags(group.table[order], n_features=4, dtype="float32", sparse=sparse)
    assert_same(bags, block.take(numbers[order]))


@pytest.mark.parametrize("sparse", [False, True])
def test_bag_in_place__is_the_bag_and_shares_the_memory_of_its_group(sparse):
    block = plain(made_block(30, n_features=4))
    block = as_sparse(block) if sparse else block
    form = {"n_features": 4, "dtype": "float32", "sparse": sparse}
    groups = [
        group_of([a], RangeGroup.from_blocks([block.take(np.arange(a, b))], "float32"))
        for a, b in [(12, 20), (0, 5)]
    ]
    line = groups[1].table[3]
    owner = owner_of(line, groups)
    assert owner is groups[1]
    bag = bag_in_place(line, owner, **form)
    assert_same(bag, block.take(np.array([3])))
    values = bag.rows.values if sparse else bag.rows
    assert values.__array_interface__["data"][0] == line[VALUES if sparse else ROWS]
    assert bag_bytes(line[None], **form).tolist() == [values.size * (8 if sparse else 4)]
    del groups, owner, line
    assert_same(bag, block.take(np.array([3])))


@pytest.mark.parametrize("sparse", [False, True])
def test_bag_in_place__needs_aligned_values(sparse):
    block = plain(made_block(3, n_features=4))
    block = as_sparse(block) if sparse else block
    line = group_of([0], RangeGroup.from_blocks([block], "float32")).table[0]
    line[VALUES if sparse else ROWS] += 2
    assert bag_in_place(line, None, n_features=4, dtype="float32", sparse=sparse) is None


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 9))
def test_visits__have_every_bag_once_sorted_by_round_and_turn(n_bags, block_bags, step):
    plan = BlockPlan(
        order="blocks", n_bags=n_bags, seed=3, block_bags=block_bags, mix_blocks=n_bags
    )
    places, batches, are_last = zip(*visits(plan, 1, step), strict=True)
    assert list(are_last) == [False] * (len(batches) - 1) + [True]
    assert list(places) == [0, *np.cumsum([len(batch) for batch in batches])[:-1]]
    numbers = np.concatenate(batches)
    np.testing.assert_array_equal(np.sort(numbers), np.arange(n_bags))
    positions = np.argsort(plan.blocks_at(1, np.arange(plan.n_blocks)))
    rounds = plan.rounds_of(1, positions[numbers // block_bags], numbers)
    order = np.lexsort((plan.turns_of(1, numbers), rounds))
    np.testing.assert_array_equal(order, np.arange(n_bags))
