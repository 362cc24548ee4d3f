"""Example bags on a page: their key instances, and typical bags of each sub-concept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.coordinates import places_of, where
from streammiml.bags.kept_columns import KeptColumn, plain_values, shown
from streammiml.bags.views import Bags
from streammiml.measure.heat_maps import heat_maps
from streammiml.measure.predict import predict_bags
from streammiml.measure.subconcepts import SubconceptSummary
from streammiml.model import Model
from streammiml.tell.heat_maps import MapPicture, map_picture
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
MAPS_SHOWN = 2
"""Upper limit for the labels of a bag that have a map of row scores."""
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
    maps: list[MapPicture] = field(default_factory=list)
    """Row scores where the rows lie, if the store keeps coordinates."""


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

    ``names`` are the names of labels; ``shape`` is the shape of a row as an image, or None;
    ``coordinates`` are the kept columns that say where rows lie, if there are any.
    """

    def __init__(
        self,
        store: Bags,
        names: Sequence[str],
        shape: tuple[int, ...] | None,
        coordinates: Sequence[KeptColumn] = (),
    ) -> None:
        self.store, self.names, self.shape = store, names, shape
        self.coordinates = coordinates
        self._low, self._high = 0.0, 1.0

    def fit(self, bags: Sequence[int]) -> None:
        """Set the range of brightness, for all images of a page, to the values of these bags."""
        if self.shape is None:
            return
        lows, highs = [], []
        for bag in bags:
            rows = self.store.read(bag, bag + 1, kept=False).rows
            values = rows.values if isinstance(rows, SparseRows) else rows
            if values.size:
                lows.append(float(values.min()))
                highs.append(float(values.max()))
        if lows:
            self._low, self._high = min(0.0, *lows), max(highs)

    @property
    def shows_rows(self) -> bool:
        """Whether rows that are no key instances are shown: not if a map says more about them."""
        return not self.coordinates or self.shape is not None or bool(self.store.feature_names)

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
    viewer.fit(bags)
    # One bag at a time: all of them together may not fit into memory.
    return [_example(viewer, model, bag) for bag in bags]


def _example(viewer: Viewer, model: Model, bag: int) -> Example:
    """Predict a bag and describe it."""
    block = viewer.store.read(bag, bag + 1)
    predictions = predict_bags(model, block)
    scores, chosen = predictions.scores[0], predictions.labels[0]
    order = np.argsort(-scores[chosen], kind="stable")
    predicted = chosen[order].tolist()
    key_rows = predictions.key_instances[0][order].tolist()
    keys: dict[int, list[int]] = {}
    for label, row in zip(predicted, key_rows, strict=True):
        keys.setdefault(row, []).append(label)
    # A row that is neither an image nor words would be a bare number beside the map.
    others = (row for row in range(block.n_rows) if row not in keys and viewer.shows_rows)
    numbers = sorted(islice([*keys, *islice(others, ROWS_SHOWN)], ROWS_SHOWN))
    rows = viewer.rows(block, 0, numbers)
    for row, labels in keys.items():
        if row in rows:
            rows[row].keys.extend(viewer.named(labels))
    true = block.labels_of(0)
    true = true[np.argsort(-scores[true], kind="stable")].tolist()
    carried, predicted_labels = set(true), set(predicted)
    missed = [label for label in true if label not in predicted_labels]
    return Example(
        viewer.store.bag_ids(bag, bag + 1)[0],
        list(rows.values()),
        block.n_rows,
        viewer.named([label for label in predicted if label in carried]),
        viewer.named([label for label in predicted if label not in carried]),
        viewer.named(missed),
        _maps(viewer, model, block, [*predicted, *missed] or [int(scores.argmax())]),
    )


def _maps(viewer: Viewer, model: Model, block: BagBlock, labels: Sequence[int]) -> list[MapPicture]:
    """Draw the row scores of a bag on the first of these labels, if its rows have coordinates."""
    if not viewer.coordinates:
        return []
    places = places_of(viewer.coordinates, block.kept)
    maps = heat_maps(model, block, labels[:MAPS_SHOWN], places, viewer.store.name)
    return [
        map_picture(
            drawn, viewer.names[drawn.label], where(viewer.coordinates, block, drawn.key_row)
        )
        for drawn in maps
    ]
