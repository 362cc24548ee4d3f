"""What streammiml does in the paper's tables: modes, each a search or none, then a training."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.paper_sets import FIGURES, FOLDS, I64, PaperSet
from streammiml.config import TrainConfig
from streammiml.learn.trainer import train
from streammiml.measure.evaluate import evaluate
from streammiml.search.tune import tune

MOST_SETTINGS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Settings that are given, and those that cross validation chooses."""

    given: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def n_settings(self) -> int:
        count = 1
        for values in self.grid.values():
            count *= len(values)
        return count


MODES = {
    # The paper's candidates, but for m and eta, to which "the algorithm is not very sensitive",
    # and the middle one of C: 32 of 288.
    "paper": Mode(
        given={"average": False, "epochs": 300},
        grid={
            "subconcepts": [1, 5, 10, 15],
            "max_norm": [1.0, 10.0],
            "step_size": [0.0001, 0.0005, 0.001, 0.005],
        },
    ),
    "default": Mode(),
    "best": Mode(
        grid={
            "lift": ["none", "fourier:300:1", "context", "context,fourier:300:0.5"],
            "scale": ["auto", "unit"],
            "step_size": [0.01, 0.02],
        },
    ),
    **{f"K={k}": Mode(given={"subconcepts": k}) for k in (1, 5, 10, 15)},
    "V1": Mode(given={"shared_space": False}),
    "V2": Mode(given={"rule": "top-r"}),
}


def measured(mode: Mode, data: PaperSet, learn: I64, test: I64, smoke: bool) -> dict[str, Any]:
    """Choose by cross validation inside ``learn``, train on all of it, measure on ``test``."""
    assert mode.n_settings <= MOST_SETTINGS, "every method has the same budget"
    given = {**mode.given, **({"epochs": 2, "validation": 0.2} if smoke else {})}
    config = TrainConfig(**given)
    bags = data.bags(learn)
    chosen: dict[str, Any] = {}
    if mode.grid:
        grid = {name: values[-2:] for name, values in mode.grid.items()} if smoke else mode.grid
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            chosen = tune(bags, run, config, grid=grid, folds=FOLDS, threads=1)["winner"]
    model = train(bags, TrainConfig(**{**given, **chosen}))
    found = evaluate(model, data.bags(test), threads=1)
    return {
        "figures": {name: found[name] for name in FIGURES if name in found},
        "chosen": {**chosen, "scale": model.settings["scale"]},
        "n_settings": mode.n_settings,
    }
