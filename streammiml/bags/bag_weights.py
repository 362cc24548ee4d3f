"""Weights of bags: a kept column of one number, which all rows of a bag repeat.

So every source of kept columns is a source of weights, and stores of both backends, views and
joined stores have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.kept_columns import TEXT
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml.bags.views import Bags
from streammiml.errors import StoreError, StreammimlError

F32 = NDArray[np.float32]

COLUMN = "weight"
"""Name of the column that holds weights given to ``write_store`` and to estimators."""
NO_WEIGHTS: F32 = np.zeros(0, np.float32)
"""Stands for weights of 1 of all bags."""
READ_BYTES = 8 << 20
"""About how many bytes of kept columns are read at a time."""


def checked_weights(weights: Any, n_bags: int) -> NDArray[np.float64]:
    """Convert a weight for each bag to an array; refuse what cannot be weights."""
    try:
        values = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise StreammimlError("weights of bags must be numbers, one for each bag") from None
    if values.shape != (n_bags,):
        raise StreammimlError(
            f"weights of bags have the shape {values.shape}; expected ({n_bags},), one for each bag"
        )
    _checked(values, "")
    return values


def repeated(weights: NDArray[np.float64], sizes: Sequence[int]) -> list[NDArray[np.float64]]:
    """Values of the kept column for each bag."""
    return [np.full(size, weight) for weight, size in zip(weights.tolist(), sizes, strict=True)]


def read_weights(store: Bags, column: str) -> F32:
    """Weight of each bag of a store, from a kept column of numbers."""
    widths = {kept.name: kept.width for kept in store.kept_columns if kept.dtype != TEXT}
    if widths.get(column) != 1:
        known = ", ".join(map(str, store.kept_columns)) or "no columns"
        raise StoreError(
            f"weights of bags are a kept column of one number, and not {column!r}: {store.name} "
            f"keeps {known}"
        )
    sizes = store.bag_sizes(0, store.n_bags)
    n_bytes = 8 * sum(kept.width for kept in store.kept_columns)
    out = np.empty(store.n_bags, np.float32)
    for start, stop in cuts_by_bytes(sizes * n_bytes, READ_BYTES):
        values = store.kept(start, stop)[column].astype(np.float32)
        starts = from_sizes(sizes[start:stop])[:-1]
        out[start:stop] = values[starts]
        is_other = np.maximum.reduceat(values, starts) != np.minimum.reduceat(values, starts)
        # NaN is unequal to itself, and is refused below.
        if (is_other & ~np.isnan(out[start:stop])).any():
            bag = start + int(is_other.argmax())
            raise StoreError(
                f"{store.name}: rows of bag {bag} have different values in the column {column!r}; "
                "every row of a bag must repeat the weight of the bag"
            )
    return _checked(out, f"{store.name}: ")


def _checked(values: NDArray[Any], where: str) -> F32:
    """Refuse weights that are negative, not finite, or all 0."""
    with np.errstate(over="ignore"):
        weights: F32 = values.astype(np.float32)
    is_odd = ~(np.isfinite(weights) & (weights >= 0))
    if is_odd.any():
        bag = int(is_odd.argmax())
        raise StreammimlError(
            f"{where}bag {bag} has the weight {values[bag]:g}; weights are finite numbers from 0"
        )
    if len(weights) and not weights.any():
        raise StreammimlError(
            f"{where}the weight of every bag is zero, so that none would be learned from"
        )
    return weights
