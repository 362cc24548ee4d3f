"""Sums of a start from the bags by matrix products, in float64."""

from itertools import pairwise

import numpy as np


def place_rows(lifted, shared):
    """``lifted`` (n_rows, d') in the space of ``shared`` (d', width)."""
    return lifted.astype(np.float64) @ shared.astype(np.float64)


def add_products(lifted, factors):
    return lifted.astype(np.float64).T @ factors


def best_rows(placed, bag_offsets, label_offsets, labels, vectors):
    """The first row with the highest score, for each label of each bag."""
    rows = []
    for bag, (start, stop) in enumerate(pairwise(bag_offsets)):
        for label in labels[label_offsets[bag] : label_offsets[bag + 1]]:
            scores = placed[start:stop].astype(np.float64) @ vectors[label]
            rows.append(start + int(scores.argmax()))
    return rows
