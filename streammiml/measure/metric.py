"""What a metric is: a partial figure of each block, a way to add two, and what they come to.

Partial figures are whole numbers, or multiples of 2⁻⁵⁰ kept as whole numbers, so adding them is
exact: no figure depends on how the bags were cut into blocks, or on who added which block first.
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

from streammiml.drawing import below, mixed
from streammiml.kernel.figures import HALF, UNIT, count_predicted, fixed_sums
from streammiml.kernel.rank import relevant_ranks

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Partial = TypeVar("Partial")

GROUPS, FEWEST_GROUPS = 64, 16
"""Of bags, where a standard error comes from leaving out one group after the other."""
GROUPED_COUNTS = 1 << 14
"""Labels times groups, at most."""
_GROUP_KEY = 0x6E0F


class Ranks(NamedTuple):
    """Of each (bag, relevant label) pair: where its score stands among the bag's L scores."""

    higher: I64
    """Labels with a higher score."""
    equal: I64
    """Labels with the same score, itself among them."""
    before: I64
    """Labels with the same score and a lower number."""
    relevant: I64
    """Relevant labels with the same score or a higher one, itself among them."""


class LabelCounts(NamedTuple):
    """(L,) each: bags that carry a label, that were predicted it, and both."""

    true: I64
    predicted: I64
    hits: I64

    def add(self, other: LabelCounts) -> LabelCounts:
        """Counts of two sets of bags."""
        return LabelCounts(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredBlock:
    """Bags with their true labels and what a model says of them."""

    scores: F32
    """(n, L), finite, contiguous."""
    dummy: F32
    """(n,) Score of the dummy label."""
    predicted: Bools
    """(n, L)."""
    label_offsets: I64
    """(n + 1,) in ``labels``."""
    labels: NDArray[np.int32]
    """Relevant labels of each bag, ascending and distinct."""
    key_rows: I64 | None = None
    """(n, L) Row within the bag that gave each score."""
    bag_offsets: I64 | None = None
    """(n + 1,) in rows."""
    row_labels: NDArray[np.int32] | None = None
    """(rows,) Label of each row, −1 where unknown; None where the store has none."""
    numbers: I64 | None = None
    """(n,) What a bag is known by, however bags are cut or ordered; None where nobody asks."""

    @property
    def n_bags(self) -> int:
        """Bags n."""
        return len(self.scores)

    @property
    def n_labels(self) -> int:
        """Labels L, without the dummy."""
        return int(self.scores.shape[1])

    @cached_property
    def n_true(self) -> I64:
        """(n,) Relevant labels of each bag."""
        return np.diff(self.label_offsets)

    @cached_property
    def bag_of(self) -> I64:
        """Bag of each (bag, relevant label) pair."""
        return np.repeat(np.arange(self.n_bags), self.n_true)

    @cached_property
    def groups(self) -> tuple[I64, int]:
        """(n,) The group of each bag, by a hash of its number, and how many groups there are.

        One for labels so many that counts in each group would take as long as scoring.
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
        """(n,) Predicted labels of each bag."""
        found: I64 = self._counts[0][0]
        return found

    @property
    def n_hits(self) -> I64:
        """(n,) Relevant labels of each bag that were predicted."""
        found: I64 = self._counts[0][1]
        return found

    @property
    def label_counts(self) -> LabelCounts:
        """Counts of each label."""
        return LabelCounts(*self._counts[1].sum(axis=0))

    @property
    def grouped_counts(self) -> LabelCounts:
        """(groups, L) each: counts of each label in each group of bags."""
        return LabelCounts(*self._counts[1].transpose(1, 0, 2))

    @cached_property
    def ranks(self) -> Ranks:
        """Ranks of all (bag, relevant label) pairs."""
        out = np.empty((4, len(self.labels)), np.int64)
        relevant_ranks(self.scores, self.label_offsets, self.labels, out)
        return Ranks(*out)


@dataclass(frozen=True, slots=True)
class Figure:
    """What a metric comes to."""

    value: Any
    """A number, None where nothing defines it, or a table."""
    standard_error: float | None = None
    """Over bags; None for fewer than two, and where a figure is not made of its bags'."""
    also: Mapping[str, int] = field(default_factory=dict)
    """Counts that are reported beside it."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Partial]):
    """A figure over bags: partial figures of blocks, combined in any order and finished.

    ``combine`` must be exact, associative and commutative.
    """

    name: str
    block: Callable[[ScoredBlock], Partial]
    combine: Callable[[Partial, Partial], Partial]
    finish: Callable[[Partial], Figure]
    better: Literal["higher", "lower", "neither"]
    needs_row_labels: bool = False
    """Whether it is left out for stores that do not know the labels of rows."""


class BagMean(NamedTuple):
    """Sums of a figure of each bag, and of its square, as multiples of 2⁻⁵⁰."""

    n_bags: int
    total: int
    squares: int

    @classmethod
    def of(cls, figures: F64) -> BagMean:
        """``figures`` (n,) of size 1 at most; each, and each square, is rounded to 2⁻⁵⁰."""
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
    """Sums over bags of two whole numbers a and b, of their squares and their product.

    The figure is Σa / Σb. Its standard error is that of a ratio of two means, to first order;
    where b is the same for all bags this is the standard error of a mean.
    """

    n_bags: int
    a: int
    b: int
    aa: int
    ab: int
    bb: int

    @classmethod
    def of(cls, a: I64, b: I64 | int) -> Ratio:
        """``a`` (n,); ``b`` (n,), or one number for every bag."""
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
        """Σa / Σb and its standard error; a value of None if b is 0 throughout."""
        n, a, b, aa, ab, bb = self
        if not b:
            return Figure(None)
        if n < 2:
            return Figure(a / b)
        # Σ(aᵢ − F bᵢ)², F = a/b, times b²: a whole number.
        spread = Fraction(n * (aa * b * b - 2 * ab * a * b + bb * a * a), (n - 1) * b**4)
        return Figure(a / b, math.sqrt(spread))
