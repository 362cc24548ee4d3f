"""DBA: a topic model of bags whose topics are the labels."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import digamma, gammaln

from streammiml.bags.offsets import gather
from streammiml.bags.views import Bags
from streammiml.errors import StreammimlError, unknown
from streammiml.rivals import costs
from streammiml.rivals.rival import (
    DEFAULT_MEMORY,
    F64,
    I64,
    Bools,
    KeyInstanceRival,
    least_hamming_cutoff,
)
from streammiml.rivals.row_blocks import RowBlock, RowBlocks
from streammiml.rivals.segments import first_maxima, row_sums

_LOG = logging.getLogger("streammiml")
EMISSIONS = ("auto", "counts", "gaussian")
PRIOR = 0.1
"""Parameter of the Dirichlet distribution of labels in a bag."""
SMOOTHING = 0.01
"""Count that every word of every label has beforehand."""
LEAST_VARIANCE = 1e-3
START_NOISE = 0.01
MOST_ROUNDS, BOUND_TOLERANCE = 50, 1e-5
MOST_UPDATES, UPDATE_TOLERANCE = 50, 1e-4
WORDS_ZERO_SHARE = 0.5
"""Values that are not negative are taken as weights of words if at least this share is zero."""


class DBA(KeyInstanceRival):
    """Dirichlet-Bernoulli alignment (Yang, Zha and Hu, NIPS 2009).

    Every row of a bag belongs to one label, drawn from a distribution over labels that the bag has
    for itself; the label's distribution over words gives the row's counts. Training finds the
    distributions of words by a variational approximation, in which rows of a training bag belong
    only to labels that the bag carries. The score of a label is the share of the bag's rows that
    belong to it; the key instance is the row that belongs to it most.

    All sums run over blocks of bags, so any store can be trained on; a block is read again for
    every round unless the rows of all bags fit into ``memory`` too.

    Only the model is published in the sources that were available. These choices are ours: a row
    of a training bag certainly belongs to one of the bag's labels, or to any label if it has none;
    the prior of a bag's labels is 0.1 for each label; the cutoff is the one with the least Hamming
    loss of the training bags. Rows that are no counts get a Gaussian distribution for each label
    instead of words, with a variance for each feature.

    Parameters
    ----------
    emission
        ``counts``, ``gaussian``, or ``auto``: counts if all values are whole numbers and none is
        negative, or if none is negative and at least half are zero, as in weights of words. If
        they are no counts, the log says what they are taken as; ``emission_`` says it too.
    temper
        Divide the log-likelihood of a row's words by the root of their number, so that rows with
        many words can belong to several labels.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads on which blocks are computed; results do not depend on them.
    seed
        Seed of the noise of the first distributions.
    """

    def __init__(
        self,
        *,
        emission: Literal["auto", "counts", "gaussian"] = "auto",
        temper: bool = False,
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self.emission = emission
        self.temper = temper
        self.memory = memory
        self.threads = threads
        self.seed = seed

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.emission not in EMISSIONS:
            raise unknown("emission", self.emission, EMISSIONS)

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        return costs.blocks(n_bags, n_rows, n_features, n_labels)

    def _learn(self, store: Bags, truth: Bools) -> None:
        if truth.shape[1] < 2:
            raise StreammimlError(
                "DBA divides the rows of a bag among labels, so it needs at least 2 labels"
            )
        blocks = self._blocks(store, width=2 * store.n_labels, held_bytes=self._spare_bytes)
        self.emission_ = self._emission_of(blocks)
        # A row of a bag without labels may belong to any label.
        allowed = truth | ~truth.any(axis=1, keepdims=True)
        start = np.random.default_rng(self.seed).normal(1, START_NOISE, (store.n_labels, 1))
        totals = sum_totals(blocks.map(_start_totals, truth, np.abs(start)))
        self.bounds_: list[float] = []
        for _ in range(MOST_ROUNDS):
            self._rows_of_labels = self._maximised(totals)
            totals = sum_totals(blocks.map(_totals, self._rows_of_labels, allowed))
            self.bounds_.append(totals.bound)
            if len(self.bounds_) > 1:
                rise = self.bounds_[-1] - self.bounds_[-2]
                if abs(rise) < BOUND_TOLERANCE * abs(self.bounds_[-2]):
                    break
        scores = np.concatenate([part for part, _ in blocks.map(_shares, self._rows_of_labels)])
        self.cutoff_ = least_hamming_cutoff(truth, scores)

    def _emission_of(self, blocks: RowBlocks) -> str:
        """The kind of distribution that fits the values of the training rows."""
        kinds = reduce(_Values.add, blocks.map(_values_of))
        if self.emission == "counts" and kinds.lowest < 0:
            raise StreammimlError(
                f"DBA takes rows as counts, and a value is {kinds.lowest:g}; give counts, or "
                "emission='gaussian'"
            )
        if self.emission != "auto":
            return self.emission
        if kinds.lowest >= 0 and kinds.are_whole:
            return "counts"
        if kinds.lowest >= 0 and kinds.n_zeros >= WORDS_ZERO_SHARE * kinds.n_values:
            _LOG.warning("DBA: values are not whole numbers; they are taken as weights of words")
            return "counts"
        _LOG.warning("DBA: values are not counts; each label gets a Gaussian distribution of rows")
        return "gaussian"

    def _maximised(self, totals: _Totals) -> _RowsOfLabels:
        """The distributions that suit the totals best."""
        if self.emission_ == "counts":
            counts = totals.sums + SMOOTHING
            logs = np.log(counts / counts.sum(axis=1, keepdims=True))
            return _RowsOfLabels("counts", self.temper, logs, np.empty((0, 0)))
        weights = np.maximum(totals.weights, 1e-12)[:, None]
        means = totals.sums / weights
        variances = np.maximum(totals.squares / weights - means**2, LEAST_VARIANCE)
        return _RowsOfLabels("gaussian", self.temper, means, variances)

    def _score(self, store: Bags) -> tuple[F64, I64]:
        blocks = self._blocks(store, width=2 * len(self._rows_of_labels.first))
        scores, keys = zip(*blocks.map(_shares, self._rows_of_labels), strict=True)
        return np.concatenate(scores), np.concatenate(keys)


class _RowsOfLabels(NamedTuple):
    """The distribution of the rows of each label."""

    emission: str
    temper: bool
    first: F64
    """(L, d) Logarithms of the shares of words, or means."""
    variances: F64
    """(L, d), for the Gaussian distribution."""

    def log_likelihood(self, rows: F64) -> F64:
        """(rows, L), up to a constant that is the same for all labels."""
        if self.emission == "counts":
            out = rows @ self.first.T
            n_words = rows.sum(axis=1, keepdims=True)
        else:
            precision = 1 / self.variances
            out = -0.5 * (
                rows**2 @ precision.T
                - 2 * rows @ (self.first * precision).T
                + (self.first**2 * precision + np.log(self.variances)).sum(axis=1)
            )
            n_words = np.full((1, 1), float(rows.shape[1]))
        return np.asarray(out / np.sqrt(np.maximum(n_words, 1.0)) if self.temper else out)


class _Totals(NamedTuple):
    """Sums over rows, weighted by the probability of each label; and the bound on the likelihood.

    ``sums`` and ``squares`` are (L, d), ``weights`` (L,).
    """

    weights: F64
    sums: F64
    squares: F64
    bound: float

    def add(self, other: _Totals) -> _Totals:
        return _Totals(
            self.weights + other.weights,
            self.sums + other.sums,
            self.squares + other.squares,
            self.bound + other.bound,
        )


def sum_totals(parts: Iterator[_Totals]) -> _Totals:
    """Add up the totals of blocks, in order."""
    return reduce(_Totals.add, parts)


class _Values(NamedTuple):
    """What the values of rows are like."""

    n_values: int
    n_zeros: int
    are_whole: bool
    lowest: float

    def add(self, other: _Values) -> _Values:
        return _Values(
            self.n_values + other.n_values,
            self.n_zeros + other.n_zeros,
            self.are_whole and other.are_whole,
            min(self.lowest, other.lowest),
        )


def _values_of(block: RowBlock) -> _Values:
    rows = block.rows
    n_zeros = rows.size - int(np.count_nonzero(rows))
    return _Values(rows.size, n_zeros, bool((rows == np.rint(rows)).all()), float(rows.min()))


def _weighted(rows: F64, shares: F64, bound: float) -> _Totals:
    return _Totals(shares.sum(axis=0), shares.T @ rows, shares.T @ rows**2, bound)


def _start_totals(block: RowBlock, truth: Bools, noise: F64) -> _Totals:
    """Totals as if all rows of a bag belonged to each of its labels."""
    shares = truth[block.bags][block.bag_of_row] * noise[:, 0]
    # A label that no bag carries begins with the mean of all rows.
    return _weighted(block.rows, shares + 1e-6, 0.0)


def row_labels_of(likelihood: F64, offsets: I64, allowed: Bools | None) -> tuple[F64, F64]:
    """(rows, L) Probabilities of labels of rows, and (n, L) the parameters of each bag.

    They are updated in turn until no probability of the bag changes by more than a tolerance; a
    bag that is done is not updated again, so it does not matter which bags share a block.
    """
    sizes = np.diff(offsets)
    if allowed is not None:
        likelihood = np.where(np.repeat(allowed, sizes, axis=0), likelihood, -np.inf)
    n_labels = likelihood.shape[1]
    gamma = np.full((len(sizes), n_labels), PRIOR) + sizes[:, None] / n_labels
    shares = np.full(likelihood.shape, 1 / n_labels)
    open_bags = np.arange(len(sizes))
    for _ in range(MOST_UPDATES):
        open_offsets, rows = gather(offsets, open_bags)
        repeated = np.repeat(digamma(gamma[open_bags]), np.diff(open_offsets), axis=0)
        updated = _normalised(likelihood[rows] + repeated)
        change = np.abs(updated - shares[rows]).max(axis=1)
        shares[rows] = updated
        gamma[open_bags] = PRIOR + row_sums(updated, open_offsets)
        worst = np.maximum.reduceat(change, open_offsets[:-1])
        open_bags = open_bags[worst >= UPDATE_TOLERANCE]
        if not len(open_bags):
            break
    return shares, gamma


def _totals(block: RowBlock, rows_of_labels: _RowsOfLabels, allowed: Bools) -> _Totals:
    likelihood = rows_of_labels.log_likelihood(block.rows)
    shares, gamma = row_labels_of(likelihood, block.offsets, allowed[block.bags])
    positive = shares > 0
    gain = np.where(positive, shares * (likelihood - np.log(np.where(positive, shares, 1))), 0)
    n_labels = gamma.shape[1]
    of_bags = (gammaln(gamma) - gammaln(PRIOR)).sum(axis=1)
    of_bags -= gammaln(gamma.sum(axis=1)) - gammaln(PRIOR * n_labels)
    return _weighted(block.rows, shares, float(gain.sum() + of_bags.sum()))


def _shares(block: RowBlock, rows_of_labels: _RowsOfLabels) -> tuple[F64, I64]:
    """Mean probability of each label in each bag, and the row with the highest."""
    likelihood = rows_of_labels.log_likelihood(block.rows)
    shares, _ = row_labels_of(likelihood, block.offsets, None)
    sizes = np.diff(block.offsets)[:, None]
    return row_sums(shares, block.offsets) / sizes, first_maxima(shares, block.offsets)


def _normalised(logs: F64) -> F64:
    """Softmax along labels."""
    powers = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
