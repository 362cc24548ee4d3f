"""The reduction of a round: sums over the changes of all replicas, in their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.kernel.reduce import ChangeSums, add_change, add_sums, apply_sums, make_sums
from streammiml.learn.checkpoint import TrainState
from streammiml.learn.replica import RoundStart, TurnResult

FAN_IN = 8
"""Replicas whose changes are summed first; then the sums of these groups are added in order."""


class PackedSums(NamedTuple):
    """Sums over the changes of some replicas, without the vectors that none of them changed."""

    rows: NDArray[np.int64]
    """(n,) Rows of the table, ascending."""
    sums: ChangeSums
    """Sums with n rows."""

    @property
    def nbytes(self) -> int:
        """Bytes that are sent."""
        return self.rows.nbytes + sum(array.nbytes for array in self.sums)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The changes of consecutive replicas, summed."""

    sums: list[PackedSums]
    """Of the shared space and of the labels."""
    turns: list[TurnResult]
    """Results of the replicas, without their changes."""
    moved: int
    """Bytes of the changes."""
    seconds: float
    """Seconds of summing."""


def sum_group(results: Sequence[TurnResult], start: RoundStart, *_: object) -> GroupResult:
    """Sum the changes of consecutive replicas; also runs as a task on a worker."""
    begun = time.monotonic()
    packed = []
    for number, table in enumerate(weight_tables(*start.weights)):
        sums = make_sums(table.shape, has_means=start.has_means)
        for result in results:
            add_change(sums, table, (result.shared, result.labels)[number])
        packed.append(_pack(sums))
    return GroupResult(
        packed,
        [result.without_changes() for result in results],
        sum(result.n_bytes_of_changes for result in results),
        time.monotonic() - begun,
    )


def weight_tables(shared: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Shared space and labels, or their means, as tables of vectors."""
    return shared, labels.reshape(-1, labels.shape[2])


def _pack(sums: ChangeSums) -> PackedSums:
    rows = np.flatnonzero(sums.counts)
    if len(rows) == len(sums.counts):
        return PackedSums(rows, sums)
    means = sums.means[rows] if len(sums.means) else sums.means
    some = ChangeSums(sums.total[rows], sums.squares[rows], means, sums.counts[rows])
    return PackedSums(rows, some)


def _unpack(packed: PackedSums, shape: tuple[int, int], *, has_means: bool) -> ChangeSums:
    rows, some = packed
    # Arrays that come from another process may be read-only; the kernels are not compiled for them.
    if len(rows) == shape[0] and all(array.flags.behaved for array in some):
        return some
    sums = make_sums(shape, has_means=has_means)
    for full, part in zip(sums, some, strict=True):
        if len(full):
            full[rows] = part
    return sums


class Reduction:
    """Adds the sums of groups of replicas, in the order of the replicas."""

    def __init__(self, start: RoundStart) -> None:
        self._shapes: list[Any] = [table.shape for table in weight_tables(*start.weights)]
        self._has_means = start.has_means
        self._total: list[ChangeSums] = []

    def add(self, group: GroupResult) -> None:
        """Add the sums of the next group."""
        sums = [
            _unpack(packed, shape, has_means=self._has_means)
            for packed, shape in zip(group.sums, self._shapes, strict=True)
        ]
        if not self._total:
            self._total = sums
            return
        for total, later in zip(self._total, sums, strict=True):
            add_sums(total, later)

    def apply(
        self, state: TrainState, n_replicas: int, iterates: tuple[int, int], max_norm: float
    ) -> bool:
        """Change weights and means to those after the round; True if all are finite."""
        averages = state.averages
        tables = weight_tables(*state.weights)
        means = weight_tables(averages.shared, averages.labels)
        seen = (averages.shared_seen, averages.labels_seen.reshape(-1))
        is_finite = True
        for sums, table, mean, saw in zip(self._total, tables, means, seen, strict=True):
            is_finite &= bool(apply_sums(sums, table, mean, saw, n_replicas, *iterates, max_norm))
        return is_finite
