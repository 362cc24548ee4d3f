"""The model that a run returns: its best weights, its label rule, settings and provenance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, settings_with, without_later
from streammiml.kernel.lift import lift_width
from streammiml.kernel.score import Weights
from streammiml.learn.begin import Ready
from streammiml.learn.threshold import fitted_offset
from streammiml.model import LabelRule, LiftArrays, Model

_BAGS_AT_ONCE = 65536
CHOOSING = ("preset", "prefer", "time_limit")
"""Settings that decide other settings before a run begins, and nothing in the run."""


def trained_model(ready: Ready) -> Model:
    """Model with the best weights so far, or with the current weights if no bag was held out."""
    state, store, config = ready.state, ready.store, ready.config
    weights = returned_weights(ready)
    width = config.shared_dim if config.shared_space else lift_width(state.lift)
    settings = without_later(config.recorded())
    for name in settings_with("speed", "path"):
        del settings[name]
    for name in CHOOSING:
        # A model whose settings were chosen equals the model with these settings given.
        settings.pop(name, None)
    if config.threshold in (None, "none"):
        settings.pop("threshold", None)
    if config.calibrate == "none":
        del settings["calibrate"]
    if config.replicas == 1:
        # The file of such a model is the same as before there were replicas.
        del settings["replicas"], settings["round_steps"]
    return Model(
        shared=weights.shared[:, :width],
        labels=weights.labels[:, :, :width],
        lift=LiftArrays(*state.lift),
        rule=replace(label_rule(store, config), offset=_offset(ready, weights)),
        label_names=None if store.label_names is None else tuple(store.label_names),
        settings={**settings, "scale": state.at.scale},
        provenance={
            **ready.fingerprints,
            "steps": state.at.step,
            "best_step": state.at.best_step,
        },
    )


def returned_weights(ready: Ready) -> Weights:
    """The best weights so far, or the current weights if no bag was held out."""
    return ready.state.best if ready.state.best is not None else ready.state.returned()


def _offset(ready: Ready, weights: Weights) -> float:
    """Offset of the threshold: from trials, or fitted on held-out bags, or 0."""
    if ready.offset is not None:
        return ready.offset
    config, validation = ready.config, ready.plan.validation
    if config.threshold in (None, "none") or validation is None:
        return 0.0
    min_labels = label_rule(ready.store, config).min_labels
    deadline = ready.plan.budget.read.deadline
    counts = validation.counts(ready.state.lift, weights, deadline, min_labels)
    return fitted_offset(counts, config.threshold)


def label_rule(store: Bags, config: TrainConfig) -> LabelRule:
    """Fit the label rule to the number of labels per bag; reads no rows."""
    n_unlabelled = 0
    for start in range(0, store.n_bags, _BAGS_AT_ONCE):
        offsets, _ = store.labels(start, min(start + _BAGS_AT_ONCE, store.n_bags))
        n_unlabelled += int((np.diff(offsets) == 0).sum())
    return LabelRule.fitted(
        config.rule,
        config.min_labels,
        n_bags=store.n_bags,
        n_pairs=store.n_label_entries,
        n_unlabelled=n_unlabelled,
    )
