"""Results of a cluster in order: the window of tasks, what is fetched, and what is sent again."""

import logging
import time
import warnings

import distributed
import pytest

from streammiml._base import cluster_pool, cluster_results
from streammiml._base.cluster_results import ResultStream
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions, ignore_result
from streammiml.errors import StreammimlError
from tests._base.pool_tasks import square
from tests.clusters import inside_cluster, outside_cluster


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


def test_map__a_slow_task_delays_only_what_comes_after_the_window(cluster):
    n_items, n_held = 300, cluster_results.HELD * cluster_results.LEAST_AHEAD
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


def test_groups__of_which_few_results_are_held_while_the_first_is_waited_for(cluster, monkeypatch):
    with open_pool(PoolOptions(client=cluster)) as pool:
        is_first_done = distributed.Event("first", client=pool._client)
        n_done, fetched = [], []
        start_fetch, sort_completed = ResultStream._start_fetch, ResultStream._sort_completed

        def combine(results, event):
            if results == [0]:
                wait_aside(event)
            return results

        def start(results, futures):
            fetched.extend(futures)
            return start_fetch(results, futures)

        def sort(results):
            before = {*results._done}
            sort_completed(results)
            finished = [future for future in results._done if future not in before]
            n_done.extend(finished)
            if len(n_done) == 9 and finished:
                is_first_done.set()
                assert len(fetched) <= cluster_pool.GROUPS_HELD

        monkeypatch.setattr(ResultStream, "_start_fetch", start)
        monkeypatch.setattr(ResultStream, "_sort_completed", sort)
        groups = [[item] for item in range(10)]
        combined = pool.map_groups(lambda item, _: item, groups, combine, is_first_done)
        assert list(combined) == groups


def test_stall__tasks_that_dask_lost_are_sent_again(monkeypatch, caplog):
    monkeypatch.setattr(cluster_pool, "STALL_SECONDS", 2)
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.2)
    lost = []

    def is_lost(message):
        if message["op"] != "compute-task" or "square" not in message["key"] or len(lost) == 3:
            return False
        lost.append(message["key"])
        return True

    with inside_cluster() as cluster, open_pool(PoolOptions(client=cluster)) as pool:
        for comm in cluster.scheduler.stream_comms.values():

            def send(*messages, send_all=comm.send):
                send_all(*(message for message in messages if not is_lost(message)))

            monkeypatch.setattr(comm, "send", send)
        shared = pool.share(1)
        assert list(pool.map(square, range(50), shared)) == [item * item + 1 for item in range(50)]
        assert pool._stall_seconds == 4
    assert len(lost) == 3
    told = [record.getMessage() for record in caplog.records if record.name == "streammiml"]
    assert [message.split(" for ")[0] for message in told] == [
        "no worker has run or fetched anything",
        "sending the tasks that are left again",
    ]


def test_stall__results_that_cannot_be_computed_again_are_given_up(monkeypatch):
    monkeypatch.setattr(cluster_pool, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.1)
    with inside_cluster() as cluster, open_pool(PoolOptions(client=cluster)) as pool:
        for comm in cluster.scheduler.stream_comms.values():
            monkeypatch.setattr(comm, "send", lambda *_: None)
        futures = pool._send(square, [3], (1,))
        results = ResultStream(pool._client, pool, None, futures, ignore_result)
        with pytest.raises(
            StreammimlError, match=r"^no worker runs the tasks that are left; start"
        ):
            next(iter(results))
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("status", "counts", "goes_on"),
    [
        ("running", {"executing": 1}, True),
        ("running", {"long-running": 1}, True),
        ("running", {"flight": 1}, True),
        ("running", {"waiting": 2, "memory": 3}, False),
        ("paused", {"ready": 1}, True),
    ],
)
def test_stall__is_told_only_where_no_worker_does_anything(
    cluster, monkeypatch, status, counts, goes_on
):
    facts = {"status": status, "metrics": {"task_counts": counts}}
    with open_pool(PoolOptions(client=cluster)) as pool:
        monkeypatch.setattr(pool, "_known_workers", lambda: {"tcp://x:1": facts})
        monkeypatch.setattr(pool, "_stall_seconds", 0.2)
        looks = iter([False] * 20 + [True])

        def is_done():
            time.sleep(0.03)
            return next(looks)

        assert pool.watch(is_done) == goes_on


@pytest.mark.slow
def test_outside_cluster__a_result_that_died_with_its_worker_is_told(monkeypatch):
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.5)
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
        monkeypatch.setattr(cluster_pool, "START_SECONDS", 3)
        results = ResultStream(pool._client, pool, lambda _: [future], [3], ignore_result)
        with pytest.raises(StreammimlError, match=r"^all workers of the Dask scheduler are gone;"):
            next(iter(results))


def test_tell__is_a_warning_unless_a_program_handles_records(caplog, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cluster_results.tell("heard")
    assert [record.getMessage() for record in caplog.records] == ["heard"]
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("streammiml"), "handlers", [logging.NullHandler()])
    with pytest.warns(UserWarning, match="^not heard$"):
        cluster_results.tell("not heard")
