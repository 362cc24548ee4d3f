import errno
import os
import signal
import socket
import ssl
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from itertools import count, islice
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import distributed
import pytest

from streammiml._base import cluster_pool, cluster_results, local_cluster
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.errors import StreammimlError
from tests._base.pool_tasks import die, fill, hoard, nap, need, refuse, square
from tests.clusters import listening_addresses


def test_local_cluster__too_few_open_files_are_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(local_cluster, "open_files", lambda: 6)
    monkeypatch.setattr(local_cluster, "allow_open_files", lambda _: 32)
    message = (
        r"^--workers 2 needs about 50 open files, and the hard limit of this process is 32; raise "
        r"it \(ulimit -n 1024 in a new shell\), give fewer workers, or leave --workers out$"
    )
    with pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(workers=2))


def test_local_cluster__one_that_cannot_be_started_is_told_with_the_first_cause(monkeypatch):
    def start(**_):
        try:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        except OSError as error:
            raise RuntimeError("Nanny failed to start.") from error

    monkeypatch.setattr(distributed, "LocalCluster", start)
    message = (
        r"^--workers 2 cannot be started \(\[Errno 12\] Cannot allocate memory\); raise the limits "
        r"on memory, processes and open files \(ulimit -a shows them\), give fewer workers, or"
    )
    with pytest.raises(StreammimlError, match=message):
        open_pool(PoolOptions(workers=2))


@pytest.mark.slow
def test_local_cluster__errors_and_dead_workers_are_told():
    with open_pool(PoolOptions(workers=2)) as pool:
        shared = pool.share(1)
        results = list(islice(pool.map(square, count(), shared), 30))
        assert results == [item * item + 1 for item in range(30)]
        with pytest.raises(StreammimlError, match=r"^five is refused$"):
            list(pool.map(refuse, range(10), shared))
        message = (
            r"^a task ran out of memory \(.* 7 TiB\) \(the smallest has .*; lower --block-bytes"
        )
        with pytest.raises(StreammimlError, match=message):
            list(pool.map(hoard, [7], shared))
        with pytest.raises(
            StreammimlError, match=r"cannot import what tasks need \(No module named 'package3"
        ):
            list(pool.map(need, [3], shared))
        message = (
            r"^a task was given up because the 4 workers that ran it died; if they ran out of "
            r"memory \(the smallest has .*\), lower --block-bytes, or give workers more memory; if "
            r"they were ended from outside \(preempted\), run the same command: finished"
        )
        with pytest.raises(StreammimlError, match=message):
            list(pool.map(die, [1], shared))


def is_gone(process_id):
    """Whether a process ends within a minute."""
    for _ in range(600):
        try:
            os.kill(process_id, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_local_cluster__closes_while_dask_restarts_a_worker(monkeypatch):
    """Dask's nanny cannot kill a process that has not started, and says so by an AssertionError."""
    with open_pool(PoolOptions(workers=2)) as pool:
        [answer] = pool.map(nap, [0], pool.share(0.01))
        cluster = pool._client.cluster
        calls = []

        async def cannot_kill(nanny, **_):
            calls.append(nanny)
            raise AssertionError("can only join a started process")

        monkeypatch.setattr(distributed.Nanny, "kill", cannot_kill)
    assert calls
    assert cluster.status.name == "closed"
    assert cluster.scheduler.status.name == "closed"
    assert is_gone(answer[1])


@pytest.mark.slow
def test_local_cluster__goes_on_when_its_only_worker_was_killed():
    with open_pool(PoolOptions(workers=1)) as pool:
        results = pool.map(nap, range(20), pool.share(0.01))
        answers = list(islice(results, 3))
        os.kill(answers[0][1], signal.SIGKILL)
        answers += results
    assert [item for item, _ in answers] == list(range(20))
    assert len({pid for _, pid in answers}) == 2


def run_as_stranger(address):
    """Let a scheduler run code for a client that knows nothing but its address."""
    with distributed.Client(address, timeout=5, set_as_default=False) as stranger:
        return stranger.submit(os.getpid).result(timeout=30)


def greeting(address, security, folder):
    """The first bytes that a server sends to a client that trusts any server.

    ``security`` has the certificate that the client shows, or is None.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if security is not None:
        pem = folder / "certificate.pem"
        pem.write_text(security.tls_client_key + security.tls_client_cert)
        context.load_cert_chain(pem)
    host, port = address.partition("://")[2].split(":")
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return connection.recv(100)


@pytest.mark.slow
def test_local_cluster__listens_on_loopback_only_and_shows_nothing():
    with open_pool(PoolOptions(workers=2)) as pool:
        assert list(pool.map(square, range(4), 0)) == [0, 1, 4, 9]
        addresses = listening_addresses()
        # Scheduler, two nannies and two workers, and the pages of scheduler and workers.
        assert len(addresses) >= 5
        assert not [str(host) for host, _ in addresses if not host.is_loopback]
        assert pool.dashboard is None
        for _, port in addresses:
            for page in ("", "status", "info/main/workers.html", "json/counts.json", "metrics"):
                # What speaks TLS closes the connection.
                with pytest.raises((OSError, HTTPException)) as refusal:
                    build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/{page}", None, 5)
                if isinstance(refusal.value, HTTPError):
                    assert refusal.value.code == HTTPStatus.NOT_FOUND


@pytest.mark.slow
def test_local_cluster__refuses_clients_without_its_certificate(tmp_path):
    with open_pool(PoolOptions(workers=1)) as pool:
        scheduler = pool._client.scheduler.address
        with pytest.raises(OSError, match=r"(?i)connect|closed"):
            run_as_stranger(scheduler.replace("tls://", "tcp://"))
        [(worker, facts)] = pool._ask_scheduler("identity", n_workers=-1)["workers"].items()
        for address in (scheduler, worker, facts["nanny"]):
            for security in (None, distributed.Security.temporary()):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    greeting(address, security, tmp_path)
            assert greeting(address, pool._client.security, tmp_path)
        assert list(pool.map(square, range(4), 0)) == [0, 1, 4, 9]


@pytest.mark.slow
def test_local_cluster__without_certificates_would_run_code_for_strangers(monkeypatch):
    """The control of the test above."""
    monkeypatch.setattr(distributed.Security, "temporary", distributed.Security)
    with open_pool(PoolOptions(workers=1)) as pool:
        [(_, worker)] = pool.map(nap, [0], 0)
        assert run_as_stranger(pool._client.scheduler.address) == worker


@pytest.mark.slow
def test_local_cluster__workers_that_hold_much_go_on(monkeypatch):
    """Dask would pause them at .8 of what they may take, and never let them go on."""
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster_pool, "PAUSED_SECONDS", 2)
    with open_pool(PoolOptions(workers=1, worker_memory=500 << 20)) as pool:
        os.kill(next(pool.map(nap, [0], 0))[1], signal.SIGKILL)
        # The one that comes after it is as the first.
        assert list(pool.map(fill, range(8), 430 << 20)) == list(range(8))


@pytest.mark.slow
def test_local_cluster__an_interrupt_that_python_lost_is_heard():
    with open_pool(PoolOptions(workers=1)) as pool:
        results = pool.map(square, count(), 0)
        assert next(results) == 0
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            list(results)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_local_cluster__workers_of_too_little_memory_to_begin_are_told(monkeypatch):
    monkeypatch.setattr(cluster_results, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(cluster_pool, "LOST_SECONDS", 2)
    message = r"run out of memory \(the smallest has 1 MiB\); lower --block-bytes, or give"
    with (
        open_pool(PoolOptions(workers=1, worker_memory="1MiB")) as pool,
        pytest.raises(StreammimlError, match=message),
    ):
        list(pool.map(nap, [0], 20))
