"""Predictions of a model for some bags, as arrays and as an Arrow table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streammiml._base.calibration import Calibration
from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import TEXT, Kept, KeptColumn, columns_of
from streammiml.bags.offsets import from_sizes
from streammiml.bags.tables import pandas_frame, polars_frame
from streammiml.kernel.score import Scores
from streammiml.measure.rules import highest, predicted
from streammiml.model import LabelRule

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Scores of n bags, and their predicted labels with key instances and sub-concepts."""

    scores: F32
    """(n, L), or (n, k) with the k highest in descending order; ties go to the lowest label."""
    score_labels: NDArray[np.int32] | None
    """(n, k) Labels of the k highest scores; None if ``scores`` holds all L."""
    dummy_score: F32
    """(n,) Score of the dummy label."""
    predicted: NDArray[np.bool_]
    """(n, L) Whether a label is predicted."""
    label_offsets: I64
    """(n + 1,) Bounds of each bag in the three arrays below, sorted by bag, then label."""
    label_indices: NDArray[np.int32]
    """Predicted labels."""
    row_indices: NDArray[np.int32]
    """Key instance: the row within the bag that gave the label's score."""
    subconcept_indices: NDArray[np.int32]
    """Sub-concept that gave the label's score."""
    kept_values: Kept = field(default_factory=dict)
    """Values of kept columns at the key instances, by name."""
    probabilities: F32 | None = None
    """Probability of the label of each of ``scores``; None if the model is not calibrated."""
    label_names: tuple[str, ...] | None = None
    """Names of all labels, for tables; None if the model has no names."""

    @classmethod
    def of(
        cls,
        rule: LabelRule,
        all_scores: Scores,
        top_k: int | None = None,
        block: BagBlock | None = None,
        *,
        calibration: Calibration | None = None,
    ) -> Predictions:
        """Apply the rule, and the calibration if there is one, to L labels and the dummy.

        ``block`` holds the bags, whose kept columns are looked up at the key instances.
        """
        scores = np.ascontiguousarray(all_scores.value[:, :-1])
        dummy = all_scores.value[:, -1]
        chosen = predicted(rule, scores, dummy)
        bags, labels = np.nonzero(chosen)
        probabilities = None if calibration is None else calibration.of_scores(scores, dummy)
        best = None
        if top_k is not None:
            best = first_labels(scores, top_k)
            scores = np.take_along_axis(scores, best, axis=1)
            if probabilities is not None:
                probabilities = np.take_along_axis(probabilities, best, axis=1)
        rows = all_scores.row[bags, labels].astype(np.int32)
        return cls(
            scores,
            None if best is None else best.astype(np.int32),
            np.ascontiguousarray(dummy),
            chosen,
            from_sizes(np.count_nonzero(chosen, axis=1)),
            labels.astype(np.int32),
            rows,
            all_scores.subconcept[bags, labels],
            {} if block is None else _at_rows(block, bags, rows),
            probabilities,
        )

    @classmethod
    def join(cls, parts: Sequence[Predictions]) -> Predictions:
        """Concatenate parts, in order: at least one part, all with the same ``top_k``."""
        if len(parts) == 1:
            return parts[0]
        best = [part.score_labels for part in parts if part.score_labels is not None]
        known = [part.probabilities for part in parts if part.probabilities is not None]
        kept = [
            name for name in parts[0].kept_values if all(name in part.kept_values for part in parts)
        ]
        return cls(
            np.concatenate([part.scores for part in parts]),
            np.concatenate(best) if best else None,
            np.concatenate([part.dummy_score for part in parts]),
            np.concatenate([part.predicted for part in parts]),
            from_sizes(np.concatenate([np.diff(part.label_offsets) for part in parts])),
            np.concatenate([part.label_indices for part in parts]),
            np.concatenate([part.row_indices for part in parts]),
            np.concatenate([part.subconcept_indices for part in parts]),
            {name: np.concatenate([part.kept_values[name] for part in parts]) for name in kept},
            np.concatenate(known) if len(known) == len(parts) else None,
            parts[0].label_names,
        )

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def labels(self) -> list[NDArray[np.int32]]:
        """Predicted labels of each bag, ascending."""
        return self._by_bag(self.label_indices)

    @property
    def key_instances(self) -> list[NDArray[np.int32]]:
        """Row within the bag that gave each predicted label its score, for each bag."""
        return self._by_bag(self.row_indices)

    @property
    def subconcepts(self) -> list[NDArray[np.int32]]:
        """Sub-concept that gave each predicted label its score, for each bag."""
        return self._by_bag(self.subconcept_indices)

    @property
    def kept(self) -> dict[str, list[NDArray[Any]]]:
        """Values of each kept column at the key instances of each bag."""
        return {name: self._by_bag(values) for name, values in self.kept_values.items()}

    def to_arrow(self) -> pa.Table:
        """Arrow table with a record for each bag, with the columns that a folder has.

        ``bag_id`` is the number of the bag as text, and ``label_names`` are null if the model has
        no names.
        """
        names = None if self.label_names is None else pa.array(self.label_names, pa.string())
        kept = columns_of(self.kept_values)
        return table(self, 0, np.arange(len(self)), names, kept)

    def to_pandas(self) -> Any:
        """Records of :meth:`to_arrow` as a pandas DataFrame, whose lists are arrays."""
        return pandas_frame(self.to_arrow())

    def to_polars(self) -> Any:
        """Records of :meth:`to_arrow` as a Polars DataFrame."""
        return polars_frame(self.to_arrow())

    def _by_bag(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        return [values[a:b] for a, b in pairwise(self.label_offsets.tolist())]


def _at_rows(block: BagBlock, bags: I64, rows: NDArray[np.int32]) -> Kept:
    """Values of kept columns at rows, which are counted within their bags."""
    chosen = block.bag_offsets[bags] + rows
    return {name: values[chosen] for name, values in block.kept.items()}


def first_labels(scores: F32, count: int) -> I64:
    """(n, k) Labels of the ``count`` highest scores, descending; ties go to the lowest label."""
    count = min(count, scores.shape[1])
    labels = np.nonzero(highest(scores, count))[1].reshape(len(scores), count)
    order = np.argsort(-np.take_along_axis(scores, labels, axis=1), axis=1, kind="stable")
    return np.take_along_axis(labels, order, axis=1)


def schema(*, top_k: bool, probabilities: bool = False, kept: Sequence[KeptColumn] = ()) -> Any:
    """Arrow schema of the tables that :func:`table` makes."""
    fields = [
        ("bag", pa.int64()),
        ("bag_id", pa.string()),
        ("scores", pa.list_(pa.float32())),
        ("score_labels", pa.list_(pa.int32())),
        ("probabilities", pa.list_(pa.float32())),
        ("dummy_score", pa.float32()),
        ("labels", pa.list_(pa.int32())),
        ("label_names", pa.list_(pa.string())),
        ("key_instances", pa.list_(pa.int32())),
        ("subconcepts", pa.list_(pa.int32())),
    ]
    fields += [(column.array, pa.list_(value_type(column))) for column in kept]
    written = {"score_labels": top_k, "probabilities": probabilities}
    return pa.schema([field for field in fields if written.get(field[0], True)])


def value_type(column: KeptColumn) -> Any:
    """Arrow type of the value of a kept column in one row."""
    kind = pa.string() if column.dtype == TEXT else pa.from_numpy_dtype(column.dtype)
    return kind if column.width == 1 else pa.list_(kind, column.width)


def value_array(column: KeptColumn, values: NDArray[Any]) -> Any:
    """Arrow array of values of a kept column."""
    items = pa.array(values.reshape(-1), value_type(column._replace(width=1)))
    if column.width == 1:
        return items
    return pa.FixedSizeListArray.from_arrays(items, type=value_type(column))


def table(
    predictions: Predictions,
    first: int,
    ids: Sequence[str] | I64,
    names: Any,
    kept: Sequence[KeptColumn] = (),
) -> Any:
    """Arrow table with one record for each bag.

    ``first`` is the number of the first bag, ``ids`` are names or numbers of the bags, ``names`` is
    an Arrow array of label names, or None for nulls. ``kept`` are the kept columns.
    """
    n, width = predictions.scores.shape
    score_offsets = pa.array(np.arange(n + 1, dtype=np.int32) * width)
    offsets = pa.array(predictions.label_offsets.astype(np.int32))
    fields = schema(
        top_k=predictions.score_labels is not None,
        probabilities=predictions.probabilities is not None,
        kept=kept,
    )

    def by_bag(values: Any) -> Any:
        return pa.ListArray.from_arrays(offsets, values)

    columns = {
        "bag": np.arange(first, first + n),
        "bag_id": pa.array(ids).cast(pa.string()),
        "scores": pa.ListArray.from_arrays(score_offsets, predictions.scores.reshape(-1)),
        "dummy_score": predictions.dummy_score,
        "labels": by_bag(predictions.label_indices),
        "label_names": pa.nulls(n, fields.field("label_names").type),
        "key_instances": by_bag(predictions.row_indices),
        "subconcepts": by_bag(predictions.subconcept_indices),
    }
    if names is not None:
        columns["label_names"] = by_bag(names.take(pa.array(predictions.label_indices)))
    if predictions.score_labels is not None:
        columns["score_labels"] = pa.ListArray.from_arrays(
            score_offsets, predictions.score_labels.reshape(-1)
        )
    if predictions.probabilities is not None:
        columns["probabilities"] = pa.ListArray.from_arrays(
            score_offsets, predictions.probabilities.reshape(-1)
        )
    for column in kept:
        columns[column.array] = by_bag(value_array(column, predictions.kept_values[column.name]))
    return pa.table([columns[name] for name in fields.names], schema=fields)
