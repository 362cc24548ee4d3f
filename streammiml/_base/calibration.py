"""``Calibration``: the function of each label that turns a margin into a probability.

A margin is a label's score minus the dummy's, as predictions report them. Where a label was
calibrated by Platt's method, its probability is a logistic function of the margin. Where it was
calibrated by isotonic regression, it is a line through knots, constant beyond the first and the
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streammiml.errors import StreammimlError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

STEEPEST = 700.0
"""Limit for the exponent of the logistic function; beyond it, exp would overflow."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Functions of L labels, as they are stored in a model file."""

    platt: F32
    """(L, 2) Slope and intercept of each label; not used for labels with knots."""
    offsets: I64
    """(L + 1,) Bounds of the knots of each label; a label without knots has a logistic function."""
    margins: F32
    """(knots,) Margins, which ascend within a label."""
    probabilities: F32
    """(knots,) Probabilities at these margins, which never fall within a label."""

    def __post_init__(self) -> None:
        n_knots = len(self.margins)
        sizes = np.diff(self.offsets)
        if len(self.offsets) != len(self.platt) + 1 or (sizes < 0).any():
            raise StreammimlError("the bounds of its calibration do not fit its labels")
        if self.offsets[0] != 0 or self.offsets[-1] != n_knots:
            raise StreammimlError("the bounds of its calibration do not fit its knots")
        is_inside = np.ones(n_knots, np.bool_)
        is_inside[self.offsets[:-1][sizes > 0]] = False
        steps = np.flatnonzero(is_inside)
        rises = self.margins[steps] > self.margins[steps - 1]
        keeps = self.probabilities[steps] >= self.probabilities[steps - 1]
        within = (self.probabilities >= 0) & (self.probabilities <= 1)
        if not (rises.all() and keeps.all() and within.all() and (self.platt[:, 0] >= 0).all()):
            raise StreammimlError("a probability of its calibration falls where the score rises")

    @classmethod
    def of_knots(cls, platt: F64, knots: Sequence[tuple[F64, F64] | None]) -> Calibration:
        """Join the functions of all labels; ``knots`` are margins and probabilities, or None."""
        none = np.zeros(0)
        margins, probabilities = (
            np.concatenate([none, *(pair[k] for pair in knots if pair is not None)]) for k in (0, 1)
        )
        sizes = [0 if pair is None else len(pair[0]) for pair in knots]
        return cls(
            platt.astype(np.float32),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            margins.astype(np.float32),
            probabilities.astype(np.float32),
        )

    @property
    def n_isotonic(self) -> int:
        """Number of labels that were calibrated by isotonic regression."""
        return int((np.diff(self.offsets) > 0).sum())

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Tensors of the model file."""
        return {f"calibration.{name}": getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[np.generic]]) -> Calibration | None:
        """Calibration from the tensors of a model file; None if the file has none."""
        if not any(name.startswith("calibration.") for name in tensors):
            return None
        return cls(*(tensors[f"calibration.{name}"] for name in cls.__slots__))  # type: ignore[arg-type]

    def of_labels(self, order: Sequence[int]) -> Calibration:
        """Functions of these labels, in this order."""
        parts = [np.arange(self.offsets[label], self.offsets[label + 1]) for label in order]
        knots = np.concatenate([np.zeros(0, np.int64), *parts])
        return Calibration(
            self.platt[list(order)],
            np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64),
            self.margins[knots],
            self.probabilities[knots],
        )

    def of_scores(self, scores: F32, dummy: F32) -> F32:
        """(n, L) Probabilities of all labels; ``scores`` (n, L), ``dummy`` (n,)."""
        # The difference is exact in float64.
        margins = scores.astype(np.float64) - dummy.astype(np.float64)[:, None]
        logits = margins * self.platt[:, 0].astype(np.float64) + self.platt[:, 1]
        out: F32 = (1 / (1 + np.exp(np.clip(-logits, -STEEPEST, STEEPEST)))).astype(np.float32)
        for label, (start, stop) in enumerate(pairwise(self.offsets.tolist())):
            if stop > start:
                known = self.margins[start:stop], self.probabilities[start:stop]
                out[:, label] = np.interp(margins[:, label], *known)
        return out
