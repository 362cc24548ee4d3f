from functools import reduce

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streammiml.measure.subconcepts import TypicalBags, summarize_subconcepts


@given(
    n=st.integers(0, 30), count=st.integers(1, 4), seed=st.integers(0, 99), cut=st.integers(0, 30)
)
def test_summary__is_the_same_in_any_cut_and_order_with_ties(n, count, seed, cut):
    rng = np.random.default_rng(seed)
    bags = rng.permutation(n)
    labels, subs = rng.integers(0, 3, n), rng.integers(0, 2, n)
    rows = rng.integers(0, 9, n).astype(np.int32)
    scores = rng.integers(0, 3, n).astype(np.float32)
    right = rng.random(n) < 0.5

    def summary_of(chosen):
        columns = (column[chosen] for column in (bags, labels, subs, rows, scores, right))
        return summarize_subconcepts(*columns, n_bags=len(chosen), shape=(3, 2), count=count)

    total = summary_of(np.arange(n))
    for order in (np.arange(n), rng.permutation(n)):
        halves = [summary_of(order[: min(cut, n)]), summary_of(order[min(cut, n) :])]
        added = reduce(lambda a, b: a.add(b, count), halves)
        for one, other in zip(added.typical, total.typical, strict=True):
            assert one.tolist() == other.tolist()
        assert added.predicted.tolist() == total.predicted.tolist()
        assert added.right.tolist() == total.right.tolist()
    for place in range(6):
        mine = np.flatnonzero(labels * 2 + subs == place)
        best = sorted((-float(scores[i]), int(bags[i])) for i in mine)[:count]
        here = total.typical.at(place)
        assert [
            (-s, b)
            for s, b in zip(
                total.typical.score[here].tolist(), total.typical.bag[here].tolist(), strict=True
            )
        ] == best


def test_typical_bags__nothing_at_a_place_is_an_empty_slice():
    none = TypicalBags(*(np.empty(0, t) for t in (np.int64, np.float32, np.int64, np.int32)))
    assert none.at(3) == slice(0, 0)
