"""Grid search: early discarding against the full grid, and two processes against one.

The real sets are read from the folder that STREAMMIML_DATA names; without it only the synthetic set
``made`` is used. STREAMMIML_BENCH_GRID names the grid: "small" (default) or "paper", which takes
hours.

The winner is the setting that early discarding chose. ``loss_above_best`` is the winner's ranking
loss on all folds of the full grid minus the lowest loss in that grid. ``share_of_steps`` is the
number of training steps with early discarding divided by that of the full grid.

Times run from the first report of ``tune`` to the last, so they exclude the start of processes.
``two_processes_over_one`` is the time with one process divided by that with two: on ``made`` for
trials that all take the same number of steps, on real sets for a whole search.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from streammiml.bags.block import BagBlock
from streammiml.bags.validate import StoreSpec
from streammiml.bags.views import Bags
from streammiml.bags.writer import BagWriter
from streammiml.config import TrainConfig
from streammiml.search.tune import tune

PAIRS = 3


def scene(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    arrays = loadmat(folder / "scene" / "miml-image-data.mat")
    return list(arrays["bags"].ravel()), arrays["targets"].T > 0


def msrcv2(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    arrays = loadmat(folder / "msrcv2" / "MSCV2.mat")
    return list(arrays["Bags"].ravel()), arrays["Y"] > 0


def random_bags() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(3, 5)) for _ in range(60)], rng.random((60, 4)) < 0.4


def write_store(path: Path, bags: list[np.ndarray], truth: np.ndarray) -> Bags:
    labels = [np.flatnonzero(row) for row in truth]
    block = BagBlock.from_bags([bag.astype(np.float32) for bag in bags], labels)
    spec = StoreSpec(n_features=block.n_features, n_labels=truth.shape[1])
    with BagWriter.begin(path, spec) as writer:
        writer.write_part(0, block)
        return writer.finish(1)


def timed(*inputs: Any, **options: Any) -> tuple[dict[str, Any], float]:
    """The result of ``tune``, and the seconds that its trials took."""
    times: list[float] = []
    result = tune(*inputs, **options, watch=lambda _: times.append(time.perf_counter()))
    return result, times[-1] - times[0]


def compared(name: str, store: Bags, config: TrainConfig, grid: Any) -> Iterator[dict[str, Any]]:
    case = {"set": name, "grid": grid if isinstance(grid, str) else "smoke"}
    with tempfile.TemporaryDirectory() as folder_name:
        folder, seconds = Path(folder_name), {}

        def run(what: str, **options: Any) -> dict[str, Any]:
            result, seconds[what] = timed(store, folder / what, config, grid=grid, **options)
            return result

        early, full = run("early", workers=2), run("full", workers=2, halving=False)
        losses = {row["setting"]: row["ranking_loss"] for row in full["table"]}
        winner_loss = losses[early["table"][0]["setting"]]
        yield {
            "case": case,
            "settings": full["n_settings"],
            "ranking_loss": round(full["ranking_loss"], 4),
            "loss_above_best": round(winner_loss - full["ranking_loss"], 4),
            "share_of_steps": round(early["steps"] / full["steps"], 3),
            "share_of_time": round(seconds["early"] / seconds["full"], 3),
            "seconds": round(seconds["early"], 1),
        }
        run("one", workers=1)
        ratio = round(seconds["one"] / seconds["early"], 2)
        yield {"case": case, "two_processes_over_one": ratio}


def equal_trials(folder: Path, smoke: bool) -> dict[str, Any]:
    """Sixteen trials of a few seconds each, by one process and by two in turns."""
    rng = np.random.default_rng(0)
    n_bags, n_labels = (60, 4) if smoke else (3000, 20)
    bags = [rng.normal(size=(8, 100)) for _ in range(n_bags)]
    store = write_store(folder / "x.zarr", bags, rng.random((n_bags, n_labels)) < 0.1)
    config = TrainConfig(max_steps=50 if smoke else 400_000, validation=0.0, epochs=600)
    grid = {"step_size": [0.001 * (1 + i) for i in range(8)]}

    def seconds(workers: int, turn: int) -> float:
        options = {"grid": grid, "folds": 2, "halving": False, "workers": workers}
        return timed(store, folder / f"{workers}-{turn}", config, **options)[1]

    pairs = [(seconds(1, turn), seconds(2, turn)) for turn in range(1 if smoke else PAIRS)]
    return {
        "case": {"set": "made", "trials": 16},
        "seconds_a_trial": round(statistics.median(one for one, _ in pairs) / 16, 2),
        "two_processes_over_one": round(statistics.median(one / two for one, two in pairs), 2),
        "pairs": len(pairs),
    }


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    data = os.environ.get("STREAMMIML_DATA")
    with tempfile.TemporaryDirectory() as folder:
        yield equal_trials(Path(folder), smoke)
    if smoke:
        sets = {"made": random_bags}
    else:
        sets = {"scene": lambda: scene(Path(data)), "msrcv2": lambda: msrcv2(Path(data))}
        sets = sets if data else {}
    for name, read in sets.items():
        with tempfile.TemporaryDirectory() as folder:
            store = write_store(Path(folder) / "x.zarr", *read())
            config = TrainConfig(max_steps=200, validation=0.2) if smoke else TrainConfig()
            grid = {"step_size": [0.01, 0.02, 0.1]} if smoke else _grid()
            yield from compared(name, store, config, grid)


def _grid() -> str:
    return os.environ.get("STREAMMIML_BENCH_GRID", "small")
