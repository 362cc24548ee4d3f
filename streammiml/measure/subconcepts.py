"""The bags of each sub-concept of each label: their number, and the most typical bags.

The result does not depend on how the bags were cut or in which order blocks were added: counts are
summed, and ties between equal scores go to the bag with the lowest number.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streammiml.measure.output_plan import OutputPlan, PartTask
from streammiml.measure.tasks import BagRange
from streammiml.measure.write_parquet import part_path

I64 = NDArray[np.int64]


class TypicalBags(NamedTuple):
    """The bags with the highest scores of each cell, sorted by cell, then score, then bag.

    A cell is one sub-concept of one label. The arrays hold the entries of all cells.
    """

    cell: I64
    """label × K + sub-concept, for K sub-concepts per label."""
    score: NDArray[np.float32]
    bag: I64
    row: NDArray[np.int32]
    """Key instance: the row within the bag that gave the score."""

    def best(self, count: int) -> TypicalBags:
        """Keep ``count`` entries of each cell: the highest scores; ties go to the lowest bags."""
        order = np.lexsort((self.bag, -self.score, self.cell))
        cells = self.cell[order]
        starts = np.searchsorted(cells, cells)
        return self.take(order[np.arange(len(order)) - starts < count])

    def take(self, entries: I64) -> TypicalBags:
        """Entries at these indices."""
        cell, score, bag, row = self
        return TypicalBags(cell[entries], score[entries], bag[entries], row[entries])

    def join(self, other: TypicalBags) -> TypicalBags:
        """Entries of both, unsorted."""
        pairs: Any = zip(self, other, strict=True)
        return TypicalBags(*(np.concatenate(pair) for pair in pairs))

    def at(self, cell: int) -> slice:
        """Slice of the entries of a cell."""
        return slice(*np.searchsorted(self.cell, [cell, cell + 1]).tolist())


class SubconceptSummary(NamedTuple):
    """Counts (L, K) of some bags by sub-concept, and the most typical bags."""

    n_bags: int
    predicted: I64
    """Number of bags for which the label is predicted because of the sub-concept."""
    right: I64
    """Number of these bags that carry the label."""
    typical: TypicalBags

    def add(self, other: SubconceptSummary, count: int) -> SubconceptSummary:
        """Summary of the bags of both, with ``count`` typical bags of each cell."""
        return SubconceptSummary(
            self.n_bags + other.n_bags,
            self.predicted + other.predicted,
            self.right + other.right,
            self.typical.join(other.typical).best(count),
        )


def summarize_subconcepts(
    bags: I64,
    labels: I64,
    subs: I64,
    rows: NDArray[np.int32],
    scores: NDArray[np.float32],
    right: NDArray[np.bool_],
    *,
    n_bags: int,
    shape: tuple[int, int],
    count: int,
) -> SubconceptSummary:
    """Summarize (bag, predicted label) pairs; ``right``: whether the bag carries the label.

    ``shape`` is (L, K); ``count`` typical bags of each cell are kept.
    """
    cell = labels * shape[1] + subs
    size = shape[0] * shape[1]
    return SubconceptSummary(
        n_bags,
        np.bincount(cell, minlength=size).reshape(shape),
        np.bincount(cell[right], minlength=size).reshape(shape),
        TypicalBags(cell, scores, bags, rows).best(count),
    )


def summarize_parts(
    task: PartTask, plan: OutputPlan, folder: Path, shape: tuple[int, int], count: int
) -> SubconceptSummary:
    """Read the predictions of the parts of a task and the labels of their bags."""
    summaries = (
        _summarize_part(number, bags, folder, shape, count) for number, bags in task.parts(plan)
    )
    return reduce(lambda one, other: one.add(other, count), summaries)


def _summarize_part(
    number: int, bags: BagRange, folder: Path, shape: tuple[int, int], count: int
) -> SubconceptSummary:
    """Summarize a part, a row group at a time."""
    total = None
    with pq.ParquetFile(part_path(folder, number), page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            columns = ["bag", "scores", "labels", "key_instances", "subconcepts"]
            records = file.read_row_group(group, columns=columns).combine_chunks()
            summary = _summarize_records(records, bags, shape, count)
            total = summary if total is None else total.add(summary, count)
    assert total is not None, "a part has bags"
    return total


def _summarize_records(
    records: Any, bag_range: BagRange, shape: tuple[int, int], count: int
) -> SubconceptSummary:
    columns = {name: records[name].chunk(0) for name in records.column_names}
    bags = columns["bag"].to_numpy()
    sizes = np.diff(columns["labels"].offsets.to_numpy())
    bag_of_pair = np.repeat(np.arange(len(bags)), sizes)
    labels = columns["labels"].flatten().to_numpy().astype(np.int64)
    scores = columns["scores"].flatten().to_numpy().reshape(len(bags), shape[0])
    offsets, true_labels = bag_range.cut(int(bags[0]), int(bags[-1]) + 1).labels()
    # One number for each pair of a bag and a label that the bag carries.
    true_pairs = np.repeat(np.arange(len(bags)), np.diff(offsets)) * shape[0] + true_labels
    return summarize_subconcepts(
        bags[bag_of_pair],
        labels,
        columns["subconcepts"].flatten().to_numpy().astype(np.int64),
        columns["key_instances"].flatten().to_numpy(),
        scores[bag_of_pair, labels],
        np.isin(bag_of_pair * shape[0] + labels, true_pairs),
        n_bags=len(bags),
        shape=shape,
        count=count,
    )
