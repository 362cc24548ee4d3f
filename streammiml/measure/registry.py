"""All metrics by name; adding a metric takes one line here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from streammiml.errors import StreammimlError, unknown
from streammiml.measure import areas, counts, probability, ranking
from streammiml.measure.metric import Metric

AT = (1, 3, 5)
"""Values of K for which precision, nDCG and hits among the first K are computed by default."""

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
    areas.macro_auc,
    areas.micro_auc,
    areas.macro_average_precision,
    areas.micro_average_precision,
    areas.gap_at(20),
    ranking.perr,
    *map(ranking.hit_at, AT),
    probability.brier_score,
    probability.expected_calibration_error,
    counts.key_instance_accuracy,
    areas.per_label,
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

_SPOKEN = {"f1": "F1", "ndcg": "nDCG", "auc": "AUROC", "gap": "GAP", "perr": "PERR"}

_FAMILIES: dict[str, Callable[[int], Metric[Any]]] = {
    "precision_at": ranking.precision_at,
    "ndcg_at": ranking.ndcg_at,
    "hit_at": ranking.hit_at,
    "gap_at": areas.gap_at,
}


def metric_named(name: str) -> Metric[Any]:
    """Return a metric by name; those that end in ``_at_K`` exist for any K."""
    if name in METRICS:
        return METRICS[name]
    match = re.fullmatch(r"([a-z]+_at)_([1-9][0-9]{0,8})", name)
    if match and match[1] in _FAMILIES:
        return _FAMILIES[match[1]](int(match[2]))
    raise unknown("metric", name, METRICS, page="evaluate")


def chosen(
    metrics: Iterable[str | Metric[Any]] | None, *, row_labels: bool, probabilities: bool = False
) -> list[Metric[Any]]:
    """Return the requested metrics, without duplicates; None means all that fit model and store.

    ``row_labels`` says whether the store has row labels, ``probabilities`` whether the model is
    calibrated; without them, a requested metric that needs them is refused.
    """
    if metrics is None:
        fitting = [m for m in METRICS.values() if row_labels or not m.needs_row_labels]
        return [m for m in fitting if probabilities or not m.needs_probabilities]
    requested = [m if isinstance(m, Metric) else metric_named(m) for m in metrics]
    distinct = {metric.name: metric for metric in requested}.values()
    for metric in distinct:
        if metric.needs_row_labels and not row_labels:
            raise StreammimlError(
                f"{metric.name} needs a store with row labels; leave this metric out"
            )
        if metric.needs_probabilities and not probabilities:
            raise StreammimlError(
                f"{metric.name} needs a calibrated model; train with --calibrate, or leave this "
                "metric out"
            )
    return list(distinct)


def spoken(name: str) -> str:
    """Write the name of a metric as words: ``f1_at_3`` becomes ``F1 at 3``."""
    return " ".join(_SPOKEN.get(word, word) for word in name.split("_"))
