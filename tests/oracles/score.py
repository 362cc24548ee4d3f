"""Scores from the definition: a maximum over rows and sub-concepts, in float64."""

import numpy as np


def project(rows, shared):
    """``rows`` (z, d'), ``shared`` (d', m), or None without a shared space."""
    rows = np.asarray(rows, np.float64)
    return rows if shared is None else rows @ np.asarray(shared, np.float64)


def label_score(projected, vectors):
    """Value, row and sub-concept: the lowest row of the best, then the lowest sub-concept."""
    dots = projected @ np.asarray(vectors, np.float64).T
    row, sub = np.unravel_index(np.argmax(dots), dots.shape)
    return dots[row, sub], int(row), int(sub)


def bag_scores(rows, shared, labels):
    """Three arrays over labels: values, rows, sub-concepts."""
    projected = project(rows, shared)
    scores = [label_score(projected, vectors) for vectors in labels]
    return tuple(np.array(column) for column in zip(*scores, strict=True))
