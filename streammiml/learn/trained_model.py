"""The model that a run returns: its best weights, its label rule, settings and provenance."""

from __future__ import annotations

import numpy as np

from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, settings_with
from streammiml.kernel.lift import lift_width
from streammiml.learn.begin import Ready
from streammiml.model import LabelRule, LiftArrays, Model

_BAGS_AT_ONCE = 65536


def trained_model(ready: Ready) -> Model:
    """Model with the best weights so far, or with the current weights if no bag was held out."""
    state, store, config = ready.state, ready.store, ready.config
    weights = state.best if state.best is not None else state.returned()
    width = config.shared_dim if config.shared_space else lift_width(state.lift)
    settings = config.recorded()
    for name in settings_with("speed", "path"):
        del settings[name]
    return Model(
        shared=weights.shared[:, :width],
        labels=weights.labels[:, :, :width],
        lift=LiftArrays(*state.lift),
        rule=_rule(store, config),
        label_names=None if store.label_names is None else tuple(store.label_names),
        settings={**settings, "scale": state.at.scale},
        provenance={
            **ready.fingerprints,
            "steps": state.at.step,
            "best_step": state.at.best_step,
        },
    )


def _rule(store: Bags, config: TrainConfig) -> LabelRule:
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
