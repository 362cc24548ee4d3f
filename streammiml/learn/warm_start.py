"""A warm start: training that starts from a model, on bags with the same features.

The labels of the model come first, new labels after them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streammiml.bags.views import Bags
from streammiml.config import LiftSpec, ScaleSpec, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.kernel.lift import Lift, lift_width
from streammiml.learn.checkpoint import TrainState, state_of
from streammiml.model import Model


def settings_from(model: Model, config: TrainConfig) -> TrainConfig:
    """Take over the settings that the model decides; refuse given settings that contradict it."""
    decided: dict[str, Any] = {
        "restarts": _n_restarts(model, config),
        "subconcepts": model.subconcepts,
        "shared_space": model.has_shared_space,
        "scale": model.settings.get("scale", "none"),
        "lift": str(LiftSpec.parse(model.settings.get("lift", str(model.lift_spec)))),
    }
    if model.has_shared_space:
        decided["shared_dim"] = model.shared_dim
    normalised = {
        "scale": str(ScaleSpec.parse(config.scale)),
        "lift": str(LiftSpec.parse(config.lift)),
    }
    given = {name: normalised.get(name, value) for name, value in config.given().items()}
    for name, value in decided.items():
        if given.get(name, value) not in (value, "auto"):
            other = "give --restarts 1, " if name == "restarts" else ""
            raise StreammimlError(
                f"the model to start from has {name} {value!r}, not {given[name]!r}; leave it out, "
                f"{other}or train without --start"
            )
    return replace(config, **decided)


def _n_restarts(model: Model, config: TrainConfig) -> int:
    """Number of restarts: those of the model, or only its first if one is wanted."""
    if config.restarts == 1 or (config.restarts is None and config.replicas > 1):
        return 1
    return model.restarts


def check_follows(model: Model, store: Bags) -> None:
    """Refuse a store with other features, or whose labels do not begin with the model's."""
    if store.n_features != model.n_features:
        raise StreammimlError(
            f"the model to start from takes rows of {model.n_features} features and {store.name} "
            f"has {store.n_features}; use a store made the same way, or train without --start"
        )
    advice = "its labels must be those of the model in the same order, then any new labels"
    if store.n_labels < model.n_labels:
        raise StreammimlError(
            f"the model to start from has {model.n_labels} labels and {store.name} has "
            f"{store.n_labels}; {advice}; labels without bags are allowed"
        )
    names = zip(model.label_names or (), store.label_names or (), strict=False)
    for i, (ours, theirs) in enumerate(names):
        if ours != theirs:
            raise StreammimlError(
                f"label {i} is {ours!r} in the model to start from and {theirs!r} in {store.name}; "
                f"{advice}"
            )
    if store.sparse and model.needs_dense_rows:
        raise StreammimlError(
            f"the model to start from was trained on dense rows and {store.name} has sparse rows; "
            "convert to dense rows, or train without --start"
        )


def state_from(model: Model, config: TrainConfig, n_labels: int) -> TrainState:
    """Begin with the weights of the model; new labels get random weights."""
    lift = Lift(*model.lift)
    _, k, m = model.labels.shape
    rng = np.random.default_rng([config.seed, 0xB0, 1])
    shape = (n_labels - model.n_labels, k, m)
    new = rng.normal(0, lift_width(lift) ** -0.5, shape).astype(np.float32)
    labels = np.concatenate([model.labels[:-1], new, model.labels[-1:]])
    state = state_of(model.shared, labels, config, lift)
    state.at.scale = config.scale
    return state
