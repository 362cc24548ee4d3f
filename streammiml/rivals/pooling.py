"""One vector for each bag, made of the mean, the maximum and the minimum of each feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from streammiml.bags.block import SparseRows
from streammiml.bags.views import Bags
from streammiml.errors import unknown
from streammiml.measure.tasks import range_bounds
from streammiml.rivals.costs import BLOCK_BYTES
from streammiml.rivals.row_blocks import F64, I64, RowBlock, RowBlocks
from streammiml.rivals.segments import row_maxima, row_sums

SCALES = ("standard", "unit", "sqrt+unit")


def pooled(store: Bags, kinds: Sequence[str], threads: int = 1) -> Any:
    """(n, features × kinds) Vectors of bags; ``kinds`` are of ``mean``, ``max`` and ``min``.

    Bags of sparse rows give a CSR matrix without minima, because nearly all of them are zero.
    """
    if not store.sparse:
        return np.concatenate(list(RowBlocks(store, threads=threads).map(_of_dense, kinds)))
    parts = []
    for start, stop in range_bounds(store, BLOCK_BYTES):
        block = store.read(start, stop, row_labels=False, kept=False)
        assert isinstance(block.rows, SparseRows), "sparse bags have sparse rows"
        parts.append(_of_sparse(block.rows, block.bag_offsets, kinds))
    return sparse.vstack(parts, format="csr")


def _of_dense(block: RowBlock, kinds: Sequence[str]) -> F64:
    rows, offsets = block.rows, block.offsets
    vectors = {
        "mean": lambda: row_sums(rows, offsets) / np.diff(offsets)[:, None],
        "max": lambda: row_maxima(rows, offsets),
        "min": lambda: -row_maxima(-rows, offsets),
    }
    return np.concatenate([vectors[kind]() for kind in kinds], axis=1)


def _of_sparse(rows: SparseRows, offsets: I64, kinds: Sequence[str]) -> Any:
    n_bags, width = len(offsets) - 1, rows.n_features
    sizes = np.diff(offsets)
    bag_of_row = np.repeat(np.arange(n_bags), sizes)
    bag_of_value = np.repeat(bag_of_row, np.diff(rows.offsets))
    values = rows.values.astype(np.float64)
    columns = rows.columns.astype(np.int64)
    parts = []
    if "mean" in kinds:
        shares = values / sizes[bag_of_value]
        parts.append(sparse.csr_matrix((shares, (bag_of_value, columns)), (n_bags, width)))
    if "max" in kinds:
        keys = bag_of_value * width + columns
        order = np.argsort(keys, kind="stable")
        distinct, firsts = np.unique(keys[order], return_index=True)
        highest = np.maximum.reduceat(values[order], firsts) if len(keys) else values
        parts.append(
            sparse.csr_matrix((highest, (distinct // width, distinct % width)), (n_bags, width))
        )
    return sparse.hstack(parts, format="csr")


class VectorScale:
    """A scaling of vectors that is fitted on those of the training bags.

    ``unit`` gives each vector the length 1, ``sqrt+unit`` after taking the root of each value with
    its sign, ``standard`` each value the mean 0 and the deviation 1. Sparse vectors stay sparse, so
    for them ``standard`` gives values the deviation 1 and leaves the mean.
    """

    def __init__(self, kind: str, vectors: Any) -> None:
        if kind not in SCALES:
            raise unknown("scale", kind, SCALES)
        self.kind = kind
        if kind == "standard":
            if sparse.issparse(vectors):
                mean = np.asarray(vectors.mean(axis=0))[0]
                squares = np.asarray(vectors.multiply(vectors).mean(axis=0))[0]
                self.mean, deviation = np.zeros_like(mean), np.sqrt(squares - mean**2)
                largest = float(abs(vectors).max())
            else:
                self.mean, deviation = vectors.mean(axis=0), vectors.std(axis=0)
                largest = float(np.abs(vectors).max())
            deviation[~(deviation >= 1e-6 * largest)] = np.inf
            deviation[deviation == 0] = np.inf
            self.factor = 1 / deviation

    def apply(self, vectors: Any) -> Any:
        """Scale vectors (n, k), dense or CSR."""
        is_sparse = sparse.issparse(vectors)
        if self.kind == "standard":
            if is_sparse:
                return vectors @ sparse.diags(self.factor)
            return (vectors - self.mean) * self.factor
        if is_sparse:
            if self.kind == "sqrt+unit":
                vectors = vectors.copy()
                vectors.data = np.copysign(np.sqrt(np.abs(vectors.data)), vectors.data)
            lengths = np.sqrt(np.asarray(vectors.multiply(vectors).sum(axis=1))[:, 0])
            return (sparse.diags(1 / np.maximum(lengths, 1e-12)) @ vectors).tocsr()
        if self.kind == "sqrt+unit":
            vectors = np.copysign(np.sqrt(np.abs(vectors)), vectors)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
