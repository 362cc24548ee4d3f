"""Locations of stores: a local folder or a URL. Byte ranges of their files are read by key."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast
from weakref import WeakSet

from crc32c import crc32c

from streammiml.bags.file_errors import Unreadable, reason, unreadable
from streammiml.bags.page_cache import OpenFile, outgrows_cache
from streammiml.errors import StoreError, StreammimlError

SCHEMES = ("s3://", "gs://", "az://", "http://", "https://")
OPEN_FILES, FEWEST_FILES = 256, 8
"""Limit of open files for all local stores together, and the number that each store may always keep
open. A process may usually have 1024 descriptors, and a file needs up to two."""
Upload = Callable[[str, Path], None]
"""Sends a file to a key of a URL."""
_folders: WeakSet[LocalFolder] = WeakSet()


class Location(Protocol):
    """A folder of files, whose keys are relative paths with slashes."""

    name: str

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Read from ``offset`` until the buffer is full; raise Unreadable if that fails."""

    def read_all(self, key: str) -> bytes:
        """Read the whole file; raise Unreadable if that fails."""

    def size(self, key: str) -> int | None:
        """Size of the file in bytes; None if there is no such file."""

    def files(self) -> list[str]:
        """Keys of all files, sorted."""

    def forget(self) -> None:
        """Close all open files, so that the next read opens them again."""


class LocalFolder:
    """A folder of this machine; it keeps recently read files open."""

    def __init__(self, path: Path, *, bypass: bool = False) -> None:
        self.path, self.name = path, str(path)
        self._bypass = bypass
        self._files: dict[str, OpenFile] = {}
        self._regular: set[str] = set()
        _folders.add(self)

    def expect(self, n_bytes: int) -> None:
        """Let reads bypass the page cache if a store of ``n_bytes`` does not fit; close files."""
        self._bypass = outgrows_cache(n_bytes)
        self.forget()

    def _open(self, key: str) -> OpenFile:
        """Return the file, opened if necessary; beyond the limit, close the least recently used."""
        # Two threads may open the same file at the same time; either OpenFile may be kept.
        files = self._files
        file = files.pop(key, None) or OpenFile(self._checked(key), bypass=self._bypass)
        files[key] = file
        while len(files) > max(FEWEST_FILES, OPEN_FILES // len(_folders)):
            with suppress(RuntimeError, StopIteration):
                files.pop(next(iter(files)), None)
        return file

    def _checked(self, key: str) -> Path:
        """Return the path of a file; refuse pipes and devices, which could block for ever.

        Links are followed, even out of the folder: caches of downloads are folders of links.
        """
        path = self.path / key
        if key not in self._regular:
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
            self._regular.add(key)
        return path

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Read from ``offset`` until the buffer is full; raise Unreadable if that fails."""
        try:
            done = self._open(key).read(offset, buffer)
        except OSError as error:
            raise unreadable(error) from error
        if done < len(buffer):
            raise Unreadable(
                f"is short: ends at byte {offset + done}, needed {offset + len(buffer)}"
            )

    def opened(self, key: str) -> OpenFile | None:
        """Return the file, opened if necessary; None if it cannot be opened."""
        try:
            return self._open(key)
        except OSError:
            return None

    def read_all(self, key: str) -> bytes:
        """Read the whole file; raise Unreadable if that fails."""
        try:
            return self._checked(key).read_bytes()
        except OSError as error:
            raise unreadable(error) from error

    def size(self, key: str) -> int | None:
        """Size of the file in bytes; None if there is no such file."""
        try:
            return (self.path / key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{self.name}/{key} {reason(error)}") from error

    def files(self) -> list[str]:
        """Keys of all files, sorted."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.path).as_posix() for path in files)

    def forget(self) -> None:
        """Close all open files."""
        self._files, self._regular = {}, set()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process may have another working folder.
        return partial(LocalFolder, self.path.absolute(), bypass=self._bypass), ()


def open_location(where: str | os.PathLike[str]) -> Location:
    """Return the location of a path or URL; no store need exist there."""
    text = os.fspath(where)
    if text.startswith(SCHEMES):
        try:  # Loaded late: obstore is an optional dependency that only URLs need.
            object_store = import_module("streammiml.bags.object_store")
        except ImportError as error:
            if not (error.name or "").startswith("obstore"):
                raise
            raise StreammimlError(f"{text} needs obstore: pip install 'streammiml[s3]'") from None
        return cast("Location", object_store.ObjectFolder(text))
    if "://" in text:
        raise StreammimlError(f"{text}: no such kind of URL; known: {', '.join(SCHEMES)}")
    return LocalFolder(Path(text))


def file_crc(path: Path, stop: int | None = None) -> tuple[int, int]:
    """Number of bytes and crc32c of a file, or of its first ``stop`` bytes."""
    crc, done = 0, 0
    with path.open("rb", buffering=0) as file:
        while stop is None or done < stop:
            part = file.read(4 << 20 if stop is None else min(4 << 20, stop - done))
            if not part:
                break
            crc, done = crc32c(part, crc), done + len(part)
    return done, crc
