"""MIMLBoost: boosted kernel machines on pairs of a row and a label."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.svm import SVC

from streammiml.bags.views import Bags
from streammiml.errors import StreammimlError
from streammiml.rivals import costs
from streammiml.rivals.rival import DEFAULT_MEMORY, F64, Bools, Rival
from streammiml.rivals.row_blocks import RowBlock, Scaling
from streammiml.rivals.segments import row_sums

GAMMA, COST = 1.0, 1.0
MOST_WEIGHT = 50.0
"""Upper limit for the weight of one machine, which has none if it makes no errors."""
FEATURES_OF_UNIT = 50
"""Up to this many features, a label is coded by a number from 0 to 1."""
BISECTIONS = 100


class MIMLBoost(Rival):
    """Boosting of multi-instance bags, one for each label (Zhou & Zhang, NIPS 2006).

    Each bag becomes as many bags as there are labels; the rows of each have one more feature, which
    codes the label. In every round a kernel machine learns rows that are drawn by the weights of
    their bags, and bags with many misclassified rows gain weight. The score of a label adds up,
    over machines, the machine's weight times its votes for the rows of the bag. Labels with a score
    of 0 or more are predicted.

    A kernel machine on all pairs of rows and labels takes hours beyond some ten thousand pairs:
    the original authors' comparison gives no figures beyond its smallest sets. ``fit`` refuses more
    than ``max_pairs`` pairs, and says how many there are.

    Choices of ours: 25 rounds; features are scaled to [0, 1] by the training bags; if the first
    machine already classifies most rows of every bag, it is kept with the weight 1, where the
    original would keep none.

    Parameters
    ----------
    rounds
        Largest number of machines.
    max_pairs
        Most pairs of a row and a label that ``fit`` accepts.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads on which rows are read; results do not depend on them.
    seed
        Seed of the draws.
    """

    whole_settings = ("rounds", "max_pairs")
    cutoff_is_positive = True

    def __init__(
        self,
        *,
        rounds: int = 25,
        max_pairs: int = 50_000,
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self.rounds = rounds
        self.max_pairs = max_pairs
        self.memory = memory
        self.threads = threads
        self.seed = seed

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        n_pairs = n_rows * n_labels
        if n_pairs > self.max_pairs:
            raise StreammimlError(
                f"MIMLBoost would train kernel machines on {n_pairs:,} pairs of {n_rows:,} rows "
                f"and {n_labels} labels, more than max_pairs={self.max_pairs:,}; their time grows "
                "with the square or the cube; train on fewer bags, or give more max_pairs"
            )
        return costs.row_label_pairs(n_bags, n_rows, n_features, n_labels)

    def _learn(self, store: Bags, truth: Bools) -> None:
        scaling = Scaling.to_unit_interval(self._blocks(store))
        codes = label_codes(truth.shape[1], store.n_features)
        rows = np.concatenate([block.rows for block in self._blocks(store, scaling).map(_itself)])
        sizes = store.bag_sizes(0, store.n_bags)
        bag_of_row = np.repeat(np.arange(store.n_bags), sizes)
        # Pairs of all rows with the first label come first.
        pairs = np.concatenate([with_code(rows, code) for code in codes])
        positive = truth[bag_of_row].T.ravel()
        offsets = np.concatenate([[0], np.cumsum(np.tile(sizes, len(codes)))])
        pair_bags = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        weights = np.full(len(offsets) - 1, 1 / (len(offsets) - 1))
        rng = np.random.default_rng(self.seed)
        self._machines: list[tuple[float, Any]] = []
        for _ in range(self.rounds):
            chance = (weights / np.diff(offsets))[pair_bags]
            drawn = rng.choice(len(pairs), len(pairs), p=chance / chance.sum())
            if positive[drawn].all() or not positive[drawn].any():
                # No machine can be trained on one class.
                machine: Any = _Constant(bool(positive[drawn][0]))
            else:
                machine = SVC(C=COST, gamma=GAMMA).fit(pairs[drawn], positive[drawn])
            wrong = machine.predict(pairs) != positive
            errors = row_sums(wrong[:, None].astype(np.float64), offsets)[:, 0]
            errors /= np.diff(offsets)
            weight = machine_weight(weights, errors)
            if errors.max() <= 0.5 or weight <= 0:
                if not self._machines:
                    self._machines.append((1.0, machine))
                break
            self._machines.append((weight, machine))
            weights = weights * np.exp((2 * errors - 1) * weight)
            weights /= weights.sum()
        self._scaling, self._codes = scaling, codes

    def _score(self, store: Bags) -> tuple[F64, None]:
        blocks = self._blocks(store, self._scaling)
        return np.concatenate(list(blocks.map(_votes, self._codes, self._machines))), None


class _Constant:
    """A machine that has seen one class only."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def predict(self, rows: F64) -> Bools:
        return np.full(len(rows), self.value)


def label_codes(n_labels: int, n_features: int) -> F64:
    """(L,) The value of the feature that codes each label; they reach further for longer rows."""
    width = n_features + 1
    reach = 1.0 if width <= FEATURES_OF_UNIT else math.log(width) / math.log(FEATURES_OF_UNIT)
    return reach * np.arange(n_labels) / max(n_labels - 1, 1)


def with_code(rows: F64, code: float) -> F64:
    """Rows with one more feature."""
    return np.column_stack([rows, np.full(len(rows), code)])


def machine_weight(weights: F64, errors: F64) -> float:
    """The c with the least sum of ``weights`` times exp((2 ``errors`` − 1) c), at most 50."""
    slopes = 2 * errors - 1

    def derivative(c: float) -> float:
        return float((weights * slopes * np.exp(slopes * c)).sum())

    low, high = -MOST_WEIGHT, MOST_WEIGHT
    if derivative(high) <= 0:
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
    return (low + high) / 2


def _itself(block: RowBlock) -> RowBlock:
    return block


def _votes(block: RowBlock, codes: F64, machines: list[tuple[float, Any]]) -> F64:
    """(n, L) Votes of all machines for the rows of each bag, by the weights of machines."""
    out = np.zeros((len(block.offsets) - 1, len(codes)))
    for label, code in enumerate(codes):
        pairs = with_code(block.rows, code)
        votes = sum(
            (weight * np.where(machine.predict(pairs), 1.0, -1.0) for weight, machine in machines),
            np.zeros(len(pairs)),
        )
        out[:, label] = row_sums(votes[:, None], block.offsets)[:, 0]
    return out
