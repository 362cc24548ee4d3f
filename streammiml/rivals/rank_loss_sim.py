"""RankLossSIM: linear models of support instances, trained on pairs of labels in each bag."""

from __future__ import annotations

import logging
import math
from typing import Literal, NamedTuple

import numpy as np

from streammiml.bags.views import Bags
from streammiml.errors import StreammimlError, unknown
from streammiml.kernel.pair_hinge import pair_hinge
from streammiml.rivals import costs
from streammiml.rivals.rival import (
    DEFAULT_MEMORY,
    F64,
    I64,
    Bools,
    KeyInstanceRival,
    least_hamming_cutoff,
)
from streammiml.rivals.row_blocks import RowBlock, RowBlocks, Scaling
from streammiml.rivals.segments import first_maxima, row_sums, softmax_in_bags

_LOG = logging.getLogger("streammiml")
SCALES = ("standard", "unit")
AGGREGATIONS = ("softmax", "max", "mean")
MOST_DOUBLINGS = 4
"""How often the steps of a round are doubled while the model is worse than none."""


class RankLossSIM(KeyInstanceRival):
    """Rank loss with support instances (Briggs, Fern and Raich, KDD 2012).

    The score of a label is linear in its support instance, a mean of the bag's rows that gives more
    weight to rows with a high score for the label. Training minimises the mean hinge loss of all
    pairs of a label that the bag carries and one that it does not carry, with a penalty on the
    weights. It alternates: support instances are fixed, Pegasos takes some steps on all bags, and
    support instances follow the new weights. The weights with the lowest objective are kept.

    All sums run over blocks of bags, so any store can be trained on; a block is read again for
    every step unless the rows of all bags fit into ``memory`` too.

    The published code was not available. Equations follow from the paper's abstract; these choices
    are ours: a constant feature 1 stands for the intercept; the first support instances are the
    means of bags; the steps of Pegasos become smaller over all rounds, because a step of the first
    size would forget the weights. If the objective ends above 1, which is that of no model at all,
    rounds with twice the steps follow, up to four times. The method has no rule of its own for
    which labels are predicted: those above the cutoff with the least Hamming loss of the training
    bags.

    Parameters
    ----------
    regularisation
        Weight of the penalty, often called lambda.
    aggregation
        How rows make a support instance: ``softmax`` of their scores, ``max`` or ``mean``.
    rounds
        How often support instances are made again.
    steps
        Steps in each round; each is a pass over the bags.
    scale
        How rows are scaled: ``standard`` gives each feature the mean 0 and the deviation 1, divided
        by the root of the number of features; ``unit`` gives each row the length 1, which suits
        counts.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads on which blocks are computed; results do not depend on them.
    """

    whole_settings = ("rounds", "steps")
    positive_settings = ("regularisation",)

    def __init__(
        self,
        *,
        regularisation: float = 1e-4,
        aggregation: Literal["softmax", "max", "mean"] = "softmax",
        rounds: int = 10,
        steps: int = 100,
        scale: Literal["standard", "unit"] = "standard",
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
    ) -> None:
        self.regularisation = regularisation
        self.aggregation = aggregation
        self.rounds = rounds
        self.steps = steps
        self.scale = scale
        self.memory = memory
        self.threads = threads

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.aggregation not in AGGREGATIONS:
            raise unknown("aggregation", self.aggregation, AGGREGATIONS)

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        return costs.blocks(n_bags, n_rows, n_features, n_labels)

    def _learn(self, store: Bags, truth: Bools) -> None:
        n_ranked = int((truth.any(axis=1) & ~truth.all(axis=1)).sum())
        if not n_ranked:
            raise StreammimlError(
                "RankLossSIM ranks the labels of a bag, so it needs bags that carry some labels "
                "and not others"
            )
        scaling = Scaling.called(self.scale, self._blocks(store), SCALES)
        blocks = self._blocks(store, scaling, width=store.n_labels, held_bytes=self._spare_bytes)
        search = _Descent(self, blocks, truth, n_ranked)
        steps = self.steps
        for _ in range(MOST_DOUBLINGS + 1):
            search.run(self.rounds, steps)
            if search.best_objective < 1:
                break
            steps *= 2
        else:
            _LOG.warning(
                "RankLossSIM's objective is %.3g, that of no model is 1: raise steps or "
                "regularisation",
                search.best_objective,
            )
        self.objective_, self.coef_ = search.best_objective, search.best
        self._scaling = scaling
        scores = np.concatenate(list(blocks.map(_scores, self.coef_, self.aggregation)))
        self.cutoff_ = least_hamming_cutoff(truth, scores)

    def _score(self, store: Bags) -> tuple[F64, I64]:
        blocks = self._blocks(store, self._scaling, width=len(self.coef_))
        parts = list(blocks.map(_scores_and_keys, self.coef_, self.aggregation))
        scores, keys = zip(*parts, strict=True)
        return np.concatenate(scores), np.concatenate(keys)


class _Descent:
    """The alternation: weights, the best weights so far, and the shares of rows in supports."""

    def __init__(self, method: RankLossSIM, blocks: RowBlocks, truth: Bools, n_ranked: int) -> None:
        self.regularisation, self.aggregation = method.regularisation, method.aggregation
        self.blocks, self.truth, self.n_ranked = blocks, truth, n_ranked
        self.weights = np.zeros((truth.shape[1], blocks.store.n_features + 1))
        self.best, self.best_objective, self.n_steps = self.weights, math.inf, 0

    def run(self, rounds: int, steps: int) -> None:
        """Take some rounds, and keep the weights with the lowest objective."""
        for _ in range(rounds):
            supports = _Supports(self.weights.copy(), self.aggregation, {}, self.blocks.is_held)
            for _ in range(steps):
                self.n_steps += 1
                _, slope = self._loss_and_slope(self.weights, supports)
                gradient = self.regularisation * self.weights + slope / self.n_ranked
                self.weights = self.weights - gradient / (self.regularisation * self.n_steps)
                # The best weights are known to lie within this distance from 0.
                length = float(np.linalg.norm(self.weights)) * math.sqrt(self.regularisation)
                self.weights /= max(1.0, length)
            objective = self._objective()
            if objective < self.best_objective:
                self.best, self.best_objective = self.weights, objective

    def _objective(self) -> float:
        """The objective, with the supports that belong to the weights."""
        supports = _Supports(self.weights, self.aggregation, {}, False)
        loss, _ = self._loss_and_slope(self.weights, supports)
        penalty = self.regularisation / 2 * float((self.weights**2).sum())
        return penalty + loss / self.n_ranked

    def _loss_and_slope(self, weights: F64, supports: _Supports) -> tuple[float, F64]:
        loss, slope = 0.0, np.zeros_like(weights)
        for part, part_slope in self.blocks.map(_block_loss, weights, supports, self.truth):
            loss += part
            slope += part_slope
        return loss, slope


class _Supports(NamedTuple):
    """The shares of rows in support instances, which the weights of a round's start determine."""

    weights: F64
    aggregation: str
    held: dict[int, F64]
    """Shares of blocks, by number."""
    is_held: bool

    def shares(self, block: RowBlock) -> F64:
        """(rows, L) Share of each row in its bag's support instance of each label."""
        if block.number in self.held:
            return self.held[block.number]
        shares = _shares(_row_scores(block, self.weights), block.offsets, self.aggregation)
        if self.is_held:
            self.held[block.number] = shares
        return shares


def _row_scores(block: RowBlock, weights: F64) -> F64:
    """(rows, L); the last weight of each label is its intercept."""
    return np.asarray(block.rows @ weights[:, :-1].T + weights[:, -1])


def _shares(row_scores: F64, offsets: I64, aggregation: str) -> F64:
    """(rows, L) Shares that add up to 1 in each bag."""
    if aggregation == "softmax":
        return softmax_in_bags(row_scores, offsets)
    sizes = np.diff(offsets)
    if aggregation == "mean":
        return np.repeat(np.repeat(1 / sizes, sizes)[:, None], row_scores.shape[1], axis=1)
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
    keys = np.repeat(first_maxima(row_scores, offsets), sizes, axis=0)
    return np.where(keys == places[:, None], 1.0, 0.0)


def _block_loss(
    block: RowBlock, weights: F64, supports: _Supports, truth: Bools
) -> tuple[float, F64]:
    """Loss of the bags of a block, and its derivative by the weights."""
    shares = supports.shares(block)
    scores = row_sums(shares * _row_scores(block, weights), block.offsets)
    slopes = np.empty_like(scores)
    loss = pair_hinge(scores, truth[block.bags], slopes)
    weighted = shares * np.repeat(slopes, np.diff(block.offsets), axis=0)
    return loss, np.column_stack([weighted.T @ block.rows, weighted.sum(axis=0)])


def _scores_and_keys(block: RowBlock, weights: F64, aggregation: str) -> tuple[F64, I64]:
    row_scores = _row_scores(block, weights)
    shares = _shares(row_scores, block.offsets, aggregation)
    return row_sums(shares * row_scores, block.offsets), first_maxima(row_scores, block.offsets)


def _scores(block: RowBlock, weights: F64, aggregation: str) -> F64:
    return _scores_and_keys(block, weights, aggregation)[0]
