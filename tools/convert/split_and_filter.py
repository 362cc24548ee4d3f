"""Split, shuffle, filter and join bags, as functions of each bag's number.

The number of a bag is its position in the source, counted before any bag is left out. So neither
parts nor workers nor filters move a bag from one store of a split to another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StreammimlError
from streammiml_tools.readers.base import SourceError

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_SPLIT, _SHUFFLE, _STRATUM = 0x5B117, 0x5F0FF1E, 0x57A7A
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Split:
    """Names and shares of the stores that the bags are divided among."""

    names: tuple[str, ...]
    shares: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Split:
        """Parse a text such as ``train=0.7,valid=0.1,test=0.2``, whose shares add up to 1."""
        names, shares = [], []
        for part in text.split(","):
            name, equals, share = part.strip().partition("=")
            try:
                value = float(share)
            except ValueError:
                value = 0.0
            if not equals or not re.fullmatch("[A-Za-z0-9_-]+", name) or not 0 < value <= 1:
                raise StreammimlError(
                    f"split {text!r}: cannot read {part.strip()!r}; write name=share, with a "
                    "share above 0 and up to 1, as in train=0.7,test=0.3"
                )
            if name in names:
                raise StreammimlError(f"split {text!r} names {name} twice")
            names.append(name)
            shares.append(value)
        if abs(sum(shares) - 1) > 1e-6:
            raise StreammimlError(f"split {text!r}: shares add up to {sum(shares):g}, expected 1")
        return cls(tuple(names), tuple(shares))

    def of_points(self, points: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Return the number of the store for each point of [0, 1)."""
        ends = np.cumsum(self.shares)[:-1]
        return np.searchsorted(ends, points, "right").astype(np.uint8)

    def of_numbers(self, numbers: I64, seed: int) -> NDArray[np.uint8]:
        """Return the number of the store for each bag, by a hash of (seed, bag number)."""
        return self.of_points(unit(mixed(numbers, seed, _SPLIT)))

    def of_ranks(self, strata: I64, ranks: I64, seed: int) -> NDArray[np.uint8]:
        """Return the number of the store for each bag, given its stratum and its rank in it.

        The points of a stratum follow the golden ratio from a random start. So among any successive
        bags of a stratum, the count of each store is within about one bag of its share.
        """
        start = unit(mixed(strata, seed, _STRATUM))
        return self.of_points(np.modf(start + (ranks + 1) * _GOLDEN)[0])


def mixed(numbers: I64, *keys: int) -> U64:
    """Hash each number together with the keys; the compiler is loaded when the first is hashed."""
    hashes: U64 = import_module("streammiml._base.hashing").mixed(numbers, *keys)
    return hashes


def unit(words: U64) -> NDArray[np.float64]:
    """Return random words as numbers in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffle_keys(numbers: I64, seed: int) -> U64:
    """Return a random key for each bag; sorting by the keys shuffles the bags."""
    return mixed(numbers, seed, _SHUFFLE)


def strata_of(offsets: I64, labels: NDArray[Any], counts: I64) -> I64:
    """Return the stratum of each bag: its rarest label, the lowest if several are equally rare.

    Bags without labels have the stratum ``len(counts)``.
    """
    out = np.full(len(offsets) - 1, len(counts), np.int64)
    bags = np.repeat(np.arange(len(out)), np.diff(offsets))
    # The most common label is written first and the rarest last, which overwrites the others.
    order = np.lexsort((-labels.astype(np.int64), -counts[labels]))
    out[bags[order]] = labels[order]
    return out


def ranks_within(strata: I64, starts: I64) -> I64:
    """Return for each bag how many bags of its stratum come before it.

    ``starts`` has the number of bags of each stratum before this block; the bags of this block are
    added to it.
    """
    order = np.argsort(strata, kind="stable")
    ordered = strata[order]
    begins = np.searchsorted(ordered, ordered, "left")
    ranks = np.empty(len(strata), np.int64)
    ranks[order] = np.arange(len(strata)) - begins
    ranks += starts[strata]
    starts += np.bincount(strata, minlength=len(starts))
    return ranks


def has_any_label(block: BagBlock, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the bags with at least one of the labels."""
    hits = np.concatenate([[0], np.cumsum(np.isin(block.label_indices, labels))])
    return np.asarray(hits[block.label_offsets[1:]] > hits[block.label_offsets[:-1]])


def shaped(block: BagBlock, *, sparse: bool) -> BagBlock:
    """Return the block with its rows sparse or dense, as ``sparse`` requires."""
    rows = block.rows
    if sparse == isinstance(rows, SparseRows):
        return block
    new_rows: NDArray[Any] | SparseRows
    if isinstance(rows, SparseRows):
        new_rows = rows.dense()
    else:
        places = np.nonzero(rows)
        sizes = np.bincount(places[0], minlength=len(rows))
        new_rows = SparseRows(
            from_sizes(sizes), places[1].astype(np.uint32), rows[places], rows.shape[1]
        )
    return replace(block, rows=new_rows)


def joined_fragments(block: BagBlock, ids: list[str], numbers: I64) -> tuple[BagBlock, I64]:
    """Join the fragments of each bag, which share its id, in the order of their numbers.

    Returns the bags in the order of their first fragments, and the numbers of these fragments.
    Fragments of one bag with different labels are refused.
    """
    order = np.argsort(numbers, kind="stable")
    groups: dict[str, int] = {}
    group = np.array([groups.setdefault(ids[i], len(groups)) for i in order.tolist()], np.int64)
    by_group = np.argsort(group, kind="stable")
    taken, group = block.take(order[by_group]), group[by_group]
    firsts = np.searchsorted(group, np.arange(len(groups)))
    ends = np.append(firsts, len(group))
    pairs = np.repeat(group, np.diff(taken.label_offsets)), taken.label_indices
    unique, times = np.unique(np.stack(pairs).astype(np.int64), axis=1, return_counts=True)
    uneven = unique[0][times != np.diff(ends)[unique[0]]]
    if len(uneven):
        name = list(groups)[int(uneven[0])]
        raise SourceError(
            f"bag {name!r} is in {int(np.diff(ends)[uneven[0]])} places, with different labels; "
            "all rows of a bag must repeat its labels"
        )
    merged = BagBlock(
        taken.bag_offsets[ends],
        taken.rows,
        from_sizes(np.bincount(unique[0], minlength=len(groups))),
        unique[1].astype(np.int32),
        taken.row_labels,
        list(groups),
        taken.kept,
    )
    return merged, numbers[order][by_group][firsts]
