"""Defaults of ``validation`` and ``epochs``, which depend on the number of bags.

Early stopping works if many bags can be held out. A small store can spare only a few bags, too few
to decide when to stop, and training needs them. So small stores hold out no bags. Instead, cross
validation chooses the number of epochs: one run for each fold trains on the other folds and
measures the loss on that fold. The run on all bags has the number of epochs at which the mean loss
over the folds was lowest.

Measured with two thirds of the bags for training and one third for the test, means of six splits
(three for Scene), ranking loss in thousandths / average precision. Columns: early stopping with a
tenth held out; then a run on all bags with the same number of steps; all bags for 20 000, 40 000
and 80 000 steps.

    ============  ===========  ===========  ===========  ===========  ===========
    set           held out     then all     20 000       40 000       80 000
    ============  ===========  ===========  ===========  ===========  ===========
    Letter Frost  134 / .701   130 / .712   124 / .727   122 / .727   127 / .722
    MSRC v2        93 / .722    92 / .730    93 / .733    94 / .737    96 / .736
    Reuters        16 / .967    14 / .970    14 / .971    15 / .969    16 / .968
    Scene         –            –            180 / .779   165 / .793   159 / .801
    ============  ===========  ===========  ===========  ===========  ===========

No single number of steps suits both Reuters and Scene, though both have 1333 training bags. (MSRC
v2 was measured before its histograms were scaled by their square roots.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from streammiml.config import TrainConfig

SHARE = 0.1
"""Share of the bags that is held out."""
LEAST_HELD_OUT = 500
"""No bags are held out if the share would be fewer bags than this."""
EPOCHS = 100
"""Upper limit of epochs if early stopping decides."""
STEPS, LEAST_EPOCHS = 40_000, 10
"""Number of steps, and fewest epochs, if neither early stopping nor cross validation decides."""
FOLDS, MOST_STEPS, MOST_EPOCHS, LOOK_EVERY = 3, 80_000, 400, 2000
"""Cross validation of the epochs: number of runs, most steps and epochs of a run, and the fewest
steps between two looks."""
LEAST_LOOKS = 8
"""Approximate lower limit for the looks of each cross-validation run."""
LEAST_FOLDED = 30
"""Stores with fewer bags are not cross validated: their folds would be too small."""


def resolved(config: TrainConfig, n_bags: int) -> TrainConfig:
    """Fill in ``validation`` and ``epochs`` where they are None."""
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
    """Whether cross validation chooses the epochs: few bags, and no option that sets the end."""
    deciding = (config.epochs, config.max_steps, config.validation, config.validation_store)
    suits_folds = n_bags >= LEAST_FOLDED and not resolved(config, n_bags).validation
    return suits_folds and all(option is None for option in deciding)


def fold_settings(config: TrainConfig, n_bags: int, every: int) -> TrainConfig:
    """Settings of a run that holds out one fold; ``every``: default of steps between looks."""
    n_training_bags = max(1, n_bags * (FOLDS - 1) // FOLDS)
    epochs = min(MOST_EPOCHS, math.ceil(MOST_STEPS / n_training_bags))
    # Have some looks even if a look costs far more than a step: few values, many labels.
    every = min(every, epochs * n_training_bags // LEAST_LOOKS)
    return replace(
        config,
        validation=1 / FOLDS,
        validate_every=max(min(LOOK_EVERY, 20 * n_training_bags), every),
        epochs=epochs,
        patience=MOST_STEPS,
    )


def epochs_of(curves: Sequence[Mapping[int, float]], n_bags: int) -> int:
    """Choose the epochs for all bags from ``curves``: loss by step, one curve for each fold.

    The first step with the lowest mean loss decides. The runs of the folds had fewer bags, so the
    number of epochs is carried over, not the number of steps.
    """
    common_steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    best_step = min(common_steps, key=lambda step: math.fsum(curve[step] for curve in curves))
    n_training_bags = n_bags * (FOLDS - 1) / FOLDS
    return max(1, round(best_step / n_training_bags))
