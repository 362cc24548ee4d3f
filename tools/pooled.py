"""What a user might do instead: one vector a bag, and a classifier for each label.

A bag becomes the lowest and the highest value of each feature over its rows. Logistic regression
and a random forest learn from that; figures are those of ``streammiml evaluate``. Bags are read
whole, so this is for stores that fit in memory. Run as a command it prints them as JSON.
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
    """(bags, 2 features): lowest values, then highest; sparse if rows are."""
    rows, starts = block.rows, block.bag_offsets[:-1]
    if not isinstance(rows, SparseRows):
        low, high = np.minimum.reduceat(rows, starts), np.maximum.reduceat(rows, starts)
        return np.hstack([low, high]).astype(np.float32)
    from scipy import sparse  # noqa: PLC0415  it comes with scikit-learn, an extra

    row_of = np.repeat(np.arange(len(rows)), np.diff(rows.offsets))
    bag_of = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))[row_of]
    key = bag_of * rows.n_features + rows.columns
    order = np.argsort(key, kind="stable")
    cells, first, counts = np.unique(key[order], return_index=True, return_counts=True)
    values = rows.values[order].astype(np.float32)
    bags, columns = np.divmod(cells, rows.n_features)
    # Where a row of the bag does not store the feature, it has a zero.
    lacks = counts < np.diff(block.bag_offsets)[bags]
    ends = []
    for reduce in (np.minimum, np.maximum):
        found = reduce.reduceat(values, first) if len(first) else values
        found = np.where(lacks, reduce(found, 0), found)
        ends.append(sparse.csr_matrix((found, (bags, columns)), (len(block), rows.n_features)))
    return sparse.hstack(ends).tocsr()


def marks(block: BagBlock, n_labels: int) -> NDArray[np.int64]:
    """(bags, labels), 1 where a bag carries a label."""
    out = np.zeros((len(block), n_labels), np.int64)
    out[np.repeat(np.arange(len(block)), np.diff(block.label_offsets)), block.label_indices] = 1
    return out


def rivals(train: Any, test: Any) -> dict[str, dict[str, float]]:
    """Figures of both on the bags of ``test``, learned from those of ``train``; paths or stores."""
    try:  # An extra: only this and the digits need it.
        from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
        from sklearn.multiclass import OneVsRestClassifier  # noqa: PLC0415
        from sklearn.preprocessing import MaxAbsScaler  # noqa: PLC0415
    except ModuleNotFoundError:
        raise StreammimlError(
            "the comparison needs scikit-learn: pip install 'streammiml[demo]'"
        ) from None
    stores = [open_store(each) for each in (train, test)]
    blocks = [store.read(0, store.n_bags) for store in stores]
    scaler = MaxAbsScaler()
    x_train = scaler.fit_transform(pooled(blocks[0]))
    x_test = scaler.transform(pooled(blocks[1]))
    y_train, y_test = (marks(block, stores[0].n_labels) for block in blocks)
    linear = OneVsRestClassifier(LogisticRegression(max_iter=1000)).fit(x_train, y_train)
    forest = RandomForestClassifier(TREES, random_state=0).fit(x_train, y_train)
    # A label that all training bags agree on has one column, for what they agree on.
    shares = [
        p[:, 1] if p.shape[1] == 2 else np.full(len(p), float(known[0]))
        for p, known in zip(forest.predict_proba(x_test), forest.classes_, strict=True)
    ]
    scores = {
        "logistic regression, pooled": (linear.decision_function(x_test), 0.0),
        "random forest, pooled": (np.stack(shares, axis=1), 0.5),
    }
    return {name: figures(y_test, found, cut) for name, (found, cut) in scores.items()}


def figures(truth: NDArray[np.int64], scores: F64, cut: float) -> dict[str, float]:
    """The five of the paper; labels that score above ``cut`` are predicted, and always the top."""
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


def rivals_verb(train: Path, test: Path, /) -> None:
    """Print figures of logistic regression and a random forest on pooled bags, as JSON.

    Parameters
    ----------
    train
        Store to learn from.
    test
        Store to score.
    """
    print(json.dumps(rivals(train, test)))


if __name__ == "__main__":
    sys.exit(run_command(rivals_verb))
