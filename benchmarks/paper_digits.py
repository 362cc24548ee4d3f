"""Known sub-concepts: labels are groups of digits, and a good model finds the digits in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn.trainer import train
from streammiml.measure.evaluate import evaluate
from streammiml.scoring import Scorer
from streammiml_tools.digits import digit_bags, load_pictures

SUBCONCEPTS = (1, 2, 5, 10)
PAIRS = [(digit, digit + 5) for digit in range(5)]
N_AXES = 12
"""Rows are projected on so few axes that one linear model cannot hold a whole group: with all 64
pixels one vector tells most groups from the rest, and nothing calls for a second."""


def _axes() -> np.ndarray:
    pictures, _ = load_pictures()
    centred = pictures[0::2] - pictures[0::2].mean(axis=0)
    return np.linalg.eigh(centred.T @ centred)[1][:, -N_AXES:]


def _bags(n_bags: int, seed: int, half: int) -> tuple[BagBlock, np.ndarray]:
    block, digits = digit_bags(
        n_bags, seed=seed, rows_per_bag=(2, 4), digits_per_bag=2, groups=PAIRS, half=half
    )
    rows = (block.rows.astype(np.float32) @ _axes()).astype(np.float32)  # type: ignore[union-attr]
    return BagBlock(
        block.bag_offsets, rows, block.label_offsets, block.label_indices, block.row_labels
    ), digits


def grouped_digits(k: int, seed: int, smoke: bool) -> dict[str, Any]:
    """Train with ``k`` sub-concepts on half of the pictures, measure on bags of the others."""
    learn, _ = _bags(60 if smoke else 1500, seed, 0)
    test, digits = _bags(40 if smoke else 500, seed, 1)
    config = TrainConfig(subconcepts=k, epochs=2 if smoke else 100, validation=0.0)
    model = train(MemoryBags(learn, n_labels=len(PAIRS)), config)
    found = evaluate(model, MemoryBags(test, n_labels=len(PAIRS)), threads=1)
    names = ("ranking_loss", "average_precision", "hamming_loss", "key_instance_accuracy")
    return {"figures": {**{n: found[n] for n in names}, **_agreement(model, test, digits)}}


def _agreement(model: Any, test: BagBlock, digits: np.ndarray) -> dict[str, float]:
    """Adjusted Rand index of sub-concept and digit, over rows of a label; the mean over labels."""
    n = test.n_rows
    each = BagBlock(np.arange(n + 1), test.rows, np.zeros(n + 1, np.int64), np.zeros(0, np.int32))
    subconcepts = Scorer(model).scores(each).subconcept
    assert test.row_labels is not None
    of_label = [np.flatnonzero(test.row_labels == label) for label in range(len(PAIRS))]
    found = [
        adjusted_rand_score(digits[rows], subconcepts[rows, label])
        for label, rows in enumerate(of_label)
        if len(rows)
    ]
    return {"adjusted_rand_index": float(np.mean(found))}
