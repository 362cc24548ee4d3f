"""``evaluate``: blocks of bags → scores → partial figures → figures, on Dask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

from streammiml.bags.views import Bags
from streammiml.cluster import open_pool
from streammiml.errors import StreammimlError
from streammiml.measure.metric import Metric, ScoredBlock
from streammiml.measure.pieces import Piece, pieces, store_bytes
from streammiml.measure.registry import chosen
from streammiml.measure.scored import (
    BLOCK_BYTES,
    Count,
    ModelLike,
    StoreLike,
    Watch,
    block_size,
    check_fits,
    opened,
    scored,
    scored_blocks,
)
from streammiml.model import Model
from streammiml.scoring import Scorer

LEAST_BYTES = 256 << 10
# Tasks a thread should get at least, lest one waits long for the other.
SHARE_OF_TASKS = 8


class Partials(NamedTuple):
    """What is known of some bags: their counts, and a partial figure of each metric."""

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
    """Figures of a model on the bags of a store, the same to the last bit however they are made.

    Parameters
    ----------
    model
        A model, or the path of a run folder or model file.
    store
        A store, several, or a view, or their paths.
    metrics
        Names or metrics; every one that fits the store unless given.
    threads
        Threads of this process; as many as there are cores unless given.
    workers
        Start a local cluster of as many processes instead.
    scheduler
        Address of a running Dask scheduler to use instead.
    worker_memory
        What each of the ``workers`` may take; an equal share of the machine's unless given.
    block_bytes
        What a task reads at most, and about a half of what it holds.
    watch
        Called now and then with how far it is.

    Returns
    -------
    Each figure under its name; ``standard_errors`` of those that have one; ``n_bags``,
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
    model, store = opened(model, store)
    check_labelled(model, store)
    measures = chosen(metrics, row_labels=store.has_row_labels)
    most = block_size(block_bytes)
    total: Partials | None = None
    with open_pool(
        threads=threads, workers=workers, scheduler=scheduler, worker_memory=worker_memory
    ) as pool:
        count = Count(store.n_bags, pool.dashboard, watch)
        share = int(store_bytes(store) / (SHARE_OF_TASKS * pool.n_threads))
        size = min(most, max(LEAST_BYTES, share))
        work = pieces(store, size, remote=pool.is_remote)
        scorer = pool.share(Scorer(model))
        for partials in pool.map(measure_piece, work, scorer, measures, most, seen=count):
            total = partials if total is None else combined(measures, total, partials)
    assert total is not None, "a store with labels has bags"
    return finished(measures, total, store.label_names or model.label_names)


def check_labelled(model: Model, store: Bags) -> None:
    """Refuse a store that the model cannot be compared with, before any row is read."""
    if store.n_labels < 1 or store.n_label_entries == 0:
        raise StreammimlError(f"{store.name} has no labels to compare predictions with")
    check_fits(model, store)


def measure_piece(
    piece: Piece, scorer: Scorer, metrics: Sequence[Metric[Any]], block_bytes: int
) -> Partials:
    """One task: read, score and measure, with scores of ``block_bytes`` at a time."""
    parts = (
        measured(
            scored(scorer.rule, block, found, piece.cut(first, first + len(block)).bag_numbers()),
            metrics,
        )
        for first, block, found in scored_blocks(piece, scorer, block_bytes)
    )
    return reduce(lambda one, other: combined(metrics, one, other), parts)


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
    """What :func:`evaluate` returns."""
    out: dict[str, Any] = {
        "n_bags": total.n_bags,
        "n_bags_without_labels": total.without_labels,
        "n_bags_with_all_labels": total.with_all_labels,
    }
    errors: dict[str, float] = {}
    for metric, partial in zip(metrics, total.figures, strict=True):
        figure = metric.finish(partial)
        out[metric.name] = figure.value
        out |= figure.also
        if figure.standard_error is not None:
            errors[metric.name] = figure.standard_error
    out["standard_errors"] = errors
    if names is not None:
        for row in out.get("per_label", ()):
            row["name"] = names[row["label"]]
    return out
