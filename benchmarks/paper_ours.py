"""streammiml in the paper's tables: a mode is an optional grid search, then a training."""

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
from streammiml.learn.train import train
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
    """Fixed settings, and the grid from which cross validation chooses the others."""

    given: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    sparse_grid: Mapping[str, list[Any]] | None = None
    """Grid for sparse rows, because most lifts need dense rows; None: ``grid``."""
    trial_steps: int | None = None
    """Steps of each trial of a grid that ``tune`` knows by name. All settings are tried on the
    first fold and the better third on the other folds, as with the peers. In other grids ``tune``
    discards most settings after fewer steps."""
    sparse_steps: int | None = None
    """``trial_steps`` for sparse rows."""
    named: str | None = None
    """Name of the grid in ``tune``, if it has one."""

    def search(self, *, sparse: bool) -> tuple[Mapping[str, list[Any]], int | None]:
        """The grid, and the number of steps of a trial."""
        if sparse and self.sparse_grid is not None:
            return self.sparse_grid, self.sparse_steps
        return self.grid, self.trial_steps


PLAIN = {"preset": "plain"}
"""No race: only the default mode lets training choose its settings."""
MODES = {
    # 32 of the paper's 288 candidates: without the middle value of C, and with one value each of
    # m and eta, to which "the algorithm is not very sensitive".
    "paper": Mode(
        given={**PLAIN, "average": False, "epochs": 300, "validation": 0.1},
        grid={
            "subconcepts": [1, 5, 10, 15],
            "max_norm": [1.0, 10.0],
            "step_size": [0.0001, 0.0005, 0.001, 0.005],
        },
    ),
    "default": Mode(),
    # The winner is trained for the default number of epochs.
    "best": Mode(
        given=PLAIN,
        grid=GRIDS["best"],
        sparse_grid=SPARSE_GRIDS["best"],
        trial_steps=SLOW_STEPS,
        sparse_steps=SPARSE_SLOW_STEPS,
        named="best",
    ),
    **{f"K={k}": Mode(given={**PLAIN, "subconcepts": k}) for k in (1, 5, 10, 15)},
    "V1": Mode(given={**PLAIN, "shared_space": False}),
    "V2": Mode(given={**PLAIN, "rule": "top-r"}),
}


def tuned(
    bags: MemoryBags, config: TrainConfig, grid: GridLike
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The winner, and the ranking loss of each setting on the first fold."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        winner = tune(bags, run, config, grid=grid, folds=FOLDS, threads=1)["winner"]
        longest: dict[str, tuple[int, float]] = {}  # (steps, loss) of the longest trial
        for path in (run / "trials").glob("*-0-*.json"):
            key, _, steps = path.stem.split("-")
            loss = json.loads(path.read_text())["figures"]["ranking_loss"]
            trial = int(steps), math.inf if loss is None else loss
            longest[key] = max(longest.get(key, trial), trial)
    settings = settings_of(grid, config, sparse=bags.sparse)
    return dict(winner), [
        {"setting": setting, "ranking_loss": longest[key_of(setting)][1]} for setting in settings
    ]


def chosen_elsewhere(sets: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The setting with the lowest sum, over sets, of its first-fold loss relative to the best."""
    lowest = [min(look["ranking_loss"] for look in looks) for looks in sets]

    def relative_loss(number: int) -> float:
        losses = [looks[number]["ranking_loss"] for looks in sets]
        return sum(loss / least for loss, least in zip(losses, lowest, strict=True))

    return dict(sets[0][min(range(len(sets[0])), key=relative_loss)]["setting"])


def measured(mode: Mode, data: PaperSet, learn: I64, test: I64, smoke: bool) -> dict[str, Any]:
    """Choose settings by cross validation on ``learn``, train on ``learn``, measure on ``test``."""
    given = {**mode.given, **({"epochs": 2, "validation": 0.2} if smoke else {})}
    config = TrainConfig(**given)
    bags = data.bags(learn)
    grid, _ = mode.search(sparse=bags.sparse)
    if smoke:
        grid = {name: values[-2:] for name, values in grid.items()}
    n_settings = math.prod(map(len, grid.values()))
    assert n_settings <= MOST_SETTINGS, "every method has the same budget"
    search_result: dict[str, Any] = {"chosen": {}, "n_settings": n_settings}
    if mode.grid:
        search_result["chosen"], looks = tuned(bags, config, grid if smoke else mode.named or grid)
        if mode.named:
            search_result["first_fold"] = looks
    return {**search_result, **trained({**given, **search_result["chosen"]}, data, learn, test)}


def trained(settings: Mapping[str, Any], data: PaperSet, learn: I64, test: I64) -> dict[str, Any]:
    """Train on ``learn``; the figures on ``test``, and the scale that the model used."""
    model = train(data.bags(learn), TrainConfig(**settings))
    figures = evaluate(model, data.bags(test), threads=1)
    return {
        "figures": {name: figures[name] for name in FIGURES if name in figures},
        "scale": model.settings["scale"],
    }
