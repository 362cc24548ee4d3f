"""A dry run of tune: what a search would cost, what it refuses, and that it writes nothing."""

import pytest

from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn import dry_run as train_dry_run
from streammiml.search import dry_run as dry_runs
from streammiml.search.dry_run import dry_tune
from streammiml.search.tune import tune
from tests.planted import planted
from tests.stores import write_store

GRID = {"subconcepts": [1, 2, 5], "step_size": [0.005, 0.02]}
CONFIG = TrainConfig(shared_dim=8, epochs=4, init="random")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("x") / "x.zarr", planted(60), n_labels=5)


@pytest.fixture(autouse=True)
def short_timing(monkeypatch):
    monkeypatch.setattr(train_dry_run, "STEP_SECONDS", 0.01)


@pytest.mark.parametrize("halving", [True, False])
def test_dry_tune__counts_the_trials_and_steps_of_the_search(store, tmp_path, halving):
    options = {"grid": GRID, "folds": 3, "halving": halving}
    planned = dry_tune(store, tmp_path / "run", CONFIG, **options)
    assert not (tmp_path / "run").exists()
    summary = tune(store, tmp_path / "run", CONFIG, threads=1, **options)
    assert planned.n_settings == summary["n_settings"] == 6
    assert planned.trials == len(list((tmp_path / "run" / "trials").iterdir()))
    # No training of this search stops early.
    assert planned.steps == summary["steps"]
    assert planned.share_of_grid == pytest.approx(summary["share_of_grid"])
    # A finished search may be asked about again; another one is refused.
    assert dry_tune(store, tmp_path / "run", CONFIG, **options).trials == planned.trials
    with pytest.raises(StreammimlError, match="was begun with folds 3, not 2"):
        dry_tune(store, tmp_path / "run", CONFIG, **{**options, "folds": 2})


def test_dry_tune__seconds_lie_between_those_of_the_cheapest_and_costliest_steps(
    store, tmp_path, monkeypatch
):
    timed = train_dry_run.timed_step

    def by_work(config, *rest):
        return (1.0 if config.subconcepts == 1 else 3.0), timed(config, *rest)[1]

    monkeypatch.setattr(dry_runs, "timed_step", by_work)
    planned = dry_tune(store, tmp_path / "run", CONFIG, grid=GRID, machines=PoolOptions(workers=2))
    assert planned.steps < planned.seconds_on_one_core < 3 * planned.steps
    assert planned.seconds == planned.seconds_on_one_core / 2
    alone = dry_tune(store, tmp_path / "run", CONFIG, grid={"subconcepts": [1]})
    assert alone.seconds_on_one_core == alone.steps


def test_dry_tune__trials_at_once_are_those_of_the_machines(store, tmp_path):
    small = {"grid": {"subconcepts": [1]}}
    run, other = tmp_path / "run", PoolOptions(scheduler="tcp://127.0.0.1:1")
    planned = dry_tune(store, run, CONFIG, machines=other, **small)
    assert (planned.trials_at_once, planned.seconds) == (None, None)
    bags = MemoryBags(planted(60), n_labels=5)
    assert dry_tune(bags, run, CONFIG, **small).trials_at_once == 1


def test_dry_tune__refuses_what_the_search_would_refuse(store, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(StreammimlError, match="60 bags cannot be cut into 61 folds"):
        dry_tune(store, run, CONFIG, folds=61)
    with pytest.raises(StreammimlError, match="no grid is called 'huge'"):
        dry_tune(store, run, CONFIG, grid="huge")
    with pytest.raises(StreammimlError, match="the largest model of the grid: shared_dim 20000000"):
        dry_tune(store, run, CONFIG, grid={"shared_dim": [8, 20_000_000]})
    (tmp_path / "file").write_text("")
    with pytest.raises(StreammimlError, match="is a file; name a folder for the search"):
        dry_tune(store, tmp_path / "file", CONFIG, grid=GRID)
