"""Files that are written completely or not at all, and locks that name their owner.

A file gets its final name only when its content is on the disk: write a temporary sibling, sync it,
rename it, sync the folder. A kill at any moment leaves the old file or the new one.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from streammiml._base.platform import lock_file
from streammiml.config import format_size
from streammiml.errors import StoreError, StreammimlError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a write for which there was no space: full disk, quota, file size limit."""


URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How a URL begins; ``Path`` joins its two slashes into one."""


def local_path(path: str | os.PathLike[str], what: str, kind: str = "folder") -> Path:
    """Path of a file or folder that is to be written; a URL is refused.

    ``what`` names the results in the message, and ``kind`` is what the user should name.
    """
    if URL.match(os.fspath(path)):
        raise StreammimlError(
            f"{_as_given(path)} is a URL, and {what} are written to {kind}s of this machine only; "
            f"name a {kind}, and upload it when it is complete"
        )
    return Path(path)


def local_input(path: str | os.PathLike[str], what: str) -> Path:
    """Path of a file or folder that is to be read; a URL is refused.

    ``what`` names in the message what is read only from this machine.
    """
    if URL.match(os.fspath(path)):
        raise StreammimlError(
            f"{_as_given(path)} is a URL, and {what} are read from this machine only; copy it here "
            "first, and name the copy"
        )
    return Path(path)


def _as_given(path: str | os.PathLike[str]) -> str:
    """The URL with both of its slashes."""
    return re.sub(r"^([^:/]+):/+", r"\1://", os.fspath(path))


def free_bytes(folder: Path) -> int:
    """Bytes that can still be written to the file system of a folder."""
    return shutil.disk_usage(folder).free


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, *pieces: bytes | memoryview, partial: Path | None = None) -> None:
    """Write the pieces as one file; if this fails, an older file at ``path`` stays as it was.

    ``partial`` is the path of the temporary file. By default it has a fixed name beside ``path``,
    so that the next try overwrites what a killed process left.
    """
    with open_atomically(path, partial or path.with_name(f"{path.name}.partial")) as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def open_atomically(path: Path, partial: Path) -> Iterator[BinaryIO]:
    """Open ``partial`` for writing; at the end of the block, sync it and rename it to ``path``.

    If anything fails before the rename, ``partial`` is removed and ``path`` stays as it was.
    """
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def save_whole(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file that a user requested; the error of any failure says that it is not saved.

    The temporary name is random, because two processes may save to the same path.
    """
    path, pieces = Path(path), list(pieces)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write_atomically(path, *pieces, partial=partial)
    except OSError as error:
        space = ""
        if error.errno in DISK_FULL:
            needed, free = sum(map(len, pieces)), free_bytes(path.parent)
            space = f"it takes {format_size(needed)} and {format_size(free)} are free; "
        raise StreammimlError(
            f"{path} is not saved: {error.strerror or error}; {space}make room or choose another "
            "folder, and save again"
        ) from error


class FolderLock:
    """A lock with one owner; the operating system releases it when the owner dies."""

    def __init__(self, path: Path, name: str) -> None:
        # The package filelock empties the file before it has the lock. That would erase the name of
        # the owner, which the error below reports.
        self._path, self._file = path, path.open("a+")
        if not lock_file(self._file):
            self._file.seek(0)
            owner = self._file.read().strip() or "another process"
            self._file.close()
            raise StoreError(f"{name} is being written by {owner}; wait for it or stop it")
        try:
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
            self._file.flush()
        except BaseException:
            # The disk may be full. A caller that keeps the exception would keep the file open, and
            # with it the lock.
            with suppress(OSError):
                self._file.close()
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to the locked file."""
        locked = os.fstat(self._file.fileno())
        try:
            current = self._path.stat()
        except FileNotFoundError:
            return False
        return (locked.st_dev, locked.st_ino) == (current.st_dev, current.st_ino)

    def release(self) -> None:
        """Release the lock."""
        self._file.close()
