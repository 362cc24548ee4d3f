"""Turns on workers that have the weights of the round before, or have lost them."""

import numpy as np
import pytest

from streammiml._base import pool as pools
from streammiml._base.thread_pool import ThreadPool
from streammiml.config import TrainConfig
from streammiml.learn import replica, round_weights, worker_turns
from streammiml.learn.replica import NoWeights
from streammiml.learn.train import train
from tests.planted import planted
from tests.stores import write_store

SETTINGS = {
    "shared_dim": 8, "subconcepts": 2, "block_bags": 1, "mix_blocks": 2, "epochs": 9,
    "round_steps": 128, "validation": 0.0,
}  # fmt: skip


class Workers(ThreadPool):
    """A worker that is this process, and loses the weights of its runs in some rounds."""

    is_remote = True

    def __init__(self, loses):
        super().__init__(2)
        self._loses, self._rng = loses, np.random.default_rng(0)
        self.n_lost = 0

    def workers(self):
        return {"": 2}

    def map(self, task, items, *shared, **options):
        for item in items:
            if self._rng.random() < self._loses:
                replica._WEIGHTS.__init__()
            [answer] = super().map(task, [item], *shared, **options)
            self.n_lost += isinstance(answer, NoWeights)
            yield answer


@pytest.fixture(scope="module", params=["dense", "sparse"])
def store(request, tmp_path_factory):
    bags = planted(sparse=request.param == "sparse")
    return write_store(tmp_path_factory.mktemp("made") / "s.zarr", bags)


def weights_of(store, n_replicas):
    model = train(store, TrainConfig(replicas=n_replicas, **SETTINGS))
    return model.shared.tobytes(), model.labels.tobytes()


@pytest.mark.parametrize("sent_bytes", [0, worker_turns.SENT_BYTES], ids=["shared", "sent"])
@pytest.mark.parametrize("loses", [0.0, 0.3])
def test_results__have_the_same_bits_whatever_workers_have_lost(
    store, sent_bytes, loses, monkeypatch
):
    """Ten replicas are two groups: with large weights, workers sum their changes."""
    expected = weights_of(store, 10)
    monkeypatch.setattr(round_weights, "MOST_CHANGED", 2.0)
    monkeypatch.setattr(worker_turns, "SENT_BYTES", sent_bytes)
    pool = Workers(loses)
    monkeypatch.setattr(pools, "open_pool", lambda *_, **__: pool)
    assert weights_of(store, 10) == expected
    assert (pool.n_lost > 0) == (loses > 0)
