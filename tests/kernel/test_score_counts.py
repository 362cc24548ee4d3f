"""Kernels of score counts against dictionaries and loops over pairs."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.bags.offsets import from_sizes
from streammiml.kernel import score_counts
from tests.oracles import score_counts as oracle

KEYS = st.integers(0, 6) | st.integers(0, 2**32 - 2)
TABLES = st.dictionaries(KEYS, st.integers(1, 5), max_size=6)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0])


def packed(tables):
    """Three arrays of a table of counts."""
    entries = [sorted(table.items()) for table in tables]
    flat = [entry for label in entries for entry in label]
    return (
        from_sizes([len(label) for label in entries]),
        np.array([key for key, _ in flat], np.uint32),
        np.array([count for _, count in flat], np.int64),
    )


def unpacked(offsets, keys, counts):
    return [
        dict(zip(keys[a:b].tolist(), counts[a:b].tolist(), strict=True))
        for a, b in pairwise(offsets)
    ]


@settings(deadline=None)
@given(
    scores=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(FLOATS, min_size=n, max_size=n), min_size=1, max_size=6)
    )
)
def test_score_keys__order_like_scores(scores):
    matrix = np.array(scores, np.float32)
    keys = np.empty(matrix.T.shape, np.uint32)
    score_counts.score_keys(matrix.view(np.uint32), keys)
    places = np.unique(keys, return_inverse=True)[1].reshape(keys.shape)
    assert places.tolist() == oracle.score_keys(matrix.tolist())
    assert keys.max() < 0xFF800000


@settings(deadline=None)
@given(keys=st.lists(st.lists(KEYS, max_size=8).map(sorted), min_size=1, max_size=4))
def test_count_keys__counts_equal_keys_of_each_label(keys):
    flat = np.array([key for label in keys for key in label], np.uint32)
    bounds = from_sizes([len(label) for label in keys])
    out = np.empty(len(keys) + 1, np.int64), np.empty_like(flat), np.empty(len(flat), np.int64)
    score_counts.count_keys(flat, bounds[:-1], bounds[1:], *out)
    assert unpacked(*out) == oracle.count_keys(flat.tolist(), bounds[:-1], bounds[1:])


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(TABLES, TABLES), min_size=1, max_size=4), dropped=st.integers(0, 32)
)
def test_merge_counts__adds_tables_and_drops_bits(pairs, dropped):
    one, other = ([pair[i] for pair in pairs] for i in (0, 1))
    first, second = packed(one), packed(other)
    size = len(first[1]) + len(second[1])
    out = np.empty(len(pairs) + 1, np.int64), np.empty(size, np.uint32), np.empty(size, np.int64)
    score_counts.merge_counts(first, second, np.uint32(2**32 - 2**dropped), out)
    assert unpacked(*out) == oracle.merge_counts(one, other, dropped)
    for a, b in pairwise(out[0]):
        assert (np.diff(out[1][a:b].astype(np.int64)) > 0).all()


@settings(deadline=None)
@given(tables=st.lists(TABLES, min_size=1, max_size=4))
def test_add_sizes__says_how_many_entries_are_left(tables):
    offsets, keys, _ = packed(tables)
    sizes = np.full(33, 7)
    score_counts.add_sizes(offsets, keys, sizes)
    assert (sizes - 7).tolist() == oracle.sizes(tables, score_counts.KEY_BITS)


@settings(deadline=None)
@given(pairs=st.lists(st.tuples(TABLES, TABLES), min_size=1, max_size=4))
def test_curve_sums__agree_with_loops_over_pairs(pairs):
    carried, others = ([pair[i] for pair in pairs] for i in (0, 1))
    totals, sums = np.empty((len(pairs), 2), np.int64), np.empty((len(pairs), 5))
    score_counts.curve_sums(packed(carried), packed(others), totals, sums)
    for label, pair in enumerate(pairs):
        want_totals, want_sums = oracle.curve_sums(*pair)
        assert totals[label].tolist() == list(want_totals)
        np.testing.assert_allclose(sums[label], [float(x) for x in want_sums], rtol=1e-12)
