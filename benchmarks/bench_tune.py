"""Early discarding against the full grid, and two processes against one, on real sets.

The sets are found in the folder that STREAMMIML_DATA names; without it there is only one that is
made. STREAMMIML_BENCH_GRID ("small") may be "paper", which takes hours.

``loss_above_best`` is the ranking loss of the winner found by early discarding, as the full grid
measured it on all folds, above the lowest one there. ``share_of_steps`` compares steps done.

Times are from when the processes are there to the end of the last trial. ``two_processes_over_one``
of ``made`` is of trials that all take the same steps, on the sets of a search.
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
from streammiml.bags.checks import StoreSpec
from streammiml.bags.views import Bags
from streammiml.bags.writer import BagWriter
from streammiml.config import TrainConfig
from streammiml.search.tune import tune

PAIRS = 3


def scene(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    found = loadmat(folder / "scene" / "miml-image-data.mat")
    return list(found["bags"].ravel()), found["targets"].T > 0


def msrcv2(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    found = loadmat(folder / "msrcv2" / "MSCV2.mat")
    return list(found["Bags"].ravel()), found["Y"] > 0


def made() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(3, 5)) for _ in range(60)], rng.random((60, 4)) < 0.4


def stored(path: Path, bags: list[np.ndarray], truth: np.ndarray) -> Bags:
    labels = [np.flatnonzero(row) for row in truth]
    block = BagBlock.from_bags([bag.astype(np.float32) for bag in bags], labels)
    spec = StoreSpec(n_features=block.n_features, n_labels=truth.shape[1])
    with BagWriter.begin(path, spec) as writer:
        writer.write_part(0, block)
        return writer.finish(1)


def timed(*where: Any, **options: Any) -> tuple[dict[str, Any], float]:
    """What ``tune`` found, and the seconds that its trials took."""
    times: list[float] = []
    found = tune(*where, **options, watch=lambda _: times.append(time.perf_counter()))
    return found, times[-1] - times[0]


def compared(name: str, store: Bags, config: TrainConfig, grid: Any) -> Iterator[dict[str, Any]]:
    case = {"set": name, "grid": grid if isinstance(grid, str) else "smoke"}
    with tempfile.TemporaryDirectory() as name:
        folder, seconds = Path(name), {}

        def run(what: str, **options: Any) -> dict[str, Any]:
            found, seconds[what] = timed(store, folder / what, config, grid=grid, **options)
            return found

        early, full = run("early", workers=2), run("full", workers=2, halving=False)
        losses = {row["setting"]: row["ranking_loss"] for row in full["table"]}
        winner = losses[early["table"][0]["setting"]]
        yield {
            "case": case,
            "settings": full["n_settings"],
            "ranking_loss": round(full["ranking_loss"], 4),
            "loss_above_best": round(winner - full["ranking_loss"], 4),
            "share_of_steps": round(early["steps"] / full["steps"], 3),
            "share_of_time": round(seconds["early"] / seconds["full"], 3),
            "seconds": round(seconds["early"], 1),
        }
        run("one", workers=1)
        ratio = round(seconds["one"] / seconds["early"], 2)
        yield {"case": case, "two_processes_over_one": ratio}


def equal_trials(folder: Path, smoke: bool) -> dict[str, Any]:
    """Sixteen trials of some seconds each, by one process and by two, in turns."""
    rng = np.random.default_rng(0)
    n_bags, n_labels = (60, 4) if smoke else (3000, 20)
    bags = [rng.normal(size=(8, 100)) for _ in range(n_bags)]
    store = stored(folder / "x.zarr", bags, rng.random((n_bags, n_labels)) < 0.1)
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
        sets = {"made": made}
    else:
        sets = {"scene": lambda: scene(Path(data)), "msrcv2": lambda: msrcv2(Path(data))}
        sets = sets if data else {}
    for name, read in sets.items():
        with tempfile.TemporaryDirectory() as folder:
            store = stored(Path(folder) / "x.zarr", *read())
            config = TrainConfig(max_steps=200, validation=0.2) if smoke else TrainConfig()
            grid = {"step_size": [0.01, 0.02, 0.1]} if smoke else _grid()
            yield from compared(name, store, config, grid)


def _grid() -> str:
    return os.environ.get("STREAMMIML_BENCH_GRID", "small")
