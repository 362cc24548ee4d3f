import importlib.metadata
import logging
import os
import re
import signal
import threading
import time
from itertools import islice

import dask.bag
import distributed
import pytest

from streammiml._base import cluster_pool, cluster_results, cluster_tasks
from streammiml._base.cluster_pool import ClusterPool
from streammiml._base.cluster_results import ResultStream
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.errors import StreammimlError
from tests._base.pool_tasks import (
    add,
    as_list,
    combined_at,
    die,
    fail,
    fill,
    killing,
    nap,
    process_id,
    refuse,
    square,
    squares_and_shared,
    where,
    with_number,
)
from tests._base.test_thread_pool import GROUPS
from tests.clusters import inside_cluster, outside_cluster, outside_processes


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
    monkeypatch.setattr(cluster_pool, "START_SECONDS", 1)
    with outside_cluster(0) as (address, _):
        message = f"^the Dask scheduler at {address} has no workers; start some with dask worker"
        with pytest.raises(StreammimlError, match=message):
            open_pool(PoolOptions(scheduler=address))


@pytest.mark.slow
def test_outside_cluster__of_which_no_worker_is_left_is_told(monkeypatch):
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster_pool, "LOST_SECONDS", 2)
    with (
        outside_cluster(1) as (address, workers),
        open_pool(PoolOptions(scheduler=address)) as pool,
    ):
        results = pool.map(nap, range(40), pool.share(0.05))
        next(results)
        monkeypatch.setattr(cluster_pool, "START_SECONDS", 3)
        workers[0].kill()
        with pytest.raises(StreammimlError, match=r"^all workers of the Dask scheduler are gone;"):
            list(results)


@pytest.mark.slow
def test_outside_cluster__whose_scheduler_is_gone_is_told(monkeypatch):
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.5)
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
def test_outside_cluster__a_scheduler_that_hangs_is_told(monkeypatch):
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.5)
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
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster_pool, "PAUSED_SECONDS", 2)
    monkeypatch.setattr(cluster_pool, "NO_WORKERS_SECONDS", 2)
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


@pytest.fixture(scope="module")
def cluster():
    with inside_cluster() as made:
        yield made


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


def test_map__an_error_is_raised_in_its_place(cluster):
    with open_pool(PoolOptions(client=cluster)) as pool:
        results = pool.map(refuse, range(40), None)
        assert list(islice(results, 5)) == list(range(5))
        with pytest.raises(
            StreammimlError, match=r"^five is refused \(on the worker at inproc://\S+\)$"
        ):
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
        with pytest.raises(
            StreammimlError, match=r"^five is refused \(on the worker at inproc://\S+\)$"
        ):
            next(combined)


@pytest.mark.parametrize("n_items", [1, 4, 7, 63, 64, 65, 300])
def test_sums__have_every_item_once_and_in_order(cluster, n_items):
    seen = []
    with open_pool(PoolOptions(client=cluster)) as pool:
        total = pool.map_reduce(as_list, range(n_items), add, pool.share("x"), seen=seen.append)
    assert total == [(item, "x") for item in range(n_items)]
    assert seen == list(range(n_items))


def test_sums__are_formed_on_workers_and_few_are_fetched(cluster, monkeypatch):
    fetched, start_fetch = [], ResultStream._start_fetch

    def start(results, futures):
        fetched.extend(futures)
        return start_fetch(results, futures)

    monkeypatch.setattr(ResultStream, "_start_fetch", start)
    with open_pool(PoolOptions(client=cluster)) as pool:
        assert pool.map_reduce(square, range(64 * 3 + 21), add, 0) == sum(
            item * item for item in range(64 * 3 + 21)
        )
    # Three sums of 64 tasks; the rest are sums of 16 and 4, and one task.
    assert len(fetched) == 3 + 1 + 1 + 1


def test_sums__an_error_of_a_task_is_raised_as_it_is(cluster):
    with (
        open_pool(PoolOptions(client=cluster)) as pool,
        pytest.raises(
            StreammimlError, match=r"^five is refused \(on the worker at inproc://\S+\)$"
        ),
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


def test_client__workers_with_another_version_are_refused(cluster, monkeypatch):
    monkeypatch.setattr(cluster_pool, "installed_version", lambda: "99.1")
    version = importlib.metadata.version("streammiml")
    message = (
        r"^2 of 2 workers have another version of streammiml: \S+ has "
        rf"{version}, this process has 99.1; install 99.1 on all workers$"
    )
    with pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(client=cluster))


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


def scaled_to_zero(cluster):
    """Wait until an adaptive cluster has no workers."""
    deadline = time.monotonic() + 60
    while cluster.scheduler.workers and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not cluster.scheduler.workers


def test_adaptive__a_cluster_from_zero_is_waited_for_and_may_go_back_to_zero():
    with inside_cluster(n_workers=0) as cluster:
        cluster.adapt(minimum=0, maximum=1, interval="100ms")
        with open_pool(PoolOptions(client=cluster)) as pool:
            for burst in range(2):
                assert list(pool.map(square, range(5), 1)) == [1, 2, 5, 10, 17], burst
                scaled_to_zero(cluster)
            shared = pool.share(2)
            assert list(pool.map(square, range(3), shared)) == [2, 3, 6]
            pool.release(shared)


def test_workers__that_are_missing_are_told_with_what_the_cluster_object_can_do(
    monkeypatch, caplog
):
    monkeypatch.setattr(cluster_pool, "NO_WORKERS_SECONDS", 0)
    monkeypatch.setattr(cluster_pool, "START_SECONDS", 0.5)
    advice = (
        r"start some with cluster.scale\(2\), or let the cluster start them when there is work, "
        r"with cluster.adapt\(minimum=0, maximum=2\)"
    )
    message = rf"the Dask scheduler at inproc://\S+ has no workers; {advice}$"
    with inside_cluster(n_workers=0) as cluster:
        with pytest.raises(StreammimlError, match=f"^{message}"):
            open_pool(PoolOptions(client=cluster))
        with (
            distributed.Client(cluster, set_as_default=False) as client,
            pytest.raises(StreammimlError, match=f"^{message}"),
        ):
            open_pool(PoolOptions(client=client))
    [told, _] = [record.getMessage() for record in caplog.records if record.name == "streammiml"]
    assert re.search(rf"has no workers; waiting up to 1 minutes for one; {advice}$", told)


def test_workers__that_come_while_they_are_waited_for_are_used(monkeypatch, caplog):
    monkeypatch.setattr(cluster_pool, "NO_WORKERS_SECONDS", 0)
    with inside_cluster(n_workers=0) as cluster:
        told = threading.Event()
        monkeypatch.setattr(ClusterPool, "_tell_waiting", lambda *_: told.set())
        starter = threading.Thread(target=lambda: told.wait(60) and cluster.scale(1))
        starter.start()
        with open_pool(PoolOptions(client=cluster)) as pool:
            assert list(pool.map(square, [3], 0)) == [9]
        starter.join()
    assert not [record for record in caplog.records if record.name == "streammiml"]


def test_threads__and_memory_are_those_of_workers_that_join_later(monkeypatch):
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0)
    monkeypatch.setattr(cluster_pool, "LOOK_SECONDS", 0)
    with inside_cluster(n_workers=1) as cluster, open_pool(PoolOptions(client=cluster)) as pool:
        assert pool.n_threads == 1
        cluster.scale(3)
        cluster.wait_for_workers(3, timeout=60)
        assert list(pool.map(square, range(3), 0)) == [0, 1, 4]
        assert pool.n_threads == 3
        assert len(pool.workers()) == 3


def test_late_worker__of_another_version_gets_no_tasks(monkeypatch, caplog):
    version = cluster_tasks.installed_version()
    with inside_cluster(n_workers=1) as cluster, open_pool(PoolOptions(client=cluster)) as pool:
        [first] = pool.workers()
        monkeypatch.setattr(
            cluster_tasks,
            "installed_version",
            lambda: version if cluster_tasks.this_worker() == first else "99.1",
        )
        cluster.scale(2)
        cluster.wait_for_workers(2, timeout=60)
        late = next(address for address in pool.workers() if address != first)
        answers = list(pool.map(where, range(40), pool.share(1), prefer=lambda _: late))
        assert answers == [(item, first) for item in range(40)]
        assert list(pool.workers()) == [first]
        assert list(pool.map_groups(where, [[1], [2, 3]], combined_at, 0)) == [first] * 2
        assert pool.map_reduce(square, range(100), add, 0) == sum(i * i for i in range(100))
        lazy = dask.bag.from_sequence(range(6), npartitions=6)
        assert list(pool.map_partitions(with_number, lazy, 0)) == [[i, i, 0] for i in range(6)]
    told = {record.getMessage() for record in caplog.records if record.name == "streammiml"}
    assert told == {
        f"the worker at {late} has streammiml 99.1, this process has {version}; install {version} "
        "on all workers; until then, its tasks run on other workers"
    }


def test_late_worker__of_another_version_that_is_alone_is_told(monkeypatch):
    with inside_cluster(n_workers=1) as cluster, open_pool(PoolOptions(client=cluster)) as pool:
        monkeypatch.setattr(cluster_tasks, "installed_version", lambda: "99.1")
        with pytest.raises(
            StreammimlError, match=r"^the worker at inproc://\S+ has streammiml 99.1"
        ):
            list(pool.map(square, range(3), 0))


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        (ValueError, ValueError, r"^of the task \(on the worker at {}\)$"),
        (OSError, OSError, r"^of the task \(on the worker at {}\)$"),
        (MemoryError, StreammimlError, r"^a task ran out of memory on the worker at {} \(of the t"),
        (ImportError, StreammimlError, r"^the worker at {} cannot import what tasks need \(of the"),
    ],
)
def test_errors__say_on_which_worker(cluster, kind, expected, message):
    with open_pool(PoolOptions(client=cluster)) as pool:
        addresses = "|".join(pool.workers())
        with pytest.raises(expected, match=message.format(f"({addresses})")):
            list(pool.map(fail, [kind], "of the task"))


@pytest.mark.slow
def test_errors__a_killed_worker_is_told_with_both_possible_reasons():
    message = (
        r"^a task was given up because the 4 workers that ran it died, the last at tcp://\S+:\d+; "
        r"if they ran out of memory \(the smallest has .*\), lower --block-bytes, or give workers "
        r"more memory; if they were ended from outside \(preempted\), run the same command: "
    )
    with outside_cluster(4) as (address, _):
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(4, timeout=60)
        with (
            open_pool(PoolOptions(scheduler=address)) as pool,
            pytest.raises(StreammimlError, match=message),
        ):
            list(pool.map(die, [1], 0))


def test_foreign_cluster__keeps_its_memory_manager_and_its_log():
    with inside_cluster() as cluster, distributed.Client(cluster, set_as_default=False) as client:
        manager = cluster.scheduler.extensions["amm"]
        handler = logging.StreamHandler()
        logging.getLogger("distributed").addHandler(handler)
        for given in (client, cluster):
            with open_pool(PoolOptions(client=given)) as pool:
                assert list(pool.map(square, range(5), pool.share(1))) == [1, 2, 5, 10, 17]
                assert manager.running
                assert handler.level == logging.NOTSET
            assert manager.running
        logging.getLogger("distributed").removeHandler(handler)


@pytest.mark.parametrize("manages_memory", [True, False])
def test_share__a_value_whose_copies_are_dropped_and_lost_is_made_again(manages_memory):
    """The worker that holds the only copy leaves, while Dask removes the other copies."""
    with inside_cluster(6) as cluster, open_pool(PoolOptions(client=cluster)) as pool:
        manager = cluster.scheduler.extensions["amm"]
        for turn in range(4):
            shared = pool.share(turn)
            addresses = list(pool.workers())
            for address in addresses:
                assert list(pool.map(where, [1], shared, prefer=lambda _, to=address: to))
            results = pool.map(square, range(100), shared)
            assert next(results) == turn
            if manages_memory:
                pool._client.sync(pool._client.scheduler.amm_handler, method="run_once")
            holders = pool._client.who_has([shared.future])[shared.future.key]
            leaving = next(iter(holders), addresses[0])
            cluster.loop.add_callback(cluster.scheduler.remove_worker, leaving, stimulus_id="test")
            assert list(results) == [item * item + turn for item in range(1, 100)]
            pool.release(shared)
        assert manager.running


@pytest.mark.slow
def test_share__a_value_is_made_again_if_the_worker_with_the_only_copy_is_killed():
    with outside_cluster(3) as (address, workers):
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(3, timeout=60)
        with open_pool(PoolOptions(scheduler=address)) as pool:
            pid_of = pool.on_every_worker(process_id)
            for n_left in (3, 2):
                shared = pool.share(0.01)
                assert len(list(pool.map(nap, [0], shared))) == 1
                [holder] = pool._client.who_has([shared.future])[shared.future.key]
                os.kill(pid_of[holder], signal.SIGKILL)
                answers = list(pool.map(nap, range(60), shared))
                assert [item for item, _ in answers] == list(range(60))
                assert pid_of[holder] not in {pid for _, pid in answers}
                assert len(pool.workers()) == n_left - 1
                pool.release(shared)
    assert len([worker for worker in workers if worker.returncode == -signal.SIGKILL]) == 3
