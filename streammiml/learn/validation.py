"""Looks: measurements of the ranking loss of held-out bags, and the steps between two looks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from streammiml.kernel.mean_scores import score_bags
from streammiml.kernel.rank import ranking_loss, ranking_loss_sum
from streammiml.kernel.score import Weights, laid_across, score_block
from streammiml.learn.calibration import Standard, add_label_counts, empty_label_counts
from streammiml.learn.holdout import Holdout
from streammiml.learn.threshold import margin_counts, sum_counts
from streammiml.scorer import kernel_block

I64 = NDArray[np.int64]

AllWeights = Weights | Sequence[Weights]
"""Weights of a training, or of each restart."""
SCORED_AT_ONCE = 256
"""Number of bags that are scored at a time."""
LEAST_EVERY = 1000
"""Fewest steps between two looks, unless the option ``validate_every`` is given."""
MOST_WORK = 0.1
"""Highest cost of a look, as a share of the multiplications of the steps between two looks."""


class NothingRanked(StreammimlError):
    """No held-out bag has both labels that it carries and labels that it lacks."""


class Validation:
    """The bags that early stopping looks at, read once and kept in memory."""

    def __init__(self, store: Bags, bags: NDArray[np.int64]) -> None:
        self.store, self.bags = store, bags
        self._kept: list[BagBlock] = []

    @property
    def name(self) -> str:
        """Name of the store, for messages."""
        return self.store.name

    def sizes(self, n_lifted: int) -> tuple[int, int, int]:
        """Rows of these bags, bytes in memory, and bytes of the store's largest bag after the lift.

        Only offsets are read.
        """
        rows = n_bytes = largest = 0
        for start, stop in stretches(self.store):
            sizes = self.store.bag_sizes(start, stop)
            held_out = self.bags[slice(*np.searchsorted(self.bags, (start, stop)))] - start
            rows += int(sizes[held_out].sum())
            n_bytes += int(bag_bytes(self.store, start, stop, sizes)[held_out].sum())
            lifted = lifted_bytes(self.store, start, stop, n_lifted, sizes)
            largest = max(largest, int(lifted.max()))
        return rows, n_bytes + SCORED_AT_ONCE * self.store.n_labels * 16, largest

    def check_ranked(self) -> None:
        """Refuse held-out bags if none can be ranked wrongly: every loss would be 0."""
        if self.store.n_labels == 1:
            raise NothingRanked(
                f"{self.name} has one label and early stopping needs an order of labels; "
                "--validation 0 trains on all bags for --epochs"
            )
        for bag in self.bags.tolist():
            if 0 < len(self.store.labels(bag, bag + 1)[1]) < self.store.n_labels:
                return
        raise NothingRanked(
            f"none of the {len(self.bags)} bags held out has both labels that it carries and "
            "labels that it does not, so early stopping has nothing to measure; give another "
            "share, or --validation 0"
        )

    def loss(self, lift: Lift, weights: Weights, deadline: float) -> float:
        """Ranking loss under these weights."""
        if not self._kept:
            self._kept = list(self._read(deadline))
        total = 0
        for block in self._kept:
            scores = score_block(kernel_block(block), lift, weights)
            label_scores = np.ascontiguousarray(scores.value[:, :-1])
            total += int(ranking_loss_sum(label_scores, block.label_offsets, block.label_indices))
        return ranking_loss(total, len(self.bags))

    def counts(self, lift: Lift, weights: AllWeights, deadline: float, min_labels: int) -> I64:
        """Margins under these weights, counted; see ``learn/threshold.py``."""
        return sum_counts(
            margin_counts(scores, block.label_offsets, block.label_indices, min_labels)
            for block, scores in self._scored(lift, weights, deadline)
        )

    def label_counts(
        self, lift: Lift, weights: AllWeights, deadline: float, standard: Standard
    ) -> NDArray[np.int32]:
        """Margins under these weights, counted by label; see ``learn/calibration.py``."""
        counts = empty_label_counts(self.store.n_labels)
        for block, scores in self._scored(lift, weights, deadline):
            add_label_counts(counts, scores, block.label_offsets, block.label_indices, standard)
        return counts

    def standard(self, lift: Lift, weights: AllWeights, deadline: float) -> Standard:
        """Mean and standard deviation of the margins under these weights, by label."""
        return Standard.of_blocks(scores for _, scores in self._scored(lift, weights, deadline))

    def _scored(
        self, lift: Lift, weights: AllWeights, deadline: float
    ) -> Iterator[tuple[BagBlock, NDArray[np.float32]]]:
        """The bags in blocks, with their scores (n, L + 1), the dummy last."""
        of_restarts = [weights] if isinstance(weights, Weights) else weights
        laid_out = [laid_across(each) for each in of_restarts]
        for block in self._kept or self._read(deadline):
            yield block, score_bags(kernel_block(block), lift, laid_out).value

    def _read(self, deadline: float) -> Iterator[BagBlock]:
        bags = self.bags
        parts = [bags[i : i + SCORED_AT_ONCE] for i in range(0, len(bags), SCORED_AT_ONCE)]
        read = partial(self.store.read_bags, row_labels=False, kept=False)
        with ReadAhead(read, parts, depth=1, deadline=deadline) as ahead:
            yield from ahead


def largest_lifted(store: Bags, n_lifted: int, below: int | None = None) -> int:
    """Bytes of the largest bag after the lift, of those with fewer than ``below`` before it.

    Only offsets are read.
    """
    largest = 0
    for part in stretches(store):
        sizes = store.bag_sizes(*part)
        lifted = lifted_bytes(store, *part, n_lifted, sizes)
        if below is not None:
            lifted = lifted[bag_bytes(store, *part, sizes) < below]
        largest = max(largest, int(lifted.max(initial=0)))
    return largest


def lifted_bytes(
    store: Bags, start: int, stop: int, n_lifted: int, sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Bytes of the rows of each bag after the lift; ``sizes`` are the bags' numbers of rows."""
    if store.sparse:
        # A column and a number for each value and for the constant of each row; then offsets.
        values = store.bag_values(start, stop)
        lifted = 8 * (values + sizes) + 8 * sizes
        if n_lifted > store.n_features + 1:
            # Columns, values and sums of the context, and the index of each feature in it.
            lifted += 16 * np.minimum(values, store.n_features) + 4 * store.n_features
        return lifted
    return sizes * 4 * n_lifted


def open_validation(config: TrainConfig, store: Bags, holdout: Holdout) -> Validation | None:
    """Open the bags that early stopping looks at; None without early stopping."""
    if config.validation_store is None:
        validation = Validation(store, holdout.bags) if config.validation else None
    else:
        validation_store = open_store(config.validation_store.split(","))
        _check_alike(validation_store, store, LiftSpec.parse(config.lift))
        bags = Holdout.of_all(validation_store.n_bags).bags
        validation = Validation(validation_store, bags)
    if validation is not None:
        validation.check_ranked()
    return validation


def _check_alike(other: Bags, store: Bags, lift: LiftSpec) -> None:
    """Refuse a validation store that a model of the training store could not score."""
    for name, expected, given in (
        ("features", store.n_features, other.n_features),
        ("labels", store.n_labels, other.n_labels),
    ):
        if expected != given:
            raise StreammimlError(
                f"{store.name} has {expected} {name} and the validation store {other.name} {given};"
                " use a validation store that was made the same way"
            )
    names = zip(store.label_names or (), other.label_names or (), strict=False)
    for i, (expected_name, given_name) in enumerate(names):
        if expected_name != given_name:
            raise StreammimlError(
                f"label {i} is {expected_name!r} in {store.name} and {given_name!r} in the "
                f"validation store {other.name}; use a store with the same labels in the same order"
            )
    if store.sparse != other.sparse and (lift.needs_dense_rows or not store.sparse):
        kinds = ["sparse" if bags.sparse else "dense" for bags in (store, other)]
        raise StreammimlError(
            f"{store.name} has {kinds[0]} rows and the validation store {other.name} {kinds[1]} "
            "rows; convert one of the stores"
        )


def steps_between_looks(config: TrainConfig, store: Bags, n_lifted: int, held_out: int) -> int:
    """Steps between looks at ``held_out`` rows, so that looks cost a tenth of the steps at most.

    The cost is counted in multiplications, not measured, so a run is the same on any machine. A
    look projects each row to the shared space and scores every label; a step scores at least two
    labels. Without held-out bags, the number of steps is that of an epoch, and at least
    ``LEAST_EVERY``.

    Replicas need fewer steps, so their looks are closer together: by √R, halfway between equal
    steps (patience would last as long as without replicas) and equal visits (looks would take R
    times the share of the time).
    """
    if config.validate_every:
        return config.validate_every
    every = LEAST_EVERY
    if held_out:
        row_cost, label_cost = _costs(config, store, n_lifted)
        look_cost = held_out * (row_cost + (store.n_labels + 1) * label_cost)
        step_cost = step_work(config, store, n_lifted)
        every = max(every, math.ceil(look_cost / (MOST_WORK * step_cost)))
    else:
        every = max(every, store.n_bags)
    return math.ceil(every / math.sqrt(config.replicas))


def step_work(config: TrainConfig, store: Bags, n_lifted: int) -> float:
    """Multiplications of a step that scores two labels: the fewest that a step scores."""
    row_cost, label_cost = _costs(config, store, n_lifted)
    return store.n_rows / store.n_bags * (row_cost + 2 * label_cost)


def _costs(config: TrainConfig, store: Bags, n_lifted: int) -> tuple[float, float]:
    """Multiplications that lift and project a row, and those that score a label on it."""
    # The context of a sparse bag about doubles the number of values of its rows.
    factor = 2 if LiftSpec.parse(config.lift).context else 1
    width = factor * store.n_values / max(store.n_rows, 1) + 1 if store.sparse else n_lifted
    vector_width = config.shared_dim if config.shared_space else width
    shared_cost = width * config.shared_dim if config.shared_space else 0.0
    lift_cost = float(store.n_features * LiftSpec.parse(config.lift).n_fourier)
    return lift_cost + shared_cost, config.subconcepts * vector_width
