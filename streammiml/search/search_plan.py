"""What a search by ``tune`` will try: its settings, folds and rungs, before the first trial."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from streammiml.bags.bag_weights import fingerprint_of, read_weights
from streammiml.bags.memory import MemoryBags
from streammiml.bags.views import Bags
from streammiml.config import LiftSpec, TrainConfig, settings_with, without_later
from streammiml.errors import StreammimlError
from streammiml.learn.checkpoint import state_bytes
from streammiml.learn.defaults import EPOCHS, resolved
from streammiml.learn.halving import (
    ALL_STEPS,
    LEAST,
    NO_LOOKS,
    STOPPING_EARLY,
    Pace,
    Rung,
    rungs,
)
from streammiml.learn.presets import with_preset
from streammiml.learn.run_plan import RunPlan, plan_run
from streammiml.search.folds import Folds
from streammiml.search.grid import (
    SLOW_EPOCHS,
    SLOW_GRIDS,
    SLOW_STEPS,
    SPARSE_SLOW_STEPS,
    GridLike,
    Setting,
    key_of,
    settings_of,
)

# Settings that do not change the result of a trial; a trial always trains on one thread.
FREE_IN_TRIALS = (*settings_with("speed"), "threads", "calibrate")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """A search that its store and its options fix."""

    config: TrainConfig
    """Settings of the winner, without those that the grid varies."""
    base: TrainConfig
    """The same for trials."""
    settings: list[Setting]
    """The grid."""
    folds: Folds
    pace: Pace
    steps: int
    """Most steps of a trial."""
    rungs: list[Rung]
    record: dict[str, Any]
    """Record of the folder: a search resumes only with the same store, settings and grid."""

    def surviving(self) -> Iterator[tuple[Rung, int]]:
        """Each rung, and the number of settings that are tried on it."""
        n_settings = len(self.settings)
        for number, rung in enumerate(self.rungs):
            if number:
                n_settings = max(LEAST, math.ceil(n_settings * self.pace.kept))
            yield rung, n_settings

    def of_trial(self, setting: Setting) -> TrainConfig:
        """Settings of the longest trial of a setting."""
        return replace(self.base, **setting, max_steps=self.steps)

    def memory(self, store: Bags) -> RunPlan:
        """Plan of the trial with the largest model; refuse a model that does not fit."""
        learn, _ = self.folds.cut(store, 0)
        return _plan_of_largest(learn, self.base, self.settings)


def plan_search(
    store: Bags, config: TrainConfig | None, *, grid: GridLike, folds: int, halving: bool
) -> SearchPlan:
    """Plan a search; refuse a grid, a number of folds or a store that ``tune`` cannot use."""
    config = config or TrainConfig()
    given = config.given()
    # The grid says what is tried.
    preset = "plain" if config.preset == "auto" else config.preset
    config = with_preset(replace(config, threads=1, preset=preset), given)
    # Trials are compared after the same number of visits; only the winner trains with replicas
    # and is calibrated.
    base = replace(config, replicas=1, round_steps=None, calibrate=None)
    settings = settings_of(grid, base, sparse=store.sparse)
    slow = isinstance(grid, str) and grid in SLOW_GRIDS
    fold_plan = Folds(store.n_bags, folds)
    if store.n_labels < 2 or store.n_label_entries == 0:
        raise StreammimlError(
            f"{store.name} has {store.n_labels} labels, and settings are compared by the order of "
            "labels; at least 2 labels are needed"
        )
    record = _record(store, base, settings, fold_plan, halving, slow)
    n_bags = store.n_bags * (fold_plan.k - 1) // fold_plan.k
    stops = base.validation_store is not None or resolved(base, n_bags).validation
    pace = STOPPING_EARLY if stops else ALL_STEPS
    if slow:
        pace, base = NO_LOOKS, _long_enough(base, store, n_bags)
    steps = _most_steps(base, n_bags)
    return SearchPlan(
        config=config,
        base=base,
        settings=settings,
        folds=fold_plan,
        pace=pace,
        steps=steps,
        rungs=rungs(len(settings), fold_plan.k, steps, pace, halving=halving),
        record=record,
    )


def is_in_memory(store: Bags) -> bool:
    """Whether the bags exist only in the memory of this process: workers cannot open them."""
    base = getattr(store, "base", store)
    return isinstance(base, MemoryBags)


def _plan_of_largest(learn: Bags, base: TrainConfig, settings: list[Setting]) -> RunPlan:
    """Plan the trial of the largest model of a grid; refuse a model that does not fit."""

    def weights(setting: Setting) -> int:
        config = replace(base, **setting)
        n_lifted = LiftSpec.parse(config.lift).width(learn.n_features)
        return state_bytes(config, n_lifted, learn.n_labels)

    largest = max(settings, key=weights)
    try:
        return plan_run(learn, resolved(replace(base, **largest), learn.n_bags))
    except StreammimlError as error:
        values = ", ".join(f"{name} {value}" for name, value in largest.items())
        raise StreammimlError(f"{error} (the largest model of the grid: {values})") from None


def _long_enough(config: TrainConfig, store: Bags, n_bags: int) -> TrainConfig:
    """Settings for trials of a slow grid that train on ``n_bags`` bags of the store."""
    enough = SPARSE_SLOW_STEPS if store.sparse else SLOW_STEPS
    if store.sparse and config.epochs is None:
        epochs = min(EPOCHS, math.ceil(enough / max(1, n_bags)))
        config = replace(config, epochs=max(epochs, resolved(config, n_bags).n_epochs))
    steps = min(_most_steps(config, n_bags), max(enough, SLOW_EPOCHS * store.n_bags))
    return replace(config, max_steps=steps)


def _most_steps(config: TrainConfig, n_bags: int) -> int:
    """Upper limit for the steps of training on ``n_bags`` bags."""
    steps = resolved(config, n_bags).n_epochs * n_bags
    return steps if config.max_steps is None else min(config.max_steps, steps)


def _record(
    store: Bags,
    base: TrainConfig,
    settings: list[Setting],
    folds: Folds,
    halving: bool,
    slow: bool,
) -> dict[str, Any]:
    """Record of the folder: a search resumes only with the same store, settings and grid."""
    decisive = {
        name: value
        for name, value in without_later(base.recorded()).items()
        if name not in FREE_IN_TRIALS
    }
    search = {"folds": folds.k, "halving": halving, "store": store.fingerprint}
    if base.bag_weights is not None:
        search["weights_fingerprint"] = fingerprint_of(read_weights(store, base.bag_weights))
    tried = {"settings": settings, **({"slow": True} if slow else {})}
    return {**decisive, **search, "grid": key_of(tried)}
