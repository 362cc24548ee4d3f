"""Which settings are tried on which folds for how many steps: successive halving.

A first look takes one fold and few steps; the better part goes on to more of them, the better part
of those to all the steps on that fold, and the better part again to the other folds. Trainings that
stop early do so long before the steps that they may take, so their first looks are short: with
three folds, and 30 % of the steps taken, this comes to a fifth of the full grid. Of those that take
all their steps, longer looks and more settings come to as much. Where settings differ in how fast
they learn, none is left behind before it has seen the first fold at all the steps: over half of the
full grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAST = 2
"""Settings that are left to the last rung at least, if there are as many."""


class Pace(NamedTuple):
    """How soon settings are left behind."""

    kept: float
    """Share of the settings that goes on after each rung."""
    looks: tuple[float, ...]
    """Shares of the steps that the first rungs take."""


STOPPING_EARLY = Pace(1 / 3, (1 / 25, 1 / 8))
ALL_STEPS = Pace(0.4, (1 / 10, 1 / 4))
NO_LOOKS = Pace(1 / 3, ())


class Trial(NamedTuple):
    """A setting by its number, a fold, and steps at most."""

    setting: int
    fold: int
    steps: int


class Rung(NamedTuple):
    """Folds that the settings still in the race are tried on, and for how many steps."""

    folds: tuple[int, ...]
    steps: int

    def trials(self, settings: Sequence[int]) -> list[Trial]:
        """Folds vary fastest, so that the first settings are done first."""
        return [Trial(each, fold, self.steps) for each in settings for fold in self.folds]


def rungs(n_settings: int, k: int, steps: int, pace: Pace, *, halving: bool) -> list[Rung]:
    """The rungs, in order; the last ones together have every fold at all the steps."""
    if not halving or n_settings <= LEAST:
        return [Rung(tuple(range(k)), steps)]
    looks = [Rung((0,), max(1, math.ceil(steps * share))) for share in pace.looks]
    return [*looks, Rung((0,), steps), Rung(tuple(range(1, k)), steps)]


def survivors(settings: Sequence[int], losses: Sequence[float], pace: Pace) -> list[int]:
    """The better ones, of equal losses the lowest numbers, in the order of their numbers."""
    count = max(LEAST, math.ceil(len(settings) * pace.kept))
    best = sorted(zip(losses, settings, strict=True))[:count]
    return sorted(setting for _, setting in best)
