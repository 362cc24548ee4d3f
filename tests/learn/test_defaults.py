import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.defaults import (
    EPOCHS,
    FOLDS,
    LEAST_EPOCHS,
    LEAST_FOLDED,
    STEPS,
    epochs_of,
    fold_settings,
    is_folded,
    resolved,
    steady_epochs_of,
)
from streammiml.learn.holdout import Holdout
from streammiml.learn.train import train
from tests.planted import planted

COUNTS = st.integers(1, 10**9)
DECIDING = [{"epochs": 3}, {"max_steps": 90}, {"validation": 0.0}, {"validation_store": "x.zarr"}]


@given(n_bags=COUNTS)
def test_resolved__holds_out_a_tenth_of_many_bags_and_none_of_few(n_bags):
    config = resolved(TrainConfig(), n_bags)
    assert config.validation == (0.1 if n_bags >= 5000 else 0.0)
    assert config.n_epochs == EPOCHS if config.validation else config.n_epochs >= LEAST_EPOCHS


@given(n_bags=COUNTS)
def test_resolved__without_looks_makes_enough_steps(n_bags):
    config = resolved(TrainConfig(validation=0.0), n_bags)
    assert config.n_epochs * n_bags >= STEPS
    assert config.n_epochs == LEAST_EPOCHS or (config.n_epochs - 1) * n_bags < STEPS


@given(n_bags=COUNTS, validation=st.floats(0, 0.9), epochs=st.integers(1, 10**6))
def test_resolved__keeps_what_is_given(n_bags, validation, epochs):
    config = TrainConfig(validation=validation, epochs=epochs)
    assert resolved(config, n_bags) == config


def test_resolved__looks_at_a_validation_store_for_as_long_as_at_held_out_bags():
    assert resolved(TrainConfig(validation_store="x.zarr"), 50).epochs == EPOCHS


@given(n_bags=st.integers(LEAST_FOLDED, 4999), every=st.integers(0, 10**12))
def test_folds__are_looked_at_some_times_however_little_a_step_costs(n_bags, every):
    config = fold_settings(TrainConfig(), n_bags, every)
    # Folds may be a bag larger or smaller.
    steps = config.n_epochs * (n_bags * (FOLDS - 1) // FOLDS - 1)
    assert steps // config.validate_every >= 7


@pytest.mark.parametrize("deciding", DECIDING)
@pytest.mark.parametrize("n_bags", [LEAST_FOLDED, 4999])
def test_folds__are_for_few_bags_where_nothing_else_says_how_long(deciding, n_bags):
    assert is_folded(TrainConfig(), n_bags)
    assert not is_folded(TrainConfig(**deciding), n_bags)


@pytest.mark.parametrize("n_bags", [1, LEAST_FOLDED - 1, 5000, 10**8])
def test_folds__are_not_for_very_few_bags_nor_for_many(n_bags):
    assert not is_folded(TrainConfig(), n_bags)


@given(n_bags=st.integers(40, 5000))
def test_of_fold__every_bag_is_in_one_fold(n_bags):
    folds = [Holdout.of_fold(fold, FOLDS, n_bags).bags.tolist() for fold in range(FOLDS)]
    assert sorted(bag for fold in folds for bag in fold) == list(range(n_bags))


def test_of_fold__refuses_bags_that_are_too_few():
    with pytest.raises(StreammimlError, match=r"^1 bags are too few for 3 folds; give --epochs$"):
        Holdout.of_fold(0, FOLDS, 1)


def test_epochs_of__is_the_lowest_mean_of_looks_that_all_have():
    curves = [{200: 0.5, 400: 0.1, 600: 0.3}, {200: 0.2, 400: 0.4, 600: 0.1, 617: 0.0}]
    curves.append({200: 0.2, 400: 0.2, 600: 0.2})
    # Runs on 200 of 300 bags: step 600 is their third epoch.
    assert epochs_of(curves, 300) == 3


@given(
    losses=st.lists(
        st.lists(st.floats(0, 1), min_size=6, max_size=6), min_size=FOLDS, max_size=FOLDS
    )
)
def test_epochs_of__no_look_has_a_lower_mean(losses):
    steps = [200 * (i + 1) for i in range(6)]
    curves = [dict(zip(steps, losses_of_fold, strict=True)) for losses_of_fold in losses]
    at = epochs_of(curves, 300)
    means = [math.fsum(curve[step] for curve in curves) for step in steps]
    assert means[at - 1] == min(means)
    assert 1 <= steady_epochs_of(curves, 300) <= 6


@pytest.mark.slow
def test_train__few_bags_are_all_trained_on_for_as_long_as_folds_say():
    store = MemoryBags(planted(120))
    config = TrainConfig(shared_dim=8, subconcepts=2, preset="plain")
    model = train(store, config)
    assert model.settings["validation"] == 0.0
    assert model.provenance["steps"] == model.settings["epochs"] * 120
    again = train(store, replace(config, epochs=model.settings["epochs"]))
    assert again.labels.tobytes() == model.labels.tobytes()


def test_steady_epochs_of__ignores_small_differences_and_heeds_large_ones():
    steps = [200 * 2**i for i in range(7)]
    noise = [0.002, -0.002, 0.002, -0.002, 0.002, -0.002, 0.002]
    flat = [dict(zip(steps, (0.1 + sign * n for n in noise), strict=True)) for sign in (1, -1, 1)]
    moved = [{**curve, 200: curve[200] - 0.002} for curve in flat]
    assert abs(steady_epochs_of(flat, 300) - steady_epochs_of(moved, 300)) <= 1
    assert (epochs_of(flat, 300), epochs_of(moved, 300)) == (2, 1)
    steep = [{**curve, 400: 0.02} for curve in flat]
    assert steady_epochs_of(steep, 300) == 2


def test_train__of_one_label_needs_no_folds():
    block = planted(60)
    one = BagBlock.from_bags([block.rows_of(i) for i in range(60)], [[0]] * 60)
    model = train(MemoryBags(one), TrainConfig(shared_dim=8, subconcepts=2))
    assert model.settings["epochs"] == math.ceil(STEPS / 60)
