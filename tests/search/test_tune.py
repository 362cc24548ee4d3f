import json
import math
import shutil
import tomllib
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

import streammiml as sm
from streammiml.bags.bag_weights import read_weights
from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import DivergedError, StreammimlError
from streammiml.measure.evaluate import evaluate
from streammiml.search import search_plan as plans
from streammiml.search import tune as module
from streammiml.search.folds import Folds
from streammiml.search.grid import GRIDS, SPARSE_GRIDS
from streammiml.search.tune import figures_of, tune
from tests.clusters import inside_client
from tests.planted import planted
from tests.stores import as_sparse, content, scratch, write_store

# From random weights, since a start from the bags ranks labels before the first step.
BASE = TrainConfig(max_steps=240, epochs=5, shared_dim=8, validation=0.2, init="random")
GRID = {"subconcepts": [1, 2], "step_size": [1e-6, 0.05, 0.1]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "x.zarr"
    return write_store(path, planted(90), n_labels=5)


@pytest.fixture(scope="module")
def search(store, tmp_path_factory):
    run = tmp_path_factory.mktemp("tune") / "run"
    return run, tune(store, run, BASE, grid=GRID, threads=2)


def test_tune__discards_settings_and_writes_a_table_and_the_winner(search):
    run, summary = search
    assert [row["finished"] for row in summary["table"]] == [True] * 2 + [False] * 4
    best = summary["table"][0]
    assert summary["winner"]["step_size"] > 1e-6, "steps so small cannot win"
    assert summary["winner"] == {name: best[name] for name in GRID}
    assert best["ranking_loss"] <= summary["table"][1]["ranking_loss"]
    assert (best["folds"], best["max_steps"]) == (3, 240)
    assert best["standard_error"] > 0
    assert {row["max_steps"] for row in summary["table"][2:]} == {10}
    assert summary["steps"] <= 6 * 10 + 2 * 30 + 2 * 240 + 2 * 2 * 240
    assert summary["share_of_grid"] == summary["steps"] / (6 * 3 * 240)
    assert json.loads((run / "table.json").read_text()) == summary
    assert pq.read_table(run / "table.parquet").to_pylist() == summary["table"]
    settings = tomllib.loads((run / "settings.toml").read_text())
    assert replace(TrainConfig(), **settings) == replace(BASE, **summary["winner"], preset="plain")


def test_tune__writes_what_its_trials_had(store, tmp_path):
    config = replace(BASE, init="auto", preset="paper")
    tune(store, tmp_path / "run", config, grid=GRID, threads=1)
    settings = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert settings["init"] == "random"
    assert settings["average"] is False


def test_tune__compares_with_one_replica_and_gives_the_winner_all(store, search, tmp_path):
    config = replace(BASE, replicas=2, round_steps=50)
    summary = tune(store, tmp_path / "run", config, grid=GRID, threads=1)
    assert summary == search[1]
    settings = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert (settings["replicas"], settings["round_steps"]) == (2, 50)


def test_tune__memory_of_workers_is_a_limit_of_workers(store, tmp_path):
    with pytest.raises(StreammimlError, match="--worker-memory is for the processes of --workers"):
        tune(store, tmp_path / "run", BASE, grid=GRID, threads=1, worker_memory="1GiB")
    assert not (tmp_path / "run").exists()


def test_tune__trains_a_winner_with_replicas_where_the_search_runs(store, tmp_path):
    config, grid = replace(BASE, replicas=2, round_steps=128), {"step_size": [0.01]}
    models = []
    with inside_client() as client:
        for name, where in (("here", {"threads": 1}), ("there", {"client": client})):
            tune(store, tmp_path / name, config, grid=grid, train_winner=True, **where)
            lines = (tmp_path / name / "winner" / "history.jsonl").read_text().splitlines()
            moved = sum(json.loads(line)["moved_mb"] for line in lines)
            assert (moved > 0) == (name == "there")
            models.append((tmp_path / name / "winner" / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_tune__is_the_same_on_a_client_which_stays_open(store, search, tmp_path):
    with inside_client() as client:
        assert tune(store, tmp_path / "run", BASE, grid=GRID, client=client) == search[1]
        assert client.status == "running"


def test_tune__a_loss_is_that_of_a_model_trained_on_the_other_folds(store, search):
    _, summary = search
    losses = []
    for fold in range(3):
        learn, test = Folds(90, 3).cut(store, fold)
        model = sm.train(learn, replace(BASE, **summary["winner"], preset="plain"))
        losses.append(evaluate(model, test)["ranking_loss"])
        assert figures_of(model, test)["ranking_loss"] == losses[-1]
    assert summary["ranking_loss"] == pytest.approx(np.mean(losses), abs=1e-15)


def test_tune__without_halving_all_settings_see_all_folds(store, tmp_path):
    grid = {"step_size": [1e-6, 0.05, 0.1]}
    summary = tune(store, tmp_path / "run", BASE, grid=grid, halving=False, threads=2)
    assert [(row["finished"], row["folds"]) for row in summary["table"]] == [(True, 3)] * 3
    assert len(list((tmp_path / "run" / "trials").iterdir())) == 9


@pytest.mark.parametrize("sparse", [False, True])
def test_tune__the_best_grid_leaves_none_behind_before_all_its_steps(tmp_path, monkeypatch, sparse):
    monkeypatch.setattr(plans, "SPARSE_SLOW_STEPS" if sparse else "SLOW_STEPS", 20)
    monkeypatch.setattr(plans, "SLOW_EPOCHS", 0)
    block = as_sparse(planted(60)) if sparse else planted(60)
    store = write_store(tmp_path / "x.zarr", block, n_labels=5)
    base = TrainConfig(shared_dim=4)
    summary = tune(store, tmp_path / "run", base, grid="best", threads=2)
    n = 16 if sparse else 32
    kept = math.ceil(n / 3)
    assert [row["folds"] for row in summary["table"]] == [3] * kept + [1] * (n - kept)
    assert {row["max_steps"] for row in summary["table"]} == {20}
    assert summary["steps"] == 20 * (n + 2 * kept)
    with pytest.raises(StreammimlError, match="grid"):
        tune(store, tmp_path / "run", base, grid=SPARSE_GRIDS["best"] if sparse else GRIDS["best"])


def test_tune__the_best_grid_of_sparse_rows_is_tried_for_as_long_as_they_are_trained(
    tmp_path, monkeypatch
):
    bags = write_store(tmp_path / "x.zarr", as_sparse(planted(60)), n_labels=5)
    monkeypatch.setattr(plans, "SPARSE_SLOW_STEPS", 2000)
    seen = []
    monkeypatch.setattr(module, "run_trial", lambda work, *rest: seen.append((work, rest[2])))
    with pytest.raises(AttributeError):
        tune(bags, tmp_path / "run", TrainConfig(shared_dim=4), grid="best", threads=1)
    assert {work.trial.steps for work, _ in seen} == {2000}
    # 40 bags: 40 000 steps unless told otherwise.
    assert {base.epochs for _, base in seen} == {1000}
    for n_bags, epochs in ((40, 1000), (4000, 10), (40_000, 100)):
        held = plans._long_enough(TrainConfig(), bags, n_bags)
        assert (held.epochs, held.max_steps) == (epochs, min(2000, epochs * n_bags))
    monkeypatch.setattr(plans, "SPARSE_SLOW_STEPS", 400_000)
    for n_bags, epochs in ((1000, 100), (4600, 87), (40_000, 100)):
        held = plans._long_enough(TrainConfig(), bags, n_bags)
        assert (held.epochs, held.max_steps) == (epochs, min(400_000, epochs * n_bags))


def test_tune__a_grid_with_a_model_that_does_not_fit_is_refused_before_the_first_trial(
    store, tmp_path
):
    grid = {"shared_dim": [10, 10**8], "subconcepts": [1, 2]}
    message = r"^training would hold .*\(the largest model of the grid: shared_dim 100000000, sub"
    with pytest.raises(StreammimlError, match=message):
        tune(store, tmp_path / "run", BASE, grid=grid, threads=1)
    assert not (tmp_path / "run").exists()


def test_tune__goes_on_with_the_trials_that_are_missing(store, search, tmp_path, monkeypatch):
    run, summary = search
    again = shutil.copytree(run, tmp_path / "run")
    trials = sorted((again / "trials").iterdir())
    trials[0].unlink()
    trials[3].write_bytes(b"{")
    ran = []
    real = module.run_trial
    monkeypatch.setattr(
        module, "run_trial", lambda work, *rest: ran.append(work.trial) or real(work, *rest)
    )
    seen = []
    assert tune(store, again, BASE, grid=GRID, threads=1, watch=seen.append) == summary
    assert len(ran) == 2
    assert content(again) == content(run)
    assert [progress.rung for progress in seen] == sorted(progress.rung for progress in seen)
    assert seen[-1].trials_done == seen[-1].n_trials
    assert seen[-1].best_loss == summary["ranking_loss"]


def test_tune__refuses_to_mix_searches(store, search, tmp_path):
    run = shutil.copytree(search[0], tmp_path / "run")
    for options, message in [
        ({"folds": 4}, "was begun with folds 3, not 4; name another folder"),
        ({"grid": "small"}, "was begun with grid '[0-9a-f]+', not '"),
        ({"config": replace(BASE, lift="context")}, "was begun with lift 'none', not 'context'"),
    ]:
        with pytest.raises(StreammimlError, match=message):
            tune(store, run, **{"config": BASE, "grid": GRID, "threads": 1, **options})
    # Memory changes no result.
    tune(store, run, replace(BASE, memory="900MiB"), grid=GRID, threads=1)


def test_tune__refuses_to_mix_trials_of_other_weights_of_bags(tmp_path):
    block = planted(60)
    for name, weight in (("a.zarr", 1.0), ("b.zarr", 2.0)):
        rows = np.full(block.n_rows, weight)
        write_store(tmp_path / name, replace(block, kept={"weight": rows}), n_labels=5)
    config = replace(BASE, max_steps=20, bag_weights="weight")
    options = {"grid": {"subconcepts": [1]}, "folds": 2, "threads": 1}
    result = tune(tmp_path / "a.zarr", tmp_path / "run", config, **options)
    assert tune(tmp_path / "a.zarr", tmp_path / "run", config, **options) == result
    with pytest.raises(
        StreammimlError, match=r"run was begun with weights_fingerprint '[0-9a-f]+', not '"
    ):
        tune(tmp_path / "b.zarr", tmp_path / "run", config, **options)


def test_tune__trains_the_winner_on_all_bags(store, tmp_path):
    grid = {"step_size": [0.05, 0.1]}
    seen = []
    options = {"grid": grid, "threads": 2, "train_winner": True, "watch_winner": seen.append}
    summary = tune(store, tmp_path / "run", BASE, **options)
    assert seen[-1].step == max(progress.step for progress in seen) > 0
    model = sm.load_model(tmp_path / "run" / "winner")
    want = sm.train(store, replace(BASE, **summary["winner"], preset="plain"))
    assert model.labels.tobytes() == want.labels.tobytes()
    with pytest.raises(
        StreammimlError, match=r"run is a search by tune; its model is in .*winner$"
    ):
        sm.load_model(tmp_path / "run")
    # Again: everything is there.
    assert tune(store, tmp_path / "run", BASE, **options) == summary


def test_tune__bags_read_into_memory_keep_their_weights(tmp_path):
    block = planted(60)
    rows = np.repeat(np.arange(60.0), np.diff(block.bag_offsets))
    store = write_store(tmp_path / "x.zarr", replace(block, kept={"weight": rows, "time": rows}))
    bags = module.in_memory(store.view(slice(10, 30)), "weight")
    assert read_weights(bags, "weight").tolist() == [*range(10, 30)]
    assert [column.name for column in bags.kept_columns] == ["weight"]
    assert not module.in_memory(store).kept_columns


def test_tune__bags_in_memory(store, search):
    _, summary = search
    block = store.read(0, 90)
    with scratch() as folder:
        bags = MemoryBags(block, n_labels=5)
        assert tune(bags, folder / "run", BASE, grid=GRID)["table"] == summary["table"]


def test_tune__a_setting_that_diverges_loses(store, tmp_path, monkeypatch):
    real = module.train_trial

    def diverging(bags, config):
        if config.step_size > 0.2:
            raise DivergedError("training diverged at step 7: a score or weight is no finite")
        return real(bags, config)

    monkeypatch.setattr(module, "train_trial", diverging)
    grid = {"step_size": [0.5, 0.05, 0.3, 0.25]}
    summary = tune(store, tmp_path / "run", BASE, grid=grid, threads=1)
    assert summary["winner"] == {"step_size": 0.05}
    assert [row["ranking_loss"] is None for row in summary["table"]] == [False, True, True, True]
    with pytest.raises(StreammimlError, match=r"^training diverged with every setting; a grid of"):
        tune(store, tmp_path / "two", BASE, grid={"step_size": [0.5, 0.3]}, threads=1)


def test_tune__refuses_bags_that_cannot_be_compared(store, tmp_path):
    with pytest.raises(StreammimlError, match=r"^90 bags cannot be cut into 91 folds; --folds 90"):
        tune(store, tmp_path / "run", BASE, folds=91)
    one = write_store(
        tmp_path / "one.zarr",
        BagBlock.from_bags([np.ones((1, 2), np.float32)] * 4, [[0]] * 4),
        n_labels=1,
    )
    with pytest.raises(StreammimlError, match="has 1 labels, and settings are compared by the"):
        tune(one, tmp_path / "run", BASE)
    (tmp_path / "file").write_text("")
    with pytest.raises(StreammimlError, match="file is a file; name a folder for the search"):
        tune(store, tmp_path / "file", BASE, threads=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_tune__processes_give_the_same(store, search, tmp_path):
    run, summary = search
    seen = []
    assert tune(store, tmp_path / "run", BASE, grid=GRID, workers=2, watch=seen.append) == summary
    assert content(tmp_path / "run") == content(run)
    assert seen[0].dashboard is None
    shuffled = store.view(np.random.default_rng(0).permutation(90))
    there = tune(shuffled, tmp_path / "a", BASE, grid=GRID, workers=2)
    assert there == tune(shuffled, tmp_path / "b", BASE, grid=GRID, threads=1)


def test_public_names__tune():
    assert sm.tune is tune
