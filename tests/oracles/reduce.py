"""The reduction of a round from its definition, in float64: one vector at a time."""

import numpy as np

from tests.oracles.step import onto_ball


def weight(first, last, power=7):
    """Weight of iterates ``first`` + 1 to ``last`` together: iterate i weighs i (i + 1) …."""
    return sum(
        float(np.prod([iterate + j for j in range(power)]))
        for iterate in range(first + 1, last + 1)
    )


def next_vector(before, after, max_norm):
    """The vector after the round; ``after`` has its value in each replica, ``before`` if none."""
    before = before.astype(np.float64)
    changes = [vector.astype(np.float64) - before for vector in after]
    total = sum(changes)
    factor, norm = 1.0, total @ total
    if norm:
        squares = sum(change @ change for change in changes)
        factor = min(1.0, max(1 / len(after), squares / norm))
    return onto_ball(before + factor * total, max_norm)


def next_mean(mean, round_means, first, last):
    """The mean of all iterates, from that of the first ones and those of the round's replicas."""
    earlier, later = weight(0, first), weight(first, last)
    return (earlier * mean + later * np.mean(np.array(round_means, float), axis=0)) / (
        earlier + later
    )
