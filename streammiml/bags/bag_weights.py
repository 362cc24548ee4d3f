"""Weights of bags: a kept column of one number, which all rows of a bag repeat.

So every source of kept columns is a source of weights, and stores of both backends, views and
joined stores have them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.kept_columns import MOST_ITEM, TEXT
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml.bags.views import SCAN_BAGS, Bags
from streammiml.errors import StoreError, StreammimlError

F32 = NDArray[np.float32]

COLUMN = "weight"
"""Name of the column that holds weights given to ``write_store`` and to estimators."""
NO_WEIGHTS: F32 = np.zeros(0, np.float32)
"""Stands for weights of 1 of all bags."""
READ_BYTES = 8 << 20
"""About how many bytes of the column are read at a time."""
_READ: WeakKeyDictionary[Bags, tuple[str, F32]] = WeakKeyDictionary()
"""Column and weights that were read last, for each store that is open."""


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
    _not_all_zero(_checked(values, ""), "")
    return values


def repeated(weights: NDArray[np.float64], sizes: Sequence[int]) -> list[NDArray[np.float64]]:
    """Values of the kept column for each bag."""
    return [np.full(size, weight) for weight, size in zip(weights.tolist(), sizes, strict=True)]


def read_weights(store: Bags, column: str) -> F32:
    """Weight of each bag of a store, from a kept column of numbers.

    The column is read once for a store: trials, restarts and folds take what was read.
    """
    known_column, known = _READ.get(store, ("", NO_WEIGHTS))
    if known_column == column:
        return known
    weights = _read(store, column)
    weights.flags.writeable = False
    _READ[store] = column, weights
    return weights


def fingerprint_of(weights: F32) -> str:
    """Digest of weights; the fingerprint of a store leaves out its kept columns."""
    return hashlib.blake2b(np.ascontiguousarray(weights).data, digest_size=16).hexdigest()


def _read(store: Bags, column: str) -> F32:
    widths = {kept.name: kept.width for kept in store.kept_columns if kept.dtype != TEXT}
    if widths.get(column) != 1:
        known = ", ".join(map(str, store.kept_columns)) or "no columns"
        raise StoreError(
            f"weights of bags are a kept column of one number, and not {column!r}: {store.name} "
            f"keeps {known}"
        )
    out = np.empty(store.n_bags, np.float32)
    # In stretches, as the sizes of all bags would take twice the memory of their weights.
    for first in range(0, store.n_bags, SCAN_BAGS):
        sizes = store.bag_sizes(first, min(first + SCAN_BAGS, store.n_bags))
        for start, stop in cuts_by_bytes(sizes * MOST_ITEM, READ_BYTES):
            read = store.kept(first + start, first + stop, (column,))[column]
            firsts = from_sizes(sizes[start:stop])[:-1]
            part = _checked(read[firsts], f"{store.name}: ", first + start)
            with np.errstate(over="ignore"):
                values = read.astype(np.float32, copy=False)
            is_other = np.maximum.reduceat(values, firsts) != np.minimum.reduceat(values, firsts)
            if is_other.any():
                bag = first + start + int(is_other.argmax())
                raise StoreError(
                    f"{store.name}: rows of bag {bag} have different values in the column "
                    f"{column!r}; every row of a bag must repeat the weight of the bag"
                )
            out[first + start : first + stop] = part
    return _not_all_zero(out, f"{store.name}: ")


def _checked(values: NDArray[Any], where: str, first: int = 0) -> F32:
    """Refuse weights that are negative or not finite; ``first`` is the number of the first bag."""
    with np.errstate(over="ignore"):
        weights: F32 = values.astype(np.float32)
    is_odd = ~(np.isfinite(weights) & (weights >= 0))
    if is_odd.any():
        at = int(is_odd.argmax())
        raise StreammimlError(
            f"{where}bag {first + at} has the weight {values[at]:g}; weights are finite numbers "
            "from 0"
        )
    return weights


def _not_all_zero(weights: F32, where: str) -> F32:
    if len(weights) and not weights.any():
        raise StreammimlError(
            f"{where}the weight of every bag is zero, so that none would be learned from"
        )
    return weights
