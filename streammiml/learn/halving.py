"""Successive halving: which settings are tried on which folds, and for how many steps.

Rungs follow each other, and after each rung the worse settings are dropped. The first rungs train
on one fold for a share of the steps, the next rung trains on that fold for all steps, and the last
rung trains on the other folds. How long the first rungs are depends on the training:

- Trainings that stop early end long before their last step, so the first rungs are short. With
  three folds, and if 30 % of the steps are taken, the search costs a fifth of the full grid.
- Trainings that take all their steps get longer first rungs, and more settings survive; the search
  costs about as much.
- Settings that learn at different speeds are dropped only after all steps on the first fold; the
  search costs more than half of the full grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAST = 2
"""Lower limit for the settings that survive a rung."""


class Pace(NamedTuple):
    """How soon settings are dropped."""

    kept: float
    """Share of the settings that survives a rung."""
    looks: tuple[float, ...]
    """Shares of the steps that the first rungs train for."""


STOPPING_EARLY = Pace(1 / 3, (1 / 25, 1 / 8))
ALL_STEPS = Pace(0.4, (1 / 10, 1 / 4))
NO_LOOKS = Pace(1 / 3, ())


class Trial(NamedTuple):
    """One training: number of the setting, fold to measure on, and upper limit for the steps."""

    setting: int
    fold: int
    steps: int


class Rung(NamedTuple):
    """Folds and steps on which all surviving settings are tried."""

    folds: tuple[int, ...]
    steps: int

    def trials(self, settings: Sequence[int]) -> list[Trial]:
        """List the trials of these settings; all folds of one setting come before the next."""
        return [Trial(setting, fold, self.steps) for setting in settings for fold in self.folds]


def rungs(n_settings: int, k: int, steps: int, pace: Pace, *, halving: bool) -> list[Rung]:
    """List the rungs in order; a setting that survives all rungs has trained on all folds."""
    if not halving or n_settings <= LEAST:
        return [Rung(tuple(range(k)), steps)]
    looks = [Rung((0,), max(1, math.ceil(steps * share))) for share in pace.looks]
    return [*looks, Rung((0,), steps), Rung(tuple(range(1, k)), steps)]


def survivors(settings: Sequence[int], losses: Sequence[float], pace: Pace) -> list[int]:
    """Keep the settings with the lowest losses, sorted by number; ties go to the lower number."""
    count = max(LEAST, math.ceil(len(settings) * pace.kept))
    best = sorted(zip(losses, settings, strict=True))[:count]
    return sorted(setting for _, setting in best)
