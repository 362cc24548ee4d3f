"""``Scorer`` and ``RowScorer``: a model's arrays prepared once, to score many blocks of bags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.calibration import Calibration
from streammiml.bags.block import BagBlock
from streammiml.kernel.lift import Lift, plain_rows
from streammiml.kernel.mean_scores import mean_row_scores, score_bags
from streammiml.kernel.score import (
    DenseBlock,
    Scores,
    SparseBlock,
    Weights,
    laid_across,
)
from streammiml.kernel.tile import aligned_zeros, padded
from streammiml.model import LabelRule, Model


def kernel_block(block: BagBlock) -> DenseBlock | SparseBlock:
    """Convert a block to the tuple of arrays that kernels need."""
    rows = block.rows
    if isinstance(rows, np.ndarray):
        return DenseBlock(
            plain_rows(rows), block.bag_offsets, block.label_offsets, block.label_indices
        )
    return SparseBlock(
        rows.offsets,
        rows.columns,
        plain_rows(rows.values),
        block.bag_offsets,
        block.label_offsets,
        block.label_indices,
    )


class Scorer:
    """A model that scores blocks; threads may share it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lift = Lift(*(_plain(part) for part in model.lift))
        self._weights = [laid_across(weights) for weights in weights_of(model)]

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled arrays are read-only, and numba would compile all kernels again for that type.
        # So only the model is pickled, and the copy prepares its own arrays.
        return Scorer, (self._model,)

    @property
    def rule(self) -> LabelRule:
        """The rule that decides which labels are predicted."""
        return self._model.rule

    @property
    def calibration(self) -> Calibration | None:
        """The functions that turn scores into probabilities, if the model is calibrated."""
        return self._model.calibration

    @property
    def n_labels(self) -> int:
        """Labels L, without the dummy."""
        return self._model.n_labels

    def scores(self, block: BagBlock) -> Scores:
        """Scores (n, L + 1) of every bag, with the same bits in any grouping.

        The dummy is last, with the offset of the rule.
        """
        scores = score_bags(kernel_block(block), self._lift, self._weights)
        if self.rule.offset:
            scores.value[:, -1] += np.float32(self.rule.offset)
        return scores


class RowScorer:
    """A model that scores single rows on some of its labels; threads may share it."""

    def __init__(self, model: Model, labels: Sequence[int]) -> None:
        self._model, self.labels = model, np.array(labels, np.int32)
        self._lift = Lift(*(_plain(part) for part in model.lift))
        # The dummy is last, as in the model.
        chosen = [*labels, model.n_labels]
        self._weights = [
            laid_across(weights._replace(labels=weights.labels[chosen]))
            for weights in weights_of(model)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        # For the reason that ``Scorer`` gives.
        return RowScorer, (self._model, self.labels.tolist())

    def scores(self, block: BagBlock, n_at_once: int) -> Iterator[tuple[int, Scores]]:
        """Yield the first row of each slice of ``n_at_once`` rows, and its scores (rows, n + 1).

        The columns are ``labels`` and the dummy, which has the offset of the rule. The score of a
        bag is the maximum of the scores of its rows, to the last bit.
        """
        kernel_rows = kernel_block(block)
        for start, scores in mean_row_scores(kernel_rows, self._lift, self._weights, n_at_once):
            if self._model.rule.offset:
                scores.value[:, -1] += np.float32(self._model.rule.offset)
            yield start, scores


def weights_of(model: Model) -> list[Weights]:
    """Return the weights of each restart of a model, as kernels need them."""
    models = [model.restart(number) for number in range(model.restarts)]
    return [Weights(_aligned(padded(one.shared)), padded(one.labels)) for one in models]


def _aligned(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Copy an array to the start of a cache line, where kernels are a third faster."""
    out: NDArray[np.float32] = aligned_zeros(array.shape)
    out[:] = array
    return out


def _plain(part: Any) -> Any:
    """Convert an array to contiguous, writable float32; leave numbers as they are."""
    return np.require(part, np.float32, ["C", "W", "A"]) if isinstance(part, np.ndarray) else part
