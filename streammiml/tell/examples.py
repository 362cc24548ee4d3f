"""Bags to look at: which rows spoke for which labels, and what the sub-concepts hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.views import Bags
from streammiml.measure.concepts import Concepts
from streammiml.measure.predict import predict_bags
from streammiml.model import Model
from streammiml.tell.pictures import picture

TYPICAL = 6
"""Bags remembered of each sub-concept."""
LABELS_SHOWN = 40
"""Labels whose sub-concepts are shown, those predicted most often."""
TYPICAL_BAGS, DRAWN_BAGS = 6, 6
ROWS_SHOWN = 16
NAMES_SHOWN = 8
"""Labels named of a kind, those of the highest scores."""
WORDS_SHOWN = 12
"""Names of features that stand for a row, those of the largest values."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row as a page shows it."""

    number: int
    picture: str | None
    words: list[str]
    """Names of its largest features, where the store has names and rows are no images."""
    keys: list[str] = field(default_factory=list)
    """Labels that it spoke for."""
    label: str | None = None
    """Its own, where the store knows."""


@dataclass(frozen=True, slots=True)
class Example:
    """A bag with what was predicted for it."""

    bag_id: str
    rows: list[Row]
    n_rows: int
    right: list[str]
    wrong: list[str]
    """Predicted and not carried."""
    missed: list[str]


@dataclass(frozen=True, slots=True)
class Concept:
    """A sub-concept that holds bags."""

    number: int
    n_bags: int
    share: float
    precision: float
    """Share of its bags that carry the label."""
    typical: list[tuple[str, Row]]
    """Bags, by their names, and their key rows."""


@dataclass(frozen=True, slots=True)
class LabelConcepts:
    """The sub-concepts of a label, the largest first."""

    name: str
    n_bags: int
    concepts: list[Concept]
    n_empty: int


class Viewer:
    """Makes rows of a store something to look at."""

    def __init__(self, store: Bags, names: Sequence[str], shape: tuple[int, ...] | None) -> None:
        self.store, self.names, self.shape = store, names, shape
        self._low, self._high = 0.0, 1.0

    def fit(self, block: BagBlock) -> None:
        """Take black and white from the values of these bags, for all pictures of a page."""
        values = block.rows.values if isinstance(block.rows, SparseRows) else block.rows
        if values.size:
            self._low, self._high = min(0.0, float(values.min())), float(values.max())

    def named(self, labels: Sequence[int]) -> list[str]:
        """Names of the first labels, and how many there are besides."""
        names = [self.names[label] for label in labels[:NAMES_SHOWN]]
        more = len(labels) - len(names)
        return [*names, f"… and {more:,} more"] if more else names

    def rows(self, block: BagBlock, bag: int, wanted: Sequence[int]) -> dict[int, Row]:
        """These rows of a bag of a block."""
        found = {}
        offset = int(block.bag_offsets[bag])
        for number in wanted:
            label = None
            if block.row_labels is not None and block.row_labels[offset + number] >= 0:
                label = self.names[block.row_labels[offset + number]]
            dense = _dense(block, offset + number) if self.shape is not None else None
            shown = None
            if dense is not None and self.shape is not None:
                shown = picture(dense, self.shape, self._low, self._high)
            words = [] if shown is not None else self._words(block, offset + number)
            found[number] = Row(number, shown, words, [], label)
        return found

    def _words(self, block: BagBlock, row: int) -> list[str]:
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
    rows = block.rows
    if not isinstance(rows, SparseRows):
        return rows[row]
    out = np.zeros(rows.n_features, np.float64)
    here = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
    out[rows.columns[here]] = rows.values[here]
    return out


def most_predicted(concepts: Concepts) -> list[int]:
    """Labels predicted for any bag, the most frequent first."""
    counts = concepts.predicted.sum(axis=1)
    order = np.argsort(-counts, kind="stable")
    return [int(label) for label in order if counts[label]]


def subconcepts(viewer: Viewer, found: Concepts) -> list[LabelConcepts]:
    """What the sub-concepts of the most frequent labels hold."""
    labels = most_predicted(found)[:LABELS_SHOWN]
    k = found.predicted.shape[1]
    out = []
    for label in labels:
        counts = found.predicted[label]
        concepts = []
        for sub in np.argsort(-counts, kind="stable").tolist():
            if not counts[sub]:
                continue
            here = found.typical.at(label * k + sub)
            typical = []
            for bag, row in zip(
                found.typical.bag[here].tolist(), found.typical.row[here].tolist(), strict=True
            ):
                # One bag at a time: there are many, and each may be long.
                shown = viewer.rows(viewer.store.read(bag, bag + 1), 0, [row])[row]
                typical.append((viewer.store.bag_ids(bag, bag + 1)[0], shown))
            concepts.append(
                Concept(
                    sub,
                    int(counts[sub]),
                    float(counts[sub] / counts.sum()),
                    float(found.right[label, sub] / counts[sub]),
                    typical,
                )
            )
        out.append(
            LabelConcepts(viewer.names[label], int(counts.sum()), concepts, k - len(concepts))
        )
    return out


def chosen_bags(store: Bags, found: Concepts) -> list[int]:
    """The most typical bags of the most frequent labels, then as many evenly from all bags."""
    k = found.predicted.shape[1]
    bags: dict[int, None] = {}
    for label in most_predicted(found):
        sub = int(found.predicted[label].argmax())
        bags.setdefault(int(found.typical.bag[found.typical.at(label * k + sub)][0]))
        if len(bags) == TYPICAL_BAGS:
            break
    for i in range(DRAWN_BAGS):
        bags.setdefault((2 * i + 1) * store.n_bags // (2 * DRAWN_BAGS))
    return list(bags)


def examples(viewer: Viewer, model: Model, bags: Sequence[int]) -> list[Example]:
    """These bags; where there are too many rows to show, key rows and the first others."""
    block = viewer.store.read_bags(bags)
    viewer.fit(block)
    found = predict_bags(model, block)
    out = []
    for i, bag in enumerate(bags):
        scores = found.scores[i]
        chosen = found.labels[i]
        order = np.argsort(-scores[chosen], kind="stable")
        predicted = chosen[order].tolist()
        keys: dict[int, list[int]] = {}
        for label, row in zip(predicted, found.key_instances[i][order].tolist(), strict=True):
            keys.setdefault(row, []).append(label)
        n_rows = int(block.bag_offsets[i + 1] - block.bag_offsets[i])
        others = [row for row in range(n_rows) if row not in keys]
        shown = sorted([*keys, *others][:ROWS_SHOWN])
        rows = viewer.rows(block, i, shown)
        for row, labels in keys.items():
            if row in rows:
                rows[row].keys.extend(viewer.named(labels))
        true = block.labels_of(i)
        true = true[np.argsort(-scores[true], kind="stable")].tolist()
        carried, given = set(true), set(predicted)
        out.append(
            Example(
                viewer.store.bag_ids(bag, bag + 1)[0],
                list(rows.values()),
                n_rows,
                viewer.named([each for each in predicted if each in carried]),
                viewer.named([each for each in predicted if each not in carried]),
                viewer.named([each for each in true if each not in given]),
            )
        )
    return out
