"""What falls into each sub-concept of each label: how many bags, and which are most typical.

Counts are added and the highest scores kept, of equal ones the lowest bag, so it does not matter
how the bags were cut or who came first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streammiml.measure.parquet_parts import path_of
from streammiml.measure.pieces import Piece

I64 = NDArray[np.int64]


class Typical(NamedTuple):
    """Bags that a sub-concept gave a label, end to end: sorted by place, then score, then bag."""

    place: I64
    """label × K + sub-concept."""
    score: NDArray[np.float32]
    bag: I64
    row: NDArray[np.int32]

    def best(self, count: int) -> Typical:
        """The ``count`` of each place with the highest scores; of equal ones the lowest bags."""
        order = np.lexsort((self.bag, -self.score, self.place))
        places = self.place[order]
        starts = np.searchsorted(places, places)
        return self.take(order[np.arange(len(order)) - starts < count])

    def take(self, entries: I64) -> Typical:
        """These entries."""
        place, score, bag, row = self
        return Typical(place[entries], score[entries], bag[entries], row[entries])

    def join(self, other: Typical) -> Typical:
        """Entries of both."""
        pairs: Any = zip(self, other, strict=True)
        return Typical(*(np.concatenate(pair) for pair in pairs))

    def at(self, place: int) -> slice:
        """Where the entries of a place are."""
        return slice(*np.searchsorted(self.place, [place, place + 1]).tolist())


class Concepts(NamedTuple):
    """Of some bags: (L, K) counts, and the most typical bags."""

    n_bags: int
    predicted: I64
    """Bags predicted a label because of a sub-concept."""
    right: I64
    """Those of them that carry the label."""
    typical: Typical

    def add(self, other: Concepts, count: int) -> Concepts:
        """Of the bags of both, with ``count`` typical ones of each place."""
        return Concepts(
            self.n_bags + other.n_bags,
            self.predicted + other.predicted,
            self.right + other.right,
            self.typical.join(other.typical).best(count),
        )


def concepts_of(
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
) -> Concepts:
    """From (bag, predicted label) pairs; ``right`` says which the bag carries."""
    place = labels * shape[1] + subs
    size = shape[0] * shape[1]
    return Concepts(
        n_bags,
        np.bincount(place, minlength=size).reshape(shape),
        np.bincount(place[right], minlength=size).reshape(shape),
        Typical(place, scores, bags, rows).best(count),
    )


def concepts_of_part(
    part: tuple[int, Piece], folder: Path, shape: tuple[int, int], count: int
) -> Concepts:
    """One task: read the predictions of a part, a row group at a time, and the bags' labels."""
    number, piece = part
    total = None
    with pq.ParquetFile(path_of(folder, number), page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            columns = ["bag", "scores", "labels", "key_instances", "subconcepts"]
            found = file.read_row_group(group, columns=columns).combine_chunks()
            made = _of_group(found, piece, shape, count)
            total = made if total is None else total.add(made, count)
    assert total is not None, "a part has bags"
    return total


def _of_group(found: Any, piece: Piece, shape: tuple[int, int], count: int) -> Concepts:
    column = {name: found[name].chunk(0) for name in found.column_names}
    bags = column["bag"].to_numpy()
    sizes = np.diff(column["labels"].offsets.to_numpy())
    of_bag = np.repeat(np.arange(len(bags)), sizes)
    labels = column["labels"].flatten().to_numpy().astype(np.int64)
    scores = column["scores"].flatten().to_numpy().reshape(len(bags), shape[0])
    offsets, true = piece.cut(int(bags[0]), int(bags[-1]) + 1).labels()
    # Bags ascend, and labels within a bag, so the numbers of the pairs ascend too.
    pairs = np.repeat(np.arange(len(bags)), np.diff(offsets)) * shape[0] + true
    return concepts_of(
        bags[of_bag],
        labels,
        column["subconcepts"].flatten().to_numpy().astype(np.int64),
        column["key_instances"].flatten().to_numpy(),
        scores[of_bag, labels],
        np.isin(of_bag * shape[0] + labels, pairs),
        n_bags=len(bags),
        shape=shape,
        count=count,
    )
