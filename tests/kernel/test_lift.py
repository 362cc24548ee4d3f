import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.kernel import lift as kernel
from tests.oracles import lift as oracle

DTYPES = [np.float32, np.float16, np.uint8, np.int8, np.int16]


def made_lift(rng, d, n, transform=0, unit=0, context=0):
    return kernel.Lift(
        shift=rng.normal(size=d).astype(np.float32),
        scale=rng.uniform(0.1, 2, d).astype(np.float32),
        transform=transform,
        unit=unit,
        frequencies=rng.normal(size=(d, n)).astype(np.float32),
        phases=rng.uniform(size=n).astype(np.float32),
        context=context,
    )


def made_rows(rng, z, d, dtype):
    if np.issubdtype(dtype, np.floating):
        return rng.normal(scale=2, size=(z, d)).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(max(info.min, -300), min(info.max, 300), (z, d), dtype)


def lifted(lift, rows):
    out = np.full((len(rows), kernel.lift_width(lift)), np.nan, np.float32)
    kernel.lift_bag(lift, kernel.plain_rows(rows), out)
    return out


@st.composite
def lift_and_rows(draw, contexts=(0, 1, 2, 3)):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    d, z = draw(st.integers(1, 20)), draw(st.integers(1, 7))
    lift = made_lift(
        rng,
        d,
        draw(st.sampled_from([0, 1, 5, 30])),
        draw(st.sampled_from([kernel.NO_TRANSFORM, kernel.SQRT, kernel.LOG1P])),
        draw(st.integers(0, 1)),
        draw(st.sampled_from(contexts)),
    )
    return lift, made_rows(rng, z, d, draw(st.sampled_from(DTYPES)))


@st.composite
def sparse_block(draw, context=0):
    """A lift, dense rows with zeros, and the same rows as offsets, columns, values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    d, z = draw(st.integers(1, 20)), draw(st.integers(1, 7))
    transform, unit = draw(st.integers(0, 2)), draw(st.integers(0, 1))
    lift = made_lift(rng, d, 0, transform, unit, context)
    lift = lift._replace(shift=np.zeros(d, np.float32))
    rows = made_rows(rng, z, d, draw(st.sampled_from(DTYPES)))
    rows[rng.random((z, d)) < 0.6] = 0
    places, columns = np.nonzero(rows)
    offsets = np.searchsorted(places, np.arange(z + 1)).astype(np.int64)
    return lift, rows, offsets, columns.astype(np.int32), rows[places, columns]


def lifted_sparse(module, lift, offsets, columns, values, start, stop):
    n = offsets[stop] - offsets[start] + stop - start
    out = np.zeros(stop - start + 1, np.int64), np.zeros(n, np.int32), np.zeros(n, np.float32)
    module.lift_sparse_bag(lift, offsets, columns, values, start, stop, *out)
    return out


@given(case=lift_and_rows())
def test_lift_bag__agrees_with_oracle(case):
    lift, rows = case
    got = lifted(lift, rows)
    want = np.empty_like(got)
    oracle.lift_bag(lift, rows, want)
    d, n = lift.frequencies.shape
    parts = np.split(np.arange(want.shape[1]), [d, d + n])
    # An angle is known to the rounding of its sum, in turns.
    turns = np.abs(want[:, :d]) @ np.abs(lift.frequencies) + 1
    angle = 2 * np.pi * np.sqrt(2 / max(n, 1)) * turns.max(initial=0) * (d + 2) * 2.0**-23
    of_context = 1e-5 + (angle if lift.context == kernel.EVERYTHING else 0)
    for part, atol in zip(parts, (1e-5, 1e-6 + angle, of_context), strict=True):
        np.testing.assert_allclose(got[:, part], want[:, part], rtol=1e-5, atol=atol)
    assert (got[:, -1] == 1).all()


@given(case=lift_and_rows(contexts=[0]))
def test_lift_bag__gives_a_row_the_same_bits_in_any_bag(case):
    lift, rows = case
    alone = np.concatenate([lifted(lift, row[None]) for row in rows])
    np.testing.assert_array_equal(lifted(lift, rows), alone)
    np.testing.assert_array_equal(lifted(lift, rows[::-1].copy())[::-1], alone)


@given(case=lift_and_rows(contexts=[1]))
def test_lift_bag__context_is_the_extremes_of_the_scaled_rows(case):
    lift, rows = case
    got, d = lifted(lift, rows), rows.shape[1]
    plain = lifted(lift._replace(context=0), rows)
    start = d + len(lift.phases)
    np.testing.assert_array_equal(got[:, :start], plain[:, :start])
    want = np.concatenate([plain[:, :d].max(axis=0), plain[:, :d].min(axis=0)])
    np.testing.assert_array_equal(got[:, start:-1], np.tile(want, (len(rows), 1)))


@given(case=lift_and_rows(contexts=[2]))
def test_lift_bag__context_of_everything_has_the_mean_too(case):
    lift, rows = case
    got, width = lifted(lift, rows), rows.shape[1] + len(lift.phases)
    plain = lifted(lift._replace(context=0), rows)[:, :-1]
    np.testing.assert_array_equal(got[:, :width], plain)
    mean = (plain.astype(np.float64).sum(axis=0) / len(rows)).astype(np.float32)
    want = np.concatenate([plain.max(axis=0), plain.min(axis=0), mean])
    np.testing.assert_allclose(got[:, width:-1], np.tile(want, (len(rows), 1)), rtol=1e-6)


@given(case=lift_and_rows(contexts=[3]))
def test_lift_bag__context_of_the_mean_is_of_norm_1_where_rows_are(case):
    lift, rows = case
    got, d = lifted(lift, rows), rows.shape[1]
    plain = lifted(lift._replace(context=0), rows)
    start = d + len(lift.phases)
    np.testing.assert_array_equal(got[:, :start], plain[:, :start])
    mean = plain[:, :d].astype(np.float64).sum(axis=0) / len(rows)
    mean = mean.astype(np.float32).astype(np.float64)
    norm = np.sqrt((mean * mean).sum())
    want = mean / norm if lift.unit and norm else mean
    np.testing.assert_allclose(got[:, start:-1], np.tile(want, (len(rows), 1)), rtol=1e-6)


def test_lift_bag__mean_of_a_long_bag_is_not_lost_in_rounding():
    lift = made_lift(np.random.default_rng(0), 1, 0, context=kernel.EVERYTHING)
    lift = lift._replace(shift=np.zeros(1, np.float32), scale=np.ones(1, np.float32))
    got = lifted(lift, np.full((300_000, 1), 0.1, np.float32))
    np.testing.assert_allclose(got[0, 3], np.float32(0.1), rtol=1e-7)


@pytest.mark.parametrize("transform", [kernel.NO_TRANSFORM, kernel.SQRT, kernel.LOG1P])
def test_lift_bag__keeps_a_zero_row_zero_and_a_zero_scale_harmless(transform):
    lift = made_lift(np.random.default_rng(0), 9, 0, transform, unit=1)
    lift = lift._replace(shift=np.zeros(9, np.float32), scale=np.zeros(9, np.float32))
    got = lifted(lift, np.array([[0] * 9, [1e30] * 9], np.float32))
    np.testing.assert_array_equal(got, [[0] * 9 + [1]] * 2)


def test_unit_rows__survive_values_whose_squares_leave_float32():
    lift = made_lift(np.random.default_rng(0), 3, 0, unit=1)
    lift = lift._replace(shift=np.zeros(3, np.float32), scale=np.ones(3, np.float32))
    got = lifted(lift, np.array([[3e25, 0, 4e25], [3e-25, 0, 4e-25]], np.float32))
    np.testing.assert_allclose(got[:, :3], [[0.6, 0, 0.8]] * 2, rtol=1e-6)


@given(case=sparse_block())
def test_lift_sparse_bag__agrees_with_oracle_on_any_range(case):
    lift, rows, offsets, columns, values = case
    plain = kernel.plain_rows(values)
    for start, stop in [(0, len(rows)), (len(rows) // 2, len(rows)), (1, 1)]:
        got = lifted_sparse(kernel, lift, offsets, columns, plain, start, stop)
        want = lifted_sparse(oracle, lift, offsets, columns, values, start, stop)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
        np.testing.assert_allclose(got[2], want[2], rtol=1e-6, atol=1e-6)


@given(case=sparse_block())
def test_lift_sparse_bag__equals_the_dense_lift_without_centring(case):
    lift, rows, offsets, columns, values = case
    ends, places, got = lifted_sparse(
        kernel, lift, offsets, columns, kernel.plain_rows(values), 0, len(rows)
    )
    dense = np.zeros((len(rows), rows.shape[1] + 1), np.float32)
    dense[np.repeat(np.arange(len(rows)), np.diff(ends)), places] = got
    # A norm over the non-zeros alone adds them in other lanes: the last bit may differ.
    np.testing.assert_allclose(dense, lifted(lift, rows), rtol=2e-7, atol=0)


@given(case=sparse_block(context=kernel.MEAN))
def test_join_sparse_bag__equals_the_dense_context(case):
    lift, rows, offsets, columns, values = case
    given_to = kernel, lift, offsets, columns, kernel.plain_rows(values)
    context = kernel.make_context(lift, len(values), 8)
    want = lifted(lift, rows)
    # Of a part first: nothing of it may stay.
    for start, stop in ((0, (len(rows) + 1) // 2), (0, len(rows))):
        ends, places, got = lifted_sparse(*given_to, start, stop)
        kernel.join_sparse_bag(lift, ends, places, got, stop - start, context)
        assert not context.places.any()
    n = context.size[0]
    dense = np.zeros(want.shape, np.float32)
    dense[np.repeat(np.arange(len(rows)), np.diff(ends)), places] = got
    dense[:, context.columns[:n]] = context.values[:n]
    assert n == len(np.unique(columns))
    np.testing.assert_allclose(dense, want, rtol=1e-6, atol=1e-7 * np.abs(want).max())


def test_half_to_single__is_exact_for_every_float16():
    bits = np.arange(65536, dtype=np.uint16)
    got = np.array([kernel.half_to_single(b) for b in bits], np.float32)
    want = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


def test_cosine_of_turns__is_within_its_stated_error():
    rng = np.random.default_rng(0)
    turns = np.concatenate([rng.uniform(-2, 2, 3000), rng.uniform(-3e4, 3e4, 3000)])
    turns = np.concatenate([turns, np.arange(-4, 4, 1 / 8)]).astype(np.float32)
    got = np.array([kernel.cosine_of_turns(t) for t in turns])
    want = np.cos(2 * np.pi * (turns.astype(np.float64) % 1))
    assert np.abs(got - want).max() < 2.5e-7


@pytest.mark.parametrize("turns", [2.0**22 + 0.5, 1e9, -1e20, 3e38])
def test_cosine_of_turns__stays_a_cosine_where_the_angle_is_lost(turns):
    assert abs(kernel.cosine_of_turns(np.float32(turns))) <= 1.000001


def test_cosine_of_turns__shows_a_divergence():
    assert np.isnan(kernel.cosine_of_turns(np.float32(np.nan)))


def test_log_of_one_plus__is_within_its_stated_error():
    values = np.concatenate([np.geomspace(1e-30, 1e37, 4000), np.linspace(0, 300, 3000)])
    values = np.concatenate([values, np.arange(256)]).astype(np.float32)
    got = np.array([kernel.log_of_one_plus(v) for v in values])
    want = np.log1p(values.astype(np.float64))
    assert (np.abs(got - want) <= 1.5e-7 * want).all()


def test_plain_rows__changes_float16_and_the_order_of_bytes_only():
    rows = np.full((2, 3), 1.5, np.float32)
    assert kernel.plain_rows(rows) is rows
    halves = kernel.plain_rows(rows.astype(np.float16))
    assert halves.dtype == np.uint16
    np.testing.assert_array_equal(kernel.plain_rows(rows.astype(">f2")), halves)
    turned = kernel.plain_rows(rows.astype(">f4"))
    assert turned.dtype.isnative
    np.testing.assert_array_equal(turned, rows)


def test_lift_bag__holds_few_angles_and_gives_a_long_bag_the_same_bits():
    rng = np.random.default_rng(3)
    lift = made_lift(rng, 5, 40, unit=1)
    rows = made_rows(rng, 2 * kernel.FOURIER_ROWS + 7, 5, np.float32)
    alone = np.concatenate([lifted(lift, row[None]) for row in rows])
    np.testing.assert_array_equal(lifted(lift, rows), alone)
