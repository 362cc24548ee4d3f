"""``Scorer``: a model whose arrays are prepared once, to score many blocks of bags."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.kernel.lift import Lift, plain_rows
from streammiml.kernel.score import (
    DenseBlock,
    Scores,
    SparseBlock,
    Weights,
    laid_across,
    score_block,
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
        self._weights = laid_across(Weights(_aligned(padded(model.shared)), padded(model.labels)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled arrays are read-only, and numba would compile all kernels again for that type.
        # So only the model is pickled, and the copy prepares its own arrays.
        return Scorer, (self._model,)

    @property
    def rule(self) -> LabelRule:
        """The rule that decides which labels are predicted."""
        return self._model.rule

    @property
    def n_labels(self) -> int:
        """Labels L, without the dummy."""
        return self._model.n_labels

    def scores(self, block: BagBlock) -> Scores:
        """Scores (n, L + 1) of every bag, the dummy last, with the same bits in any grouping."""
        return score_block(kernel_block(block), self._lift, self._weights)


def _aligned(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Copy an array to the start of a cache line, where kernels are a third faster."""
    out: NDArray[np.float32] = aligned_zeros(array.shape)
    out[:] = array
    return out


def _plain(part: Any) -> Any:
    """Convert an array to contiguous, writable float32; leave numbers as they are."""
    return np.require(part, np.float32, ["C", "W", "A"]) if isinstance(part, np.ndarray) else part
