import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.config import LiftSpec, ScaleSpec
from streammiml.errors import StreammimlError
from streammiml.kernel.lift import lift_bag, lift_width, plain_rows
from streammiml.learn import scaler
from tests.oracles import lift as oracle

NONE = LiftSpec()
FITTED = ["standard", "standard+unit", "maxabs", "sqrt:standard", "log1p:maxabs"]


def fitted(rows, scale, lift=NONE, *, cuts=(), seed=0):
    fit = scaler.ScalerFit(rows.shape[1], ScaleSpec.parse(scale), lift, seed=seed, sparse=False)
    for block in np.split(rows, cuts):
        fit.update_dense(block)
    return fit.finish()


def fitted_sparse(rows, scale, *, cuts=()):
    fit = scaler.ScalerFit(rows.shape[1], ScaleSpec.parse(scale), NONE, seed=0, sparse=True)
    for block in np.split(rows, cuts):
        places, columns = np.nonzero(block)
        fit.update_sparse(len(block), columns.astype(np.int32), block[places, columns])
    return fit.finish()


def lifted(lift, rows):
    out = np.empty((len(rows), lift_width(lift)), np.float32)
    lift_bag(lift, plain_rows(rows), out)
    return out


def same_bytes(one, other):
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, other, strict=True)
    )


@st.composite
def rows_of_features(draw):
    """Rows whose features differ in place and width by orders of magnitude; some constant."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, d = draw(st.integers(2, 60)), draw(st.integers(1, 6))
    rows = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 3, d) + 10.0 ** rng.integers(-2, 3, d)
    rows[:, rng.random(d) < 0.2] = draw(st.sampled_from([0.0, 0.1, 3e4]))
    return rows.astype(draw(st.sampled_from([np.float32, np.float16, np.int16])))


@given(
    rows=rows_of_features(), scale=st.sampled_from(["standard", "sqrt:standard", "log1p:standard"])
)
def test_standard__gives_mean_zero_equal_variance_and_mean_square_norm_one(rows, scale):
    fit = fitted(rows, scale)
    scaled = lifted(fit.lift, rows)[:, :-1].astype(np.float64)
    n_varying = rows.shape[1] - fit.n_constant
    kept = fit.lift.scale > 0
    assert kept.sum() == n_varying
    assert not scaled[:, ~kept].any()
    if n_varying:
        values = oracle.transformed(rows.astype(np.float64), fit.lift.transform)
        # A feature far from 0 and narrow is known to float32 only.
        slack = 1e-4 + 1e-6 * np.abs(values).max(axis=0)[kept] / values.std(axis=0)[kept]
        assert (np.abs(scaled.mean(axis=0)[kept]) <= slack).all()
        variance = scaled.var(axis=0)[kept] * n_varying
        assert (np.abs(variance - 1) <= 2 * slack).all()
        assert (scaled**2).sum(axis=1).mean() == pytest.approx(1, abs=2 * slack.max())


@given(rows=rows_of_features())
def test_standard_unit__gives_unit_rows(rows):
    norms = np.linalg.norm(lifted(fitted(rows, "standard+unit").lift, rows)[:, :-1], axis=1)
    assert (np.isclose(norms, 1, atol=1e-5) | (norms == 0)).all()


@given(rows=rows_of_features())
def test_maxabs__divides_by_the_largest_and_one_factor(rows):
    fit = fitted(rows, "maxabs")
    top = np.abs(rows.astype(np.float64)).max(axis=0)
    scaled = lifted(fit.lift, rows)[:, :-1].astype(np.float64)
    kept = top > 0
    assert not fit.lift.shift.any()
    if kept.any():
        tops = np.abs(scaled).max(axis=0)[kept]
        np.testing.assert_allclose(tops, tops[0], rtol=1e-5)
        assert (scaled**2).sum(axis=1).mean() == pytest.approx(1, abs=1e-4)


@given(
    rows=rows_of_features(), scale=st.sampled_from(["none", "unit", "sqrt:unit", *FITTED, "auto"])
)
def test_fit__never_gives_anything_but_numbers(rows, scale):
    rows[0] = 0
    assert np.isfinite(lifted(fitted(rows, scale).lift, rows)).all()


@given(rows=rows_of_features(), scale=st.sampled_from([*FITTED, "auto"]), cut=st.integers(0, 60))
def test_fit__does_not_depend_on_how_rows_come_in_blocks(rows, scale, cut):
    cuts = sorted({min(cut, len(rows)), len(rows) // 2})
    spec = LiftSpec(n_fourier=5)
    fitted_once = fitted(rows, scale, spec, seed=3)
    assert same_bytes(fitted_once.lift, fitted(rows, scale, spec, cuts=cuts, seed=3).lift)
    kept = np.where(np.random.default_rng(0).random(rows.shape) < 0.5, 0, rows)
    assert same_bytes(fitted_sparse(kept, scale).lift, fitted_sparse(kept, scale, cuts=cuts).lift)


@given(rows=rows_of_features(), scale=st.sampled_from(["standard", "maxabs", "sqrt:standard+unit"]))
def test_sparse_fit__has_the_deviations_of_the_dense_one_and_no_centre(rows, scale):
    rows = np.where(np.random.default_rng(len(rows)).random(rows.shape) < 0.6, 0, rows)
    dense, sparse = fitted(rows, scale).lift, fitted_sparse(rows, scale).lift
    assert not sparse.shift.any()
    assert ((dense.scale > 0) == (sparse.scale > 0)).all()
    ratio = sparse.scale[dense.scale > 0] / dense.scale[dense.scale > 0]
    if len(ratio):
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    if scale in ("standard", "maxabs"):
        scaled = rows.astype(np.float64) * sparse.scale
        square = (scaled**2).sum(axis=1).mean()
        assert square == pytest.approx(1, abs=1e-4) or not sparse.scale.any()


@pytest.mark.parametrize(
    ("rows", "scale"),
    [
        ([[0, 3, 0], [1, 0, 0]], "sqrt:unit"),
        ([[0, 0.5, 0], [0.2, 0, 0.3]], "sqrt:standard+unit"),
        ([[9, 3, 7], [1, 5, 0]], "standard"),
        ([[0, -3, 0], [1, 0, 0]], "standard"),
        ([[0.1, 0.2, 0.3], [0.1, 0.4, 0.5]], "standard"),
    ],
)
def test_auto__chooses_by_signs_zeros_and_fractions(rows, scale):
    assert fitted(np.array(rows, np.float32), "auto").scale == scale


@given(rows=rows_of_features(), zeros=st.floats(0, 0.6), cut=st.integers(0, 60), data=st.data())
def test_auto__fits_what_it_chooses(rows, zeros, cut, data):
    rows = np.where(np.random.default_rng(len(rows)).random(rows.shape) < zeros, 0, rows)
    kind = data.draw(st.sampled_from(["as they are", "positive", "whole", "whole float"]))
    rows = rows if kind == "as they are" else np.abs(rows)
    if kind.startswith("whole"):
        rows = np.minimum(np.rint(rows), 255).astype("u1" if kind == "whole" else "f4")
    auto_fitted = fitted(rows, "auto", cuts=[min(cut, len(rows))])
    assert same_bytes(auto_fitted.lift, fitted(rows, auto_fitted.scale).lift)


@pytest.mark.parametrize(
    ("rows", "scale"), [([[9, 3]], "sqrt:unit"), ([[9, 3.5]], "unit"), ([[9, -3]], "unit")]
)
def test_auto__gives_sparse_rows_unit_length(rows, scale):
    assert fitted_sparse(np.array(rows, np.float32), "auto").scale == scale


def test_fit__reads_float16_as_float16():
    rows = np.array([[1.5, -2], [0.25, 4]], np.float16)
    assert same_bytes(
        fitted(rows, "standard").lift, fitted(rows.astype(np.float32), "standard").lift
    )


@pytest.mark.parametrize("bandwidth", [0.5, 2.0])
def test_fourier__stands_for_a_gaussian_kernel_of_the_median_distance(bandwidth):
    rows = np.random.default_rng(1).normal(size=(60, 8)).astype(np.float32)
    fit = fitted(rows, "standard", LiftSpec(n_fourier=4000, bandwidth=bandwidth))
    got = lifted(fit.lift, rows).astype(np.float64)
    scaled, features = got[:, :8], got[:, 8:-1]
    distances = np.sqrt(((scaled[:, None] - scaled) ** 2).sum(axis=2))
    median = np.median(distances[np.triu_indices(60, 1)])
    assert fit.median_distance == pytest.approx(median, rel=1e-6)
    kernel = np.exp(-(distances**2) / (2 * (bandwidth * median) ** 2))
    assert np.abs(features @ features.T - kernel).max() < 6 / np.sqrt(4000)


@pytest.mark.parametrize(
    ("rows", "median"), [([[1, 1]] * 3, 1.0), ([[0, 0]] * 9 + [[3, 4]], 1.0), ([[2, 7]], 1.0)]
)
def test_median_distance__of_equal_rows_is_a_number_above_zero(rows, median):
    fit = fitted(np.array(rows, np.float32), "none", LiftSpec(n_fourier=3))
    assert fit.median_distance == pytest.approx(median)
    assert np.isfinite(fit.lift.frequencies).all()


def test_context__is_passed_on():
    assert fitted(np.ones((2, 3), np.float32), "none", LiftSpec(context=True)).lift.context == 1


def test_row_sample__is_uniform_bounded_and_a_function_of_the_seed():
    n_rows, picks = 2000, np.zeros(2000, int)
    rows = np.arange(n_rows, dtype=np.float32)[:, None]
    for seed in range(30):
        sample = scaler._RowSample(1, seed)
        for start in range(0, n_rows, 300):
            sample.add(start, rows[start : start + 300])
        assert len(np.unique(sample.rows)) == scaler.SAMPLE_ROWS
        picks[sample.rows[:, 0].astype(int)] += 1
    quarters = picks.reshape(4, -1).sum(axis=1)
    # 30 samples of 400: 3000 ± 47 a quarter.
    assert np.abs(quarters - 3000).max() < 200
    assert scaler._RowSample(10**6, 0)._size == 2
    assert scaler._RowSample(20_000, 0)._size * 20_000 * 4 <= scaler.SAMPLE_BYTES


def test_seed__changes_the_frequencies_and_not_the_scale():
    rows = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    one, other = (
        fitted(rows, "standard", LiftSpec(n_fourier=8), seed=seed).lift for seed in (1, 2)
    )
    assert not np.array_equal(one.frequencies, other.frequencies)
    np.testing.assert_array_equal(one.scale, other.scale)


@pytest.mark.parametrize(
    ("scale", "lift", "needed"),
    [
        ("none", "none", False),
        ("sqrt:unit", "context", False),
        ("unit", "fourier:5", True),
        ("auto", "none", True),
        ("standard", "none", True),
    ],
)
def test_needs_rows__says_whether_a_fit_can_do_without(scale, lift, needed):
    specs = ScaleSpec.parse(scale), LiftSpec.parse(lift)
    assert scaler.needs_rows(*specs) is needed
    fit = scaler.ScalerFit(3, *specs, seed=0, sparse=False)
    if needed:
        with pytest.raises(StreammimlError, match=r"^scale .* with lift .* is fitted to rows, and"):
            fit.finish()
    else:
        assert fit.finish().lift.scale.tolist() == [1, 1, 1]


@pytest.mark.parametrize("lift", ["fourier:9", "context"])
def test_sparse_rows__refuse_lifts_that_are_dense(lift):
    with pytest.raises(StreammimlError, match=r"^lift '.*' needs dense rows, and this store is sp"):
        scaler.ScalerFit(3, ScaleSpec(), LiftSpec.parse(lift), seed=0, sparse=True)


def test_sparse_rows__refuse_more_lifted_features_than_columns_can_name(monkeypatch):
    monkeypatch.setattr(scaler, "MOST_COLUMNS", 12)
    lift = LiftSpec.parse("context:mean")
    scaler.ScalerFit(5, ScaleSpec(), lift, seed=0, sparse=True)
    scaler.ScalerFit(9, ScaleSpec(), lift, seed=0, sparse=False)
    with pytest.raises(StreammimlError, match="rows of 6 features would have 13 after the lift"):
        scaler.ScalerFit(6, ScaleSpec(), lift, seed=0, sparse=True)
