"""Fits the functions that turn scores into probabilities, one for each label.

They are fitted to bags that the weights were not trained on. The margins of these bags (a label's
score minus the dummy's) are counted in bins, apart for bags that carry a label and for those that
do not. So the memory does not grow with the bags, and the counts, which are integers, do not depend
on how the bags are cut. A bin is about 3 % of its margin wide, whatever the scale of the scores is.

A training places the margins of a label by chance, a little higher or wider than another training
does. So margins of several trainings are **standardized** before they are counted: by the mean and
the standard deviation of the label's margins over the bags of that training. Over 16 trainings on
planted bags, MSRC v2, Scene and MIML birds, the expected calibration error on test bags was .0174
with this, .0212 without, .0351 for a sigmoid of the margin, and .0155 for labels drawn with the
very probabilities.

**Platt**: a logistic function of the margin. Its targets are Platt's, (n₊ + 1) / (n₊ + 2) and
1 / (n₋ + 2), so no probability becomes 0 or 1. The slope is drawn towards that of all labels
together: with few positive bags it stays near it, with many it is the label's own.

**Isotonic**: the steps that never fall and have the least squared error, by pooling adjacent
violators; between the margins of two steps the probability is interpolated.

``auto`` takes isotonic regression for labels with ``LEAST_BAGS`` bags that carry them and as many
that do not, and Platt's method for all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml._base.calibration import Calibration
from streammiml.config import Calibrate
from streammiml.errors import unknown

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

METHODS = ("auto", "platt", "isotonic")
LEAST_BAGS = 500
"""With fewer bags of either kind, isotonic regression follows their noise."""
SMALLEST, LARGEST = -6, 8
"""Margins below 2^SMALLEST count as 0; margins beyond 2^LARGEST count in the outermost bins."""
_BITS = 4
"""Bins in each power of two, as bits of the fraction of a float32."""
_SHIFT = 23 - _BITS
_FIRST = (127 + SMALLEST) << _BITS
_SIDE = (LARGEST - SMALLEST) << _BITS
N_BINS = 2 * _SIDE + 1
STRENGTH = 4.0
"""Weight of the common slope: a slope that is twice as large costs as much as this number, halved,
of natural units of likelihood."""
FLATTEST = 1 / 16
"""Least slope of a label, as a share of the common slope: a higher score never means a lower
probability."""
MOST_STEPS = 100
"""Newton steps; a handful suffice."""
LABELS_AT_ONCE = 256
"""Labels that are fitted at the same time."""


def empty_label_counts(n_labels: int) -> I32:
    """Counts (2, L, bins) of bags that lack and of bags that carry each label, by margin."""
    return np.zeros((2, n_labels, N_BINS), np.int32)


def label_counts_bytes(n_labels: int) -> int:
    """Bytes of counts, and of one more copy of them."""
    return 2 * 2 * n_labels * N_BINS * 4


def bins_of(margins: NDArray[np.float32]) -> I64:
    """Bin of each margin: the sign, the exponent and the first bits of the fraction."""
    codes = np.abs(margins).view(np.int32).astype(np.int64) >> _SHIFT
    codes = np.clip(codes - _FIRST + 1, 0, _SIDE)
    bins: I64 = np.where(margins < 0, _SIDE - codes, _SIDE + codes)
    return bins


def bin_margins() -> F64:
    """(bins,) The margin in the middle of each bin."""
    codes = np.arange(_SIDE, dtype=np.int32) + _FIRST
    middles = ((codes << _SHIFT) | (1 << (_SHIFT - 1))).view(np.float32).astype(np.float64)
    return np.concatenate([-middles[::-1], [0.0], middles])


def margins_of(scores: NDArray[np.float32]) -> F64:
    """(n, L) Margins of scores (n, L + 1), the dummy last; exact in float64."""
    margins: F64 = scores[:, :-1].astype(np.float64) - scores[:, -1:].astype(np.float64)
    return margins


class Standard(NamedTuple):
    """Center and scale by which the margins of each label are standardised."""

    center: F64
    scale: F64

    @classmethod
    def none(cls, n_labels: int) -> Standard:
        """Leave margins as they are."""
        return cls(np.zeros(n_labels), np.ones(n_labels))

    @classmethod
    def of_blocks(cls, blocks: Iterable[NDArray[np.float32]]) -> Standard:
        """Mean and standard deviation over bags; blocks of scores (n, L + 1), the dummy last."""
        n_bags, total, squares = 0, np.zeros(0), np.zeros(0)
        for scores in blocks:
            margins = margins_of(scores)
            sums = margins.sum(axis=0), (margins**2).sum(axis=0)
            total, squares = (sums[0] + total, sums[1] + squares) if n_bags else sums
            n_bags += len(scores)
        mean = total / n_bags
        deviation = np.sqrt(np.maximum(squares / n_bags - mean**2, 0))
        # All margins of a label may be equal.
        return cls(mean, np.where(deviation > 1e-6 * (1 + np.abs(mean)), deviation, 1.0))


def add_label_counts(
    counts: I32,
    scores: NDArray[np.float32],
    label_offsets: I64,
    labels: NDArray[np.int32],
    standard: Standard,
) -> None:
    """Count the margins of a block of bags; ``scores`` (n, L + 1), the dummy last."""
    n_bags, n_labels = len(scores), scores.shape[1] - 1
    margins = (margins_of(scores) - standard.center) / standard.scale
    bins = bins_of(margins.astype(np.float32))
    relevant = np.zeros((n_bags, n_labels), np.int64)
    relevant[np.repeat(np.arange(n_bags), np.diff(label_offsets)), labels] = 1
    np.add.at(counts, (relevant, np.arange(n_labels)[None, :], bins), 1)


def fitted_calibration(
    counts: I32, method: Calibrate, standard: Standard, offset: float = 0.0
) -> Calibration:
    """Fit each label to counts of standardized margins.

    ``standard`` is that of the model that the calibration is for, ``offset`` what the model's rule
    adds to the dummy's score in predictions.
    """
    if method not in METHODS:
        raise unknown("calibration", method, METHODS)
    n_labels, margins = counts.shape[1], bin_margins()
    common = _common_line(counts, margins)
    platt = np.concatenate(
        [
            _lines(counts[:, first : first + LABELS_AT_ONCE], margins, common[0])
            for first in range(0, n_labels, LABELS_AT_ONCE)
        ]
    )
    # From functions of the standardized margin to functions of the margin that predictions have.
    center, scale = standard.center - offset, standard.scale
    platt[:, 0] /= scale
    platt[:, 1] -= platt[:, 0] * center
    enough = counts.sum(axis=2).min(axis=0) >= (LEAST_BAGS if method == "auto" else 1)
    knots = [
        _steps(counts[:, label], margins * scale[label] + center[label])
        if method != "platt" and enough[label]
        else None
        for label in range(n_labels)
    ]
    return Calibration.of_knots(platt, knots)


def _common_line(counts: I32, margins: F64) -> F64:
    """Slope and intercept of all labels together; the slope is above 0."""
    together = counts.sum(axis=1, dtype=np.int64)[:, None]
    line: F64 = _newton(together, margins, slope=1.0, strength=0.0)[0]
    if line[0] <= 1e-3:
        # Scores tell nothing: one margin of typical size changes little.
        line[0] = 1e-3
    return line


def _lines(counts: NDArray[np.integer], margins: F64, slope: float) -> F64:
    """(L, 2) Slope and intercept of each label, with slopes near the common one."""
    lines = _newton(counts, margins, slope=slope, strength=STRENGTH / slope**2)
    flat = np.flatnonzero(lines[:, 0] < FLATTEST * slope)
    if flat.size:
        # Their slope is fixed, and only the intercept is fitted again.
        least = FLATTEST * slope
        lines[flat] = _newton(counts[:, flat], margins, slope=least, strength=np.inf)
    return lines


def _newton(counts: NDArray[np.integer], margins: F64, *, slope: float, strength: float) -> F64:
    """Minimize the cross entropy plus strength × (slope − common slope)² / 2, for each label.

    The objective is convex. A step that does not lower it is halved, for its label alone.
    """
    others, carried = counts.astype(np.float64)
    n = others + carried
    n_others, n_carried = others.sum(axis=1), carried.sum(axis=1)
    high, low = (n_carried + 1) / (n_carried + 2), 1 / (n_others + 2)
    targets = carried * high[:, None] + others * low[:, None]
    total = np.maximum(targets.sum(axis=1), 1e-3)
    # A label that no bag shows has nothing but the common slope and an even chance.
    rest = np.maximum(n.sum(axis=1) - total, 1e-3)
    center = (n * margins).sum(axis=1) / np.maximum(n.sum(axis=1), 1)
    lines = np.stack([np.full(len(n), slope), np.log(total / rest) - slope * center], axis=1)
    is_fixed = not np.isfinite(strength)
    strength = 0.0 if is_fixed else strength

    def cost(line: F64) -> F64:
        logits = line[:, :1] * margins + line[:, 1:]
        # log(1 + exp(z)) − target × z, without overflow.
        entropy = n * np.logaddexp(0, logits) - targets * logits
        summed: F64 = entropy.sum(axis=1) + strength / 2 * (line[:, 0] - slope) ** 2
        return summed

    best = cost(lines)
    for _ in range(MOST_STEPS):
        logits = np.clip(lines[:, :1] * margins + lines[:, 1:], -700, 700)
        p = 1 / (1 + np.exp(-logits))
        error, spread = n * p - targets, n * p * (1 - p)
        g0 = (error * margins).sum(axis=1) + strength * (lines[:, 0] - slope)
        g1 = error.sum(axis=1)
        h00 = (spread * margins**2).sum(axis=1) + strength + 1e-9
        h01, h11 = (spread * margins).sum(axis=1), spread.sum(axis=1) + 1e-9
        if is_fixed:
            step = np.stack([np.zeros(len(n)), g1 / h11], axis=1)
        else:
            det = np.maximum(h00 * h11 - h01**2, 1e-12)
            step = np.stack([h11 * g0 - h01 * g1, h00 * g1 - h01 * g0], axis=1) / det[:, None]
        for _ in range(40):
            after = cost(lines - step)
            worse = after > best
            if not worse.any():
                break
            step[worse] /= 2
        step[after > best] = 0
        lines, best = lines - step, np.minimum(after, best)
        if np.abs(step).max(initial=0) < 1e-9:
            break
    return lines


def _steps(counts: I32, margins: F64) -> tuple[F64, F64]:
    """Knots of one label: both ends of each step that pooling leaves; counts (2, bins)."""
    used = np.flatnonzero(counts.sum(axis=0))
    # Each block: sum of targets, weight, first and last bin.
    blocks: list[tuple[int, int, int, int]] = []
    for place in used.tolist():
        block = int(counts[1, place]), int(counts[:, place].sum()), place, place
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = before[0] + block[0], before[1] + block[1], before[2], block[3]
        blocks.append(block)
    points = [
        (margins[place], hits / weight)
        for hits, weight, first, last in blocks
        for place in sorted({first, last})
    ]
    xs, ys = np.array(points).T
    # Margins that float32 cannot tell apart would be one knot.
    distinct = np.flatnonzero(np.diff(xs.astype(np.float32), prepend=-np.inf) > 0)
    return xs[distinct], ys[distinct]
