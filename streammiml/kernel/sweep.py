"""Steps over the bags of a block, in a given order.

A sweep can end after any bag. Its whole state is in the weights, the averages and the tally, so a
run that was stopped anywhere resumes with the same bits. Threads that share weights sweep at the
same time, each with temporary arrays and a tally of its own.
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
    LiftedCsr,
    Scores,
    SparseBlock,
    Weights,
    lift_sparse,
    make_scores,
)
from streammiml.kernel.step import (
    Outcome,
    Room,
    Settings,
    make_room,
    most_projected,
    shrink,
    step_dense,
    step_in_slices,
    step_long_dense,
    step_long_sparse,
    step_sparse,
)
from streammiml.kernel.tile import F32, F64, I64, aligned_zeros


class Learner(NamedTuple):
    """Weights and averages, which training changes, with the settings and the lift."""

    weights: Weights
    averages: Averages
    settings: Settings
    lift: Lift


class SweepRoom(NamedTuple):
    """Temporary arrays of one thread: the lifted rows of a bag, and the room of a step."""

    dense: F32
    """(rows, d') as ``lifted_rows`` says; no rows if blocks are sparse."""
    sparse: LiftedCsr
    """Empty if blocks are dense."""
    step: Room


class Tally(NamedTuple):
    """Sums over the steps so far; every sweep adds its steps."""

    counts: I64
    """(4,) Steps, violations, tries, and distinct labels among the tries of each step."""
    loss: F64
    """(1,) Loss, summed over steps."""


NO_BAG_WEIGHTS: F64 = np.zeros(0)
"""Stands for weights of 1 of all bags."""


def make_tally() -> Tally:
    """Sums over no steps."""
    return Tally(np.zeros(4, np.int64), np.zeros(1))


def make_sweep_room(
    weights: Weights,
    lift: Lift,
    longest_bag: int,
    most_values: int | None = None,
    *,
    by_rank: bool = True,
) -> SweepRoom:
    """Room for bags of up to ``longest_bag`` rows and, when sparse, ``most_values`` non-zeros."""
    is_sparse = most_values is not None
    n_values = (most_values or 0) + longest_bag if is_sparse else 0
    n_dense = 0 if is_sparse else lifted_rows(weights, lift, longest_bag)
    return SweepRoom(
        aligned_zeros((n_dense, lift_width(lift))),
        LiftedCsr(
            np.zeros(longest_bag + 1 if is_sparse else 1, np.int64),
            np.zeros(n_values, np.int32),
            aligned_zeros(n_values),
            NOTHING_SHARED
            if most_values is None
            else make_context(lift, most_values, weights.shared.shape[1]),
        ),
        make_room(weights, longest_bag, by_rank=by_rank),
    )


def lifted_rows(weights: Weights, lift: Lift, longest_bag: int) -> int:
    """Dense rows that are lifted at a time, for bags of up to ``longest_bag`` rows.

    Without a context, bags that are too long for ``sweep_dense`` are lifted a panel at a time.
    """
    if lift.context:
        return longest_bag
    return min(longest_bag, most_projected(weights.labels.shape[2]))


@njit
def project_all(weights: Weights, max_norm: float) -> None:
    """Project every column of W0 and every label vector; done once, before the first step."""
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
    """Lift the rows of a bag; returns them and the labels of the bag."""
    start, stop = block.bag_offsets[bag], block.bag_offsets[bag + 1]
    rows = room.dense[: stop - start]
    lift_bag(lift, block.rows[start:stop], rows)
    return rows, block.labels[block.label_offsets[bag] : block.label_offsets[bag + 1]]


@inner
def _lifted_sparse(block: SparseBlock, bag: int, learner: Learner, room: SweepRoom) -> Any:
    """Lift the rows of a bag into ``room.sparse``; returns their number, and the bag's labels."""
    start, stop = block.bag_offsets[bag], block.bag_offsets[bag + 1]
    lift_sparse(block, start, stop, learner.lift, learner.weights.shared, room.sparse)
    return stop - start, block.labels[block.label_offsets[bag] : block.label_offsets[bag + 1]]


@inlined
def _settings_of_visit(settings: Settings, bag_weights: F64, visit: int) -> Settings:
    """Copy settings with the weight of the bag that is visited."""
    weight = bag_weights[visit] if bag_weights.shape[0] else 1.0
    return Settings(
        settings.seed, settings.step_size, settings.decay, settings.max_norm, settings.by_rank,
        weight,
    )  # fmt: skip


@njit
def sweep_dense(
    block: DenseBlock, visit: I64, first_step: int, learner: Learner, room: SweepRoom,
    tally: Tally, bag_weights: F64,
) -> Any:  # fmt: skip
    """Take a step on each bag of ``visit``, all short enough; returns the same as ``sweep``."""
    weights, averages = learner.weights, learner.averages
    for i in range(visit.shape[0]):
        rows, relevant = _lifted_dense(block, visit[i], learner.lift, room)
        step, settings = first_step + i, _settings_of_visit(learner.settings, bag_weights, i)
        outcome = step_dense(rows, relevant, step, weights, averages, settings, room.step)
        _add(tally, outcome)
        if not outcome.is_finite:
            return step
    return -1


@njit
def sweep_sparse(
    block: SparseBlock, visit: I64, first_step: int, learner: Learner, room: SweepRoom,
    tally: Tally, bag_weights: F64,
) -> Any:  # fmt: skip
    """Take a step on each bag of ``visit``, all short enough; returns the same as ``sweep``."""
    weights, averages = learner.weights, learner.averages
    for i in range(visit.shape[0]):
        n_rows, relevant = _lifted_sparse(block, visit[i], learner, room)
        step, settings = first_step + i, _settings_of_visit(learner.settings, bag_weights, i)
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
    """Take one step on a bag that is too long for ``sweep_dense``."""
    weights, averages, settings = learner.weights, learner.averages, learner.settings
    if not learner.lift.context:
        start, stop = block.bag_offsets[bag], block.bag_offsets[bag + 1]
        return step_in_slices(
            block.rows[start:stop],
            learner.lift,
            room.dense,
            block.labels[block.label_offsets[bag] : block.label_offsets[bag + 1]],
            step,
            weights,
            averages,
            settings,
            room.step,
            table,
        )
    rows, relevant = _lifted_dense(block, bag, learner.lift, room)
    return step_long_dense(rows, relevant, step, weights, averages, settings, room.step, table)


@njit
def visit_long_sparse(
    block: SparseBlock, bag: int, step: int, learner: Learner, room: SweepRoom, table: Scores
) -> Any:
    """Take one step on a bag that is too long for ``sweep_sparse``."""
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
    bag_weights: F64 = NO_BAG_WEIGHTS,
) -> int:
    """Take one step on each bag of ``visit``; steps are numbered from ``first_step``.

    ``bag_weights`` are the weights of the visited bags, in the order of ``visit``; none means 1.

    Returns -1, or the number of the step at which a score or weight stopped being a finite number;
    no step was taken after it.
    """
    is_sparse = isinstance(block, SparseBlock)
    run: Any = sweep_sparse if is_sparse else sweep_dense
    visit_long: Any = visit_long_sparse if is_sparse else visit_long_dense
    if not is_sparse:
        learner = learner._replace(lift=plainest(learner.lift))
    n_rows = block.bag_offsets[visit + 1] - block.bag_offsets[visit]
    start = 0
    # A step on a long bag takes so much time that the cost of a separate call does not matter.
    for place in np.flatnonzero(n_rows > room.step.panel.projected.shape[0]):
        part = slice(start, int(place))
        diverged = int(
            run(block, visit[part], first_step + start, learner, room, tally, bag_weights[part])
        )
        if diverged >= 0:
            return diverged
        step = first_step + int(place)
        table = make_scores(1, learner.weights.labels.shape[0])
        weight = float(bag_weights[place]) if len(bag_weights) else 1.0
        own = learner._replace(settings=learner.settings._replace(bag_weight=weight))
        outcome = visit_long(block, visit[place], step, own, room, table)
        _add(tally, outcome)
        if not outcome.is_finite:
            return step
        start = int(place) + 1
    rest = visit[start:], first_step + start, learner, room, tally, bag_weights[start:]
    return int(run(block, *rest))
