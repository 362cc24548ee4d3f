"""Functions from margins to probabilities: values, tensors, order of labels, damage."""

import numpy as np
import pytest

from streammiml._base.calibration import Calibration
from streammiml.errors import StreammimlError
from tests.oracles import calibration as oracle

KNOTS = [None, (np.array([-1.0, 0.5, 2.0]), np.array([0.1, 0.4, 0.9])), None]
LINES = np.array([[1.5, -0.5], [1.0, 0.0], [0.0, 0.25]])


def made():
    return Calibration.of_knots(LINES, KNOTS)


def test_of_scores__are_logistic_or_follow_the_knots():
    rng = np.random.default_rng(0)
    scores, dummy = rng.normal(0, 3, (50, 3)).astype(np.float32), rng.normal(size=50)
    got = made().of_scores(scores, dummy.astype(np.float32))
    assert got.dtype == np.float32
    for bag, label in np.ndindex(scores.shape):
        margin = float(scores[bag, label]) - float(np.float32(dummy[bag]))
        pair = KNOTS[label]
        knots = list(zip(*(part.tolist() for part in pair), strict=True)) if pair else []
        want = oracle.probability(margin, *LINES[label], knots)
        assert got[bag, label] == pytest.approx(want, abs=1e-6)


def test_of_scores__is_the_same_to_the_bit_in_any_grouping_and_layout():
    rng = np.random.default_rng(1)
    scores, dummy = rng.normal(size=(67, 3)).astype(np.float32), np.zeros(67, np.float32)
    whole = made().of_scores(scores, dummy)
    parts = [made().of_scores(scores[i : i + 1], dummy[i : i + 1]) for i in range(67)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    wide = np.zeros((67, 9), np.float32)
    wide[:, 2:5] = scores
    assert made().of_scores(wide[:, 2:5], dummy).tobytes() == whole.tobytes()


def test_of_scores__of_extreme_margins_are_0_and_1():
    got = made().of_scores(np.float32([[3e38, 3e38, 0]] * 2), np.float32([0, 3.4e38]))
    np.testing.assert_allclose(got[:, 0], [1, 0], atol=1e-30)
    np.testing.assert_allclose(got[:, 1], [0.9, 0.1], rtol=1e-6)


def test_of_labels__follows_the_order():
    scores, dummy = np.float32([[1, 2, 3]]), np.float32([0.5])
    order = [2, 1, 0]
    moved = made().of_labels(order)
    np.testing.assert_array_equal(
        moved.of_scores(scores[:, order], dummy), made().of_scores(scores, dummy)[:, order]
    )
    assert made().n_isotonic == moved.n_isotonic == 1


def test_tensors__are_read_back():
    same = Calibration.from_tensors(made().tensors())
    for name, tensor in made().tensors().items():
        np.testing.assert_array_equal(same.tensors()[name], tensor)
    assert Calibration.from_tensors({"shared": np.zeros(1)}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.array([0, 0, 3])}, "bounds of its calibration do not fit its labels"),
        ({"offsets": np.array([0, 2, 1, 3])}, "bounds of its calibration do not fit its labels"),
        ({"offsets": np.array([0, 0, 2, 2])}, "bounds of its calibration do not fit its knots"),
        ({"offsets": np.array([1, 1, 3, 3])}, "bounds of its calibration do not fit its knots"),
        ({"margins": np.float32([0, 0, 1])}, "probability of its calibration falls where"),
        ({"probabilities": np.float32([0, 0.5, 0.4])}, "probability of its calibration falls"),
        ({"probabilities": np.float32([0, 0.5, 1.1])}, "probability of its calibration falls"),
        ({"platt": np.float32([[-1, 0]] * 3)}, "probability of its calibration falls"),
    ],
)
def test_calibration__refuses_what_no_fit_gives(change, message):
    tensors = made().tensors() | {f"calibration.{name}": part for name, part in change.items()}
    with pytest.raises(StreammimlError, match=message):
        Calibration.from_tensors(tensors)
