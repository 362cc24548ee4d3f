"""MIMLSVM: a support vector machine for each label on distances to some of the bags."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.svm import SVC

from streammiml.bags.memory import MemoryBags
from streammiml.bags.views import Bags
from streammiml.config import parse_size
from streammiml.errors import StreammimlError
from streammiml.rivals import costs
from streammiml.rivals.hausdorff import (
    all_distances,
    check_longest_bag,
    distance_blocks,
    distances_to,
)
from streammiml.rivals.rival import DEFAULT_MEMORY, F64, I64, Bools, Rival, constant_labels
from streammiml.rivals.row_blocks import ROW_SCALES, Scaling

MOST_ROUNDS = 100
"""Most rounds in which bags move to other medoids."""


class MIMLSVM(Rival):
    """Medoids of the training bags, and kernel machines on the distances to them (Zhou & Zhang).

    The distance of bags is the maximal Hausdorff distance. k-medoids chooses a share of the bags;
    the distances of a bag to them are its features, for one machine with a Gaussian kernel for each
    label. Labels with a score above 0 are predicted, or the highest if there is none. A label that
    all training bags or none carry scores 1 or −1.

    The published kernel width does not depend on the number of medoids, so with many bags all bags
    are far from each other; ``gamma="scale"`` adapts it. Training takes the distances of all pairs
    of bags, and is refused where they would not fit in memory.

    Parameters
    ----------
    ratio
        Share of the training bags that become medoids.
    gamma
        Width of the kernel, ``exp(−gamma |u − v|²)``; or ``scale``, as in scikit-learn.
    cost
        Cost of errors on training bags, often called C.
    scale
        How rows are scaled: ``range`` maps each feature to [0, 1] by the training bags, ``unit``
        gives each row the length 1, which suits counts.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads on which distances are computed; results do not depend on them.
    seed
        Seed of the choice of the first medoids.
    """

    positive_settings = ("ratio", "cost")
    always_one = True

    def __init__(
        self,
        *,
        ratio: float = 0.2,
        gamma: float | Literal["scale"] = 0.2,
        cost: float = 1.0,
        scale: Literal["range", "unit"] = "range",
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self.ratio = ratio
        self.gamma = gamma
        self.cost = cost
        self.scale = scale
        self.memory = memory
        self.threads = threads
        self.seed = seed

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.ratio > 1:
            raise StreammimlError(f"ratio must be at most 1, got {self.ratio}")

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        return costs.all_pairs(n_bags, n_rows, n_features, n_labels, ratio=self.ratio)

    def _learn(self, store: Bags, truth: Bools) -> None:
        check_longest_bag(store, parse_size(self.memory))
        scaling = Scaling.called(self.scale, self._blocks(store), ROW_SCALES)
        distances = all_distances(
            distance_blocks(store, scaling, self.threads, self._spare_bytes), is_average=False
        )
        n_medoids = max(1, int(self.ratio * store.n_bags))
        chosen = medoids(distances, n_medoids, np.random.default_rng(self.seed))
        features = distances[:, chosen]
        constant = constant_labels(truth)
        machines = [
            None if constant[label] else self._machine().fit(features, truth[:, label])
            for label in range(truth.shape[1])
        ]
        kept = MemoryBags(
            store.read_bags(chosen, row_labels=False, kept=False), n_labels=store.n_labels
        )
        self._fitted = _MedoidMachines(kept, scaling, constant, machines)

    def _machine(self) -> Any:
        return SVC(C=self.cost, kernel="rbf", gamma=self.gamma)

    def _score(self, store: Bags) -> tuple[F64, None]:
        medoid_bags, scaling, constant, machines = self._fitted
        features = distances_to(
            distance_blocks(store, scaling, self.threads),
            distance_blocks(medoid_bags, scaling),
            is_average=False,
        )
        out = np.tile(constant, (store.n_bags, 1))
        for label, machine in enumerate(machines):
            if machine is not None:
                out[:, label] = machine.decision_function(features)
        return out, None


class _MedoidMachines(NamedTuple):
    """A fitted MIMLSVM."""

    medoids: Bags
    scaling: Scaling
    constant: F64
    """(L,) 1 or −1 for labels that all training bags or none carry, else 0."""
    machines: list[Any]
    """A machine for each label that has none of these scores."""


def medoids(distances: F64, count: int, rng: np.random.Generator) -> I64:
    """k-medoids on distances (n, n): numbers of ``count`` bags, each central to the bags around it.

    As published, all other bags first go to random clusters. Ties go to the lowest number.
    """
    n_bags = len(distances)
    first = rng.permutation(n_bags)[:count]
    cluster = rng.integers(0, count, n_bags)
    cluster[first] = np.arange(count)
    current = _centres(distances, cluster, count)
    for _ in range(MOST_ROUNDS):
        cluster = distances[:, current].argmin(axis=1)
        cluster[current] = np.arange(count)
        moved = _centres(distances, cluster, count)
        if np.array_equal(np.sort(moved), np.sort(current)):
            break
        current = moved
    return current


def _centres(distances: F64, cluster: I64, count: int) -> I64:
    """The bag of each cluster with the smallest sum of distances to the bags of its cluster."""
    centres = np.empty(count, np.int64)
    for number in range(count):
        members = np.flatnonzero(cluster == number)
        sums = distances[np.ix_(members, members)].sum(axis=0)
        centres[number] = members[sums.argmin()]
    return centres
