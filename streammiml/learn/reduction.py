"""The reduction of a round: sums over the changes of all replicas, in their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.kernel.reduce import (
    ChangeSums,
    add_change,
    add_sums,
    apply_sums,
    clear_sums,
    make_sums,
)
from streammiml.learn.checkpoint import TrainState
from streammiml.learn.replica import NoWeights, ReplicaJob, TurnResult, known_start
from streammiml.learn.round_weights import RoundStart, SentStart, weight_tables

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
    """Results of consecutive replicas."""

    sums: list[PackedSums] | None
    """Sums of their changes to the shared space and to the labels; None if ``turns`` have the
    changes."""
    turns: list[TurnResult]
    moved: int
    """Bytes of the changes."""
    seconds: float
    """Seconds of summing."""

    @classmethod
    def of(cls, turns: list[TurnResult]) -> GroupResult:
        """Results whose changes are not summed yet."""
        return cls(None, turns, sum(turn.n_bytes_of_changes for turn in turns), 0.0)


def sum_group(
    results: Sequence[TurnResult | NoWeights], start: SentStart, job: ReplicaJob
) -> GroupResult | NoWeights:
    """Sum the changes of consecutive replicas, as a task on a worker."""
    begun = time.monotonic()
    known = known_start(start, job)
    turns = [result for result in results if isinstance(result, TurnResult)]
    if known is None or len(turns) < len(results):
        return NoWeights(results[0].at)
    packed = []
    for number, table in enumerate(weight_tables(*known.weights)):
        sums = make_sums(table.shape, has_means=start.has_means)
        _add_turns(sums, table, turns, number)
        packed.append(_pack(sums))
    return GroupResult(
        packed,
        [turn.without_changes() for turn in turns],
        sum(turn.n_bytes_of_changes for turn in turns),
        time.monotonic() - begun,
    )


def _add_turns(
    sums: ChangeSums, table: NDArray[Any], turns: Sequence[TurnResult], number: int
) -> None:
    for turn in turns:
        add_change(sums, table, (turn.shared, turn.labels)[number])


def _pack(sums: ChangeSums) -> PackedSums:
    rows = np.flatnonzero(sums.counts)
    if len(rows) == len(sums.counts):
        return PackedSums(rows, sums)
    means = sums.means[rows] if len(sums.means) else sums.means
    some = ChangeSums(sums.total[rows], sums.squares[rows], means, sums.counts[rows])
    return PackedSums(rows, some)


class Reduction:
    """Adds the changes of all replicas, in their order, and changes the weights.

    Its memory serves one round after the other: a short round of sparse rows changes few vectors.
    """

    def __init__(self) -> None:
        self._room: dict[bool, list[ChangeSums]] = {}
        self._begun = False

    def begin(self, start: RoundStart) -> None:
        """Begin a round."""
        self._tables, self._has_means = weight_tables(*start.weights), start.has_means
        for sums in self._room.get(False, []):
            clear_sums(sums)
        self._total = self._sums(False)
        self._begun = False

    def _sums(self, is_later: bool) -> list[ChangeSums]:
        """Sums over no replicas: the total, or those of a later group."""
        room = self._room.get(is_later)
        if room is None or (self._has_means and any(len(sums.means) == 0 for sums in room)):
            room = [make_sums(table.shape, has_means=self._has_means) for table in self._tables]
            self._room[is_later] = room
        return [sums if self._has_means else sums._replace(means=sums.means[:0]) for sums in room]

    def add(self, group: GroupResult) -> None:
        """Add the changes of the next group of replicas."""
        sums = self._sums(self._begun)
        for number, (part, table) in enumerate(zip(sums, self._tables, strict=True)):
            if group.sums is None:
                _add_turns(part, table, group.turns, number)
            else:
                rows, some = group.sums[number]
                for room, values in zip(part, some, strict=True):
                    if len(room):
                        room[rows] = values
            if self._begun:
                add_sums(self._total[number], part)
                clear_sums(part)
        self._begun = True

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

    def changed_rows(self) -> list[NDArray[np.int64]]:
        """Rows of the shared space and of the labels that some replica changed."""
        return [np.flatnonzero(sums.counts) for sums in self._total]
