"""Fits of probabilities to margins: bins, Platt's method, isotonic regression, and the choice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression

from streammiml.errors import StreammimlError
from streammiml.learn.calibration import (
    LEAST_BAGS,
    N_BINS,
    STRENGTH,
    Standard,
    add_label_counts,
    bin_margins,
    bins_of,
    empty_label_counts,
    fitted_calibration,
    margins_of,
)
from tests.oracles import calibration as oracle

NONE = Standard.none


def fitted(counts, method, offset=0.0):
    return fitted_calibration(counts, method, NONE(counts.shape[1]), offset)


def made_bags(seed, n_bags=400, rates=(0.5, 0.1, 0.02), slope=2.0):
    """Scores (n, L + 1) and truth (n, L): labels are carried as a logistic function says."""
    rng = np.random.default_rng(seed)
    margins = rng.normal(0, 1.5, (n_bags, len(rates)))
    logits = slope * margins + np.log(np.array(rates) / (1 - np.array(rates)))
    truth = rng.random(margins.shape) < 1 / (1 + np.exp(-logits))
    dummy = rng.normal(size=(n_bags, 1))
    return np.hstack([margins + dummy, dummy]).astype(np.float32), truth


def counts_of(scores, truth, standard=None):
    counts = empty_label_counts(truth.shape[1])
    offsets = np.concatenate([[0], truth.sum(axis=1).cumsum()])
    labels = np.nonzero(truth)[1].astype(np.int32)
    add_label_counts(counts, scores, offsets, labels, standard or NONE(truth.shape[1]))
    return counts


@given(margin=st.floats(-250, 250, width=32))
def test_bins_of__are_about_three_percent_of_the_margin_wide(margin):
    place = int(bins_of(np.float32([margin]))[0])
    assert 0 <= place < N_BINS
    assert abs(bin_margins()[place] - margin) <= max(abs(margin) / 32, 2.0**-6)


def test_bins_of__ascend_with_the_margin_and_end_at_both_sides():
    margins = np.sort(np.float32([*np.geomspace(1e-4, 1e4, 200), *-np.geomspace(1e-4, 1e4, 200)]))
    assert (np.diff(bins_of(margins)) >= 0).all()
    assert bins_of(np.float32([-1e30, 0, 1e30])).tolist() == [0, N_BINS // 2, N_BINS - 1]
    assert (np.diff(bin_margins()) > 0).all()


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 40))
def test_add_label_counts__is_the_same_however_bags_are_cut(seed, cut):
    scores, truth = made_bags(seed, n_bags=40)
    parts = counts_of(scores[:cut], truth[:cut]) + counts_of(scores[cut:], truth[cut:])
    np.testing.assert_array_equal(parts, counts_of(scores, truth))
    np.testing.assert_array_equal(parts[1].sum(axis=1), truth.sum(axis=0))
    np.testing.assert_array_equal(parts.sum(axis=(0, 2)), 40)


@pytest.mark.parametrize("seed", range(3))
def test_platt__has_the_lowest_cost(seed):
    scores, truth = made_bags(seed)
    counts = counts_of(scores, truth)
    margins = bin_margins()[bins_of(scores[:, :-1] - scores[:, -1:])]
    got = fitted(counts, "platt").platt
    flat = margins.ravel(), truth.ravel()
    common = minimize(lambda line: oracle.cost(*flat, *line, 0, 0), [1, 0]).x[0]
    for label in range(truth.shape[1]):
        args = margins[:, label], truth[:, label]
        tail = common, STRENGTH / common**2

        def cost(line, args=args, tail=tail):
            return oracle.cost(*args, *line, *tail)

        assert cost(got[label]) <= minimize(cost, [1, 0]).fun + 1e-4


def test_platt__recovers_the_function_that_made_the_labels():
    scores, truth = made_bags(0, n_bags=20_000)
    got = fitted(counts_of(scores, truth), "platt").platt
    np.testing.assert_allclose(got[:, 0], 2, rtol=0.1)
    np.testing.assert_allclose(got[:, 1], np.log([1, 1 / 9, 2 / 98]), atol=0.15)


def test_platt__slopes_of_rare_labels_stay_near_the_common_slope():
    scores, truth = made_bags(0, n_bags=2000, rates=(0.5, 0.5))
    truth[:, 1] = False
    # Two bags carry the label, and their scores for it are low.
    truth[np.argsort(scores[:, 1] - scores[:, 2])[:2], 1] = True
    lines = fitted(counts_of(scores, truth), "platt").platt
    assert lines[0, 0] == pytest.approx(2, rel=0.15)
    assert 0 < lines[1, 0] < lines[0, 0]
    probabilities = fitted(counts_of(scores, truth), "platt").of_scores(
        scores[:, :-1], scores[:, -1]
    )
    assert probabilities[:, 1].mean() == pytest.approx(2.5 / 2000, rel=0.5)


def test_platt__of_labels_that_no_bag_or_every_bag_carries_is_near_0_and_1():
    scores, truth = made_bags(0, rates=(0.5, 0.5, 0.5))
    truth[:, 1], truth[:, 2] = False, True
    fit = fitted(counts_of(scores, truth), "platt")
    probabilities = fit.of_scores(scores[:, :-1], scores[:, -1])
    assert 0 < probabilities[:, 1].mean() < 0.01
    assert 0.99 < probabilities[:, 2].mean() < 1


def test_platt__of_scores_that_tell_nothing_has_flat_functions():
    scores, truth = made_bags(0, slope=-2.0, rates=(0.5, 0.3))
    fit = fitted(counts_of(scores, truth), "platt")
    assert (fit.platt[:, 0] > 0).all()
    assert (fit.platt[:, 0] < 0.01).all()
    probabilities = fit.of_scores(scores[:, :-1], scores[:, -1])
    np.testing.assert_allclose(probabilities.mean(axis=0), truth.mean(axis=0), atol=0.01)


def test_isotonic__agrees_with_scikit_learn_on_the_bins():
    scores, truth = made_bags(3, n_bags=1500)
    margins = bin_margins()[bins_of(scores[:, :-1] - scores[:, -1:])]
    fit = fitted(counts_of(scores, truth), "isotonic")
    assert fit.n_isotonic == 3
    asked = np.linspace(-6, 6, 400).astype(np.float32)
    got = fit.of_scores(np.repeat(asked[:, None], 3, axis=1), np.zeros(400, np.float32))
    for label in range(3):
        peer = IsotonicRegression(out_of_bounds="clip").fit(margins[:, label], truth[:, label])
        np.testing.assert_allclose(got[:, label], peer.predict(asked), atol=1e-5)


def test_auto__is_isotonic_with_enough_bags_of_either_kind():
    scores, truth = made_bags(0, n_bags=2 * LEAST_BAGS, rates=(0.5, 0.5, 0.5))
    half = np.arange(2 * LEAST_BAGS) % 2 == 0
    truth[:, 0], truth[:, 1], truth[:, 2] = half, half, half
    truth[0, 1], truth[1, 2] = False, True
    sizes = np.diff(fitted(counts_of(scores, truth), "auto").offsets)
    assert (sizes > 0).tolist() == [True, False, False]


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_offset__moves_the_functions_with_the_scores_of_the_dummy(method):
    scores, truth = made_bags(0)
    counts = counts_of(scores, truth)
    moved = scores[:, -1] + np.float32(0.75)
    np.testing.assert_allclose(
        fitted(counts, method, 0.75).of_scores(scores[:, :-1], moved),
        fitted(counts, method).of_scores(scores[:, :-1], scores[:, -1]),
        atol=1e-5,
    )


def test_fitted_calibration__refuses_unknown_methods():
    with pytest.raises(StreammimlError, match=r"^no calibration is called 'best'; known: auto, is"):
        fitted(empty_label_counts(2), "best")


def test_fitted_calibration__without_any_bag_is_defined():
    fit = fitted(empty_label_counts(2), "auto")
    assert np.isfinite(fit.platt).all()


def test_standard__is_mean_and_deviation_of_margins_however_bags_are_cut():
    scores, _ = made_bags(0)
    scores[:, 2] = scores[:, 3] + np.float32(1.5)
    standard = Standard.of_blocks([scores[:123], scores[123:]])
    margins = scores[:, :-1].astype(float) - scores[:, -1:]
    np.testing.assert_array_equal(margins_of(scores), margins)
    np.testing.assert_allclose(standard.center, margins.mean(axis=0))
    np.testing.assert_allclose(standard.scale[:2], margins.std(axis=0)[:2])
    # All margins of the last label are nearly equal.
    assert standard.scale[2] == 1


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_standard__functions_follow_another_place_and_scale_of_the_margins(method):
    scores, truth = made_bags(0, n_bags=2000)
    moved = scores[:, :-1] * np.float32(0.25) + scores[:, -1:] * np.float32(0.75) + 3
    moved = np.hstack([moved, scores[:, -1:]])
    fits = []
    for placed in (scores, moved):
        standard = Standard.of_blocks([placed])
        counts = counts_of(placed, truth, standard)
        fits.append(fitted_calibration(counts, method, standard, 0.5))
    got = fits[1].of_scores(moved[:, :-1], moved[:, -1] + np.float32(0.5))
    want = fits[0].of_scores(scores[:, :-1], scores[:, -1] + np.float32(0.5))
    # A few margins fall into another bin by rounding.
    assert np.abs(got - want).mean() < 1e-3
    assert np.abs(got.mean(axis=0) - truth.mean(axis=0)).max() < 0.01
