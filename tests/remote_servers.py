"""Servers of the tests, all on loopback: an S3 server, and an HTTP server that knows ranges."""

from __future__ import annotations

import logging
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from moto.server import ThreadedMotoServer

BUCKET = "corpora"
# Nothing may look for credentials outside: these are the places where clients would ask.
NOWHERE = {
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
    "GCE_METADATA_HOST": "127.0.0.1:9",
    "GCE_METADATA_ROOT": "127.0.0.1:9",
    "GCE_METADATA_IP": "127.0.0.1:9",
    "AZURE_MSI_ENDPOINT": "http://127.0.0.1:9",
    "IDENTITY_ENDPOINT": "http://127.0.0.1:9",
}


def s3_settings(endpoint: str, seconds: float = 10) -> dict[str, str]:
    """What a user would put into the environment to work with a server of his own."""
    return {
        **NOWHERE,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "STREAMMIML_STORE_SECONDS": str(seconds),
    }


@contextmanager
def s3_server() -> Iterator[str]:
    """A server of the S3 protocol with an empty bucket; gives its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    try:
        urllib.request.urlopen(
            urllib.request.Request(f"{address}/{BUCKET}", method="PUT"), timeout=10
        ).close()
        yield address
    finally:
        server.stop()


class RangeHandler(SimpleHTTPRequestHandler):
    """Files of a folder, whole or by a range of bytes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        raw = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, len(raw))) if asked else (0, len(raw))
        if begin >= end and asked:
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(raw)}")
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        self.wfile.write(raw[begin:end])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class WholeHandler(SimpleHTTPRequestHandler):
    """Files of a folder, always whole: as ``python -m http.server`` does it."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def http_server(folder: Path, *, ranges: bool = True) -> Iterator[str]:
    """A plain HTTP server of a folder; gives its address."""
    handler = partial(RangeHandler if ranges else WholeHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
