"""The staging folder: where a store is written until it is complete."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from streammiml.bags.location import SCHEMES
from streammiml.errors import StoreError


def staging_for(name: str) -> Path:
    """Return the staging folder of a store, given its path or URL.

    The staging folder of a local store is beside the store. The staging folder of a URL is in a
    private folder of this user, inside the temporary folder (set by ``TMPDIR``). Its name is always
    the same, so that a new run finds the folder of a killed run.
    """
    if name.startswith(SCHEMES):
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        return _private_folder() / f"{key}.partial"
    return staging_of(Path(name))


def staging_of(path: Path) -> Path:
    """Return the hidden folder beside a local store in which the store is written."""
    return path.parent / f".{path.name}.partial"


def _private_folder() -> Path:
    """Make a folder that other users can neither read nor write; raise StoreError if that fails.

    The name of the folder is predictable, so another user may have made it first.
    """
    user = os.getuid()
    folder = Path(tempfile.gettempdir()) / f"streammiml-{user}"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be made: {error.strerror}; stores are staged there before they are "
            "uploaded; set TMPDIR to a folder with room"
        ) from error
    wrong = None
    if not stat.S_ISDIR(status.st_mode):
        wrong = "is a link or a file"
    elif status.st_uid != user:
        wrong = f"belongs to another user ({status.st_uid})"
    elif status.st_mode & 0o077:
        wrong = f"is open to other users (mode {stat.S_IMODE(status.st_mode):o})"
    if wrong is not None:
        raise StoreError(
            f"{folder} {wrong}, so others could read or replace the files in it; remove it, "
            "or set TMPDIR to a folder of your own"
        )
    return folder
