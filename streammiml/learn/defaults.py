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

import numpy as np

from streammiml.config import TrainConfig
from streammiml.kernel.average import STRIDE

SHARE = 0.1
"""Share of the bags that is held out."""
LEAST_HELD_OUT = 500
"""No bags are held out if the share would be fewer bags than this."""
EPOCHS = 100
"""Upper limit of epochs if early stopping decides."""
STEPS, LEAST_EPOCHS = 40_000, 10
"""Number of steps, and fewest epochs, if neither early stopping nor cross validation decides."""
LEAST_ROUND, MOST_ROUND = 128, 4096
"""Limits for the longest round of replicas, in steps."""
TURNS_AT_ONCE = 8
"""Most turns of replicas that a process runs at the same time."""
STREAMS_KEPT = 16
"""Most streams of replicas that a process keeps open for their next turns."""
FOLDS, MOST_STEPS, MOST_EPOCHS, LOOK_EVERY = 3, 80_000, 400, 2000
"""Cross validation of the epochs: number of runs, most steps and epochs of a run, and the fewest
steps between two looks."""
LEAST_LOOKS = 8
"""Approximate lower limit for the looks of each cross-validation run."""
RESTARTS = 5
"""Restarts of small stores with ``--preset auto``; ``learn/restarts.py`` has measurements."""
WIDTH = 1.5
"""Standard errors by which the loss of a step may exceed the lowest and still count for much."""
LEAST_FOLDED = 30
"""Stores with fewer bags are not cross validated: their folds would be too small."""


def round_steps(share: float) -> int:
    """Choose the longest round of a run whose replicas visit ``share`` bags each in an epoch.

    In longer rounds than half an epoch, replicas learn their own share of the bags and drift apart.
    """
    return max(LEAST_ROUND, min(MOST_ROUND, int(share / 2) // STRIDE * STRIDE))


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


def _bags_of_folds(n_bags: int) -> int:
    """Number of bags that a run trains on that holds out one fold."""
    return max(1, n_bags * (FOLDS - 1) // FOLDS)


def _epochs_of_folds(n_bags: int) -> int:
    return min(MOST_EPOCHS, math.ceil(MOST_STEPS / _bags_of_folds(n_bags)))


def fold_steps(n_bags: int) -> int:
    """Approximate number of steps of a run that holds out one fold."""
    return _epochs_of_folds(n_bags) * _bags_of_folds(n_bags)


def fold_settings(config: TrainConfig, n_bags: int, every: int) -> TrainConfig:
    """Settings of a run that holds out one fold; ``every``: default of steps between looks."""
    n_training_bags = _bags_of_folds(n_bags)
    epochs = _epochs_of_folds(n_bags)
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


def steady_epochs_of(curves: Sequence[Mapping[int, float]], n_bags: int) -> int:
    """Choose the epochs for all bags: a mean over steps, weighted by how good each step is.

    Curves are flat around their lowest loss, so the step of the lowest loss jumps from seed to
    seed. Here a step whose mean loss is x standard errors above the lowest has weight exp(-x²/2),
    with ``WIDTH`` standard errors as the unit; the mean is taken over the logarithm of the step.
    The standard error is that of the difference of two steps, pooled over all steps.

    Over five seeds on each of three splits of four sets, 3 folds: the standard deviation of the
    logarithm of the epochs is .194, against .350 for the lowest step (``epochs_of``). Ranking loss
    on test bags, in thousandths: Letter Frost 114.1 against 115.9, MSRC v2 72.5 against 73.6,
    Reuters 12.0 against 12.4, Scene 169.4 against 168.4. With a unit of one standard error: .224,
    and 114.8, 72.8, 12.1, 168.8; of two: .174, and 114.6, 73.0, 12.1, 170.3.
    """
    # A run that starts from a model also looks at step 0.
    steps = sorted(set.intersection(*(set(curve) for curve in curves)) - {0})
    losses = np.array([[curve[step] for step in steps] for curve in curves])
    means, logs = losses.mean(axis=0), np.log(steps)
    residuals = losses - means - (losses.mean(axis=1, keepdims=True) - means.mean())
    freedom = max(1, (len(curves) - 1) * (len(steps) - 1))
    error = math.sqrt(2 * math.fsum((residuals**2).ravel()) / freedom / len(curves))
    if error == 0:
        return epochs_of(curves, n_bags)
    weights = np.exp(-0.5 * ((means - means.min()) / (WIDTH * error)) ** 2) / steps
    center = math.exp(math.fsum(weights * logs) / math.fsum(weights))
    return max(1, round(center / (n_bags * (FOLDS - 1) / FOLDS)))
