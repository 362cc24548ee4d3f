import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streammiml.kernel import moments as kernel
from streammiml.kernel.lift import plain_rows
from tests.oracles import moments as oracle


@st.composite
def some_rows(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, d = draw(st.integers(0, 30)), draw(st.integers(1, 6))
    # Far from 0 and narrow: sums of squares would lose the spread.
    rows = rng.normal(scale=3, size=(n, d)) + draw(st.sampled_from([0, 0, 5000]))
    rows[rng.random((n, d)) < 0.3] = 0
    return rows.astype(draw(st.sampled_from([np.float32, np.float16, np.int16, np.int8])))


def assert_agree(moments, rows, columns, values, transform):
    want = oracle.of_values(columns, values, rows.shape[1], transform)
    np.testing.assert_array_equal(moments.seen, want[0])
    for got, expected in zip(moments[1:4], want[1:], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    counts = [len(rows), (values != 0).sum(), (values < 0).sum(), (values % 1 != 0).sum()]
    assert moments.counts.tolist() == counts


@given(rows=some_rows(), transform=st.integers(0, 2))
def test_add_dense__agrees_with_oracle(rows, transform):
    moments = kernel.empty_moments(rows.shape[1])
    kernel.add_dense(moments, transform, plain_rows(rows))
    columns = np.tile(np.arange(rows.shape[1]), len(rows))
    assert_agree(moments, rows, columns, rows.ravel(), transform)


@given(rows=some_rows(), transform=st.integers(0, 2))
def test_add_sparse__agrees_with_oracle(rows, transform):
    moments = kernel.empty_moments(rows.shape[1])
    places, columns = np.nonzero(rows)
    values = rows[places, columns]
    kernel.add_sparse(moments, transform, len(rows), columns.astype(np.int32), plain_rows(values))
    assert_agree(moments, rows, columns, values, transform)
