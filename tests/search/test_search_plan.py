"""The plan of a search: settings, folds and rungs, before the first trial."""

from dataclasses import replace

import numpy as np
import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.halving import survivors
from streammiml.search.search_plan import plan_search
from tests.planted import planted

STORE = MemoryBags(planted(60), n_labels=5)
GRID = {"subconcepts": [1, 2, 3, 5, 8], "max_norm": [1.0, 10.0]}


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_surviving__are_as_many_as_halving_leaves(validation):
    config = TrainConfig(validation=validation, epochs=4)
    plan = plan_search(STORE, config, grid=GRID, folds=3, halving=True)
    counts = [count for _, count in plan.surviving()]
    left = [*range(10)]
    for number, count in enumerate(counts):
        if number:
            left = survivors(left, [0.0] * len(left), plan.pace)
        assert count == len(left)
    assert [rung for rung, _ in plan.surviving()] == plan.rungs
    assert plan.rungs[-1].steps == plan.steps == 4 * 40


def test_plan__without_halving_tries_all_settings_on_all_folds():
    plan = plan_search(STORE, TrainConfig(epochs=1), grid=GRID, folds=4, halving=False)
    assert [(rung.folds, count) for rung, count in plan.surviving()] == [((0, 1, 2, 3), 10)]


def test_plan__refuses_a_store_with_one_label():
    block = replace(planted(20), label_indices=np.zeros(20, np.int32), label_offsets=np.arange(21))
    one = MemoryBags(block, n_labels=1)
    with pytest.raises(StreammimlError, match="at least 2 labels are needed"):
        plan_search(one, None, grid=GRID, folds=2, halving=True)


def test_of_trial__has_the_values_of_the_grid_and_the_longest_trial():
    plan = plan_search(STORE, TrainConfig(epochs=2), grid=GRID, folds=3, halving=True)
    config = plan.of_trial({"subconcepts": 8})
    assert (config.subconcepts, config.max_steps, config.threads) == (8, 80, 1)
