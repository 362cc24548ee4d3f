"""Metrics that compare the scores of different bags: areas under curves, and the table of labels.

A curve of a label goes down the scores of all bags. AUROC is the share of (carried, other) pairs of
bags in which the bag that carries the label scores higher; a tie counts as half a pair. Average
precision adds up precision times the gain in recall, with one step for each distinct score. Both
agree with scikit-learn. A bag without labels is one of the other bags of every label, and a bag
with all labels carries every label, so these figures need no convention for such bags.

Scores are kept in bounded memory. With more than ``MOST_SCORES`` different ones (for gAP,
``MOST_POOLED``) some count as equal, and the figures come with bounds; see ``score_counts.py``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from streammiml.measure.counts import shares
from streammiml.measure.metric import F64, Figure, LabelCounts, Metric, ScoredBlock
from streammiml.measure.rules import highest
from streammiml.measure.score_counts import Curves, ScoreCounts

MOST_SCORES = 1 << 21
"""Different scores, by label, that are kept: 12 bytes each, and about four times this for sums."""
MOST_POOLED = 1 << 19
"""Different scores that are kept for gAP, where those of all labels are counted together."""


class LabelSums(NamedTuple):
    """Counts of predictions of each label, and its scores."""

    counts: LabelCounts
    scores: ScoreCounts

    def add(self, other: LabelSums) -> LabelSums:
        """Sums over two sets of bags."""
        return LabelSums(self.counts.add(other.counts), self.scores.add(other.scores))


def _label_sums(block: ScoredBlock) -> LabelSums:
    pairs = block.bag_of, block.labels
    return LabelSums(block.label_counts, ScoreCounts.of(block.scores, pairs, MOST_SCORES))


def _mean(values: F64) -> float:
    return math.fsum(values.tolist()) / len(values)


def _over_labels(values: F64, low: F64, high: F64, *, is_exact: bool, left_out: str) -> Figure:
    """Mean over labels where a figure is defined; ``left_out`` names the number of the others."""
    defined = ~np.isnan(values)
    also = {left_out: int((~defined).sum())}
    if not defined.any():
        return Figure(None, also=also)
    means = [_mean(array[defined]) for array in (values, low, high)]
    return Figure(means[0], also=also, bounds=None if is_exact else (means[1], means[2]))


def _macro_auc(sums: LabelSums) -> Figure:
    """Mean AUROC over labels that some bags carry and others do not."""
    curves = sums.scores.by_label
    return _over_labels(
        *(curves.auc, curves.auc_low, curves.auc_high),
        is_exact=sums.scores.is_exact,
        left_out="n_labels_of_one_class",
    )


def _macro_precision(sums: LabelSums) -> Figure:
    """Mean average precision over labels that any bag carries; of a label of all bags, it is 1."""
    curves = sums.scores.by_label
    return _over_labels(
        *(curves.precision, curves.precision_low, curves.precision_high),
        is_exact=sums.scores.is_exact,
        left_out="n_labels_of_no_bag",
    )


def _single(value: F64, low: F64, high: F64, *, is_exact: bool) -> Figure:
    if np.isnan(value[0]):
        return Figure(None)
    return Figure(float(value[0]), bounds=None if is_exact else (float(low[0]), float(high[0])))


def _micro_auc(sums: LabelSums) -> Figure:
    """AUROC of all (bag, label) pairs together."""
    curves = sums.scores.pooled
    return _single(curves.auc, curves.auc_low, curves.auc_high, is_exact=sums.scores.is_exact)


def _micro_precision(sums: LabelSums) -> Figure:
    """Average precision of all (bag, label) pairs together."""
    curves = sums.scores.pooled
    bounds = curves.precision_low, curves.precision_high
    return _single(curves.precision, *bounds, is_exact=sums.scores.is_exact)


def _table(sums: LabelSums) -> Figure:
    """A row for each label: counts of bags, precision, recall, F1, AUROC and average precision."""
    counts, curves = sums.counts, sums.scores.by_label
    columns: dict[str, list[Any]] = {
        "support": counts.true.tolist(),
        "predicted": counts.predicted.tolist(),
    }
    names = ("precision", "recall", "f1")
    columns |= {name: each.tolist() for name, each in zip(names, shares(counts), strict=True)}
    columns |= {"auc": _listed(curves.auc), "average_precision": _listed(curves.precision)}
    if not sums.scores.is_exact:
        columns["auc_bounds"] = _pairs(curves.auc_low, curves.auc_high)
        columns["average_precision_bounds"] = _pairs(curves.precision_low, curves.precision_high)
    rows = zip(*columns.values(), strict=True)
    return Figure(
        [{"label": i, **dict(zip(columns, row, strict=True))} for i, row in enumerate(rows)]
    )


def _listed(values: F64) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _pairs(low: F64, high: F64) -> list[list[float] | None]:
    both = zip(low.tolist(), high.tolist(), strict=True)
    return [None if math.isnan(pair[0]) else list(pair) for pair in both]


class FirstScores(NamedTuple):
    """The highest scores of each bag, pooled, and the number of (bag, relevant label) pairs."""

    n_relevant: int
    scores: ScoreCounts

    def add(self, other: FirstScores) -> FirstScores:
        """Scores of two sets of bags."""
        return FirstScores(self.n_relevant + other.n_relevant, self.scores.add(other.scores))

    def figure(self) -> Figure:
        """Global average precision; None without relevant labels, 0 if none is among the first."""
        if not self.n_relevant:
            return Figure(None)
        # The curve's recall ends at the share of relevant labels that are among the first.
        n_found = int(self.scores.total.carried.counts.sum())
        if not n_found:
            return Figure(0.0)
        share = n_found / self.n_relevant
        curves = self.scores.by_label
        scaled = Curves(*(array * share for array in curves))
        bounds = scaled.precision_low, scaled.precision_high
        return _single(scaled.precision, *bounds, is_exact=self.scores.is_exact)


def _first_scores(block: ScoredBlock, k: int) -> FirstScores:
    """The ``k`` highest scores of each bag; ties go to the lowest label, as in predictions."""
    first = highest(block.scores, k)
    relevant = np.zeros(block.scores.shape, np.bool_)
    relevant[block.bag_of, block.labels] = True
    hits = np.flatnonzero(relevant[first])
    pairs = hits, np.zeros(len(hits), np.int64)
    scores = ScoreCounts.of(block.scores[first][:, None], pairs, MOST_POOLED)
    return FirstScores(len(block.labels), scores)


def gap_at(k: int) -> Metric[FirstScores]:
    """Global average precision, as in YouTube-8M: of the ``k`` highest scores of all bags, pooled.

    Recall is the share of all relevant labels. Equal scores are one step of the curve.
    """
    return Metric(
        f"gap_at_{k}",
        partial(_first_scores, k=k),
        FirstScores.add,
        FirstScores.figure,
        "higher",
        over_labelled=False,
    )


def _metric(name: str, finish: Any, better: Any = "higher") -> Metric[LabelSums]:
    return Metric(name, _label_sums, LabelSums.add, finish, better, over_labelled=False)


macro_auc = _metric("macro_auc", _macro_auc)
micro_auc = _metric("micro_auc", _micro_auc)
macro_average_precision = _metric("macro_average_precision", _macro_precision)
micro_average_precision = _metric("micro_average_precision", _micro_precision)
per_label = _metric("per_label", _table, "neither")
