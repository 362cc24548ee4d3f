"""What streammiml does in the paper's tables: modes, each a search or none, then a training."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.paper_sets import FIGURES, FOLDS, I64, PaperSet
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn.trainer import train
from streammiml.measure.evaluate import evaluate
from streammiml.search.grid import (
    GRIDS,
    SLOW_STEPS,
    SPARSE_GRIDS,
    SPARSE_SLOW_STEPS,
    GridLike,
    key_of,
    settings_of,
)
from streammiml.search.tune import tune

MOST_SETTINGS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Settings that are given, and those that cross validation chooses."""

    given: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    sparse_grid: Mapping[str, list[Any]] | None = None
    """Where rows are sparse, and most lifts need dense ones."""
    trial_steps: int | None = None
    """Of each trial, where ``tune`` knows the grid by a name: all settings have them on the first
    fold, and the better third on the others too, as with the peers. Of other grids ``tune``
    discards most after fewer steps."""
    sparse_steps: int | None = None
    named: str | None = None

    def search(self, *, sparse: bool) -> tuple[Mapping[str, list[Any]], int | None]:
        """The grid, and steps of a trial."""
        if sparse and self.sparse_grid is not None:
            return self.sparse_grid, self.sparse_steps
        return self.grid, self.trial_steps


MODES = {
    # The paper's candidates, but for m and eta, to which "the algorithm is not very sensitive",
    # and the middle one of C: 32 of 288.
    "paper": Mode(
        given={"average": False, "epochs": 300, "validation": 0.1},
        grid={
            "subconcepts": [1, 5, 10, 15],
            "max_norm": [1.0, 10.0],
            "step_size": [0.0001, 0.0005, 0.001, 0.005],
        },
    ),
    "default": Mode(),
    # How long the winner is trained is the default's business.
    "best": Mode(
        grid=GRIDS["best"],
        sparse_grid=SPARSE_GRIDS["best"],
        trial_steps=SLOW_STEPS,
        sparse_steps=SPARSE_SLOW_STEPS,
        named="best",
    ),
    **{f"K={k}": Mode(given={"subconcepts": k}) for k in (1, 5, 10, 15)},
    "V1": Mode(given={"shared_space": False}),
    "V2": Mode(given={"rule": "top-r"}),
}


def tuned(
    bags: MemoryBags, config: TrainConfig, grid: GridLike
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The winner, and what each setting came to on the first fold."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        winner = tune(bags, run, config, grid=grid, folds=FOLDS, threads=1)["winner"]
        found: dict[str, tuple[int, float]] = {}
        for path in (run / "trials").glob("*-0-*.json"):
            key, _, steps = path.stem.split("-")
            loss = json.loads(path.read_text())["figures"]["ranking_loss"]
            looked = int(steps), math.inf if loss is None else loss
            found[key] = max(found.get(key, looked), looked)
    settings = settings_of(grid, config, sparse=bags.sparse)
    return dict(winner), [
        {"setting": setting, "ranking_loss": found[key_of(setting)][1]} for setting in settings
    ]


def chosen_elsewhere(sets: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The setting that is best on several sets, by what each found on its first fold."""
    lowest = [min(look["ranking_loss"] for look in looks) for looks in sets]

    def above(number: int) -> float:
        looks = [each[number]["ranking_loss"] for each in sets]
        return sum(loss / least for loss, least in zip(looks, lowest, strict=True))

    return dict(sets[0][min(range(len(sets[0])), key=above)]["setting"])


def measured(mode: Mode, data: PaperSet, learn: I64, test: I64, smoke: bool) -> dict[str, Any]:
    """Choose by cross validation inside ``learn``, train on all of it, measure on ``test``."""
    given = {**mode.given, **({"epochs": 2, "validation": 0.2} if smoke else {})}
    config = TrainConfig(**given)
    bags = data.bags(learn)
    grid, _ = mode.search(sparse=bags.sparse)
    if smoke:
        grid = {name: values[-2:] for name, values in grid.items()}
    n_settings = math.prod(map(len, grid.values()))
    assert n_settings <= MOST_SETTINGS, "every method has the same budget"
    said: dict[str, Any] = {"chosen": {}, "n_settings": n_settings}
    if mode.grid:
        said["chosen"], looks = tuned(bags, config, grid if smoke else mode.named or grid)
        if mode.named:
            said["first_fold"] = looks
    return {**said, **trained({**given, **said["chosen"]}, data, learn, test)}


def trained(settings: Mapping[str, Any], data: PaperSet, learn: I64, test: I64) -> dict[str, Any]:
    """Figures on ``test`` of a model with these settings, and what they came to."""
    model = train(data.bags(learn), TrainConfig(**settings))
    found = evaluate(model, data.bags(test), threads=1)
    return {
        "figures": {name: found[name] for name in FIGURES if name in found},
        "scale": model.settings["scale"],
    }
