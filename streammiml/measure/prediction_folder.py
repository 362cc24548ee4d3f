"""A folder of results that are written in parts: each part is complete or absent.

One process writes at a time. The folder records the settings with which it was begun, so that a
resumed run never mixes results of different settings. ``_SUCCESS``, which marks the folder as
complete, is written last.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from streammiml._base.atomic import DISK_FULL, FolderLock, free_bytes, local_path, open_atomically
from streammiml._base.json_and_toml import parse_json
from streammiml.config import format_size
from streammiml.errors import StreammimlError

# Readers of Parquet folders ignore names that begin with an underscore.
RECORD, COMPLETE, LOCK = "_settings.json", "_SUCCESS", "_lock"


class PartFolder:
    """A locked folder; leaving the context releases the lock. Workers need only the path."""

    def __init__(self, path: str | os.PathLike[str], record: Mapping[str, Any], what: str) -> None:
        """Begin a folder, or reopen a folder that has the same ``record``.

        ``what`` names the results in messages, for example ``predictions`` or ``search``.
        """
        self.path = local_path(path, _plural(what))
        try:
            _refuse_other_files(self.path, what)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.path / LOCK, str(path))
        except OSError as error:
            raise StreammimlError(
                f"{path} cannot be written: {error.strerror}; name another folder"
            ) from error
        try:
            self._begin(dict(record), what)
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, record: dict[str, Any], what: str) -> None:
        self.remove_partial_files()
        if (self.path / RECORD).exists():
            _check_record(self.path, record, what)
        else:
            write_json(self.path / RECORD, record)

    def __enter__(self) -> PartFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def reopen(self) -> None:
        """Mark the folder as incomplete, before anything in it is written again."""
        (self.path / COMPLETE).unlink(missing_ok=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the folder as complete; call this after everything is written."""
        self.remove_partial_files()
        write_json(self.path / COMPLETE, summary)

    def remove_partial_files(self) -> None:
        """Remove partial files of killed processes; no complete file has such a name."""
        for partial in self.path.rglob(".*.partial"):
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)


def check_folder(path: str | os.PathLike[str], record: Mapping[str, Any], what: str) -> None:
    """Refuse a folder that ``PartFolder`` would refuse for what is in it; nothing is written."""
    folder = local_path(path, _plural(what))
    try:
        _refuse_other_files(folder, what)
    except OSError as error:
        raise StreammimlError(
            f"{path} cannot be read: {error.strerror}; name another folder"
        ) from error
    if (folder / RECORD).exists():
        _check_record(folder, record, what)


def _plural(what: str) -> str:
    return what + {"s": "", "h": "es"}.get(what[-1], "s")


def _refuse_other_files(folder: Path, what: str) -> None:
    """Refuse a file, and a folder that has files and no record of ours."""
    if folder.exists() and not folder.is_dir():
        raise StreammimlError(f"{folder} is a file; name a folder for the {what}")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    foreign = {name for name in names - {LOCK} if not name.endswith(".partial")}
    if foreign and RECORD not in names:
        raise StreammimlError(
            f"{folder} holds other files ({min(foreign)}) and no {what}; name a new folder"
        )


def _check_record(folder: Path, record: Mapping[str, Any], what: str) -> None:
    """Refuse a folder that was begun with another record."""
    path = folder / RECORD
    try:
        recorded = dict(parse_json(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise StreammimlError(
            f"{path} cannot be read ({error}); name another folder for the {what}"
        ) from None
    # The record lists the user's options first, so the message names an option if it can.
    for name in (*record, *sorted({*recorded} - {*record})):
        if recorded.get(name) != record.get(name):
            raise StreammimlError(
                f"{folder} was begun with {name} {recorded.get(name)!r}, not "
                f"{record.get(name)!r}; name another folder, or remove this one"
            )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with sorted keys, so that equal content gives equal bytes."""
    with atomic_file(path) as file:
        file.write(json.dumps(content, sort_keys=True, indent=1).encode() + b"\n")


def partial_path(path: Path) -> Path:
    """Unique hidden path, in the same folder, of a file or folder that will become ``path``."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


@contextmanager
def atomic_file(path: Path, needed: int | None = None) -> Iterator[BinaryIO]:
    """Open a file that gets the name ``path`` only when it is complete and on the disk.

    ``needed`` is the approximate number of bytes of all parts, for the message if the disk is full.
    """
    with disk_errors(path, needed), open_atomically(path, partial_path(path)) as file:
        yield file


@contextmanager
def disk_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an OSError into a one-line StreammimlError; if the disk is full, with the free space."""
    try:
        yield
    except OSError as error:
        space = ""
        if error.errno in DISK_FULL:
            free = f"{format_size(free_bytes(path.parent))} are free"
            all_parts = "" if needed is None else f"all parts take about {format_size(needed)}, "
            space = f" ({all_parts}{free})"
        raise StreammimlError(
            f"{path} is not written: {error.strerror or error}{space}; make room, and run the same "
            "command again to go on"
        ) from error
