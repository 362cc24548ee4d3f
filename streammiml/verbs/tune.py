"""``streammiml tune``: find settings by cross validation."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from streammiml._base.display import format_duration
from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.store import open_store
from streammiml.config import TrainConfig, format_size
from streammiml.errors import StreammimlError
from streammiml.learn.progress import TrainProgress
from streammiml.learn.run_facts import FactsWriter
from streammiml.learn.stop_signals import Stopped
from streammiml.learn.train_display import RunDisplay
from streammiml.search.dry_run import TuneDryRun, dry_tune
from streammiml.search.search_display import TuneDisplay
from streammiml.search.tune import METRICS, WINNER
from streammiml.search.tune import tune as tune_store
from streammiml.verbs.options import AsJson, Flag
from streammiml.verbs.tables import print_table, table_of
from streammiml.verbs.train_options import (
    ConfigFile,
    StoresAndFolder,
    Training,
    merged,
    stores_and_folder,
)

ROWS_SHOWN = 10
_NOT_VARIED = ("setting", "finished", "folds", "max_steps", "standard_error", *METRICS)


def tune(
    *paths: StoresAndFolder,
    grid: str = "small",
    folds: int = 3,
    halving: bool = True,
    train: Flag = False,
    dry_run: Flag = False,
    json: AsJson = False,
    workers: int | None = None,
    scheduler: str | None = None,
    worker_memory: str | None = None,
    config: ConfigFile = None,
    options: Training = None,
) -> int:
    """Find settings by cross validation on one or several stores.

    Parameters
    ----------
    paths
        Stores (folders or URLs), then the folder of the search. After an interruption, the same
        command completes it.
    grid
        Settings to try: small, paper, best (varies lifts too, and takes longer), or a TOML file of
        lists such as subconcepts = [1, 5].
    folds
        Number of folds that the bags are divided into.
    halving
        Drop the worse settings early; otherwise all settings get all steps and folds.
    train
        Afterwards train the winner on all bags, in RUN/winner.
    dry_run
        Time some steps; print the number of trials and steps, and about how much memory and time
        the search needs. Nothing is written.
    workers
        Processes of a local cluster; by default one for each core. With --train and --replicas, the
        winner trains on them too.
    scheduler
        Address of a running Dask scheduler to use instead. Its workers need access to the same
        files.
    worker_memory
        Memory limit of each --workers process; by default an equal share of the machine's memory.
    """
    stores, run = stores_and_folder(paths, "tune", "search")
    settings = merged(options, config)
    if settings.threads > 1:
        raise StreammimlError(
            "each trial uses one thread; --workers sets how many trials run at a time"
        )
    store = open_store(stores)
    if dry_run:
        planned = dry_tune(
            store,
            run,
            TrainConfig(**settings.recorded()),
            grid=grid,
            folds=folds,
            halving=halving,
            machines=PoolOptions(workers=workers, scheduler=scheduler),
        )
        print_dry_run(planned, json=json)
        return 0
    display, facts_writer = RunDisplay(), FactsWriter(store, Path(run) / WINNER)

    def watch_winner(progress: TrainProgress) -> None:
        display.watch(progress)
        facts_writer(progress)

    try:
        with display:
            summary = tune_store(
                store,
                run,
                TrainConfig(**settings.recorded()),
                grid=grid,
                folds=folds,
                halving=halving,
                train_winner=train,
                workers=workers,
                scheduler=scheduler,
                worker_memory=worker_memory,
                watch=TuneDisplay(),
                watch_winner=watch_winner,
                watch_choice=display.watch_choice,
            )
    except Stopped as stop:
        facts_writer.finish()
        print(f"streammiml: {stop} of the winner; the same command continues", file=sys.stderr)
        return 128 + stop.number
    facts_writer.finish()
    for line in display.training.summary():
        print(line, file=sys.stderr)
    if json:
        print(json_format.dumps(summary))
        return 0
    print_table(readable(summary))
    share = summary["share_of_grid"]
    print(f"{summary['steps']:,} steps, {share:.0%} of the steps that the full grid may take")
    print(f"{run}/settings.toml has the winner, for streammiml train --config")
    if train:
        print(f"{run}/winner has its model, trained on all bags")
    return 0


def print_dry_run(planned: TuneDryRun, *, json: bool) -> None:
    """Print one JSON object, or lines to read."""
    if json:
        print(json_format.dumps(asdict(planned)))
        return
    at_once = "as many as the cluster has threads"
    if planned.trials_at_once is not None:
        at_once = f"{planned.trials_at_once} at the same time"
    one = f"{format_duration(planned.seconds_on_one_core)} on one core"
    duration = one if planned.seconds is None else f"{format_duration(planned.seconds)}; {one}"
    lines = {
        "settings": f"{planned.n_settings:,}, on {planned.folds} folds",
        "trials": f"{planned.trials:,}, {at_once}",
        "steps, at most": f"{planned.steps:,}, {planned.share_of_grid:.0%} of the full grid",
        "memory, each trial": format_size(planned.memory),
        "time, at most about": f"{duration}, without compiling, from steps of untrained models",
    }
    for name, value in lines.items():
        print(f"{name:<19} {value}")


def readable(summary: Mapping[str, Any]) -> Table:
    """A table of the best settings, the winner first."""
    rows = [row for row in summary["table"] if row["finished"]][:ROWS_SHOWN]
    varied = [name for name in summary["table"][0] if name not in _NOT_VARIED]
    table = table_of((*varied, "folds", "ranking loss", "hamming loss", "average precision"))
    for row in rows:
        spread = row["standard_error"]
        loss = "diverged" if row["ranking_loss"] is None else f"{row['ranking_loss']:.4f}"
        table.add_row(
            *(str(row[name]) for name in varied),
            str(row["folds"]),
            loss if spread is None else f"{loss} ± {spread:.4f}",
            *(
                "" if row[name] is None else f"{row[name]:.4f}"
                for name in ("hamming_loss", "average_precision")
            ),
        )
    return table
