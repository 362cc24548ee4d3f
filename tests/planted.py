"""Bags that can be learned from: rows lie near the centre of their label, or near none."""

from __future__ import annotations

import numpy as np

from streammiml.bags.block import BagBlock
from tests.stores import as_sparse


def planted(
    n_bags: int = 300,
    *,
    n_features: int = 6,
    n_labels: int = 5,
    dtype: str = "float32",
    sparse: bool = False,
    noise: float = 0.3,
    seed: int = 0,
) -> BagBlock:
    """Bags of 2 to 5 rows and 1 or 2 labels; whole numbers from 0 on for integer types."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_labels, n_features))
    bags, labels = [], []
    for _ in range(n_bags):
        own = np.sort(rng.choice(n_labels, rng.integers(1, 3), replace=False))
        rows = rng.normal(scale=noise, size=(rng.integers(2, 6), n_features))
        rows[: len(own)] += centres[own]
        if sparse:
            rows[rng.random(rows.shape) < 0.4] = 0
        if not dtype.startswith("float"):
            rows = np.clip(np.rint(60 + 20 * rows), 0, 127) * (rows != 0)
        bags.append(rows.astype(dtype))
        labels.append(own)
    block = BagBlock.from_bags(bags, labels)
    return as_sparse(block) if sparse else block
