"""Calibration (``--calibrate``): expected calibration error and Brier score on test bags.

The default training with ``calibrate="auto"``, on splits of real sets (with STREAMMIML_DATA) or on
planted bags. *sigmoid* is the logistic function of a label's score minus the dummy's, as
predictions report them; *no offset* is the same without the offset of the threshold. *drawn* is the
error that remains if labels are drawn with the very probabilities: shares of few pairs are inexact.
``ratio`` is that of the errors of calibrated probabilities and of the sigmoid.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.paper_sets import PaperSet, load, random_set, split
from streammiml._base.calibration import Calibration
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn.train import train
from streammiml.measure.evaluate import evaluate
from streammiml.measure.predict import predict
from streammiml.measure.probability import BINS
from streammiml.model import Model

SETS = ("msrcv2", "scene", "miml_birds/miml_birds.arff")
SPLITS = 5
DRAWS = 20


def sigmoid(model: Model, intercept: float) -> Model:
    """The model with the same function for every label."""
    lines = np.tile([1.0, intercept], (model.n_labels, 1))
    return replace(model, calibration=Calibration.of_knots(lines, [None] * model.n_labels))


def drawn_error(probabilities: np.ndarray, seed: int) -> float:
    """Mean calibration error of labels that are drawn with these probabilities."""
    rng, p = np.random.default_rng(seed), probabilities.ravel().astype(np.float64)
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    gaps = [
        np.abs(np.bincount(bins, p - (rng.random(p.size) < p), minlength=BINS)).sum() / p.size
        for _ in range(DRAWS)
    ]
    return statistics.fmean(gaps)


def figures(model: Model, test: MemoryBags) -> tuple[float, float]:
    """Calibration error and Brier score."""
    names = ("expected_calibration_error", "brier_score")
    found = evaluate(model, test, metrics=names)
    return found[names[0]], found[names[1]]


def set_cases(corpus: PaperSet, n_splits: int, **settings: int) -> Iterator[dict]:
    rows = []
    for seed in range(n_splits):
        training, test = (corpus.bags(bags) for bags in split(len(corpus.block), seed))
        begun = time.monotonic()
        model = train(training, TrainConfig(calibrate="auto", seed=seed, **settings))
        seconds = time.monotonic() - begun
        error, brier = figures(model, test)
        sigmoid_error, sigmoid_brier = figures(sigmoid(model, 0.0), test)
        plain_error, _ = figures(sigmoid(model, model.rule.offset), test)
        probabilities = predict(model, test.read(0, test.n_bags)).probabilities
        rows.append(
            {
                "ece": error,
                "ece_sigmoid": sigmoid_error,
                "ece_no_offset": plain_error,
                "ece_drawn": drawn_error(probabilities, seed),
                "brier": brier,
                "brier_sigmoid": sigmoid_brier,
                "seconds": seconds,
            }
        )
    means = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
    seconds = means.pop("seconds")
    yield {
        "case": {"set": Path(corpus.name).stem, "splits": n_splits},
        "seconds": round(seconds, 1),
        "ratio": round(means["ece"] / means["ece_sigmoid"], 3),
        "ratios": [round(row["ece"] / row["ece_sigmoid"], 3) for row in rows],
        **{name: round(value, 4) for name, value in means.items()},
    }


def cases(smoke: bool) -> Iterator[dict]:
    if smoke or "STREAMMIML_DATA" not in os.environ:
        yield from set_cases(random_set(), 1, epochs=3)
        return
    for name in SETS:
        path = str(Path(os.environ["STREAMMIML_DATA"]) / name) if "/" in name else name
        yield from set_cases(load(path), SPLITS)
