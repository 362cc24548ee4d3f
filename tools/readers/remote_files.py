"""Files of a source under a URL, read by ranges: as paths that open, and as files that seek.

``source_path`` gives a ``UrlPath`` for a URL and a plain ``Path`` for anything else, so that most
readers need not know the difference. A range is tried twice; requests have deadlines and retries,
as those of stores.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from pathlib import Path, PosixPath
from typing import Any, Protocol, cast

import pyarrow as pa

from streammiml.bags.file_errors import MissingFile, Unreadable
from streammiml.bags.location import SCHEMES, open_location
from streammiml.errors import StoreError
from streammiml_tools.readers.base import SourceError

LEAST_WINDOW, MOST_WINDOW = 64 << 10, 8 << 20
"""Bytes that one request fetches: few after a seek, and twice as many with each request that goes
on where the last one ended."""
CACHE_BLOCK, CACHE_BLOCKS = 256 << 10, 32
"""Size of a block of a file that is read at random positions, and how many blocks are kept."""
STARTS = tuple(scheme.removesuffix("/") for scheme in SCHEMES)
"""How a URL begins as a ``Path``, which joins two slashes into one."""
FOLDERS = 64
"""Folders of URLs whose clients are kept."""
MOST_KNOWN = 1 << 16
"""Files whose size and version are kept."""
_KNOWN: dict[str, Status | None] = {}
_SESSION: dict[str, str] = {}


class Status(Protocol):
    """Size and version of a file under a URL."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def changed(self) -> int: ...  # noqa: D102
    @property
    def tag(self) -> str: ...  # noqa: D102


class _Folder(Protocol):
    """The part of an ``ObjectFolder`` that is used here."""

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None: ...
    def status(self, key: str) -> Status | None: ...
    def statuses(self) -> dict[str, Status]: ...


class UrlPath(PosixPath):
    """A file under a URL. It has the methods of ``Path`` that readers of streams use."""

    def __str__(self) -> str:
        return url_of(super().__str__())

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return UrlPath, (str(self),)

    def absolute(self) -> UrlPath:
        """Return the path itself: a URL is absolute."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Size and time of change; the first answer is kept until ``forget_files``."""
        del follow_symlinks
        found = _known_status(str(self))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", str(self))
        times = (found.changed,) * 3
        return os.stat_result(
            (stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, found.size, *times),
            {"st_mtime_ns": found.changed * 10**9},
        )

    def open(self, *_: object, **__: object) -> Any:
        """Open the file for reading bytes."""
        return RemoteFile(str(self), self.stat().st_size)

    def is_file(self, **_: object) -> bool:
        """Whether there is such a file."""
        return _known_status(str(self)) is not None

    def exists(self, **_: object) -> bool:
        """Whether there is such a file."""
        return self.is_file()

    def is_dir(self, **_: object) -> bool:
        """Whether it is a folder, which a URL of a file never is."""
        return False


class FetchedFile(UrlPath):
    """A file under a URL whose content is in memory, so that it is read without requests."""

    content: bytes | None = None

    def open(self, *_: object, **__: object) -> Any:
        """Open the content for reading bytes."""
        return super().open() if self.content is None else io.BytesIO(self.content)


def fetched(path: Path, most_bytes: int) -> Path:
    """Fetch a file under a URL; the path itself if it is on a disk, or larger than allowed."""
    if not isinstance(path, UrlPath) or path.stat().st_size > most_bytes:
        return path
    held = FetchedFile(str(path))
    with path.open() as file:
        held.content = file.read()
    return held


class _Seekable(io.RawIOBase):
    """A file of a known size that is read from a position which only ``seek`` and reads change."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether its position can be set: always."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position of the next byte; nothing is fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "a position before the first byte")
        self._at = base + offset
        return self._at


class BlockCache(_Seekable):
    """A file read at random positions: it fetches aligned blocks, and keeps those used last.

    The first block is fetched at once, before a library takes a lock to read the rest.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file.seek(0, io.SEEK_END))
        self._file = file
        self._blocks: dict[int, bytes] = {}
        self._block(0)

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer, or less of it at the end of the file."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view) and self._at < self._size:
            number, offset = divmod(self._at, CACHE_BLOCK)
            piece = self._block(number)[offset : offset + len(view) - done]
            view[done : done + len(piece)] = piece
            self._at += len(piece)
            done += len(piece)
        return done

    def _block(self, number: int) -> bytes:
        block = self._blocks.pop(number, None)
        if block is None:
            if len(self._blocks) == CACHE_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._file.seek(number * CACHE_BLOCK)
            block = self._file.read(CACHE_BLOCK)
        self._blocks[number] = block
        return block


def random_access(path: Path) -> io.RawIOBase:
    """Open a file under a URL for a library that reads it at random positions."""
    file = path.open("rb", buffering=0)
    return BlockCache(file) if isinstance(file, RemoteFile) else file


class RemoteFile(_Seekable):
    """A file under a URL, read by ranges of bytes; it holds one window of up to 8 MiB."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__(size)
        self._url, self._start = url, 0
        self._folder, self._key = _split(url)
        self._window = b""
        self._window_bytes = LEAST_WINDOW

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer, or less of it at the end of the file."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view) and self._at < self._size:
            offset = self._at - self._start
            if not 0 <= offset < len(self._window):
                self._fetch(len(view) - done)
                continue
            piece = self._window[offset : offset + len(view) - done]
            view[done : done + len(piece)] = piece
            self._at += len(piece)
            done += len(piece)
        return done

    def read(self, n_bytes: int | None = -1, /) -> bytes:
        """Read up to so many bytes, fewer only at the end of the file."""
        left = max(0, self._size - self._at)
        out = bytearray(left if n_bytes is None or n_bytes < 0 else min(n_bytes, left))
        self.readinto(out)
        return bytes(out)

    def _fetch(self, wanted: int) -> None:
        """Fetch the window that begins at the position."""
        goes_on = self._at == self._start + len(self._window) and self._window
        self._window_bytes = min(2 * self._window_bytes, MOST_WINDOW) if goes_on else LEAST_WINDOW
        n_bytes = min(max(self._window_bytes, min(wanted, MOST_WINDOW)), self._size - self._at)
        self._window = b""
        window = bytearray(n_bytes)
        for is_last in (False, True):
            try:
                self._folder.read_into(self._key, self._at, memoryview(window))
                break
            except Unreadable as error:
                if is_last:
                    raise _failure(f"{self._url} {error}", isinstance(error, MissingFile)) from None
            except StoreError as error:
                raise _failure(str(error), False) from None
        self._start, self._window = self._at, bytes(window)


def _failure(text: str, is_missing: bool) -> SourceError:
    error = SourceError(text)
    # Another attempt may succeed, so finished parts are kept.
    error.may_pass = not is_missing
    return error


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, also one whose slashes ``Path`` has joined."""
    return os.fspath(path).startswith(STARTS)


def url_of(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text; restores the slash of a URL that ``Path`` has dropped."""
    text = path if isinstance(path, str) else os.fspath(path)
    for scheme in SCHEMES:
        if text.startswith(scheme[:-1]):
            return scheme + text[len(scheme) - 1 :].lstrip("/")
    return text


def source_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file of a source: a ``UrlPath`` if it is a URL."""
    if isinstance(path, UrlPath):
        return path
    return UrlPath(url_of(path)) if is_url(path) else Path(path)


def refuse_url(path: str | os.PathLike[str], kind: str) -> None:
    """Refuse a URL of a file that can only be read from a disk."""
    if is_url(path):
        raise SourceError(
            f"{url_of(path)}: {kind} files cannot be read from a URL; copy the file to a disk and "
            "convert the copy"
        )


def arrow_file(path: str | os.PathLike[str]) -> Any:
    """Open a file for pyarrow."""
    if is_url(path):
        return pa.PythonFile(source_path(path).open("rb"), mode="r")
    return pa.OSFile(os.fspath(path))


def arrow_source(path: str | os.PathLike[str]) -> Any:
    """The name of a file, or the open file if it is a URL; for functions that take either."""
    return arrow_file(path) if is_url(path) else os.fspath(path)


def status_of(url: str) -> Status | None:
    """Ask for size and version of a file; None if there is no such file."""
    if "/" not in url.partition("://")[2]:
        return None
    folder, key = _split(url)
    return folder.status(key)


def forget_files() -> None:
    """Forget what is known of files: a new conversion must see changes, and new credentials."""
    _KNOWN.clear()
    _folder.cache_clear()


def keep_files_for(session: str) -> None:
    """Forget files unless they became known in this session: a worker outlives a conversion."""
    if _SESSION.get("name") != session:
        forget_files()
        _SESSION["name"] = session


def _known_status(url: str) -> Status | None:
    if url not in _KNOWN:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[url] = status_of(url)
    return _KNOWN[url]


@lru_cache(maxsize=FOLDERS)
def _folder(url: str) -> _Folder:
    return cast("_Folder", open_location(url))


def _split(url: str) -> tuple[_Folder, str]:
    scheme, _, rest = url.partition("://")
    parent, _, name = rest.rstrip("/").rpartition("/")
    return _folder(f"{scheme}://{parent}"), name


def statuses_below(url: str) -> dict[str, Status]:
    """Size and version of every file below a URL, by its URL, in order; http cannot list files."""
    folder = url.rstrip("/")
    found = _folder(folder).statuses()
    below = {f"{folder}/{key}": found[key] for key in sorted(found)}
    _KNOWN.update(islice(below.items(), MOST_KNOWN))
    return below


def files_matching(url: str) -> Iterator[str]:
    """Yield the URLs of all files that a pattern with * or [ matches, part by part, in order."""
    parts = url.split("/")
    first = next(i for i, part in enumerate(parts) if has_pattern(part))
    for name in statuses_below("/".join(parts[:first])):
        own = name.split("/")
        if len(own) == len(parts) and all(map(fnmatchcase, own, parts)):
            yield name


def has_pattern(text: str) -> bool:
    """Whether a URL is a pattern; a question mark begins a query, so it does not count."""
    return "*" in text or "[" in text
