"""Compiled tiles against the plain bodies that stand in for them when the JIT is off."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.kernel import tile


def array(rng, *shape):
    values = tile.aligned_zeros(shape)
    values[:] = rng.normal(size=shape)
    return values


def compiled_project(tall, wide):
    @numba.njit
    def run(rows, row, shared, start, stop, column, out):
        tile.project_tile(rows, row, shared, start, stop, column, out, tall, wide)

    return run


@pytest.mark.parametrize(
    ("tall", "wide"), [(8, 1), *((tall, wide) for tall in range(1, 5) for wide in range(1, 4))]
)
def test_project_tile__adds_a_range_of_features_with_the_bits_of_the_smallest_tile(tall, wide):
    rng = np.random.default_rng(0)
    rows, shared, out = array(rng, 10, 50), array(rng, 50, 32), array(rng, 10, 32)
    plain, small, before = out.copy(), out.copy(), out.copy()
    compiled_project(tall, wide)(rows, 2, shared, 7, 43, 8, out)
    tile._project_tile_plain(rows, 2, shared, 7, 43, 8, plain, tall, wide)
    np.testing.assert_allclose(out, plain, rtol=1e-4, atol=1e-5)
    one = compiled_project(1, 1)
    for i in range(tall):
        for c in range(wide):
            one(rows, 2 + i, shared, 7, 43, 8 + 8 * c, small)
    assert out.tobytes() == small.tobytes()
    changed = np.zeros(out.shape, bool)
    changed[2 : 2 + tall, 8 : 8 + 8 * wide] = True
    assert ((out != before) == changed).all()


@pytest.mark.parametrize("wide", [1, 4, 13])
def test_sparse_tile__has_the_bits_of_the_dense_one(wide):
    rng = np.random.default_rng(0)
    row, shared = array(rng, 1, 60), array(rng, 60, 8 * wide)
    row[0, rng.permutation(60)[:40]] = 0
    columns = np.flatnonzero(row[0]).astype(np.int32)
    got, want, plain = (tile.aligned_zeros((1, 8 * wide)) for _ in range(3))

    @numba.njit
    def run(columns, values, shared, out):
        tile.sparse_tile(columns, values, 0, len(columns), shared, 0, out, 0, wide)

    run(columns, row[0, columns], shared, got)
    for c in range(wide):
        compiled_project(1, 1)(row, 0, shared, 0, 60, 8 * c, want)
    assert got.tobytes() == want.tobytes()
    tile._sparse_tile_plain(columns, row[0, columns], 0, len(columns), shared, 0, plain, 0, wide)
    np.testing.assert_allclose(got, plain, rtol=1e-4, atol=1e-5)


def compiled_dot(tall):
    @numba.njit
    def run(rows, row, vectors, chosen, column, out, best):
        tile.dot_tile(rows, row, vectors, chosen, column, out, best, tall)

    return run


@pytest.mark.parametrize("tall", [1, 2, 3])
@pytest.mark.parametrize("width", [8, 40, 104])
def test_dot_tile__has_the_bits_of_a_row_alone_and_raises_the_best(tall, width):
    rng = np.random.default_rng(0)
    rows, vectors = array(rng, 5, width), array(rng, 9, width)
    chosen = np.array([0, 8, 3, 3, 5, 1])
    results = []
    for run in (compiled_dot(tall), None, tile._dot_tile_plain):
        out, best = tile.aligned_zeros((5, 8)), tile.aligned_zeros(8)
        best[2] = 1e9
        if run is None:
            for i in range(tall):
                compiled_dot(1)(rows, 1 + i, vectors, chosen, 2, out, best)
        elif run is tile._dot_tile_plain:
            run(rows, 1, vectors, chosen, 2, out, best, tall)
        else:
            run(rows, 1, vectors, chosen, 2, out, best)
        results.append((out, best))
    (got, top), (alone, alone_top), (plain, plain_top) = results
    assert got.tobytes() == alone.tobytes()
    assert top.tobytes() == alone_top.tobytes()
    np.testing.assert_allclose(got, plain, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(top, plain_top, rtol=1e-4, atol=1e-5)
    want = rows[1 : 1 + tall].astype(np.float64) @ vectors[chosen[2:]].T.astype(np.float64)
    np.testing.assert_allclose(got[1 : 1 + tall, 2:6], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(top[3:6], np.maximum(want.max(axis=0), 0)[1:], rtol=1e-4, atol=1e-5)
    assert top[2] == np.float32(1e9)


@pytest.mark.parametrize("tall", [1, 4])
def test_update_tile__adds_both_products_and_gives_the_squares(tall):
    rng = np.random.default_rng(0)
    shared, plus, minus = array(rng, 6, 24), array(rng, 24), array(rng, 24)
    more, less = array(rng, 6), array(rng, 6)
    plain, squares, plain_squares = shared.copy(), tile.aligned_zeros(4), tile.aligned_zeros(4)
    want = shared.astype(np.float64)
    want[1 : 1 + tall] += (np.outer(more, plus) - np.outer(less, minus))[2 : 2 + tall]

    @numba.njit
    def run(shared, plus, minus, more, less, squares):
        tile.update_tile(shared, 1, plus, minus, more, less, 2, squares, tall)

    run(shared, plus, minus, more, less, squares)
    tile._update_tile_plain(plain, 1, plus, minus, more, less, 2, plain_squares, tall)
    for got, norms in ((shared, squares), (plain, plain_squares)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        lengths = (want[1 : 1 + tall] ** 2).sum(axis=1)
        np.testing.assert_allclose(norms[:tall], lengths, rtol=1e-5)


@pytest.mark.parametrize("wide", [1, 3])
def test_peak_tile__finds_the_first_of_the_best(wide):
    rng = np.random.default_rng(0)
    stride, n_labels = 8 * wide + 8, 8 * wide
    dots = tile.aligned_zeros((12, 3 * stride))
    # Few different values: ties are the rule.
    dots[:] = rng.integers(0, 3, dots.shape)
    dots[3, 8] = np.nan

    @numba.njit
    def run(dots, best, rows, subs):
        tile.peak_tile(dots, 2, 11, 8, stride, 3, best, rows, subs, wide)

    def plainly(*out):
        tile._peak_tile_plain(out[0], 2, 11, 8, stride, 3, *out[1:], wide)

    results = []
    for function in (run, plainly):
        best = tile.aligned_zeros(8 + n_labels)
        rows, subs = (tile.aligned_zeros(8 + n_labels, np.int32) for _ in range(2))
        function(dots, best, rows, subs)
        results.append([best.tobytes(), rows.tobytes(), subs.tobytes()])
    assert results[0] == results[1]
    for label in range(9, 8 + n_labels):
        values = dots[2:11, [label, label + stride, label + 2 * stride]]
        row, sub = np.unravel_index(values.argmax(), values.shape)
        assert (best[label], rows[label], subs[label]) == (values.max(), row + 2, sub)


def test_sum_squares__is_that_of_float64():
    vector = tile.aligned_zeros(64)
    vector[:] = np.random.default_rng(0).normal(size=64) * 1e18
    vector[0] = 1e-18

    @numba.njit
    def run(vector):
        return tile.sum_squares(vector)

    want = (vector.astype(np.float64) ** 2).sum()
    assert run(vector) == pytest.approx(want, rel=1e-14)
    assert tile._sum_squares_plain(vector) == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("shape", [3, (5, 8), (2, 3, 8), (0, 8)])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_aligned_zeros__start_on_a_cache_line(shape, kind):
    zeros = tile.aligned_zeros(shape, kind)
    assert zeros.ctypes.data % 64 == 0 or zeros.size == 0
    assert zeros.dtype == kind
    assert not zeros.any()
    assert zeros.flags.c_contiguous
    assert zeros.flags.writeable


def test_padded_width__is_the_next_multiple_of_eight():
    assert [tile.padded_width(width) for width in (0, 1, 8, 9, 100)] == [8, 8, 8, 16, 104]


@given(width=st.integers(1, 40))
def test_padded__adds_zeros_up_to_a_multiple_of_eight(width):
    weights = np.ones((3, width), np.float32)
    got = tile.padded(weights)
    assert got.shape == (3, -(-width // 8) * 8)
    assert (got[:, :width] == 1).all()
    assert not got[:, width:].any()
