"""Fingerprints of content: 128 bits for a bag, and 128 bits for a store.

A bag's digest is two sums of hashed words, each modulo 2^64. There is one word for the
bag's size, for each value that is not zero (with row, feature and float32 bits), for each label,
and for each known row label. So the digest depends neither on dtype nor on sparse or dense storage.
A store's fingerprint is two such sums over (bag number, bag digest), so parts can be added in any
order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.compiled import inner, njit
from streammiml._base.hashing import GOLDEN, splitmix
from streammiml.bags.block import BagBlock, SparseRows

U64 = NDArray[np.uint64]

# Odd constants with well spread bits, and one tag for each kind of word that enters the sum.
_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_SIZE = np.uint64(0x1000000000000001)
_LABEL = np.uint64(0x2000000000000003)
_ROW_LABEL = np.uint64(0x3000000000000005)
# All bits but the sign, so that −0.0 counts as zero.
_SIGNLESS = np.uint32(0x7FFFFFFF)
_ZERO = np.uint64(0)
_CONVERTED_BYTES = 4 << 20
"""Rows of other dtypes are converted to float32 in pieces of about this many bytes."""
_S29, _S32 = np.uint64(29), np.uint64(32)


@inner
def _second(x: np.uint64) -> np.uint64:
    """Hash a word again, for the second sum."""
    return (x ^ (x >> _S29)) * _FACTOR


@inner
def _dense_row(bits: Any, key: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Both sums over the values of one row, ``bits`` (d,) uint32."""
    sum_1, sum_2 = _ZERO, _ZERO
    for j in range(bits.shape[0]):
        z = splitmix(((np.uint64(j) << _S32) | np.uint64(bits[j])) ^ key)
        z = z if bits[j] & _SIGNLESS else _ZERO
        sum_1 += z
        sum_2 += _second(z)
    return sum_1, sum_2


@njit
def _add_dense(bag_offsets: Any, first: int, bits: Any, out: Any) -> None:
    """``bits`` (n, d) uint32 of rows ``first`` to ``first + n``, ``out`` (bags, 2) added to."""
    stop = first + bits.shape[0]
    for bag in range(out.shape[0]):
        for i in range(max(bag_offsets[bag], first), min(bag_offsets[bag + 1], stop)):
            key = splitmix(np.uint64(i - bag_offsets[bag]) + GOLDEN)
            sum_1, sum_2 = _dense_row(bits[i - first], key)
            out[bag, 0] += sum_1
            out[bag, 1] += sum_2


@njit
def _add_sparse(bag_offsets: Any, row_offsets: Any, columns: Any, bits: Any, out: Any) -> None:
    """``columns`` and ``bits`` (values,) uint32, ``out`` (bags, 2) added to."""
    for bag in range(out.shape[0]):
        for i in range(bag_offsets[bag], bag_offsets[bag + 1]):
            key = splitmix(np.uint64(i - bag_offsets[bag]) + GOLDEN)
            for p in range(row_offsets[i], row_offsets[i + 1]):
                if bits[p] & _SIGNLESS:
                    z = splitmix(((np.uint64(columns[p]) << _S32) | np.uint64(bits[p])) ^ key)
                    out[bag, 0] += z
                    out[bag, 1] += _second(z)


@njit
def _add_labels(bag_offsets: Any, label_offsets: Any, labels: Any, out: Any) -> None:
    """Add the size and the label set of each bag to ``out`` (bags, 2)."""
    for bag in range(out.shape[0]):
        z = splitmix(np.uint64(bag_offsets[bag + 1] - bag_offsets[bag]) * GOLDEN + _SIZE)
        out[bag, 0] += z
        out[bag, 1] += _second(z)
        for p in range(label_offsets[bag], label_offsets[bag + 1]):
            z = splitmix(np.uint64(labels[p]) * GOLDEN + _LABEL)
            out[bag, 0] += z
            out[bag, 1] += _second(z)


@njit
def _add_row_labels(bag_offsets: Any, row_labels: Any, out: Any) -> None:
    """Add row labels that are known (not −1) to ``out`` (bags, 2)."""
    for bag in range(out.shape[0]):
        for i in range(bag_offsets[bag], bag_offsets[bag + 1]):
            if row_labels[i] >= 0:
                key = splitmix(np.uint64(i - bag_offsets[bag]) + GOLDEN)
                z = splitmix((np.uint64(row_labels[i]) * GOLDEN + _ROW_LABEL) ^ key)
                out[bag, 0] += z
                out[bag, 1] += _second(z)


@njit
def _fold(digests: Any, first: int, sums: Any) -> None:
    """Add ``digests`` (bags, 2) of the bags from number ``first`` on to ``sums`` (2,)."""
    for bag in range(digests.shape[0]):
        key = splitmix(np.uint64(first + bag) * GOLDEN + GOLDEN)
        sums[0] += splitmix(digests[bag, 0] ^ key)
        sums[1] += splitmix(digests[bag, 1] ^ key)


def float_bits(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Bits of the values as float32; float32 values are not copied."""
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)


def bag_digests(
    bag_offsets: NDArray[np.int64],
    label_offsets: NDArray[np.int64],
    label_indices: NDArray[Any],
    row_labels: NDArray[Any] | None,
    rows: NDArray[Any] | tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[Any]],
) -> U64:
    """Digest of each bag, (bags, 2).

    ``rows`` is dense (n, d), or (row offsets, columns, values).
    """
    out = np.zeros((len(bag_offsets) - 1, 2), np.uint64)
    _add_labels(bag_offsets, label_offsets, label_indices, out)
    if row_labels is not None:
        _add_row_labels(bag_offsets, row_labels, out)
    if isinstance(rows, tuple):
        row_offsets, columns, values = rows
        _add_sparse(bag_offsets, row_offsets, columns, float_bits(values), out)
    else:
        n_rows = len(rows)
        # All rows at once if they are float32 already, which needs no copy.
        if rows.dtype != np.float32:
            n_rows = max(1, _CONVERTED_BYTES // (4 * max(1, rows.shape[1])))
        for first in range(0, len(rows), max(1, n_rows)):
            _add_dense(bag_offsets, first, float_bits(rows[first : first + n_rows]), out)
    return out


def digests_of(block: BagBlock) -> U64:
    """Digest of each bag of a block, (bags, 2)."""
    rows = block.rows
    return bag_digests(
        block.bag_offsets,
        block.label_offsets,
        block.label_indices,
        block.row_labels,
        (rows.offsets, rows.columns, rows.values) if isinstance(rows, SparseRows) else rows,
    )


class Fingerprint:
    """Running fingerprint of a store; ``sums`` is its complete state."""

    def __init__(self, sums: tuple[int, int] = (0, 0)) -> None:
        self._sums = np.array(sums, np.uint64)

    def add(self, first_bag: int, digests: U64) -> None:
        """Add the digests of consecutive bags; ``first_bag`` is the number of the first."""
        _fold(digests, first_bag, self._sums)

    @property
    def sums(self) -> tuple[int, int]:
        """The two sums so far; ``Fingerprint(sums)`` continues from them."""
        return int(self._sums[0]), int(self._sums[1])

    def text(self) -> str:
        """The fingerprint as 32 hexadecimal digits."""
        return f"{self.sums[0]:016x}{self.sums[1]:016x}"
