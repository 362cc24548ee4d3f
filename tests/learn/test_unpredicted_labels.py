"""The warning of labels that a model never predicts."""

import logging
import re
from dataclasses import replace

import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn import train as train_module
from streammiml.learn.begin import begin, settle
from streammiml.learn.train import train
from streammiml.learn.unpredicted_labels import CHECK_BYTES, warn_of_unpredicted
from streammiml.model import LabelRule
from tests.planted import planted

STORE = MemoryBags(planted(), n_labels=5)
CONFIG = TrainConfig(shared_dim=8, subconcepts=2, epochs=3, validation=0.0)


@pytest.fixture(scope="module")
def ready_and_model():
    return begin(settle(STORE, CONFIG)), train(STORE, CONFIG)


def lowered(model, *labels):
    """The model with labels that score below the dummy everywhere."""
    vectors = model.labels.copy()
    for label in labels:
        vectors[label] = vectors[-1]
    return replace(model, labels=vectors)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([3], r"1 of 5 labels never score above the dummy label, .* carry them: 3 \(more --ep"),
        ([0, 1, 2, 4], r"4 of 5 labels never .* carry them: 0, 1, 2 and 1 more \(more --ep"),
    ],
)
def test_warning__names_labels_that_are_below_the_dummy(labels, text, ready_and_model, caplog):
    ready, model = ready_and_model
    warn_of_unpredicted(ready, lowered(model, *labels))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(text, record.getMessage())


def test_warning__uses_names_and_is_not_for_other_rules(ready_and_model, caplog):
    ready, model = ready_and_model
    named = replace(lowered(model, 1), label_names=("a", "b", "c", "d", "e"))
    warn_of_unpredicted(ready, replace(named, rule=LabelRule(name="top-r")))
    assert not caplog.records
    warn_of_unpredicted(ready, named)
    assert "carry them: 'b' (more" in caplog.text


def test_train__warns_of_the_model_that_it_returns(monkeypatch, caplog):
    train(STORE, CONFIG)
    assert not caplog.records
    made = train_module.trained_model
    monkeypatch.setattr(train_module, "trained_model", lambda ready: lowered(made(ready), 2))
    train_module.train_trial(STORE, CONFIG)
    assert not caplog.records
    train(STORE, CONFIG)
    assert "1 of 5 labels never score above the dummy label" in caplog.text


def test_warning__is_not_for_labels_that_few_bags_carry(caplog):
    few = MemoryBags(planted(4), n_labels=5)
    ready, model = begin(settle(few, CONFIG)), train(few, CONFIG)
    warn_of_unpredicted(ready, lowered(model, 0, 1, 2, 3, 4))
    assert not caplog.records


def test_warning__needs_room_in_the_memory_of_the_run(ready_and_model, caplog):
    ready, model = ready_and_model
    full = replace(ready.plan.budget, allowed=ready.plan.budget.total + CHECK_BYTES - 1)
    warn_of_unpredicted(replace(ready, plan=replace(ready.plan, budget=full)), lowered(model, 1))
    assert not caplog.records
