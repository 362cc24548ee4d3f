"""How predictions are cut into parts and groups: a function of store, labels and k alone.

So a part is the same whoever writes it, with whatever memory, and a run that goes on after a kill
finds the parts that it would have written itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import Bags
from streammiml.measure.outcome import Predictions
from streammiml.measure.pieces import Piece, store_bytes
from streammiml.measure.scored import scored_blocks
from streammiml.scoring import Scorer

PART_BYTES = 128 << 20
"""Bags and predictions of a part, at most, about."""
LEAST_PART_BYTES = 8 << 20
N_PARTS = 32
"""Parts that a store is cut into unless they would be smaller or larger than that."""
GROUP_BYTES = 1 << 20
"""Predictions of a row group or of a chunk, about: what a task holds beside the bags it reads."""
# A bag's number, name, dummy score, predicted labels and their key rows and sub-concepts.
BAG_BYTES = 64


class Tally(NamedTuple):
    """Counts of some bags."""

    n_bags: int
    n_predicted: int
    """Labels predicted, of all bags."""
    n_without: int
    """Bags without a predicted label."""

    def add(self, other: Tally) -> Tally:
        """Counts of both."""
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))


class Written(NamedTuple):
    """A part that was just written."""

    tally: Tally
    files: list[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutPlan:
    """What is written, and where it is cut."""

    n_bags: int
    n_labels: int
    top_k: int | None
    part_bags: int
    group_bags: int
    label_names: tuple[str, ...] | None
    has_bag_ids: bool

    @classmethod
    def of(
        cls, store: Bags, n_labels: int, names: Sequence[str] | None, top_k: int | None
    ) -> OutPlan:
        """The plan for a store; parts are whole groups."""
        out = _bag_bytes(n_labels, top_k)
        a_bag = out + store_bytes(store) / max(1, store.n_bags)
        size = min(PART_BYTES, max(LEAST_PART_BYTES, a_bag * store.n_bags / N_PARTS))
        part_bags = max(1, min(store.n_bags, int(size / a_bag)))
        group_bags = max(1, min(part_bags, GROUP_BYTES // out))
        return cls(
            n_bags=store.n_bags,
            n_labels=n_labels,
            top_k=top_k,
            part_bags=part_bags // group_bags * group_bags,
            group_bags=group_bags,
            label_names=None if names is None else tuple(names),
            has_bag_ids=store.has_bag_ids,
        )

    @property
    def n_bytes(self) -> int:
        """Of all predictions, about."""
        return self.n_bags * _bag_bytes(self.n_labels, self.top_k)

    @property
    def n_parts(self) -> int:
        """Parts of all bags."""
        return -(-self.n_bags // self.part_bags)

    def bags_of(self, part: int) -> tuple[int, int]:
        """Bags that a part holds."""
        start = part * self.part_bags
        return start, min(start + self.part_bags, self.n_bags)


def _bag_bytes(n_labels: int, top_k: int | None) -> int:
    """Predictions of a bag, about: a score a label, or a score and a label of each of the k."""
    return BAG_BYTES + (4 * n_labels if top_k is None else 8 * min(top_k, n_labels))


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Predictions of consecutive bags that are written together."""

    first: int
    ids: list[str] | NDArray[np.int64]
    """Names of the bags, or numbers that stand for them."""
    found: Predictions

    def tally(self) -> Tally:
        """Its counts."""
        found = self.found
        without = int((found.label_offsets[1:] == found.label_offsets[:-1]).sum())
        return Tally(len(found), len(found.label_indices), without)


def groups(piece: Piece, scorer: Scorer, plan: OutPlan, block_bytes: int) -> Iterator[Group]:
    """Score the bags of a part; ``block_bytes`` of them are read at a time."""
    for start in range(piece.start, piece.stop, plan.group_bags):
        wanted = piece.cut(start, min(start + plan.group_bags, piece.stop))
        found = [
            part
            for each in wanted.cuts(block_bytes)
            for part in _predictions(each, scorer, plan.top_k, block_bytes)
        ]
        yield Group(start, wanted.bag_ids(), Predictions.join(found))


def _predictions(
    piece: Piece, scorer: Scorer, top_k: int | None, block_bytes: int
) -> list[Predictions]:
    """Read and score a piece; its rows are let go before the next one is read."""
    return [
        Predictions.of(scorer.rule, scores, top_k)
        for _, _, scores in scored_blocks(piece, scorer, block_bytes)
    ]
