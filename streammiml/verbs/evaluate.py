"""``streammiml evaluate``: figures of a model on the bags of a store."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from streammiml.measure.evaluate import BLOCK_BYTES, Progress
from streammiml.measure.evaluate import evaluate as evaluate_model
from streammiml.measure.registry import METRICS

# Labels that the readable table shows; --json has all of them.
LABELS_SHOWN = 30
_ARROWS = {"higher": "↑", "lower": "↓"}


def evaluate(
    model: str,
    store: str,
    /,
    *,
    metric: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: bool = False,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    block_bytes: str = BLOCK_BYTES,
) -> None:
    """Score every bag of a store and compare with its labels.

    Parameters
    ----------
    model
        Run folder or model file.
    store
        Folder or URL.
    metric
        Only this metric; may be given several times. Among them precision_at_K and ndcg_at_K.
    json
        Print one JSON object, for machines.
    threads
        Threads of this process; one a core unless given.
    workers
        Processes of a local cluster to start instead.
    scheduler
        Address of a running Dask scheduler to use instead.
    block_bytes
        What a task reads at most, and about a half of what it holds.
    """
    with _Show() as show:
        figures = evaluate_model(
            model,
            store,
            metrics=metric,
            threads=threads,
            workers=workers,
            scheduler=scheduler,
            block_bytes=block_bytes,
            watch=show,
        )
    if json:
        print(json_format.dumps(figures))
        return
    for line in readable(figures):
        print(line)


def readable(figures: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a table, and of another for the labels."""
    errors = figures["standard_errors"]
    for name, value in figures.items():
        if name in ("standard_errors", "per_label"):
            continue
        if isinstance(value, int):
            yield f"{name.replace('_', ' '):<24} {value:,}"
            continue
        number = "undefined" if value is None else f"{value:.4f}"
        spread = f" ± {errors[name]:.4f}" if name in errors else ""
        arrow = _ARROWS[METRICS[name].better] if name in METRICS else ""
        yield f"{name:<24} {number}{spread or ' ' * 9} {arrow}".rstrip()
    table = figures.get("per_label")
    if table is None:
        return
    yield ""
    yield f"{'label':<24} {'support':>9} {'predicted':>9} precision  recall      f1"
    for row in table[:LABELS_SHOWN]:
        name = str(row.get("name", row["label"]))[:24]
        yield (
            f"{name:<24} {row['support']:>9,} {row['predicted']:>9,} "
            f"{row['precision']:>9.4f} {row['recall']:>7.4f} {row['f1']:>7.4f}"
        )
    if len(table) > LABELS_SHOWN:
        yield f"… {len(table):,} labels in all; --json has every one"


class _Show:
    """A bar on stderr where somebody watches, and the address of a cluster's dashboard."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = ("bags", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._dashboard: str | None = None

    def __enter__(self) -> _Show:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        if progress.dashboard and progress.dashboard != self._dashboard:
            self._dashboard = progress.dashboard
            print(f"dashboard at {self._dashboard}", file=sys.stderr, flush=True)
        self._bar.update(self._task, completed=progress.bags_done, total=progress.n_bags)
