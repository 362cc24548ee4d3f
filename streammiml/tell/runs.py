"""What a run folder says of itself, read without holding it: a run may still be going on."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streammiml.errors import StreammimlError
from streammiml.learn.origin import Origin, read_origin
from streammiml.learn.run import FINGERPRINTS, HISTORY, SETTINGS
from streammiml.model import MODEL_FILE, Model, load_model

_NUMBERS = ("step", "seconds", "loss", "share_of_violations")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """A run as it stands."""

    path: Path
    settings: dict[str, Any]
    history: list[dict[str, Any]]
    origin: Origin | None
    """None for runs that did not write it down."""
    model: Model | None
    """None as long as the run is not finished."""

    @property
    def fingerprint(self) -> str:
        """Of the store that it was begun on."""
        return str(self.settings.get("fingerprint", ""))

    @property
    def options(self) -> dict[str, Any]:
        """Settings that can be given again, without what was only found."""
        return {name: v for name, v in self.settings.items() if name not in FINGERPRINTS}


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read a run folder, finished or not."""
    path = Path(path)
    settings = path / SETTINGS
    if not settings.is_file():
        what = "a file" if path.is_file() else "no run" if path.exists() else "not there"
        raise StreammimlError(
            f"{path} is {what}; a report needs the folder of a run, with its {SETTINGS}, "
            "as streammiml train makes it"
        )
    try:
        said = tomllib.loads(settings.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StreammimlError(f"{settings} cannot be read: {error}") from None
    return RunRecord(
        path=path,
        settings=said,
        history=_history(path / HISTORY),
        origin=read_origin(path),
        model=load_model(path) if (path / MODEL_FILE).exists() else None,
    )


def _history(path: Path) -> list[dict[str, Any]]:
    """Lines of a history; the last may be cut, where a run was killed or is just writing it."""
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise StreammimlError(f"{path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            for name in _NUMBERS:
                float(entry[name])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise StreammimlError(
                f"{path}, line {number} is no line of a history ({type(error).__name__}: {error})"
            ) from None
        found.append(entry)
    return found
