"""MIMLkNN: labels of a bag from the labels of its neighbours, and of bags whose neighbour it is."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import Bags
from streammiml.config import parse_size
from streammiml.errors import StreammimlError
from streammiml.rivals import costs
from streammiml.rivals.hausdorff import (
    NearestBags,
    between,
    check_longest_bag,
    distance_blocks,
    merge,
    nearest_others,
    no_neighbours,
)
from streammiml.rivals.rival import DEFAULT_MEMORY, F64, Bools, Rival
from streammiml.rivals.row_blocks import ROW_SCALES, Scaling


class MIMLkNN(Rival):
    """Nearest neighbours and citers of bags (Zhang, ICTAI 2010).

    The average Hausdorff distance says how near bags are. The references of a bag are its nearest
    training bags; its citers are the training bags that have it among their nearest. Both together
    count the labels around a bag (a bag that is both counts twice), and a linear least-squares map
    takes these counts to scores. Labels with a score of 0 or more are predicted.

    Distances are computed a pair of blocks at a time, and only the nearest bags of each bag are
    kept. So training takes n² time, but memory in proportion to n. The estimator keeps the training
    bags, or the store that holds them, because it compares new bags with them.

    A new bag cites only if it is strictly nearer than the last of the nearest bags of the training
    bag. Where neighbours are equally near, the bag with the lower number comes first.

    Parameters
    ----------
    n_references, n_citers
        Numbers of nearest bags; at most all other training bags are taken.
    scale
        How rows are scaled: ``range`` maps each feature to [0, 1] by the training bags, ``unit``
        gives each row the length 1, which suits counts.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads on which distances are computed; results do not depend on them.
    """

    whole_settings = ("n_references", "n_citers")
    cutoff_is_positive = True

    def __init__(
        self,
        *,
        n_references: int = 10,
        n_citers: int = 20,
        scale: Literal["range", "unit"] = "range",
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
    ) -> None:
        self.n_references = n_references
        self.n_citers = n_citers
        self.scale = scale
        self.memory = memory
        self.threads = threads

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        n_nearest = max(self.n_references, self.n_citers)
        return costs.nearest(n_bags, n_rows, n_features, n_labels, n_nearest=n_nearest)

    def _learn(self, store: Bags, truth: Bools) -> None:
        if store.n_bags < 2:
            raise StreammimlError("MIMLkNN compares bags, so it needs at least 2 of them")
        check_longest_bag(store, parse_size(self.memory))
        scaling = Scaling.called(self.scale, self._blocks(store), ROW_SCALES)
        blocks = distance_blocks(store, scaling, self.threads, self._spare_bytes)
        n_references = min(self.n_references, store.n_bags - 1)
        n_citers = min(self.n_citers, store.n_bags - 1)
        nearest = nearest_others(blocks, max(n_references, n_citers), is_average=True)
        counts = label_counts(nearest, truth, n_references, n_citers)
        weights, *_ = np.linalg.lstsq(counts, np.where(truth, 1.0, -1.0), rcond=None)
        self._fitted = _Neighbourhood(
            store, truth, scaling, n_references, nearest.distances[:, n_citers - 1].copy(), weights
        )

    def _score(self, store: Bags) -> tuple[F64, None]:
        fitted = self._fitted
        new = distance_blocks(store, fitted.scaling, self.threads)
        old = distance_blocks(fitted.store, fitted.scaling, self.threads)
        nearest = no_neighbours(store.n_bags, fitted.n_references)
        counts = np.zeros((store.n_bags, fitted.truth.shape[1]))
        for left, right, distances in between(new, old, is_average=True):
            merge(nearest, left, right, distances)
            cites = distances < fitted.radius[right]
            counts[left] += cites.astype(np.float64) @ fitted.truth[right]
        for numbers in nearest.numbers.T:
            counts += fitted.truth[numbers]
        return counts @ fitted.weights, None


class _Neighbourhood(NamedTuple):
    """A fitted MIMLkNN."""

    store: Bags
    truth: Bools
    scaling: Scaling
    n_references: int
    radius: F64
    """(n,) Distance of each training bag to the last of its nearest bags that it cites."""
    weights: NDArray[np.floating[Any]]
    """(L, L) From counts of labels around a bag to scores."""


def label_counts(nearest: NearestBags, truth: Bools, n_references: int, n_citers: int) -> F64:
    """(n, L) Number of references and citers of each training bag that carry each label."""
    counts = np.zeros(truth.shape)
    for numbers in nearest.numbers[:, :n_references].T:
        counts += truth[numbers]
    for numbers in nearest.numbers[:, :n_citers].T:
        # A bag can be the neighbour of several bags at this place of their lists.
        np.add.at(counts, numbers, truth.astype(np.float64))
    return counts
