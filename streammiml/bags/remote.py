"""A store under a URL: object stores and HTTP servers, through obstore.

Every request has a deadline, and failures that may pass are tried again for a number of seconds
(``STREAMMIML_STORE_SECONDS``, 60 by default); then there is an error that names the object.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from streammiml.bags.place import Unreadable
from streammiml.errors import StoreError, StreammimlError

SECONDS_VARIABLE = "STREAMMIML_STORE_SECONDS"
SECONDS = 60.0
# Sending has more time than fetching: uplinks are slow, and several pieces share one.
WRITE_FACTOR = 5
# What one request fetches at most, so that the deadline is one of bytes a second, not of a size.
PIECE = 8 << 20
SENT_AT_ONCE = 4

REQUEST = re.compile(
    r"Error performing (?P<method>[A-Z]+) (?P<server>\w+://[^/\s]+)(?P<path>\S*) in \S+?"
    r"(?:, after (?P<retries>\d+) retries.*?)?\s+- (?P<what>.*)",
    re.DOTALL,
)
KINDS = {"Timeout": "no answer in time", "TimedOut": "no answer in time"}
# Where a machine in a cloud asks for its own credentials, when the environment holds none.
CREDENTIAL_PATHS = (
    "/latest/api/token",
    "/latest/meta-data/",
    "/computeMetadata/",
    "/metadata/identity",
    "api-version=2019-08-01",
)
NO_CREDENTIALS = "no credentials were found"
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_SKIP_SIGNATURE=true)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (or GOOGLE_SKIP_SIGNATURE=true)",
    "az": "AZURE_STORAGE_ACCOUNT_KEY (or AZURE_SKIP_SIGNATURE=true)",
}
ENDPOINTS = (
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "GOOGLE_BASE_URL",
)
# The library's threads begin with its first request, and a fork does not carry them along.
_STARTED_IN: dict[str, int] = {}


class RemotePlace:
    """A prefix of an object store, or of an HTTP server (reading only)."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self.seconds = deadline()
        self._reading = object_store(self.name, self.seconds)
        self._writing = object_store(self.name, self.seconds * WRITE_FACTOR)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from the object, or raise Unreadable."""
        for at in range(0, len(buffer), PIECE):
            piece = buffer[at : at + PIECE]
            got = self._fetch(key, (offset + at, offset + at + len(piece)))
            if len(got) != len(piece):
                raise Unreadable(f"is short: {len(got)} bytes came of {len(piece)}")
            piece[:] = got

    def read_all(self, key: str) -> bytes:
        """The whole object, or Unreadable."""
        return bytes(self._fetch(key, None))

    def _fetch(self, key: str, span: tuple[int, int] | None) -> memoryview:
        begun = time.monotonic()
        with self._asking(f"{self.name}/{key} cannot be read", self.seconds):
            try:
                if span is None:
                    raw = obstore.get(self._reading, key).bytes()
                else:
                    raw = obstore.get_range(self._reading, key, start=span[0], end=span[1])
                return memoryview(raw).cast("B")
            except FileNotFoundError as error:
                raise Unreadable(_missing(error)) from error
            except (PermissionDeniedError, UnauthenticatedError):
                raise
            except Exception as error:
                if "NotPartial" in str(error) or "RangeNotSupported" in str(error):
                    raise StoreError(
                        f"{self.name}/{key} cannot be read: its server does not know ranges of "
                        "bytes; serve the store by one that does"
                    ) from error
                # What failed at once may be mended by one more try; else the time is used up.
                if time.monotonic() - begun < self.seconds / 4:
                    raise Unreadable(f"cannot be read: {_why(error)}") from error
                raise

    def size(self, key: str) -> int | None:
        """Bytes of the object; None when there is none."""
        with self._asking(f"{self.name}/{key} cannot be read", self.seconds):
            try:
                return int(obstore.head(self._reading, key)["size"])
            except FileNotFoundError:
                return None

    def files(self) -> list[str]:
        """Every object below the prefix, sorted."""
        return sorted(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Every object below the prefix, with its bytes."""
        if self.name.startswith(("http://", "https://")):
            raise StoreError(f"{self.name} cannot be listed: an http server has no list of files")
        with self._asking(f"{self.name} cannot be listed", self.seconds):
            pages = obstore.list(self._reading)
            return {str(entry["path"]): int(entry["size"]) for page in pages for entry in page}

    def forget(self) -> None:
        """Nothing is held open."""

    def put(self, key: str, source: Path) -> None:
        """Write a file as an object, whole or not at all."""
        with self._asking(f"{self.name}/{key} cannot be written", self.seconds * WRITE_FACTOR):
            obstore.put(self._writing, key, source, chunk_size=PIECE, max_concurrency=SENT_AT_ONCE)

    def create(self, key: str, content: bytes) -> bytes:
        """Write an object unless there is one; returns what is there then, ours or the other."""
        begun = time.monotonic()
        with self._asking(f"{self.name}/{key} cannot be written", self.seconds * WRITE_FACTOR):
            # The library does not try this again, since it may have been done; we can tell.
            for pause in (0.1, 0.5, 2.0, None):
                try:
                    obstore.put(self._writing, key, content, mode="create", use_multipart=False)
                    break
                except AlreadyExistsError:
                    return bytes(obstore.get(self._reading, key).bytes())
                except (FileNotFoundError, PermissionDeniedError, UnauthenticatedError):
                    raise
                except Exception:
                    if pause is None or time.monotonic() - begun > self.seconds:
                        raise
                    time.sleep(pause)
            return content

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there is no error."""
        for key in keys:
            with self._asking(f"{self.name}/{key} cannot be removed", self.seconds * WRITE_FACTOR):
                try:
                    obstore.delete(self._writing, key)
                except FileNotFoundError:
                    continue

    @contextmanager
    def _asking(self, failure: str, seconds: float) -> Iterator[None]:
        """Turn what the library raises into one line that says what to do."""
        if _STARTED_IN.setdefault("process", os.getpid()) != os.getpid():
            raise StoreError(
                f"{failure}: this process was forked from one that used a URL before, and would "
                "hang; start processes by spawn or forkserver"
            )
        begun = time.monotonic()
        try:
            yield
        except (Unreadable, StreammimlError):
            raise
        except Exception as error:
            why = _why(error)
            if why == NO_CREDENTIALS:
                why += f"; set {CREDENTIALS.get(self.name[:2], 'them')}"
            elif isinstance(error, PermissionDeniedError | UnauthenticatedError):
                why += "; check the credentials"
            elif time.monotonic() - begun > seconds / 4:
                failure += f" within {seconds:g} s"
                why += f"; check address and network, or set {SECONDS_VARIABLE} to wait longer"
            raise StoreError(f"{failure}: {why}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePlace, (self.name,)


def deadline() -> float:
    """Seconds that fetching one piece may take, tries again included."""
    text = os.environ.get(SECONDS_VARIABLE, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise StreammimlError(f"{SECONDS_VARIABLE} must be a number of seconds, got {text!r}")
    return seconds


def object_store(url: str, seconds: float) -> Any:
    """The client for a URL; whatever happens, it answers or fails within ``seconds``, about."""

    def share(of: float) -> timedelta:
        return timedelta(seconds=of * seconds)

    # The last try begins at 0.6 of the time or before, after a pause of at most 0.1.
    try:
        return from_url(
            url,
            client_options={
                "timeout": share(0.3),
                "connect_timeout": share(0.15),
                "allow_http": _plain_http(url),
            },
            retry_config={
                "max_retries": 1000,
                "retry_timeout": share(0.6),
                "backoff": {"init_backoff": share(0.005), "max_backoff": share(0.1), "base": 2},
            },
        )
    except Exception as error:
        raise StreammimlError(f"{url} cannot be opened: {_why(error)}") from error


def _plain_http(url: str) -> bool:
    """Whether a connection may go without TLS: only where the user says http, or allows it."""
    said = [url, *(os.environ.get(name, "") for name in ENDPOINTS)]
    allowed = [os.environ.get(f"{cloud}_ALLOW_HTTP", "") for cloud in ("AWS", "AZURE", "GOOGLE")]
    return any(text.startswith("http://") for text in said) or any(
        text.lower() in ("1", "true") for text in allowed
    )


def _missing(error: Exception) -> str:
    """Why there is no such object: as a rule it is just missing, but the bucket may be, too."""
    text = str(error)
    return "is missing: there is no such bucket" if "NoSuchBucket" in text else "is missing"


def _why(error: BaseException) -> str:
    """One short line out of an error of the library, which says everything it knows on many."""
    text, _, dump = str(error).partition("\n\nDebug source:")
    found = REQUEST.search(text)
    if found and any(mark in found["path"] for mark in CREDENTIAL_PATHS):
        return NO_CREDENTIALS
    if "Account must be specified" in text:
        return "no account is named: set AZURE_STORAGE_ACCOUNT_NAME"
    what = found["what"] if found else text
    said = re.search(r"<Message>(.*?)</Message>", what, re.DOTALL)
    status = re.search(r"status code: (\d+[^:<]*)", what)
    if said or status:
        parts = [status[1].strip() if status else "", said[1].strip() if said else ""]
        what = ", ".join(part for part in parts if part)
    elif causes := re.findall(r'message: "([^"]+)"', dump):
        what = causes[-1]
    elif kinds := [text for kind, text in KINDS.items() if kind in dump]:
        what = kinds[0]
    if found:
        tries = f" after {int(found['retries']) + 1} tries" if found["retries"] else ""
        what = f"{found['method']} {found['server']}: {what}{tries}"
    return " ".join(what.split())[:300] or type(error).__name__
