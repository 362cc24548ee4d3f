"""Bags of real handwritten digits, from the pictures in scikit-learn.

A bag holds some pictures. Its labels are the digits on them, or the groups of these digits. The
label of every picture is known, so key instances and sub-concepts can be checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StreammimlError


def load_pictures() -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return all 1797 pictures (n, 64), with values 0 to 16, and the digit on each."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415  an extra
    except ModuleNotFoundError:
        raise StreammimlError(
            "the digits are part of scikit-learn: pip install 'streammiml[demo]'"
        ) from None
    pictures, digits = load_digits(return_X_y=True)
    return pictures.astype(np.uint8), digits.astype(np.int32)


def digit_bags(
    n_bags: int,
    *,
    seed: int,
    rows_per_bag: tuple[int, int] = (3, 7),
    digits_per_bag: int = 3,
    groups: Sequence[Sequence[int]] | None = None,
    half: int | None = None,
) -> tuple[BagBlock, NDArray[np.int32]]:
    """Draw bags, and return them with the digit of every row.

    Each bag shows at most ``digits_per_bag`` different digits. The label of a row is its digit, or
    with ``groups`` the group of its digit. A digit in no group gives −1, so a bag may have no
    label. ``half`` 0 or 1 draws from that half of the pictures only, so that training and test bags
    share no picture.
    """
    pictures, digits = load_pictures()
    if half is not None:
        pictures, digits = pictures[half::2], digits[half::2]
    by_digit = [np.flatnonzero(digits == digit) for digit in range(10)]
    rng = np.random.default_rng([seed, n_bags])
    sizes = rng.integers(rows_per_bag[0], rows_per_bag[1] + 1, n_bags)
    chosen = []
    for size in sizes:
        bag_digits = rng.choice(10, digits_per_bag, replace=False)
        chosen += [rng.choice(by_digit[digit]) for digit in rng.choice(bag_digits, size)]
    group_of = np.arange(10, dtype=np.int32)
    if groups is not None:
        group_of[:] = -1
        for number, members in enumerate(groups):
            group_of[list(members)] = number
    row_digits = digits[chosen]
    row_labels = group_of[row_digits]
    offsets = from_sizes(sizes)
    labels = [np.unique(part[part >= 0]) for part in np.split(row_labels, offsets[1:-1])]
    block = BagBlock(
        bag_offsets=offsets,
        rows=pictures[chosen],
        label_offsets=from_sizes([len(bag_labels) for bag_labels in labels]),
        label_indices=np.concatenate(labels).astype(np.int32),
        row_labels=row_labels,
    )
    return block, row_digits
