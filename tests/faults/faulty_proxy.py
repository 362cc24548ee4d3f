"""A proxy on loopback that passes requests on to a server, and goes wrong when it is told to."""

from __future__ import annotations

import http.client
import math
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import unquote, urlsplit

FOREVER = math.inf


@dataclass
class Fault:
    """What goes wrong with requests whose path ends in ``key``, and how many times."""

    kind: str
    """A status (``503``), or ``reset``; ``lost``: done, but the answer is reset; ``hang``;
    ``trickle``: a byte now and then; ``cut``: half of the body, then closed; ``short``: half of
    it and said to be all; ``flip``: one bit."""
    key: str
    times: float = 1
    methods: tuple[str, ...] = ("GET",)
    hits: int = 0


@dataclass
class Proxy:
    """The running proxy: its address, the fault to show, and what was asked of it."""

    address: str
    fault: Fault | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)
    stopped: Event = field(default_factory=Event)

    def calm(self) -> None:
        """No fault any more; what hangs is let go."""
        self.fault = None
        self.stopped.set()
        self.stopped = Event()

    def due(self, method: str, path: str) -> str:
        """The fault that this request meets; counted."""
        with self.lock:
            self.asked.append((method, path))
            fault = self.fault
            if fault is None or method not in fault.methods or not path.endswith(fault.key):
                return ""
            fault.hits += 1
            return fault.kind if fault.hits <= fault.times else ""


def _handler(proxy: Proxy, target: str) -> type[BaseHTTPRequestHandler]:
    where = urlsplit(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def pass_on(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kind = proxy.due(self.command, unquote(urlsplit(self.path).path))
            if kind == "reset":
                self.reset()
                return
            if kind == "hang":
                proxy.stopped.wait(60)
                self.close_connection = True
                return
            if kind.isdigit():
                self.answer(int(kind), [], b"<Error><Message>told to</Message></Error>")
                return
            upstream = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
            try:
                upstream.request(self.command, self.path, sent, dict(self.headers))
                got = upstream.getresponse()
                body = got.read()
                if kind == "lost":
                    self.reset()
                else:
                    self.answer(got.status, got.getheaders(), body, kind)
            finally:
                upstream.close()

        def reset(self) -> None:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()

        def answer(
            self, status: int, headers: list[tuple[str, str]], body: bytes, kind: str = ""
        ) -> None:
            self.send_response_only(status)
            length = len(body)
            for name, value in headers:
                if name.lower() == "content-length":
                    length = int(value)
                elif name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            if kind == "flip":
                middle = len(body) // 2
                body = body[:middle] + bytes([body[middle] ^ 4]) + body[middle + 1 :]
            elif kind == "short":
                body = body[: len(body) // 2]
                length = len(body)
            elif kind == "cut":
                body = body[: len(body) // 2]
                self.close_connection = True
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if kind == "trickle":
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    if proxy.stopped.wait(0.2):
                        break
            elif self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that gave up is part of the play."""


@contextmanager
def faulty_proxy(target: str) -> Iterator[Proxy]:
    """A proxy in front of the server at ``target``; without a fault it changes nothing."""
    proxy = Proxy("")
    server = _Server(("127.0.0.1", 0), _handler(proxy, target))
    proxy.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
