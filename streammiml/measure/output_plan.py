"""How predictions are cut into parts and groups, which depends on store, labels and top_k alone.

So a part does not depend on the process that writes it, nor on the memory. A run that is resumed
after a kill keeps the complete parts: it would write the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KeptColumn
from streammiml.bags.views import Bags
from streammiml.kernel.score import Scores
from streammiml.measure.predictions import Predictions
from streammiml.measure.score_pass import MOST_BYTES, USUAL_TASKS
from streammiml.measure.scoring import scored_blocks
from streammiml.measure.tasks import BagRange, StoreAddress, store_bytes
from streammiml.scorer import Scorer

PART_BYTES = 128 << 20
"""Approximate upper limit for the bags and predictions of a part."""
LEAST_PART_BYTES = 8 << 20
"""Approximate lower limit for the bags and predictions of a part."""
N_PARTS = 32
"""Number of parts, unless parts would be smaller or larger than the limits above."""
GROUP_BYTES = 1 << 20
"""Approximate size of a row group or chunk, which a task holds beside the bags that it reads."""
BAG_BYTES = 64
"""Estimate of a bag's number, name, dummy score, predicted labels, key rows and sub-concepts."""


class PredictionCounts(NamedTuple):
    """Counts over some bags; the field names are keys of the file ``_SUCCESS``."""

    n_bags: int
    n_predicted: int
    """Predicted labels, summed over bags."""
    n_without: int
    """Bags without a predicted label."""

    def add(self, other: PredictionCounts) -> PredictionCounts:
        """Counts over the bags of both."""
        return PredictionCounts(*(a + b for a, b in zip(self, other, strict=True)))


class PartTask(NamedTuple):
    """Parts that one task scores and writes, or reads, one after the other."""

    numbers: tuple[int, ...]
    """Numbers of the parts, ascending."""
    bags: BagRange
    """The bags from the first of these parts to the last."""

    def parts(self, plan: OutputPlan) -> Iterator[tuple[int, BagRange]]:
        """Number and bags of each part."""
        for number in self.numbers:
            yield number, self.bags.cut(*plan.bags_of(number))


class WrittenPart(NamedTuple):
    """Counts of a part that was just written, and its files."""

    counts: PredictionCounts
    files: list[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """Fields that are written for each bag, and the bounds of parts and groups."""

    n_bags: int
    n_labels: int
    top_k: int | None
    part_bags: int
    group_bags: int
    label_names: tuple[str, ...] | None
    has_bag_ids: bool
    has_probabilities: bool = False
    kept: tuple[KeptColumn, ...] = ()
    """Kept columns of the store, which are written for key instances."""

    @classmethod
    def of(
        cls,
        store: Bags,
        n_labels: int,
        names: Sequence[str] | None,
        top_k: int | None,
        *,
        has_probabilities: bool = False,
    ) -> OutputPlan:
        """Plan the output for a store; each part consists of complete groups."""
        output_bytes = _bag_bytes(n_labels, top_k, has_probabilities=has_probabilities)
        bag_bytes = output_bytes + store_bytes(store) / max(1, store.n_bags)
        part_bytes = min(PART_BYTES, max(LEAST_PART_BYTES, bag_bytes * store.n_bags / N_PARTS))
        part_bags = max(1, min(store.n_bags, int(part_bytes / bag_bytes)))
        group_bags = max(1, min(part_bags, GROUP_BYTES // output_bytes))
        return cls(
            n_bags=store.n_bags,
            n_labels=n_labels,
            top_k=top_k,
            part_bags=part_bags // group_bags * group_bags,
            group_bags=group_bags,
            label_names=None if names is None else tuple(names),
            has_bag_ids=store.has_bag_ids,
            kept=store.kept_columns,
            has_probabilities=has_probabilities,
        )

    @property
    def n_bytes(self) -> int:
        """Approximate bytes of all predictions."""
        has_probabilities = self.has_probabilities
        return self.n_bags * _bag_bytes(
            self.n_labels, self.top_k, has_probabilities=has_probabilities
        )

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return -(-self.n_bags // self.part_bags)

    def bags_of(self, part: int) -> tuple[int, int]:
        """Start and stop of the bags of a part."""
        start = part * self.part_bags
        return start, min(start + self.part_bags, self.n_bags)


def part_tasks(
    plan: OutputPlan, numbers: Sequence[int], everything: BagRange, n_threads: int
) -> Iterator[PartTask]:
    """Tasks for the parts with these numbers; ``everything`` are the bags of all parts.

    Where there are many parts, a task for other processes has several of them. Parts of a view
    carry the numbers of their bags, so that each is a task of its own.
    """
    step = 1
    if isinstance(everything.store, StoreAddress) and everything.numbers is None:
        step = max(1, min(MOST_BYTES // PART_BYTES, len(numbers) // (USUAL_TASKS * n_threads)))
    for first in range(0, len(numbers), step):
        chosen = tuple(numbers[first : first + step])
        bags = everything.cut(plan.bags_of(chosen[0])[0], plan.bags_of(chosen[-1])[1])
        yield PartTask(chosen, bags)


def _bag_bytes(n_labels: int, top_k: int | None, *, has_probabilities: bool) -> int:
    """Estimate of a bag's predictions: a score per label, or score and label of the top k."""
    width = n_labels if top_k is None else min(top_k, n_labels)
    return BAG_BYTES + width * 4 * (1 + (top_k is not None) + has_probabilities)


@dataclass(frozen=True, slots=True, eq=False)
class BagGroup:
    """Predictions of consecutive bags that are written together: a row group or a chunk."""

    first: int
    ids: list[str] | NDArray[np.int64]
    """Names of the bags, or their numbers if the store has no names."""
    predictions: Predictions

    def counts(self) -> PredictionCounts:
        """Counts over the bags of the group."""
        offsets = self.predictions.label_offsets
        n_without = int((offsets[1:] == offsets[:-1]).sum())
        n_predicted = len(self.predictions.label_indices)
        return PredictionCounts(len(self.predictions), n_predicted, n_without)


class BlockSeen(Protocol):
    """Called with each block of a part: its bags, and what is known of them."""

    def __call__(
        self, bags: BagRange, block: BagBlock, scores: Scores, predictions: Predictions
    ) -> None:
        """See a block; ``bags`` says which bags it has."""


def scored_groups(
    bags: BagRange,
    scorer: Scorer,
    plan: OutputPlan,
    block_bytes: int,
    seen: BlockSeen | None = None,
) -> Iterator[BagGroup]:
    """Score the bags of a part, reading ``block_bytes`` at a time."""
    for start in range(bags.start, bags.stop, plan.group_bags):
        group = bags.cut(start, min(start + plan.group_bags, bags.stop))
        predictions = [
            block
            for block_range in group.cuts(block_bytes)
            for block in _predictions(block_range, scorer, plan, block_bytes, seen)
        ]
        yield BagGroup(start, group.bag_ids(), Predictions.join(predictions))


def _predictions(
    bags: BagRange, scorer: Scorer, plan: OutputPlan, block_bytes: int, seen: BlockSeen | None
) -> list[Predictions]:
    """Read and score bags; a list, so that their rows are freed before the next bags are read."""
    results = []
    scored = scored_blocks(bags, scorer, block_bytes, kept=bool(plan.kept))
    for first, block, scores in scored:
        predictions = Predictions.of(
            scorer.rule, scores, plan.top_k, block, calibration=scorer.calibration
        )
        if seen is not None:
            seen(bags.cut(first, first + len(block)), block, scores, predictions)
        results.append(predictions)
    return results
