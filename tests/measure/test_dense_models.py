"""A model that centres or lifts rows meets sparse ones: it would score them as others."""

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.measure.evaluate import evaluate
from streammiml.measure.explain import explain_store
from streammiml.measure.predict import predict
from tests.measure.models import made_model
from tests.stores import as_sparse, made_block, plain, write_store

LIFT = made_model().lift
DENSE_ONLY = {
    "centred": LIFT._replace(shift=np.array([0.5, 0, 0])),
    "Fourier": LIFT._replace(frequencies=np.ones((3, 2)), phases=np.ones(2)),
    "context": LIFT._replace(context=1),
    "context of the mean, centred": LIFT._replace(context=3, shift=np.array([0.5, 0, 0])),
}


def weights_for(lift):
    return np.ones((1 + 3 * (1, 3, 4, 2)[lift.context] + lift.phases.size, 5))


@pytest.mark.parametrize("kind", DENSE_ONLY)
def test_sparse_rows__are_refused_by_a_model_of_dense_ones(kind, tmp_path):
    lift = DENSE_ONLY[kind]
    model = made_model(lift=lift, shared=weights_for(lift))
    block = plain(made_block(20))
    store = write_store(tmp_path / "x.zarr", as_sparse(block), n_labels=4)
    message = "trained on dense rows, which it centres or lifts, and .* has sparse ones; convert"
    for use in (
        lambda: evaluate(model, store),
        lambda: predict(model, store, tmp_path / "out"),
        lambda: explain_store(model, store, tmp_path / "why"),
        lambda: predict(model, as_sparse(block)),
    ):
        with pytest.raises(StreammimlError, match=message):
            use()
    assert len(predict(model, block)) == 20


def test_sparse_rows__are_scored_as_dense_ones_by_a_model_that_scales_only(tmp_path):
    model = made_model(lift=LIFT._replace(scale=np.array([1, 2, 0.5])))
    block = plain(made_block(20))
    stores = [
        write_store(tmp_path / f"{name}.zarr", block_of_kind, n_labels=4)
        for name, block_of_kind in (("dense", block), ("sparse", as_sparse(block)))
    ]
    assert evaluate(model, stores[0]) == evaluate(model, stores[1])


def test_sparse_rows__with_the_mean_as_their_context_are_scored_as_dense_ones():
    lift = LIFT._replace(context=3, unit=1)
    shared = np.random.default_rng(0).normal(size=weights_for(lift).shape)
    model = made_model(lift=lift, shared=shared)
    block = plain(made_block(20))
    dense, sparse = predict(model, block), predict(model, as_sparse(block))
    np.testing.assert_allclose(sparse.scores, dense.scores, rtol=1e-5, atol=1e-5)
    alone = predict(made_model(), block)
    assert np.abs(alone.scores - dense.scores).max() > 0.01
