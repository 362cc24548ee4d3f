"""A dry run of ``tune``: trials, steps, memory and time of a search; nothing is written."""

from __future__ import annotations

import os
from dataclasses import dataclass

from streammiml._base.platform import usable_cores
from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.config import LiftSpec, TrainConfig
from streammiml.learn.defaults import resolved
from streammiml.learn.dry_run import sample_bags, timed_step, untrained_state
from streammiml.learn.run_plan import plan_run
from streammiml.learn.validation import step_work
from streammiml.measure.prediction_folder import check_folder
from streammiml.measure.scoring import StoreLike
from streammiml.measure.tasks import store_bytes
from streammiml.search.grid import GridLike
from streammiml.search.search_plan import SearchPlan, is_in_memory, plan_search
from streammiml.search.tune import IN_MEMORY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneDryRun:
    """Costs of a search. Steps and seconds are upper limits: trainings may stop early."""

    n_settings: int
    folds: int
    trials: int
    steps: int
    """Most steps of all trials together."""
    share_of_grid: float
    """These steps divided by those of all settings on all folds."""
    trials_at_once: int | None
    """Trials that run at the same time; None for a cluster that is not started here."""
    memory: int
    """Most bytes that a trial holds, with the bags of its folds if they are kept in memory."""
    memory_allowed: int
    """``memory`` of the settings: the limit for what one trial holds beside these folds."""
    seconds_on_one_core: float
    """Seconds of steps, from untrained models; reading runs at the same time in other threads."""
    seconds: float | None
    """The same for the trials at once; None for a cluster that is not started here."""


def dry_tune(
    store: StoreLike,
    run: str | os.PathLike[str],
    config: TrainConfig | None = None,
    *,
    grid: GridLike = "small",
    folds: int = 3,
    halving: bool = True,
    machines: PoolOptions | None = None,
) -> TuneDryRun:
    """Estimate the costs of ``tune``; what it refuses before the first trial is refused.

    Trials that ``run`` has already count as if they were missing.
    """
    store = store if isinstance(store, Bags) else open_store(store)
    plan = plan_search(store, config, grid=grid, folds=folds, halving=halving)
    budget = plan.memory(store).budget
    check_folder(run, plan.record, "search")
    counts = [(rung, count * len(rung.folds)) for rung, count in plan.surviving()]
    trials = sum(count for _, count in counts)
    steps = sum(rung.steps * count for rung, count in counts)
    seconds = _seconds(store, plan)
    at_once = _trials_at_once(store, machines or PoolOptions())
    return TuneDryRun(
        n_settings=len(plan.settings),
        folds=plan.folds.k,
        trials=trials,
        steps=steps,
        share_of_grid=steps / (len(plan.settings) * plan.folds.k * plan.steps),
        trials_at_once=at_once,
        memory=budget.total + _kept_folds(store, plan),
        memory_allowed=budget.allowed,
        seconds_on_one_core=seconds,
        seconds=None if at_once is None else seconds / min(at_once, trials),
    )


def _kept_folds(store: Bags, plan: SearchPlan) -> int:
    sizes = [store_bytes(part) for part in plan.folds.cut(store, 0)]
    return round(sum(size for size in sizes if size <= IN_MEMORY_BYTES))


def _trials_at_once(store: Bags, machines: PoolOptions) -> int | None:
    if machines.scheduler is not None or machines.client is not None:
        return None
    if machines.workers is None and machines.threads is None:
        return 1 if is_in_memory(store) else usable_cores()
    return machines.workers or machines.threads


def _seconds(store: Bags, plan: SearchPlan) -> float:
    """Seconds of all trials, at most: those with the costliest settings survive each rung.

    Steps are timed with the cheapest and the costliest setting. The seconds of the others lie on a
    straight line between them, by their multiplications.
    """
    learn, _ = plan.folds.cut(store, 0)
    works = sorted(
        (_work(learn, plan.of_trial(setting)), number)
        for number, setting in enumerate(plan.settings)
    )
    (least, cheapest), (most, costliest) = works[0], works[-1]
    low = _step_seconds(learn, plan.of_trial(plan.settings[cheapest]))
    slope = 0.0
    if most > least:
        high = _step_seconds(learn, plan.of_trial(plan.settings[costliest]))
        slope = max(0.0, high - low) / (most - least)
    seconds = 0.0
    for rung, count in plan.surviving():
        surviving = works[-count:]
        of_rung = sum(low + slope * (work - least) for work, _ in surviving)
        seconds += of_rung * rung.steps * len(rung.folds)
    return seconds


def _work(store: Bags, config: TrainConfig) -> float:
    return step_work(config, store, LiftSpec.parse(config.lift).width(store.n_features))


def _step_seconds(store: Bags, config: TrainConfig) -> float:
    config = resolved(config, store.n_bags)
    sample, _ = sample_bags(plan_run(store, config))
    seconds, _ = timed_step(config, untrained_state(store, config, sample), sample)
    return seconds
