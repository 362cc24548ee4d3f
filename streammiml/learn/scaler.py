"""Streaming fit of what a row becomes before the first weight: scaling and lift, in one pass.

Every scale but ``none`` leaves rows of L2 norm about 1, which is what the step size is set for:

- ``unit``: each row divided by its norm. Nothing is fitted.
- ``standard``: mean 0 and variance 1 a feature, then one factor for all rows, so that the mean
  *square* norm is 1. That mean is the number of features that vary, so the factor needs no second
  pass, and rows keep their relative lengths, which Scene and bird song want.
- ``standard+unit``: mean 0 and variance 1 a feature, then each row divided by its norm.
- ``maxabs``: each feature divided by its largest absolute value, then one factor as above. Zeros
  stay zero.

Sparse rows are scaled by the same deviations but not centred: their zeros stay zero. A feature
that never varied becomes 0 under every fitted scale: its column of W0 would be chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streammiml.config import LiftSpec, ScaleSpec
from streammiml.errors import StreammimlError
from streammiml.kernel.lift import LOG1P, NO_TRANSFORM, SQRT, Lift, lift_bag, lift_width, plain_rows
from streammiml.kernel.moments import Moments, add_dense, add_sparse, empty_moments

Array = np.ndarray[Any, np.dtype[Any]]

TRANSFORM_CODES = {"none": NO_TRANSFORM, "sqrt": SQRT, "log1p": LOG1P}
SAMPLE_ROWS = 400
"""Rows whose distances give the median: 79 800 pairs know it to about 1 %."""
SAMPLE_BYTES = 8 * 2**20
COUNT_ZEROS = 0.25
"""Share of zeros from which non-negative features are taken for counts, text or histograms."""
MOST_COLUMNS = 2**31 - 1
"""Kernels know the columns of sparse rows as int32."""
CONSTANT = 1e-6
"""A standard deviation below this share of the largest value is float32 rounding."""

_FREQUENCIES, _PHASES, _SAMPLE = 1, 2, 3
_NEGATIVE = 2
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a pass over rows found."""

    lift: Lift
    scale: str
    """The option ``scale`` with ``auto`` resolved."""
    n_rows: int
    """Rows that were looked at."""
    n_constant: int
    """Features that never varied, where the scale asks for variation; else 0."""
    median_distance: float
    """Of two scaled rows; 0 where no Fourier features asked for it."""


def needs_rows(scale: ScaleSpec, lift: LiftSpec) -> bool:
    """Say whether a fit must look at rows at all: ``none`` and ``unit`` without Fourier do not."""
    return scale.kind not in ("none", "unit") or lift.n_fourier > 0


def auto_scale(*, sparse: bool, zero_share: float, negative: bool, fractional: bool) -> ScaleSpec:
    """Choose for ``auto``: the whole rule.

    Rows without a negative value of which a quarter or more are zeros are counts or histograms, and
    sparse ones text: unit rows, of square roots but for sparse fractions, which may be weighted
    already. Roots of dense fractions are standardised before (MSRC v2, nine splits: ranking loss
    .065 and average precision .80 against .095 and .73 without roots, .067 and .78 without
    standardising; on proteins the three do not differ by more than .01). All others are
    standardised with one factor for all rows.
    """
    counted = not negative and not fractional
    if sparse or (counted and zero_share >= COUNT_ZEROS):
        return ScaleSpec(kind="unit", transform="sqrt" if counted else "none")
    if not negative and zero_share >= COUNT_ZEROS:
        return ScaleSpec(kind="standard+unit", transform="sqrt")
    return ScaleSpec(kind="standard")


class ScalerFit:
    """A fit in progress: ``update_dense`` or ``update_sparse`` for each block, then ``finish``.

    Holds five numbers a feature, twice where ``auto`` may yet choose roots, and, for Fourier
    features, at most 8 MiB (or two) of sampled rows.
    The result is a function of (seed, rows in order), not of how they came in blocks.
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
                f"rows of {n_features} features would have {lift.width(n_features)} when lifted, "
                f"and sparse ones can have {MOST_COLUMNS}; hash the features to fewer"
            )
        self._scale, self._lift, self._seed, self._sparse = scale, lift, seed, sparse
        self._moments = empty_moments(n_features)
        may_be_roots = scale.kind == "auto" and not sparse
        self._of_roots = empty_moments(n_features) if may_be_roots else None
        self._sample = _RowSample(n_features, seed) if lift.n_fourier else None

    def update_dense(self, rows: Array) -> None:
        """Take in ``rows`` (n, d) of any stored type."""
        transform = TRANSFORM_CODES[self._scale.transform]
        if self._sample is not None:
            self._sample.add(int(self._moments.counts[0]), rows)
        add_dense(self._moments, transform, plain_rows(rows))
        # Roots of whole numbers are not standardised, nor are there any of negative ones.
        if self._moments.counts[_NEGATIVE] or rows.dtype.kind != "f":
            self._of_roots = None
        if self._of_roots is not None:
            add_dense(self._of_roots, SQRT, plain_rows(rows))

    def update_sparse(self, n_rows: int, columns: Array, values: Array) -> None:
        """Take in the stored values of ``n_rows`` rows, with the column of each."""
        transform = TRANSFORM_CODES[self._scale.transform]
        add_sparse(self._moments, transform, n_rows, columns, plain_rows(values))

    @property
    def n_nonzero(self) -> int:
        """Values seen so far that are not zero."""
        return int(self._moments.counts[1])

    def finish(self) -> Fit:
        """Turn what was seen into arrays; no row at all will do where ``needs_rows`` is false."""
        n_rows = int(self._moments.counts[0])
        if n_rows == 0 and needs_rows(self._scale, self._lift):
            raise StreammimlError(
                f"scale {str(self._scale)!r} with lift {str(self._lift)!r} is fitted to rows, "
                "and there are none"
            )
        scale, moments = self._scale, self._moments
        if scale.kind == "auto":
            scale = self._chosen(n_rows)
            if scale.transform == "sqrt" and self._of_roots is not None:
                moments = self._of_roots
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
        return Fit(
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
    """Shift and scale (d,) in float64, and how many features never varied."""
    d, n_rows = len(moments.mean), int(moments.counts[0])
    if kind in ("none", "unit"):
        return np.zeros(d), np.ones(d), 0
    # What sparse rows do not store are zeros: Chan's merge of the stored with n - seen zeros.
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
    """The rows whose keyed hashes are lowest: a uniform sample, whatever the blocks."""

    def __init__(self, n_features: int, seed: int) -> None:
        self._size = max(2, min(SAMPLE_ROWS, SAMPLE_BYTES // (4 * max(1, n_features))))
        self._start = np.random.default_rng([seed, _SAMPLE]).integers(2**64, dtype=np.uint64)
        self._keys = np.zeros(0, np.uint64)
        self.rows = np.zeros((0, n_features), np.float32)

    def add(self, first: int, rows: Array) -> None:
        """Consider ``rows``, numbered from ``first`` on."""
        keys = _mixed(np.arange(first, first + len(rows), dtype=np.uint64) + self._start)
        if len(self._keys) == self._size:
            fresh = np.flatnonzero(keys < self._keys[-1])
        else:
            fresh = np.arange(len(rows))
        fresh = fresh[np.argsort(keys[fresh])[: self._size]]
        if len(fresh):
            keys = np.concatenate([self._keys, keys[fresh]])
            order = np.argsort(keys)[: self._size]
            self._keys = keys[order]
            self.rows = np.concatenate([self.rows, rows[fresh].astype(np.float32)])[order]


def _mixed(keys: Array) -> Array:
    """Permute 64-bit keys (the finaliser of SplitMix64)."""
    keys = keys * _GOLDEN
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(keys ^ (keys >> np.uint64(31)))


def _scaled(lift: Lift, rows: Array) -> Array:
    out = np.empty((len(rows), lift_width(lift)), np.float32)
    lift_bag(lift, rows, out)
    return out[:, :-1]


def _median_distance(rows: Array) -> float:
    """Median L2 distance of two rows, or the mean if most rows are equal, or 1 if all are.

    Without BLAS, whose last bits depend on its threads.
    """
    rows = rows.astype(np.float64)
    squares = [((rows[i + 1 :] - rows[i]) ** 2).sum(axis=1) for i in range(len(rows) - 1)]
    distances = np.sqrt(np.concatenate([*squares, np.zeros(0)]))
    if not distances.any():
        return 1.0
    return float(np.median(distances)) or float(distances.mean())


def _with_fourier(lift: Lift, spec: LiftSpec, median: float, seed: int) -> Lift:
    """Join frequencies of the Gaussian kernel exp(-|x - y|² / 2σ²), σ = bandwidth × median."""
    shape = (len(lift.scale), spec.n_fourier)
    normal = np.random.default_rng([seed, _FREQUENCIES]).standard_normal(shape, np.float32)
    phases = np.random.default_rng([seed, _PHASES]).random(spec.n_fourier, np.float32)
    turns = np.float32(1 / (2 * np.pi * spec.bandwidth * median))
    return lift._replace(frequencies=normal * turns, phases=phases)
