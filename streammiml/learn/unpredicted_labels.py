"""A warning of labels that a model never predicts, not even for training bags that carry them.

A label whose vectors hardly learned anything scores below the dummy label in every bag. Ranking
metrics over many labels hardly show it.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from streammiml.kernel.lift import Lift
from streammiml.learn.bag_start import SampledBags, longest_sampled
from streammiml.learn.begin import Ready
from streammiml.model import Model
from streammiml.scorer import Scorer

MOST_BAGS = 4096
"""About the largest number of bags that are scored."""
LEAST_BAGS = 5
"""Labels that fewer of the scored bags carry are not judged."""
CHECK_BYTES = 64 << 20
"""Upper estimate of what reading and scoring hold, beside what training leaves behind."""
SCORES_AT_ONCE = 1 << 18
"""Most scores that are held at a time; each takes some 24 bytes."""
NAMED = 3
"""Most labels that the warning names."""
_LOG = logging.getLogger("streammiml")


def warn_of_unpredicted(ready: Ready, model: Model) -> None:
    """Log a warning if labels never score above the dummy in training bags that carry them.

    Nothing is checked if the run's memory limit leaves no room for it.
    """
    budget = ready.plan.budget
    if model.rule.name == "top-r" or budget.total + CHECK_BYTES > budget.allowed:
        return
    holdout, deadline = ready.plan.visits.holdout, ready.plan.budget.read.deadline
    lift, seed = Lift(*model.lift), ready.config.seed
    below = longest_sampled(ready.plan)
    bags = SampledBags(ready.store, holdout, lift, seed, model.shared_dim, deadline, below)
    labels = unpredicted_labels(bags, model)
    if not len(labels):
        return
    names = model.label_names
    shown = [repr(names[label]) if names else str(label) for label in labels[:NAMED].tolist()]
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    _LOG.warning(
        "%d of %d labels never score above the dummy label, not even in training bags that carry "
        "them: %s%s (more --epochs may help)",
        len(labels),
        model.n_labels,
        ", ".join(shown),
        more,
    )


def unpredicted_labels(bags: SampledBags, model: Model) -> NDArray[np.int64]:
    """Labels that enough of these bags carry, and that never score above the dummy in them."""
    scorer, n_left = Scorer(model), MOST_BAGS
    n_carried, n_above = np.zeros((2, model.n_labels), np.int64)
    n_at_once = max(1, SCORES_AT_ONCE // (model.n_labels + 1))
    for block, _ in bags:
        for start in range(0, len(block), n_at_once):
            some = block.slice(start, min(start + n_at_once, len(block)))
            scores = scorer.scores(some).value
            bag_of = np.repeat(np.arange(len(some)), np.diff(some.label_offsets))
            labels = some.label_indices
            is_above = scores[bag_of, labels] > scores[bag_of, -1]
            n_carried += np.bincount(labels, minlength=model.n_labels)
            n_above += np.bincount(labels[is_above], minlength=model.n_labels)
        n_left -= len(block)
        if n_left <= 0:
            break
    return np.flatnonzero((n_carried >= LEAST_BAGS) & (n_above == 0))
