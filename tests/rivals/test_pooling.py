"""Vectors of bags, and their scales."""

import numpy as np
import pytest
from scipy import sparse

from streammiml.bags.memory import MemoryBags
from streammiml.errors import StreammimlError
from streammiml.rivals import pooling
from streammiml.rivals.pooling import VectorScale, pooled
from tests.planted import planted
from tests.rivals.cases import in_small_blocks, learn_and_test


def test_pooled__dense_bags_against_loops(monkeypatch):
    in_small_blocks(monkeypatch)
    learn, _ = learn_and_test()
    vectors = pooled(learn, ("mean", "max", "min"))
    for bag, vector in zip(learn, vectors, strict=True):
        rows = bag.rows.astype(float)
        want = np.concatenate([rows.mean(axis=0), rows.max(axis=0), rows.min(axis=0)])
        np.testing.assert_allclose(vector, want)


def test_pooled__sparse_bags_have_no_minima_and_maxima_of_stored_values(monkeypatch):
    monkeypatch.setattr(pooling, "BLOCK_BYTES", 2000)
    block = planted(40, sparse=True)
    vectors = pooled(MemoryBags(block), ("mean", "max", "min"))
    assert sparse.issparse(vectors)
    for i, vector in enumerate(vectors.toarray()):
        rows = block.rows_of(i).astype(float)
        stored = np.where(rows == 0, -np.inf, rows).max(axis=0)
        highest = np.where(np.isinf(stored), 0, stored)
        np.testing.assert_allclose(vector, np.concatenate([rows.mean(axis=0), highest]))


@pytest.mark.parametrize("kind", pooling.SCALES)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_vector_scale__lengths_and_deviations(kind, is_sparse):
    rng = np.random.default_rng(0)
    vectors = rng.random((30, 4)) * [1, 10, 100, 0]
    given = sparse.csr_matrix(vectors) if is_sparse else vectors
    scaled = VectorScale(kind, given).apply(given)
    scaled = scaled.toarray() if is_sparse else scaled
    if kind == "standard":
        np.testing.assert_allclose(scaled.std(axis=0), [1, 1, 1, 0])
    else:
        np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1)
    if kind == "sqrt+unit":
        want = np.sqrt(vectors) / np.sqrt(vectors.sum(axis=1, keepdims=True))
        np.testing.assert_allclose(scaled, want)


def test_vector_scale__names_all_scales():
    with pytest.raises(StreammimlError, match="no scale is called 'max'; known: sqrt"):
        VectorScale("max", np.zeros((2, 2)))
