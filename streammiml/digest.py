"""Numbers that stand for the content of bags: 128 bits a bag, and 128 bits a store.

A bag's digest is a sum, modulo 2^64 in each of two lanes, of one well-mixed word for its size, for
each value that is not zero (with row, feature and float32 bits), for each label and for each known
row label. So it depends neither on dtype nor on sparse or dense storage. A store's fingerprint is
the same kind of sum over (bag number, bag digest): parts can be folded in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.jit import inner, njit

U64 = NDArray[np.uint64]

# Odd constants with well spread bits, and one tag for each kind of word that enters the sum.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MUL_A = np.uint64(0xBF58476D1CE4E5B9)
_MUL_B = np.uint64(0x94D049BB133111EB)
_LANE = np.uint64(0xD6E8FEB86659FD93)
_SIZE = np.uint64(0x1000000000000001)
_LABEL = np.uint64(0x2000000000000003)
_ROW_LABEL = np.uint64(0x3000000000000005)
_SIGNLESS = np.uint32(0x7FFFFFFF)
_NONE = np.uint64(0)
_S27, _S29, _S30, _S31, _S32 = (np.uint64(s) for s in (27, 29, 30, 31, 32))


@njit
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _S30)) * _MUL_A
    x = (x ^ (x >> _S27)) * _MUL_B
    return x ^ (x >> _S31)


@inner
def _second(x: np.uint64) -> np.uint64:
    return (x ^ (x >> _S29)) * _LANE


@inner
def _dense_row(bits: Any, key: np.uint64) -> tuple[np.uint64, np.uint64]:
    one, two = _NONE, _NONE
    for j in range(bits.shape[0]):
        z = _mix(((np.uint64(j) << _S32) | np.uint64(bits[j])) ^ key)
        z = z if bits[j] & _SIGNLESS else _NONE
        one += z
        two += _second(z)
    return one, two


@njit
def _add_dense(bag_offsets: Any, bits: Any, out: Any) -> None:
    """``bits`` (rows, d) uint32, ``out`` (bags, 2) added to."""
    for bag in range(out.shape[0]):
        for i in range(bag_offsets[bag], bag_offsets[bag + 1]):
            one, two = _dense_row(bits[i], _mix(np.uint64(i - bag_offsets[bag]) + _STEP))
            out[bag, 0] += one
            out[bag, 1] += two


@njit
def _add_sparse(bag_offsets: Any, row_offsets: Any, columns: Any, bits: Any, out: Any) -> None:
    """``columns`` and ``bits`` (values,) uint32, ``out`` (bags, 2) added to."""
    for bag in range(out.shape[0]):
        for i in range(bag_offsets[bag], bag_offsets[bag + 1]):
            key = _mix(np.uint64(i - bag_offsets[bag]) + _STEP)
            for p in range(row_offsets[i], row_offsets[i + 1]):
                if bits[p] & _SIGNLESS:
                    z = _mix(((np.uint64(columns[p]) << _S32) | np.uint64(bits[p])) ^ key)
                    out[bag, 0] += z
                    out[bag, 1] += _second(z)


@njit
def _add_labels(bag_offsets: Any, label_offsets: Any, labels: Any, out: Any) -> None:
    """The size and the label set of each bag; ``out`` (bags, 2) added to."""
    for bag in range(out.shape[0]):
        z = _mix(np.uint64(bag_offsets[bag + 1] - bag_offsets[bag]) * _STEP + _SIZE)
        out[bag, 0] += z
        out[bag, 1] += _second(z)
        for p in range(label_offsets[bag], label_offsets[bag + 1]):
            z = _mix(np.uint64(labels[p]) * _STEP + _LABEL)
            out[bag, 0] += z
            out[bag, 1] += _second(z)


@njit
def _add_row_labels(bag_offsets: Any, row_labels: Any, out: Any) -> None:
    """Row labels that are known (not −1); ``out`` (bags, 2) added to."""
    for bag in range(out.shape[0]):
        for i in range(bag_offsets[bag], bag_offsets[bag + 1]):
            if row_labels[i] >= 0:
                key = _mix(np.uint64(i - bag_offsets[bag]) + _STEP)
                z = _mix((np.uint64(row_labels[i]) * _STEP + _ROW_LABEL) ^ key)
                out[bag, 0] += z
                out[bag, 1] += _second(z)


@njit
def _fold(digests: Any, first: int, sums: Any) -> None:
    for bag in range(digests.shape[0]):
        key = _mix(np.uint64(first + bag) * _STEP + _STEP)
        sums[0] += _mix(digests[bag, 0] ^ key)
        sums[1] += _mix(digests[bag, 1] ^ key)


def float_bits(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Bits of the values as float32, without copying when they are that already."""
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
        _add_dense(bag_offsets, float_bits(rows), out)
    return out


class Fingerprint:
    """The running fingerprint of a store; ``sums`` is all its state."""

    def __init__(self, sums: tuple[int, int] = (0, 0)) -> None:
        self._sums = np.array(sums, np.uint64)

    def add(self, first_bag: int, digests: U64) -> None:
        """Fold in the digests of consecutive bags, the first of which is ``first_bag``."""
        _fold(digests, first_bag, self._sums)

    @property
    def sums(self) -> tuple[int, int]:
        """Two integers from which the sum can go on."""
        return int(self._sums[0]), int(self._sums[1])

    def text(self) -> str:
        """32 hexadecimal digits."""
        return f"{self.sums[0]:016x}{self.sums[1]:016x}"
