"""KISAR: prototypes of rows, and linear models of labels that share prototypes where related."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from streammiml.bags.views import Bags
from streammiml.rivals import costs
from streammiml.rivals.costs import MOST_PROTOTYPES
from streammiml.rivals.rival import (
    DEFAULT_MEMORY,
    F64,
    I64,
    Bools,
    KeyInstanceRival,
    constant_labels,
)
from streammiml.rivals.row_blocks import ROW_SCALES, RowBlock, RowBlocks, Scaling
from streammiml.rivals.segments import first_maxima, row_maxima

SAMPLED_ROWS = 100_000
"""Most rows among which prototypes are looked for."""
PAIRS_OF_CLUSTER = 200
"""Pairs of rows whose mean distance is the width of a cluster."""
MOST_ALTERNATIONS = 20
TOLERANCE = 1e-3
"""Training ends when the objective falls by less than this share."""
LEAST_SHARE = 1e-8
"""Least share of a prototype in the penalty of a pair of labels."""


class KISAR(KeyInstanceRival):
    """Key instances shared among related labels (Li, Hu, Jiang and Zhou, AAAI 2012).

    Prototypes are the centres of clusters of the training rows. The features of a bag say how near
    its nearest row is to each prototype. Labels that often occur together are related, and the
    penalty of related labels is low if both use the same prototypes: it is the square of the sum
    over prototypes of the length of both labels' weights. Training alternates between the weights
    and the shares of prototypes in this penalty. The key instance of a label is the row that is
    nearest to the prototype which adds most to the label's score of the bag. Labels with a score
    above 0 are predicted, or the highest if there is none. A label that all training bags or none
    carry scores 1 or −1.

    The published code and equations were not available; the objective follows from the abstract.
    These choices are ours: clusters are
    those of at most 100,000 rows, drawn at random; there are half as many prototypes as bags, at
    most ``max_prototypes``; two labels are related if they occur together more often than the mean
    pair of labels; errors cost the square of the hinge, because LIBLINEAR converges on it where it
    does not on the hinge at high costs.

    The features of all training bags are held in memory: 8 bytes a bag and prototype, four times.

    Parameters
    ----------
    cost
        Cost of errors on training bags, often called C.
    max_prototypes
        Upper limit for the number of prototypes.
    scale
        How rows are scaled: ``range`` maps each feature to [0, 1] by the training bags, ``unit``
        gives each row the length 1, which suits counts.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads on which features are computed; results do not depend on them.
    seed
        Seed of the sample of rows and of the clusters.
    """

    whole_settings = ("max_prototypes",)
    positive_settings = ("cost",)
    always_one = True

    def __init__(
        self,
        *,
        cost: float = 500.0,
        max_prototypes: int = MOST_PROTOTYPES,
        scale: Literal["range", "unit"] = "range",
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self.cost = cost
        self.max_prototypes = max_prototypes
        self.scale = scale
        self.memory = memory
        self.threads = threads
        self.seed = seed

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        return costs.prototypes(
            *(n_bags, n_rows, n_features, n_labels),
            max_prototypes=self.max_prototypes,
            sampled_rows=SAMPLED_ROWS,
        )

    def _learn(self, store: Bags, truth: Bools) -> None:
        scaling = Scaling.called(self.scale, self._blocks(store), ROW_SCALES)
        rng = np.random.default_rng(self.seed)
        rows = sampled_rows(self._blocks(store, scaling), rng)
        n_prototypes = min(max(1, store.n_bags // 2), self.max_prototypes, len(rows))
        with threadpool_limits(1, "openmp"):  # With more threads, sums vary from run to run.
            clusters = KMeans(n_prototypes, n_init=1, random_state=self.seed).fit(rows)
        centres = np.asarray(clusters.cluster_centers_, np.float64)
        widths = cluster_widths(rows, clusters.labels_, n_prototypes, rng)
        blocks = self._blocks(store, scaling, width=n_prototypes)
        features = np.concatenate(list(blocks.map(_similarities, centres, widths)))
        constant = constant_labels(truth)
        learnt = np.flatnonzero(constant == 0)
        weights = np.zeros((truth.shape[1], n_prototypes + 1))
        self.objectives_: list[float] = []
        if len(learnt):
            own = truth[:, learnt]
            weights[learnt], self.objectives_ = alternate(
                features, own, related_labels(own), self.cost
            )
        weights[:, -1] += constant
        self.coef_, self.prototypes_ = weights, centres
        self._scaling, self._widths = scaling, widths

    def _score(self, store: Bags) -> tuple[F64, I64]:
        blocks = self._blocks(store, self._scaling, width=len(self.prototypes_))
        parts = blocks.map(_scores_and_keys, self.prototypes_, self._widths, self.coef_)
        scores, keys = zip(*parts, strict=True)
        return np.concatenate(scores), np.concatenate(keys)


class _Objective(NamedTuple):
    value: float
    lengths: F64
    """(pairs, k) Joint length of the weights of each pair of related labels, by prototype."""


def sampled_rows(blocks: RowBlocks, rng: np.random.Generator) -> F64:
    """At most ``SAMPLED_ROWS`` rows, drawn at random, in the order of the store."""
    n_rows = blocks.store.n_rows
    count = min(n_rows, SAMPLED_ROWS)
    chosen = np.sort(rng.permutation(n_rows)[:count])
    sizes = blocks.store.bag_sizes(0, blocks.store.n_bags)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    firsts = np.array([starts[start] for start, _ in blocks.ranges], np.int64)
    return np.concatenate(list(blocks.map(_rows_among, chosen, firsts)))


def _rows_among(block: RowBlock, chosen: I64, firsts: I64) -> F64:
    first = firsts[block.number]
    own = chosen[(chosen >= first) & (chosen < first + len(block.rows))]
    return np.asarray(block.rows[own - first])


def cluster_widths(
    rows: F64, cluster: NDArray[np.integer[Any]], n_clusters: int, rng: np.random.Generator
) -> F64:
    """Mean distance of two rows of each cluster, from random pairs.

    A cluster of one row, or of equal rows, has the mean width of the others.
    """
    order = np.argsort(cluster, kind="stable")
    bounds = np.searchsorted(cluster[order], np.arange(n_clusters + 1))
    widths = np.zeros(n_clusters)
    for number in range(n_clusters):
        members = order[bounds[number] : bounds[number + 1]]
        if len(members) > 1:
            one = rng.integers(0, len(members), PAIRS_OF_CLUSTER)
            # A second member that is never the first.
            other = (one + rng.integers(1, len(members), PAIRS_OF_CLUSTER)) % len(members)
            apart = rows[members[one]] - rows[members[other]]
            widths[number] = np.sqrt((apart**2).sum(axis=1)).mean()
    usual = widths[widths > 0].mean() if widths.any() else 1.0
    return np.where(widths > 0, widths, usual)


def related_labels(truth: Bools) -> I64:
    """(pairs, 2) Pairs of labels that occur together more often than the mean pair, and (l, l)."""
    n_labels = truth.shape[1]
    together = truth.T.astype(np.float64) @ truth
    first, second = np.triu_indices(n_labels, 1)
    counts = together[first, second]
    often = counts > counts.mean() if len(counts) else np.zeros(0, np.bool_)
    alone = np.arange(n_labels)
    return np.concatenate(
        [np.column_stack([alone, alone]), np.column_stack([first[often], second[often]])]
    )


def alternate(features: F64, truth: Bools, pairs: I64, cost: float) -> tuple[F64, list[float]]:
    """Weights (L, k + 1), the intercept last, and the objective after each alternation."""
    n_labels, n_prototypes = truth.shape[1], features.shape[1]
    shares = np.full((len(pairs), n_prototypes), 1 / n_prototypes)
    objectives: list[float] = []
    for _ in range(MOST_ALTERNATIONS):
        penalty = np.zeros((n_labels, n_prototypes))
        for (one, other), own_shares in zip(pairs, shares, strict=True):
            penalty[one] += 1 / own_shares
            if one != other:
                penalty[other] += 1 / own_shares
        weights = np.array(
            [_ridge(features, truth[:, label], penalty[label], cost) for label in range(n_labels)]
        )
        value, lengths = _objective(weights, features, truth, pairs, cost)
        objectives.append(value)
        if len(objectives) > 1 and value > (1 - TOLERANCE) * objectives[-2]:
            break
        totals = np.maximum(lengths.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        shares = np.maximum(lengths / totals, LEAST_SHARE)
        shares /= shares.sum(axis=1, keepdims=True)
    return weights, objectives


def _ridge(features: F64, own: Bools, penalty: F64, cost: float) -> F64:
    """Weights of one label with a penalty for each prototype: scaled features have an equal one."""
    scale = 1 / np.sqrt(penalty)
    # LIBLINEAR halves the penalty, so the cost is halved with it.
    machine = LinearSVC(C=cost / 2, dual=False, max_iter=1000, tol=1e-5)
    machine.fit(features * scale, own)
    return np.append(machine.coef_[0] * scale, machine.intercept_[0])


def _objective(weights: F64, features: F64, truth: Bools, pairs: I64, cost: float) -> _Objective:
    squares = weights[:, :-1] ** 2
    is_alone = (pairs[:, 0] == pairs[:, 1])[:, None]
    lengths = np.sqrt(squares[pairs[:, 0]] + np.where(is_alone, 0.0, squares[pairs[:, 1]]))
    margins = features @ weights[:, :-1].T + weights[:, -1]
    slack = np.maximum(0.0, 1 - np.where(truth, margins, -margins))
    # LIBLINEAR's penalty includes the intercept.
    penalty = (lengths.sum(axis=1) ** 2).sum() + (weights[:, -1] ** 2).sum()
    value = float(penalty + cost * (slack**2).sum())
    return _Objective(value, lengths)


def _squares(rows: F64, centres: F64) -> F64:
    """(rows, k) Squared distances of rows to points."""
    squares = (rows**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * rows @ centres.T
    return np.asarray(np.maximum(squares, 0.0))


def _nearness(block: RowBlock, centres: F64, widths: F64) -> F64:
    """(rows, k) exp(−|x − c|² / width) of each row x to each prototype c."""
    return np.asarray(np.exp(-_squares(block.rows, centres) / widths))


def _similarities(block: RowBlock, centres: F64, widths: F64) -> F64:
    """(n, k) Nearness of each bag's nearest row to each prototype."""
    return row_maxima(_nearness(block, centres, widths), block.offsets)


def _scores_and_keys(block: RowBlock, centres: F64, widths: F64, weights: F64) -> tuple[F64, I64]:
    """(n, L) Scores, and key instances."""
    nearness = _nearness(block, centres, widths)
    features = row_maxima(nearness, block.offsets)
    scores = features @ weights[:, :-1].T + weights[:, -1]
    rows, bag_of_row = np.arange(len(nearness)), block.bag_of_row
    nearest = np.empty((len(nearness), len(weights)))
    for label, own in enumerate(weights[:, :-1]):
        strongest = (features * own).argmax(axis=1)
        nearest[:, label] = nearness[rows, strongest[bag_of_row]]
    return scores, first_maxima(nearest, block.offsets)
