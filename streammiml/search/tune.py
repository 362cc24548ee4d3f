"""``tune``: search for settings by cross validation; most settings are dropped early.

Trials run in a pool of threads or processes and are saved one by one, so that a search can resume.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streammiml._base.display import shown
from streammiml._base.json_and_toml import parse_json
from streammiml._base.platform import usable_cores
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool, PoolOptions
from streammiml.bags.bag_weights import read_weights
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.config import TrainConfig
from streammiml.errors import DivergedError, StreammimlError
from streammiml.learn.halving import Trial, survivors
from streammiml.learn.progress import ChoiceProgress, TrainProgress
from streammiml.learn.run_folder import toml
from streammiml.learn.train import train, train_trial
from streammiml.measure.evaluate import combined, finished, measure_task
from streammiml.measure.prediction_folder import PartFolder, atomic_file, write_json
from streammiml.measure.registry import chosen
from streammiml.measure.scoring import StoreLike
from streammiml.measure.tasks import BagRange, all_bags, split_into_tasks, store_bytes
from streammiml.model import Model
from streammiml.scorer import Scorer
from streammiml.search.folds import Folds
from streammiml.search.grid import GridLike, Setting, key_of
from streammiml.search.search_display import TuneDisplay
from streammiml.search.search_plan import SearchPlan, is_in_memory, plan_search

METRICS = ("ranking_loss", "hamming_loss", "one_error", "coverage", "average_precision")
"""Metrics measured on each fold; the first one decides."""
SETTINGS, TABLE, SUMMARY, TRIALS, WINNER = (
    "settings.toml",
    "table.parquet",
    "table.json",
    "trials",
    "winner",
)
# Smaller folds are kept in memory, since training reads them many times.
IN_MEMORY_BYTES = 64 << 20
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """How far a search is, for progress bars."""

    rung: int
    n_rungs: int
    trials_done: int
    n_trials: int
    """Trials of this rung."""
    best_loss: float | None
    dashboard: str | None


class TrialResult(NamedTuple):
    """Figures of one trial."""

    trial: Trial
    figures: dict[str, float | None]
    """Values of ``METRICS``; None where training diverged."""
    steps_done: int
    """Fewer than the steps of the trial if training stopped early."""


class TrialTask(NamedTuple):
    """A trial and its setting, as they are sent to a worker."""

    trial: Trial
    setting: Setting


def tune(
    store: StoreLike,
    run: str | os.PathLike[str],
    config: TrainConfig | None = None,
    *,
    grid: GridLike = "small",
    folds: int = 3,
    halving: bool = True,
    train_winner: bool = False,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    client: Any = None,
    worker_memory: str | int | None = None,
    watch: Callable[[TuneProgress], None] = lambda _: None,
    watch_winner: Callable[[TrainProgress], None] = lambda _: None,
    watch_choice: Callable[[ChoiceProgress], None] = lambda _: None,
    progress: bool = False,
) -> dict[str, Any]:
    """Find the settings of the lowest ranking loss by cross validation on the bags of a store.

    The folder ``run`` gets ``trials/``, with one file per finished trial, so that a killed search
    can resume; ``table.parquet`` and ``table.json``; and ``settings.toml`` with the winner, for
    ``train --config``. The result does not depend on the number of threads or workers.

    Parameters
    ----------
    store
        A store, several stores, a view, or their paths.
    run
        Folder of the search, new or begun with the same store and settings.
    config
        Settings that the grid does not vary; a trial always trains one replica on one thread. The
        preset ``auto`` counts as ``plain``: the grid says what is tried.
    grid
        ``small``, ``paper``, ``best``, the path of a TOML file of lists, or a mapping of lists.
        ``best`` varies lift, scale, K and whether there is a shared space: 32 settings, each for
        20 000 steps or 8 epochs. For sparse rows it varies context, K, C and m: 16 settings, each
        for 400 000 steps or 100 epochs.
    folds
        Number of folds; a hash of the bag number assigns each bag to a fold.
    halving
        Drop the worse settings after a part of the steps and of the folds; otherwise all settings
        are tried on all folds.
    train_winner
        Train the winner on all bags afterwards, in the folder ``winner`` of ``run``; if it has
        replicas, on the same ``workers``, ``scheduler`` or ``client`` as the search.
    threads
        Threads of this process.
    workers
        Processes of a local cluster. Without ``threads``, ``workers``, ``scheduler`` and ``client``
        there are as many processes as cores.
    scheduler
        Address of a running Dask scheduler to use instead.
    client
        A ``distributed.Client``, which is used and stays open, a Dask cluster object, or
        ``"active"``, the client that Dask uses by default.
    worker_memory
        Memory limit of each of the ``workers``; by default an equal share of all memory.
    watch
        Called with the progress after each trial.
    watch_winner
        Called with the progress of training the winner, as ``watch`` of ``train``.
    watch_choice
        Called with the progress of choosing the winner's epochs, as ``watch_choice`` of ``train``.
    progress
        Show the progress: a line for each tenth of the trials, then that of training the winner.

    Returns
    -------
    ``winner``, its settings; ``ranking_loss``, the winner's mean over the folds; ``table``, one row
    per setting, the best first; ``steps``, the number of steps done in all; and ``share_of_grid``,
    that number divided by the steps of all settings on all folds.

    Examples
    --------
    >>> grid = {"step_size": [0.005, 0.02], "shared_dim": [10]}
    >>> config = sm.TrainConfig(epochs=3)
    >>> result = sm.tune("corpus.zarr", "tuned", config, grid=grid, folds=2, threads=1)
    >>> sorted(result["winner"]), len(result["table"])
    (['shared_dim', 'step_size'], 2)
    """
    store = store if isinstance(store, Bags) else open_store(store)
    plan = plan_search(store, config, grid=grid, folds=folds, halving=halving)
    config = plan.config
    # The winner trains where the search was told to run, if it has replicas.
    machines: dict[str, Any] = {}
    if config.replicas > 1:
        machines = {"workers": workers, "scheduler": scheduler, "client": client}
        machines["worker_memory"] = worker_memory
    if threads is None and workers is None and scheduler is None and client is None:
        cores = usable_cores()
        threads, workers = (1, None) if cores == 1 or is_in_memory(store) else (None, cores)
    pool_options = PoolOptions(
        threads=threads,
        workers=workers,
        scheduler=scheduler,
        client=client,
        worker_memory=worker_memory,
    )
    plan.memory(store)
    with ExitStack() as stack:
        watch = stack.enter_context(shown(TuneDisplay, watch, progress=progress))
        with open_pool(pool_options, relief="--memory") as pool:
            # After the pool: a search that gets no pool must not leave a folder behind.
            folder = stack.enter_context(PartFolder(run, plan.record, "search"))
            (folder.path / TRIALS).mkdir(exist_ok=True)
            summary = _Search(folder.path, pool, store, plan, watch).run()
        _write(folder.path, config, summary)
        folder.finish({"n_settings": len(plan.settings)})
        if train_winner:
            best = replace(config, **summary["winner"])
            winner = folder.path / WINNER
            train(
                store,
                best,
                run=winner,
                resume=True,
                watch=watch_winner,
                watch_choice=watch_choice,
                progress=progress,
                **machines,
            )
    return summary


class _Search:
    """One search: loads finished trials from disk, runs missing trials, makes the summary."""

    def __init__(
        self,
        folder: Path,
        pool: Pool,
        store: Bags,
        plan: SearchPlan,
        watch: Callable[[TuneProgress], None],
    ) -> None:
        self._folder, self._pool, self._watch = folder, pool, watch
        self._settings, self._folds = plan.settings, plan.folds
        self._pace, self._steps, self._rungs = plan.pace, plan.steps, plan.rungs
        self._shared = (all_bags(store, remote=pool.is_remote), plan.folds, plan.base)
        self._results: dict[Trial, TrialResult] = {}

    def run(self) -> dict[str, Any]:
        """Finish one rung after another; return what ``tune`` returns."""
        surviving = list(range(len(self._settings)))
        for number, rung in enumerate(self._rungs):
            self._finish(number, rung.trials(surviving))
            if number + 1 < len(self._rungs):
                losses = [self._loss(setting, rung.steps) for setting in surviving]
                surviving = survivors(surviving, losses, self._pace)
        return self._summary(surviving)

    def _finish(self, rung: int, trials: Sequence[Trial]) -> None:
        """Get the results of these trials: load those on disk, run the others."""
        for trial in trials:
            result = self._load(trial)
            if result is not None:
                self._results[trial] = result
        missing = [trial for trial in trials if trial not in self._results]
        self._report_progress(rung, trials)

        def keep(result: TrialResult) -> None:
            self._save(result)
            self._results[result.trial] = result
            self._report_progress(rung, trials)

        tasks = (TrialTask(trial, self._settings[trial.setting]) for trial in missing)
        for _ in self._pool.map(run_trial, tasks, *self._shared, seen=keep):
            pass

    def _report_progress(self, rung: int, trials: Sequence[Trial]) -> None:
        losses = [self._loss(s, self._steps) for s in {trial.setting for trial in self._results}]
        best = min((loss for loss in losses if loss < math.inf), default=None)
        done = sum(trial in self._results for trial in trials)
        self._watch(
            TuneProgress(rung, len(self._rungs), done, len(trials), best, self._pool.dashboard)
        )

    def _path(self, trial: Trial) -> Path:
        name = f"{key_of(self._settings[trial.setting])}-{trial.fold}-{trial.steps}.json"
        return self._folder / TRIALS / name

    def _save(self, result: TrialResult) -> None:
        content = {"figures": result.figures, "steps_done": result.steps_done}
        setting = self._settings[result.trial.setting]
        write_json(self._path(result.trial), {**content, "setting": setting})

    def _load(self, trial: Trial) -> TrialResult | None:
        """Read a result from disk; None if it is missing or damaged: the trial then runs again."""
        try:
            content = parse_json(self._path(trial).read_bytes())
            return TrialResult(trial, dict(content["figures"]), int(content["steps_done"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _results_of(self, setting: int, steps: int) -> list[TrialResult]:
        """Results of a setting that was trained for this many steps, in the order of the folds."""
        trials = (Trial(setting, fold, steps) for fold in range(self._folds.k))
        return [self._results[trial] for trial in trials if trial in self._results]

    def _loss(self, setting: int, steps: int) -> float:
        """Mean ranking loss over the folds that are done; infinite if training diverged on one."""
        return float(_mean(self._results_of(setting, steps), METRICS[0], math.inf))

    def _summary(self, finished: list[int]) -> dict[str, Any]:
        rows = [self._row(number, number in finished) for number in range(len(self._settings))]
        rows.sort(key=lambda row: (not row["finished"], _loss_or_infinity(row), row["setting"]))
        if rows[0]["ranking_loss"] is None:
            raise StreammimlError(
                "training diverged with every setting; a grid of smaller step sizes may help"
            )
        steps = sum(result.steps_done for result in self._results.values())
        return {
            "winner": self._settings[rows[0]["setting"]],
            "ranking_loss": rows[0]["ranking_loss"],
            "n_settings": len(rows),
            "folds": self._folds.k,
            "steps": steps,
            "share_of_grid": steps / (len(rows) * self._folds.k * self._steps),
            "table": rows,
        }

    def _row(self, setting: int, finished: bool) -> dict[str, Any]:
        """Row of a setting in the table: its figures at the most steps that it was tried for."""
        steps = max(trial.steps for trial in self._results if trial.setting == setting)
        results = self._results_of(setting, steps)
        losses = [result.figures[METRICS[0]] for result in results]
        known = [loss for loss in losses if loss is not None]
        spread = None
        if finished and len(known) == len(losses) > 1:
            mean = math.fsum(known) / len(known)
            squares = math.fsum((loss - mean) ** 2 for loss in known)
            spread = math.sqrt(squares / (len(known) * (len(known) - 1)))
        return {
            "setting": setting,
            **self._settings[setting],
            "finished": finished,
            "folds": len(results),
            "max_steps": steps,
            **{name: _mean(results, name, None) for name in METRICS},
            "standard_error": spread,
        }


def _loss_or_infinity(row: Mapping[str, Any]) -> float:
    return math.inf if row["ranking_loss"] is None else float(row["ranking_loss"])


def _mean(results: Sequence[TrialResult], name: str, otherwise: Any) -> Any:
    """Mean of a figure over results; ``otherwise`` if one result has no value."""
    values = [result.figures[name] for result in results]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else otherwise


def run_trial(task: TrialTask, bag_range: BagRange, folds: Folds, base: TrainConfig) -> TrialResult:
    """Train on all folds but one and measure on the remaining fold; on one thread."""
    trial = task.trial
    learn, test = folds.cut(bag_range.bags(), trial.fold)
    config = replace(base, **task.setting, max_steps=trial.steps)
    try:
        model = train_trial(in_memory(learn, config.bag_weights), config)
    except DivergedError:
        return TrialResult(trial, dict.fromkeys(METRICS), trial.steps)
    steps = int(model.provenance.get("steps", trial.steps))
    return TrialResult(trial, figures_of(model, in_memory(test)), steps)


def figures_of(model: Model, store: Bags) -> dict[str, float | None]:
    """Measure ``METRICS`` of a model on a store, in this thread."""
    metrics = chosen(METRICS, row_labels=False)
    scorer = Scorer(model)
    measured = (
        measure_task(task, scorer, metrics, BLOCK_BYTES)
        for task in split_into_tasks(store, BLOCK_BYTES, remote=False)
    )
    total = reduce(lambda first, second: combined(metrics, first, second), measured)
    figures = finished(metrics, total, None)
    return {name: figures[name] for name in METRICS}


def in_memory(store: Bags, bag_weights: str | None = None) -> Bags:
    """Read the bags into memory if they are at most ``IN_MEMORY_BYTES``.

    Of the kept columns, only that of the weights of bags is kept.
    """
    if store_bytes(store) > IN_MEMORY_BYTES:
        return store
    block = store.read(0, store.n_bags, kept=False)
    if bag_weights is not None:
        weights = np.repeat(read_weights(store, bag_weights), np.diff(block.bag_offsets))
        block = replace(block, kept={bag_weights: weights})
    return MemoryBags(
        block, n_labels=store.n_labels, label_names=store.label_names, name=store.name
    )


def _write(folder: Path, base: TrainConfig, summary: Mapping[str, Any]) -> None:
    """Write the table, as Parquet and as JSON, and the settings of the winner."""
    with atomic_file(folder / TABLE) as file:
        pq.write_table(pa.Table.from_pylist(summary["table"]), file)
    write_json(folder / SUMMARY, summary)
    best = replace(base, **summary["winner"])
    with atomic_file(folder / SETTINGS) as file:
        file.write(toml(best.recorded()))
