"""Cells: splits that depend on numbers alone, and the reason for every figure that is missing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StoreError
from streammiml.measure.evaluate import evaluate
from streammiml.measure.tasks import all_bags
from streammiml.search.cells import (
    CellResult,
    CellSettings,
    MethodCell,
    measure_cell,
    run_cell,
    split_of,
    training_bags,
)
from streammiml.search.contestants import contestants
from tests.planted import planted
from tests.search.contenders import contender

CONFIG = TrainConfig(epochs=2, shared_dim=8)


def settings(time_limit="2min"):
    return CellSettings(seed=0, folds=3, time_limit=time_limit, owner="test")


@pytest.fixture(scope="module")
def bags():
    return all_bags(MemoryBags(planted(60), n_labels=5), remote=False)


@given(st.integers(2, 300), st.integers(0, 5), st.integers(0, 50))
def test_split_of__two_thirds_and_one_third_without_overlap(n_bags, seed, split):
    learn, test = split_of(n_bags, seed, split)
    assert len(learn) == training_bags(n_bags) == round(n_bags * 2 / 3)
    np.testing.assert_array_equal(np.sort(np.concatenate([learn, test])), np.arange(n_bags))
    fewer, same = split_of(n_bags, seed, split, max(1, len(learn) // 2))
    assert set(fewer) <= set(learn)
    np.testing.assert_array_equal(same, test)


def test_split_of__differs_by_split_and_seed_and_is_even():
    tests = [split_of(300, seed, split)[1] for seed in range(2) for split in range(50)]
    assert len({tuple(test) for test in tests}) == 100
    often = np.bincount(np.concatenate(tests), minlength=300)
    assert 15 <= often.min() <= often.max() <= 52


def test_split_of__is_the_same_as_ever():
    learn, test = split_of(9, 0, 0)
    assert (learn.tolist(), test.tolist()) == ([2, 3, 4, 5, 6, 8], [0, 1, 7])


def test_measure_cell__is_what_training_and_evaluating_give(bags):
    [ours] = contestants("mimlfast", CONFIG, "1GiB")
    result = measure_cell(MethodCell("mimlfast", 1), ours, bags, settings())
    learn, test = (bags.bags().view(numbers) for numbers in split_of(60, 0, 1))
    want = evaluate(ours.fit(learn, {}), test, threads=1)
    assert result.figures == {name: want[name] for name in result.figures}
    assert (result.n_train, result.n_test, result.chosen) == (40, 20, {})
    assert min(result.choose_seconds, result.fit_seconds, result.score_seconds) >= 0


def test_measure_cell__fewer_bags_are_trained_on_without_a_search(bags):
    grid = ({"shift": 2}, {"shift": 0})
    [contestant] = contestants([contender("frequent", grid=grid)], CONFIG, "1GiB")
    full = measure_cell(MethodCell("frequent", 0), contestant, bags, settings())
    fewer = measure_cell(MethodCell("frequent", 0, 10), contestant, bags, settings())
    assert full.chosen in grid
    assert (fewer.chosen, fewer.n_train, fewer.n_test) == ({}, 10, 20)


def test_run_cell__gives_in_another_process_what_it_gives_here(bags):
    [contestant] = contestants([contender("frequent", grid=({}, {"shift": 1}))], CONFIG, "1GiB")
    cell = MethodCell("frequent", 3)
    there = run_cell((cell, contestant), bags, settings())
    here = measure_cell(cell, contestant, bags, settings())
    assert (there.figures, there.chosen, there.state) == (here.figures, here.chosen, "measured")
    assert CellResult.of_line(cell, there.line()) == there
    assert there.is_final


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("refusing", "it would hold 7 TiB for 40 bags"),
        ("failing", "it failed: ZeroDivisionError: a bug of the method"),
    ],
)
def test_run_cell__a_method_that_refuses_or_fails_has_a_reason_and_may_try_again(
    bags, name, reason
):
    [contestant] = contestants([contender(name)], CONFIG, "1GiB")
    result = run_cell((MethodCell(name, 0), contestant), bags, settings())
    assert (result.state, result.reason, result.figures) == ("not measured", reason, {})
    assert (result.n_train, result.n_test, result.fit_seconds) == (40, 20, None)
    assert not result.is_final


def test_run_cell__really_stops_at_the_time_limit(bags):
    [contestant] = contestants([contender("slow")], CONFIG, "1GiB")
    result = run_cell((MethodCell("slow", 0), contestant), bags, settings("3s"))
    assert (result.state, result.reason) == (
        "over the time limit",
        "over the time limit of 3s",
    )
    assert result.is_final


def test_run_cell__a_damaged_store_is_no_fault_of_a_method(bags):
    [contestant] = contestants([contender("unreadable")], CONFIG, "1GiB")
    with pytest.raises(StoreError, match=r"^the store is damaged$"):
        run_cell((MethodCell("unreadable", 0), contestant), bags, settings())
