"""Metrics that count who was predicted, and whether the row that decided was the right one.

A share of nothing is 0, as in scikit-learn: the precision of a label that is never predicted, the
recall of one that no bag carries, the F1 of a bag without labels for which none was predicted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streammiml.measure.metric import (
    I64,
    BagMean,
    Figure,
    LabelCounts,
    Metric,
    Ratio,
    ScoredBlock,
)


def _wrong(block: ScoredBlock) -> I64:
    """(n,) Labels of each bag that are predicted and irrelevant, or relevant and not predicted."""
    return block.n_true + block.n_predicted - 2 * block.n_hits


def _wrong_labels(block: ScoredBlock) -> Ratio:
    """Share of the L labels of a bag that are wrong: ``hamming_loss``."""
    return Ratio.of(_wrong(block), block.n_labels)


def _all_right(block: ScoredBlock) -> Ratio:
    """Bags whose labels are predicted exactly; for one without labels, none: ``accuracy_score``."""
    return Ratio.of((_wrong(block) == 0).astype(np.int64), 1)


def _pooled(block: ScoredBlock) -> Ratio:
    """F1 of all (bag, label) pairs together: ``f1_score(average="micro")``."""
    return Ratio.of(2 * block.n_hits, block.n_true + block.n_predicted)


def _pooled_figure(sums: Ratio) -> Figure:
    return sums.figure() if sums.b else Figure(0.0)


def _f1_of_bags(block: ScoredBlock) -> BagMean:
    """Mean F1 of a bag: ``f1_score(average="samples")``; 0 if it has and is given no label."""
    return BagMean.of(2 * block.n_hits / np.maximum(block.n_true + block.n_predicted, 1))


def _counts_of_labels(block: ScoredBlock) -> LabelCounts:
    return block.label_counts


def _shares(counts: LabelCounts) -> tuple[Any, Any, Any]:
    """(L,) each: precision, recall and F1."""
    true, predicted, hits = counts
    return (
        hits / np.maximum(predicted, 1),
        hits / np.maximum(true, 1),
        2 * hits / np.maximum(predicted + true, 1),
    )


class GroupedCounts(NamedTuple):
    """Counts of labels in each of G groups of bags; a hash of its number says a bag's group.

    A standard error of what labels are pooled for would need the counts of every pair of labels.
    Leaving out one group after the other shows about as much.
    """

    n_bags: I64
    """(G,)."""
    labels: LabelCounts
    """(G, L) each."""

    def add(self, other: GroupedCounts) -> GroupedCounts:
        """Counts of two sets of bags."""
        return GroupedCounts(self.n_bags + other.n_bags, self.labels.add(other.labels))


def _grouped_counts(block: ScoredBlock) -> GroupedCounts:
    group, n_groups = block.groups
    return GroupedCounts(np.bincount(group, minlength=n_groups), block.grouped_counts)


def _mean_f1(counts: GroupedCounts) -> Figure:
    """Mean F1 of a label: ``f1_score(average="macro")``, labels that no bag carries among them.

    The standard error is the jackknife's that leaves out a group at a time, by the formula for
    groups of unequal size (Busing, Meijer and van der Leeden 1999).
    """

    def mean(of: LabelCounts) -> float:
        return math.fsum(_shares(of)[2]) / len(of.true)

    total = LabelCounts(*(each.sum(axis=0) for each in counts.labels))
    value, groups = mean(total), np.flatnonzero(counts.n_bags).tolist()
    if len(groups) < 2:
        return Figure(value)
    n_bags = int(counts.n_bags.sum())
    ratio = [n_bags / int(counts.n_bags[group]) for group in groups]
    without = [
        mean(LabelCounts(*(a - b[group] for a, b in zip(total, counts.labels, strict=True))))
        for group in groups
    ]
    # What each group would say alone, to first order, and their mean.
    alone = [h * value - (h - 1) * left for h, left in zip(ratio, without, strict=True)]
    middle = math.fsum(one / h for one, h in zip(alone, ratio, strict=True))
    squares = ((one - middle) ** 2 / (h - 1) for one, h in zip(alone, ratio, strict=True))
    return Figure(value, math.sqrt(math.fsum(squares) / len(groups)))


def _table(counts: LabelCounts) -> Figure:
    """A row for each label: bags that carry it, bags predicted it, precision, recall, F1."""
    columns = (counts.true, counts.predicted, *_shares(counts))
    names = ("support", "predicted", "precision", "recall", "f1")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    table = [{"label": i, **dict(zip(names, row, strict=True))} for i, row in enumerate(rows)]
    return Figure(table)


class KeyCounts(NamedTuple):
    """Pairs whose key row has the pair's label; key rows and rows of unknown label."""

    right: Ratio
    unknown_keys: int
    unknown_rows: int

    def add(self, other: KeyCounts) -> KeyCounts:
        """Counts of two sets of bags."""
        return KeyCounts(
            self.right.add(other.right),
            self.unknown_keys + other.unknown_keys,
            self.unknown_rows + other.unknown_rows,
        )

    def figure(self) -> Figure:
        """Share of the pairs that are right; None without pairs."""
        counts = {
            "n_key_pairs": self.right.b,
            "n_key_rows_unknown": self.unknown_keys,
            "n_rows_unknown": self.unknown_rows,
        }
        return replace(self.right.figure(), also=counts)


def _right_keys(block: ScoredBlock) -> KeyCounts:
    """Pairs (bag, relevant label) whose bag has a row of that label, and such a row as key row.

    A key row of unknown label is wrong. Pairs whose bag has no row known to be of the label are
    left out, so bags without labels play no part. Ties between rows go to the first, as scored.
    """
    assert block.row_labels is not None, "asked only of stores that know the labels of rows"
    assert block.key_rows is not None
    assert block.bag_offsets is not None
    bag_of, labels, n_labels = block.bag_of, block.labels.astype(np.int64), block.n_labels
    keys = block.row_labels[block.bag_offsets[bag_of] + block.key_rows[bag_of, labels]]
    # Bags ascend, and labels within a bag, so the numbers of the pairs ascend too.
    pairs = bag_of * n_labels + labels
    bag_of_row = np.repeat(np.arange(block.n_bags), np.diff(block.bag_offsets))
    known = block.row_labels >= 0
    rows = bag_of_row[known] * n_labels + block.row_labels[known]
    at = np.searchsorted(pairs, rows)
    inside = at < len(pairs)
    present = np.zeros(len(pairs), np.bool_)
    present[at[inside][pairs[at[inside]] == rows[inside]]] = True
    right = np.bincount(bag_of[keys == labels], minlength=block.n_bags)
    counted = np.bincount(bag_of[present], minlength=block.n_bags)
    unknown = int((present & (keys < 0)).sum())
    return KeyCounts(Ratio.of(right, counted), unknown, int((~known).sum()))


hamming_loss = Metric("hamming_loss", _wrong_labels, Ratio.add, Ratio.figure, "lower")
subset_accuracy = Metric("subset_accuracy", _all_right, Ratio.add, Ratio.figure, "higher")
micro_f1 = Metric("micro_f1", _pooled, Ratio.add, _pooled_figure, "higher")
sample_f1 = Metric("sample_f1", _f1_of_bags, BagMean.add, BagMean.figure, "higher")
macro_f1 = Metric("macro_f1", _grouped_counts, GroupedCounts.add, _mean_f1, "higher")
per_label = Metric("per_label", _counts_of_labels, LabelCounts.add, _table, "neither")
key_instance_accuracy = Metric(
    "key_instance_accuracy",
    _right_keys,
    KeyCounts.add,
    KeyCounts.figure,
    "higher",
    needs_row_labels=True,
)
