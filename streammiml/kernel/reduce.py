"""The reduction at the end of a round: the changes of all replicas become the next weights.

Every replica begins a round with the same weights v and ends it with its own. With Δ_r the change
of one vector by replica r, and S the sum of the changes, the next vector is the projection of
v + κ S, where

    κ = Σ |Δ_r|² / |S|², at least 1 / R and at most 1.

Replicas that moved a vector in different directions learned different things: κ is near 1, and
their changes are added. Replicas that moved it the same way learned the same thing: κ is near
1 / R, and their changes are averaged. A vector that one replica alone touched takes its change.

Sums are in float64 and in the order of the replicas. The functions are compiled with ``exact``, so
that the bits of a run do not depend on the machine that reduces.

Means of iterates are linear: each replica sends the mean of its iterates in the round, and the mean
of these is the round's share in the mean of the run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammiml.kernel import exact
from streammiml.kernel.average import POWER
from streammiml.kernel.tile import F32, F64, I64, aligned_zeros


class Change(NamedTuple):
    """Vectors of a table (N, width) that a replica changed in a round."""

    rows: I64
    """(n,) Their rows in the table, ascending."""
    vectors: F32
    """(n, width) Their values at the end of the round."""
    means: F32
    """(n, width) Weighted means of their iterates in the round; no rows if there were none."""

    @property
    def nbytes(self) -> int:
        """Bytes that are sent."""
        return self.rows.nbytes + self.vectors.nbytes + self.means.nbytes


class ChangeSums(NamedTuple):
    """Sums over the changes of several replicas, for a table of vectors."""

    total: F64
    """(N, width) Sum of the changes."""
    squares: F64
    """(N,) Sum of the squared norms of the changes."""
    means: F64
    """(N, width) Sum of the means of iterates; no rows if there were none."""
    counts: I64
    """(N,) Number of replicas that changed each vector."""


def make_sums(shape: tuple[int, int], *, has_means: bool) -> ChangeSums:
    """Sums over no replicas."""
    n, width = shape
    return ChangeSums(
        aligned_zeros((n, width), np.float64),
        np.zeros(n),
        aligned_zeros((n if has_means else 0, width), np.float64),
        np.zeros(n, np.int64),
    )


@exact
def _weight_until(n: int) -> float:
    """Weight of the first ``n`` iterates; the same as ``weight_until`` in ``kernel/average.py``."""
    weight = 1.0
    for i in range(POWER + 1):
        weight *= n + i
    return weight


def find_changes(
    before: F32, after: F32, means: F64, seen: I64, iterates: tuple[int, int]
) -> Change:
    """Collect the vectors that differ from ``before``; all tables have the shape (N, width).

    ``iterates`` are the numbers of iterates at the beginning and at the end of the round. The means
    began the round with zeros, and with all the first iterates seen.
    """
    rows = _changed_rows(before, after, seen, iterates[0])
    has_means = len(seen) > 0 and iterates[1] > iterates[0]
    vectors = np.empty((len(rows), after.shape[1]), np.float32)
    round_means = np.empty((len(rows) if has_means else 0, after.shape[1]), np.float32)
    _collect(after, means, seen, rows, *iterates, vectors, round_means)
    return Change(rows, vectors, round_means)


@exact
def _changed_rows(before: F32, after: F32, seen: I64, n_iterates: int) -> I64:
    """Rows that differ, or whose means were brought up to date."""
    is_changed = np.zeros(before.shape[0], np.bool_)
    for i in range(before.shape[0]):
        changed = seen.shape[0] > 0 and seen[i] > n_iterates
        for j in range(before.shape[1]):
            if before[i, j] != after[i, j]:
                changed = True
                break
        is_changed[i] = changed
    return np.flatnonzero(is_changed)


@exact
def _collect(
    after: F32,
    means: F64,
    seen: I64,
    rows: I64,
    first: int,
    last: int,
    vectors: F32,
    round_means: F32,
) -> None:
    total = _weight_until(last)
    share = 1.0
    if round_means.shape[0]:
        share -= _weight_until(first) / total
    for i in range(rows.shape[0]):
        row = rows[i]
        vectors[i] = after[row]
        if round_means.shape[0]:
            kept = _weight_until(seen[row]) / total
            for j in range(after.shape[1]):
                value = np.float64(after[row, j])
                round_means[i, j] = np.float32((value + (means[row, j] - value) * kept) / share)


@exact
def add_change(sums: ChangeSums, before: F32, change: Change) -> None:
    """Add the changes of one replica; ``before`` (N, width) began the round."""
    for i in range(change.rows.shape[0]):
        row = change.rows[i]
        squared = 0.0
        for j in range(before.shape[1]):
            moved = np.float64(change.vectors[i, j]) - np.float64(before[row, j])
            sums.total[row, j] += moved
            squared += moved * moved
        sums.squares[row] += squared
        sums.counts[row] += 1
        if change.means.shape[0]:
            for j in range(before.shape[1]):
                sums.means[row, j] += np.float64(change.means[i, j])


@exact
def add_sums(sums: ChangeSums, later: ChangeSums) -> None:
    """Add the sums of the replicas that follow."""
    for row in range(sums.counts.shape[0]):
        if later.counts[row] == 0:
            continue
        sums.squares[row] += later.squares[row]
        sums.counts[row] += later.counts[row]
        for j in range(sums.total.shape[1]):
            sums.total[row, j] += later.total[row, j]
            if sums.means.shape[0]:
                sums.means[row, j] += later.means[row, j]


@exact
def clear_sums(sums: ChangeSums) -> None:
    """Make the sums those over no replicas."""
    for row in range(sums.counts.shape[0]):
        if sums.counts[row] == 0:
            continue
        sums.squares[row] = 0.0
        sums.counts[row] = 0
        for j in range(sums.total.shape[1]):
            sums.total[row, j] = 0.0
            if sums.means.shape[0]:
                sums.means[row, j] = 0.0


@exact
def apply_sums(
    sums: ChangeSums,
    vectors: F32,
    means: F64,
    seen: I64,
    n_replicas: int,
    first: int,
    last: int,
    max_norm: float,
) -> bool:
    """Change ``vectors`` (N, width) and their means to those after the round; True if all finite.

    ``first`` and ``last`` are the numbers of iterates at the beginning and at the end of the round.
    """
    width = vectors.shape[1]
    total = _weight_until(last)
    finite = True
    for row in range(vectors.shape[0]):
        if sums.counts[row] == 0:
            continue
        if seen.shape[0] > 0 and last > 0:
            kept_before = 0.0
            if first > 0:
                kept_before = _weight_until(seen[row]) / _weight_until(first)
            kept = _weight_until(first) / total
            others = n_replicas - sums.counts[row]
            for j in range(width):
                value = np.float64(vectors[row, j])
                mean = value + (means[row, j] - value) * kept_before
                if sums.means.shape[0]:
                    round_mean = (sums.means[row, j] + others * value) / n_replicas
                    mean = round_mean + (mean - round_mean) * kept
                means[row, j] = mean
            seen[row] = last
        norm = 0.0
        for j in range(width):
            norm += sums.total[row, j] * sums.total[row, j]
        factor = 1.0
        if norm > 0.0:
            factor = min(1.0, max(1.0 / n_replicas, sums.squares[row] / norm))
        norm = 0.0
        for j in range(width):
            sums.total[row, j] = np.float64(vectors[row, j]) + factor * sums.total[row, j]
            norm += sums.total[row, j] * sums.total[row, j]
        finite &= bool(np.isfinite(norm))
        shrink_by = 1.0
        if norm > max_norm * max_norm:
            shrink_by = max_norm / np.sqrt(norm)
        for j in range(width):
            vectors[row, j] = np.float32(sums.total[row, j] * shrink_by)
    return finite
