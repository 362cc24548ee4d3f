"""Library calls on Dask clusters as people run them: TLS, adaptive, gateway, active client.

Each call gives what it gives on threads of this process.
"""

import dask.array
import dask.bag
import distributed
import numpy as np
import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from tests.clusters import inside_cluster
from tests.planted import planted
from tests.stores import write_store

CONFIG = sm.TrainConfig(epochs=2, shared_dim=8, validation=0, replicas=2, round_steps=128)
TRIALS = sm.TrainConfig(max_steps=60, shared_dim=8, validation=0.2)
GRID = {"step_size": [0.01, 0.1]}
TLS = {"protocol": "tls://", "security": True}


class FakeGatewayCluster:
    """What streammiml and Dask's client use of the ``GatewayCluster`` of dask-gateway.

    Its workers are started by a server, on ``scale`` and ``adapt``; the class does not derive from
    Dask's clusters, its status is a string, and there need not be a dashboard.
    """

    status = "running"
    asynchronous = False
    dashboard_link = None
    name = "a1b2c3"

    def __init__(self, server):
        self._server = server
        self.scheduler_address = server.scheduler_address
        self.security = server.security
        self.loop = server.loop

    def scale(self, n, **_):
        self._server.scale(n)

    def adapt(self, minimum=None, maximum=None, active=True, **_):
        assert active
        self._server.adapt(minimum=minimum or 0, maximum=maximum, interval="100ms")


@pytest.fixture(
    scope="module",
    params=["cluster with TLS", "client with TLS", "adaptive", "gateway", "active", "active TLS"],
)
def client(request):
    """What is given as client=."""
    tls = TLS if request.param not in ("adaptive", "active") else {}
    n_workers = 0 if request.param in ("adaptive", "gateway") else 2
    with inside_cluster(n_workers, **tls) as cluster:
        if tls:
            assert cluster.scheduler_address.startswith("tls://")
        if request.param == "cluster with TLS":
            yield cluster
        elif request.param == "client with TLS":
            with distributed.Client(cluster, set_as_default=False) as given:
                yield given
                assert given.status == "running"
        elif request.param == "adaptive":
            cluster.adapt(minimum=0, maximum=1, interval="100ms")
            yield cluster
        elif request.param == "gateway":
            gateway = FakeGatewayCluster(cluster)
            gateway.adapt(maximum=1)
            yield gateway
        else:
            with distributed.Client(cluster) as default:
                yield "active"
                assert default.status == "running"
        assert cluster.status == distributed.Status.running


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("clusters") / "x.zarr", planted(60), n_labels=5)


@pytest.fixture(scope="module")
def model(store):
    return sm.train(store, CONFIG)


@pytest.fixture(scope="module")
def tuned(store, tmp_path_factory):
    run = tmp_path_factory.mktemp("tuned") / "run"
    return sm.tune(store, run, TRIALS, grid=GRID, folds=2, threads=1)


def test_evaluate(client, store, model):
    assert sm.evaluate(model, store, client=client) == sm.evaluate(model, store, threads=1)


def test_predict(client, store, model, tmp_path):
    sm.predict(model, store, tmp_path / "a", client=client)
    sm.predict(model, store, tmp_path / "b", threads=1)
    names = sorted(path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*.parquet"))
    assert names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_explain(client, store, model, tmp_path):
    alone = sm.explain(model, store, tmp_path / "b", threads=1)
    assert sm.explain(model, store, tmp_path / "a", client=client) == alone


def test_tune(client, store, tuned, tmp_path):
    assert sm.tune(store, tmp_path / "run", TRIALS, grid=GRID, folds=2, client=client) == tuned


def test_convert(client, store, tmp_path):
    converted = sm.convert(store.name, tmp_path / "y.parquet", client=client).store
    assert converted.fingerprint == store.fingerprint


def test_train__with_replicas(client, store, model):
    assert sm.train(store, CONFIG, client=client).fingerprint == model.fingerprint


def test_train__with_one_replica_is_refused(client, store):
    with pytest.raises(StreammimlError, match=r"^client= trains the replicas of a run, and"):
        sm.train(store, TRIALS, client=client)


def rows_of(store):
    return [np.array(store[i].rows) for i in range(store.n_bags)]


@pytest.mark.parametrize("is_active", [True, False])
def test_bag__partitions_are_predicted_as_the_whole_is(store, model, is_active):
    rows = rows_of(store)
    bags = dask.bag.from_sequence(rows, npartitions=7).map_partitions(
        lambda part: [sm.predict(model, list(part))]
    )
    if is_active:
        with inside_cluster() as cluster, distributed.Client(cluster):
            parts = bags.compute()
    else:
        parts = bags.compute(scheduler="threads")
    assert len(parts) == 7
    whole = sm.predict(model, rows)
    np.testing.assert_array_equal(np.concatenate([part.scores for part in parts]), whole.scores)
    keys = np.concatenate([part.row_indices for part in parts])
    np.testing.assert_array_equal(keys, whole.row_indices)


def test_bag__a_partition_may_be_empty_and_the_model_may_be_sent_once(store, model):
    rows = rows_of(store)
    few = dask.bag.from_sequence(rows, npartitions=10).filter(lambda bag: len(bag) == 5)
    with inside_cluster() as cluster, distributed.Client(cluster) as client:
        sent = client.scatter(model, broadcast=True)
        scores = few.map_partitions(
            lambda part, model: list(sm.predict(model, list(part)).scores), sent
        ).compute()
    want = sm.predict(model, [bag for bag in rows if len(bag) == 5]).scores
    np.testing.assert_array_equal(np.array(scores), want)


def test_array__chunks_of_bags_are_predicted_as_the_whole_is(store, model):
    rows = np.stack([bag[:2] for bag in rows_of(store)])
    array = dask.array.from_array(rows, chunks=(16, -1, -1))
    scores = array.map_blocks(
        lambda block: sm.predict(model, block).scores,
        drop_axis=[1, 2],
        new_axis=[1],
        chunks=(array.chunks[0], (model.n_labels,)),
        meta=np.empty((0, 0), np.float32),
    )
    assert scores.shape == (store.n_bags, model.n_labels)
    with inside_cluster() as cluster, distributed.Client(cluster):
        computed = scores.compute()
    np.testing.assert_array_equal(computed, sm.predict(model, rows).scores)
