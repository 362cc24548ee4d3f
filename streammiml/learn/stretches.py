"""Stretches of bags: long contiguous reads of the training bags before the first step."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import numpy as np

from streammiml.bags.block import BagBlock
from streammiml.bags.views import Bags
from streammiml.blocks.budget import bag_bytes
from streammiml.blocks.prefetch import ReadAhead
from streammiml.learn.holdout import Holdout

STRETCH_BYTES = 1 << 20
"""A stretch has about this many bytes at least."""


def read_stretches(
    store: Bags,
    holdout: Holdout,
    stretches: Iterable[int],
    stretch_bags: int,
    deadline: float,
    below: int | None = None,
) -> Generator[BagBlock]:
    """Read stretches of ``stretch_bags`` bags, by number, without the bags that are held out.

    With ``below``, bags whose rows have that many bytes or more are left out too, and not read.
    """

    def read(stretch: int) -> BagBlock:
        first, stop = stretch * stretch_bags, min((stretch + 1) * stretch_bags, store.n_bags)
        kept = np.flatnonzero(~holdout.chosen(np.arange(first, stop)))
        if below is not None:
            sizes = bag_bytes(store, first, stop, store.bag_sizes(first, stop))
            return store.read_bags(first + kept[sizes[kept] < below], row_labels=False, kept=False)
        block = store.read(first, stop, row_labels=False, kept=False)
        return block if len(kept) == len(block) else block.take(kept)

    with ReadAhead(read, iter(stretches), depth=2, deadline=deadline) as ahead:
        yield from ahead
