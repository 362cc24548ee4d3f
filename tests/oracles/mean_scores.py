"""Scores of models with restarts, from the definition, in float64."""

import numpy as np

from tests.oracles import score


def row_means(rows, restarts):
    """(n, L + 1) Mean over ``restarts`` ((shared, labels) pairs) of the scores of each row."""
    of_restarts = [
        [score.bag_scores(row[None], shared, labels)[0] for row in rows]
        for shared, labels in restarts
    ]
    return np.mean(of_restarts, axis=0)


def bag_scores(rows, restarts):
    """Values, rows and sub-concepts over labels; sub-concepts are those of the first restart."""
    means = row_means(rows, restarts)
    best = means.argmax(axis=0)
    shared, labels = restarts[0]
    projected = score.project(rows, shared)
    subs = [
        score.label_score(projected[row : row + 1], vectors)[2]
        for row, vectors in zip(best, labels, strict=True)
    ]
    return means.max(axis=0), best, np.array(subs)


def keep_highest(rows, start, bag_offsets, out):
    """``rows`` and ``out`` are (value, row, sub-concept) triples, as of the kernel."""
    for i, values in enumerate(rows[0]):
        bag = max(b for b in range(len(bag_offsets) - 1) if bag_offsets[b] <= start + i)
        for label, value in enumerate(values):
            if value > out[0][bag, label]:
                out[0][bag, label] = value
                out[1][bag, label] = start + i - bag_offsets[bag]
                out[2][bag, label] = rows[2][i, label]
