"""One pass over scored bags: a collector sees every bag once, whatever the tasks."""

from typing import NamedTuple

import numpy as np
import pytest

from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.memory import MemoryBags
from streammiml.measure import score_pass
from streammiml.measure.score_pass import collect, collect_task
from streammiml.measure.tasks import all_bags
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


def test_collect_task__takes_the_bags_of_its_range():
    bags = all_bags(BAGS, remote=False).cut(7, 19)
    assert collect_task(bags, Scorer(MODEL), Collector(), 600).numbers == tuple(range(7, 19))
