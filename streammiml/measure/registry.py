"""Every metric by name; a new one is a line here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from streammiml.errors import StreammimlError, unknown
from streammiml.measure import counts, ranking
from streammiml.measure.metric import Metric

AT = (1, 3, 5)
"""K of ``precision_at_K`` and ``ndcg_at_K`` unless others are asked for by name."""

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

_FAMILIES: dict[str, Callable[[int], Metric[Any]]] = {
    "precision_at": ranking.precision_at,
    "ndcg_at": ranking.ndcg_at,
}


def metric_named(name: str) -> Metric[Any]:
    """A metric by name; ``precision_at_K`` and ``ndcg_at_K`` for any K."""
    if name in METRICS:
        return METRICS[name]
    found = re.fullmatch(r"(precision_at|ndcg_at)_([1-9][0-9]{0,8})", name)
    if found:
        return _FAMILIES[found[1]](int(found[2]))
    raise unknown("metric", name, METRICS)


def chosen(metrics: Iterable[str | Metric[Any]] | None, *, row_labels: bool) -> list[Metric[Any]]:
    """The metrics asked for, by name or as they are, or every one that fits the store.

    One that needs the labels of rows is refused by name where there are none.
    """
    if metrics is None:
        return [m for m in METRICS.values() if row_labels or not m.needs_row_labels]
    asked = [m if isinstance(m, Metric) else metric_named(m) for m in metrics]
    found = {metric.name: metric for metric in asked}.values()
    for metric in found:
        if metric.needs_row_labels and not row_labels:
            raise StreammimlError(
                f"{metric.name} needs a store that knows the labels of its rows; leave it out"
            )
    return list(found)
