"""Areas under curves: as scikit-learn and plain loops have them, exactly or within their bounds."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn

from streammiml.measure import areas
from streammiml.measure.metric import Figure
from tests.measure.cases import block_of, figure, relevant_of, scored, take
from tests.oracles import areas as oracle
from tests.oracles import counts as counts_oracle

CLOSE = {"rel": 0, "abs": 1e-12}
NAMES = ["macro_auc", "micro_auc", "macro_average_precision", "micro_average_precision"]
UNDEFINED = {
    "macro_auc": {"n_labels_of_one_class": 3},
    "macro_average_precision": {"n_labels_of_no_bag": 3},
}


def bags_of(block):
    return list(zip(block.scores.tolist(), relevant_of(block), strict=True))


def same(got, want):
    """Whether a value is that of an oracle, which may be None."""
    return got is None if want is None else got == pytest.approx(float(want), **CLOSE)


@pytest.mark.parametrize("name", NAMES)
@given(block=scored(max_bags=20))
def test_areas__agree_with_plain_loops(name, block):
    got = figure(getattr(areas, name), block)
    assert same(got.value, getattr(oracle, name)(bags_of(block)))
    assert got.bounds is None
    assert got.standard_error is None


@given(block=scored(max_bags=20), k=st.integers(1, 10))
def test_gap_at_k__agrees_with_plain_loops(block, k):
    assert same(figure(areas.gap_at(k), block).value, oracle.gap_at(bags_of(block), k))


@given(block=scored(max_bags=20))
def test_gap__of_all_labels_is_the_micro_average_precision(block):
    want = figure(areas.micro_average_precision, block).value
    assert same(figure(areas.gap_at(8), block).value, want)


@given(seed=st.integers(0, 2**20), n_bags=st.integers(2, 60), levels=st.sampled_from([1, 3, 20, 0]))
def test_areas__agree_with_scikit_learn(seed, n_bags, levels):
    """Random scores of ``levels`` values, so many tie; labels of no bag and of every bag."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (n_bags, 7)) if levels else rng.normal(size=(n_bags, 7))
    scores = scores.astype(np.float32)
    truth = rng.random((n_bags, 7)) < 0.3
    truth[:, 0], truth[:, 1] = False, True
    truth[rng.random(n_bags) < 0.2, 2:] = False
    block, of_all = block_of(scores, truth), scores.astype(np.float64)
    labels = range(7)
    n_carried = truth.sum(axis=0)
    auc = {
        i: sklearn.roc_auc_score(truth[:, i], of_all[:, i])
        for i in labels
        if 0 < n_carried[i] < n_bags
    }
    precision = {
        i: sklearn.average_precision_score(truth[:, i], of_all[:, i])
        for i in labels
        if n_carried[i]
    }
    table = figure(areas.per_label, block).value
    for i in labels:
        assert same(table[i]["auc"], auc.get(i)), i
        assert same(table[i]["average_precision"], precision.get(i)), i
    macro_auc = figure(areas.macro_auc, block)
    assert same(macro_auc.value, np.mean([*auc.values()]) if auc else None)
    assert macro_auc.also == {"n_labels_of_one_class": 7 - len(auc)}
    macro_precision = figure(areas.macro_average_precision, block)
    assert same(macro_precision.value, np.mean([*precision.values()]))
    assert macro_precision.also == {"n_labels_of_no_bag": 7 - len(precision)}
    flat = truth.ravel(), of_all.ravel()
    assert same(figure(areas.micro_auc, block).value, sklearn.roc_auc_score(*flat))
    want = sklearn.average_precision_score(*flat)
    assert same(figure(areas.micro_average_precision, block).value, want)


@pytest.mark.parametrize("name", [*NAMES, "per_label"])
@given(block=scored(max_bags=20), cut=st.integers(0, 20), most=st.integers(1, 80))
def test_areas__in_little_memory_are_the_same_in_any_cut_with_bounds_that_hold(
    name, block, cut, most
):
    exact = figure(getattr(areas, name), block)
    order = np.random.default_rng(most).permutation(block.n_bags)
    pieces = [
        take(block, order[a:b]) for a, b in pairwise([0, min(cut, block.n_bags), block.n_bags])
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(areas, "MOST_SCORES", most)
        whole = figure(getattr(areas, name), block)
        assert figure(getattr(areas, name), *pieces) == whole
    if name == "per_label":
        for row, exact_row in zip(whole.value, exact.value, strict=True):
            for column in ("auc", "average_precision"):
                bounds = row.get(f"{column}_bounds")
                if bounds is None:
                    assert row[column] == exact_row[column]
                else:
                    assert bounds[0] - 1e-12 <= exact_row[column] <= bounds[1] + 1e-12
    elif whole.bounds is None:
        assert whole == exact
    else:
        assert whole.also == exact.also
        assert whole.bounds[0] - 1e-12 <= exact.value <= whole.bounds[1] + 1e-12
        assert whole.bounds[0] - 1e-12 <= whole.value <= whole.bounds[1] + 1e-12


@given(block=scored(max_bags=20), most=st.integers(1, 80))
def test_gap__in_little_memory_has_bounds_that_hold(block, most):
    exact = figure(areas.gap_at(3), block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(areas, "MOST_POOLED", most)
        coarse = figure(areas.gap_at(3), block)
    low, high = coarse.bounds or (coarse.value, coarse.value)
    assert coarse.value is None or low - 1e-12 <= exact.value <= high + 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_areas__without_carried_pairs_are_undefined(name):
    bare = block_of(np.zeros((2, 3)), np.zeros((2, 3), bool))
    assert figure(getattr(areas, name), bare) == Figure(None, also=UNDEFINED.get(name, {}))
    assert figure(areas.gap_at(20), bare) == Figure(None)


def test_areas__of_labels_that_every_bag_carries():
    every = block_of(np.zeros((2, 3)), np.ones((2, 3), bool))
    assert figure(areas.macro_auc, every).value is None
    assert figure(areas.micro_auc, every).value is None
    assert figure(areas.macro_average_precision, every).value == 1
    assert figure(areas.gap_at(20), every).value == 1


def test_gap__counts_relevant_labels_below_the_first_k_as_missed():
    scores, truth = np.array([[3.0, 2, 1], [0, 5, 4]]), np.array([[True, False, True], [False] * 3])
    block = block_of(scores, truth)
    # In order 5 (wrong), 3 (right): precision ½ at half of the two relevant labels.
    assert figure(areas.gap_at(1), block).value == 0.25
    missed = block_of(scores, np.array([[False, True, True], [False] * 3]))
    assert figure(areas.gap_at(1), missed) == Figure(0.0)


def test_gap__takes_the_lowest_label_of_equal_scores():
    truth = np.array([[True, False]])
    assert figure(areas.gap_at(1), block_of(np.zeros((1, 2)), truth)).value == 1
    assert figure(areas.gap_at(1), block_of(np.zeros((1, 2)), ~truth)).value == 0


@given(block=scored())
def test_per_label__counts_as_plain_loops_do(block):
    predicted = [set(np.flatnonzero(row).tolist()) for row in block.predicted]
    bags = list(zip(predicted, relevant_of(block), strict=True))
    want = counts_oracle.per_label(bags, block.n_labels)
    table = figure(areas.per_label, block).value
    assert [{**row} | want[i] for i, row in enumerate(table)] == table
    assert list(table[0]) == [*want[0], "auc", "average_precision"]
    for label, row in enumerate(table):
        scores = oracle.of_label(bags_of(block), label)
        assert same(row["auc"], oracle.auc(scores))
        assert same(row["average_precision"], oracle.average_precision(scores))


def test_areas__a_perfect_model_has_all_ones():
    truth = np.random.default_rng(0).random((40, 6)) < 0.3
    truth[:10] = False
    block = block_of(truth * 2.0 - 1, truth)
    for name in NAMES:
        assert figure(getattr(areas, name), block).value == 1
    assert figure(areas.gap_at(20), block).value == 1


def test_metrics_of_areas__share_their_partial_figures():
    metrics = [getattr(areas, name) for name in (*NAMES, "per_label")]
    assert len({(metric.block, metric.combine) for metric in metrics}) == 1
