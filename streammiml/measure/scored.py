"""Bags of a piece with what a model says of them, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.config import parse_size
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Scores
from streammiml.measure.metric import ScoredBlock
from streammiml.measure.pieces import Piece
from streammiml.measure.rules import predicted
from streammiml.model import LabelRule, Model, load_model
from streammiml.scoring import Scorer

ModelLike = Model | str | PathLike[str]
StoreLike = Bags | str | PathLike[str] | Sequence[str | PathLike[str]]

BLOCK_BYTES = "8MiB"
"""Bags that a task reads at a time, at most."""
# Score, key row, sub-concept, prediction and the copies made on the way, for each label of a bag.
LABEL_BYTES = 32


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is, for whoever shows it."""

    bags_done: int
    n_bags: int
    dashboard: str | None


Watch = Callable[[Progress], None]


class HasBags(Protocol):
    """What a task gives back, whatever else it is."""

    @property
    def n_bags(self) -> int:
        """Bags that it dealt with."""


class Count:
    """Adds up bags as tasks end, and tells ``watch``."""

    def __init__(self, n_bags: int, dashboard: str | None, watch: Watch, done: int = 0) -> None:
        self._n_bags, self._dashboard, self._watch, self._done = n_bags, dashboard, watch, done
        watch(Progress(done, n_bags, dashboard))

    def __call__(self, result: HasBags) -> None:
        """Another task has ended."""
        self._done += result.n_bags
        self._watch(Progress(self._done, self._n_bags, self._dashboard))


def block_size(block_bytes: str | int) -> int:
    """Bytes of the option that says what a task reads at a time."""
    return parse_size(block_bytes, option="block_bytes", least=1)


def opened(model: ModelLike, store: StoreLike) -> tuple[Model, Bags]:
    """Both of them, whatever was given for them."""
    return (
        model if isinstance(model, Model) else load_model(model),
        store if isinstance(store, Bags) else open_store(store),
    )


def check_fits(model: Model, store: Bags) -> None:
    """Refuse a store that the model cannot score, before any row is read.

    One without any label fits: its labels are to be found.
    """
    model.check_store(
        store.n_features,
        store.n_labels or model.n_labels,
        store.label_names,
        sparse=store.sparse,
        store=store.name,
    )


def scored_blocks(
    piece: Piece, scorer: Scorer, block_bytes: int
) -> Iterator[tuple[int, BagBlock, Scores]]:
    """Read a piece, and score as many of its bags at a time as have scores of ``block_bytes``.

    Yields the place of the first bag, the bags, and their scores, all of them finite.
    """
    block = piece.read()
    step = max(1, block_bytes // (LABEL_BYTES * (scorer.n_labels + 1)))
    for start in range(0, len(block), step):
        part = block.slice(start, min(start + step, len(block)))
        found = scorer.scores(part)
        check_finite(found, piece.start + start, piece.source.name)
        yield piece.start + start, part, found


def check_finite(found: Scores, first: int, name: str) -> None:
    """Refuse scores that are no numbers, naming the bag; ``first`` is the number of the first."""
    finite = np.isfinite(found.value)
    if not finite.all():
        bag = first + int(finite.all(axis=1).argmin())
        raise StreammimlError(
            f"{name}: bag {bag} has a score that is no finite number, so its "
            "values are too large for the model; look at them, or scale them otherwise"
        )


def scored(
    rule: LabelRule, block: BagBlock, found: Scores, numbers: NDArray[np.int64] | None = None
) -> ScoredBlock:
    """A block of bags with what a model found in it; ``numbers`` (n,) are those of the bags."""
    scores = np.ascontiguousarray(found.value[:, :-1])
    dummy = found.value[:, -1]
    return ScoredBlock(
        scores=scores,
        dummy=dummy,
        predicted=predicted(rule, scores, dummy),
        label_offsets=block.label_offsets,
        labels=block.label_indices,
        key_rows=found.row,
        bag_offsets=block.bag_offsets,
        row_labels=block.row_labels,
        numbers=numbers,
    )
