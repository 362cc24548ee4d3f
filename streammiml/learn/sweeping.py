"""Steps over a batch, by one kernel thread or by several that share the weights without locks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from streammiml.bags.block import BagBlock
from streammiml.blocks.team import Team
from streammiml.kernel.sweep import Learner, SweepRoom, Tally, make_sweep_room, make_tally, sweep
from streammiml.scoring import kernel_block


class Sweeper:
    """Sweeps with rooms of its own; a context that lets its threads go.

    One thread gives the same bits every time. With more, the visits are divided into stretches,
    each numbered beforehand; which update comes first is up to the machine.
    """

    def __init__(self, learner: Learner, n_threads: int) -> None:
        self._learner, self._team = learner, Team(n_threads)
        self._rooms: Sequence[SweepRoom | None] = [None] * n_threads

    def __enter__(self) -> Sweeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._team.close()

    def sweep(self, bags: BagBlock, start: int, stop: int, first_step: int, tally: Tally) -> int:
        """Visit bags ``start`` to ``stop``; -1, or a step at which training diverged."""
        block = kernel_block(bags)
        self._rooms = rooms = [_room_for(room, self._learner, bags) for room in self._rooms]
        if len(rooms) == 1:
            visit = np.arange(start, stop)
            return sweep(block, visit, first_step, self._learner, rooms[0], tally)
        tallies = [make_tally() for _ in rooms]
        parts = np.array_split(np.arange(start, stop), len(rooms))
        jobs = [
            partial(
                sweep,
                block,
                part,
                first_step + int(part[0]) - start if len(part) else 0,
                self._learner,
                room,
                own,
            )
            for part, room, own in zip(parts, rooms, tallies, strict=True)
        ]
        wrong = [step for step in self._team.run(jobs) if step >= 0]
        for own in tallies:
            tally.counts[:] += own.counts
            tally.loss[:] += own.loss
        return min(wrong, default=-1)


def _room_for(room: SweepRoom | None, learner: Learner, bags: BagBlock) -> SweepRoom:
    """Room for the longest bag of a block, made anew only when it grows."""
    longest = int(np.diff(bags.bag_offsets).max())
    rows = bags.rows
    if isinstance(rows, np.ndarray):
        if room is not None and len(room.dense) >= longest:
            return room
        return make_sweep_room(learner.weights, learner.lift, longest)
    most = int(np.diff(rows.offsets[bags.bag_offsets]).max())
    fits = room is not None and len(room.sparse.offsets) > longest
    if fits and room is not None and len(room.sparse.values) >= most + longest:
        return room
    return make_sweep_room(learner.weights, learner.lift, longest, most)
