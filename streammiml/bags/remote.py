"""A store under a URL: object stores and HTTP servers, through obstore."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.store import from_url

from streammiml.bags.place import Unreadable, reason
from streammiml.errors import StoreError, StreammimlError

REQUEST_SECONDS = 30
RETRY_SECONDS = 60


class RemotePlace:
    """A prefix of an object store, or of an HTTP server (reading only).

    Every request has a deadline; failures that may pass are tried again for a number of seconds.
    """

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._store = _object_store(self.name)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from the object, or raise Unreadable."""
        try:
            got = obstore.get_range(self._store, key, start=offset, length=len(buffer))
        except Exception as error:
            raise Unreadable(reason(error)) from error
        if len(got) != len(buffer):
            raise Unreadable(f"is short: {len(got)} bytes came of {len(buffer)}")
        buffer[:] = memoryview(got).cast("B")

    def read_all(self, key: str) -> bytes:
        """The whole object, or Unreadable."""
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except Exception as error:
            raise Unreadable(reason(error)) from error

    def size(self, key: str) -> int | None:
        """Bytes of the object; None when there is none."""
        try:
            return int(obstore.head(self._store, key)["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise StoreError(f"{self.name}/{key} {reason(error)}") from error

    def files(self) -> list[str]:
        """Every object below the prefix, sorted."""
        try:
            return sorted(entry["path"] for page in obstore.list(self._store) for entry in page)
        except Exception as error:
            raise StoreError(f"{self.name} cannot be listed: {reason(error)}") from error

    def forget(self) -> None:
        """Nothing is held open."""

    def put(self, key: str, source: Path | bytes) -> None:
        """Write an object whole."""
        try:
            obstore.put(self._store, key, source)
        except Exception as error:
            raise StoreError(f"{self.name}/{key} cannot be written: {reason(error)}") from error

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects that are there."""
        doomed = list(keys)
        if doomed:
            obstore.delete(self._store, doomed)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePlace, (self.name,)


def _object_store(url: str) -> Any:
    # Plain HTTP is refused by default; whoever writes http:// (or sets such an endpoint) means it.
    endpoint = os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", url))
    try:
        return from_url(
            url,
            client_options={
                "timeout": timedelta(seconds=REQUEST_SECONDS),
                "connect_timeout": timedelta(seconds=REQUEST_SECONDS / 3),
                "allow_http": endpoint.startswith("http://"),
            },
            retry_config={"max_retries": 8, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        )
    except Exception as error:
        raise StreammimlError(f"{url} cannot be opened: {reason(error)}") from error
