"""``tune``: settings by cross validation on Dask, most of them discarded early, resumable."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streammiml._base.platform import usable_cores
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.cluster import Pool, open_pool
from streammiml.config import LiftSpec, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.prepare import prepare
from streammiml.learn.progress import Progress
from streammiml.learn.state import state_bytes
from streammiml.learn.trainer import train
from streammiml.learn.usual import EPOCHS, resolved
from streammiml.measure.evaluate import combined, measure_piece
from streammiml.measure.folder import PartFolder, as_json, written_whole
from streammiml.measure.pieces import Piece, pieces, store_bytes, whole
from streammiml.measure.registry import chosen
from streammiml.measure.scored import StoreLike
from streammiml.model import Model
from streammiml.scoring import Scorer
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
    toml,
)
from streammiml.search.halving import ALL_STEPS, NO_LOOKS, STOPPING_EARLY, Trial, rungs, survivors

METRICS = ("ranking_loss", "hamming_loss", "one_error", "coverage", "average_precision")
"""What is measured on each fold; the first one decides."""
SETTINGS, TABLE, SUMMARY, TRIALS, WINNER = (
    "settings.toml",
    "table.parquet",
    "table.json",
    "trials",
    "winner",
)
# Folds that are smaller are read once and kept, since training reads them many times.
IN_MEMORY_BYTES = 64 << 20
BLOCK_BYTES = 8 << 20
# Settings that change how fast training goes and never what it learns.
FREE = ("memory", "checkpoint_every", "threads")


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """How far a search is, for whoever shows it."""

    rung: int
    n_rungs: int
    trials_done: int
    n_trials: int
    """Of this rung."""
    best_loss: float | None
    dashboard: str | None


class Result(NamedTuple):
    """Figures of one trial."""

    trial: Trial
    figures: dict[str, float | None]
    """``METRICS``; None where training diverged."""
    steps_done: int
    """Fewer than allowed where it stopped early."""


class Work(NamedTuple):
    """The work of one task."""

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
    watch: Callable[[TuneProgress], None] = lambda _: None,
    watch_winner: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Find the settings of the lowest ranking loss by cross validation on the bags of a store.

    The folder ``run`` gets ``trials/``, a file a finished trial, so that run again after a kill it
    goes on; ``table.parquet`` and ``table.json``; and ``settings.toml``, the winner, for
    ``train --config``. The result does not depend on who computed what.

    Parameters
    ----------
    store
        A store, several, or a view, or their paths.
    run
        Folder of the search, new or begun with the same store and settings.
    config
        Everything that the grid does not vary; each trial trains on one thread.
    grid
        ``small``, ``paper``, ``best`` (lifts, scales, K, and no shared space: 32 settings, each
        tried for 20 000 steps or 8 epochs; of sparse rows context, K, C and m: 16, for 400 000
        steps or 100 epochs), the path of a TOML file of lists, or a mapping of lists.
    folds
        Parts that bags are cut into, by a hash of their number.
    halving
        Discard settings after a part of the steps, and of the folds; otherwise all of them see all
        folds.
    train_winner
        Train the winner on all bags afterwards, in the folder ``winner`` of ``run``.
    threads
        Threads of this process.
    workers
        Processes of a local cluster, as many as there are cores unless something else is given.
    scheduler
        Address of a running Dask scheduler to use instead.
    watch
        Called with how far it is after each trial.
    watch_winner
        Called with how far the training of the winner is, as ``watch`` of ``train``.

    Returns
    -------
    ``winner``, its settings; ``ranking_loss``, the winner's mean over the folds; ``table``, a row a
    setting, the best first; ``steps`` done in all, and ``share_of_grid``, that number over the
    steps of all settings on all folds.

    Examples
    --------
    >>> grid = {"step_size": [0.005, 0.02], "shared_dim": [10]}
    >>> config = sm.TrainConfig(epochs=3)
    >>> found = sm.tune("corpus.zarr", "tuned", config, grid=grid, folds=2, threads=1)
    >>> sorted(found["winner"]), len(found["table"])
    (['shared_dim', 'step_size'], 2)
    """
    store = store if isinstance(store, Bags) else open_store(store)
    base = replace(config or TrainConfig(), threads=1)
    settings = settings_of(grid, base, sparse=store.sparse)
    slow = isinstance(grid, str) and grid in SLOW_GRIDS
    cut = Folds(store.n_bags, folds)
    if store.n_labels < 2 or store.n_label_entries == 0:
        raise StreammimlError(
            f"{store.name} has {store.n_labels} labels, and settings are compared by the order of "
            "labels; at least 2 are needed"
        )
    if threads is None and workers is None and scheduler is None:
        cores = usable_cores()
        threads, workers = (1, None) if cores == 1 or _is_here(store) else (None, cores)
    _check_memory(cut.cut(store, 0)[0], base, settings)
    record = _record(store, base, settings, cut, halving, slow)
    with ExitStack() as stack:
        with open_pool(
            threads=threads, workers=workers, scheduler=scheduler, relief="--memory"
        ) as pool:
            # Begun when there is somebody to do it.
            folder = stack.enter_context(PartFolder(run, record, "search"))
            (folder.path / TRIALS).mkdir(exist_ok=True)
            search = _Search(folder.path, pool, store, base, settings, cut, halving, slow, watch)
            said = search.run()
        _write(folder.path, base, said)
        folder.finish({"n_settings": len(settings)})
        if train_winner:
            best = replace(base, **said["winner"])
            winner = folder.path / WINNER
            train(store, best, run=winner, resume=True, watch=watch_winner)
    return said


class _Search:
    """One search, from the trials that are on disk to its end."""

    def __init__(
        self,
        folder: Path,
        pool: Pool,
        store: Bags,
        base: TrainConfig,
        settings: list[Setting],
        folds: Folds,
        halving: bool,
        slow: bool,
        watch: Callable[[TuneProgress], None],
    ) -> None:
        self._folder, self._pool, self._watch = folder, pool, watch
        self._settings, self._folds = settings, folds
        n_bags = store.n_bags * (folds.k - 1) // folds.k
        stops = base.validation_store is not None or resolved(base, n_bags).validation
        self._pace = STOPPING_EARLY if stops else ALL_STEPS
        if slow:
            self._pace = NO_LOOKS
            base = _long_enough(base, store, n_bags)
        self._steps = _most_steps(base, n_bags)
        self._rungs = rungs(len(settings), folds.k, self._steps, self._pace, halving=halving)
        self._shared = (whole(store, remote=pool.is_remote), folds, base)
        self._results: dict[Trial, Result] = {}

    def run(self) -> dict[str, Any]:
        kept = list(range(len(self._settings)))
        for number, rung in enumerate(self._rungs):
            self._finish(number, rung.trials(kept))
            if number + 1 < len(self._rungs):
                losses = [self._loss(each, rung.steps) for each in kept]
                kept = survivors(kept, losses, self._pace)
        return self._said(kept)

    def _finish(self, rung: int, trials: Sequence[Trial]) -> None:
        """Have results of all these trials: those on disk, and what is missing."""
        for trial in trials:
            found = self._load(trial)
            if found is not None:
                self._results[trial] = found
        missing = [trial for trial in trials if trial not in self._results]
        self._tell(rung, trials)

        def keep(result: Result) -> None:
            self._save(result)
            self._results[result.trial] = result
            self._tell(rung, trials)

        work = (Work(trial, self._settings[trial.setting]) for trial in missing)
        for _ in self._pool.map(run_trial, work, *self._shared, seen=keep):
            pass

    def _tell(self, rung: int, trials: Sequence[Trial]) -> None:
        losses = [self._loss(s, self._steps) for s in {trial.setting for trial in self._results}]
        best = min((loss for loss in losses if loss < math.inf), default=None)
        done = sum(trial in self._results for trial in trials)
        self._watch(
            TuneProgress(rung, len(self._rungs), done, len(trials), best, self._pool.dashboard)
        )

    def _path(self, trial: Trial) -> Path:
        name = f"{key_of(self._settings[trial.setting])}-{trial.fold}-{trial.steps}.json"
        return self._folder / TRIALS / name

    def _save(self, result: Result) -> None:
        said = {"figures": result.figures, "steps_done": result.steps_done}
        with written_whole(self._path(result.trial)) as file:
            file.write(as_json({**said, "setting": self._settings[result.trial.setting]}))

    def _load(self, trial: Trial) -> Result | None:
        try:
            said = json.loads(self._path(trial).read_bytes())
            return Result(trial, dict(said["figures"]), int(said["steps_done"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _of(self, setting: int, steps: int) -> list[Result]:
        """Results of a setting at so many steps, by fold."""
        trials = (Trial(setting, fold, steps) for fold in range(self._folds.k))
        return [self._results[trial] for trial in trials if trial in self._results]

    def _loss(self, setting: int, steps: int) -> float:
        """Mean ranking loss over the folds there are; infinite if training diverged on one."""
        return float(_mean(self._of(setting, steps), METRICS[0], math.inf))

    def _said(self, last: list[int]) -> dict[str, Any]:
        rows = [self._row(number, number in last) for number in range(len(self._settings))]
        rows.sort(key=lambda row: (not row["finished"], _last(row), row["setting"]))
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
        """Figures at the most steps that a setting got to."""
        steps = max(trial.steps for trial in self._results if trial.setting == setting)
        results = self._of(setting, steps)
        losses = [r.figures[METRICS[0]] for r in results]
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


def _last(row: Mapping[str, Any]) -> float:
    return math.inf if row["ranking_loss"] is None else float(row["ranking_loss"])


def _mean(results: Sequence[Result], name: str, otherwise: Any) -> Any:
    values = [result.figures[name] for result in results]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else otherwise


def run_trial(work: Work, everything: Piece, folds: Folds, base: TrainConfig) -> Result:
    """One task: train on all folds but one, measure on that one; on one thread."""
    trial = work.trial
    learn, test = folds.cut(everything.bags(), trial.fold)
    config = replace(base, **work.setting, max_steps=trial.steps)
    try:
        model = train(_at_hand(learn), config)
    except StreammimlError as error:
        if "diverged" not in str(error):
            raise
        return Result(trial, dict.fromkeys(METRICS), trial.steps)
    steps = int(model.provenance.get("steps", trial.steps))
    return Result(trial, figures_of(model, _at_hand(test)), steps)


def figures_of(model: Model, store: Bags) -> dict[str, float | None]:
    """``METRICS`` of a model on a store, without Dask."""
    metrics = chosen(METRICS, row_labels=False)
    scorer = Scorer(model)
    found = (
        measure_piece(piece, scorer, metrics, BLOCK_BYTES)
        for piece in pieces(store, BLOCK_BYTES, remote=False)
    )
    total = reduce(lambda one, other: combined(metrics, one, other), found)
    pairs = zip(metrics, total.figures, strict=True)
    return {metric.name: metric.finish(partial).value for metric, partial in pairs}


def _at_hand(store: Bags) -> Bags:
    """The bags in memory, if they are few."""
    if store_bytes(store) > IN_MEMORY_BYTES:
        return store
    block = store.read(0, store.n_bags)
    return MemoryBags(
        block, n_labels=store.n_labels, label_names=store.label_names, name=store.name
    )


def _is_here(store: Bags) -> bool:
    """Whether the bags are in this process alone, and cannot be sent by name."""
    base = getattr(store, "base", store)
    return isinstance(base, MemoryBags)


def _long_enough(config: TrainConfig, store: Bags, n_bags: int) -> TrainConfig:
    """Settings of the trials of a slow grid, each on ``n_bags`` of the store."""
    enough = SPARSE_SLOW_STEPS if store.sparse else SLOW_STEPS
    if store.sparse and config.epochs is None:
        epochs = min(EPOCHS, math.ceil(enough / max(1, n_bags)))
        config = replace(config, epochs=max(epochs, resolved(config, n_bags).n_epochs))
    steps = min(_most_steps(config, n_bags), max(enough, SLOW_EPOCHS * store.n_bags))
    return replace(config, max_steps=steps)


def _check_memory(learn: Bags, base: TrainConfig, settings: list[Setting]) -> None:
    """Refuse a grid of which the largest model does not fit, before the first trial."""

    def weights(setting: Setting) -> int:
        config = replace(base, **setting)
        n_lifted = LiftSpec.parse(config.lift).width(learn.n_features)
        return state_bytes(config, n_lifted, learn.n_labels)

    largest = max(settings, key=weights)
    try:
        prepare(learn, resolved(replace(base, **largest), learn.n_bags))
    except StreammimlError as error:
        said = ", ".join(f"{name} {value}" for name, value in largest.items())
        raise StreammimlError(f"{error} (the largest model of the grid: {said})") from None


def _most_steps(config: TrainConfig, n_bags: int) -> int:
    """Steps that training takes at most on so many bags."""
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
    """What a folder must have been begun with."""
    kept = {name: value for name, value in base.recorded().items() if name not in FREE}
    own = {"folds": folds.k, "halving": halving, "store": store.fingerprint}
    tried = {"settings": settings, **({"slow": True} if slow else {})}
    return {**kept, **own, "grid": key_of(tried)}


def _write(folder: Path, base: TrainConfig, said: Mapping[str, Any]) -> None:
    with written_whole(folder / TABLE) as file:
        pq.write_table(pa.Table.from_pylist(said["table"]), file)
    with written_whole(folder / SUMMARY) as file:
        file.write(as_json(said))
    best = replace(base, **said["winner"])
    with written_whole(folder / SETTINGS) as file:
        file.write(toml(best.recorded()))
