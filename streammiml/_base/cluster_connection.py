"""Connecting to a Dask scheduler: at an address, of a cluster object, or by a client."""

from __future__ import annotations

import sys
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from importlib import import_module
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from streammiml.errors import StreammimlError

CONNECT_SECONDS = 10
ACTIVE = "active"
"""Value of ``client=`` for the client that Dask uses by default."""
_TAKES = "client= takes a distributed.Client, a Dask cluster such as LocalCluster, or 'active'"


def default_client() -> Any:
    """The client that Dask uses in this thread by default; None if there is none."""
    # A client can only be there if its package is loaded.
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    with suppress(ValueError):
        return distributed.default_client()
    return None


def given_client(client: Any) -> Any:
    """Return the client or cluster that ``client=`` means, if it can be used from this thread."""
    if isinstance(client, str):
        if client != ACTIVE:
            raise StreammimlError(f"{_TAKES}, got {client!r}; scheduler= takes an address")
        client = default_client()
        if client is None:
            raise StreammimlError(
                "client='active' finds no Dask client; make one first (client = "
                "distributed.Client(…)), or give client= a client or a cluster"
            )
    _check_client(client)
    return client


def _check_client(client: Any) -> None:
    """Refuse what is neither a client nor a cluster, or cannot be used from this thread."""
    is_client = isinstance(client, import_module("distributed").Client)
    kind = "client" if is_client else "cluster"
    status = getattr(client, "status", None)
    status = getattr(status, "name", status)
    if status in ("closing", "closed", "failed"):
        raise StreammimlError(f"the {kind} of client= is closed; give one that is open")
    if not is_client and not isinstance(getattr(client, "scheduler_address", None), str):
        raise StreammimlError(f"{_TAKES}, got {type(client).__name__}; scheduler= takes an address")
    if getattr(client, "asynchronous", False):
        raise StreammimlError(
            f"the {kind} of client= is asynchronous, and this call would block its event loop; "
            "give a synchronous one, or call from another thread (asyncio.to_thread)"
        )


def connect(address: Any) -> Any:
    """Return a client of the scheduler at an address, or of a cluster object."""
    try:
        if isinstance(address, str):
            _check_scheduler(address)
        return import_module("distributed").Client(
            address, timeout=CONNECT_SECONDS, set_as_default=False, name="streammiml"
        )
    # Any program may answer at an address, with anything.
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, MemoryError):
            why = "another program answers there"
        elif isinstance(error, TimeoutError):
            why = f"no answer within {CONNECT_SECONDS} s"
        raise StreammimlError(
            f"no Dask scheduler answers at {address or repr(address)} ({why}); give "
            "tcp://HOST:PORT, start one with dask scheduler, or leave --scheduler out"
        ) from None


def _check_scheduler(address: str) -> None:
    """Ask the program at an address for its identity; refuse workers and nannies.

    Dask's own client would wait forever for a program that does not answer. For a malformed
    address the client would take twenty seconds to close.
    """
    distributed, core = import_module("distributed"), import_module("distributed.core")
    security = distributed.Security().get_connection_args("client")

    async def identify() -> Any:
        comm = await core.connect(address, timeout=CONNECT_SECONDS, **security)
        try:
            return await core.send_recv(comm, op="identity")
        finally:
            comm.abort()

    runner = distributed.utils.LoopRunner()
    runner.start()
    try:
        # One second longer than the timeout of the connection, whose error says more.
        identity = distributed.sync(runner.loop, identify, callback_timeout=CONNECT_SECONDS + 1)
    finally:
        with suppress(TimeoutError):
            runner.stop(timeout=1)
    if identity["type"] in ("Worker", "Nanny"):
        raise StreammimlError(f"a {identity['type'].lower()} does")


def find_dashboard(client: Any, services: Any) -> str | None:
    """Return the address of the dashboard; None if the scheduler has none.

    ``services`` are those in the identity of the scheduler. A scheduler without a dashboard still
    names a port, whose pages are all "not found".
    """
    link = client.dashboard_link
    if "dashboard" not in services or not link:
        return None
    try:
        build_opener(ProxyHandler({})).open(link, timeout=2).close()
    except HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            return None
    # The user may reach a dashboard that this machine cannot reach.
    except (OSError, ValueError, HTTPException):
        pass
    return str(link)


def how_to_start_workers(client: Any) -> str:
    """What starts workers of the scheduler of a client."""
    if client.cluster is not None:
        return (
            "start some with cluster.scale(2), or let the cluster start them when there is work, "
            "with cluster.adapt(minimum=0, maximum=2)"
        )
    address = client.scheduler.address
    if address.startswith(("tcp://", "tls://")):
        return f"start some with dask worker {address}"
    return "start some"
