"""A folder of results that are written in parts: each part absent or whole, one writer at a time.

What it was begun with is recorded in it, so that going on never mixes results of two kinds; the
mark of completeness is written last.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from streammiml.bags.parts import Lock
from streammiml.bags.place import sync_folder
from streammiml.config import format_size
from streammiml.errors import StreammimlError

# Names with an underscore: those who read a folder of Parquet pass over them.
RECORD, COMPLETE, LOCK = "_settings.json", "_SUCCESS", "_lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PartFolder:
    """A context that holds the folder; what other processes need of it is its path."""

    def __init__(self, path: str | os.PathLike[str], record: Mapping[str, Any], what: str) -> None:
        """Begin a folder, or go on with one of the same ``record``.

        ``what`` it holds is for messages: ``predictions``.
        """
        self.path = Path(path)
        if "://" in os.fspath(path):
            raise StreammimlError(
                f"{path} is an address, and {what} are written to folders only; name a folder, "
                "and copy it there when it is complete"
            )
        if self.path.exists() and not self.path.is_dir():
            raise StreammimlError(f"{path} is a file; name a folder for the {what}")
        try:
            self._refuse_others(what)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.path / LOCK, str(path))
        except OSError as error:
            raise StreammimlError(
                f"{path} cannot be written: {error.strerror}; name another folder"
            ) from error
        try:
            self._begin(dict(record), what)
        except BaseException:
            self._lock.release()
            raise

    def _refuse_others(self, what: str) -> None:
        """Refuse a folder that holds anything and is not ours."""
        found = {each.name for each in self.path.iterdir()} if self.path.exists() else set()
        strange = {name for name in found - {LOCK} if not name.endswith(".partial")}
        if strange and RECORD not in found:
            raise StreammimlError(
                f"{self.path} holds other files ({min(strange)}) and no {what}; name a new folder"
            )

    def _begin(self, record: dict[str, Any], what: str) -> None:
        self.sweep()
        path = self.path / RECORD
        if not path.exists():
            with written_whole(path) as file:
                file.write(as_json(record))
            return
        try:
            before = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise StreammimlError(
                f"{path} cannot be read ({error}); name another folder for the {what}"
            ) from None
        # In the order of the record, which has what a user chose before what follows from it.
        for name in (*record, *sorted({*before} - {*record})):
            if before.get(name) != record.get(name):
                raise StreammimlError(
                    f"{self.path} was begun with {name} {before.get(name)!r}, not "
                    f"{record.get(name)!r}; name another folder, or remove this one"
                )

    def __enter__(self) -> PartFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def reopen(self) -> None:
        """Take back that everything is there: something of it is to be written again."""
        (self.path / COMPLETE).unlink(missing_ok=True)

    def finish(self, said: Mapping[str, Any]) -> None:
        """Say that everything is there, last of all."""
        self.sweep()
        with written_whole(self.path / COMPLETE) as file:
            file.write(as_json(said))

    def sweep(self) -> None:
        """Remove what those who died left half written: nothing whole has such a name."""
        for left in self.path.rglob(".*.partial"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def as_json(said: Mapping[str, Any]) -> bytes:
    """The same bytes for the same content."""
    return json.dumps(said, sort_keys=True, indent=1).encode() + b"\n"


def beside(path: Path) -> Path:
    """A name of its own for what will be ``path``, hidden from whoever lists the folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


@contextmanager
def written_whole(path: Path, needed: int | None = None) -> Iterator[BinaryIO]:
    """A file that has its name when it is whole and on the disk, and never before.

    ``needed``: bytes of everything that goes to the folder, about, for who must make room.
    """
    partial = beside(path)
    with saying_what_failed(path, needed):
        try:
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def saying_what_failed(path: Path, needed: int | None = None) -> Iterator[None]:
    """Errors of the disk as one line, with what is needed and what is free where it is full."""
    try:
        yield
    except OSError as error:
        room = ""
        if error.errno in _FULL:
            free = f"{format_size(shutil.disk_usage(path.parent).free)} are free"
            all_of_it = "" if needed is None else f"all parts take about {format_size(needed)}, "
            room = f" ({all_of_it}{free})"
        raise StreammimlError(
            f"{path} is not written: {error.strerror or error}{room}; make room, and run the same "
            "command again to go on"
        ) from error
