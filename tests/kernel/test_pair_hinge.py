"""The hinge loss of pairs of labels against plain loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streammiml.kernel.pair_hinge import pair_hinge
from tests.oracles import pair_hinge as oracle


@given(n_bags=st.integers(1, 6), n_labels=st.integers(1, 6), seed=st.integers(0, 99))
def test_pair_hinge__agrees_with_oracle(n_bags, n_labels, seed):
    rng = np.random.default_rng(seed)
    scores, truth = rng.normal(size=(n_bags, n_labels)), rng.random((n_bags, n_labels)) < 0.4
    slopes = np.full(scores.shape, np.nan)
    loss = pair_hinge(scores, truth, slopes)
    want, want_slopes = oracle.pair_hinge(scores, truth)
    np.testing.assert_allclose(loss, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slopes, want_slopes, rtol=1e-12, atol=1e-12)


def test_pair_hinge__of_one_bag():
    slopes = np.empty((1, 3))
    # Label 0 is relevant; its pair with label 1 costs 0.5, its pair with label 2 nothing.
    loss = pair_hinge(np.array([[1.0, 0.5, -2.0]]), np.array([[True, False, False]]), slopes)
    assert loss == 0.25
    assert slopes.tolist() == [[-0.5, 0.5, 0.0]]
