"""Order: every bag once an epoch, a function of numbers alone, mixed as well as stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.blocks.plan import ORDERS, BlockPlan
from streammiml.errors import StreammimlError
from tests.traced import traced


def epoch_by_definition(plan, epoch):
    """Bags of an epoch in order, from the definition: all blocks, sorted by round and turn."""
    positions = np.arange(plan.n_blocks)
    blocks = plan.blocks_at(epoch, positions)
    where, bags = [], []
    for position, block in zip(positions, blocks, strict=True):
        inside = np.arange(*plan.bags_of(int(block)))
        where += [np.full(len(inside), position)]
        bags += [inside]
    where, bags = np.concatenate(where), np.concatenate(bags)
    rounds = plan.rounds_of(epoch, where, bags)
    return bags[np.lexsort((plan.turns_of(epoch, bags), rounds))], np.sort(rounds)


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 60), st.integers(0, 9))
def test_blocks__every_bag_comes_once_an_epoch(n_bags, block_bags, mix_blocks, epoch):
    plan = BlockPlan(
        order="blocks", n_bags=n_bags, seed=5, block_bags=block_bags, mix_blocks=mix_blocks
    )
    bags, rounds = epoch_by_definition(plan, epoch)
    np.testing.assert_array_equal(np.sort(bags), np.arange(n_bags))
    np.testing.assert_array_equal(
        np.bincount(rounds, minlength=plan.n_blocks), plan.round_sizes(epoch)
    )


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 60))
def test_blocks__a_round_takes_bags_only_from_its_window(n_bags, block_bags, mix_blocks):
    plan = BlockPlan(
        order="blocks", n_bags=n_bags, seed=1, block_bags=block_bags, mix_blocks=mix_blocks
    )
    bags, rounds = epoch_by_definition(plan, 0)
    for number in {int(rounds[0]), int(rounds[-1])}:
        allowed = set(plan.blocks_at(0, np.arange(number - plan.window + 1, number + 1)).tolist())
        assert set((bags[rounds == number] // block_bags).tolist()) <= allowed


@given(st.integers(1, 400), st.data())
def test_locate__finds_the_round_of_a_place(n_bags, data):
    plan = BlockPlan(order="blocks", n_bags=n_bags, seed=1, block_bags=7, mix_blocks=9)
    place = data.draw(st.integers(0, n_bags - 1))
    _, rounds = epoch_by_definition(plan, 3)
    number, before = plan.locate(3, place)
    assert rounds[place] == number
    assert before == place - np.searchsorted(rounds, number)


@pytest.mark.parametrize("order", ORDERS)
def test_plan__seed_and_epoch_change_the_order_and_nothing_else_does(order):
    def first(seed, epoch):
        plan = BlockPlan(order=order, n_bags=1000, seed=seed)
        if order == "blocks":
            return epoch_by_definition(plan, epoch)[0][:50].tolist()
        return plan.bags_at(epoch, 0, 50).tolist()

    assert first(1, 0) == first(1, 0)
    assert first(1, 0) != first(2, 0)
    assert first(1, 0) != first(1, 1)


def test_locate__needs_little_memory_whatever_the_size_of_the_store():
    plan = BlockPlan(order="blocks", n_bags=3_000_000, seed=0, block_bags=1024, mix_blocks=512)
    with traced() as memory:
        plan.locate(0, 2_999_999)
    assert memory.peak < 8 << 20


def variance_inflation(plan, epochs):
    """Measured on a label-sorted store of 20 classes, against the variance of a full shuffle."""
    classes = np.arange(plan.n_bags) * 20 // plan.n_bags
    counts = []
    for epoch in range(epochs):
        shown = classes[epoch_by_definition(plan, epoch)[0]]
        windows = shown[: len(shown) // 256 * 256].reshape(-1, 256)
        counts += [np.bincount(window, minlength=20) for window in windows]
    expected = 256 * (1 / 20) * (19 / 20) * (plan.n_bags - 256) / (plan.n_bags - 1)
    return np.var(counts, axis=0).mean() / expected


@pytest.mark.parametrize(("block_bags", "mix_blocks"), [(16, 16), (16, 64), (16, 256), (400, 5)])
def test_vif__is_what_was_stated(block_bags, mix_blocks):
    plan = BlockPlan(
        order="blocks", n_bags=51_200, seed=0, block_bags=block_bags, mix_blocks=mix_blocks
    )
    measured = variance_inflation(plan, 3)
    assert 0.85 * plan.vif < measured < 1.1 * plan.vif


def test_vif__without_mixing_is_far_worse_than_any_stated():
    plan = BlockPlan(order="blocks", n_bags=51_200, seed=0, block_bags=16, mix_blocks=1)
    assert variance_inflation(plan, 2) > 10


def test_plan__a_window_of_all_blocks_is_a_full_shuffle():
    plan = BlockPlan(order="blocks", n_bags=5120, seed=0, block_bags=16, mix_blocks=1000)
    assert plan.vif == 1.0
    assert variance_inflation(plan, 8) < 1.2


def test_plan__unknown_order_names_the_known():
    with pytest.raises(StreammimlError, match="known: blocks, full, uniform"):
        BlockPlan(order="sorted", n_bags=3, seed=0)


@given(st.integers(1, 400), st.integers(1, 9), st.integers(1, 60))
def test_round_sizes__do_not_depend_on_how_the_epoch_is_cut(n_bags, block_bags, mix_blocks):
    plan = BlockPlan(
        order="blocks", n_bags=n_bags, seed=1, block_bags=block_bags, mix_blocks=mix_blocks
    )
    with pytest.MonkeyPatch.context() as patch:
        sizes = plan.round_sizes(2)
        patch.setattr("streammiml.blocks.plan.STRETCH_BAGS", 3 * block_bags)
        np.testing.assert_array_equal(plan.round_sizes(2), sizes)
    assert sizes.sum() == n_bags
