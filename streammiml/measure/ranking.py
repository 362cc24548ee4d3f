"""Metrics of the order of labels, without the dummy label.

Scores are ranked within a bag, the highest first. Each docstring says what happens with ties, and
with bags that have no relevant label or only relevant ones. Metrics that scikit-learn has too agree
with it.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from streammiml.kernel.figures import (
    count_first,
    count_wrong_order,
    deepest_rank,
    sum_gains,
    sum_precisions,
)
from streammiml.measure.metric import I64, BagMean, Metric, Ratio, ScoredBlock


def _among_first(block: ScoredBlock, k: int) -> I64:
    n_first = np.empty(block.n_bags, np.int64)
    count_first(block.ranks.higher, block.ranks.before, block.label_offsets, k, n_first)
    return n_first


def _hits_at(block: ScoredBlock, k: int) -> Ratio:
    """Relevant labels among the first ``k``.

    Among equal scores the lowest label comes first, as in predictions. A bag without labels has no
    hits; a bag with all labels has min(``k``, L).
    """
    return Ratio.of(_among_first(block, k), k)


def _any_among_first(block: ScoredBlock, k: int) -> Ratio:
    """Bags with labels that have a relevant label among the first ``k``; YouTube-8M's Hit@k.

    Among equal scores the lowest label comes first, as in predictions.
    """
    hits = _among_first(block, k)[block.n_true > 0] > 0
    return Ratio.of(hits.astype(np.int64), 1)


def _precision_at_recall(block: ScoredBlock) -> BagMean:
    """Relevant labels among the first g of a bag with g > 0 labels, over g; YouTube-8M's PERR.

    Among equal scores the lowest label comes first, as in predictions.
    """
    ranks, n_true = block.ranks, block.n_true
    bags = block.bag_of[ranks.higher + ranks.before < n_true[block.bag_of]]
    hits = np.bincount(bags, minlength=block.n_bags)
    return BagMean.of((hits / np.maximum(n_true, 1))[n_true > 0])


def _missed_first(block: ScoredBlock) -> Ratio:
    """Bags whose first label is irrelevant.

    Among equal scores the lowest label is first, as in predictions: 1 − ``precision_at_1``. A bag
    without labels counts as 1, a bag with all labels as 0. scikit-learn does not have this metric.
    """
    return Ratio.of(1 - _among_first(block, 1), 1)


def _depth(block: ScoredBlock) -> Ratio:
    """(rank of the last relevant label − 1) / L: scikit-learn's ``coverage_error``, less 1, over L.

    Ties count against the relevant label. A bag with all labels counts as (L − 1) / L. A bag
    without labels has rank 0, as in scikit-learn, and so counts as −1 / L.
    """
    deepest = np.empty(block.n_bags, np.int64)
    deepest_rank(block.ranks.higher, block.ranks.equal, block.label_offsets, deepest)
    return Ratio.of(deepest - 1, block.n_labels)


def _wrong_order(block: ScoredBlock) -> BagMean:
    """Share of a bag's (relevant, irrelevant) pairs in the wrong order: ``label_ranking_loss``.

    A tie counts as a wrong pair. Bags with no or all labels have no pairs and count as 0.
    """
    n_true, ranks = block.n_true, block.ranks
    pairs = n_true * (block.n_labels - n_true)
    wrong = np.empty(block.n_bags, np.int64)
    count_wrong_order(ranks.higher, ranks.equal, ranks.relevant, block.label_offsets, wrong)
    return BagMean.of(wrong / np.maximum(pairs, 1))


def _precision_of_ranks(block: ScoredBlock) -> BagMean:
    """Average precision of a bag: scikit-learn's ``label_ranking_average_precision_score``.

    The mean, over relevant labels, of the share of relevant labels among all labels with the same
    score or a higher one, so ties lower it. Bags with no labels or with all labels count as 1. Here
    the labels of a bag are in order; in ``macro_average_precision``, the bags of a label are.
    """
    n_true, ranks = block.n_true, block.ranks
    sums = np.empty(block.n_bags)
    sum_precisions(ranks.higher, ranks.equal, ranks.relevant, block.label_offsets, sums)
    return BagMean.of(np.where(n_true == 0, 1.0, sums / np.maximum(n_true, 1)))


def _gain_at(block: ScoredBlock, k: int) -> BagMean:
    """Discounted gain of the first ``k`` over the best possible: scikit-learn's ``ndcg_score``.

    The label at rank r gains 1 / log₂(r + 1). Equal scores share the mean of their ranks' gains.
    A bag without labels counts as 0, a bag with all labels as 1.
    """
    depth = min(k, block.n_labels)
    gains = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, depth + 2)))])
    n_true, sums = block.n_true, np.empty(block.n_bags)
    sum_gains(block.ranks.higher, block.ranks.equal, block.label_offsets, gains, sums)
    best = gains[np.minimum(n_true, depth)]
    # Rounding may make the sum a few ulp larger than the best, and a share must not exceed 1.
    return BagMean.of(np.minimum(sums, best) / np.where(n_true > 0, best, 1.0))


one_error = Metric("one_error", _missed_first, Ratio.add, Ratio.figure, "lower")
coverage = Metric("coverage", _depth, Ratio.add, Ratio.figure, "lower")
ranking_loss = Metric("ranking_loss", _wrong_order, BagMean.add, BagMean.figure, "lower")
average_precision = Metric(
    "average_precision", _precision_of_ranks, BagMean.add, BagMean.figure, "higher"
)
perr = Metric(
    "perr", _precision_at_recall, BagMean.add, BagMean.figure, "higher", over_labelled=False
)


def precision_at(k: int) -> Metric[Ratio]:
    """Relevant labels among the first ``k``, divided by ``k`` even if there are fewer labels."""
    return Metric(f"precision_at_{k}", partial(_hits_at, k=k), Ratio.add, Ratio.figure, "higher")


def hit_at(k: int) -> Metric[Ratio]:
    """Share of the bags with labels that have one of their labels among the first ``k``."""
    block = partial(_any_among_first, k=k)
    return Metric(f"hit_at_{k}", block, Ratio.add, Ratio.figure, "higher", over_labelled=False)


def ndcg_at(k: int) -> Metric[BagMean]:
    """Normalised discounted cumulative gain of the first ``k`` labels."""
    return Metric(f"ndcg_at_{k}", partial(_gain_at, k=k), BagMean.add, BagMean.figure, "higher")
