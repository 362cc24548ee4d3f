import pickle
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.errors import StreammimlError
from streammiml.measure.metric import UNIT, BagMean
from streammiml.measure.registry import METRICS, chosen, metric_named
from tests.measure.cases import figure, scored, take


@pytest.mark.parametrize("name", METRICS)
@given(block=scored(max_bags=12), seed=st.integers(0, 99), n_cuts=st.integers(0, 6))
def test_every_metric__is_the_same_to_the_bit_however_bags_are_cut_and_ordered(
    name, block, seed, n_cuts
):
    rng = np.random.default_rng(seed)
    order = rng.permutation(block.n_bags)
    ends = np.sort(np.concatenate([[0, block.n_bags], rng.integers(0, block.n_bags + 1, n_cuts)]))
    pieces = [take(block, order[a:b]) for a, b in pairwise(ends.tolist())]
    assert figure(METRICS[name], *pieces) == figure(METRICS[name], block)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric__moves_between_processes(name):
    assert pickle.loads(pickle.dumps(METRICS[name])) is not None


def test_bag_mean__sums_more_ones_than_one_integer_holds():
    ones = np.ones(100_000)
    assert BagMean.of(ones) == (100_000, 100_000 * UNIT, 100_000 * UNIT)
    assert BagMean.of(ones).figure().value == 1
    assert BagMean.of(ones).figure().standard_error == 0


def test_metric_named__takes_any_k():
    assert metric_named("precision_at_17").name == "precision_at_17"
    assert metric_named("ndcg_at_2").name == "ndcg_at_2"


@pytest.mark.parametrize("name", ["haming", "ndcg_at_0", "ndcg_at_", "precision_at_K"])
def test_metric_named__says_what_is_known(name):
    with pytest.raises(
        StreammimlError,
        match=f"^no metric is called '{name}'; known: average_precision, brier_score, ",
    ):
        metric_named(name)


def test_chosen__leaves_out_or_refuses_what_needs_row_labels():
    assert "key_instance_accuracy" not in [m.name for m in chosen(None, row_labels=False)]
    with_all = chosen(None, row_labels=True, probabilities=True)
    assert [m.name for m in with_all] == list(METRICS)
    with pytest.raises(
        StreammimlError,
        match=r"^key_instance_accuracy needs a store with row labels; leave this metric",
    ):
        chosen(["key_instance_accuracy"], row_labels=False)


def test_chosen__takes_each_once_in_the_order_asked():
    asked = ["coverage", METRICS["one_error"], "coverage"]
    assert [m.name for m in chosen(asked, row_labels=False)] == ["coverage", "one_error"]


@given(block=scored(max_bags=12), seed=st.integers(0, 99))
def test_select__takes_bags_with_all_that_belongs_to_them(block, seed):
    bags = np.random.default_rng(seed).permutation(block.n_bags)[: 1 + seed % block.n_bags]
    got, want = block.select(bags), take(block, bags)
    for name in (field.name for field in fields(block)):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
    without_rows = replace(block, key_rows=None, bag_offsets=None, row_labels=None, numbers=None)
    assert without_rows.select(bags).scores.shape == want.scores.shape
