"""Hausdorff distances between the bags of stores, a pair of blocks at a time.

Only one pair of blocks a thread is in memory: the rows, their products, and the distances of the
bags. Bags that should be nearest to a bag are found by distance, then by number, so they do not
depend on the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from streammiml.bags.views import Bags
from streammiml.config import format_size
from streammiml.errors import StreammimlError
from streammiml.kernel.hausdorff import pair_distances
from streammiml.rivals.costs import PLAIN_BYTES
from streammiml.rivals.row_blocks import F64, I64, RowBlock, RowBlocks, Scaling, in_order

BLOCK_ROWS = 1024
"""About how many rows a block has: the products of two blocks take 8 MiB."""


class PairDistances(NamedTuple):
    """Distances of the bags of two blocks."""

    left: slice
    right: slice
    distances: F64
    """(bags of the left block, bags of the right block)."""


class NearestBags(NamedTuple):
    """The nearest bags of each bag, nearest first; of equal distances, the lowest number first."""

    distances: F64
    """(n, c)"""
    numbers: I64
    """(n, c)"""


def distance_blocks(
    store: Bags, scaling: Scaling, threads: int = 1, held_bytes: int = 0
) -> RowBlocks:
    """Blocks of a store that are small enough for the products of any two of them."""
    return RowBlocks(
        store,
        scaling=scaling,
        block_bytes=BLOCK_ROWS * PLAIN_BYTES * store.n_features,
        held_bytes=held_bytes,
        threads=threads,
    )


def check_longest_bag(store: Bags, memory: int) -> None:
    """Refuse bags that are so long that the products of two of them would not fit in memory."""
    sizes = store.bag_sizes(0, store.n_bags)
    longest = int(sizes.max())
    needed = PLAIN_BYTES * longest * longest
    if needed > memory:
        raise StreammimlError(
            f"bag {int(sizes.argmax())} of {store.name} has {longest:,} rows; its distances would "
            f"need {format_size(needed)} and memory is {format_size(memory)}"
        )


def between(left: RowBlocks, right: RowBlocks, *, is_average: bool) -> Iterator[PairDistances]:
    """Yield the distances of every left block to every right block, left block by left block."""
    pairs = ((i, j) for i in range(len(left)) for j in range(len(right)))
    task = partial(_of_pair, left=left, right=right, is_average=is_average)
    return in_order(task, pairs, left.threads)


def among(blocks: RowBlocks, *, is_average: bool) -> Iterator[PairDistances]:
    """Yield the distances of every block to itself and to the blocks behind it."""
    pairs = ((i, j) for i in range(len(blocks)) for j in range(i, len(blocks)))
    task = partial(_of_pair, left=blocks, right=blocks, is_average=is_average)
    return in_order(task, pairs, blocks.threads)


def all_distances(blocks: RowBlocks, *, is_average: bool) -> F64:
    """(n, n) Distances of all bags."""
    n_bags = blocks.store.n_bags
    out = np.zeros((n_bags, n_bags))
    for left, right, distances in among(blocks, is_average=is_average):
        out[left, right] = distances
        out[right, left] = distances.T
    np.fill_diagonal(out, 0.0)
    return out


def distances_to(left: RowBlocks, right: RowBlocks, *, is_average: bool) -> F64:
    """(n, m) Distances of all left bags to all right bags."""
    out = np.empty((left.store.n_bags, right.store.n_bags))
    for pair in between(left, right, is_average=is_average):
        out[pair.left, pair.right] = pair.distances
    return out


def nearest_others(blocks: RowBlocks, count: int, *, is_average: bool) -> NearestBags:
    """The ``count`` nearest other bags of every bag of a store."""
    nearest = no_neighbours(blocks.store.n_bags, count)
    for left, right, distances in among(blocks, is_average=is_average):
        if left == right:
            distances = distances.copy()
            np.fill_diagonal(distances, np.inf)
            merge(nearest, left, right, distances)
        else:
            merge(nearest, left, right, distances)
            merge(nearest, right, left, distances.T)
    return nearest


def merge(nearest: NearestBags, bags: slice, others: slice, distances: F64) -> None:
    """Put ``others`` into the lists of ``bags`` where they are nearer; changes ``nearest``."""
    count = nearest.distances.shape[1]
    numbers = np.broadcast_to(np.arange(others.start, others.stop), distances.shape)
    joined = np.concatenate([nearest.distances[bags], distances], axis=1)
    joined_numbers = np.concatenate([nearest.numbers[bags], numbers], axis=1)
    order = np.lexsort((joined_numbers, joined), axis=1)[:, :count]
    nearest.distances[bags] = np.take_along_axis(joined, order, axis=1)
    nearest.numbers[bags] = np.take_along_axis(joined_numbers, order, axis=1)


def no_neighbours(n_bags: int, count: int) -> NearestBags:
    """Lists for ``merge`` to fill."""
    # A number that is higher than any other, so that a real bag comes before it.
    numbers = np.full((n_bags, count), np.iinfo(np.int64).max)
    return NearestBags(np.full((n_bags, count), np.inf), numbers)


def _of_pair(
    pair: tuple[int, int], *, left: RowBlocks, right: RowBlocks, is_average: bool
) -> PairDistances:
    one = left.read(pair[0])
    other = one if left is right and pair[0] == pair[1] else right.read(pair[1])
    return PairDistances(one.bags, other.bags, block_distances(one, other, is_average=is_average))


def block_distances(left: RowBlock, right: RowBlock, *, is_average: bool) -> F64:
    """(n, m) Distances of the bags of two blocks."""
    out = np.empty((len(left.offsets) - 1, len(right.offsets) - 1))
    pair_distances(
        left.rows @ right.rows.T,
        np.einsum("rd,rd->r", left.rows, left.rows),
        np.einsum("rd,rd->r", right.rows, right.rows),
        left.offsets,
        right.offsets,
        is_average,
        out,
    )
    return out
