"""Trials before a run: they choose its settings and its number of epochs.

A trial trains with some setting while some bags are held out, and measures their ranking loss now
and then. Small stores hold out one fold after another; large stores hold out the bags that early
stopping looks at, and a trial visits a random sample of their blocks.

With ``--preset auto`` several settings race (``learn/presets.py`` lists them): all settings are
tried for a quarter of the steps on the first fold, the best third for all steps, and the best two
on the other folds (``learn/halving.py``). So the race takes two to five times the steps of
the cross validation of one setting. The arithmetic of all trials is bounded by ``MOST_WORK``
multiplications: on larger bags there are fewer settings, then fewer steps. If the loss still falls
at the end of trials that were shortened, the run trains longer than they did, for at most
``MOST_EXTRA_WORK`` multiplications.

Decisions depend on the results of the trials alone, and on the clock only if ``time_limit`` ends
the trials. Finished trials are recorded, so a run that is killed repeats only the last one.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.bag_weights import fingerprint_of, read_weights
from streammiml.bags.views import Bags
from streammiml.config import LiftSpec, Threshold, TrainConfig, parse_duration
from streammiml.errors import DivergedError, StreammimlError
from streammiml.learn.begin import Ready, RunSettings, begin, run_key
from streammiml.learn.choice_record import ChoiceRecord, ChoiceResult, Curve
from streammiml.learn.defaults import (
    EPOCHS,
    FOLDS,
    MOST_STEPS,
    RESTARTS,
    epochs_of,
    fold_settings,
    fold_steps,
    is_folded,
    resolved,
    steady_epochs_of,
)
from streammiml.learn.halving import Pace, Rung, rungs, survivors
from streammiml.learn.holdout import Holdout
from streammiml.learn.loop import Loop
from streammiml.learn.presets import Setting, candidates, with_preset
from streammiml.learn.progress import ChoiceProgress, TrainProgress
from streammiml.learn.run_plan import plan_run
from streammiml.learn.stop_signals import Stopped, StopSignals
from streammiml.learn.threshold import fitted_offset, sum_counts
from streammiml.learn.trained_model import label_rule
from streammiml.learn.validation import NothingRanked, step_work

I64 = NDArray[np.int64]

_LOG = logging.getLogger("streammiml")

RACE = Pace(1 / 3, (1 / 4,))
"""The first rung has a quarter of the steps: settings learn at different speeds, so shorter trials
would favour those that are only faster."""
MOST_WORK = 10**12
"""Upper limit for the multiplications of all trials together; about a minute on one core."""
MOST_EXTRA_WORK = 2 * MOST_WORK
"""Upper limit for the multiplications of a run that trains for more epochs than its trials did."""
LEAST_STEPS = 500
"""Fewest steps of a trial, however large the bags are."""
SPARSE_STEPS = 400_000
"""Steps of the longest trials of a large sparse store. A step is short there, and settings with a
small largest norm lead only late: on sentences of Reuters-21578 after more than 100 000 steps."""
LOOKS = 16
"""Looks of the longest trials of a race, at least."""


class ChoiceTrial(NamedTuple):
    """A training that holds out a fold: index of its setting, the fold, and its last step."""

    setting: int
    fold: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """Which settings are tried for how long, decided before the first trial."""

    settings: Sequence[Setting]
    work: Sequence[float]
    """Multiplications of a step with each setting."""
    rungs: Sequence[Rung]
    n_folds: int
    """Number of folds; 1 if the bags of early stopping are held out instead."""
    steps: int
    """Last step of the longest trials."""
    chooses_epochs: bool

    @property
    def total_work(self) -> float:
        """Most multiplications of all trials: those if the costliest settings survive."""
        return sum(
            count * len(rung.folds) * rung.steps * mean
            for rung, count, mean in self._costs_of_rungs()
        )

    @property
    def total_steps(self) -> int:
        """Steps of all trials."""
        return sum(n * len(rung.folds) * rung.steps for rung, n, _ in self._costs_of_rungs())

    @property
    def n_trials(self) -> int:
        """Number of trials."""
        return sum(count * len(rung.folds) for rung, count, _ in self._costs_of_rungs())

    def is_shortened(self, n_bags: int) -> bool:
        """Whether ``MOST_WORK`` made the trials that choose the epochs shorter."""
        return self.chooses_epochs and self.steps < 0.9 * fold_steps(n_bags)

    def most_epochs(self, setting: int, n_bags: int, default: int) -> int:
        """Epochs of the run if short trials end while the loss falls: the default, or fewer.

        The bound is ``MOST_EXTRA_WORK``.
        """
        return max(1, min(default, int(MOST_EXTRA_WORK / (self.work[setting] * n_bags))))

    def _costs_of_rungs(self) -> Iterator[tuple[Rung, int, float]]:
        """Each rung, its number of settings, and the mean work of its costliest settings."""
        surviving = sorted(self.work, reverse=True)
        for rung in self.rungs:
            yield rung, len(surviving), sum(surviving) / len(surviving)
            n_left = len(survivors(range(len(surviving)), [0.0] * len(surviving), RACE))
            surviving = surviving[:n_left]


def plan_choice(
    store: Bags, config: TrainConfig, given: Mapping[str, Any], *, has_start: bool
) -> ChoicePlan | None:
    """Plan the trials before a run; None if there is nothing to choose."""
    is_long = config.epochs is not None or config.max_steps is not None
    folded = is_folded(config, store.n_bags)
    settings: list[Setting] = [{}]
    may_race = not is_long and not has_start and store.n_labels > 1
    complete = resolved(config, store.n_bags)
    holds_out = bool(complete.validation) or config.validation_store is not None
    if may_race and (folded or holds_out):
        settings = candidates(config, given, sparse=store.sparse)
    if not folded and len(settings) == 1:
        return None
    n_folds = FOLDS if folded else 1
    steps = fold_steps(store.n_bags) if folded else _steps_of_large(store)
    # The first setting is that of ``plain``: if it is refused, so is the run.
    others = [other for other in settings[1:] if _fits(store, replace(complete, **other))]
    settings = [settings[0], *others]
    work = [_work(store, replace(complete, **setting)) for setting in settings]
    while True:
        laid = rungs(len(settings), n_folds, steps, RACE, halving=True)
        plan = ChoicePlan(
            settings=settings,
            work=work,
            rungs=[rung for rung in laid if rung.folds],
            n_folds=n_folds,
            steps=steps,
            chooses_epochs=folded,
        )
        if config.preset != "auto" or plan.total_work <= MOST_WORK:
            return plan if folded or len(settings) > 1 else None
        if len(settings) == 1:
            if steps <= LEAST_STEPS or not folded:
                return plan if folded else None
            steps = max(LEAST_STEPS, int(steps * MOST_WORK / plan.total_work))
            continue
        costliest = max(range(1, len(settings)), key=lambda number: work[number])
        settings = [setting for i, setting in enumerate(settings) if i != costliest]
        work = [cost for i, cost in enumerate(work) if i != costliest]


def _steps_of_large(store: Bags) -> int:
    """Steps of the longest trials of a large store, at most as many as training may take."""
    return min(SPARSE_STEPS if store.sparse else MOST_STEPS, EPOCHS * store.n_bags)


def _work(store: Bags, config: TrainConfig) -> float:
    return step_work(config, store, LiftSpec.parse(config.lift).width(store.n_features))


def _fits(store: Bags, config: TrainConfig) -> bool:
    """Whether a run with these settings fits in memory, and its rows can be lifted."""
    try:
        plan_run(store, config)
    except NothingRanked:
        return True
    except StreammimlError:
        return False
    return True


class _TimeUp(Exception):
    """The time limit was reached at a look of a trial."""


class Choice:
    """The trials before one run."""

    def __init__(
        self,
        settings: RunSettings,
        plan: ChoicePlan,
        stop: StopSignals,
        watch: Callable[[ChoiceProgress], None],
    ) -> None:
        self._settings, self._plan, self._stop, self._watch = settings, plan, stop, watch
        self._config = settings.config
        store = settings.store
        key = run_key(self._config, {"fingerprint": store.fingerprint, "sparse": store.sparse})
        # Trials count margins only if an offset is to be fitted.
        key["threshold"] = self._config.threshold
        key["tried"] = [_in_words(setting) for setting in plan.settings]
        if (column := self._config.bag_weights) is not None:
            key["weights_fingerprint"] = fingerprint_of(read_weights(store, column))
        self._record = ChoiceRecord(settings.folder, key)
        limit = self._config.time_limit
        self._limit = math.inf if limit is None else parse_duration(limit, option="time_limit")
        self._begun = time.monotonic()
        self._seconds_before = self._record.seconds
        self._results: dict[ChoiceTrial, ChoiceResult] = {}
        self._is_time_up = False
        self._every: dict[int, int] = {}
        self._work_done = self._work_here = self._seconds_here = 0.0
        self._work_expected = plan.total_work

    def run(self) -> RunSettings:
        """Run the trials, and return the settings of the run."""
        surviving = list(range(len(self._plan.settings)))
        ranked = surviving
        try:
            for number, rung in enumerate(self._plan.rungs):
                self._work_expected = self._work_done + self._work_from(number, surviving)
                for trial in self._trials(rung, surviving):
                    self._finish(trial)
                losses = [self._loss(setting) for setting in surviving]
                order = sorted(zip(losses, surviving, strict=True))
                ranked = [setting for _, setting in order]
                if number + 1 < len(self._plan.rungs):
                    surviving = survivors(surviving, losses, RACE)
        except _TimeUp:
            # Settings whose trials of this rung did not end keep their order of the rung before; in
            # the first rung, settings whose trial did end come first.
            if ranked is surviving:
                finished = [s for s in surviving if self._has_finished(s)]
                others = [s for s in surviving if s not in finished]
                ranked = sorted(finished, key=self._loss) + others
        except NothingRanked:
            config = resolved(self._config, self._settings.store.n_bags)
            return replace(self._settings, config=config)
        return self._decided(ranked[0])

    def _has_finished(self, setting: int) -> bool:
        """Whether a trial of a setting came to its last step."""
        return any(
            trial.setting == setting and not result.is_cut
            for trial, result in self._results.items()
        )

    def _work_from(self, first_rung: int, surviving: Sequence[int]) -> float:
        """Expected multiplications from this rung on; any of its settings may survive it."""
        mean = sum(self._plan.work[setting] for setting in surviving) / len(surviving)
        work, count = 0.0, len(surviving)
        for rung in self._plan.rungs[first_rung:]:
            work += count * len(rung.folds) * rung.steps * mean
            count = len(survivors(range(count), [0.0] * count, RACE))
        return work

    def _trials(self, rung: Rung, surviving: Sequence[int]) -> list[ChoiceTrial]:
        return [ChoiceTrial(s, fold, rung.steps) for s in surviving for fold in rung.folds]

    def _finish(self, trial: ChoiceTrial) -> None:
        """Get the result of a trial: recorded, or by training."""
        name = self._name(trial)
        result = self._record.result(name)
        work = trial.steps * self._plan.work[trial.setting]
        if result is None:
            if self._is_time_up:
                raise _TimeUp
            begun = time.monotonic()
            result = self._train(trial)
            seconds = time.monotonic() - begun
            self._record.add(name, result, seconds)
            self._work_here += work
            self._seconds_here += seconds
        self._work_done += work
        self._results[trial] = result
        # A trial that the limit cut ends the choice, in a resumed run too.
        self._is_time_up |= result.is_cut

    def _name(self, trial: ChoiceTrial) -> str:
        setting = json.dumps(self._plan.settings[trial.setting], sort_keys=True)
        return f"{setting}, fold {trial.fold} of {self._plan.n_folds}, {trial.steps} steps"

    def _train(self, trial: ChoiceTrial) -> ChoiceResult:
        """Train without a fold; one replica, since folds of a small store are small."""
        curve: Curve = {}
        counts: dict[int, I64] = {}
        number = len(self._results) + 1

        def note(progress: TrainProgress) -> None:
            if self._stop.number:
                raise Stopped(self._stop.number, 0)
            if progress.validation_loss is not None:
                curve[progress.step] = progress.validation_loss
                if self._fits_offset(trial):
                    counts[progress.step] = self._counts(ready)
            self._watch(self._progress(trial, number, progress))
            if progress.validation_loss is not None and self._seconds() > self._limit:
                raise _TimeUp

        try:
            config, holdout = self._trial_settings(trial)
            settings = replace(self._settings, config=config, folder=None, holdout=holdout)
            ready = begin(settings)
            Loop(ready, note, StopSignals()).run()
        except DivergedError:
            if len(self._plan.settings) == 1:
                raise
            return ChoiceResult({})
        except _TimeUp:
            return ChoiceResult(curve, is_cut=True, counts=counts)
        return ChoiceResult(curve, counts=counts)

    def _fits_offset(self, trial: ChoiceTrial) -> bool:
        """Whether the threshold's offset may be fitted on the held-out bags of this trial."""
        wanted = self._config.threshold not in (None, "none")
        is_last = trial.steps == self._plan.steps or self._limit < math.inf
        return wanted and self._plan.chooses_epochs and is_last

    def _counts(self, ready: Ready) -> I64:
        assert ready.plan.validation is not None, "trials hold out bags"
        min_labels = label_rule(self._settings.store, self._config).min_labels
        state, deadline = ready.state, ready.plan.budget.read.deadline
        return ready.plan.validation.counts(state.lift, state.returned(), deadline, min_labels)

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._begun

    def _trial_settings(self, trial: ChoiceTrial) -> tuple[TrainConfig, Holdout | None]:
        plan, store = self._plan, self._settings.store
        setting = plan.settings[trial.setting]
        config = replace(self._config, **setting, replicas=1, round_steps=None)
        if not plan.chooses_epochs:
            complete = resolved(config, store.n_bags)
            every = max(1, plan.steps // LOOKS)
            return replace(
                complete, max_steps=trial.steps, validate_every=every, patience=MOST_STEPS
            ), None
        holdout = Holdout.of_fold(trial.fold, plan.n_folds, store.n_bags)
        if trial.setting not in self._every:
            # Always by the first fold: a resumed run may begin with another.
            first = Holdout.of_fold(0, plan.n_folds, store.n_bags)
            without = replace(fold_settings(config, store.n_bags, 0), validate_every=None)
            self._every[trial.setting] = plan_run(store, without, first).every
        config = fold_settings(config, store.n_bags, self._every[trial.setting])
        if self._config.preset == "auto":
            every = min(config.validate_every or 1, max(1, plan.steps // LOOKS))
            config = replace(config, validate_every=every)
        if trial.steps < fold_steps(store.n_bags):
            config = replace(config, max_steps=trial.steps)
        return config, holdout

    def _progress(self, trial: ChoiceTrial, number: int, run: TrainProgress) -> ChoiceProgress:
        plan = self._plan
        here = min(run.step, trial.steps) * plan.work[trial.setting]
        work_here = self._work_here + here
        seconds = self._seconds_here + (run.total["all"] if run.step else 0.0)
        done = min(1.0, (self._work_done + here) / self._work_expected)
        left = None
        if work_here:
            left = seconds / work_here * max(0.0, self._work_expected - self._work_done - here)
            left = min(left, max(0.0, self._limit - self._seconds()))
        return ChoiceProgress(
            setting=_in_words(plan.settings[trial.setting]),
            trial=number,
            n_trials=max(number, plan.n_trials),
            fold=trial.fold + 1,
            n_folds=plan.n_folds,
            loss=run.validation_loss,
            done=done,
            seconds_left=left,
        )

    # Decisions.

    def _longest(self, setting: int) -> dict[int, ChoiceTrial]:
        """The longest trial of a setting on each fold."""
        longest: dict[int, ChoiceTrial] = {}
        for trial in sorted(self._results):
            if trial.setting == setting:
                longest[trial.fold] = trial
        return longest

    def _curves(self, setting: int) -> list[Curve]:
        """The curve of each fold, of its longest trial."""
        return [self._results[trial].curve for trial in self._longest(setting).values()]

    def _loss(self, setting: int) -> float:
        """The lowest mean loss over the folds that were tried; infinite if training diverged."""
        curves = self._curves(setting)
        if not all(curves):
            return math.inf
        return min(mean_curve(curves).values(), default=math.inf)

    def _decided(self, winner: int) -> RunSettings:
        setting, n_bags = self._plan.settings[winner], self._settings.store.n_bags
        config = replace(self._config, **setting)
        curves = [curve for curve in self._curves(winner) if curve]
        if not curves:
            raise DivergedError(
                "training diverged with every setting that was tried; a smaller --step-size than "
                f"{config.step_size} may help"
            )
        if not self._plan.chooses_epochs:
            config = resolved(config, n_bags)
        else:
            config = replace(config, validation=0.0, epochs=self._epochs(winner, curves))
            if why := self._why_few(winner, config.n_epochs):
                _LOG.warning("training for %d epochs%s", config.epochs, why)
        offset = self._offset(winner, config)
        reasons = self._reasons(winner, config)
        if offset is not None:
            reasons.append(f"threshold offset = {offset:g}, by {config.threshold}")
        self._record.finish({"setting": setting, "offset": offset, "reasons": reasons})
        return replace(self._settings, config=config, offset=offset)

    def _epochs(self, winner: int, curves: Sequence[Curve]) -> int:
        """Choose the epochs; more than the trials had if they ended while the loss still fell.

        Then the number is the default, or what ``MOST_EXTRA_WORK`` allows.
        """
        n_bags, mean = self._settings.store.n_bags, mean_curve(curves)
        last = max(mean, default=0)
        if not last:
            # A time limit ended the trials before their first look.
            return self._most_epochs(winner)
        choose = steady_epochs_of if self._config.preset == "auto" else epochs_of
        epochs = choose(curves, n_bags)
        still_falls = last == min(mean, key=mean.__getitem__)
        is_short = last < 0.9 * fold_steps(n_bags)
        return max(epochs, self._most_epochs(winner)) if is_short and still_falls else epochs

    def _most_epochs(self, winner: int) -> int:
        return self._plan.most_epochs(winner, self._settings.store.n_bags, self._default_epochs())

    def _default_epochs(self) -> int:
        n_bags = self._settings.store.n_bags
        return resolved(replace(self._config, epochs=None), n_bags).n_epochs

    def _offset(self, winner: int, config: TrainConfig) -> float | None:
        """Fit the threshold's offset on the folds, after the epochs that the run will have."""
        results = [self._results[trial] for trial in self._longest(winner).values()]
        if config.threshold in (None, "none") or not all(result.counts for result in results):
            return None
        n_training_bags = self._settings.store.n_bags * (FOLDS - 1) / FOLDS
        wanted_step = math.log(max(1.0, config.n_epochs * n_training_bags))
        counts = []
        for result in results:
            steps = sorted(step for step in result.counts if step)
            if not steps:
                return None
            near = min(steps, key=lambda step: abs(math.log(step) - wanted_step))
            counts.append(result.counts[near])
        return fitted_offset(sum_counts(counts), config.threshold)

    def _reasons(self, winner: int, config: TrainConfig) -> list[str]:
        """Lines that say what was tried, and what decided."""
        plan = self._plan
        held_out = f"{plan.n_folds} folds" if plan.chooses_epochs else "the held-out bags"
        lines = [
            f"Chosen by the lowest ranking loss on {held_out}, in {len(self._results)} trials."
        ]
        if self._is_time_up:
            lines.append(f"The time limit of {self._config.time_limit} ended the trials.")
        if plan.chooses_epochs:
            lines.append(f"epochs = {config.epochs}{self._why_few(winner, config.n_epochs)}")
        order = [(winner, "chosen")]
        others = [s for s in range(len(plan.settings)) if s != winner]
        key = {s: (-self._most_steps(s), self._loss(s), s) for s in others}
        order += [(s, "") for s in sorted(others, key=key.__getitem__)]
        for number, mark in order if len(plan.settings) > 1 else []:
            curves = self._curves(number)
            if not curves:
                continue
            folds = f"{len(curves)} fold{'s' * (len(curves) > 1)}, "
            lines.append(
                f"{self._loss(number):.4f} {_in_words(plan.settings[number])} "
                f"({folds if plan.chooses_epochs else ''}{self._most_steps(number):,} steps)"
                f"{', ' * bool(mark)}{mark}"
            )
        return lines

    def _why_few(self, winner: int, epochs: int) -> str:
        """Say that the bound of work set the number of epochs; empty if it did not."""
        if epochs != self._most_epochs(winner) or epochs >= self._default_epochs():
            return ""
        return (
            " by the bound of work: the loss still fell when the trials ended, so --extend or "
            f"--epochs {self._default_epochs()} may give a better model"
        )

    def _most_steps(self, setting: int) -> int:
        return max((trial.steps for trial in self._results if trial.setting == setting), default=0)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean loss over the curves, at the steps that all curves have."""
    common = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    return {step: math.fsum(curve[step] for curve in curves) / len(curves) for step in common}


def _in_words(setting: Mapping[str, Any]) -> str:
    words = [f"{name.replace('_', ' ')} {json.dumps(value)}" for name, value in setting.items()]
    return ", ".join(words).replace('"', "") or "the settings of the run"


def with_defaults(
    settings: RunSettings,
    stop: StopSignals,
    watch: Callable[[ChoiceProgress], None] = lambda _: None,
    *,
    given: Mapping[str, Any],
) -> RunSettings:
    """Settings of a new run without open defaults: by its preset, by trials, by its number of bags.

    ``given`` are the settings that the user gave. Trials cannot rank if the held-out bags have no
    order of labels; then defaults remain.
    """
    store = settings.store
    settings = replace(settings, config=with_preset(settings.config, given))
    has_start = settings.start_fingerprint is not None
    plan = plan_choice(store, settings.config, given, has_start=has_start)
    config = replace(settings.config, threshold=_threshold(settings.config, store, plan))
    settings = replace(settings, config=config)
    if plan is None:
        settings = replace(settings, config=resolved(config, store.n_bags))
    else:
        settings = Choice(settings, plan, stop, watch).run()
    return replace(settings, config=with_n_restarts(settings.config, store, plan))


def with_n_restarts(config: TrainConfig, store: Bags, plan: ChoicePlan | None) -> TrainConfig:
    """Fill in the number of restarts, if it is None: some for small stores, if they fit.

    All restarts but the first take at most ``MOST_WORK`` multiplications together.
    """
    if config.restarts is not None:
        return config
    several = config.preset == "auto" and config.replicas == 1
    if several and plan is not None and plan.chooses_epochs:
        complete = resolved(config, store.n_bags)
        work = complete.n_epochs * store.n_bags * _work(store, complete)
        n_restarts = min(RESTARTS, 1 + int(MOST_WORK / work))
        if n_restarts > 1 and _fits(store, replace(complete, restarts=n_restarts)):
            return replace(config, restarts=n_restarts)
    return replace(config, restarts=1)


def _threshold(config: TrainConfig, store: Bags, plan: ChoicePlan | None) -> Threshold:
    """The criterion of the threshold's offset; refuse one if no bags will be held out."""
    holds_out = bool(resolved(config, store.n_bags).validation) or bool(config.validation_store)
    holds_out |= plan is not None
    if config.threshold is None:
        suits = config.preset == "auto" and config.rule == "dummy" and holds_out
        return "count" if suits else "none"
    if config.threshold != "none" and not holds_out:
        raise StreammimlError(
            f"--threshold {config.threshold} is fitted on held-out bags, and this run holds out "
            "none; give --validation 0.1, or leave out what sets the number of epochs"
        )
    return config.threshold
