"""The plan of a run: refusals before a row is read, held-out bags left out, mixing in words."""

import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.blocks.plan import BlockPlan
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.holdout import Holdout
from streammiml.learn.run_plan import mixing_in_words, plan_run
from tests.planted import planted

BAGS = MemoryBags(planted(200), n_labels=5)


def test_plan_run__held_out_bags_are_not_visited():
    plan = plan_run(BAGS, TrainConfig(validation=0.1))
    assert plan.validation is not None
    bags = plan.validation.bags
    assert bags.tolist() == Holdout.of(0.1, 200).bags.tolist()
    assert plan.visits.holdout.chosen(bags).all()


def test_plan_run__a_given_holdout_replaces_the_share():
    fold = Holdout.of_fold(0, 4, 200)
    plan = plan_run(BAGS, TrainConfig(validation=0.1), fold)
    assert plan.validation is not None
    assert plan.validation.bags.tolist() == fold.bags.tolist()


def test_plan_run__without_validation_nothing_is_held_out():
    assert plan_run(BAGS, TrainConfig(validation=0.0)).validation is None


def test_plan_run__refuses_bags_without_labels():
    view = BAGS.view([])
    with pytest.raises(StreammimlError, match="has no bags to learn from"):
        plan_run(view, TrainConfig())


def test_mixing_in_words__says_how_many_blocks_are_mixed():
    plan = plan_run(BAGS, TrainConfig(block_bags=8, mix_blocks=6, validation=0.0)).budget.plan
    assert isinstance(plan, BlockPlan)
    assert mixing_in_words(plan).startswith("bags are drawn from 6 of 25 blocks of 8: ")
    plan = plan_run(BAGS, TrainConfig(order="uniform", validation=0.0)).budget.plan
    assert mixing_in_words(plan) == "bags are drawn from all 200"
