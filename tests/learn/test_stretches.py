"""Stretches: contiguous training bags, in the order that is asked for."""

from contextlib import closing

import numpy as np

from streammiml.bags.memory import MemoryBags
from streammiml.learn.holdout import Holdout
from streammiml.learn.stretches import read_stretches
from tests.planted import planted


def test_read_stretches__has_every_training_bag_of_the_stretches_and_no_other():
    block = planted(100)
    store, holdout = MemoryBags(block, n_labels=5), Holdout.of(0.3, 100)
    with closing(read_stretches(store, holdout, [4, 0], 23, 60.0)) as stretches:
        parts = list(stretches)
    for part, (start, stop) in zip(parts, [(92, 100), (0, 23)], strict=True):
        numbers = np.arange(start, stop)
        expected = block.take(numbers[~holdout.chosen(numbers)])
        assert 0 < len(expected) < stop - start
        np.testing.assert_array_equal(part.rows, expected.rows)
        np.testing.assert_array_equal(part.label_indices, expected.label_indices)


def test_read_stretches__leaves_out_long_bags_and_does_not_read_them(monkeypatch):
    block, read = planted(100), []
    store, holdout = MemoryBags(block, n_labels=5), Holdout.of(0.3, 100)
    monkeypatch.setattr("streammiml.bags.views.GAP_BYTES", 0)
    real = store.read

    def tracked(start, stop, **options):
        read.extend(range(start, stop))
        return real(start, stop, **options)

    monkeypatch.setattr(store, "read", tracked)
    sizes = np.diff(block.bag_offsets) * block.n_features * 4
    below = int(np.median(sizes))
    with closing(read_stretches(store, holdout, [0, 1], 50, 60.0, below)) as stretches:
        parts = list(stretches)
    numbers = np.flatnonzero(~holdout.chosen(np.arange(100)) & (sizes < below))
    expected = block.take(numbers)
    assert 10 < len(numbers) < 70
    np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), expected.rows)
    assert sorted(read) == numbers.tolist()
