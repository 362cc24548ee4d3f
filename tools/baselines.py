"""Baselines for the demo: classifiers of scikit-learn on one pooled vector a bag.

A bag becomes the lowest and the highest value of each feature over its rows. Logistic regression
and a random forest learn from these vectors; metrics are those of ``streammiml evaluate``.
All bags are held in memory. Run as a command, the module prints the metrics as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.store import open_store
from streammiml.errors import StreammimlError
from streammiml_tools.command import run_command

F64 = NDArray[np.float64]
TREES = 200


def pooled(block: BagBlock) -> Any:
    """Return the lowest, then the highest values: (bags, 2 × features), sparse if rows are."""
    rows, starts = block.rows, block.bag_offsets[:-1]
    if not isinstance(rows, SparseRows):
        low, high = np.minimum.reduceat(rows, starts), np.maximum.reduceat(rows, starts)
        return np.hstack([low, high]).astype(np.float32)
    from scipy import sparse  # noqa: PLC0415  part of an extra

    row_of = np.repeat(np.arange(len(rows)), np.diff(rows.offsets))
    bag_of = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))[row_of]
    key = bag_of * rows.n_features + rows.columns
    order = np.argsort(key, kind="stable")
    cells, first, counts = np.unique(key[order], return_index=True, return_counts=True)
    values = rows.values[order].astype(np.float32)
    bags, columns = np.divmod(cells, rows.n_features)
    # A row of the bag that does not store the feature has a zero there.
    has_zero = counts < np.diff(block.bag_offsets)[bags]
    halves = []
    for reduce in (np.minimum, np.maximum):
        extremes = reduce.reduceat(values, first) if len(first) else values
        extremes = np.where(has_zero, reduce(extremes, 0), extremes)
        halves.append(sparse.csr_matrix((extremes, (bags, columns)), (len(block), rows.n_features)))
    return sparse.hstack(halves).tocsr()


def indicators(block: BagBlock, n_labels: int) -> NDArray[np.int64]:
    """Return a matrix (bags, labels) with 1 where a bag has a label."""
    out = np.zeros((len(block), n_labels), np.int64)
    out[np.repeat(np.arange(len(block)), np.diff(block.label_offsets)), block.label_indices] = 1
    return out


def baselines(train: Any, test: Any) -> dict[str, dict[str, float]]:
    """Train both classifiers on the store ``train``, and return their metrics on ``test``."""
    try:  # scikit-learn is an extra, so it is imported here.
        from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
        from sklearn.multiclass import OneVsRestClassifier  # noqa: PLC0415
        from sklearn.preprocessing import MaxAbsScaler  # noqa: PLC0415
    except ModuleNotFoundError:
        raise StreammimlError(
            "the comparison needs scikit-learn: pip install 'streammiml[demo]'"
        ) from None
    stores = [open_store(store) for store in (train, test)]
    blocks = [store.read(0, store.n_bags) for store in stores]
    scaler = MaxAbsScaler()
    x_train = scaler.fit_transform(pooled(blocks[0]))
    x_test = scaler.transform(pooled(blocks[1]))
    y_train, y_test = (indicators(block, stores[0].n_labels) for block in blocks)
    linear = OneVsRestClassifier(LogisticRegression(max_iter=1000)).fit(x_train, y_train)
    forest = RandomForestClassifier(TREES, random_state=0).fit(x_train, y_train)
    # The forest has one column instead of two for a label that all, or no, training bags have.
    shares = [
        p[:, 1] if p.shape[1] == 2 else np.full(len(p), float(classes[0]))
        for p, classes in zip(forest.predict_proba(x_test), forest.classes_, strict=True)
    ]
    scores = {
        "logistic regression, pooled": (linear.decision_function(x_test), 0.0),
        "random forest, pooled": (np.stack(shares, axis=1), 0.5),
    }
    return {name: metrics_of(y_test, values, cut) for name, (values, cut) in scores.items()}


def metrics_of(truth: NDArray[np.int64], scores: F64, cut: float) -> dict[str, float]:
    """Return the five metrics of the paper.

    Labels that score above ``cut`` are predicted, and always the label with the highest score.
    """
    from sklearn import metrics  # noqa: PLC0415

    predicted = scores > cut
    predicted[np.arange(len(scores)), scores.argmax(axis=1)] = True
    first = truth[np.arange(len(scores)), scores.argmax(axis=1)]
    return {
        "hamming_loss": float(np.mean(predicted != truth)),
        "one_error": float(np.mean(first == 0)),
        "coverage": float((metrics.coverage_error(truth, scores) - 1) / truth.shape[1]),
        "ranking_loss": float(metrics.label_ranking_loss(truth, scores)),
        "average_precision": float(metrics.label_ranking_average_precision_score(truth, scores)),
    }


def baselines_verb(train: Path, test: Path, /) -> None:
    """Print metrics of logistic regression and a random forest on pooled bags, as JSON.

    Parameters
    ----------
    train
        Store to learn from.
    test
        Store to score.
    """
    print(json.dumps(baselines(train, test)))


if __name__ == "__main__":
    sys.exit(run_command(baselines_verb))
