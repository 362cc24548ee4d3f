"""A run folder: settings, history, checkpoints and the model, held by one process at a time."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streammiml.bags.parts import Lock
from streammiml.errors import StreammimlError
from streammiml.model import MODEL_FILE, write_whole

SETTINGS, HISTORY, CHECKPOINTS = "settings.toml", "history.jsonl", "checkpoints"
LOCK = "lock"
# Settings that change how fast a run goes or when it ends, and never what a step does.
FREE = ("memory", "checkpoint_every", "epochs", "max_steps", "patience")
# Of whose places the folder says nothing that counts: what they hold is compared.
FINGERPRINTS = ("fingerprint", "sparse", "validation_fingerprint", "start_fingerprint")
PLACES = ("validation_store", "start")


class RunFolder:
    """One run; a context that lets go of the folder."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        try:
            self._refuse_others(resume)
            (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            self._lock = Lock(path / LOCK, f"run {path}")
            self.exists = (path / SETTINGS).exists()
            for folder in (path, path / CHECKPOINTS):
                for left in folder.glob("*.partial"):
                    left.unlink()
        except OSError as error:
            raise StreammimlError(f"{path} cannot be written: {error.strerror}") from error

    def _refuse_others(self, resume: bool) -> None:
        """Refuse a folder that holds anything but this run; one that never began is empty."""
        path = self.path
        found = {each.name for each in path.iterdir()} if path.exists() else set()
        found = {name for name in found if not name.endswith(".partial")}
        begun = found - {LOCK, CHECKPOINTS}
        begun |= {each.name for each in (path / CHECKPOINTS).glob("step-*")}
        if begun and not resume:
            raise StreammimlError(
                f"{path} exists already; --resume goes on with it, or name another folder"
            )
        if begun and SETTINGS not in found:
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
        """The finished model."""
        return self.path / MODEL_FILE

    def settings(self) -> dict[str, Any]:
        """Recorded settings."""
        try:
            return tomllib.loads((self.path / SETTINGS).read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise StreammimlError(f"{self.path / SETTINGS} cannot be read: {error}") from None

    def record(self, settings: dict[str, Any]) -> None:
        """Write the settings down; what is None stays out."""
        lines = [f"{k} = {_toml(value)}" for k, value in settings.items() if value is not None]
        write_whole(self.path / SETTINGS, ["\n".join(lines).encode() + b"\n"])
        self.exists = True

    def check_same(self, wanted: dict[str, Any]) -> None:
        """Refuse settings that contradict the recorded ones, naming the first."""
        recorded = self.settings()
        for name, value in wanted.items():
            if name not in (*FREE, *PLACES) and recorded.get(name) != value:
                raise StreammimlError(
                    f"{self.path} was begun with {name} {recorded.get(name)!r}, not {value!r}; "
                    "leave it out, or begin another run"
                )

    def cut_history(self, n_bytes: int) -> None:
        """Drop what was written after the last checkpoint; it will be written again."""
        path = self.path / HISTORY
        with _saying_what_failed(path):
            if path.exists():
                os.truncate(path, min(n_bytes, path.stat().st_size))

    def note(self, entry: dict[str, Any]) -> int:
        """Append a line to the history; returns its size."""
        path = self.path / HISTORY
        with _saying_what_failed(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        return path.stat().st_size


@contextmanager
def _saying_what_failed(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StreammimlError(f"{path} is not saved: {error.strerror}; make room") from error


def _toml(value: Any) -> str:
    """A plain value as TOML writes it: as JSON does, but for surrogates and one control."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
