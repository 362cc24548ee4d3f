"""Partitions of Hive: folders called ``key=value``, whose keys are columns of the files in them.

``--where key=value`` chooses files by their folders, before any file is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.messages import listed

KEY_VALUE = re.compile(r"([^=]+)=(.*)", re.DOTALL)
NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a partition whose rows have no value."""


def keys_of(path: str | Path) -> dict[str, str]:
    """Keys and values of the folders on a path; of a key that occurs twice, the deeper folder's."""
    parts = (KEY_VALUE.fullmatch(part) for part in Path(path).parts[:-1])
    return {unquote(part[1]): unquote(part[2]) for part in parts if part is not None}


def value_of(text: str) -> str | None:
    """The value in a column; None for the partition of rows without a value."""
    return None if text == NULL else text


def in_partitions(files: Sequence[Path], where: Sequence[str]) -> list[Path]:
    """Return the files whose folders have the wanted values, in the same order.

    With several values of a key, a file may have any of them; it must have one of each key. A key
    that no folder has, or a choice that leaves no file, raises SourceError.
    """
    wanted: dict[str, set[str]] = {}
    for text in where:
        parts = KEY_VALUE.fullmatch(text)
        if parts is None:
            raise SourceError(f"--where {text}: expected KEY=VALUE, as the folders are called")
        wanted.setdefault(parts[1], set()).add(parts[2])
    keys = [keys_of(file) for file in files]
    values: dict[str, set[str]] = {}
    for of_file in keys:
        for key, value in of_file.items():
            values.setdefault(key, set()).add(value)
    for key, chosen in wanted.items():
        if key not in values:
            known = f"the keys of the folders are {listed(sorted(values))}"
            raise SourceError(
                f"--where {key}={min(chosen)}: no folder is called {key}=…; "
                f"{known if values else 'the sources have no folders called KEY=VALUE'}"
            )
        if not chosen & values[key]:
            raise SourceError(
                f"--where {key}={min(chosen)} leaves no file; the values of {key!r} are "
                f"{listed(sorted(values[key]))}"
            )
    kept = [
        file
        for file, of_file in zip(files, keys, strict=True)
        if all(of_file.get(key) in chosen for key, chosen in wanted.items())
    ]
    if not kept:
        raise SourceError(
            f"--where {listed(where)}: no file has a value of each key; leave one out"
        )
    return kept
