"""``evaluate``: blocks of bags → scores → partial figures → figures, on Dask."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from streammiml.bags.block import BagBlock
from streammiml.bags.store import Bags, open_store
from streammiml.cluster import open_pool
from streammiml.config import parse_size
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Scores
from streammiml.measure.metric import Metric, ScoredBlock
from streammiml.measure.pieces import Piece, pieces, store_bytes
from streammiml.measure.registry import chosen
from streammiml.measure.rules import predicted
from streammiml.model import LabelRule, Model, load_model
from streammiml.scoring import Scorer

BLOCK_BYTES = "8MiB"
"""Bags that a task reads, at most."""
LEAST_BYTES = 256 << 10
# Score, key row, sub-concept, prediction and the copies made on the way, for each label of a bag.
LABEL_BYTES = 32
# Tasks a thread should get at least, lest one waits long for the other.
SHARE_OF_TASKS = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an evaluation is, for whoever shows it."""

    bags_done: int
    n_bags: int
    dashboard: str | None


class Partials(NamedTuple):
    """What is known of some bags: their counts, and a partial figure of each metric."""

    n_bags: int
    without_labels: int
    with_all_labels: int
    figures: tuple[Any, ...]


def evaluate(
    model: Model | str | os.PathLike[str],
    store: Bags | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    metrics: Iterable[str | Metric[Any]] | None = None,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    block_bytes: str | int = BLOCK_BYTES,
    watch: Callable[[Progress], None] = lambda _: None,
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
    block_bytes
        What a task reads at most, and about a half of what it holds.
    watch
        Called now and then with how far it is.

    Returns
    -------
    Each figure under its name; ``standard_errors`` of those that have one; ``n_bags``,
    ``n_bags_without_labels`` and ``n_bags_with_all_labels``; ``per_label``, a table.
    """
    model = model if isinstance(model, Model) else load_model(model)
    store = store if isinstance(store, Bags) else open_store(store)
    _check(model, store)
    measures = chosen(metrics, row_labels=store.has_row_labels)
    most = parse_size(block_bytes, option="block_bytes")
    total: Partials | None = None
    with open_pool(threads=threads, workers=workers, scheduler=scheduler) as pool:
        watch(Progress(0, store.n_bags, pool.dashboard))
        share = int(store_bytes(store) / (SHARE_OF_TASKS * pool.n_threads))
        size = min(most, max(LEAST_BYTES, share))
        work = pieces(store, size, remote=pool.is_remote)
        scorer = pool.share(Scorer(model))
        for partials in pool.map(measure_piece, work, scorer, measures, most):
            total = partials if total is None else combined(measures, total, partials)
            watch(Progress(total.n_bags, store.n_bags, pool.dashboard))
    assert total is not None, "a store with labels has bags"
    return _finished(measures, total, store.label_names or model.label_names)


def _check(model: Model, store: Bags) -> None:
    if store.n_labels < 1 or store.n_label_entries == 0:
        raise StreammimlError(f"{store.name} has no labels to compare predictions with")
    model.check_store(store.n_features, store.n_labels, store.label_names, store=store.name)


def measure_piece(
    piece: Piece, scorer: Scorer, metrics: Sequence[Metric[Any]], block_bytes: int
) -> Partials:
    """One task: read, score and measure, with scores of ``block_bytes`` at a time."""
    block = piece.read()
    step = max(1, block_bytes // (LABEL_BYTES * (scorer.n_labels + 1)))

    def parts() -> Iterator[Partials]:
        for start in range(0, len(block), step):
            part = block.slice(start, min(start + step, len(block)))
            found = scorer.scores(part)
            if not np.isfinite(found.value).all():
                bag = piece.start + start + int(np.isfinite(found.value).all(axis=1).argmin())
                raise StreammimlError(
                    f"{piece.source.name}: bag {bag} has a score that is no finite number, so its "
                    "values are too large for the model; look at them, or scale them otherwise"
                )
            yield measured(scored(scorer.rule, part, found), metrics)

    return reduce(lambda one, other: combined(metrics, one, other), parts())


def scored(rule: LabelRule, block: BagBlock, found: Scores) -> ScoredBlock:
    """A block of bags with what a model found in it."""
    scores = np.ascontiguousarray(found.value[:, :-1])
    dummy = found.value[:, -1]
    return ScoredBlock(
        scores=scores,
        dummy=dummy,
        predicted=predicted(rule, scores, dummy),
        label_offsets=block.label_offsets,
        labels=block.label_indices,
        key_rows=found.row,
        bag_offsets=block.bag_offsets,
        row_labels=block.row_labels,
    )


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


def _finished(
    metrics: Sequence[Metric[Any]], total: Partials, names: Sequence[str] | None
) -> dict[str, Any]:
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
