"""``evaluate``: figures of a model on a store; blocks → scores → partial figures → figures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streammiml._base.display import shown
from streammiml._base.pool import open_pool
from streammiml.bags.views import Bags
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Scores
from streammiml.measure.metric import Figure, Metric, ScoredBlock
from streammiml.measure.registry import chosen
from streammiml.measure.score_display import ScoreDisplay
from streammiml.measure.score_pass import collect, collect_task
from streammiml.measure.scoring import (
    BLOCK_BYTES,
    ModelLike,
    ScoreOptions,
    StoreLike,
    Watch,
    check_fits,
    open_model_and_store,
)
from streammiml.measure.tasks import BagRange
from streammiml.model import Model
from streammiml.scorer import Scorer

_LOG = logging.getLogger("streammiml.evaluate")


class Partials(NamedTuple):
    """Counts of some bags, and a partial figure of each metric."""

    n_bags: int
    without_labels: int
    with_all_labels: int
    figures: tuple[tuple[Any, Any], ...]
    """Two partial figures for each kind in ``kinds_of``: of bags with labels, and of bags without.

    A partial figure of no bags is None. For metrics that are not measured over labelled bags alone,
    the first one is of all bags.
    """


def evaluate(
    model: ModelLike,
    store: StoreLike,
    *,
    metrics: Iterable[str | Metric[Any]] | None = None,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    client: Any = None,
    block_bytes: str | int = BLOCK_BYTES,
    worker_memory: str | int | None = None,
    watch: Watch = lambda _: None,
    progress: bool = False,
) -> dict[str, Any]:
    """Compute figures of a model on a store; every bit is independent of threads and block size.

    Parameters
    ----------
    model
        A model, or the path of a run folder or model file.
    store
        One or more stores, or a view, or paths of stores.
    metrics
        Names or metrics; by default every metric that fits the store.
    threads
        Threads of this process; by default as many as there are cores.
    workers
        Number of processes of a local cluster, which is used instead of threads.
    scheduler
        Address of a running Dask scheduler, which is used instead of threads.
    client
        A ``distributed.Client``, which is used and stays open, a Dask cluster object such as
        ``LocalCluster``, or ``"active"``, the client that Dask uses by default; its workers are
        used instead of threads.
    worker_memory
        Memory limit of each of the ``workers``; by default an equal share of all memory.
    block_bytes
        Upper limit for the bytes that a task reads at a time; a task holds about twice as much.
    watch
        Called with the progress at the start and after each task.
    progress
        Show the progress: a live line in a terminal or a notebook, a line every few seconds
        elsewhere.

    Returns
    -------
    Each figure under its name; ``standard_errors``, by name of figure; ``n_bags``,
    ``n_bags_without_labels`` and ``n_bags_with_all_labels``; ``per_label``, a table;
    ``labelled_bags``, the figures of the bags that have a label.

    Figures over the order of bags (``macro_auc``, ``micro_auc``, ``macro_average_precision``,
    ``micro_average_precision``, ``gap_at_K``) are exact up to two million different scores
    (``gap_at_K``: half a million). With more, the closest scores count as equal, so that 256 MiB
    are enough, and ``bounds`` has the lowest and the highest possible value of each figure.
    ``average_precision`` is a mean over bags, of the order of labels within a bag.

    Examples
    --------
    >>> figures = sm.evaluate("run", "test.zarr")
    >>> figures["n_bags"], figures["ranking_loss"] < 0.05, figures["average_precision"] > 0.95
    (100, True, True)
    >>> figures["per_label"][0]["name"]
    'dog'
    >>> figures["macro_auc"] > 0.95, figures["labelled_bags"]["n_bags"]
    (True, 100)
    >>> sorted(sm.evaluate("run", "test.zarr", metrics=["ndcg_at_2"]))[-2:]
    ['ndcg_at_2', 'standard_errors']
    """
    options = ScoreOptions(
        threads=threads,
        workers=workers,
        scheduler=scheduler,
        client=client,
        worker_memory=worker_memory,
        block_bytes=block_bytes,
    )
    model, store, chosen_metrics = checked_for_evaluation(model, store, metrics)
    with shown(ScoreDisplay, watch, progress=progress) as watch, open_pool(options) as pool:
        begun = time.monotonic()
        _LOG.info("evaluate begins: %s bags of %s", f"{store.n_bags:,}", store.name)
        collector = MetricCollector(chosen_metrics)
        total = collect(pool, model, store, collector, block_bytes=options.block_size, watch=watch)
    _LOG.info("evaluate ends: %s bags, %.1f s", f"{total.n_bags:,}", time.monotonic() - begun)
    return finished(chosen_metrics, total, store.label_names or model.label_names)


def checked_for_evaluation(
    model: ModelLike, store: StoreLike, metrics: Iterable[str | Metric[Any]] | None
) -> tuple[Model, Bags, list[Metric[Any]]]:
    """Open a model and a store and choose metrics; refuse what does not fit."""
    model, store = open_model_and_store(model, store)
    check_labelled(model, store)
    has_probabilities = model.calibration is not None
    return (
        model,
        store,
        chosen(metrics, row_labels=store.has_row_labels, probabilities=has_probabilities),
    )


def check_labelled(model: Model, store: Bags) -> None:
    """Refuse a store without labels or with other labels than the model, before reading rows."""
    if store.n_labels < 1 or store.n_label_entries == 0:
        raise StreammimlError(f"{store.name} has no labels to compare predictions with")
    check_fits(model, store)


def measure_task(
    bags: BagRange, scorer: Scorer, metrics: Sequence[Metric[Any]], block_bytes: int
) -> Partials:
    """Read, score and measure the bags of a task, ``block_bytes`` at a time."""
    return collect_task(bags, scorer, MetricCollector(metrics), block_bytes)


@dataclass(frozen=True, slots=True)
class MetricCollector:
    """Collects the partial figures of some metrics in a pass over scored bags."""

    metrics: Sequence[Metric[Any]]

    def of_block(self, block: ScoredBlock, scores: Scores, first: int) -> Partials:  # noqa: ARG002
        """Partial figures of a block."""
        return measured(block, self.metrics)

    def add(self, one: Partials, other: Partials) -> Partials:
        """Partial figures of the bags of both."""
        return combined(self.metrics, one, other)


class Kind(NamedTuple):
    """Functions that metrics with the same partial figures share."""

    block: Callable[[ScoredBlock], Any]
    combine: Callable[[Any, Any], Any]
    over_labelled: bool


def kind_of(metric: Metric[Any]) -> Kind:
    """Kind of the partial figures of a metric."""
    return Kind(metric.block, metric.combine, metric.over_labelled)


def kinds_of(metrics: Sequence[Metric[Any]]) -> list[Kind]:
    """Kinds of the partial figures of some metrics, without duplicates, in order."""
    return list(dict.fromkeys(map(kind_of, metrics)))


def measured(block: ScoredBlock, metrics: Sequence[Metric[Any]]) -> Partials:
    """Partial figures of a block."""
    is_bare = block.n_true == 0
    n_bare = int(is_bare.sum())
    labelled, bare = (block, None) if n_bare == 0 else (None, block)
    if 0 < n_bare < block.n_bags:
        labelled = block.select(np.flatnonzero(~is_bare))
        bare = block.select(np.flatnonzero(is_bare))

    def pair(kind: Kind) -> tuple[Any, Any]:
        if not kind.over_labelled:
            return kind.block(block), None
        return (
            None if labelled is None else kind.block(labelled),
            None if bare is None else kind.block(bare),
        )

    return Partials(
        block.n_bags,
        n_bare,
        int((block.n_true == block.n_labels).sum()),
        tuple(map(pair, kinds_of(metrics))),
    )


def combined(metrics: Sequence[Metric[Any]], one: Partials, other: Partials) -> Partials:
    """Partial figures of the bags of both."""
    both = zip(kinds_of(metrics), one.figures, other.figures, strict=True)
    return Partials(
        one.n_bags + other.n_bags,
        one.without_labels + other.without_labels,
        one.with_all_labels + other.with_all_labels,
        tuple((_sum(kind, a[0], b[0]), _sum(kind, a[1], b[1])) for kind, a, b in both),
    )


def _sum(kind: Kind, one: Any, other: Any) -> Any:
    """Sum of two partial figures, of which either may be None."""
    if one is None or other is None:
        return other if one is None else one
    return kind.combine(one, other)


def finished(
    metrics: Sequence[Metric[Any]], total: Partials, names: Sequence[str] | None
) -> dict[str, Any]:
    """Turn partial figures into the dictionary that :func:`evaluate` returns."""
    figures: dict[str, Any] = {
        "n_bags": total.n_bags,
        "n_bags_without_labels": total.without_labels,
        "n_bags_with_all_labels": total.with_all_labels,
    }
    by_kind = dict(zip(kinds_of(metrics), total.figures, strict=True))
    over_all: dict[str, Figure] = {}
    over_labelled: dict[str, Figure] = {}
    for metric in metrics:
        kind = kind_of(metric)
        labelled, bare = by_kind[kind]
        over_all[metric.name] = metric.finish(_sum(kind, labelled, bare))
        if metric.over_labelled:
            has_bags = labelled is not None
            over_labelled[metric.name] = metric.finish(labelled) if has_bags else Figure(None)
    for name, figure in over_all.items():
        figures[name] = figure.value
        figures |= figure.also
    figures["standard_errors"] = _standard_errors(over_all)
    bounds = {name: list(f.bounds) for name, f in over_all.items() if f.bounds is not None}
    if bounds:
        figures["bounds"] = bounds
    if over_labelled:
        figures["labelled_bags"] = {
            "n_bags": total.n_bags - total.without_labels,
            **{name: figure.value for name, figure in over_labelled.items()},
            "standard_errors": _standard_errors(over_labelled),
        }
    if names is not None:
        for row in figures.get("per_label", ()):
            row["name"] = names[row["label"]]
    return figures


def _standard_errors(figures: Mapping[str, Figure]) -> dict[str, float]:
    errors = {name: figure.standard_error for name, figure in figures.items()}
    return {name: error for name, error in errors.items() if error is not None}
