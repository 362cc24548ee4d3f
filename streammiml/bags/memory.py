"""Bags in memory that can be used like a store."""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.fingerprint import Fingerprint, digests_of
from streammiml.bags.kept_columns import Kept, columns_of, encoded
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.validate import StoreSpec, clean
from streammiml.bags.views import Bags, derived

I64 = NDArray[np.int64]


class MemoryBags(Bags):
    """A block with the methods of a store; blocks that a writer would refuse are refused.

    The default of ``n_labels`` is the highest label plus one. Blocks that are read share memory
    with this object.
    """

    def __init__(
        self,
        block: BagBlock,
        *,
        n_labels: int | None = None,
        label_names: list[str] | None = None,
        feature_names: list[str] | None = None,
        name: str = "bags in memory",
    ) -> None:
        rows = block.rows
        values = rows.values if isinstance(rows, SparseRows) else rows
        # As in a converter: types that a store can hold stay, others become float32.
        dtype = values.dtype.name if values.dtype.name in ROW_DTYPES else "float32"
        spec = StoreSpec(
            n_features=block.n_features,
            dtype=dtype,
            sparse=isinstance(rows, SparseRows),
            n_labels=n_labels,
            label_names=None if label_names is None else tuple(label_names),
            feature_names=None if feature_names is None else tuple(feature_names),
            row_labels=block.row_labels is not None,
            bag_ids=block.bag_ids is not None,
            kept=columns_of(block.kept),
        )
        self._block, _ = clean(block, spec, name)
        self.name, self.n_bags, self.n_features = name, len(block), block.n_features
        n_known = spec.labels_known
        self.n_labels = self._block.top_label + 1 if n_known is None else n_known
        self.dtype, self.sparse = spec.dtype, spec.sparse
        self.label_names, self.feature_names = label_names, feature_names
        self.has_row_labels, self.has_bag_ids = spec.row_labels, spec.bag_ids
        self.kept_columns = spec.kept

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Fingerprint of a store with these bags."""
        fingerprint = Fingerprint()
        fingerprint.add(0, digests_of(self._block))
        return fingerprint.text()

    @property
    def kept_digest(self) -> str:
        """See :attr:`Bags.kept_digest`."""
        kept = sorted(self._block.kept.items())
        return derived(*(part for name, values in kept for part in (name, _as_bytes(values))))

    @property
    def n_rows(self) -> int:
        """Number of rows of all bags."""
        return self._block.n_rows

    @property
    def n_label_entries(self) -> int:
        """Number of labels of all bags, added up."""
        return len(self._block.label_indices)

    @property
    def n_values(self) -> int:
        """Number of stored values of all rows."""
        rows = self._block.rows
        return len(rows.values) if isinstance(rows, SparseRows) else rows.size

    def read(
        self,
        start: int,
        stop: int,
        *,
        row_labels: bool = True,  # noqa: ARG002
        kept: bool = True,  # noqa: ARG002
    ) -> BagBlock:
        """Bags ``start`` to ``stop`` with all they have; they share memory with this object."""
        self._check_range(start, stop)
        return self._block.slice(start, stop)

    @property
    def reads_in_place(self) -> bool:
        """True: nothing is read."""
        return True

    def kept(self, start: int, stop: int, names: Container[str] | None = None) -> Kept:
        """Values of kept columns; see :meth:`Bags.kept`."""
        kept = self.read(start, stop).kept
        return {name: kept[name] for name in kept if names is None or name in names}

    def at_hand(self) -> BagBlock | None:
        """Return the block itself, unless its arrays are read-only or not contiguous."""
        block, rows = self._block, self._block.rows
        arrays: list[NDArray[Any]] = [block.bag_offsets, block.label_offsets, block.label_indices]
        if isinstance(rows, SparseRows):
            arrays += [rows.offsets, rows.columns, rows.values]
        else:
            arrays.append(rows)
        # numba would compile the kernels again for read-only or non-contiguous arrays.
        return block if all(array.flags.carray for array in arrays) else None

    def bag_sizes(self, start: int, stop: int) -> I64:
        """Number of rows of each bag."""
        self._check_range(start, stop)
        return np.diff(self._block.bag_offsets[start : stop + 1])

    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices."""
        self._check_range(start, stop)
        offsets = self._block.label_offsets[start : stop + 1]
        return offsets - offsets[0], self._block.label_indices[offsets[0] : offsets[-1]]

    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Ids of bags; their numbers as text if there are no ids."""
        self._check_range(start, stop)
        ids = self._block.bag_ids
        return [str(i) for i in range(start, stop)] if ids is None else ids[start:stop]


def _as_bytes(values: NDArray[Any]) -> bytes:
    """The values of a kept column as bytes that differ if the values do."""
    if values.dtype != object:
        return values.tobytes()
    offsets, raw = encoded(values)
    return offsets.tobytes() + raw.tobytes()
