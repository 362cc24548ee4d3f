"""The model that a run returns: unpadded weights, the rule of its bags, and what it was made of."""

import numpy as np

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn.begin import begin, settle
from streammiml.learn.trained_model import trained_model
from tests.planted import planted

BAGS = MemoryBags(planted(60), n_labels=5)


def ready(**settings):
    config = TrainConfig(**{"epochs": 1, "validation": 0.0, "shared_dim": 5, **settings})
    return begin(settle(BAGS, config))


def test_trained_model__has_the_current_weights_without_padding():
    run = ready()
    model = trained_model(run)
    assert model.shared.shape == (7, 5)
    np.testing.assert_array_equal(model.shared, run.state.returned().shared[:, :5])
    assert not run.state.weights.shared[:, 5:].any()


def test_trained_model__has_the_best_weights_if_there_are_any():
    run = ready()
    best = run.state.returned()
    best.labels[:] = 0.25
    run.state.best = best
    assert (trained_model(run).labels[:, :, :5] == 0.25).all()


def test_trained_model__rule_and_provenance_come_from_the_store():
    model = trained_model(ready(memory="512MiB"))
    n_pairs = BAGS.n_label_entries
    assert model.rule.r == max(1, round(n_pairs / 60))
    assert model.rule.min_labels == 1
    assert model.provenance["fingerprint"] == BAGS.fingerprint
    assert model.provenance["steps"] == 0
    # Neither memory nor paths change a model.
    assert not {"memory", "checkpoint_every", "validation_store", "start"} & {*model.settings}
