"""Looks at held-out bags: their ranking loss under some weights, and how often one may look."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.blocks.budget import bag_bytes, stretches
from streammiml.blocks.prefetch import ReadAhead
from streammiml.config import LiftSpec, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.kernel.lift import Lift
from streammiml.kernel.rank import ranking_loss, ranking_loss_sum
from streammiml.kernel.score import Weights, score_block
from streammiml.learn.holdout import Holdout
from streammiml.scoring import kernel_block

SCORED_AT_ONCE = 256
LEAST_EVERY = 1000
MOST_WORK = 0.1
"""Of the work of the steps between two looks, what one look may cost: multiplications counted."""


class NothingRanked(StreammimlError):
    """Bags held out that early stopping cannot tell models apart by."""


class Validation:
    """Bags that early stopping looks at, read once and kept."""

    def __init__(self, store: Bags, bags: NDArray[np.int64]) -> None:
        self.store, self.bags = store, bags
        self._kept: list[BagBlock] = []

    @property
    def name(self) -> str:
        """For messages."""
        return self.store.name

    def sizes(self, n_lifted: int) -> tuple[int, int, int]:
        """Rows of all of them, bytes held, and bytes of the store's largest bag once lifted.

        Only offsets are read.
        """
        rows = n_bytes = largest = 0
        for start, stop in stretches(self.store):
            sizes = self.store.bag_sizes(start, stop)
            here = self.bags[slice(*np.searchsorted(self.bags, (start, stop)))] - start
            rows += int(sizes[here].sum())
            n_bytes += int(bag_bytes(self.store, start, stop, sizes)[here].sum())
            lifted = lifted_bytes(self.store, start, stop, n_lifted, sizes)
            largest = max(largest, int(lifted.max()))
        return rows, n_bytes + SCORED_AT_ONCE * self.store.n_labels * 16, largest

    def check_ranked(self) -> None:
        """Refuse bags of which none could be ranked wrongly: every loss would be 0."""
        if self.store.n_labels == 1:
            raise NothingRanked(
                f"{self.name} has one label and early stopping looks at the order of labels; "
                "--validation 0 trains on all bags for --epochs"
            )
        for bag in self.bags.tolist():
            if 0 < len(self.store.labels(bag, bag + 1)[1]) < self.store.n_labels:
                return
        raise NothingRanked(
            f"none of the {len(self.bags)} bags held out has both labels that it carries and "
            "labels that it does not, so early stopping has nothing to look at; give another "
            "share, or --validation 0"
        )

    def loss(self, lift: Lift, weights: Weights, deadline: float) -> float:
        """Ranking loss under these weights."""
        if not self._kept:
            self._kept = list(self._read(deadline))
        total = 0
        for block in self._kept:
            scores = score_block(kernel_block(block), lift, weights)
            real = np.ascontiguousarray(scores.value[:, :-1])
            total += int(ranking_loss_sum(real, block.label_offsets, block.label_indices))
        return ranking_loss(total, len(self.bags))

    def _read(self, deadline: float) -> Iterator[BagBlock]:
        bags = self.bags
        parts = [bags[i : i + SCORED_AT_ONCE] for i in range(0, len(bags), SCORED_AT_ONCE)]
        read = partial(self.store.read_bags, row_labels=False)
        with ReadAhead(read, parts, depth=1, deadline=deadline) as ahead:
            yield from ahead


def largest_lifted(store: Bags, n_lifted: int) -> int:
    """Bytes of the largest bag once it is lifted; only offsets are read."""
    return max(
        int(lifted_bytes(store, *part, n_lifted, store.bag_sizes(*part)).max())
        for part in stretches(store)
    )


def lifted_bytes(
    store: Bags, start: int, stop: int, n_lifted: int, sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Bytes of each bag's rows once they are lifted; ``sizes`` are their rows."""
    if store.sparse:
        # Of each value, and of the constant of each row, a column and a number; and offsets.
        values = store.bag_values(start, stop)
        lifted = 8 * (values + sizes) + 8 * sizes
        if n_lifted > store.n_features + 1:
            # Columns, values and sums of a context, and where each feature stands in it.
            lifted += 16 * np.minimum(values, store.n_features) + 4 * store.n_features
        return lifted
    return sizes * 4 * n_lifted


def open_validation(config: TrainConfig, store: Bags, holdout: Holdout) -> Validation | None:
    """What early stopping will look at; None if at nothing."""
    if config.validation_store is None:
        found = Validation(store, holdout.bags) if config.validation else None
    else:
        other = open_store(config.validation_store.split(","))
        _check_alike(other, store, LiftSpec.parse(config.lift))
        found = Validation(other, Holdout.of_all(other.n_bags).bags)
    if found is not None:
        found.check_ranked()
    return found


def _check_alike(other: Bags, store: Bags, lift: LiftSpec) -> None:
    """Refuse a validation store that a model of the training store could not score."""
    for what, mine, theirs in (
        ("features", store.n_features, other.n_features),
        ("labels", store.n_labels, other.n_labels),
    ):
        if mine != theirs:
            raise StreammimlError(
                f"{store.name} has {mine} {what} and the validation store {other.name} {theirs}; "
                "use one that was made the same way"
            )
    names = zip(store.label_names or (), other.label_names or (), strict=False)
    for i, (mine_name, other_name) in enumerate(names):
        if mine_name != other_name:
            raise StreammimlError(
                f"label {i} is {mine_name!r} in {store.name} and {other_name!r} in the validation "
                f"store {other.name}; use one with the same labels in the same order"
            )
    if store.sparse != other.sparse and (lift.needs_dense_rows or not store.sparse):
        kinds = ["sparse" if each.sparse else "dense" for each in (store, other)]
        raise StreammimlError(
            f"{store.name} has {kinds[0]} rows and the validation store {other.name} {kinds[1]} "
            "ones; convert one of them"
        )


def steps_between_looks(config: TrainConfig, store: Bags, n_lifted: int, held_out: int) -> int:
    """Steps between looks at ``held_out`` rows, so that looks cost a tenth of the steps at most.

    By counted multiplications, never by the clock, so that a run is the same on any machine. A look
    takes each row to the shared space and scores every label; a step at least two of them. With
    nothing to look at, an epoch.
    """
    if config.validate_every:
        return config.validate_every
    if not held_out:
        return max(LEAST_EVERY, store.n_bags)
    # The context of sparse rows is theirs together: about as many values again.
    again = 2 if LiftSpec.parse(config.lift).context else 1
    width = again * store.n_values / max(store.n_rows, 1) + 1 if store.sparse else n_lifted
    inside = config.shared_dim if config.shared_space else width
    shared = width * config.shared_dim if config.shared_space else 0.0
    lift = float(store.n_features * LiftSpec.parse(config.lift).n_fourier)
    label = config.subconcepts * inside
    look = held_out * (lift + shared + (store.n_labels + 1) * label)
    step = store.n_rows / store.n_bags * (lift + shared + 2 * label)
    return max(LEAST_EVERY, math.ceil(look / (MOST_WORK * step)))
