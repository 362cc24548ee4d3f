"""Brier score and calibration error: values, and what they need."""

import numpy as np
import pytest
from hypothesis import given
from sklearn.metrics import brier_score_loss

from streammiml.errors import StreammimlError
from streammiml.measure.probability import (
    BINS,
    UNIT,
    Reliability,
    brier_score,
    expected_calibration_error,
)
from streammiml.measure.registry import chosen
from tests.measure.cases import block_of, figure, scored, truth_of
from tests.oracles import calibration as oracle


@given(block=scored(max_bags=20))
def test_figures__agree_with_the_oracle_and_scikit_learn(block):
    truth = truth_of(block)
    # The figures round probabilities to 2⁻²⁰, which decides between two bins.
    p = np.rint(block.probabilities.astype(np.float64) * UNIT) / UNIT
    want = oracle.calibration_error(p, truth, BINS)
    assert figure(expected_calibration_error, block).value == pytest.approx(want, abs=1e-12)
    want = brier_score_loss(truth.ravel(), p.ravel(), pos_label=True)
    assert figure(brier_score, block).value == pytest.approx(want, abs=1e-12)


def test_figures__of_certain_probabilities():
    truth = np.array([[True, False], [False, False]])
    right, wrong = truth.astype(np.float32), (~truth).astype(np.float32)
    for probabilities, want in ((right, 0), (wrong, 1)):
        block = block_of(np.zeros((2, 2)), truth, probabilities=probabilities)
        assert figure(brier_score, block).value == want
        assert figure(expected_calibration_error, block).value == want


def test_reliability__adds_bins():
    block = block_of(
        np.zeros((1, 3)),
        np.array([[True, False, True]]),
        probabilities=np.float32([[0.5, 0.5, 1.0]]),
    )
    sums = Reliability.of(block).add(Reliability.of(block))
    assert sums.pairs.tolist() == [0] * 7 + [4] + [0] * 6 + [2]
    assert sums.carried.tolist() == [0] * 7 + [2] + [0] * 6 + [2]
    assert sums.total[7] == 2 * UNIT
    assert sums.error() == 0


@pytest.mark.parametrize("name", ["brier_score", "expected_calibration_error"])
def test_metrics__need_a_calibrated_model(name):
    with pytest.raises(
        StreammimlError, match=f"^{name} needs a calibrated model; train with --calibrate, or"
    ):
        chosen([name], row_labels=False)
    assert name not in [metric.name for metric in chosen(None, row_labels=True)]
    assert chosen([name], row_labels=False, probabilities=True)[0].name == name
