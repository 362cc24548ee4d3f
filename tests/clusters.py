"""Dask clusters that run as processes of their own."""

import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from ipaddress import ip_address

import distributed
import psutil


@contextmanager
def inside_cluster(n_workers=2, **options):
    """A cluster object with workers of one thread each, in this process."""
    with distributed.LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=False,
        dashboard_address=":0",
        **options,
    ) as cluster:
        yield cluster


@contextmanager
def inside_client():
    """A client of two workers in this process."""
    with (
        inside_cluster() as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def outside_cluster(n_workers):
    """The address of a scheduler, and its workers, none of them forked from this process."""
    with outside_processes(n_workers) as (address, _, workers):
        yield address, workers


@contextmanager
def outside_processes(n_workers, *options, dashboard=True, **environment):
    """The address of a scheduler, its process, and those of its workers.

    ``options`` and ``environment`` are for workers.
    """
    dask = [sys.executable, "-m", "dask"]
    page = ["--dashboard-address", ":0"] if dashboard else ["--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    head = subprocess.Popen(
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", *page],
        **quiet,
    )
    started = [head]
    try:
        for line in head.stderr:
            match = re.search(r"Scheduler at:\s+(tcp://\S+)", line)
            if match:
                break
        words = [*dask, "worker", match[1], "--nthreads", "1", "--no-dashboard", "--no-nanny"]
        quiet |= {"stderr": subprocess.DEVNULL, "env": {**os.environ, **environment}}
        started += [subprocess.Popen([*words, *options], **quiet) for _ in range(n_workers)]
        yield match[1], head, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()
        head.stderr.close()


@contextmanager
def answering(answer):
    """The port of a server that sends ``answer`` to each client, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = []

        def listen():
            while True:
                try:
                    heard.append(server.accept()[0])
                    heard[-1].sendall(answer)
                except OSError:
                    return

        threading.Thread(target=listen, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for connection in heard:
        connection.close()


def listening_addresses():
    """(IP address, port) of every TCP socket on which this process or one it started listens."""
    own = psutil.Process()
    sockets = [
        socket_of
        for process in (own, *own.children(recursive=True))
        for socket_of in process.net_connections("tcp")
    ]
    return [
        (ip_address(socket_of.laddr.ip), socket_of.laddr.port)
        for socket_of in sockets
        if socket_of.status == psutil.CONN_LISTEN
    ]
