"""Where a store lies: a local folder, or a URL. Byte ranges come in, whole files go out."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast
from weakref import WeakSet

from crc32c import crc32c

from streammiml.bags.cold import OpenFile, outgrows_cache
from streammiml.errors import StoreError, StreammimlError

SCHEMES = ("s3://", "gs://", "az://", "http://", "https://")
OPEN_FILES, FEWEST_FILES = 256, 8
"""Files kept open by all local stores together, and by each at least: a process may usually have
1024 descriptors, and a file takes two."""
_places: WeakSet[LocalPlace] = WeakSet()


class Unreadable(Exception):
    """A file that is missing, short, or fails to be read; its text says which."""


class Place(Protocol):
    """A folder of files, known by keys with slashes."""

    name: str

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from the file, or raise Unreadable."""

    def read_all(self, key: str) -> bytes:
        """The whole file, or Unreadable."""

    def size(self, key: str) -> int | None:
        """Bytes of the file; None when there is none."""

    def files(self) -> list[str]:
        """Every file, sorted."""

    def forget(self) -> None:
        """Close what is open, so that the next read sees the folder as it is then."""


class LocalPlace:
    """A folder of this machine."""

    def __init__(self, path: Path, *, bypass: bool = False) -> None:
        self.path, self.name = path, str(path)
        self._bypass = bypass
        self._files: dict[str, OpenFile] = {}
        _places.add(self)

    def expect(self, n_bytes: int) -> None:
        """Prepare for reading all over as many bytes; files that are open begin anew."""
        self._bypass = outgrows_cache(n_bytes)
        self.forget()

    def _open(self, key: str) -> OpenFile:
        """The file, kept open; the one longest not asked for goes when there are too many."""
        # Of two threads that open one file at a time, either may win.
        files = self._files
        file = files.pop(key, None) or OpenFile(self.path / key, bypass=self._bypass)
        files[key] = file
        while len(files) > max(FEWEST_FILES, OPEN_FILES // len(_places)):
            with suppress(RuntimeError, StopIteration):
                files.pop(next(iter(files)), None)
        return file

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from the file, or raise Unreadable."""
        try:
            done = self._open(key).read(offset, buffer)
        except OSError as error:
            raise Unreadable(reason(error)) from error
        if done < len(buffer):
            raise Unreadable(
                f"is short: ends at byte {offset + done}, needed {offset + len(buffer)}"
            )

    def opened(self, key: str) -> OpenFile | None:
        """The file, open; None where it cannot be opened."""
        try:
            return self._open(key)
        except OSError:
            return None

    def read_all(self, key: str) -> bytes:
        """The whole file, or Unreadable."""
        try:
            return (self.path / key).read_bytes()
        except OSError as error:
            raise Unreadable(reason(error)) from error

    def size(self, key: str) -> int | None:
        """Bytes of the file; None when there is none."""
        try:
            return (self.path / key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{self.name}/{key} {reason(error)}") from error

    def files(self) -> list[str]:
        """Every file, sorted."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.path).as_posix() for path in files)

    def forget(self) -> None:
        """Close files that are open."""
        self._files = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LocalPlace, self.path, bypass=self._bypass), ()


def open_place(where: str | os.PathLike[str]) -> Place:
    """The place that a path or URL names; it need not exist."""
    text = os.fspath(where)
    if text.startswith(SCHEMES):
        try:  # Loaded late: an extra that only URLs need.
            remote = import_module("streammiml.bags.remote")
        except ImportError as error:
            if not (error.name or "").startswith("obstore"):
                raise
            raise StreammimlError(f"{text} needs obstore: pip install 'streammiml[s3]'") from None
        return cast("Place", remote.RemotePlace(text))
    if "://" in text:
        raise StreammimlError(f"{text}: no such kind of URL; known: {', '.join(SCHEMES)}")
    return LocalPlace(Path(text))


def reason(error: BaseException) -> str:
    """One line that says why reading or writing failed."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is missing"
    if isinstance(error, IsADirectoryError):
        return "is a folder, expected a file"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    text = " ".join(str(error).split())
    return f"cannot be read: {text[:300] or type(error).__name__}"


def free_bytes(folder: Path) -> int:
    """Bytes that can still be written to the file system of a folder."""
    return shutil.disk_usage(folder).free


def file_crc(path: Path, stop: int | None = None) -> tuple[int, int]:
    """Bytes read, and the crc32c of them: of the whole file, or of its first ``stop`` bytes."""
    crc, done = 0, 0
    with path.open("rb", buffering=0) as file:
        while stop is None or done < stop:
            part = file.read(4 << 20 if stop is None else min(4 << 20, stop - done))
            if not part:
                break
            crc, done = crc32c(part, crc), done + len(part)
    return done, crc


def sync_file(path: Path) -> None:
    """Make the content of a file last."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make names created in a folder last."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside, sync, rename: the file is there whole, or as it was before."""
    beside = path.with_name(f"{path.name}.partial")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)
