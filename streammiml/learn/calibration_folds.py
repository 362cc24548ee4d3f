"""Calibrates a trained model: on the bags that its run held out, or on folds.

A run that holds out no bags trains again, ``FOLDS`` times, each time without one fold: with the
settings, the seed, the number of epochs and the restarts of the run. The margins of each fold,
under the weights that were trained without it, are standardized and counted together. The counts
are kept in the run folder after each fold, so a kill loses the trainings of one fold at most, and
calibrating a finished run again reads the counts.

``time_limit`` bounds these trainings together. At the limit, a training is left out, and the folds
before it count alone; the first fold counts with the weights that it has come to. That is less
exact but sound, since margins are standardized.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, check_number, parse_duration
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Weights
from streammiml.learn.begin import Ready, RunSettings, begin
from streammiml.learn.calibration import N_BINS, Standard, empty_label_counts, fitted_calibration
from streammiml.learn.defaults import FOLDS, LEAST_FOLDED, resolved
from streammiml.learn.holdout import Holdout
from streammiml.learn.loop import Loop
from streammiml.learn.progress import ChoiceProgress, TrainProgress
from streammiml.learn.restarts import settings_of_restart
from streammiml.learn.run_folder import CALIBRATION, RunFolder
from streammiml.learn.stop_signals import Stopped, StopSignals
from streammiml.learn.trained_model import returned_weights
from streammiml.learn.validation import AllWeights, Validation
from streammiml.model import Model, load_tensors, save_tensors
from streammiml.scorer import weights_of

I32 = NDArray[np.int32]

_KIND = "count of margins"
_FORMAT = 1
_LOG = logging.getLogger("streammiml")


@dataclass(slots=True)
class _FoldCounts:
    """Counts of the folds that are done."""

    counts: I32
    n_done: int = 0
    seconds: float = 0.0
    """Seconds that the trainings took; recorded only if there is a time limit."""
    is_cut: bool = False
    """Whether the time limit ended the trainings."""


class _FoldTimeUp(Exception):
    """The time limit was reached during a training that is not needed."""


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


def calibrated(
    model: Model,
    ready: Ready,
    stop: StopSignals,
    watch: Callable[[ChoiceProgress], None] = lambda _: None,
) -> Model:
    """Add the calibration that the settings of a finished run ask for."""
    config, store = ready.config, ready.store
    if config.calibrate in (None, "none"):
        return model
    has_start = "start_fingerprint" in ready.fingerprints
    lift = ready.state.lift
    weights: AllWeights = returned_weights(ready)
    if model.restarts > 1:
        weights = weights_of(model)
    deadline = ready.plan.budget.read.deadline
    if n_calibration_folds(store, config, has_start=has_start):
        counts = _counts_of_folds(ready, stop, watch)
        standard = Validation(store, np.arange(store.n_bags)).standard(lift, weights, deadline)
    else:
        assert ready.plan.validation is not None, "runs without folds hold bags out"
        standard = Standard.none(store.n_labels)
        counts = ready.plan.validation.label_counts(lift, weights, deadline, standard)
    calibration = fitted_calibration(counts, config.calibrate, standard, model.rule.offset)
    return replace(model, calibration=calibration)


def _counts_of_folds(
    ready: Ready, stop: StopSignals, watch: Callable[[ChoiceProgress], None]
) -> I32:
    """Count the margins of all folds, beginning after the last fold that is recorded."""
    config = _config_of_folds(ready.config)
    key = {**ready.key, "epochs": config.epochs, "max_steps": config.max_steps, "folds": FOLDS}
    done = _recorded(ready.folder, key, ready.store.n_labels)
    while done.n_done < FOLDS and not done.is_cut:
        _LOG.info("calibration: training without fold %d of %d", done.n_done + 1, FOLDS)
        training = _FoldTraining(ready, config, done, stop, watch)
        try:
            done.counts += training.run()
            done.n_done += 1
        except _FoldTimeUp:
            done.is_cut = True
        done.seconds, done.is_cut = training.seconds, done.is_cut or training.is_cut
        _record(ready, key, done)
    if done.is_cut:
        _LOG.warning(
            "calibration: the time limit of %s ended its trainings; probabilities come from %d of "
            "%d folds",
            *(ready.config.time_limit, done.n_done, FOLDS),
        )
    return done.counts


def _record(ready: Ready, key: dict[str, object], done: _FoldCounts) -> None:
    """Keep the counts in the run folder, if there is one."""
    if ready.folder is None:
        return
    content: dict[str, object] = {"key": key, "n_done": done.n_done}
    if ready.config.time_limit is not None:
        content |= {"seconds": done.seconds, "is_cut": done.is_cut}
    path = ready.folder.path / CALIBRATION
    save_tensors(path, {"counts": done.counts}, content, kind=_KIND, version=_FORMAT)


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


class _FoldTraining:
    """The training without one fold, and the counts of that fold's margins."""

    def __init__(
        self,
        ready: Ready,
        config: TrainConfig,
        done: _FoldCounts,
        stop: StopSignals,
        watch: Callable[[ChoiceProgress], None],
    ) -> None:
        self._ready, self._config, self._stop, self._watch = ready, config, stop, watch
        self._fold, self._seconds_before = done.n_done, done.seconds
        limit = ready.config.time_limit
        self._limit = math.inf if limit is None else parse_duration(limit, option="time_limit")
        self._begun = time.monotonic()
        self._restart = 0
        self.is_cut = False
        """Whether the time limit ended the training."""

    @property
    def seconds(self) -> float:
        """Seconds of this training and those before it."""
        return self._seconds_before + time.monotonic() - self._begun

    def run(self) -> I32:
        """Train, and count; at the limit, raise ``_FoldTimeUp`` if a fold is done already."""
        store = self._ready.store
        holdout = Holdout.of_fold(self._fold, FOLDS, store.n_bags)
        weights: list[Weights] = []
        like = None
        for number in range(self._config.n_restarts):
            self._restart = number
            config = settings_of_restart(self._config, number)
            run = begin(RunSettings(store=store, config=config, holdout=holdout, like=like))
            try:
                Loop(run, self._note, StopSignals()).run()
            except _FoldTimeUp:
                self.is_cut = True
                if self._fold:
                    raise
            like = like or run.state
            if not self.is_cut or not weights:
                weights.append(run.state.returned())
            if self.is_cut:
                break
        others = np.setdiff1d(np.arange(store.n_bags), holdout.bags, assume_unique=True)
        scored = run.state.lift, weights, run.plan.budget.read.deadline
        standard = Validation(store, others).standard(*scored)
        return Validation(store, holdout.bags).label_counts(*scored, standard)

    def _note(self, run: TrainProgress) -> None:
        if self._stop.number:
            raise Stopped(self._stop.number, self._ready.state.at.step)
        self._watch(self._progress(run))
        if run.step and run.done < 1 and self.seconds > self._limit:
            raise _FoldTimeUp

    def _progress(self, run: TrainProgress) -> ChoiceProgress:
        left, n_restarts = run.seconds_left, self._config.n_restarts
        if left is not None:
            whole = left + run.total["all"]
            left += whole * (n_restarts * (FOLDS - self._fold) - self._restart - 1)
            left = min(left, max(0.0, self._limit - self.seconds))
        return ChoiceProgress(
            stage="calibrating",
            setting="",
            trial=self._fold + 1,
            n_trials=FOLDS,
            fold=self._fold + 1,
            n_folds=FOLDS,
            loss=None,
            done=(self._fold + (self._restart + run.done) / n_restarts) / FOLDS,
            seconds_left=left,
        )


def _recorded(folder: RunFolder | None, key: dict[str, object], n_labels: int) -> _FoldCounts:
    """Counts of the folds that an earlier process finished.

    A record that is damaged, or of another training, is not used: the folds are trained again.
    """
    nothing = _FoldCounts(empty_label_counts(n_labels))
    if folder is None or not (folder.path / CALIBRATION).exists():
        return nothing
    try:
        path = folder.path / CALIBRATION
        tensors, content = load_tensors(path, kind=_KIND, version=_FORMAT)
        counts, n_done = tensors["counts"], content["n_done"]
        seconds, is_cut = content.get("seconds", 0.0), content.get("is_cut", False)
        check_number("seconds", seconds, zero=True)
    except (StreammimlError, KeyError):
        return nothing
    is_alike = content.get("key") == key and n_done in range(1, FOLDS + 1)
    if not is_alike or counts.shape != (2, n_labels, N_BINS) or counts.dtype != np.int32:
        return nothing
    return _FoldCounts(counts, n_done, float(seconds), is_cut is True)
