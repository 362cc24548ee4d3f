"""Scored bags of every kind: ties, no labels, all labels, rows of unknown label."""

from functools import reduce

import numpy as np
from hypothesis import strategies as st

from streammiml.bags.offsets import from_sizes
from streammiml.measure.metric import ScoredBlock


def block_of(
    scores, truth, predicted=None, dummy=None, rows=None, numbers=None, probabilities=None
):
    """A block from matrices (n, L); ``rows`` is (rows of each bag, labels of rows, key rows)."""
    scores = np.ascontiguousarray(scores, np.float32)
    dummy = np.zeros(len(scores), np.float32) if dummy is None else dummy
    sizes, row_labels, key_rows = rows or (None, None, None)
    return ScoredBlock(
        scores=scores,
        dummy=dummy,
        predicted=scores > dummy[:, None] if predicted is None else predicted,
        label_offsets=from_sizes(truth.sum(axis=1)),
        labels=np.nonzero(truth)[1].astype(np.int32),
        key_rows=key_rows,
        bag_offsets=None if sizes is None else from_sizes(sizes),
        row_labels=row_labels,
        numbers=np.arange(len(scores)) if numbers is None else numbers,
        probabilities=probabilities,
    )


def take(block, bags):
    """The same bags cut out or put in another order."""
    truth = np.zeros(block.scores.shape, bool)
    truth[block.bag_of, block.labels] = True
    sizes = np.diff(block.bag_offsets)
    places = [np.arange(a, a + n) for a, n in zip(block.bag_offsets, sizes, strict=False)]
    rows = np.concatenate([np.empty(0, int), *(places[bag] for bag in bags)]).astype(int)
    return block_of(
        block.scores[bags],
        truth[bags],
        block.predicted[bags],
        block.dummy[bags],
        (sizes[bags], block.row_labels[rows], block.key_rows[bags]),
        block.numbers[bags],
        block.probabilities[bags],
    )


def figure(metric, *blocks):
    return metric.finish(reduce(metric.combine, map(metric.block, blocks)))


@st.composite
def scored(draw, max_bags=8, min_labels=1):
    n_bags, n_labels = draw(st.integers(1, max_bags)), draw(st.integers(min_labels, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**30)))
    scores = rng.normal(size=(n_bags, n_labels))
    if draw(st.booleans()):
        scores = np.rint(scores)  # Whole numbers tie often.
    truth = rng.random((n_bags, n_labels)) < draw(st.sampled_from([0.1, 0.4, 0.8]))
    kind = rng.integers(0, 5, n_bags)
    truth[kind == 0], truth[kind == 1] = False, True
    sizes = rng.integers(1, 5, n_bags)
    row_labels = rng.integers(-1, n_labels, sizes.sum()).astype(np.int32)
    key_rows = rng.integers(0, sizes[:, None], (n_bags, n_labels))
    dummy = np.rint(rng.normal(size=n_bags)).astype(np.float32)
    probabilities = rng.random((n_bags, n_labels)).astype(np.float32)
    probabilities[kind == 2] = np.rint(probabilities[kind == 2])
    rows = sizes, row_labels, key_rows
    return block_of(scores, truth, dummy=dummy, rows=rows, probabilities=probabilities)


def truth_of(block):
    truth = np.zeros(block.scores.shape, bool)
    truth[block.bag_of, block.labels] = True
    return truth


def relevant_of(block):
    return [set(np.flatnonzero(row).tolist()) for row in truth_of(block)]
