import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streammiml.errors import StreammimlError
from streammiml.measure.rules import highest, predicted
from streammiml.model import LabelRule

# Few values, so that ties are common.
VALUES = st.sampled_from([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0])
SCORES = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=VALUES
)


@st.composite
def scores_and_dummy(draw):
    scores = draw(SCORES)
    return scores, draw(hnp.arrays(np.float32, len(scores), elements=VALUES))


def plainly(rule, scores, dummy):
    """The same in words: two loops over labels."""
    out = np.zeros(scores.shape, bool)
    for i, row in enumerate(scores):
        ranked = sorted(range(len(row)), key=lambda label: (-row[label], label))
        chosen = {
            "dummy": {label for label in ranked if row[label] > dummy[i]},
            "margin": {label for label in ranked if 1 + row[label] > dummy[i]},
            "top-r": set(ranked[: rule.r]),
        }[rule.name]
        for label in ranked:
            if len(chosen) < rule.min_labels:
                chosen.add(label)
        out[i, list(chosen)] = True
    return out


@given(
    case=scores_and_dummy(),
    name=st.sampled_from(["dummy", "margin", "top-r"]),
    min_labels=st.integers(0, 13),
    r=st.integers(1, 13),
)
def test_predicted__does_what_the_rule_says(case, name, min_labels, r):
    rule = LabelRule(name=name, min_labels=min_labels, r=r)
    np.testing.assert_array_equal(predicted(rule, *case), plainly(rule, *case))


def test_predicted__needs_more_than_the_threshold():
    scores, dummy = np.array([[2, 1, 0]], np.float32), np.array([1], np.float32)
    assert predicted(LabelRule(name="dummy"), scores, dummy).tolist() == [[True, False, False]]
    assert predicted(LabelRule(name="margin"), scores, dummy).tolist() == [[True, True, False]]


@given(scores=SCORES, count=st.integers(0, 13))
def test_highest__gives_as_many_as_asked_and_none_below_one_left_out(scores, count):
    chosen = highest(scores, count)
    assert (chosen.sum(axis=1) == min(count, scores.shape[1])).all()
    lowest_in = np.where(chosen, scores, np.inf).min(axis=1)
    assert (lowest_in >= np.where(chosen, -np.inf, scores).max(axis=1)).all()


def test_predicted__takes_a_block_of_no_bags():
    rule = LabelRule(name="dummy", min_labels=1)
    assert predicted(rule, np.zeros((0, 3), np.float32), np.zeros(0, np.float32)).shape == (0, 3)


@pytest.mark.parametrize(
    ("n_pairs", "n_bags", "r"), [(0, 5, 1), (7, 5, 1), (5, 2, 3), (37, 10, 4), (1154, 1000, 1)]
)
def test_fitted_rule__takes_the_mean_number_of_labels(n_pairs, n_bags, r):
    rule = LabelRule.fitted("top-r", None, n_bags=n_bags, n_pairs=n_pairs, n_unlabelled=0)
    assert rule == LabelRule(name="top-r", min_labels=1, r=r)


def test_fitted_rule__asks_for_a_label_only_if_every_bag_had_one():
    counts = {"n_bags": 9, "n_pairs": 20}
    assert LabelRule.fitted("dummy", None, n_unlabelled=1, **counts).min_labels == 0
    assert LabelRule.fitted("dummy", None, n_unlabelled=0, **counts).min_labels == 1
    assert LabelRule.fitted("dummy", 2, n_unlabelled=1, **counts).min_labels == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"name": "best"}, "^no rule is called 'best'; known: dummy, margin, top-r$"),
        ({"min_labels": -1}, "^min_labels must be a whole number at least 0, got -1$"),
        ({"r": 0}, "^r must be a whole number at least 1, got 0$"),
    ],
)
def test_label_rule__refuses_what_it_cannot_apply(setting, message):
    with pytest.raises(StreammimlError, match=message):
        LabelRule(**setting)
