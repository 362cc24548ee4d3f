"""Splits have their shares; strata are the rarest labels."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streammiml_tools.convert.split_and_filter import (
    Split,
    ranks_within,
    strata_of,
)


@given(
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    n_bags=st.integers(0, 3000),
    seed=st.integers(0, 10**6),
)
def test_split__shares_are_probabilities(shares, n_bags, seed):
    split = Split(tuple("abcd"[: len(shares)]), tuple(s / sum(shares) for s in shares))
    counts = np.bincount(split.of_numbers(np.arange(n_bags), seed), minlength=len(shares))
    assert counts.sum() == n_bags
    for count, share in zip(counts, split.shares, strict=True):
        assert abs(count - n_bags * share) <= 6 * np.sqrt(n_bags * share * (1 - share)) + 1e-9


@given(n_bags=st.integers(1, 500), seed=st.integers(0, 1000), cut=st.integers(0, 500))
def test_stratify__every_stratum_has_its_shares(n_bags, seed, cut):
    split = Split(("a", "b", "c"), (0.6, 0.3, 0.1))
    strata = np.random.default_rng(seed).integers(0, 4, n_bags)
    starts, ranks = np.zeros(4, np.int64), []
    for part in (strata[:cut], strata[cut:]):
        ranks.append(ranks_within(part, starts))
    which = split.of_ranks(strata, np.concatenate(ranks), seed)
    for stratum in range(4):
        mine = which[strata == stratum]
        for number, share in enumerate(split.shares):
            assert abs((mine == number).sum() - share * len(mine)) < 4


def test_strata__are_the_rarest_labels():
    offsets, labels = np.array([0, 2, 2, 5, 6]), np.array([0, 1, 0, 1, 2], np.int32)
    offsets[-1] = 5
    assert strata_of(offsets, labels, np.array([9, 4, 4])).tolist() == [1, 3, 1, 3]
