"""What streammiml does in the paper's tables: modes, each a search or none, then a training."""

from __future__ import annotations

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
from streammiml.measure.pieces import whole
from streammiml.search.folds import Folds
from streammiml.search.grid import settings_of
from streammiml.search.halving import Trial
from streammiml.search.tune import Work, run_trial, tune

MOST_SETTINGS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Settings that are given, and those that cross validation chooses."""

    given: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    sparse_grid: Mapping[str, list[Any]] | None = None
    """Where rows are sparse, and cannot be lifted."""
    trial_steps: int | None = None
    """Steps of each trial: all settings have them on the first fold, and the better third on the
    others too, as with the peers. None: ``tune``, which discards most after fewer steps."""

    def grid_for(self, *, sparse: bool) -> Mapping[str, list[Any]]:
        return self.sparse_grid if sparse and self.sparse_grid is not None else self.grid


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
    # All on as many steps: rows of one length learn slowly at first, and are discarded after a
    # 25th of the steps where they are best in the end. How long the winner is trained is the
    # default's business.
    "best": Mode(
        grid={
            "lift": ["none", "fourier:300:1", "context:all", "context:all,fourier:300:0.5"],
            "scale": ["auto", "sqrt:unit"],
            "subconcepts": [1, 5],
            "shared_space": [True, False],
        },
        sparse_grid={
            "scale": ["auto", "unit", "sqrt:unit", "log1p:unit"],
            "subconcepts": [1, 5],
            "shared_space": [True, False],
        },
        trial_steps=20_000,
    ),
    **{f"K={k}": Mode(given={"subconcepts": k}) for k in (1, 5, 10, 15)},
    "V1": Mode(given={"shared_space": False}),
    "V2": Mode(given={"rule": "top-r"}),
}


def tuned(bags: MemoryBags, config: TrainConfig, grid: Mapping[str, list[Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        return dict(tune(bags, run, config, grid=grid, folds=FOLDS, threads=1)["winner"])


def fold_by_fold(
    bags: MemoryBags, config: TrainConfig, grid: Mapping[str, list[Any]], steps: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The winner, and what each setting came to on the first fold."""
    settings, cut = settings_of(grid, config), Folds(bags.n_bags, FOLDS)
    everything = whole(bags, remote=False)
    losses: dict[int, list[float]] = {}

    def look(number: int, fold: int) -> None:
        work = Work(Trial(number, fold, steps), settings[number])
        found = run_trial(work, everything, cut, config).figures["ranking_loss"]
        losses.setdefault(number, []).append(math.inf if found is None else found)

    for number in range(len(settings)):
        look(number, 0)
    kept = sorted(losses, key=lambda n: losses[n])[: max(2, math.ceil(len(settings) / 3))]
    for number in kept:
        for fold in range(1, FOLDS):
            look(number, fold)
    winner = settings[min(kept, key=lambda n: math.fsum(losses[n]))]
    return winner, [
        {"setting": setting, "ranking_loss": losses[number][0]}
        for number, setting in enumerate(settings)
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
    grid = mode.grid_for(sparse=bags.sparse)
    if smoke:
        grid = {name: values[-2:] for name, values in grid.items()}
    n_settings = math.prod(map(len, grid.values()))
    assert n_settings <= MOST_SETTINGS, "every method has the same budget"
    said: dict[str, Any] = {"chosen": {}, "n_settings": n_settings}
    if mode.grid and mode.trial_steps is None:
        said["chosen"] = tuned(bags, config, grid)
    elif mode.grid:
        # As many visits to each bag at least as on the small sets.
        steps = 100 if smoke else max(mode.trial_steps or 0, 8 * bags.n_bags)
        said["chosen"], said["first_fold"] = fold_by_fold(bags, config, grid, steps)
    return {**said, **trained({**given, **said["chosen"]}, data, learn, test)}


def trained(settings: Mapping[str, Any], data: PaperSet, learn: I64, test: I64) -> dict[str, Any]:
    """Figures on ``test`` of a model with these settings, and what they came to."""
    model = train(data.bags(learn), TrainConfig(**settings))
    found = evaluate(model, data.bags(test), threads=1)
    return {
        "figures": {name: found[name] for name in FIGURES if name in found},
        "scale": model.settings["scale"],
    }
