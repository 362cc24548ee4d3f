"""One pass over scored bags: a collector sees every bag once, whatever the tasks."""

from itertools import pairwise
from math import ceil
from typing import NamedTuple

import numpy as np
import pytest

from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import BagStore
from streammiml.measure import score_pass
from streammiml.measure.score_pass import collect, collect_task, scoring_tasks, task_bytes
from streammiml.measure.tasks import BagRange, all_bags, store_bytes
from streammiml.scorer import Scorer
from tests.measure.models import made_model
from tests.stores import made_block

BAGS = MemoryBags(made_block(30), n_labels=4)
MODEL = made_model()


class Seen(NamedTuple):
    numbers: tuple
    scores: bytes

    @property
    def n_bags(self):
        return len(self.numbers)


class Collector:
    """Keeps the number and the scores of every bag, in the order in which they come."""

    def of_block(self, block, scores, first):
        assert block.numbers.tolist() == list(range(first, first + block.n_bags))
        assert np.array_equal(block.scores, scores.value[:, :-1])
        return Seen(tuple(range(first, first + block.n_bags)), scores.value.tobytes())

    def add(self, one, other):
        return Seen(one.numbers + other.numbers, one.scores + other.scores)


@pytest.mark.parametrize("block_bytes", [1, 500, 1 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_collect__sees_every_bag_once_and_in_order(monkeypatch, block_bytes, threads):
    monkeypatch.setattr(score_pass, "LEAST_BYTES", 1)
    done = []
    with open_pool(PoolOptions(threads=threads)) as pool:
        total = collect(
            pool, MODEL, BAGS, Collector(), block_bytes=block_bytes,
            watch=lambda progress: done.append(progress.bags_done),
        )  # fmt: skip
    assert total.numbers == tuple(range(30))
    assert total.scores == Scorer(MODEL).scores(BAGS.read(0, 30)).value.tobytes()
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 30)


def test_collect__a_task_gives_few_scores(monkeypatch):
    monkeypatch.setattr(score_pass, "MOST_SCORES", 7 * MODEL.n_labels)
    done = []
    with open_pool(PoolOptions(threads=1)) as pool:
        collect(
            pool, MODEL, BAGS, Collector(), block_bytes=1 << 20,
            watch=lambda progress: done.append(progress.bags_done),
        )  # fmt: skip
    assert done == [0, 7, 14, 21, 28, 30]


class LongStore(BagStore):
    """A store of equal bags, of which only sizes are read."""

    def __init__(self, n_bags, rows, n_features, values_of_row=None):
        self.name, self.fingerprint, self.dtype = "long", "", "float32"
        self.n_bags, self.n_features, self.sparse = n_bags, n_features, values_of_row is not None
        self._rows, self._values = rows, values_of_row or n_features

    n_rows = property(lambda self: self.n_bags * self._rows)
    n_values = property(lambda self: self.n_rows * self._values)
    n_label_entries = property(lambda self: 2 * self.n_bags)

    def bag_sizes(self, start, stop):
        return np.full(stop - start, self._rows)


@pytest.mark.parametrize(
    ("n_labels", "shape"),
    [(4, (2, 8)), (100, (9, 200)), (119, (7, 9200, 20)), (10_000, (9, 200))],
)
def test_scoring_tasks__are_few_on_a_cluster_whatever_the_bags(n_labels, shape):
    """10 GB on one thread are twenty tasks, with few labels or many, dense or sparse."""
    store = LongStore(1, *shape)
    store.n_bags = int(10e9 / store_bytes(store))
    tasks = list(scoring_tasks(store, n_labels, 1, remote=True))
    assert 20 <= len(tasks) <= 22
    assert all(one.stop == other.start for one, other in pairwise(tasks))
    assert (tasks[0].start, tasks[-1].stop) == (0, store.n_bags)


def test_scoring_tasks__of_10_tb_on_100_workers_have_2_gib():
    """Bags of a row of 2 MiB, so that not all offsets of 10 TB are read."""
    store = LongStore(1, 1, 1 << 19)
    store.n_bags = int(10e12 / store_bytes(store))
    n_tasks = sum(1 for _ in scoring_tasks(store, 100, 100, remote=True))
    assert 0 <= n_tasks - 10e12 / (2 << 30) <= 10


@pytest.mark.parametrize("block_bytes", [1, 600, 1 << 20])
def test_collect_task__takes_the_bags_of_its_range(block_bytes):
    bags = all_bags(BAGS, remote=False).cut(7, 19)
    numbers = collect_task(bags, Scorer(MODEL), Collector(), block_bytes).numbers
    assert numbers == tuple(range(7, 19))


def test_collect_task__reads_no_more_at_a_time_than_asked(monkeypatch):
    sizes = []
    read = BagRange.read

    def noted(bags, **options):
        block = read(bags, **options)
        sizes.append((len(block), block.nbytes))
        return block

    monkeypatch.setattr(BagRange, "read", noted)
    collect_task(all_bags(BAGS, remote=False), Scorer(MODEL), Collector(), 600)
    assert sum(n_bags for n_bags, _ in sizes) == 30
    assert len(sizes) > 5
    assert all(n_bags == 1 or n_bytes <= 600 for n_bags, n_bytes in sizes)


@pytest.mark.parametrize(
    ("n_bytes", "n_threads", "remote", "n_tasks"),
    [
        (1000, 2, True, 1),
        (4 << 20, 2, True, 16),  # eight a thread
        (1 << 30, 2, True, 16),
        (2 << 30, 2, True, 32),  # of 64 MiB
        (64 << 30, 8, True, 160),  # twenty a thread
        (10 << 40, 100, True, 5120),  # of 2 GiB
        (64 << 30, 8, False, 1024),  # of 64 MiB
        (4 << 20, 2, False, 16),
    ],
)
def test_task_bytes__keeps_threads_busy_and_tasks_few(n_bytes, n_threads, remote, n_tasks):
    assert ceil(n_bytes / task_bytes(n_bytes, n_threads, remote=remote)) == n_tasks
