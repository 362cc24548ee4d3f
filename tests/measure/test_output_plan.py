"""Parts and groups: every bag in one part, parts of complete groups, whatever reads them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.memory import MemoryBags
from streammiml.measure.output_plan import (
    OutputPlan,
    PredictionCounts,
    part_tasks,
    scored_groups,
)
from streammiml.measure.tasks import BagRange, StoreAddress, all_bags
from streammiml.scorer import Scorer
from tests.measure.models import made_model
from tests.stores import made_block

BAGS = MemoryBags(made_block(30), n_labels=4)


@given(n_bags=st.integers(1, 500), part=st.integers(1, 40), group=st.integers(1, 9))
def test_bags_of__parts_follow_each_other_and_cover_all_bags(n_bags, part, group):
    plan = OutputPlan(
        n_bags=n_bags, n_labels=4, top_k=None, part_bags=part * group, group_bags=group,
        label_names=None, has_bag_ids=False,
    )  # fmt: skip
    bounds = [plan.bags_of(number) for number in range(plan.n_parts)]
    assert [bag for bounds_of_part in bounds for bag in range(*bounds_of_part)] == [*range(n_bags)]
    assert all(start % group == 0 for start, _ in bounds)


def plan_of_parts(n_parts):
    return OutputPlan(
        n_bags=10 * n_parts - 3, n_labels=4, top_k=None, part_bags=10, group_bags=5,
        label_names=None, has_bag_ids=False,
    )  # fmt: skip


@given(
    numbers=st.lists(st.integers(0, 99), unique=True, min_size=1).map(sorted),
    n_threads=st.integers(1, 3),
)
def test_part_tasks__have_every_part_once_with_its_bags(numbers, n_threads):
    plan = plan_of_parts(100)
    address = StoreAddress(("x.zarr",), "")
    tasks = list(part_tasks(plan, numbers, BagRange(address, 0, plan.n_bags), n_threads))
    parts = [part for task in tasks for part in task.parts(plan)]
    assert [number for number, _ in parts] == numbers
    assert [(bags.start, bags.stop) for _, bags in parts] == [plan.bags_of(n) for n in numbers]


def n_parts_of_tasks(n_parts, n_threads, everything):
    tasks = part_tasks(plan_of_parts(n_parts), range(n_parts), everything, n_threads)
    return {len(task.numbers) for task in tasks}


def test_part_tasks__have_several_parts_where_there_are_many_and_other_processes():
    n_bags = plan_of_parts(4000).n_bags
    address = StoreAddress(("x.zarr",), "")
    remote = BagRange(address, 0, n_bags)
    assert n_parts_of_tasks(40, 2, remote) == {1}
    assert n_parts_of_tasks(80, 2, remote) == {2}
    assert n_parts_of_tasks(4000, 2, remote) == {16}
    assert n_parts_of_tasks(4000, 2, BagRange(address, 0, n_bags, np.arange(n_bags))) == {1}
    assert n_parts_of_tasks(4000, 2, BagRange(BAGS, 0, n_bags)) == {1}


def test_of__a_part_consists_of_complete_groups():
    plan = OutputPlan.of(BAGS, 4, None, top_k=None)
    assert plan.part_bags % plan.group_bags == 0
    assert plan.n_bytes == 30 * (64 + 4 * 4)
    assert OutputPlan.of(BAGS, 4, None, top_k=2).n_bytes == 30 * (64 + 8 * 2)


@pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
def test_scored_groups__do_not_depend_on_memory(block_bytes):
    plan = OutputPlan(
        n_bags=30, n_labels=4, top_k=None, part_bags=30, group_bags=8,
        label_names=None, has_bag_ids=False,
    )  # fmt: skip
    scorer = Scorer(made_model())
    groups = list(scored_groups(all_bags(BAGS, remote=False), scorer, plan, block_bytes))
    assert [group.first for group in groups] == [0, 8, 16, 24]
    scores = np.concatenate([group.predictions.scores for group in groups])
    assert scores.tobytes() == scorer.scores(BAGS.read(0, 30)).value[:, :-1].tobytes()
    counts = [group.counts() for group in groups]
    assert [count.n_bags for count in counts] == [8, 8, 8, 6]


def test_counts__add_up():
    assert PredictionCounts(1, 2, 3).add(PredictionCounts(10, 20, 30)) == (11, 22, 33)
