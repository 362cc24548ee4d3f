"""The weights that a round begins with, and how they reach workers.

A worker keeps the weights with which its last round began. For the next round it receives only the
vectors that have changed since. If it has not taken part in the round before, because it is new or
another worker was lost, it says so, and receives all weights: that costs time, never bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.keyed_cache import KeyedCache
from streammiml.kernel.score import Weights
from streammiml.kernel.tile import F32, I64, aligned_zeros

RUNS_KEPT = 2
"""Runs whose weights a process keeps. The driver of an older one may have been killed."""
MOST_CHANGED = 0.9
"""If the changed vectors take a larger share of the bytes of all weights, all weights are sent."""


@dataclass(frozen=True, slots=True)
class RoundStart:
    """The beginning of a round, the same for all replicas."""

    step: int
    n_steps: int
    has_means: bool
    """Whether the mean of the iterates has iterates of this round."""
    weights: Weights
    before: int = -1
    """Step at which the round before began; -1 if nobody knows what has changed since."""
    changed: Sequence[I64] = ()
    """Rows of the shared space and of the labels that may have changed since ``before``."""


@dataclass(frozen=True, slots=True)
class SentStart:
    """The beginning of a round as it is sent to workers: all weights, or what has changed."""

    step: int
    n_steps: int
    has_means: bool
    before: int
    changed: Sequence[I64]
    vectors: Sequence[F32]
    """Vectors of the changed rows; the whole tables if ``before`` is -1."""

    @classmethod
    def of(cls, start: RoundStart, *, whole: bool = False) -> SentStart:
        """What is sent of a beginning: all weights if ``whole``, or if most of them changed."""
        about = (start.step, start.n_steps, start.has_means)
        if not whole and start.before >= 0:
            pairs = [*zip(weight_tables(*start.weights), start.changed, strict=True)]
            n_bytes = sum(rows.nbytes + len(rows) * table[:1].nbytes for table, rows in pairs)
            if n_bytes <= MOST_CHANGED * weight_bytes(start.weights):
                vectors = [table[rows] for table, rows in pairs]
                return cls(*about, start.before, start.changed, vectors)
        return cls(*about, -1, (), start.weights)

    @property
    def nbytes(self) -> int:
        """Bytes that are sent."""
        rows = sum(array.nbytes for array in self.changed)
        return rows + sum(array.nbytes for array in self.vectors)


@dataclass(slots=True)
class _Kept:
    """Weights of a run with which a round began."""

    step: int = -1
    weights: Weights | None = None


class WeightCache:
    """The weights that a worker process keeps from one round to the next, by the key of the run."""

    def __init__(self) -> None:
        self._kept = KeyedCache(_Kept, RUNS_KEPT)

    def begin(self, key: str, sent: SentStart) -> RoundStart | None:
        """Return the beginning of a round; None if all weights must be sent.

        The weights are changed in place: the turns of the round before have ended, or nobody waits
        for their results.
        """
        with self._kept.using(key) as kept:
            if kept.step != sent.step:
                if sent.before < 0:
                    kept.weights = _copied(sent.vectors, kept.weights)
                elif kept.step == sent.before and kept.weights is not None:
                    for number, table in enumerate(weight_tables(*kept.weights)):
                        table[sent.changed[number]] = sent.vectors[number]
                else:
                    return None
                kept.step = sent.step
            assert kept.weights is not None
            return RoundStart(
                *(sent.step, sent.n_steps, sent.has_means, kept.weights),
                before=sent.before,
                changed=sent.changed,
            )

    def forget(self, key: str) -> None:
        """Forget the weights of a run."""
        self._kept.forget(key)


def weight_tables(shared: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Shared space and labels, or their means, as tables of vectors."""
    return shared, labels.reshape(-1, labels.shape[2])


def weight_bytes(weights: Weights) -> int:
    """Bytes of the weights that a round begins with."""
    return sum(table.nbytes for table in weights)


def _copied(tables: Sequence[F32], room: Weights | None) -> Weights:
    """Copy tables to addresses that kernels can use; they may arrive at any address."""
    if room is None or [table.shape for table in room] != [table.shape for table in tables]:
        room = Weights(*(aligned_zeros(table.shape) for table in tables))
    for mine, given in zip(room, tables, strict=True):
        np.copyto(mine, given)
    return room
