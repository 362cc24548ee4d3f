from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from sklearn import metrics as sklearn

from streammiml.measure import counts, metric
from streammiml.measure.metric import Figure
from tests.measure.cases import block_of, figure, relevant_of, scored, truth_of
from tests.oracles import counts as oracle

CLOSE = {"rel": 0, "abs": 1e-12}
NAMES = ["hamming_loss", "subset_accuracy", "micro_f1", "macro_f1", "sample_f1"]


def bags_of(block):
    predicted = [set(np.flatnonzero(row).tolist()) for row in block.predicted]
    return list(zip(predicted, relevant_of(block), strict=True))


@pytest.mark.parametrize("name", NAMES)
@given(block=scored())
def test_counting_metrics__agree_with_plain_loops(name, block):
    got = figure(getattr(counts, name), block).value
    assert got == pytest.approx(
        float(getattr(oracle, name)(bags_of(block), block.n_labels)), **CLOSE
    )


@given(block=scored(min_labels=2))
def test_counting_metrics__agree_with_scikit_learn(block):
    truth, predicted = truth_of(block).astype(int), block.predicted.astype(int)
    want = {
        counts.hamming_loss: sklearn.hamming_loss(truth, predicted),
        counts.subset_accuracy: sklearn.accuracy_score(truth, predicted),
    }
    for name, measure in (
        ("micro", counts.micro_f1),
        ("macro", counts.macro_f1),
        ("samples", counts.sample_f1),
    ):
        want[measure] = sklearn.f1_score(truth, predicted, average=name, zero_division=0)
    for measure, value in want.items():
        assert figure(measure, block).value == pytest.approx(value, **CLOSE), measure.name


@given(block=scored(max_bags=20))
def test_macro_f1__standard_error_agrees_with_plain_loops(block):
    groups = block.groups[0].tolist()
    error = figure(counts.macro_f1, block).standard_error
    if len(set(groups)) < 2:
        assert error is None
    else:
        want = oracle.macro_f1_variance(bags_of(block), groups, block.n_labels)
        assert error == pytest.approx(float(want) ** 0.5, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("most", [metric.GROUPED_COUNTS, 6 * metric.FEWEST_GROUPS])
def test_macro_f1__standard_error_is_what_other_bags_show(monkeypatch, most):
    """Bags with much or little wrong, so that labels go together, and frequent and rare labels."""
    monkeypatch.setattr(metric, "GROUPED_COUNTS", most)
    rng = np.random.default_rng(1)
    often = np.geomspace(0.5, 0.05, 6)
    values, errors = [], []
    for _ in range(150):
        truth = rng.random((500, 6)) < often
        predicted = truth ^ (rng.random(truth.shape) < rng.choice([0.02, 0.4], (500, 1)))
        computed = figure(counts.macro_f1, block_of(np.zeros(truth.shape), truth, predicted))
        values.append(computed.value)
        errors.append(computed.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_macro_f1__has_no_standard_error_where_bags_have_no_numbers():
    block = block_of(np.eye(4), np.eye(4, dtype=bool))
    assert figure(counts.macro_f1, block).standard_error == 0
    assert figure(counts.macro_f1, replace(block, numbers=None)) == Figure(1.0)


def test_macro_f1__has_no_standard_error_where_labels_are_too_many(monkeypatch):
    monkeypatch.setattr(metric, "GROUPED_COUNTS", 4 * metric.FEWEST_GROUPS)
    for n, error in ((4, 0), (5, None)):
        computed = figure(counts.macro_f1, block_of(np.eye(n), np.eye(n, dtype=bool)))
        assert computed == Figure(1.0, error)


@given(block=scored())
def test_key_instance_accuracy__agrees_with_plain_loops(block):
    bags = [
        (block.row_labels[a:b].tolist(), keys.tolist(), relevant)
        for a, b, keys, relevant in zip(
            block.bag_offsets[:-1],
            block.bag_offsets[1:],
            block.key_rows,
            relevant_of(block),
            strict=True,
        )
    ]
    right, counted, unknown = oracle.key_instances(bags)
    accuracy = figure(counts.key_instance_accuracy, block)
    assert accuracy.value == (right / counted if counted else None)
    assert accuracy.also == {
        "n_key_pairs": counted,
        "n_key_rows_unknown": unknown,
        "n_rows_unknown": int((block.row_labels == -1).sum()),
    }


def test_key_instance_accuracy__a_key_row_of_unknown_label_is_wrong():
    rows = (np.array([3]), np.array([-1, 0, 1], np.int32), np.array([[1, 0, 2]]))
    block = block_of(np.zeros((1, 3)), np.array([[True, True, True]]), rows=rows)
    accuracy = figure(counts.key_instance_accuracy, block)
    # Label 2 has no row in the bag and is left out; the key row of label 1 is unknown.
    assert accuracy.value == 0.5
    assert accuracy.also == {"n_key_pairs": 2, "n_key_rows_unknown": 1, "n_rows_unknown": 1}


def test_micro_f1__of_nothing_true_or_predicted_is_0_as_in_scikit_learn():
    block = block_of(-np.ones((2, 3)), np.zeros((2, 3), bool))
    assert figure(counts.micro_f1, block).value == 0
    assert figure(counts.subset_accuracy, block).value == 1


def test_micro_f1__standard_error_is_what_resampling_bags_shows():
    rng = np.random.default_rng(1)
    truth = rng.random((400, 6)) < rng.uniform(0.05, 0.6, (400, 1))
    predicted = truth ^ (rng.random(truth.shape) < rng.uniform(0, 0.4, (400, 1)))
    hits, sizes = 2 * (truth & predicted).sum(1), truth.sum(1) + predicted.sum(1)
    again = rng.integers(0, 400, (4000, 400))
    seen = np.std(hits[again].sum(1) / sizes[again].sum(1))
    block = block_of(np.zeros(truth.shape), truth, predicted)
    assert figure(counts.micro_f1, block).standard_error == pytest.approx(seen, rel=0.05)
