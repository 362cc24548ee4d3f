"""A model made up for a store, and bags whose labels it knows something of."""

import numpy as np

from streammiml.model import LabelRule, LiftArrays, Model


def made_model(n_features=3, n_labels=4, *, seed=0, shared_dim=5, subconcepts=2, **changes):
    rng = np.random.default_rng(seed)
    fields = {
        "shared": rng.normal(size=(n_features + 1, shared_dim)),
        "labels": rng.normal(size=(n_labels + 1, subconcepts, shared_dim)),
        "lift": LiftArrays(
            shift=np.zeros(n_features),
            scale=np.ones(n_features),
            transform=0,
            unit=0,
            frequencies=np.zeros((n_features, 0)),
            phases=np.zeros(0),
            context=0,
        ),
        "rule": LabelRule(min_labels=1),
    }
    return Model(**{**fields, **changes})
