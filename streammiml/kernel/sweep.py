"""Steps over the bags of a block, in a given order.

A sweep can end after any bag: everything it carries is in the weights, the averages and the tally,
so a run cut anywhere goes on to the same bits. Threads that share weights call it at the same time
with rooms and tallies of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streammiml.kernel import inlined, inner, njit
from streammiml.kernel.average import Averages
from streammiml.kernel.lift import (
    NOTHING_SHARED,
    Lift,
    PlainLift,
    lift_bag,
    lift_width,
    make_context,
    plainest,
)
from streammiml.kernel.score import (
    DenseBlock,
    Scores,
    SparseBlock,
    SparseRows,
    Weights,
    lift_sparse,
    make_scores,
)
from streammiml.kernel.step import (
    Outcome,
    Room,
    Settings,
    make_room,
    shrink,
    step_dense,
    step_long_dense,
    step_long_sparse,
    step_sparse,
)
from streammiml.kernel.tile import F32, F64, I64, aligned_zeros


class Learner(NamedTuple):
    """What training changes, and how."""

    weights: Weights
    averages: Averages
    settings: Settings
    lift: Lift


class SweepRoom(NamedTuple):
    """One thread's room: lifted rows of a bag, dense or sparse, and that of the step."""

    dense: F32
    """(longest bag, d'); no rows for sparse blocks."""
    sparse: SparseRows
    """Empty for dense blocks."""
    step: Room


class Tally(NamedTuple):
    """What happened so far; added to by every sweep it is given to."""

    counts: I64
    """(4,): steps, violations, tries, distinct labels among the tries of each step."""
    loss: F64
    """(1,): sum over steps."""


def make_tally() -> Tally:
    """Nothing has happened yet."""
    return Tally(np.zeros(4, np.int64), np.zeros(1))


def make_sweep_room(
    weights: Weights, lift: Lift, longest_bag: int, most_values: int | None = None
) -> SweepRoom:
    """Room for bags of up to ``longest_bag`` rows and, when sparse, ``most_values`` non-zeros."""
    is_sparse = most_values is not None
    n_values = (most_values or 0) + longest_bag if is_sparse else 0
    return SweepRoom(
        aligned_zeros((0 if is_sparse else longest_bag, lift_width(lift))),
        SparseRows(
            np.zeros(longest_bag + 1 if is_sparse else 1, np.int64),
            np.zeros(n_values, np.int32),
            aligned_zeros(n_values),
            NOTHING_SHARED
            if most_values is None
            else make_context(lift, most_values, weights.shared.shape[1]),
        ),
        make_room(weights, longest_bag),
    )


@njit
def project_all(weights: Weights, max_norm: float) -> None:
    """Project every column of W0 and every w, once before the first step."""
    for j in range(weights.shared.shape[0]):
        shrink(weights.shared[j], max_norm)
    for label in range(weights.labels.shape[0]):
        for k in range(weights.labels.shape[1]):
            shrink(weights.labels[label, k], max_norm)


@inlined
def _add(tally: Tally, outcome: Outcome) -> None:
    tally.counts[0] += 1
    tally.counts[1] += outcome.against >= 0
    tally.counts[2] += outcome.tries
    tally.counts[3] += outcome.distinct
    tally.loss[0] += outcome.loss


@inlined
def _lifted_dense(block: DenseBlock, bag: int, lift: Lift | PlainLift, room: SweepRoom) -> Any:
    """Lifted rows of a bag, and its labels."""
    start, stop = block.bag_offsets[bag], block.bag_offsets[bag + 1]
    rows = room.dense[: stop - start]
    lift_bag(lift, block.rows[start:stop], rows)
    return rows, block.labels[block.label_offsets[bag] : block.label_offsets[bag + 1]]


@inner
def _lifted_sparse(block: SparseBlock, bag: int, learner: Learner, room: SweepRoom) -> Any:
    """Count of rows of a bag, lifted into ``room.sparse``, and its labels."""
    start, stop = block.bag_offsets[bag], block.bag_offsets[bag + 1]
    lift_sparse(block, start, stop, learner.lift, learner.weights.shared, room.sparse)
    return stop - start, block.labels[block.label_offsets[bag] : block.label_offsets[bag + 1]]


@njit
def sweep_dense(
    block: DenseBlock, visit: I64, first_step: int, learner: Learner, room: SweepRoom, tally: Tally
) -> Any:
    """Bags ``visit`` of the block, none of them long; the step that diverged, or -1."""
    weights, averages, settings = learner.weights, learner.averages, learner.settings
    for i in range(visit.shape[0]):
        rows, relevant = _lifted_dense(block, visit[i], learner.lift, room)
        step = first_step + i
        outcome = step_dense(rows, relevant, step, weights, averages, settings, room.step)
        _add(tally, outcome)
        if not outcome.is_finite:
            return step
    return -1


@njit
def sweep_sparse(
    block: SparseBlock, visit: I64, first_step: int, learner: Learner, room: SweepRoom, tally: Tally
) -> Any:
    """Bags ``visit`` of the block, none of them long; the step that diverged, or -1."""
    weights, averages, settings = learner.weights, learner.averages, learner.settings
    for i in range(visit.shape[0]):
        n_rows, relevant = _lifted_sparse(block, visit[i], learner, room)
        step = first_step + i
        outcome = step_sparse(
            room.sparse, n_rows, relevant, step, weights, averages, settings, room.step
        )
        _add(tally, outcome)
        if not outcome.is_finite:
            return step
    return -1


@njit
def visit_long_dense(
    block: DenseBlock, bag: int, step: int, learner: Learner, room: SweepRoom, table: Scores
) -> Any:
    """One step on a bag too long for ``sweep_dense``."""
    weights, averages, settings = learner.weights, learner.averages, learner.settings
    rows, relevant = _lifted_dense(block, bag, learner.lift, room)
    return step_long_dense(rows, relevant, step, weights, averages, settings, room.step, table)


@njit
def visit_long_sparse(
    block: SparseBlock, bag: int, step: int, learner: Learner, room: SweepRoom, table: Scores
) -> Any:
    """One step on a bag too long for ``sweep_sparse``."""
    weights, averages, settings = learner.weights, learner.averages, learner.settings
    n_rows, relevant = _lifted_sparse(block, bag, learner, room)
    return step_long_sparse(
        room.sparse, n_rows, relevant, step, weights, averages, settings, room.step, table
    )


def sweep(
    block: DenseBlock | SparseBlock,
    visit: I64,
    first_step: int,
    learner: Learner,
    room: SweepRoom,
    tally: Tally,
) -> int:
    """One step for each bag in ``visit``, numbered from ``first_step``.

    Returns -1, or the step at which a score or weight stopped being a finite number; nothing was
    done after it.
    """
    is_sparse = isinstance(block, SparseBlock)
    run: Any = sweep_sparse if is_sparse else sweep_dense
    visit_long: Any = visit_long_sparse if is_sparse else visit_long_dense
    if not is_sparse:
        learner = learner._replace(lift=plainest(learner.lift))
    n_rows = block.bag_offsets[visit + 1] - block.bag_offsets[visit]
    start = 0
    # A long bag takes so long that a call of its own does not show.
    for place in np.flatnonzero(n_rows > room.step.panel.projected.shape[0]):
        stuck = int(run(block, visit[start:place], first_step + start, learner, room, tally))
        if stuck >= 0:
            return stuck
        step = first_step + int(place)
        table = make_scores(1, learner.weights.labels.shape[0])
        outcome = visit_long(block, visit[place], step, learner, room, table)
        _add(tally, outcome)
        if not outcome.is_finite:
            return step
        start = int(place) + 1
    return int(run(block, visit[start:], first_step + start, learner, room, tally))
