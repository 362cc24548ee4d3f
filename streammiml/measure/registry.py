"""All metrics by name; adding a metric takes one line here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from streammiml.errors import StreammimlError, unknown
from streammiml.measure import counts, ranking
from streammiml.measure.metric import Metric

AT = (1, 3, 5)
"""Values of K for which ``precision_at_K`` and ``ndcg_at_K`` are computed by default."""

_ALL: list[Metric[Any]] = [
    counts.hamming_loss,
    ranking.one_error,
    ranking.coverage,
    ranking.ranking_loss,
    ranking.average_precision,
    counts.subset_accuracy,
    counts.micro_f1,
    counts.macro_f1,
    counts.sample_f1,
    *map(ranking.precision_at, AT),
    *map(ranking.ndcg_at, AT),
    counts.key_instance_accuracy,
    counts.per_label,
]
METRICS = {metric.name: metric for metric in _ALL}
PAPER_FIGURES = (
    "hamming_loss",
    "one_error",
    "coverage",
    "ranking_loss",
    "average_precision",
    "key_instance_accuracy",
)
"""Figures of the paper, in the order of its tables."""

_FAMILIES: dict[str, Callable[[int], Metric[Any]]] = {
    "precision_at": ranking.precision_at,
    "ndcg_at": ranking.ndcg_at,
}


def metric_named(name: str) -> Metric[Any]:
    """Return a metric by name; ``precision_at_K`` and ``ndcg_at_K`` exist for any K."""
    if name in METRICS:
        return METRICS[name]
    match = re.fullmatch(r"(precision_at|ndcg_at)_([1-9][0-9]{0,8})", name)
    if match:
        return _FAMILIES[match[1]](int(match[2]))
    raise unknown("metric", name, METRICS)


def chosen(metrics: Iterable[str | Metric[Any]] | None, *, row_labels: bool) -> list[Metric[Any]]:
    """Return the requested metrics, without duplicates; None means all that fit the store.

    ``row_labels`` says whether the store has row labels; without them, a requested metric that
    needs them is refused.
    """
    if metrics is None:
        return [m for m in METRICS.values() if row_labels or not m.needs_row_labels]
    requested = [m if isinstance(m, Metric) else metric_named(m) for m in metrics]
    distinct = {metric.name: metric for metric in requested}.values()
    for metric in distinct:
        if metric.needs_row_labels and not row_labels:
            raise StreammimlError(
                f"{metric.name} needs a store with row labels; leave this metric out"
            )
    return list(distinct)
