import asyncio
import importlib.metadata
import os
import signal
import struct
import threading
import time
from itertools import islice

import dask.bag
import distributed
import pytest

from streammiml._base import cluster_pool
from streammiml._base.cluster_pool import default_client
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.errors import StreammimlError
from tests._base.pool_tasks import (
    add,
    as_list,
    combined_at,
    fail,
    fill,
    killing,
    nap,
    process_id,
    refuse,
    square,
    squares_and_shared,
    with_number,
)
from tests._base.test_thread_pool import GROUPS
from tests.clusters import answering, inside_cluster, outside_cluster, outside_processes


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
        [future] = pool._send(square, [3], (0,))
        with pool._client.as_current():
            distributed.wait(future, timeout=30)
        workers[0].kill()
        workers[0].wait()
        completed = distributed.as_completed(loop=pool._client.loop)
        fetch = pool._start_fetch([future], completed)
        with pytest.raises(StreammimlError, match=r"^all workers of the Dask scheduler are gone;"):
            pool._wait(completed, [fetch])


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


@pytest.fixture(scope="module")
def cluster():
    with inside_cluster() as made:
        yield made


def wait_aside(event):
    """Wait for an event, and let the worker's thread do other tasks meanwhile.

    Otherwise tasks that Dask keeps for this worker, as it does where moving their data seems dear,
    would wait behind this one.
    """
    distributed.secede()
    assert event.wait(60)


def test_client__is_used_and_stays_open(cluster):
    with distributed.Client(cluster, set_as_default=False) as client:
        with open_pool(PoolOptions(client=client)) as pool:
            assert pool.n_threads == 2
            assert list(pool.map(square, range(20), pool.share(1))) == [
                item * item + 1 for item in range(20)
            ]
        assert client.status == "running"
        assert client.submit(square, 3, 0).result(timeout=30) == 9
        assert not [key for key in client.futures if key.startswith("_same")]


def test_partitions__are_computed_on_the_workers_and_forgotten(cluster):
    lazy = dask.bag.from_sequence(range(120), npartitions=60).map(lambda item: item * 2)
    with distributed.Client(cluster, set_as_default=False) as client:
        with open_pool(PoolOptions(client=client)) as pool:
            results = list(pool.map_partitions(with_number, lazy, "x"))
        assert results == [[4 * i, 4 * i + 2, i, "x"] for i in range(60)]
        deadline = time.monotonic() + 30
        while client.futures and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not client.futures


def test_default_client__is_the_one_that_dask_uses(cluster):
    assert default_client() is None
    with distributed.Client(cluster) as client:
        assert default_client() is client


def test_map__a_slow_task_delays_only_what_comes_after_the_window(cluster):
    n_items, n_held = 300, cluster_pool.HELD * cluster_pool.LEAST_AHEAD
    drawn, seen = [], []

    def items():
        for item in range(n_items):
            drawn.append(item)
            yield item

    def nap_first(item, event):
        if item == 0:
            wait_aside(event)
        return item

    def free_the_first(item):
        seen.append(item)
        if len(seen) == n_held - 1:
            waiting.set()

    with open_pool(PoolOptions(client=cluster)) as pool:
        waiting = distributed.Event("slow", client=pool._client)
        results = pool.map(nap_first, items(), waiting, seen=free_the_first)
        assert next(results) == 0
        assert len(drawn) == n_held
        assert sorted(seen) == list(range(n_held))
        assert seen[-1] == 0
        assert list(results) == list(range(1, n_items))
    assert sorted(seen) == drawn == list(range(n_items))


def test_map__an_error_is_raised_in_its_place(cluster):
    with open_pool(PoolOptions(client=cluster)) as pool:
        results = pool.map(refuse, range(40), None)
        assert list(islice(results, 5)) == list(range(5))
        with pytest.raises(StreammimlError, match=r"^five is refused$"):
            next(results)
        assert list(pool.map(refuse, range(3), None)) == [0, 1, 2]


def test_groups__are_combined_on_workers_and_shared_values_are_released(cluster):
    with open_pool(PoolOptions(client=cluster)) as pool:
        for turn in range(2):
            shared = pool.share(turn)
            combined = list(pool.map_groups(square, GROUPS, squares_and_shared, shared))
            assert combined == [[*(item * item + turn for item in group), turn] for group in GROUPS]
            pool.release(shared)
        assert pool._shared == []
        [worker] = pool.map_groups(square, [[1]], combined_at, 0)
        assert worker in pool.workers()


def test_groups__an_error_of_a_task_is_raised_in_the_place_of_its_group(cluster):
    with open_pool(PoolOptions(client=cluster)) as pool:
        combined = pool.map_groups(refuse, [[3, 4], [5, 6]], squares_and_shared, 0)
        assert next(combined) == [3, 4, 0]
        with pytest.raises(StreammimlError, match=r"^five is refused$"):
            next(combined)


def test_groups__of_which_few_results_are_held_while_the_first_is_waited_for(cluster):
    with open_pool(PoolOptions(client=cluster)) as pool:
        is_first_done = distributed.Event("first", client=pool._client)
        n_done, fetched, start_fetch = [], [], pool._start_fetch

        def combine(results, event):
            if results == [0]:
                wait_aside(event)
            return results

        def start(futures, completed):
            fetched.extend(futures)
            return start_fetch(futures, completed)

        def sort(completed, sort_completed=pool._sort_completed):
            finished, failed = sort_completed(completed)
            n_done.extend(finished)
            if len(n_done) == 9 and finished:
                is_first_done.set()
                assert len(fetched) <= cluster_pool.GROUPS_HELD
            return finished, failed

        pool._start_fetch, pool._sort_completed = start, sort
        groups = [[item] for item in range(10)]
        combined = pool.map_groups(lambda item, _: item, groups, combine, is_first_done)
        assert list(combined) == groups


@pytest.mark.parametrize("n_items", [1, 4, 7, 63, 64, 65, 300])
def test_sums__have_every_item_once_and_in_order(cluster, n_items):
    seen = []
    with open_pool(PoolOptions(client=cluster)) as pool:
        total = pool.map_reduce(as_list, range(n_items), add, pool.share("x"), seen=seen.append)
    assert total == [(item, "x") for item in range(n_items)]
    assert seen == list(range(n_items))


def test_sums__are_formed_on_workers_and_few_are_fetched(cluster):
    with open_pool(PoolOptions(client=cluster)) as pool:
        fetched, start_fetch = [], pool._start_fetch

        def start(futures, completed):
            fetched.extend(futures)
            return start_fetch(futures, completed)

        pool._start_fetch = start
        assert pool.map_reduce(square, range(64 * 3 + 21), add, 0) == sum(
            item * item for item in range(64 * 3 + 21)
        )
    # Three sums of 64 tasks; the rest are sums of 16 and 4, and one task.
    assert len(fetched) == 3 + 1 + 1 + 1


def test_sums__an_error_of_a_task_is_raised_as_it_is(cluster):
    with (
        open_pool(PoolOptions(client=cluster)) as pool,
        pytest.raises(StreammimlError, match=r"^five is refused$"),
    ):
        pool.map_reduce(refuse, range(40), add, None)


@pytest.mark.slow
def test_sums__lost_with_a_worker_are_formed_again(tmp_path):
    with open_pool(PoolOptions(workers=2)) as pool:
        total = pool.map_reduce(killing, range(100), add, str(tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert total == list(range(100))


def test_map__large_items_are_sent_without_a_warning(cluster, recwarn):
    with open_pool(PoolOptions(client=cluster)) as pool:
        assert list(pool.map(len, [b"x" * (11 << 20)])) == [11 << 20]
    assert not [warning for warning in recwarn if "large graph" in str(warning.message)]


def test_client__of_a_cluster_is_our_own(cluster):
    with open_pool(PoolOptions(client=cluster)) as pool:
        client = pool._client
        assert list(pool.map(square, [3], 0)) == [9]
    assert client.status == "closed"
    assert cluster.status == distributed.Status.running


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
        r"^client= takes a distributed.Client or a Dask cluster such as LocalCluster, got dict"
    )
    with pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(client={}))
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as closed:
        pass
    with pytest.raises(StreammimlError, match=r"^the cluster of client= is closed; give one that"):
        open_pool(PoolOptions(client=closed))


def test_client__workers_with_another_version_are_refused(cluster, monkeypatch):
    monkeypatch.setattr(cluster_pool, "distributions", lambda **_: [FakeDistribution])
    version = importlib.metadata.version("streammiml")
    message = (
        r"^2 of 2 workers have another version of streammiml: \S+ has "
        rf"{version}, this process has 99.1; install 99.1 on all workers$"
    )
    with pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(client=cluster))


class FakeDistribution:
    version = "99.1"


@pytest.mark.slow
def test_prefer__a_task_runs_on_its_worker_and_elsewhere_if_that_one_is_gone():
    with outside_cluster(2) as (address, workers):
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=30)
        with open_pool(PoolOptions(scheduler=address)) as pool:
            pid_of = pool.on_every_worker(process_id)
            assert sorted(pid_of.values()) == sorted(worker.pid for worker in workers)
            assert pool.workers() == dict.fromkeys(pid_of, 1)
            addresses = list(pid_of)

            def prefer(item):
                return addresses[item % 2]

            answers = list(pool.map(nap, range(20), 0.01, prefer=prefer))
            pids = [pid_of[address] for address in addresses]
            n_there = sum(pid == pids[item % 2] for item, pid in answers)
            # Idle workers may steal tasks that others can run.
            assert n_there >= 15
            os.kill(pids[0], signal.SIGKILL)
            answers = list(pool.map(nap, range(20), 0.01, prefer=prefer))
            assert [item for item, _ in answers] == list(range(20))
            assert {pid for _, pid in answers} == {pids[1]}
            answers = list(pool.map(nap, range(4), 0, prefer=lambda _: "tcp://127.0.0.1:1"))
            assert {pid for _, pid in answers} == {pids[1]}


@pytest.mark.slow
def test_every_worker__gives_its_answer_its_error_or_a_timeout(monkeypatch):
    monkeypatch.setattr(cluster_pool, "LOST_SECONDS", 2)
    with outside_cluster(2) as (address, workers):
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=30)
        with open_pool(PoolOptions(scheduler=address)) as pool:
            errors = pool.on_every_worker(refuse, 5, None)
            assert [type(error) for error in errors.values()] == [StreammimlError] * 2
            pid_of = pool.on_every_worker(process_id)
            workers[0].send_signal(signal.SIGSTOP)
            answers = pool.on_every_worker(process_id)
            workers[0].send_signal(signal.SIGCONT)
    for address, pid in pid_of.items():
        if pid == workers[0].pid:
            assert isinstance(answers[address], TimeoutError)
        else:
            assert answers[address] == pid
