"""``row_scores``: the score of every row on some labels, of bags in memory or of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streammiml.bags.given_bags import GivenBags, given_block
from streammiml.bags.tables import pandas_frame, polars_frame
from streammiml.bags.views import Bags
from streammiml.config import parse_size
from streammiml.measure.label_choice import Labels, chosen_labels
from streammiml.measure.row_records import (
    RowEntries,
    check_finite_rows,
    name_array,
    row_entries,
    row_table,
    rows_at_once,
    schema_of,
)
from streammiml.measure.scoring import (
    BLOCK_BYTES,
    ModelLike,
    StoreLike,
    check_fits,
    check_given,
    is_store,
    open_model_and_store,
    scored_blocks,
)
from streammiml.measure.tasks import BagRange, all_bags
from streammiml.model import Model, load_model
from streammiml.scorer import RowScorer, Scorer

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    """Scores of the rows of n bags on some labels; item ``i`` is the array (rows, labels) of bag i.

    The maximum over the rows of a bag is the score of the bag, to the last bit.
    """

    scores: F32
    """(rows of all bags, labels) Score of each row: the maximum over sub-concepts."""
    subconcepts: I32
    """(rows of all bags, labels) Sub-concept that gave each score."""
    dummy_score: F32
    """(n,) Score of each bag on the dummy label, the threshold."""
    bag_offsets: NDArray[np.int64]
    """(n + 1,) Bounds of each bag among the rows."""
    labels: I32
    """Numbers of the labels, in the order of the columns."""
    label_names: tuple[str, ...] | None
    """Names of the labels, in the order of the columns; None if the model has no names."""

    def __len__(self) -> int:
        return len(self.dummy_score)

    def __getitem__(self, bag: int) -> F32:
        """Scores (rows, labels) of a bag by its number; −1 is the last bag."""
        number = range(len(self))[bag]
        return self.scores[self.bag_offsets[number] : self.bag_offsets[number + 1]]

    @property
    def above_dummy(self) -> NDArray[np.bool_]:
        """(rows of all bags, labels) Whether a row scores above the dummy's score of its bag."""
        sizes = np.diff(self.bag_offsets)
        return self.scores > np.repeat(self.dummy_score, sizes)[:, None]

    def to_arrow(self) -> pa.Table:
        """Arrow table with a record for each row and label, sorted by bag, row and label.

        Columns: ``bag``, ``bag_id`` (the number as text), ``row``, ``label``, ``label_name``,
        ``score``, ``subconcept`` and ``above_dummy``.
        """
        sizes, order = np.diff(self.bag_offsets), np.argsort(self.labels)
        bags = np.repeat(np.arange(len(self)), sizes)
        rows = np.arange(len(bags)) - self.bag_offsets[bags]
        n_labels = len(self.labels)
        entries = RowEntries(
            np.repeat(bags, n_labels),
            np.repeat(rows, n_labels),
            np.tile(order, len(bags)),
            self.scores[:, order].reshape(-1),
            self.subconcepts[:, order].reshape(-1),
        )
        return row_table(
            entries,
            first=0,
            ids=np.arange(len(self)),
            labels=self.labels,
            names=name_array(self.label_names, range(n_labels)),
            dummy=self.dummy_score,
        )

    def to_pandas(self) -> Any:
        """Records of :meth:`to_arrow` as a pandas DataFrame."""
        return pandas_frame(self.to_arrow())

    def to_polars(self) -> Any:
        """Records of :meth:`to_arrow` as a Polars DataFrame."""
        return polars_frame(self.to_arrow())


@overload
def row_scores(model: ModelLike, bags: StoreLike, labels: Labels | None = ...) -> Any: ...


@overload
def row_scores(model: ModelLike, bags: GivenBags, labels: Labels | None = ...) -> RowScores: ...


def row_scores(
    model: ModelLike, bags: Any, labels: Labels | None = None
) -> RowScores | pa.RecordBatchReader:
    """Score every row of some bags on the labels asked for.

    A row's score on a label is the maximum over the sub-concepts of the label, and the maximum over
    the rows of a bag is the score of the bag, to the last bit. If the model lifts rows with the
    context of their bag, the score of a row depends on the other rows of its bag.

    Rows are scored in this process, block by block. ``predict(…, rows="all", client=…)`` writes the
    scores of the rows of a store to a folder, on threads or a cluster.

    Parameters
    ----------
    model
        A model, or the path of a run folder or model file.
    bags
        Bags in memory, or a store, in all forms that :func:`~streammiml.predict` takes.
    labels
        Names or numbers of labels; by default all labels.

    Returns
    -------
    Bags in memory: a :class:`RowScores`, with arrays ``scores`` and ``subconcepts`` (rows, labels),
    ``above_dummy``, ``result[i]`` for the scores of one bag, and ``to_pandas()``, ``to_polars()``
    and ``to_arrow()``. A store: a ``pyarrow.RecordBatchReader``, which reads and scores some
    megabytes whenever the next batch is asked for, in the thread that asks; its columns are those
    of ``to_arrow()``, and ``kept_NAME`` for each kept column of the store. To write the row scores
    of a large store on many cores or workers, use ``predict(model, store, out, rows="all")``.

    Examples
    --------
    The second row of this bag shows a dog, the third a car:

    >>> import numpy as np
    >>> bag = np.array([[0, 0, 0], [4.0, 0, 0], [0, 4, 0]])
    >>> scores = sm.row_scores("run", bag, labels=["dog", "car"])
    >>> scores[0].argmax(axis=0)
    array([1, 2])
    >>> scores.above_dummy.tolist()
    [[False, False], [True, False], [False, True]]

    Rows of a store, some megabytes at a time:

    >>> n_rows = 0
    >>> for batch in sm.row_scores("run", "test.zarr", labels="dog"):
    ...     n_rows += batch.num_rows
    >>> n_rows == sm.open_store("test.zarr").n_rows
    True
    """
    if is_store(bags):
        model, store = open_model_and_store(model, bags)
        check_fits(model, store)
        names = store.label_names or model.label_names
        numbers = sorted(chosen_labels(labels, names, model.n_labels))
        batches = _batches(model, store, numbers, names)
        return pa.RecordBatchReader.from_batches(schema_of(store.kept_columns), batches)
    model = model if isinstance(model, Model) else load_model(model)
    numbers = list(chosen_labels(labels, model.label_names, model.n_labels))
    return _of_memory(model, bags, numbers)


def _of_memory(model: Model, bags: Any, labels: list[int]) -> RowScores:
    """Score the rows of bags in memory, in this thread."""
    block = given_block(bags)
    check_given(model, block)
    scorer, n_rows = _row_scorer(model, tuple(labels)), block.n_rows if len(block) else 0
    values = np.empty((n_rows, len(labels) + 1), np.float32)
    subconcepts = np.empty((n_rows, len(labels)), np.int32)
    n_at_once = rows_at_once(len(labels), parse_size(BLOCK_BYTES))
    for start, scores in scorer.scores(block, n_at_once) if n_rows else ():
        rows = slice(start, start + len(scores.value))
        values[rows], subconcepts[rows] = scores.value, scores.subconcept[:, :-1]
    bags_of_rows = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))
    numbers = np.arange(n_rows) - block.bag_offsets[bags_of_rows]
    check_finite_rows(values, bags_of_rows, numbers, "bags in memory")
    names = model.label_names
    return RowScores(
        scores=np.ascontiguousarray(values[:, :-1]),
        subconcepts=subconcepts,
        dummy_score=np.maximum.reduceat(values[:, -1], block.bag_offsets[:-1])
        if n_rows
        else np.empty(0, np.float32),
        bag_offsets=block.bag_offsets,
        labels=scorer.labels,
        label_names=None if names is None else tuple(names[label] for label in labels),
    )


@lru_cache(4)
def _row_scorer(model: Model, labels: tuple[int, ...]) -> RowScorer:
    """Return a cached scorer, so that repeated calls prepare a model's arrays only once."""
    return RowScorer(model, labels)


def _batches(
    model: Model, store: Bags, labels: list[int], names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Read and score a store block by block."""
    scorer, rows, n_bytes = Scorer(model), RowScorer(model, labels), parse_size(BLOCK_BYTES)
    label_names = name_array(names, labels)
    for bags in all_bags(store, remote=False).cuts(n_bytes):
        yield from _batches_of_range(bags, scorer, rows, label_names, n_bytes)


def _batches_of_range(
    bags: BagRange, scorer: Scorer, rows: RowScorer, names: Any, n_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Read bags at once and score their rows; the bags are freed when this ends."""
    kept = bags.source.kept_columns
    for first, block, scores in scored_blocks(bags, scorer, n_bytes, kept=bool(kept)):
        ids = bags.cut(first, first + len(block)).bag_ids()
        for entries in row_entries(
            block, rows, n_bytes=n_bytes, first=first, name=bags.source.name
        ):
            table = row_table(
                entries,
                first=first,
                ids=ids,
                labels=rows.labels,
                names=names,
                dummy=scores.value[:, -1],
                block=block,
                kept=kept,
            )
            yield from table.to_batches()
