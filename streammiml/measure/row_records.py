"""Scores of single rows as records: one for each row and label that is wanted.

All records of a bag come before those of the next. Within a bag they are sorted by row, then label;
or, if only the highest rows of each label are wanted, by label, then score, the highest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KeptColumn
from streammiml.errors import StreammimlError
from streammiml.measure.predictions import value_array, value_type
from streammiml.scorer import RowScorer

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
Bools = NDArray[np.bool_]

ENTRY_BYTES = 128
"""Estimate per row and label: scores, the record as columns and in Arrow, and temporary copies."""

SCHEMA = pa.schema(
    [
        ("bag", pa.int64()),
        ("bag_id", pa.string()),
        ("row", pa.int32()),
        ("label", pa.int32()),
        ("label_name", pa.string()),
        ("score", pa.float32()),
        ("subconcept", pa.int32()),
        ("above_dummy", pa.bool_()),
    ]
)
"""Columns of the records of every store."""


def schema_of(kept: Sequence[KeptColumn]) -> pa.Schema:
    """Columns of the records of a store: its kept columns come last."""
    fields = [pa.field(column.array, value_type(column)) for column in kept]
    return pa.schema([*SCHEMA, *fields])


class RowEntries(NamedTuple):
    """Rows and labels of a block of bags, with their scores; arrays of one length."""

    bag: I64
    """Bag within the block."""
    row: I64
    """Row within the bag."""
    column: I64
    """Index of the label in ``RowScorer.labels``."""
    score: F32
    subconcept: I32

    def take(self, entries: Any) -> RowEntries:
        """These entries, given by index or mask."""
        return RowEntries(*(array[entries] for array in self))

    def join(self, other: RowEntries) -> RowEntries:
        """These entries, then others."""
        pairs: Any = zip(self, other, strict=True)
        return RowEntries(*(np.concatenate(pair) for pair in pairs))


def name_array(names: Sequence[str] | None, labels: Sequence[int] | I32) -> Any:
    """Arrow array of the names of some labels; None if labels have no names."""
    return None if names is None else pa.array([names[label] for label in labels], pa.string())


def rows_at_once(n_labels: int, n_bytes: int) -> int:
    """Number of rows whose entries take about ``n_bytes``; ``n_labels`` are scored."""
    return max(1, n_bytes // (ENTRY_BYTES * (n_labels + 1)))


def row_entries(
    block: BagBlock,
    scorer: RowScorer,
    *,
    wanted: Bools | None = None,
    top: int | None = None,
    n_bytes: int,
    first: int = 0,
    name: str,
) -> Iterator[RowEntries]:
    """Score the rows of a block, in slices that take about ``n_bytes``, however long a bag is.

    ``wanted`` (bags, labels of the scorer) says which labels each bag gets; None means all.
    ``top`` keeps this many rows for each bag and label, those with the highest scores; ties go to
    the lowest row. ``first`` is the number of the first bag and ``name`` that of the store, for the
    message if a score is not finite.
    """
    waiting: RowEntries | None = None
    for start, scores in scorer.scores(block, rows_at_once(len(scorer.labels), n_bytes)):
        values = scores.value[:, :-1]
        numbers = np.arange(start, start + len(values))
        bags = np.searchsorted(block.bag_offsets, numbers, "right") - 1
        rows = numbers - block.bag_offsets[bags]
        check_finite_rows(scores.value, first + bags, rows, name)
        chosen = np.ones(values.shape, np.bool_) if wanted is None else wanted[bags]
        if top is not None:
            chosen = chosen & _may_be_highest(values, bags, top)
        at, columns = np.nonzero(chosen)
        entries = RowEntries(
            bags[at], rows[at], columns, values[at, columns], scores.subconcept[at, columns]
        )
        if top is None:
            yield entries
            continue
        entries = highest_rows(entries if waiting is None else waiting.join(entries), top)
        # The next slice may go on with the last bag.
        is_last = entries.bag == bags[-1]
        yield entries.take(~is_last)
        waiting = entries.take(is_last)
    if waiting is not None:
        yield waiting


def check_finite_rows(values: F32, bags: I64, rows: I64, name: str) -> None:
    """Refuse scores (n, labels) that are not finite; bag and row of each are for the message."""
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        at = int(finite.argmin())
        raise StreammimlError(
            f"{name}: row {rows[at]} of bag {bags[at]} has a score that is not a finite number: "
            "its values are not finite, or too large for the model; check them, or scale them "
            "differently"
        )


def _may_be_highest(values: F32, bags: I64, top: int) -> Bools:
    """(n, labels) False where ``top`` rows of the same bag have higher scores.

    Only these scores are sorted then, which is much faster for long bags.
    """
    chosen = np.ones(values.shape, np.bool_)
    bounds = np.flatnonzero(np.diff(bags, prepend=-1, append=-1))
    for start, stop in pairwise(bounds.tolist()):
        n_lower = stop - start - top
        if n_lower > 0:
            of_bag = values[start:stop]
            chosen[start:stop] = of_bag >= np.partition(of_bag, n_lower, axis=0)[n_lower]
    return chosen


def highest_rows(entries: RowEntries, top: int) -> RowEntries:
    """The ``top`` entries of each bag and label, sorted by bag, label and descending score."""
    order = np.lexsort((entries.row, -entries.score, entries.column, entries.bag))
    ordered = entries.take(order)
    changes = np.diff(ordered.bag, prepend=-1) | np.diff(ordered.column, prepend=-1)
    starts = np.flatnonzero(changes)
    sizes = np.diff(starts, append=len(order))
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    return ordered.take(rank < top)


def row_table(
    entries: RowEntries,
    *,
    first: int,
    ids: Sequence[str] | I64,
    labels: I32,
    names: Any,
    dummy: F32,
    block: BagBlock | None = None,
    kept: Sequence[KeptColumn] = (),
) -> Any:
    """Arrow table with one record for each entry of a block.

    ``first`` is the number of the first bag of the block, ``ids`` are names or numbers of its bags
    and ``dummy`` their scores of the dummy. ``labels`` are those of the scorer, and ``names`` their
    names as an Arrow array, or None for nulls. ``kept`` are the kept columns of ``block``.
    """
    columns = {
        "bag": first + entries.bag,
        "bag_id": pa.array(ids).take(pa.array(entries.bag)).cast(pa.string()),
        "row": entries.row.astype(np.int32),
        "label": labels[entries.column],
        "label_name": pa.nulls(len(entries.row), pa.string()),
        "score": entries.score,
        "subconcept": entries.subconcept,
        "above_dummy": entries.score > dummy[entries.bag],
    }
    if names is not None:
        columns["label_name"] = names.take(pa.array(entries.column))
    if block is not None:
        rows = block.bag_offsets[entries.bag] + entries.row
        columns |= {
            column.array: value_array(column, block.kept[column.name][rows]) for column in kept
        }
    schema = schema_of(kept)
    return pa.table([columns[field] for field in schema.names], schema=schema)
