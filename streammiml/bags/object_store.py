"""A store under a URL: object stores and HTTP servers, through obstore.

Every request has a deadline. Transient failures are retried for a number of seconds
(``STREAMMIML_STORE_SECONDS``, 60 by default); then an error that names the object is raised.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import from_url

from streammiml.bags.file_errors import MissingFile, Unreadable
from streammiml.errors import StoreError, StreammimlError

SECONDS_VARIABLE = "STREAMMIML_STORE_SECONDS"
SECONDS = 60.0
FIRST_FACTOR = 0.25
"""Share of these seconds in which the first request must get a connection."""
# An upload may take this many times longer than a download: uplinks are slow, and several pieces
# are uploaded at the same time.
WRITE_FACTOR = 5
# Limit in bytes of one request, so that large objects do not need a longer deadline.
PIECE = 8 << 20
UPLOADS_AT_ONCE = 4

# The line of an obstore error that describes the failed request.
REQUEST = re.compile(
    r"Error performing (?P<method>[A-Z]+) (?P<server>\w+://[^/\s]+)(?P<path>\S*) in \S+?"
    r"(?:, after (?P<retries>\d+) retries.*?)?\s+- (?P<what>.*)",
    re.DOTALL,
)
# Words for kinds of errors in the debug output of obstore.
KINDS = {"Timeout": "no answer in time", "TimedOut": "no answer in time"}
# Paths from which a cloud machine requests credentials if the environment has none.
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
# obstore starts its threads with the first request; a forked process does not inherit threads.
_STARTED_IN: dict[str, int] = {}


class ObjectStatus(NamedTuple):
    """Size and version of an object."""

    size: int
    changed: int
    """Seconds since 1970 when the object was last written; 0 if the server does not say."""
    tag: str
    """Changes with the content (ETag); empty if the server gives none."""


class ObjectFolder:
    """A prefix of an object store, or of an HTTP server (reading only)."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self.seconds = deadline()
        self._first = client_for(self.name, self.seconds, first=True)
        self._later = client_for(self.name, self.seconds)
        self._has_answered = False
        self._writing = client_for(self.name, self.seconds * WRITE_FACTOR)

    @property
    def _reading(self) -> Any:
        """The client for reading; until the server has answered, one that gives up sooner."""
        return self._later if self._has_answered else self._first

    @property
    def _patience(self) -> float:
        """Seconds in which a request ends if no connection is made."""
        return self.seconds if self._has_answered else self.seconds * FIRST_FACTOR

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Read from ``offset`` until the buffer is full; raise Unreadable if that fails."""
        for at in range(0, len(buffer), PIECE):
            piece = buffer[at : at + PIECE]
            raw = self._fetch(key, (offset + at, offset + at + len(piece)))
            if len(raw) != len(piece):
                raise Unreadable(f"is short: got {len(raw)} bytes, expected {len(piece)}")
            piece[:] = raw

    def read_all(self, key: str) -> bytes:
        """Read the whole object; raise Unreadable if that fails."""
        return bytes(self._fetch(key, None))

    def _fetch(self, key: str, span: tuple[int, int] | None) -> memoryview:
        """Read the bytes of a half-open range, or the whole object if ``span`` is None."""
        begun, patience = time.monotonic(), self._patience
        with self._explained(f"{self.name}/{key} cannot be read", patience):
            try:
                if span is None:
                    raw = obstore.get(self._reading, key).bytes()
                else:
                    raw = obstore.get_range(self._reading, key, start=span[0], end=span[1])
                return memoryview(raw).cast("B")
            except FileNotFoundError as error:
                raise _missing(error) from error
            except (PermissionDeniedError, UnauthenticatedError):
                raise
            except Exception as error:
                if _lacks_ranges(error):
                    raise StoreError(
                        f"{self.name}/{key} cannot be read: its server does not support range "
                        "requests; use a server that does"
                    ) from error
                # The caller retries Unreadable. A request that failed late is not retried, because
                # its time is used up.
                if time.monotonic() - begun < patience / 4:
                    raise Unreadable(f"cannot be read: {_why(error)}") from error
                raise

    def size(self, key: str) -> int | None:
        """Size of the object in bytes; None if there is no such object."""
        status = self.status(key)
        return None if status is None else status.size

    def status(self, key: str) -> ObjectStatus | None:
        """Size and version of the object; None if there is no such object."""
        with self._explained(f"{self.name}/{key} cannot be read", self._patience):
            try:
                return _status(obstore.head(self._reading, key))
            except FileNotFoundError:
                return None

    def files(self) -> list[str]:
        """Keys of all objects below the prefix, sorted."""
        return sorted(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Size in bytes of each object below the prefix, by key."""
        return {key: status.size for key, status in self.statuses().items()}

    def statuses(self) -> dict[str, ObjectStatus]:
        """Size and version of each object below the prefix, by key."""
        if self.name.startswith(("http://", "https://")):
            raise StoreError(f"{self.name} cannot be listed: an http server has no list of files")
        with self._explained(f"{self.name} cannot be listed", self._patience):
            pages = obstore.list(self._reading)
            return {str(entry["path"]): _status(entry) for page in pages for entry in page}

    def forget(self) -> None:
        """Do nothing: no connection belongs to one object."""

    def put(self, key: str, source: Path) -> None:
        """Upload a file as one object, completely or not at all."""
        with self._explained(f"{self.name}/{key} cannot be written", self.seconds * WRITE_FACTOR):
            obstore.put(
                self._writing, key, source, chunk_size=PIECE, max_concurrency=UPLOADS_AT_ONCE
            )

    def create(self, key: str, content: bytes) -> bytes:
        """Write an object unless it exists; return the content of the object afterwards."""
        begun = time.monotonic()
        with self._explained(f"{self.name}/{key} cannot be written", self.seconds * WRITE_FACTOR):
            # obstore does not retry a conditional write, because the failed attempt may have
            # written the object. We can retry, because the caller compares contents.
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
        """Remove objects; keys of missing objects are ignored."""
        for key in keys:
            with self._explained(
                f"{self.name}/{key} cannot be removed", self.seconds * WRITE_FACTOR
            ):
                try:
                    obstore.delete(self._writing, key)
                except FileNotFoundError:
                    continue

    @contextmanager
    def _explained(self, failure: str, seconds: float) -> Iterator[None]:
        """Turn an error of obstore into a StoreError that says what to do."""
        if _STARTED_IN.setdefault("process", os.getpid()) != os.getpid():
            raise StoreError(
                f"{failure}: this process was forked from one that used a URL before, and would "
                "hang; start processes with spawn or forkserver"
            )
        begun = time.monotonic()
        try:
            yield
            self._has_answered = True
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
        return ObjectFolder, (self.name,)


def deadline() -> float:
    """Seconds that one request may take, retries included."""
    text = os.environ.get(SECONDS_VARIABLE, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise StreammimlError(f"{SECONDS_VARIABLE} must be a number of seconds, got {text!r}")
    return seconds


def client_for(url: str, seconds: float, *, first: bool = False) -> Any:
    """Make an obstore client whose requests end within about ``seconds``, whatever happens.

    A client for the ``first`` request gives up after about a quarter of them if it gets no
    connection: the address may be wrong.
    """
    factor = FIRST_FACTOR if first else 1.0

    def share(fraction: float, factor: float = 1.0) -> timedelta:
        return timedelta(seconds=fraction * factor * seconds)

    # The last attempt begins before 0.6 of the time is over, after a pause of at most 0.1, and
    # takes at most 0.3; without a connection, half as much.
    try:
        return from_url(
            url,
            client_options={
                "timeout": share(0.3),
                "connect_timeout": share(0.15, factor),
                "allow_http": _plain_http(url),
            },
            retry_config={
                "max_retries": 1000,
                "retry_timeout": share(0.6, factor),
                "backoff": {
                    "init_backoff": share(0.005, factor),
                    "max_backoff": share(0.1, factor),
                    "base": 2,
                },
            },
        )
    except Exception as error:
        raise StreammimlError(f"{url} cannot be opened: {_why(error)}") from error


def _status(entry: Any) -> ObjectStatus:
    changed = entry.get("last_modified")
    tag = str(entry.get("e_tag") or "")
    return ObjectStatus(int(entry["size"]), int(changed.timestamp()) if changed else 0, tag)


def _plain_http(url: str) -> bool:
    """Tell whether the user allows connections without TLS, by an http URL or a variable."""
    urls = [url, *(os.environ.get(name, "") for name in ENDPOINTS)]
    allowed = [os.environ.get(f"{cloud}_ALLOW_HTTP", "") for cloud in ("AWS", "AZURE", "GOOGLE")]
    return any(text.startswith("http://") for text in urls) or any(
        text.lower() in ("1", "true") for text in allowed
    )


def _missing(error: FileNotFoundError) -> Unreadable:
    """Tell a missing object from a missing bucket, for which obstore has no exception class."""
    if "NoSuchBucket" in str(error):
        return Unreadable("is missing: there is no such bucket")
    return MissingFile()


def _lacks_ranges(error: Exception) -> bool:
    """Tell whether a server ignored the requested byte range.

    For HTTP servers, obstore 0.12 raises NotSupportedError. For object stores it raises
    GenericError, and only the debug output in its message names the cause.
    """
    if not isinstance(error, GenericError):
        return isinstance(error, NotSupportedError)
    return any(cause in str(error) for cause in ("NotPartial", "RangeNotSupported"))


def _why(error: BaseException) -> str:
    """Shorten the message of an obstore error, which has many lines, to one line."""
    text, _, dump = str(error).partition("\n\nDebug source:")
    request = REQUEST.search(text)
    if request and any(path in request["path"] for path in CREDENTIAL_PATHS):
        return NO_CREDENTIALS
    if "Account must be specified" in text:
        return "no account is named: set AZURE_STORAGE_ACCOUNT_NAME"
    cause = request["what"] if request else text
    message = re.search(r"<Message>(.*?)</Message>", cause, re.DOTALL)
    status = re.search(r"status code: (\d+[^:<]*)", cause)
    if message or status:
        parts = [status[1].strip() if status else "", message[1].strip() if message else ""]
        cause = ", ".join(part for part in parts if part)
    elif causes := re.findall(r'message: "([^"]+)"', dump):
        cause = causes[-1]
    elif explanations := [words for kind, words in KINDS.items() if kind in dump]:
        cause = explanations[0]
    if request:
        tries = f" after {int(request['retries']) + 1} tries" if request["retries"] else ""
        cause = f"{request['method']} {request['server']}: {cause}{tries}"
    return " ".join(cause.split())[:300] or type(error).__name__
