"""Connecting to schedulers: what answers there, and what may be given as client=."""

import asyncio
import struct
import threading

import distributed
import pytest

from streammiml._base import cluster_connection
from streammiml._base.cluster_connection import default_client
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.errors import StreammimlError
from tests._base.pool_tasks import square
from tests.clusters import answering, inside_cluster, outside_processes


@pytest.fixture(scope="module")
def cluster():
    with inside_cluster() as made:
        yield made


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "missing port"),
        ("localhost", "missing port"),
        ("localhost:x", "invalid literal"),
        ("tcp://localhost:99999", "Timed out trying to connect"),
        ("tls://localhost:1", "TLS expects"),
        ("inproc://x", "not enough"),
    ],
)
def test_scheduler__an_address_that_is_none_is_told_at_once(address, why, monkeypatch):
    monkeypatch.setattr(cluster_connection, "CONNECT_SECONDS", 0.5)
    message = (
        rf"^no Dask scheduler answers at {address or repr(address)} \({why}.*; give tcp://HOST"
    )
    before = {*threading.enumerate()}
    with pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(scheduler=address))
    assert not [thread for thread in threading.enumerate() if thread not in before]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "no answer within 0.5 s"),
        (b"SSH-2.0-OpenSSH_9\r\n", "another program answers there"),
        (struct.pack("Q", 8) + b"garbage!", "total struct size too long"),
    ],
)
def test_scheduler__something_else_that_answers_is_told(answer, why, monkeypatch):
    monkeypatch.setattr(cluster_connection, "CONNECT_SECONDS", 0.5)
    message = rf"^no Dask scheduler answers at tcp://127.0.0.1:\d+ \({why}\); "
    with answering(answer) as port, pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(scheduler=f"tcp://127.0.0.1:{port}"))


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", [True, False])
def test_outside_cluster__has_the_dashboard_that_there_is(dashboard):
    with outside_processes(1, dashboard=dashboard) as (address, _, _):
        with open_pool(PoolOptions(scheduler=address)) as pool:
            address_of_page = pool.dashboard
        assert (address_of_page is not None) == dashboard


def test_default_client__is_the_one_that_dask_uses(cluster):
    assert default_client() is None
    with distributed.Client(cluster) as client:
        assert default_client() is client


def test_client__in_its_own_event_loop_is_refused_and_works_from_another_thread(cluster):
    def score(client):
        with open_pool(PoolOptions(client=client)) as pool:
            return list(pool.map(square, [3], pool.share(1)))

    async def try_both():
        address = cluster.scheduler_address
        async with distributed.Client(address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(StreammimlError, match=r"^the client of client= is asynchronous, "):
                score(client)
            return await asyncio.to_thread(score, client)

    assert asyncio.run(try_both()) == [10]


def test_client__that_is_closed_or_something_else_is_refused(cluster):
    with distributed.Client(cluster, set_as_default=False) as client:
        pass
    with pytest.raises(StreammimlError, match=r"^the client of client= is closed; give one that"):
        open_pool(PoolOptions(client=client))
    message = (
        r"^client= takes a distributed.Client, a Dask cluster such as LocalCluster, or 'active', "
        r"got dict; scheduler= takes an address$"
    )
    with pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(client={}))
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as closed:
        pass
    with pytest.raises(StreammimlError, match=r"^the cluster of client= is closed; give one that"):
        open_pool(PoolOptions(client=closed))


def test_client__active_is_the_one_that_dask_uses_by_default(cluster):
    with pytest.raises(StreammimlError, match=r"^client='active' finds no Dask client; make one"):
        open_pool(PoolOptions(client="active"))
    with distributed.Client(cluster) as client:
        with open_pool(PoolOptions(client="active")) as pool:
            assert pool._client is client
            assert list(pool.map(square, [3], pool.share(1))) == [10]
        assert client.status == "running"


def test_client__an_address_is_refused():
    message = r"^client= takes a .* or 'active', got 'tcp://x:1'; scheduler= takes an address$"
    with pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(client="tcp://x:1"))
