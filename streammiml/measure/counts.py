"""Metrics of predicted labels and of key rows, computed from counts.

A ratio 0 / 0 counts as 0, as in scikit-learn: the precision of a label that is never predicted, the
recall of a label that no bag carries, the F1 of a bag that has no labels and no predictions.
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


def _n_wrong(block: ScoredBlock) -> I64:
    """(n,) For each bag, labels predicted but not relevant, or relevant but not predicted."""
    return block.n_true + block.n_predicted - 2 * block.n_hits


def _wrong_labels(block: ScoredBlock) -> Ratio:
    """Share of the L labels of a bag that are wrong: ``hamming_loss``."""
    return Ratio.of(_n_wrong(block), block.n_labels)


def _all_right(block: ScoredBlock) -> Ratio:
    """Share of bags whose predicted labels are exactly the true ones: ``accuracy_score``."""
    return Ratio.of((_n_wrong(block) == 0).astype(np.int64), 1)


def _pooled(block: ScoredBlock) -> Ratio:
    """F1 of all (bag, label) pairs together: ``f1_score(average="micro")``."""
    return Ratio.of(2 * block.n_hits, block.n_true + block.n_predicted)


def _pooled_figure(sums: Ratio) -> Figure:
    return sums.figure() if sums.b else Figure(0.0)


def _f1_of_bags(block: ScoredBlock) -> BagMean:
    """Mean F1 over bags: ``f1_score(average="samples")``; a bag without any label counts as 0."""
    return BagMean.of(2 * block.n_hits / np.maximum(block.n_true + block.n_predicted, 1))


def shares(counts: LabelCounts) -> tuple[Any, Any, Any]:
    """Precision, recall and F1 of each label: three arrays (L,)."""
    true, predicted, hits = counts
    return (
        hits / np.maximum(predicted, 1),
        hits / np.maximum(true, 1),
        2 * hits / np.maximum(predicted + true, 1),
    )


class GroupedCounts(NamedTuple):
    """Counts of labels in each of G groups of bags; a hash of a bag's number chooses its group.

    An exact standard error of a mean over labels would need the counts of every pair of labels. A
    jackknife, which leaves out one group at a time, estimates it from these counts.
    """

    n_bags: I64
    """(G,) Bags of each group."""
    labels: LabelCounts
    """Arrays (G, L)."""

    def add(self, other: GroupedCounts) -> GroupedCounts:
        """Counts of two sets of bags."""
        return GroupedCounts(self.n_bags + other.n_bags, self.labels.add(other.labels))


def _grouped_counts(block: ScoredBlock) -> GroupedCounts:
    group, n_groups = block.groups
    return GroupedCounts(np.bincount(group, minlength=n_groups), block.grouped_counts)


def _mean_f1(counts: GroupedCounts) -> Figure:
    """Mean F1 over all labels, even those that no bag carries: ``f1_score(average="macro")``.

    The standard error comes from a jackknife that leaves out a group at a time, with the formula
    for groups of unequal size (Busing, Meijer and van der Leeden 1999).
    """

    def mean(label_counts: LabelCounts) -> float:
        return math.fsum(shares(label_counts)[2]) / len(label_counts.true)

    total = LabelCounts(*(by_group.sum(axis=0) for by_group in counts.labels))
    value, groups = mean(total), np.flatnonzero(counts.n_bags).tolist()
    if len(groups) < 2:
        return Figure(value)
    n_bags = int(counts.n_bags.sum())
    # ``h`` of a group, as in the paper: the number of all bags over that of the group.
    ratios = [n_bags / int(counts.n_bags[group]) for group in groups]
    means_without = [
        mean(LabelCounts(*(a - b[group] for a, b in zip(total, counts.labels, strict=True))))
        for group in groups
    ]
    pseudo_values = [
        h * value - (h - 1) * without for h, without in zip(ratios, means_without, strict=True)
    ]
    weighted_mean = math.fsum(x / h for x, h in zip(pseudo_values, ratios, strict=True))
    squares = (
        (x - weighted_mean) ** 2 / (h - 1) for x, h in zip(pseudo_values, ratios, strict=True)
    )
    return Figure(value, math.sqrt(math.fsum(squares) / len(groups)))


class KeyCounts(NamedTuple):
    """Counts of (bag, label) pairs whose key row has the label, and of rows of unknown label."""

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
    """Count (bag, relevant label) pairs whose key row is a row of that label.

    A key row of unknown label counts as wrong. A pair is left out if no row of the bag is known to
    have the label, so bags without labels do not count. Ties between rows go to the first row.
    """
    assert block.row_labels is not None, "measured only on stores with row labels"
    assert block.key_rows is not None
    assert block.bag_offsets is not None
    bag_of, labels, n_labels = block.bag_of, block.labels.astype(np.int64), block.n_labels
    key_labels = block.row_labels[block.bag_offsets[bag_of] + block.key_rows[bag_of, labels]]
    # Bags ascend, and labels within a bag, so the numbers of the pairs ascend too.
    pairs = bag_of * n_labels + labels
    bag_of_row = np.repeat(np.arange(block.n_bags), np.diff(block.bag_offsets))
    known = block.row_labels >= 0
    row_pairs = bag_of_row[known] * n_labels + block.row_labels[known]
    index = np.searchsorted(pairs, row_pairs)
    inside = index < len(pairs)
    # Whether a row of the bag has the label.
    present = np.zeros(len(pairs), np.bool_)
    present[index[inside][pairs[index[inside]] == row_pairs[inside]]] = True
    right = np.bincount(bag_of[key_labels == labels], minlength=block.n_bags)
    counted = np.bincount(bag_of[present], minlength=block.n_bags)
    unknown = int((present & (key_labels < 0)).sum())
    return KeyCounts(Ratio.of(right, counted), unknown, int((~known).sum()))


hamming_loss = Metric("hamming_loss", _wrong_labels, Ratio.add, Ratio.figure, "lower")
subset_accuracy = Metric("subset_accuracy", _all_right, Ratio.add, Ratio.figure, "higher")
micro_f1 = Metric("micro_f1", _pooled, Ratio.add, _pooled_figure, "higher")
sample_f1 = Metric("sample_f1", _f1_of_bags, BagMean.add, BagMean.figure, "higher")
macro_f1 = Metric("macro_f1", _grouped_counts, GroupedCounts.add, _mean_f1, "higher")
key_instance_accuracy = Metric(
    "key_instance_accuracy",
    _right_keys,
    KeyCounts.add,
    KeyCounts.figure,
    "higher",
    needs_row_labels=True,
    over_labelled=False,
)
