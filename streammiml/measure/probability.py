"""Metrics of the probabilities of a calibrated model.

Probabilities are rounded to multiples of 2⁻²⁰ first, so all sums are sums of integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streammiml.measure.metric import I64, BagMean, Figure, Metric, ScoredBlock

UNIT = 1 << 20
"""The probability 1 in fixed point."""
BINS = 15
"""Bins of equal width of the expected calibration error and of the picture of a report."""


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """Sums over the (bag, label) pairs of each bin of probability: arrays (BINS,)."""

    pairs: I64
    carried: I64
    """Pairs whose bag carries the label."""
    total: tuple[int, ...]
    """Sum of the probabilities, as a multiple of 2⁻²⁰; more than 64 bits may hold."""

    @classmethod
    def of(cls, block: ScoredBlock) -> Reliability:
        """Sums over a block; bin j holds probabilities from j / BINS to below (j + 1) / BINS."""
        fixed, truth = _fixed(block), _truth(block)
        bins = np.minimum(fixed * BINS // UNIT, BINS - 1).ravel()
        carried = np.bincount(bins[truth.ravel()], minlength=BINS)
        total = np.zeros(BINS, np.int64)
        np.add.at(total, bins, fixed.ravel())
        return cls(np.bincount(bins, minlength=BINS), carried, tuple(total.tolist()))

    def add(self, other: Reliability) -> Reliability:
        """Sums over the bags of both."""
        total = (a + b for a, b in zip(self.total, other.total, strict=True))
        return Reliability(self.pairs + other.pairs, self.carried + other.carried, tuple(total))

    def error(self) -> float:
        """Mean distance of probability and share over bins, weighted by their pairs."""
        gaps = zip(self.total, self.carried.tolist(), strict=True)
        off = sum(abs(total - UNIT * carried) for total, carried in gaps)
        return float(off / (UNIT * int(self.pairs.sum())))


def _fixed(block: ScoredBlock) -> I64:
    assert block.probabilities is not None, "computed for calibrated models only"
    return np.rint(block.probabilities.astype(np.float64) * UNIT).astype(np.int64)


def _truth(block: ScoredBlock) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    truth = np.zeros((block.n_bags, block.n_labels), np.bool_)
    truth[block.bag_of, block.labels] = True
    return truth


def _squared_errors(block: ScoredBlock) -> BagMean:
    """Mean over labels of (probability − 1)² for carried labels and probability² for others.

    Every bag counts, whether it has no, some or all labels. For one label it is scikit-learn's
    ``brier_score_loss``.
    """
    squares = (_fixed(block) - UNIT * _truth(block)) ** 2
    return BagMean.of(squares.sum(axis=1) / (block.n_labels * float(UNIT**2)))


def _figure(sums: Reliability) -> Figure:
    """Mean distance of probability and share, in ``BINS`` bins of equal width.

    All (bag, label) pairs count together, those of bags with no or all labels too. The mean
    probability of a bin is compared with the share of its pairs whose bag carries the label. Even a
    perfect calibration has an error above 0, as shares of few pairs are inexact.
    """
    return Figure(sums.error())


brier_score: Metric[BagMean] = Metric(
    "brier_score",
    _squared_errors,
    BagMean.add,
    BagMean.figure,
    "lower",
    needs_probabilities=True,
)
expected_calibration_error: Metric[Reliability] = Metric(
    "expected_calibration_error",
    Reliability.of,
    Reliability.add,
    _figure,
    "lower",
    needs_probabilities=True,
)
