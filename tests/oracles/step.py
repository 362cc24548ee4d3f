"""One step from the equations, in float64 and without padding."""

from dataclasses import dataclass

import numpy as np

from tests.oracles import draws, score


@dataclass
class Model:
    """``shared`` (d', m): W0 transposed, None without a shared space; ``labels`` (L + 1, K, m)."""

    shared: np.ndarray | None
    labels: np.ndarray


@dataclass
class Outcome:
    label: int
    against: int = -1
    tries: int = 0
    distinct: int = 0
    row: int = 0
    against_row: int = 0
    sub: int = 0
    against_sub: int = 0
    loss: float = 0.0


def onto_ball(vector, radius):
    norm = np.sqrt((vector**2).sum())
    return vector if norm <= radius else vector * (radius / norm)


def harmonic(n):
    return sum(1.0 / i for i in range(1, n + 1))


def step(rows, relevant, number, model, settings):
    """``rows`` (z, d'); changes ``model`` and says what happened."""
    rows = np.asarray(rows, np.float64)
    key = draws.step_key(settings.seed, number)
    dummy = len(model.labels) - 1
    label = draws.draw_label(key, relevant, dummy)
    n_against = dummy - len(relevant) + (label != dummy)
    outcome = Outcome(label)
    if n_against == 0:
        return outcome
    projected = score.project(rows, model.shared)
    value, outcome.row, outcome.sub = score.label_score(projected, model.labels[label])
    tried = set()
    for v in range(1, n_against + 1):
        against = draws.draw_against(key, v, relevant, n_against)
        other, row, sub = score.label_score(projected, model.labels[against])
        tried.add(against)
        outcome.tries, outcome.distinct = v, len(tried)
        if other > value - 1:
            outcome.against, outcome.against_row, outcome.against_sub = against, row, sub
            break
    else:
        return outcome

    weight = harmonic(n_against // outcome.tries)
    if not settings.by_rank:
        weight = 1.0
    weight *= settings.bag_weight
    outcome.loss = weight * (1 + other - value)
    if settings.bag_weight == 0:
        return outcome
    rate = settings.step_size / (1 + settings.decay * settings.step_size * number) * weight
    x, against_x = rows[outcome.row], rows[outcome.against_row]
    w = model.labels[label, outcome.sub].copy()
    against_w = model.labels[against, outcome.against_sub].copy()
    model.labels[label, outcome.sub] = onto_ball(
        w + rate * projected[outcome.row], settings.max_norm
    )
    model.labels[against, outcome.against_sub] = onto_ball(
        against_w - rate * projected[outcome.against_row], settings.max_norm
    )
    if model.shared is not None:
        model.shared -= rate * (np.outer(against_x, against_w) - np.outer(x, w))
        for feature in np.flatnonzero((x != 0) | (against_x != 0)):
            model.shared[feature] = onto_ball(model.shared[feature], settings.max_norm)
    return outcome
