"""Small random models and blocks for the kernel's tests."""

import numpy as np

from streammiml.kernel.lift import Lift
from streammiml.kernel.score import DenseBlock, SparseBlock, Weights
from streammiml.kernel.tile import aligned_zeros, padded_width


def plain_lift(n_features, context=0):
    """Rows as they are, the context if any, and the constant."""
    nothing = np.zeros(0, np.float32)
    shift, scale = np.zeros(n_features, np.float32), np.ones(n_features, np.float32)
    return Lift(shift, scale, 0, 0, np.zeros((n_features, 0), np.float32), nothing, context)


def with_constant(rows):
    return np.column_stack([rows, np.ones(len(rows), rows.dtype)])


def random_weights(rng, n_features, width, n_sub, n_labels, spread=None):
    """``n_features`` after the lift; ``width`` None: no shared space."""
    spread = 1 / np.sqrt(n_features) if spread is None else spread
    size = n_features if width is None else width
    shared = aligned_zeros((0 if width is None else n_features, padded_width(size)))
    labels = aligned_zeros((n_labels + 1, n_sub, padded_width(size)))
    shared[:, :size] = rng.normal(0, spread, (len(shared), size))
    labels[..., :size] = rng.normal(0, spread, (*labels.shape[:2], size))
    return Weights(shared, labels)


def dense_block(rng, sizes, n_features, n_labels, density=1.0, most=3):
    """Bags of ``sizes`` rows with up to ``most`` labels each, some with none."""
    bag_offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = rng.normal(size=(bag_offsets[-1], n_features)).astype(np.float32)
    rows[rng.random(rows.shape) >= density] = 0
    most = min(most, n_labels)
    labels = [
        np.sort(rng.choice(n_labels, rng.integers(0, most + 1), replace=False)) for _ in sizes
    ]
    label_offsets = np.concatenate([[0], np.cumsum([len(own) for own in labels])]).astype(np.int64)
    flat = np.concatenate([*labels, []]).astype(np.int32)
    return DenseBlock(rows, bag_offsets, label_offsets, flat)


def sparse_block(block):
    """The same bags as CSR."""
    filled = block.rows != 0
    row_offsets = np.concatenate([[0], np.cumsum(filled.sum(axis=1))]).astype(np.int64)
    columns = np.nonzero(filled)[1].astype(np.int32)
    return SparseBlock(row_offsets, columns, block.rows[filled], *block[1:])
