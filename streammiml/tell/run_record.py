"""The record of a run, read from its folder without a lock: the run may still be writing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streammiml._base.atomic import local_input
from streammiml._base.json_and_toml import parse_json, parse_toml
from streammiml.errors import StreammimlError
from streammiml.learn.run_facts import RunFacts, read_run_facts
from streammiml.learn.run_folder import HISTORY, RECORDS, SETTINGS
from streammiml.model import MODEL_FILE, Model, load_model

_NUMBERS = ("step", "seconds", "loss", "share_of_violations")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """Contents of a run folder at one moment."""

    path: Path
    settings: dict[str, Any]
    history: list[dict[str, Any]]
    origin: RunFacts | None
    """Recorded facts about the store and the memory; None if the run recorded none."""
    model: Model | None
    """None while the run is not finished."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the store that the run was begun on."""
        return str(self.settings.get("fingerprint", ""))

    @property
    def options(self) -> dict[str, Any]:
        """Settings that are options of ``train``, without fingerprints and other records."""
        return {name: value for name, value in self.settings.items() if name not in RECORDS}


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read a run folder, finished or not."""
    path = local_input(path, "runs")
    settings = path / SETTINGS
    if not settings.is_file():
        what = "a file" if path.is_file() else "not a run folder" if path.exists() else "missing"
        raise StreammimlError(
            f"{path} is {what}; a report needs the folder of a run, with its {SETTINGS}, "
            "as streammiml train makes it"
        )
    try:
        recorded = parse_toml(settings.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StreammimlError(f"{settings} cannot be read: {error}") from None
    return RunRecord(
        path=path,
        settings=recorded,
        history=_history(path / HISTORY),
        origin=read_run_facts(path),
        model=load_model(path) if (path / MODEL_FILE).exists() else None,
    )


def _history(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a history, except a last line that is incomplete.

    The last line is incomplete if the run was killed, or is writing at this moment.
    """
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise StreammimlError(f"{path} cannot be read: {error}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = parse_json(line)
            for name in _NUMBERS:
                float(entry[name])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            if number == len(lines):
                break
            raise StreammimlError(
                f"{path}, line {number} is not a line of a history "
                f"({type(error).__name__}: {error})"
            ) from None
        entries.append(entry)
    return entries
