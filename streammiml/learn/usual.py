"""What options come to that were left open, given how many bags there are to learn from.

Early stopping pays where many bags can be held out. Few of them say little of when to stop, and are
missed in training. So of few bags none is held out, and how long to train is found by cross
validation: some runs, each without one fold of the bags, are looked at on that fold, and the run on
all bags is as long as had the lowest loss over all of them.

Measured on splits into two thirds and one third, ranking loss in thousandths / average precision,
six splits, three of Scene (a tenth held out; the same, then all bags for as many steps; all bags
for so many):

    ============  ===========  ===========  ===========  ===========  ===========
    set           held out     then all     20 000       40 000       80 000
    ============  ===========  ===========  ===========  ===========  ===========
    Letter Frost  134 / .701   130 / .712   124 / .727   122 / .727   127 / .722
    MSRC v2        93 / .722    92 / .730    93 / .733    94 / .737    96 / .736
    Reuters        16 / .967    14 / .970    14 / .971    15 / .969    16 / .968
    Scene         –            –            180 / .779   165 / .793   159 / .801
    ============  ===========  ===========  ===========  ===========  ===========

No one number of steps suits Reuters and Scene, though both have 1333 bags to train on. (MSRC v2 was
measured before its histograms were scaled by their roots.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from streammiml.config import TrainConfig

SHARE = 0.1
"""Of the bags that is held out."""
LEAST_HELD_OUT = 500
"""Bags; where the share is fewer, none is held out."""
EPOCHS = 100
"""At most, where held-out bags tell when to stop."""
STEPS, LEAST_EPOCHS = 40_000, 10
"""Where nothing tells: so many steps, and so many epochs at least."""
FOLDS, MOST_STEPS, MOST_EPOCHS, LOOK_EVERY = 3, 80_000, 400, 2000
"""Of the cross validation: how many runs, how long they are, how many steps between two looks at
the least."""
LEAST_LOOKS = 8
"""Of each of those runs, about."""
LEAST_FOLDED = 30
"""Bags; fewer say nothing in folds either."""


def resolved(config: TrainConfig, n_bags: int) -> TrainConfig:
    """The same settings with ``validation`` and ``epochs`` filled in; those given stay."""
    share = config.validation
    if share is None:
        share = SHARE if n_bags * SHARE >= LEAST_HELD_OUT else 0.0
    epochs = config.epochs
    if epochs is None and (share or config.validation_store is not None):
        epochs = EPOCHS
    elif epochs is None:
        epochs = max(LEAST_EPOCHS, math.ceil(STEPS / max(n_bags, 1)))
    return replace(config, validation=share, epochs=epochs)


def is_folded(config: TrainConfig, n_bags: int) -> bool:
    """Whether cross validation is to say how long to train: few bags, and nothing else says it."""
    told = (config.epochs, config.max_steps, config.validation, config.validation_store)
    few = n_bags >= LEAST_FOLDED and not resolved(config, n_bags).validation
    return few and all(option is None for option in told)


def fold_settings(config: TrainConfig, n_bags: int, every: int) -> TrainConfig:
    """Settings of a run without one fold; ``every`` is how often its bags could be looked at."""
    trained = max(1, n_bags * (FOLDS - 1) // FOLDS)
    epochs = min(MOST_EPOCHS, math.ceil(MOST_STEPS / trained))
    # Where looks cost far more than steps (rows of few values, many labels) there are some still.
    every = min(every, epochs * trained // LEAST_LOOKS)
    return replace(
        config,
        validation=1 / FOLDS,
        validate_every=max(min(LOOK_EVERY, 20 * trained), every),
        epochs=epochs,
        patience=MOST_STEPS,
    )


def epochs_of(curves: Sequence[Mapping[int, float]], n_bags: int) -> int:
    """Epochs on all bags, from the losses by step of runs that each lacked one fold.

    The step of the lowest mean, of equal ones the first, is one of runs on fewer bags: epochs, not
    steps, are carried over.
    """
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    best = min(common, key=lambda step: math.fsum(curve[step] for curve in curves))
    trained = n_bags * (FOLDS - 1) / FOLDS
    return max(1, round(best / trained))
