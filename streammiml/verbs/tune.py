"""``streammiml tune``: settings by cross validation."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from streammiml.bags.store import open_store
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.origin import Witness
from streammiml.learn.progress import Progress
from streammiml.learn.trainer import Stopped
from streammiml.search.tune import METRICS, WINNER, TuneProgress
from streammiml.search.tune import tune as tune_store
from streammiml.verbs.showing import Show
from streammiml.verbs.tables import print_table, table_of
from streammiml.verbs.train import Options, merged

ROWS_SHOWN = 10
_COUNTS = ("setting", "finished", "folds", "max_steps", "standard_error", *METRICS)


def tune(
    *paths: Annotated[str, Parameter(name="STORE... RUN", negative="")],
    grid: str = "small",
    folds: int = 3,
    halving: bool = True,
    train: Annotated[bool, Parameter(negative="")] = False,
    json: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    config: Path | None = None,
    options: Annotated[Options | None, Parameter(name="*")] = None,
) -> int:
    """Find settings by cross validation on one store or several; run again, it goes on.

    Parameters
    ----------
    paths
        Stores, folders or URLs, then the folder of the search.
    grid
        small, paper, best (lifts too, and more; takes longer), or a TOML file of lists:
        subconcepts = [1, 5].
    folds
        Parts that the bags are cut into.
    halving
        Discard hopeless settings early; otherwise all see all steps and folds.
    train
        Train the winner on all bags afterwards, in RUN/winner.
    json
        Print everything as one JSON object, for machines.
    workers
        Processes of a local cluster; one a core unless given.
    scheduler
        Address of a running Dask scheduler to use instead.
    config
        TOML file of options that the grid does not vary; the command line wins.
    """
    if len(paths) < 2:
        raise StreammimlError("tune needs a store and a folder for the search")
    *stores, run = paths
    settings = merged(options, config)
    if settings.threads > 1:
        raise StreammimlError("each trial takes one thread; --workers says how many run at a time")
    store = open_store(stores)
    show, witness = Show(), Witness(store, Path(run) / WINNER)

    def watch_winner(progress: Progress) -> None:
        show(progress)
        witness(progress)

    try:
        with show:
            said = tune_store(
                store,
                run,
                TrainConfig(**settings.recorded()),
                grid=grid,
                folds=folds,
                halving=halving,
                train_winner=train,
                workers=workers,
                scheduler=scheduler,
                watch=_Show(),
                watch_winner=watch_winner,
            )
    except Stopped as stop:
        witness.finish()
        print(f"streammiml: {stop} of the winner; the same command goes on", file=sys.stderr)
        return 128 + stop.number
    witness.finish()
    for line in show.summary():
        print(line, file=sys.stderr)
    if json:
        print(json_format.dumps(said))
        return 0
    print_table(readable(said))
    print(f"{said['steps']:,} steps, {said['share_of_grid']:.0%} of what the full grid may take")
    print(f"{run}/settings.toml has the winner, for streammiml train --config")
    if train:
        print(f"{run}/winner has its model, trained on all bags")
    return 0


def readable(said: Mapping[str, Any]) -> Table:
    """The best settings, the winner first."""
    rows = [row for row in said["table"] if row["finished"]][:ROWS_SHOWN]
    varied = [name for name in said["table"][0] if name not in _COUNTS]
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


class _Show:
    """A line on stderr after every tenth of a rung, and the address of a dashboard."""

    def __init__(self) -> None:
        self._dashboard: str | None = None
        self._last = (-1, -1)

    def __call__(self, progress: TuneProgress) -> None:
        if progress.dashboard and progress.dashboard != self._dashboard:
            self._dashboard = progress.dashboard
            print(f"dashboard at {self._dashboard}", file=sys.stderr, flush=True)
        here = progress.rung, 10 * progress.trials_done // max(1, progress.n_trials)
        if here == self._last:
            return
        self._last = here
        best = "" if progress.best_loss is None else f", best ranking loss {progress.best_loss:.4f}"
        print(
            f"rung {progress.rung + 1} of {progress.n_rungs}: {progress.trials_done} of "
            f"{progress.n_trials} trials{best}",
            file=sys.stderr,
            flush=True,
        )
