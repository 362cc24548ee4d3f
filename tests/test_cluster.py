import os
import signal
import struct
import threading
import time
from contextlib import suppress
from itertools import count, islice

import pytest

from streammiml import cluster
from streammiml._base import platform
from streammiml.cluster import open_pool
from streammiml.errors import StreammimlError
from tests.clusters import answering, outside_cluster, outside_processes

HELD = []


def square(item, shared):
    return item * item + shared


def refuse(item, _):
    if item == 5:
        raise StreammimlError("five is refused")
    return item


def die(item, _):
    os._exit(item)


def hoard(item, _):
    raise MemoryError(f"Unable to allocate {item} TiB")


def need(item, _):
    raise ModuleNotFoundError(f"No module named 'package{item}'")


def fail(kind, message):
    raise kind(message)


def fill(item, size):
    """Let the process hold so many bytes, and keep them."""
    HELD.append(b"x" * max(0, size - platform.resident_bytes()))
    time.sleep(0.3)
    return item


def nap(item, seconds):
    time.sleep(seconds)
    return item, os.getpid()


@pytest.mark.parametrize("n_items", [0, 1, 63, 64, 65, 200])
def test_threads__give_results_in_order(n_items):
    with open_pool(threads=2) as pool:
        found = list(pool.map(square, range(n_items), pool.share(1)))
    assert found == [item * item + 1 for item in range(n_items)]


def test_threads__each_result_is_seen_before_it_is_given_out():
    seen = []
    with open_pool(threads=2) as pool:
        for number, result in enumerate(pool.map(square, range(100), 0, seen=seen.append)):
            assert result in seen
            assert len(seen) > number
    assert sorted(seen) == [item * item for item in range(100)]


def test_pool__memory_of_workers_needs_workers():
    with pytest.raises(
        StreammimlError, match=r"^--worker-memory is for the processes of --workers"
    ):
        open_pool(threads=2, worker_memory="1GiB")
    with pytest.raises(StreammimlError, match=r"^worker_memory must be a size such as"):
        open_pool(workers=1, worker_memory="much")


def test_threads__draw_items_as_they_are_needed():
    with open_pool(threads=2) as pool:
        assert list(islice(pool.map(square, count(), 0), 3)) == [0, 1, 4]


def test_threads__an_error_is_raised_as_it_is():
    with open_pool(threads=2) as pool, pytest.raises(StreammimlError, match=r"^five is refused$"):
        list(pool.map(refuse, range(10), None))


def test_threads__out_of_memory_says_which_option_to_lower():
    message = (
        r"^a task ran out of memory \(Unable to allocate 7 TiB\); lower --memory, or --threads$"
    )
    with (
        open_pool(threads=2, relief="--memory") as pool,
        pytest.raises(StreammimlError, match=message),
    ):
        list(pool.map(hoard, [7], None))


def test_threads__do_not_look_into_items():
    """Dask takes tuples and lists for parts of a graph; here they are what they are."""
    items = [("a", 1), [len, "abc"], (len, "abc"), {"k": (sum, [1])}]
    with open_pool(threads=2) as pool:
        found = list(pool.map(lambda item: item, items))
    assert found == items


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
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    message = (
        rf"^no Dask scheduler answers at {address or repr(address)} \({why}.*; give tcp://HOST"
    )
    before = {*threading.enumerate()}
    with pytest.raises(StreammimlError, match=message):
        open_pool(scheduler=address)
    assert not [each for each in threading.enumerate() if each not in before]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "it says nothing for 0.5 s"),
        (b"SSH-2.0-OpenSSH_9\r\n", "what answers there is something else"),
        (struct.pack("Q", 8) + b"garbage!", "total struct size too long"),
    ],
)
def test_scheduler__something_else_that_answers_is_told(said, why, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    message = rf"^no Dask scheduler answers at tcp://127.0.0.1:\d+ \({why}\); "
    with answering(said) as port, pytest.raises(StreammimlError, match=message):
        open_pool(scheduler=f"tcp://127.0.0.1:{port}")


def test_pool__takes_the_cores_there_are():
    assert open_pool().n_threads == platform.usable_cores()


@pytest.mark.slow
def test_local_cluster__errors_and_dead_workers_are_told():
    with open_pool(workers=2) as pool:
        shared = pool.share(1)
        found = list(islice(pool.map(square, count(), shared), 30))
        assert found == [item * item + 1 for item in range(30)]
        with pytest.raises(StreammimlError, match=r"^five is refused$"):
            list(pool.map(refuse, range(10), shared))
        message = (
            r"^a task ran out of memory \(.* 7 TiB\) \(the smallest has .*; lower --block-bytes"
        )
        with pytest.raises(StreammimlError, match=message):
            list(pool.map(hoard, [7], shared))
        with pytest.raises(
            StreammimlError, match=r"lack what they need \(No module named 'package3"
        ):
            list(pool.map(need, [3], shared))
        with pytest.raises(StreammimlError, match=r"run out of memory .*; lower --block-bytes"):
            list(pool.map(die, [1], shared))


@pytest.mark.slow
def test_local_cluster__goes_on_when_its_only_worker_was_killed():
    with open_pool(workers=1) as pool:
        results = pool.map(nap, range(20), pool.share(0.01))
        found = list(islice(results, 3))
        os.kill(found[0][1], signal.SIGKILL)
        found += results
    assert [item for item, _ in found] == list(range(20))
    assert len({pid for _, pid in found}) == 2


@pytest.mark.slow
def test_outside_cluster__a_worker_killed_in_the_middle_changes_nothing():
    with outside_cluster(2) as (address, workers), open_pool(scheduler=address) as pool:
        pool._client.wait_for_workers(2, timeout=30)
        results = pool.map(nap, range(40), pool.share(0.05))
        found = list(islice(results, 6))
        assert found[0][1] in [worker.pid for worker in workers]
        workers[0].send_signal(signal.SIGKILL)
        found += results
    assert [item for item, _ in found] == list(range(40))
    assert {pid for _, pid in found[-5:]} == {workers[1].pid}


@pytest.mark.slow
def test_outside_cluster__without_workers_is_told(monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 2)
    with outside_cluster(0) as (address, _):
        message = f"^the Dask scheduler at {address} has no workers; start some with dask worker"
        with pytest.raises(StreammimlError, match=message):
            open_pool(scheduler=address)


@pytest.mark.slow
def test_outside_cluster__of_which_no_worker_is_left_is_told(monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "LOST_SECONDS", 2)
    with outside_cluster(1) as (address, workers), open_pool(scheduler=address) as pool:
        results = pool.map(nap, range(40), pool.share(0.05))
        next(results)
        workers[0].kill()
        with pytest.raises(StreammimlError, match=r"^all workers of the Dask scheduler are gone;"):
            list(results)


@pytest.mark.slow
def test_outside_cluster__whose_scheduler_is_gone_is_told(monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.5)
    with outside_processes(1) as (address, head, _), open_pool(scheduler=address) as pool:
        results = pool.map(nap, range(400), pool.share(0.05))
        next(results)
        head.kill()
        with pytest.raises(StreammimlError, match=r"^the Dask scheduler is gone; start it again,"):
            list(results)


@pytest.mark.slow
def test_outside_cluster__a_result_that_died_with_its_worker_is_told(monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "LOST_SECONDS", 2)
    with outside_cluster(1) as (address, workers), open_pool(scheduler=address) as pool:
        future = pool._submit(square, 3, 0)
        pool._wait([future])
        workers[0].kill()
        workers[0].wait()
        with pytest.raises(StreammimlError, match=r"^all workers of the Dask scheduler are gone;"):
            pool._fetched(future)


@pytest.mark.slow
def test_outside_cluster__a_scheduler_that_hangs_is_told(monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "LOST_SECONDS", 2)
    with outside_processes(1) as (address, head, _), open_pool(scheduler=address) as pool:
        results = pool.map(nap, range(400), pool.share(0.05))
        next(results)
        head.send_signal(signal.SIGSTOP)
        with pytest.raises(StreammimlError, match=r"^the Dask scheduler is gone; start it again,"):
            list(results)


@pytest.mark.slow
def test_outside_cluster__an_error_of_a_task_is_not_taken_for_one_of_the_cluster():
    with outside_cluster(1) as (address, _), open_pool(scheduler=address) as pool:
        for kind in (OSError, TimeoutError):
            with pytest.raises(kind, match="of the disk"):
                list(pool.map(fail, [kind], "of the disk"))
        assert list(pool.map(square, [3], 0)) == [9]


@pytest.mark.slow
def test_local_cluster__workers_that_hold_much_go_on(monkeypatch):
    """Dask would pause them at .8 of what they may take, and never let them go on."""
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "PAUSED_SECONDS", 2)
    with open_pool(workers=1, worker_memory=500 << 20) as pool:
        os.kill(next(pool.map(nap, [0], 0))[1], signal.SIGKILL)
        # The one that comes after it is as the first.
        assert list(pool.map(fill, range(8), 430 << 20)) == list(range(8))


@pytest.mark.slow
def test_local_cluster__an_interrupt_that_python_lost_is_heard():
    with open_pool(workers=1) as pool:
        results = pool.map(square, count(), 0)
        assert next(results) == 0
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            list(results)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_local_cluster__workers_of_too_little_memory_to_begin_are_told(monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "LOST_SECONDS", 2)
    message = r"run out of memory \(the smallest has 1 MiB\); lower --block-bytes, or give"
    with (
        open_pool(workers=1, worker_memory="1MiB") as pool,
        pytest.raises(StreammimlError, match=message),
    ):
        list(pool.map(nap, [0], 20))


@pytest.mark.slow
def test_outside_cluster__workers_that_are_paused_for_good_are_told(monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "PAUSED_SECONDS", 2)
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 2)
    message = (
        r"^all workers are paused, as they are when they run out of memory "
        r"\(the smallest has 500 MiB\); lower --block-bytes, or give workers more memory$"
    )
    with outside_processes(1, "--memory-limit", "500MiB") as (address, _, _):
        with (
            open_pool(scheduler=address) as pool,
            pytest.raises(StreammimlError, match=message),
        ):
            list(pool.map(fill, range(8), 450 << 20))
        with pytest.raises(StreammimlError, match=r"^all workers are paused, as they are when"):
            open_pool(scheduler=address)


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", [True, False])
def test_outside_cluster__has_the_dashboard_that_there_is(dashboard):
    with outside_processes(1, dashboard=dashboard) as (address, _, _):
        with open_pool(scheduler=address) as pool:
            found = pool.dashboard
        assert (found is not None) == dashboard
