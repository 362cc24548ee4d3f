"""Metrics: a partial figure of each block, addition of partial figures, and a final figure.

Partial figures are integers, or multiples of 2⁻⁵⁰ stored as integers, so adding them is exact: no
figure depends on how the bags were cut into blocks, or on the order in which blocks were added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streammiml._base.hashing import below, mixed
from streammiml.bags.offsets import gather
from streammiml.kernel.figures import HALF, UNIT, count_predicted, fixed_sums
from streammiml.kernel.rank import relevant_ranks

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Partial = TypeVar("Partial")

GROUPS, FEWEST_GROUPS = 64, 16
"""Number of groups of bags for a jackknife, which leaves out one group at a time. If fewer groups
are possible than the second number, there is no jackknife."""
GROUPED_COUNTS = 1 << 14
"""Upper limit for labels × groups."""
_GROUP_KEY = 0x6E0F


class Ranks(NamedTuple):
    """Rank of the score of each (bag, relevant label) pair among the L scores of the bag."""

    higher: I64
    """Labels with a higher score."""
    equal: I64
    """Labels with the same score, including the label itself."""
    before: I64
    """Labels with the same score and a lower number."""
    relevant: I64
    """Relevant labels with the same or a higher score, including the label itself."""


class LabelCounts(NamedTuple):
    """Bags that carry each label, for which it is predicted, and both: arrays (L,)."""

    true: I64
    predicted: I64
    hits: I64

    def add(self, other: LabelCounts) -> LabelCounts:
        """Counts of two sets of bags."""
        return LabelCounts(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredBlock:
    """Bags with their true labels, and a model's scores and predictions for them."""

    scores: F32
    """(n, L), finite, contiguous."""
    dummy: F32
    """(n,) Score of the dummy label."""
    predicted: Bools
    """(n, L) Whether a label is predicted."""
    label_offsets: I64
    """(n + 1,) Bounds of each bag in ``labels``."""
    labels: NDArray[np.int32]
    """Relevant labels of each bag, ascending and distinct."""
    key_rows: I64 | None = None
    """(n, L) Row within the bag that gave each score."""
    bag_offsets: I64 | None = None
    """(n + 1,) Bounds of each bag in rows."""
    row_labels: NDArray[np.int32] | None = None
    """(rows,) Label of each row, −1 if unknown; None if the store has no row labels."""
    numbers: I64 | None = None
    """(n,) Number of each bag in the store, which decides its group; None makes a single group."""
    probabilities: F32 | None = None
    """(n, L) Probability of each label; None if the model is not calibrated."""

    @property
    def n_bags(self) -> int:
        """Number of bags n."""
        return len(self.scores)

    @property
    def n_labels(self) -> int:
        """Number of labels L, without the dummy."""
        return int(self.scores.shape[1])

    @cached_property
    def n_true(self) -> I64:
        """(n,) Number of relevant labels of each bag."""
        return np.diff(self.label_offsets)

    @cached_property
    def bag_of(self) -> I64:
        """Bag of each (bag, relevant label) pair."""
        return np.repeat(np.arange(self.n_bags), self.n_true)

    def select(self, bags: I64) -> ScoredBlock:
        """Some of the bags, by their index in this block."""
        label_offsets, labels = gather(self.label_offsets, bags)
        bag_offsets, row_labels = self.bag_offsets, self.row_labels
        if bag_offsets is not None:
            bag_offsets, rows = gather(bag_offsets, bags)
            row_labels = None if row_labels is None else row_labels[rows]
        return ScoredBlock(
            scores=self.scores[bags],
            dummy=self.dummy[bags],
            predicted=self.predicted[bags],
            label_offsets=label_offsets,
            labels=self.labels[labels],
            key_rows=None if self.key_rows is None else self.key_rows[bags],
            bag_offsets=bag_offsets,
            row_labels=row_labels,
            numbers=None if self.numbers is None else self.numbers[bags],
            probabilities=None if self.probabilities is None else self.probabilities[bags],
        )

    @cached_property
    def groups(self) -> tuple[I64, int]:
        """(n,) Group of each bag, by a hash of its number; and the number of groups.

        With very many labels there is one group: more groups would take as long as scoring.
        """
        n_groups = min(GROUPS, GROUPED_COUNTS // self.n_labels)
        if self.numbers is None or n_groups < FEWEST_GROUPS:
            return np.zeros(self.n_bags, np.int64), 1
        return below(mixed(self.numbers, _GROUP_KEY), n_groups), n_groups

    @cached_property
    def _counts(self) -> tuple[I64, I64]:
        group, n_groups = self.groups
        by_bag = np.empty((2, self.n_bags), np.int64)
        by_group = np.empty((n_groups, 3, self.n_labels), np.int64)
        count_predicted(self.predicted, self.label_offsets, self.labels, group, by_bag, by_group)
        return by_bag, by_group

    @property
    def n_predicted(self) -> I64:
        """(n,) Number of predicted labels of each bag."""
        n_predicted: I64 = self._counts[0][0]
        return n_predicted

    @property
    def n_hits(self) -> I64:
        """(n,) Number of relevant labels of each bag that were predicted."""
        n_hits: I64 = self._counts[0][1]
        return n_hits

    @property
    def label_counts(self) -> LabelCounts:
        """Counts of each label."""
        return LabelCounts(*self._counts[1].sum(axis=0))

    @property
    def grouped_counts(self) -> LabelCounts:
        """Counts of each label in each group of bags: arrays (groups, L)."""
        return LabelCounts(*self._counts[1].transpose(1, 0, 2))

    @cached_property
    def ranks(self) -> Ranks:
        """Ranks of all (bag, relevant label) pairs."""
        out = np.empty((4, len(self.labels)), np.int64)
        relevant_ranks(self.scores, self.label_offsets, self.labels, out)
        return Ranks(*out)


@dataclass(frozen=True, slots=True)
class Figure:
    """Final value of a metric, with its standard error."""

    value: Any
    """A number, None if it is undefined, or a table."""
    standard_error: float | None = None
    """Standard error over bags; None for fewer than two bags, or if there is no estimate."""
    also: Mapping[str, int] = field(default_factory=dict)
    """Counts that are reported beside the value, by name."""
    bounds: tuple[float, float] | None = None
    """Lower and upper bound of a value that is not exact; None if it is exact."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Partial]):
    """A figure over bags, computed from partial figures of blocks, combined in any order.

    ``combine`` must be exact, associative and commutative. Metrics with the same ``block`` and
    ``combine`` share their partial figures.
    """

    name: str
    block: Callable[[ScoredBlock], Partial]
    combine: Callable[[Partial, Partial], Partial]
    finish: Callable[[Partial], Figure]
    better: Literal["higher", "lower", "neither"]
    needs_row_labels: bool = False
    """Whether the metric can only be computed for stores with row labels."""
    over_labelled: bool = True
    """Whether the figure over bags with labels is reported beside that over all bags."""
    needs_probabilities: bool = False
    """Whether the metric can only be computed for calibrated models."""


class BagMean(NamedTuple):
    """Mean over bags: sums of a figure of each bag, and of its square, as multiples of 2⁻⁵⁰."""

    n_bags: int
    total: int
    squares: int

    @classmethod
    def of(cls, figures: F64) -> BagMean:
        """Sum ``figures`` (n,) within [−1, 1]; each figure and each square is rounded to 2⁻⁵⁰."""
        high, low, high_squares, low_squares = fixed_sums(figures)
        total = (int(high) << HALF) + int(low)
        squares = (int(high_squares) << HALF) + int(low_squares)
        return cls(len(figures), total, squares)

    def add(self, other: BagMean) -> BagMean:
        """Sums over two sets of bags."""
        return BagMean(*(a + b for a, b in zip(self, other, strict=True)))

    def figure(self) -> Figure:
        """The mean over bags, and its standard error."""
        n = self.n_bags
        if not n:
            return Figure(None)
        error = None
        if n > 1:
            spread = Fraction(n * self.squares * UNIT - self.total**2, n * n * (n - 1) * UNIT**2)
            error = math.sqrt(max(Fraction(0), spread))
        return Figure(self.total / (n * UNIT), error)


class Ratio(NamedTuple):
    """Ratio of two sums over bags: sums of integers a and b, of their squares and product.

    The figure is Σa / Σb. Its standard error is that of a ratio of two means, to first order;
    if b is the same for all bags, this is the standard error of a mean.
    """

    n_bags: int
    a: int
    b: int
    aa: int
    ab: int
    bb: int

    @classmethod
    def of(cls, a: I64, b: I64 | int) -> Ratio:
        """Sum ``a`` (n,) and ``b`` (n,), which may be one number for every bag."""
        n = len(a)
        if isinstance(b, int):
            total = int(a.sum())
            return cls(n, total, n * b, int(np.dot(a, a)), total * b, n * b * b)
        dots = (int(np.dot(x, y)) for x, y in ((a, a), (a, b), (b, b)))
        return cls(n, int(a.sum()), int(b.sum()), *dots)

    def add(self, other: Ratio) -> Ratio:
        """Sums over two sets of bags."""
        return Ratio(*(x + y for x, y in zip(self, other, strict=True)))

    def figure(self) -> Figure:
        """Σa / Σb and its standard error; the value is None if Σb is 0."""
        n, a, b, aa, ab, bb = self
        if not b:
            return Figure(None)
        if n < 2:
            return Figure(a / b)
        # Σ(aᵢ − F bᵢ)², F = a/b, times b², is an integer.
        spread = Fraction(n * (aa * b * b - 2 * ab * a * b + bb * a * a), (n - 1) * b**4)
        return Figure(a / b, math.sqrt(spread))
