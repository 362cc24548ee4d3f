"""A run folder: settings, history, checkpoints and model, locked by one process at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from streammiml._base.atomic import FolderLock, save_whole
from streammiml._base.json_and_toml import parse_json, parse_toml
from streammiml.config import LATER_OPTIONS, settings_with
from streammiml.errors import StoreError, StreammimlError
from streammiml.model import MODEL_FILE

SETTINGS, HISTORY, CHECKPOINTS = "settings.toml", "history.jsonl", "checkpoints"
LOCK = "lock"
CHOICE = "choice.json"
"""Trials that chose settings; see ``learn/choice_record.py``."""
CALIBRATION = "calibration.safetensors"
"""Counts of the folds that a calibration is fitted on; see ``learn/calibration_folds.py``."""
FREE_SETTINGS = settings_with("speed", "end", "path")
"""Settings that may differ between two processes of a run. A path may differ; the fingerprint of
the file at the path may not."""
FINGERPRINTS = (
    *("fingerprint", "sparse", "validation_fingerprint", "start_fingerprint"),
    "weights_fingerprint",
)
EXTENDED_FROM = "extended_from"
"""Number of epochs of a run before an unfinished extension. With it, a repeated ``--extend`` leads
to the same end and does not extend the run twice."""
OFFSET = "threshold_offset"
"""Offset of the threshold that trials before the run fitted."""
RECORDS = (*FINGERPRINTS, EXTENDED_FROM, OFFSET)
"""Entries of ``settings.toml`` that are not settings."""


class RunFolder:
    """The folder of one run; a context manager that releases its lock."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        try:
            self._refuse_others(resume)
            (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(path / LOCK, f"run {path}")
            self.exists = (path / SETTINGS).exists()
            for folder in (path, path / CHECKPOINTS):
                for leftover in folder.glob("*.partial"):
                    leftover.unlink()
        except OSError as error:
            raise StreammimlError(f"{path} cannot be written: {error.strerror}") from error

    def _refuse_others(self, resume: bool) -> None:
        """Refuse a folder with other files than a run, or with a run that is not to be resumed."""
        path = self.path
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
        names = {name for name in names if not name.endswith(".partial")}
        begun = names - {LOCK, CHECKPOINTS}
        begun |= {checkpoint.name for checkpoint in (path / CHECKPOINTS).glob("step-*")}
        if begun and not resume:
            raise StreammimlError(
                f"{path} exists already; --resume goes on with it, or name another folder",
                page="train",
            )
        if begun - {CHOICE} and SETTINGS not in names:
            raise StreammimlError(f"{path} is no run: it has no {SETTINGS}; name another folder")

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def model(self) -> Path:
        """Path of the finished model."""
        return self.path / MODEL_FILE

    def settings(self) -> dict[str, Any]:
        """Recorded settings."""
        try:
            return parse_toml((self.path / SETTINGS).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise StreammimlError(f"{self.path / SETTINGS} cannot be read: {error}") from None

    def record(self, settings: dict[str, Any]) -> None:
        """Write the settings, below the reasons for those that trials chose.

        Settings that are None are left out.
        """
        comments = "".join(f"# {reason}\n" for reason in choice_reasons(self.path))
        save_whole(self.path / SETTINGS, [comments.encode(), toml(settings)])
        self.exists = True

    @property
    def choice(self) -> Path:
        """Path of the record of trials, which exists if trials chose settings."""
        return self.path / CHOICE

    def check_same(self, given: dict[str, Any]) -> None:
        """Refuse settings that contradict the recorded settings; the message names the first."""
        recorded = {**LATER_OPTIONS, **self.settings()}
        for name, value in given.items():
            if name not in FREE_SETTINGS and recorded.get(name) != value:
                raise StreammimlError(
                    f"{self.path} was begun with {name} {recorded.get(name)!r}, not {value!r}; "
                    "leave it out, or begin another run"
                )

    def cut_history(self, n_bytes: int) -> None:
        """Cut off lines written after the last checkpoint; the resumed run writes them again."""
        path = self.path / HISTORY
        with _disk_errors(path):
            if path.exists():
                os.truncate(path, min(n_bytes, path.stat().st_size))

    def note(self, entry: dict[str, Any]) -> int:
        """Append a line to the history; return the size of the file."""
        path = self.path / HISTORY
        with _disk_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        return path.stat().st_size


def choice_reasons(run: Path) -> list[str]:
    """Lines that say what the trials before a run chose and why; empty if there were none."""
    try:
        reasons = parse_json((run / CHOICE).read_bytes())["chosen"]["reasons"]
        return [" ".join(str(reason).split()) for reason in reasons]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def finish_extension(path: Path) -> None:
    """Record that the extension of a run is finished; called after its result is shown.

    Until then, repeating ``--extend`` leads to the same end. So a user can repeat a command that
    was killed before it showed its result.
    """
    with suppress(StoreError), RunFolder(path, resume=True) as folder:
        settings = folder.settings()
        if settings.pop(EXTENDED_FROM, None) is not None:
            folder.record(settings)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StreammimlError(f"{path} is not saved: {error.strerror}; make room") from error


def toml(settings: Mapping[str, Any]) -> bytes:
    """Encode plain settings as TOML; settings that are None are left out.

    JSON values are TOML values too, except for surrogates and one control character.
    """
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in settings.items()
        if value is not None
    ]
    return ("\n".join(lines) + "\n").encode()
