"""``RangeGroup``: bags of several ranges that were read together, given by addresses in memory.

Mixing copies single bags out of many blocks, so it needs the address of each bag. Making an array
for each block would take longer than reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes

I64 = NDArray[np.int64]


class Located(NamedTuple):
    """Values of several ranges, by address; the values of a range are contiguous."""

    addresses: I64
    """Address of the first value of each range; arbitrary for ranges without values."""
    value_bytes: int
    """Bytes of a value; for dense rows, of a row."""
    owners: list[Any]
    """Objects that own the memory."""

    @classmethod
    def of_arrays(cls, arrays: Sequence[NDArray[Any]]) -> Located:
        """Addresses of contiguous arrays, one for each range."""
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        # Computed from the shape: the strides of an array with one element are arbitrary.
        value_bytes = arrays[0].itemsize * int(np.prod(arrays[0].shape[1:]))
        return cls(np.array(addresses, np.int64), value_bytes, list(arrays))

    @classmethod
    def joined(cls, parts: Sequence[Located]) -> Located:
        """Join at least one part; all have values of the same size."""
        addresses = np.concatenate([part.addresses for part in parts])
        owners = [owner for part in parts for owner in part.owners]
        return cls(addresses, parts[0].value_bytes, owners)

    @classmethod
    def of_parts(cls, joined: NDArray[Any], lengths: I64) -> Located:
        """Addresses in one array that holds the values of all ranges, in order."""
        begin = joined.__array_interface__["data"][0]
        addresses = begin + from_sizes(lengths)[:-1] * joined.itemsize
        return cls(addresses, joined.itemsize, [joined])


@dataclass(frozen=True, slots=True, eq=False)
class SparseGroup:
    """Sparse rows of several ranges."""

    row_lengths: Located
    """Number of values of each row (int64)."""
    columns: Located
    """Columns (uint32)."""
    values: Located
    value_offsets: I64
    """Bounds of bags in columns and values, in the form of ``RangeGroup.bag_offsets``."""


@dataclass(frozen=True, slots=True, eq=False)
class RangeGroup:
    """Bags of several ranges.

    Offsets of the ranges follow each other. A range of n bags has n + 1 offsets, beginning with 0.
    """

    n_bags: I64
    """Number of bags of each range."""
    bag_offsets: I64
    """Bounds of bags in the rows of their range."""
    rows: Located | SparseGroup
    label_offsets: I64
    """Bounds of bags in the labels of their range."""
    labels: Located
    """Labels (int32)."""

    @classmethod
    def from_blocks(cls, blocks: Sequence[BagBlock], dtype: str) -> RangeGroup:
        """Make a group of blocks, one for each range; values become ``dtype``."""
        labels = [np.ascontiguousarray(block.label_indices, np.int32) for block in blocks]
        bag_offsets = [block.bag_offsets for block in blocks]
        rows: Located | SparseGroup
        sparse = [block.rows for block in blocks if isinstance(block.rows, SparseRows)]
        if sparse:
            value_offsets = [part.offsets[at] for part, at in zip(sparse, bag_offsets, strict=True)]
            rows = SparseGroup(
                Located.of_arrays([np.diff(part.offsets) for part in sparse]),
                Located.of_arrays([np.ascontiguousarray(x.columns, np.uint32) for x in sparse]),
                Located.of_arrays([np.ascontiguousarray(x.values, dtype) for x in sparse]),
                np.concatenate(value_offsets),
            )
        else:
            dense = [np.ascontiguousarray(block.rows, dtype) for block in blocks]
            rows = Located.of_arrays(dense)
        return cls(
            np.array([len(block) for block in blocks], np.int64),
            np.concatenate(bag_offsets),
            rows,
            np.concatenate([block.label_offsets for block in blocks]),
            Located.of_arrays(labels),
        )
