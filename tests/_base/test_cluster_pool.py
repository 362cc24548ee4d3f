import signal
import struct
import threading
from itertools import islice

import pytest

from streammiml._base import cluster_pool
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.errors import StreammimlError
from tests._base.pool_tasks import fail, fill, nap, square
from tests.clusters import answering, outside_cluster, outside_processes


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
    monkeypatch.setattr(cluster_pool, "CONNECT_SECONDS", 0.5)
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
    monkeypatch.setattr(cluster_pool, "CONNECT_SECONDS", 0.5)
    message = rf"^no Dask scheduler answers at tcp://127.0.0.1:\d+ \({why}\); "
    with answering(answer) as port, pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(scheduler=f"tcp://127.0.0.1:{port}"))


@pytest.mark.slow
def test_outside_cluster__a_worker_killed_in_the_middle_changes_nothing():
    with (
        outside_cluster(2) as (address, workers),
        open_pool(PoolOptions(scheduler=address)) as pool,
    ):
        pool._client.wait_for_workers(2, timeout=30)
        results = pool.map(nap, range(40), pool.share(0.05))
        answers = list(islice(results, 6))
        assert answers[0][1] in [worker.pid for worker in workers]
        workers[0].send_signal(signal.SIGKILL)
        answers += results
    assert [item for item, _ in answers] == list(range(40))
    assert {pid for _, pid in answers[-5:]} == {workers[1].pid}


@pytest.mark.slow
def test_outside_cluster__without_workers_is_told(monkeypatch):
    monkeypatch.setattr(cluster_pool, "CONNECT_SECONDS", 2)
    with outside_cluster(0) as (address, _):
        message = f"^the Dask scheduler at {address} has no workers; start some with dask worker"
        with pytest.raises(StreammimlError, match=message):
            open_pool(PoolOptions(scheduler=address))


@pytest.mark.slow
def test_outside_cluster__of_which_no_worker_is_left_is_told(monkeypatch):
    monkeypatch.setattr(cluster_pool, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster_pool, "LOST_SECONDS", 2)
    with (
        outside_cluster(1) as (address, workers),
        open_pool(PoolOptions(scheduler=address)) as pool,
    ):
        results = pool.map(nap, range(40), pool.share(0.05))
        next(results)
        workers[0].kill()
        with pytest.raises(StreammimlError, match=r"^all workers of the Dask scheduler are gone;"):
            list(results)


@pytest.mark.slow
def test_outside_cluster__whose_scheduler_is_gone_is_told(monkeypatch):
    monkeypatch.setattr(cluster_pool, "LOOK_SECONDS", 0.5)
    with (
        outside_processes(1) as (address, head, _),
        open_pool(PoolOptions(scheduler=address)) as pool,
    ):
        results = pool.map(nap, range(400), pool.share(0.05))
        next(results)
        head.kill()
        with pytest.raises(
            StreammimlError, match=r"^the Dask scheduler is gone; start the cluster again,"
        ):
            list(results)


@pytest.mark.slow
def test_outside_cluster__a_result_that_died_with_its_worker_is_told(monkeypatch):
    monkeypatch.setattr(cluster_pool, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster_pool, "LOST_SECONDS", 2)
    with (
        outside_cluster(1) as (address, workers),
        open_pool(PoolOptions(scheduler=address)) as pool,
    ):
        future = pool._submit(square, 3, 0)
        pool._wait([future])
        workers[0].kill()
        workers[0].wait()
        with pytest.raises(StreammimlError, match=r"^all workers of the Dask scheduler are gone;"):
            pool._fetch(future)


@pytest.mark.slow
def test_outside_cluster__a_scheduler_that_hangs_is_told(monkeypatch):
    monkeypatch.setattr(cluster_pool, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster_pool, "LOST_SECONDS", 2)
    with (
        outside_processes(1) as (address, head, _),
        open_pool(PoolOptions(scheduler=address)) as pool,
    ):
        results = pool.map(nap, range(400), pool.share(0.05))
        next(results)
        head.send_signal(signal.SIGSTOP)
        with pytest.raises(
            StreammimlError, match=r"^the Dask scheduler is gone; start the cluster again,"
        ):
            list(results)


@pytest.mark.slow
def test_outside_cluster__an_error_of_a_task_is_not_taken_for_one_of_the_cluster():
    with outside_cluster(1) as (address, _), open_pool(PoolOptions(scheduler=address)) as pool:
        for kind in (OSError, TimeoutError):
            with pytest.raises(kind, match="of the disk"):
                list(pool.map(fail, [kind], "of the disk"))
        assert list(pool.map(square, [3], 0)) == [9]


@pytest.mark.slow
def test_outside_cluster__workers_that_are_paused_for_good_are_told(monkeypatch):
    monkeypatch.setattr(cluster_pool, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster_pool, "PAUSED_SECONDS", 2)
    monkeypatch.setattr(cluster_pool, "CONNECT_SECONDS", 2)
    message = (
        r"^all workers are paused, as they are when they run out of memory "
        r"\(the smallest has 500 MiB\); lower --block-bytes, or give workers more memory$"
    )
    with outside_processes(1, "--memory-limit", "500MiB") as (address, _, _):
        with (
            open_pool(PoolOptions(scheduler=address)) as pool,
            pytest.raises(StreammimlError, match=message),
        ):
            list(pool.map(fill, range(8), 450 << 20))
        with pytest.raises(StreammimlError, match=r"^all workers are paused, as they are when"):
            open_pool(PoolOptions(scheduler=address))


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", [True, False])
def test_outside_cluster__has_the_dashboard_that_there_is(dashboard):
    with outside_processes(1, dashboard=dashboard) as (address, _, _):
        with open_pool(PoolOptions(scheduler=address)) as pool:
            address_of_page = pool.dashboard
        assert (address_of_page is not None) == dashboard
