"""Sweeps one step at a time, and the mean of iterates by keeping all of them."""

import numpy as np

from tests.oracles import step


def weight_of(iterate, power):
    """Of iterate number ``iterate`` ≥ 1: iterate · (iterate + 1) · … , ``power`` factors."""
    return float(np.prod(np.arange(iterate, iterate + power, dtype=np.float64)))


def mean_of(iterates, power):
    weights = [weight_of(i, power) for i in range(1, len(iterates) + 1)]
    return sum(w * iterate for w, iterate in zip(weights, iterates, strict=True)) / sum(weights)


def sweep(bags, relevant, visit, first_step, model, settings, stride=0, bag_weights=None):
    """Outcomes of all steps, and the iterates before each step whose number ``stride`` divides."""
    outcomes, iterates = [], []
    for number, bag in enumerate(visit, first_step):
        if stride and number and number % stride == 0:
            iterates.append((model.shared.copy(), model.labels.copy()))
        if bag_weights is not None:
            settings = settings._replace(bag_weight=bag_weights[number - first_step])
        outcomes.append(step.step(bags[bag], relevant[bag], number, model, settings))
    return outcomes, iterates
