"""Errors of reading and writing files of a store, on a disk or under a URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streammiml._base.atomic import DISK_FULL, free_bytes
from streammiml.errors import StoreError


class Unreadable(Exception):
    """A file cannot be read, or ends too early; the message continues after the file's name.

    Readers try once more, then raise StoreError.
    """


class MissingFile(Unreadable):
    """There is no file of this name."""

    def __init__(self) -> None:
        super().__init__("is missing")


def reason(error: BaseException) -> str:
    """Say in one line why reading a file failed; the text continues after the file's name."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is missing"
    if isinstance(error, IsADirectoryError):
        return "is a folder, expected a file"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    text = " ".join(str(error).split())
    return f"cannot be read: {text[:300] or type(error).__name__}"


def unreadable(error: OSError) -> Unreadable:
    """Turn an error of the operating system into Unreadable."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingFile()
    return Unreadable(reason(error))


@contextmanager
def writing(name: str, folder: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an OSError of writing into a StoreError that says how many bytes of the disk are free.

    ``needed`` is the estimated size of the store in bytes; the message of a full disk contains it.
    """
    try:
        yield
    except OSError as error:
        existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
        why, room = error.strerror or error, f"{free_bytes(existing):,} bytes free"
        if error.errno in DISK_FULL:
            # Replaced, because some libraries change the text of the reason.
            why = os.strerror(error.errno)
            room = room if needed is None else f"about {needed:,} bytes needed, {room}"
            if "://" in name:
                room = f"{existing}: {room}"
        raise StoreError(
            f"{name} cannot be written: {why} ({room}); finished parts are kept, run again to go on"
        ) from error
