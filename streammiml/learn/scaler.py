"""Scaling and lift of rows, fitted in one streaming pass.

The default step size is chosen for rows of L2 norm about 1. Every scale but ``none`` makes such
rows:

- ``unit``: each row is divided by its norm. Nothing is fitted.
- ``standard``: each feature gets mean 0 and variance 1. Then all rows are divided by one number, so
  that their mean *squared* norm is 1. Before that division the mean squared norm is the number of
  features that vary, so no second pass is needed. Rows keep their relative lengths, which is better
  for Scene and bird song.
- ``standard+unit``: each feature gets mean 0 and variance 1. Then each row is divided by its norm.
- ``maxabs``: each feature is divided by its largest absolute value. Then all rows are divided by
  one number, as for ``standard``. Zeros stay zero.

Sparse rows are scaled in the same way but not centred, so their zeros stay zero. A feature that
never varied becomes 0 under ``standard`` and ``standard+unit``: its weights in W0 would stay
random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streammiml._base.hashing import GOLDEN, splitmix_array
from streammiml.config import LiftSpec, ScaleSpec
from streammiml.errors import StreammimlError
from streammiml.kernel.lift import LOG1P, NO_TRANSFORM, SQRT, Lift, lift_bag, lift_width, plain_rows
from streammiml.kernel.moments import Moments, add_dense, add_sparse, empty_moments

Array = np.ndarray[Any, np.dtype[Any]]

TRANSFORM_CODES = {"none": NO_TRANSFORM, "sqrt": SQRT, "log1p": LOG1P}
SAMPLE_ROWS = 400
"""Rows whose distances give the median: 79 800 pairs estimate it to about 1 %."""
SAMPLE_BYTES = 8 * 2**20
"""Upper limit for the sampled rows, unless two rows are larger."""
COUNT_ZEROS = 0.25
"""Non-negative rows with at least this share of zeros are taken for counts or histograms."""
MOST_COLUMNS = 2**31 - 1
"""Kernels store the columns of sparse rows as int32."""
CONSTANT = 1e-6
"""A standard deviation below this share of the largest value is taken for float32 rounding."""

# Second part of the seeds of three random generators.
_FREQUENCIES, _PHASES, _SAMPLE = 1, 2, 3
_NEGATIVE = 2
"""Index of the number of negative values in ``Moments.counts``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedScaler:
    """Scaling and lift, and facts about the rows to which they were fitted."""

    lift: Lift
    scale: str
    """The option ``scale`` with ``auto`` resolved."""
    n_rows: int
    """Number of rows that were read."""
    n_constant: int
    """Number of features that never varied, or for ``maxabs`` were always 0; 0 for ``none`` and
    ``unit``."""
    median_distance: float
    """Median distance of two scaled rows; 0 without Fourier features."""


def needs_rows(scale: ScaleSpec, lift: LiftSpec) -> bool:
    """Whether the fit depends on rows; ``none`` and ``unit`` without Fourier features do not."""
    return scale.kind not in ("none", "unit") or lift.n_fourier > 0


def auto_scale(*, sparse: bool, zero_share: float, negative: bool, fractional: bool) -> ScaleSpec:
    """Choose the scale for ``auto``.

    - Sparse rows are taken for text and get ``unit``. Square roots are taken of whole numbers that
      are not negative, but not of fractions, which may be weighted already.
    - Dense rows without negative values, of which a quarter or more are zeros, are taken for counts
      or histograms. Square roots are taken; then whole numbers get ``unit`` and fractions
      ``standard+unit``. (MSRC v2, fractions, nine splits: ranking loss .065 and average precision
      .80; without roots .095 and .73; without standardising .067 and .78. On proteins the three
      differ by at most .01.)
    - All other rows get ``standard``.
    """
    are_counts = not negative and not fractional
    if sparse or (are_counts and zero_share >= COUNT_ZEROS):
        return ScaleSpec(kind="unit", transform="sqrt" if are_counts else "none")
    if not negative and zero_share >= COUNT_ZEROS:
        return ScaleSpec(kind="standard+unit", transform="sqrt")
    return ScaleSpec(kind="standard")


class ScalerFit:
    """A fit in progress: ``update_dense`` or ``update_sparse`` for each block, then ``finish``.

    Holds four numbers per feature, and four more while ``auto`` may still choose square roots. For
    Fourier features it also holds a sample of rows: at most 8 MiB, or two rows if these are
    larger. The result depends on the seed and on the rows in their order, not on block bounds.
    """

    def __init__(
        self, n_features: int, scale: ScaleSpec, lift: LiftSpec, *, seed: int, sparse: bool
    ) -> None:
        if sparse and lift.needs_dense_rows:
            raise StreammimlError(
                f"lift {str(lift)!r} needs dense rows, and this store is sparse; "
                "use lift none or context:mean, or convert to dense rows"
            )
        if sparse and lift.width(n_features) > MOST_COLUMNS:
            raise StreammimlError(
                f"rows of {n_features} features would have {lift.width(n_features)} after the lift "
                f"and sparse rows can have at most {MOST_COLUMNS}; hash the features to fewer"
            )
        self._scale, self._lift, self._seed, self._sparse = scale, lift, seed, sparse
        self._moments = empty_moments(n_features)
        may_choose_roots = scale.kind == "auto" and not sparse
        self._root_moments = empty_moments(n_features) if may_choose_roots else None
        self._sample = _RowSample(n_features, seed) if lift.n_fourier else None

    def update_dense(self, rows: Array) -> None:
        """Add ``rows`` (n, d) of any stored type."""
        transform = TRANSFORM_CODES[self._scale.transform]
        if self._sample is not None:
            self._sample.add(int(self._moments.counts[0]), rows)
        add_dense(self._moments, transform, plain_rows(rows))
        # ``auto`` standardises square roots only of fractions that are not negative.
        if self._moments.counts[_NEGATIVE] or rows.dtype.kind != "f":
            self._root_moments = None
        if self._root_moments is not None:
            add_dense(self._root_moments, SQRT, plain_rows(rows))

    def update_sparse(self, n_rows: int, columns: Array, values: Array) -> None:
        """Add ``n_rows`` rows: their stored values, and the column of each value."""
        transform = TRANSFORM_CODES[self._scale.transform]
        add_sparse(self._moments, transform, n_rows, columns, plain_rows(values))

    @property
    def n_nonzero(self) -> int:
        """Number of values so far that are not zero."""
        return int(self._moments.counts[1])

    def finish(self) -> FittedScaler:
        """Compute scaling and lift; needs at least one row, unless ``needs_rows`` is false."""
        n_rows = int(self._moments.counts[0])
        if n_rows == 0 and needs_rows(self._scale, self._lift):
            raise StreammimlError(
                f"scale {str(self._scale)!r} with lift {str(self._lift)!r} is fitted to rows, "
                "and there are none"
            )
        scale, moments = self._scale, self._moments
        if scale.kind == "auto":
            scale = self._chosen(n_rows)
            if scale.transform == "sqrt" and self._root_moments is not None:
                moments = self._root_moments
        shift, factor, n_constant = _factors(moments, scale.kind, centre=not self._sparse)
        d = len(factor)
        lift = Lift(
            shift=shift.astype(np.float32),
            scale=factor.astype(np.float32),
            transform=TRANSFORM_CODES[scale.transform],
            unit=int(scale.kind in ("unit", "standard+unit")),
            frequencies=np.zeros((d, 0), np.float32),
            phases=np.zeros(0, np.float32),
            context=0,
        )
        median = 0.0
        if self._sample is not None:
            median = _median_distance(_scaled(lift, self._sample.rows))
            lift = _with_fourier(lift, self._lift, median, self._seed)
        lift = lift._replace(context=int(self._lift.context))
        return FittedScaler(
            lift=lift,
            scale=str(scale),
            n_rows=n_rows,
            n_constant=n_constant,
            median_distance=median,
        )

    def _chosen(self, n_rows: int) -> ScaleSpec:
        _, nonzero, negative, fractional = (int(count) for count in self._moments.counts)
        share = 1 - nonzero / max(1, n_rows * len(self._moments.mean))
        return auto_scale(
            sparse=self._sparse, zero_share=share, negative=negative > 0, fractional=fractional > 0
        )


def _factors(moments: Moments, kind: str, *, centre: bool) -> tuple[Array, Array, int]:
    """Shift and scale (d,) in float64, and the number of features that never varied."""
    d, n_rows = len(moments.mean), int(moments.counts[0])
    if kind in ("none", "unit"):
        return np.zeros(d), np.ones(d), 0
    # Values that sparse rows do not store are zeros: merge the moments of the stored values with
    # those of n - seen zeros, by Chan's formula.
    share = moments.seen / n_rows
    mean = moments.mean * share
    variance = moments.spread / n_rows + moments.mean**2 * share * (1 - share)
    width = moments.max_abs if kind == "maxabs" else np.sqrt(variance)
    varies = width > CONSTANT * moments.max_abs
    factor = np.divide(1.0, width, out=np.zeros(d), where=varies)
    shift = mean if centre and kind != "maxabs" else np.zeros(d)
    if kind != "standard+unit":
        square = (variance + (mean - shift) ** 2) * factor**2
        total = float(square.sum())
        factor = factor / np.sqrt(total) if total > 0 else factor
    return shift, factor, int(d - varies.sum())


class _RowSample:
    """A uniform sample of rows, independent of blocks: those with the lowest keyed hashes."""

    def __init__(self, n_features: int, seed: int) -> None:
        self._size = max(2, min(SAMPLE_ROWS, SAMPLE_BYTES // (4 * max(1, n_features))))
        self._start = np.random.default_rng([seed, _SAMPLE]).integers(2**64, dtype=np.uint64)
        self._keys = np.zeros(0, np.uint64)
        self.rows = np.zeros((0, n_features), np.float32)

    def add(self, first: int, rows: Array) -> None:
        """Add those of ``rows`` that belong to the sample; ``first`` is the first row's number."""
        numbers = np.arange(first, first + len(rows), dtype=np.uint64)
        keys = splitmix_array((numbers + self._start) * GOLDEN)
        if len(self._keys) == self._size:
            candidates = np.flatnonzero(keys < self._keys[-1])
        else:
            candidates = np.arange(len(rows))
        candidates = candidates[np.argsort(keys[candidates])[: self._size]]
        if len(candidates):
            keys = np.concatenate([self._keys, keys[candidates]])
            order = np.argsort(keys)[: self._size]
            self._keys = keys[order]
            self.rows = np.concatenate([self.rows, rows[candidates].astype(np.float32)])[order]


def _scaled(lift: Lift, rows: Array) -> Array:
    out = np.empty((len(rows), lift_width(lift)), np.float32)
    lift_bag(lift, rows, out)
    return out[:, :-1]


def _median_distance(rows: Array) -> float:
    """Median L2 distance of two rows, or the mean if most rows are equal, or 1 if all are.

    BLAS is not used: the last bits of its results depend on its number of threads.
    """
    rows = rows.astype(np.float64)
    squares = [((rows[i + 1 :] - rows[i]) ** 2).sum(axis=1) for i in range(len(rows) - 1)]
    distances = np.sqrt(np.concatenate([*squares, np.zeros(0)]))
    if not distances.any():
        return 1.0
    return float(np.median(distances)) or float(distances.mean())


def _with_fourier(lift: Lift, spec: LiftSpec, median: float, seed: int) -> Lift:
    """Add Fourier features of the Gaussian kernel exp(-|x - y|² / 2σ²), σ = bandwidth × median."""
    shape = (len(lift.scale), spec.n_fourier)
    normal = np.random.default_rng([seed, _FREQUENCIES]).standard_normal(shape, np.float32)
    phases = np.random.default_rng([seed, _PHASES]).random(spec.n_fourier, np.float32)
    frequency_scale = np.float32(1 / (2 * np.pi * spec.bandwidth * median))
    return lift._replace(frequencies=normal * frequency_scale, phases=phases)
