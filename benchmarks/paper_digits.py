"""Known sub-concepts: labels are pairs of digits; a good model's sub-concepts are the digits."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn.train import train
from streammiml.measure.evaluate import evaluate
from streammiml.scorer import Scorer
from streammiml_tools.corpora.digits import digit_bags, load_pictures

SUBCONCEPTS = (1, 2, 5, 10)
PAIRS = [(digit, digit + 5) for digit in range(5)]
N_AXES = 12
"""Principal axes that rows are projected on. With 12 axes one vector cannot separate a pair of
digits from the others; with all 64 pixels it can for most pairs, so that a second sub-concept would
have nothing to learn."""


def _axes() -> np.ndarray:
    pictures, _ = load_pictures()
    centred = pictures[0::2] - pictures[0::2].mean(axis=0)
    return np.linalg.eigh(centred.T @ centred)[1][:, -N_AXES:]


def _bags(n_bags: int, seed: int, half: int) -> tuple[BagBlock, np.ndarray]:
    """Bags from one half of the pictures, and the digit of each row."""
    block, digits = digit_bags(
        n_bags, seed=seed, rows_per_bag=(2, 4), digits_per_bag=2, groups=PAIRS, half=half
    )
    rows = (block.rows.astype(np.float32) @ _axes()).astype(np.float32)  # type: ignore[union-attr]
    return BagBlock(
        block.bag_offsets, rows, block.label_offsets, block.label_indices, block.row_labels
    ), digits


def grouped_digits(k: int, seed: int, smoke: bool) -> dict[str, Any]:
    """Train with ``k`` sub-concepts on one half of the pictures, measure on the other half."""
    learn, _ = _bags(60 if smoke else 1500, seed, 0)
    test, digits = _bags(40 if smoke else 500, seed, 1)
    config = TrainConfig(subconcepts=k, epochs=2 if smoke else 100, validation=0.0)
    model = train(MemoryBags(learn, n_labels=len(PAIRS)), config)
    figures = evaluate(model, MemoryBags(test, n_labels=len(PAIRS)), threads=1)
    names = ("ranking_loss", "average_precision", "hamming_loss", "key_instance_accuracy")
    return {"figures": {**{n: figures[n] for n in names}, **_agreement(model, test, digits)}}


def _agreement(model: Any, test: BagBlock, digits: np.ndarray) -> dict[str, float]:
    """Adjusted Rand index of sub-concept and digit over a label's rows, averaged over labels."""
    n = test.n_rows
    # Every row is its own bag, so that each row gets a sub-concept.
    row_bags = BagBlock(
        np.arange(n + 1), test.rows, np.zeros(n + 1, np.int64), np.zeros(0, np.int32)
    )
    subconcepts = Scorer(model).scores(row_bags).subconcept
    assert test.row_labels is not None
    rows_of_label = [np.flatnonzero(test.row_labels == label) for label in range(len(PAIRS))]
    indices = [
        adjusted_rand_score(digits[rows], subconcepts[rows, label])
        for label, rows in enumerate(rows_of_label)
        if len(rows)
    ]
    return {"adjusted_rand_index": float(np.mean(indices))}
