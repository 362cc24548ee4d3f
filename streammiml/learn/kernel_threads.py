"""Steps over a batch, by one kernel thread or by several that share the weights without locks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.blocks.team import Team
from streammiml.config import TrainConfig
from streammiml.kernel.step import Settings
from streammiml.kernel.sweep import (
    NO_BAG_WEIGHTS,
    Learner,
    SweepRoom,
    Tally,
    lifted_rows,
    make_sweep_room,
    make_tally,
    sweep,
)
from streammiml.scorer import kernel_block

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def step_settings(config: TrainConfig) -> Settings:
    """Return the settings that the kernel needs in each step."""
    by_rank = config.loss == "warp"
    return Settings(config.seed, config.step_size, config.decay, config.max_norm, by_rank)


class Sweeper:
    """Runs the kernel on batches; a context manager that ends its threads.

    One thread gives the same bits every time. Several threads divide the visits into stretches
    whose step numbers are fixed beforehand, but the order of their updates varies.
    """

    def __init__(self, learner: Learner, n_threads: int) -> None:
        self._learner, self._team = learner, Team(n_threads)
        self._rooms: Sequence[SweepRoom | None] = [None] * n_threads

    def __enter__(self) -> Sweeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._team.close()

    def sweep(
        self,
        bags: BagBlock,
        visit: I64,
        first_step: int,
        tally: Tally,
        bag_weights: F64 = NO_BAG_WEIGHTS,
    ) -> int:
        """Visit these bags in this order; return -1, or a step at which training diverged.

        ``bag_weights`` are the weights of the visited bags; none means 1.
        """
        block, longest = kernel_block(bags), _longest(bags, visit)
        self._rooms = rooms = [_room_for(room, self._learner, *longest) for room in self._rooms]
        if len(rooms) == 1:
            return sweep(block, visit, first_step, self._learner, rooms[0], tally, bag_weights)
        tallies = [make_tally() for _ in rooms]
        starts = np.linspace(0, len(visit), len(rooms) + 1).astype(np.int64).tolist()
        jobs = [
            partial(
                sweep,
                block,
                visit[start:stop],
                first_step + start,
                self._learner,
                room,
                thread_tally,
                bag_weights[start:stop],
            )
            for (start, stop), room, thread_tally in zip(
                pairwise(starts), rooms, tallies, strict=True
            )
        ]
        diverged_steps = [step for step in self._team.run(jobs) if step >= 0]
        for thread_tally in tallies:
            tally.counts[:] += thread_tally.counts
            tally.loss[:] += thread_tally.loss
        return min(diverged_steps, default=-1)


def _longest(bags: BagBlock, visit: I64) -> tuple[int, int | None]:
    """Most rows of a visited bag and most stored values, which is None for dense rows."""
    starts, stops = bags.bag_offsets[visit], bags.bag_offsets[visit + 1]
    n_rows, rows = int((stops - starts).max()), bags.rows
    if isinstance(rows, np.ndarray):
        return n_rows, None
    return n_rows, int((rows.offsets[stops] - rows.offsets[starts]).max())


def _room_for(
    room: SweepRoom | None, learner: Learner, n_rows: int, n_values: int | None
) -> SweepRoom:
    """Return scratch memory for the longest bag: ``room`` if it is large enough."""
    if n_values is None:
        n_lifted = lifted_rows(learner.weights, learner.lift, n_rows)
        fits = room is not None and len(room.dense) >= n_lifted
    else:
        fits = room is not None and len(room.sparse.offsets) > n_rows
        fits = fits and room is not None and len(room.sparse.values) >= n_values + n_rows
    if fits and room is not None:
        return room
    by_rank = learner.settings.by_rank
    return make_sweep_room(learner.weights, learner.lift, n_rows, n_values, by_rank=by_rank)
