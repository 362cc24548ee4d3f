"""Calibrates a trained model: on the bags that its run held out, or on folds.

A run that holds out no bags trains again, ``FOLDS`` times, each time without one fold: with the
settings, the seed and the number of epochs of the run. The margins of each fold, under the weights
that were trained without it, are standardized and counted together. The counts are kept in the run
folder after each fold, so a kill loses one training at most, and calibrating a finished run again
reads the counts.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import Bags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.begin import Ready, RunSettings, begin
from streammiml.learn.calibration import N_BINS, Standard, empty_label_counts, fitted_calibration
from streammiml.learn.defaults import FOLDS, LEAST_FOLDED, resolved
from streammiml.learn.holdout import Holdout
from streammiml.learn.loop import Loop
from streammiml.learn.progress import TrainProgress
from streammiml.learn.run_folder import CALIBRATION, RunFolder
from streammiml.learn.stop_signals import Stopped, StopSignals
from streammiml.learn.trained_model import returned_weights
from streammiml.learn.validation import Validation
from streammiml.model import Model, load_tensors, save_tensors

I32 = NDArray[np.int32]

_KIND = "count of margins"
_FORMAT = 1
_LOG = logging.getLogger("streammiml")


def n_calibration_folds(store: Bags, config: TrainConfig, *, has_start: bool) -> int:
    """Number of trainings that calibrate a run: 0 if it holds bags out, or is not calibrated.

    A run that cannot be calibrated is refused.
    """
    config = resolved(config, store.n_bags)
    if config.calibrate in (None, "none") or config.validation or config.validation_store:
        return 0
    is_small = not resolved(TrainConfig(), store.n_bags).validation
    if is_small and not has_start and store.n_bags >= LEAST_FOLDED:
        return FOLDS
    reason = "holds out none"
    if has_start:
        reason += ", and its start model may have been trained on any bag"
    elif is_small:
        reason += f", and {store.n_bags} bags are too few for folds"
    raise StreammimlError(
        f"--calibrate {config.calibrate} is fitted on held-out bags, and this run {reason}; "
        "give --validation 0.1 or --validation-store, or leave --calibrate out"
    )


def calibrated(model: Model, ready: Ready, stop: StopSignals) -> Model:
    """Add the calibration that the settings of a finished run ask for."""
    config, store = ready.config, ready.store
    if config.calibrate in (None, "none"):
        return model
    has_start = "start_fingerprint" in ready.fingerprints
    lift, weights = ready.state.lift, returned_weights(ready)
    deadline = ready.plan.budget.read.deadline
    if n_calibration_folds(store, config, has_start=has_start):
        counts = _counts_of_folds(ready, stop)
        standard = Validation(store, np.arange(store.n_bags)).standard(lift, weights, deadline)
    else:
        assert ready.plan.validation is not None, "runs without folds hold bags out"
        standard = Standard.none(store.n_labels)
        counts = ready.plan.validation.label_counts(lift, weights, deadline, standard)
    calibration = fitted_calibration(counts, config.calibrate, standard, model.rule.offset)
    return replace(model, calibration=calibration)


def _counts_of_folds(ready: Ready, stop: StopSignals) -> I32:
    """Count the margins of all folds, beginning after the last fold that is recorded."""
    config = _config_of_folds(ready.config)
    key = {**ready.key, "epochs": config.epochs, "max_steps": config.max_steps, "folds": FOLDS}
    counts, n_done = _recorded(ready.folder, key, ready.store.n_labels)
    for fold in range(n_done, FOLDS):
        _LOG.info("calibration: training without fold %d of %d", fold + 1, FOLDS)
        counts += _counts_of_fold(ready, config, fold, stop)
        if ready.folder is not None:
            content = {"key": key, "n_done": fold + 1}
            path = ready.folder.path / CALIBRATION
            save_tensors(path, {"counts": counts}, content, kind=_KIND, version=_FORMAT)
    return counts


def _config_of_folds(config: TrainConfig) -> TrainConfig:
    """Settings of a run without one fold, with as many passes as the run itself."""
    steps = config.max_steps
    return replace(
        config,
        max_steps=None if steps is None else max(1, math.ceil(steps * (FOLDS - 1) / FOLDS)),
        replicas=1,
        round_steps=None,
        threshold=None,
        calibrate=None,
    )


def _counts_of_fold(ready: Ready, config: TrainConfig, fold: int, stop: StopSignals) -> I32:
    holdout = Holdout.of_fold(fold, FOLDS, ready.store.n_bags)
    run = begin(RunSettings(store=ready.store, config=config, holdout=holdout))

    def note(_: TrainProgress) -> None:
        if stop.number:
            raise Stopped(stop.number, ready.state.at.step)

    Loop(run, note, StopSignals()).run()
    others = np.setdiff1d(np.arange(ready.store.n_bags), holdout.bags, assume_unique=True)
    scored = run.state.lift, run.state.returned(), run.plan.budget.read.deadline
    standard = Validation(ready.store, others).standard(*scored)
    return Validation(ready.store, holdout.bags).label_counts(*scored, standard)


def _recorded(folder: RunFolder | None, key: dict[str, object], n_labels: int) -> tuple[I32, int]:
    """Counts of the folds that an earlier process finished, and their number.

    A record that is damaged, or of another training, is not used: the folds are trained again.
    """
    nothing = empty_label_counts(n_labels), 0
    if folder is None or not (folder.path / CALIBRATION).exists():
        return nothing
    try:
        path = folder.path / CALIBRATION
        tensors, content = load_tensors(path, kind=_KIND, version=_FORMAT)
        counts, n_done = tensors["counts"], content["n_done"]
    except (StreammimlError, KeyError):
        return nothing
    is_alike = content.get("key") == key and n_done in range(1, FOLDS + 1)
    if not is_alike or counts.shape != (2, n_labels, N_BINS) or counts.dtype != np.int32:
        return nothing
    return counts, n_done
