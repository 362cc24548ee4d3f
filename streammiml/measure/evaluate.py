"""``evaluate``: figures of a model on a store; blocks → scores → partial figures → figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streammiml._base.pool import open_pool
from streammiml.bags.views import Bags
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Scores
from streammiml.measure.metric import Metric, ScoredBlock
from streammiml.measure.registry import chosen
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


class Partials(NamedTuple):
    """Counts of some bags, and a partial figure of each metric."""

    n_bags: int
    without_labels: int
    with_all_labels: int
    figures: tuple[Any, ...]


def evaluate(
    model: ModelLike,
    store: StoreLike,
    *,
    metrics: Iterable[str | Metric[Any]] | None = None,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    block_bytes: str | int = BLOCK_BYTES,
    worker_memory: str | int | None = None,
    watch: Watch = lambda _: None,
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
    worker_memory
        Memory limit of each of the ``workers``; by default an equal share of all memory.
    block_bytes
        Upper limit for the bytes that a task reads at a time; a task holds about twice as much.
    watch
        Called with the progress at the start and after each task.

    Returns
    -------
    Each figure under its name; ``standard_errors``, by name of figure; ``n_bags``,
    ``n_bags_without_labels`` and ``n_bags_with_all_labels``; ``per_label``, a table.

    Examples
    --------
    >>> figures = sm.evaluate("run", "test.zarr")
    >>> figures["n_bags"], figures["ranking_loss"] < 0.05, figures["average_precision"] > 0.95
    (100, True, True)
    >>> figures["per_label"][0]["name"]
    'dog'
    >>> sorted(sm.evaluate("run", "test.zarr", metrics=["ndcg_at_2"]))[-2:]
    ['ndcg_at_2', 'standard_errors']
    """
    options = ScoreOptions(
        threads=threads,
        workers=workers,
        scheduler=scheduler,
        worker_memory=worker_memory,
        block_bytes=block_bytes,
    )
    model, store = open_model_and_store(model, store)
    check_labelled(model, store)
    chosen_metrics = chosen(metrics, row_labels=store.has_row_labels)
    with open_pool(options) as pool:
        collector = MetricCollector(chosen_metrics)
        total = collect(pool, model, store, collector, block_bytes=options.block_size, watch=watch)
    return finished(chosen_metrics, total, store.label_names or model.label_names)


def check_labelled(model: Model, store: Bags) -> None:
    """Refuse a store without labels or with other labels than the model, before reading rows."""
    if store.n_labels < 1 or store.n_label_entries == 0:
        raise StreammimlError(f"{store.name} has no labels to compare predictions with")
    check_fits(model, store)


def measure_task(
    bags: BagRange, scorer: Scorer, metrics: Sequence[Metric[Any]], block_bytes: int
) -> Partials:
    """Read, score and measure the bags of a task; scores take ``block_bytes`` at a time."""
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


def measured(block: ScoredBlock, metrics: Sequence[Metric[Any]]) -> Partials:
    """Partial figures of a block."""
    return Partials(
        block.n_bags,
        int((block.n_true == 0).sum()),
        int((block.n_true == block.n_labels).sum()),
        tuple(metric.block(block) for metric in metrics),
    )


def combined(metrics: Sequence[Metric[Any]], one: Partials, other: Partials) -> Partials:
    """Partial figures of the bags of both."""
    both = zip(metrics, one.figures, other.figures, strict=True)
    return Partials(
        one.n_bags + other.n_bags,
        one.without_labels + other.without_labels,
        one.with_all_labels + other.with_all_labels,
        tuple(metric.combine(a, b) for metric, a, b in both),
    )


def finished(
    metrics: Sequence[Metric[Any]], total: Partials, names: Sequence[str] | None
) -> dict[str, Any]:
    """Turn partial figures into the dictionary that :func:`evaluate` returns."""
    figures: dict[str, Any] = {
        "n_bags": total.n_bags,
        "n_bags_without_labels": total.without_labels,
        "n_bags_with_all_labels": total.with_all_labels,
    }
    errors: dict[str, float] = {}
    for metric, partial in zip(metrics, total.figures, strict=True):
        figure = metric.finish(partial)
        figures[metric.name] = figure.value
        figures |= figure.also
        if figure.standard_error is not None:
            errors[metric.name] = figure.standard_error
    figures["standard_errors"] = errors
    if names is not None:
        for row in figures.get("per_label", ()):
            row["name"] = names[row["label"]]
    return figures
