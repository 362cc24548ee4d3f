"""Example bags on a page: their key instances, and typical bags of each sub-concept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import plain_values, shown
from streammiml.bags.views import Bags
from streammiml.measure.predict import predict_bags
from streammiml.measure.subconcepts import SubconceptSummary
from streammiml.model import Model
from streammiml.tell.png import image_url

TYPICAL = 6
"""Typical bags kept for each sub-concept."""
LABELS_SHOWN = 40
"""Upper limit for the labels whose sub-concepts are shown: the labels predicted most often."""
TYPICAL_BAGS, DRAWN_BAGS = 6, 6
"""Numbers of example bags: typical bags of frequent labels, and bags spread over the store."""
ROWS_SHOWN = 16
"""Upper limit for the rows shown of a bag."""
NAMES_SHOWN = 8
"""Upper limit for a list of label names: the labels with the highest scores."""
WORDS_SHOWN = 12
"""Upper limit for the feature names that describe a row: the features with the largest values."""


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row as the page shows it."""

    number: int
    """Number of the row in its bag."""
    picture: str | None
    """The row as the URL of an image, where rows are images."""
    words: list[str]
    """Names of the largest features, if the store has feature names and rows are not images."""
    keys: list[str] = field(default_factory=list)
    """Labels whose key instance this row is."""
    label: str | None = None
    """Label of the row itself, if the store has row labels."""
    kept: str = ""
    """Values of kept columns in words, if the store has kept columns."""


@dataclass(frozen=True, slots=True)
class Example:
    """A bag and the labels predicted for it."""

    bag_id: str
    rows: list[ShownRow]
    n_rows: int
    right: list[str]
    """Labels that are predicted and carried."""
    wrong: list[str]
    """Labels that are predicted and not carried."""
    missed: list[str]
    """Labels that are carried and not predicted."""


@dataclass(frozen=True, slots=True)
class Concept:
    """A sub-concept that holds at least one bag."""

    number: int
    n_bags: int
    share: float
    """Share of the bags with the predicted label that belong to this sub-concept."""
    precision: float
    """Share of these bags that carry the label."""
    typical: list[tuple[str, ShownRow]]
    """Ids and key instances of the most typical bags."""


@dataclass(frozen=True, slots=True)
class LabelConcepts:
    """The sub-concepts of a label, sorted by number of bags, largest first."""

    name: str
    n_bags: int
    concepts: list[Concept]
    n_empty: int
    """Number of sub-concepts that hold no bag."""


class Viewer:
    """Turns rows of a store into images or words.

    ``names`` are the names of labels; ``shape`` is the shape of a row as an image, or None.
    """

    def __init__(self, store: Bags, names: Sequence[str], shape: tuple[int, ...] | None) -> None:
        self.store, self.names, self.shape = store, names, shape
        self._low, self._high = 0.0, 1.0

    def fit(self, block: BagBlock) -> None:
        """Set the range of brightness, for all images of a page, to the values of these bags."""
        values = block.rows.values if isinstance(block.rows, SparseRows) else block.rows
        if values.size:
            self._low, self._high = min(0.0, float(values.min())), float(values.max())

    def named(self, labels: Sequence[int]) -> list[str]:
        """Names of the first labels; the last entry says how many more there are."""
        names = [self.names[label] for label in labels[:NAMES_SHOWN]]
        more = len(labels) - len(names)
        return [*names, f"… and {more:,} more"] if more else names

    def rows(self, block: BagBlock, bag: int, numbers: Sequence[int]) -> dict[int, ShownRow]:
        """Rows with these numbers of a bag of a block, by number."""
        rows = {}
        offset = int(block.bag_offsets[bag])
        for number in numbers:
            label = None
            if block.row_labels is not None and block.row_labels[offset + number] >= 0:
                label = self.names[block.row_labels[offset + number]]
            dense = _dense(block, offset + number) if self.shape is not None else None
            url = None
            if dense is not None and self.shape is not None:
                url = image_url(dense, self.shape, self._low, self._high)
            words = [] if url is not None else self._words(block, offset + number)
            kept = {
                name: plain_values(values[offset + number : offset + number + 1])[0]
                for name, values in block.kept.items()
            }
            rows[number] = ShownRow(number, url, words, [], label, shown(kept))
        return rows

    def _words(self, block: BagBlock, row: int) -> list[str]:
        """Names of the features with the largest absolute values, without zeros."""
        features = self.store.feature_names
        if features is None:
            return []
        rows = block.rows
        if isinstance(rows, SparseRows):
            here = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
            columns, values = rows.columns[here], rows.values[here]
        else:
            columns, values = np.arange(rows.shape[1], dtype=np.uint32), rows[row]
        order = np.argsort(-np.abs(values.astype(np.float64)), kind="stable")[:WORDS_SHOWN]
        return [features[int(columns[i])] for i in order if values[i] != 0]


def _dense(block: BagBlock, row: int) -> Any:
    """Return a row of a block as a dense array."""
    rows = block.rows
    if not isinstance(rows, SparseRows):
        return rows[row]
    out = np.zeros(rows.n_features, np.float64)
    here = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
    out[rows.columns[here]] = rows.values[here]
    return out


def most_predicted(concepts: SubconceptSummary) -> list[int]:
    """Labels that are predicted for at least one bag, the most frequent first."""
    counts = concepts.predicted.sum(axis=1)
    order = np.argsort(-counts, kind="stable")
    return [int(label) for label in order if counts[label]]


def subconcepts(viewer: Viewer, summary: SubconceptSummary) -> list[LabelConcepts]:
    """Describe the sub-concepts of the labels that are predicted most often."""
    labels = most_predicted(summary)[:LABELS_SHOWN]
    k = summary.predicted.shape[1]
    out = []
    for label in labels:
        counts = summary.predicted[label]
        concepts = []
        for sub in np.argsort(-counts, kind="stable").tolist():
            if not counts[sub]:
                continue
            entries = summary.typical.at(label * k + sub)
            typical = []
            bags, rows = summary.typical.bag[entries], summary.typical.row[entries]
            for bag, row in zip(bags.tolist(), rows.tolist(), strict=True):
                # One bag at a time: all of them together may not fit into memory.
                key_row = viewer.rows(viewer.store.read(bag, bag + 1), 0, [row])[row]
                typical.append((viewer.store.bag_ids(bag, bag + 1)[0], key_row))
            concepts.append(
                Concept(
                    sub,
                    int(counts[sub]),
                    float(counts[sub] / counts.sum()),
                    float(summary.right[label, sub] / counts[sub]),
                    typical,
                )
            )
        out.append(
            LabelConcepts(viewer.names[label], int(counts.sum()), concepts, k - len(concepts))
        )
    return out


def chosen_bags(store: Bags, summary: SubconceptSummary) -> list[int]:
    """Choose typical bags of the most frequent labels, then bags spread evenly over the store."""
    k = summary.predicted.shape[1]
    bags: dict[int, None] = {}
    for label in most_predicted(summary):
        sub = int(summary.predicted[label].argmax())
        bags.setdefault(int(summary.typical.bag[summary.typical.at(label * k + sub)][0]))
        if len(bags) == TYPICAL_BAGS:
            break
    for i in range(DRAWN_BAGS):
        bags.setdefault((2 * i + 1) * store.n_bags // (2 * DRAWN_BAGS))
    return list(bags)


def examples(viewer: Viewer, model: Model, bags: Sequence[int]) -> list[Example]:
    """Predict these bags; of long bags, show only key instances and the first other rows."""
    block = viewer.store.read_bags(bags)
    viewer.fit(block)
    predictions = predict_bags(model, block)
    out = []
    for i, bag in enumerate(bags):
        scores = predictions.scores[i]
        chosen = predictions.labels[i]
        order = np.argsort(-scores[chosen], kind="stable")
        predicted = chosen[order].tolist()
        key_rows = predictions.key_instances[i][order].tolist()
        keys: dict[int, list[int]] = {}
        for label, row in zip(predicted, key_rows, strict=True):
            keys.setdefault(row, []).append(label)
        n_rows = int(block.bag_offsets[i + 1] - block.bag_offsets[i])
        others = [row for row in range(n_rows) if row not in keys]
        numbers = sorted([*keys, *others][:ROWS_SHOWN])
        rows = viewer.rows(block, i, numbers)
        for row, labels in keys.items():
            if row in rows:
                rows[row].keys.extend(viewer.named(labels))
        true = block.labels_of(i)
        true = true[np.argsort(-scores[true], kind="stable")].tolist()
        carried, predicted_labels = set(true), set(predicted)
        out.append(
            Example(
                viewer.store.bag_ids(bag, bag + 1)[0],
                list(rows.values()),
                n_rows,
                viewer.named([label for label in predicted if label in carried]),
                viewer.named([label for label in predicted if label not in carried]),
                viewer.named([label for label in true if label not in predicted_labels]),
            )
        )
    return out
