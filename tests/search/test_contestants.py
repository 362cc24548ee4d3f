"""Contestants: the same cross validation for all, exact order of scores, and known names."""

import numpy as np
import pytest

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.measure.evaluate import evaluate
from streammiml.rivals.registry import METHODS
from streammiml.search import contestants as module
from streammiml.search.contestants import contestants, figures_of_rival, in_order
from streammiml.search.folds import Folds
from streammiml.search.grid import GRIDS
from tests.planted import planted
from tests.search.contenders import Said, contender

CONFIG = TrainConfig(epochs=2, shared_dim=8)


@pytest.fixture(scope="module")
def bags():
    return MemoryBags(planted(60), n_labels=5)


def test_contestants__all_are_ours_and_every_rival():
    everyone = contestants("all", CONFIG, "1GiB")
    assert [one.name for one in everyone] == ["mimlfast", "mimlfast-best", *METHODS]
    two = contestants("mimlknn, mimlfast,mimlknn", CONFIG, "1GiB")
    assert [one.title for one in two] == ["MIMLkNN", "MIMLfast, default"]


def test_contestants__unknown_names_and_no_names_are_refused():
    message = r"^no method is called 'mimlnn'; known: all, dba, .*mimlfast, mimlfast-best, mimlknn"
    with pytest.raises(StreammimlError, match=message):
        contestants("mimlfast,mimlnn", CONFIG, "1GiB")
    with pytest.raises(StreammimlError, match=r"^no method is given; known: mimlfast, mimlfast-b"):
        contestants([], CONFIG, "1GiB")


def test_choose__takes_the_setting_of_the_lowest_mean_loss(bags):
    grid = tuple({"shift": shift} for shift in (3, 1, 0, 2))
    [contestant] = contestants([contender("frequent", grid=grid)], CONFIG, "1GiB")
    chosen = contestant.choose(bags, 3)
    means = []
    for setting in grid:
        losses = [
            contestant.figures(contestant.fit(learn, setting), test)["ranking_loss"]
            for learn, test in (Folds(60, 3).cut(bags, fold) for fold in range(3))
        ]
        means.append(np.mean(losses))
    assert chosen == grid[int(np.argmin(means))]


def test_choose__of_one_candidate_trains_nothing(bags, monkeypatch):
    [contestant] = contestants([contender("refusing")], CONFIG, "1GiB")
    assert contestant.choose(bags, 3) == {}
    ours = contestants("mimlfast", CONFIG, "1GiB")[0]
    monkeypatch.setattr(module, "train_trial", None)
    assert ours.choose(bags, 3) == {}


def test_choose__best_is_what_tune_finds(bags, monkeypatch):
    calls = []

    def tune(store, run, config, **options):
        assert not run.exists()
        calls.append((store, config.memory, options))
        return {"winner": {"subconcepts": 1}}

    monkeypatch.setattr(module, "tune", tune)
    best = contestants("mimlfast-best", CONFIG, "2GiB")[0]
    assert best.choose(bags, 4) == {"subconcepts": 1}
    assert calls == [(bags, "2GiB", {"grid": "best", "folds": 4, "threads": 1})]
    assert not best.has_fixed_settings


@pytest.mark.slow
def test_choose__best_searches_the_grid_of_that_name(bags):
    best = contestants("mimlfast-best", TrainConfig(max_steps=4, shared_dim=4), "1GiB")[0]
    chosen = best.choose(bags, 2)
    assert set(chosen) == set(GRIDS["best"])
    assert best.fit(bags, chosen).settings["lift"] == chosen["lift"]


def test_choose__refuses_what_needs_more_memory_before_the_search(bags):
    [contestant] = contestants([contender("frequent", grid=({}, {}))], CONFIG, "50MiB")
    message = r"^The frequent would need about 60 MiB for 60 bags, more than --memory 50MiB$"
    with pytest.raises(StreammimlError, match=message):
        contestant.choose(bags, 3)


def test_figures__of_ours_are_those_of_evaluate(bags):
    ours = contestants("mimlfast", CONFIG, "1GiB")[0]
    model = ours.fit(bags, {})
    figures, want = ours.figures(model, bags), evaluate(model, bags, threads=1)
    assert {"ranking_loss", "macro_f1"} <= set(figures)
    assert "key_instance_accuracy" not in figures
    assert figures == {name: want[name] for name in figures}


def test_figures__see_differences_that_float32_cannot_hold():
    block = BagBlock.from_bags([np.zeros((1, 1), np.float32)] * 2, [[0], [1]])
    bags = MemoryBags(block, n_labels=2)
    value = np.array([[1 + 1e-12, 1.0], [-1e-300, 1e-300]])
    metrics = module.criteria(bags, keys=False)
    figures = figures_of_rival(Said(value, value > 0, None), bags, metrics)
    assert (figures["ranking_loss"], figures["average_precision"]) == (0.0, 1.0)
    assert figures["hamming_loss"] == 0.25


def test_figures__key_instances_only_of_methods_and_stores_that_have_them():
    rows = [[1, -1], [0, 1]]
    block = BagBlock.from_bags([np.zeros((2, 1), np.float32)] * 2, [[1], [0, 1]], row_labels=rows)
    bags = MemoryBags(block, n_labels=2)
    keys = np.array([[0, 0], [0, 0]])
    said = Said(np.eye(2), np.eye(2) > 0, keys)
    with_keys = figures_of_rival(said, bags, module.criteria(bags, keys=True))
    # Right for label 1 of the first bag and label 0 of the second, wrong for label 1 of the second.
    assert with_keys["key_instance_accuracy"] == pytest.approx(2 / 3)
    without = figures_of_rival(said, bags, module.criteria(bags, keys=False))
    assert "key_instance_accuracy" not in without


def test_figures__scores_that_are_not_finite_are_refused(bags):
    [contestant] = contestants([contender("endless")], CONFIG, "1GiB")
    with pytest.raises(StreammimlError, match=r"^it gave scores that are not finite numbers$"):
        contestant.figures(contestant.fit(bags, {}), bags)


def test_in_order__keeps_order_and_ties():
    scores = np.random.default_rng(0).choice([0.1, 1e-40, -7.0, 3.5, 0.1 + 1e-15], (50, 6))
    ranks = in_order(scores)
    assert ranks.dtype == np.float32
    first, second = scores.ravel()[:, None], scores.ravel()[None]
    np.testing.assert_array_equal(first < second, ranks.ravel()[:, None] < ranks.ravel()[None])


def test_warm_up__of_bags_that_cannot_be_learned_does_nothing(bags):
    for name in ("refusing", "failing"):
        contestants([contender(name)], CONFIG, "1GiB")[0].warm_up(bags)
