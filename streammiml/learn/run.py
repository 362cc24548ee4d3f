"""A run folder: settings, history, checkpoints and the model, held by one process at a time."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from streammiml.bags.parts import Lock
from streammiml.errors import StreammimlError
from streammiml.model import MODEL_FILE, write_whole

SETTINGS, HISTORY, CHECKPOINTS = "settings.toml", "history.jsonl", "checkpoints"
# Settings that change how fast a run goes or when it ends, and never what a step does.
FREE = ("memory", "checkpoint_every", "epochs", "max_steps")


class RunFolder:
    """One run; a context that lets go of the folder."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.exists = (path / SETTINGS).exists()
        if not resume and path.exists() and any(path.iterdir()):
            raise StreammimlError(
                f"{path} exists already; --resume goes on with it, or name another folder"
            )
        try:
            (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            self._lock = Lock(path / "lock", f"run {path}")
        except OSError as error:
            raise StreammimlError(f"{path} cannot be written: {error.strerror}") from error

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
            return tomllib.loads((self.path / SETTINGS).read_text())
        except (tomllib.TOMLDecodeError, OSError) as error:
            raise StreammimlError(f"{self.path / SETTINGS} cannot be read: {error}") from None

    def record(self, settings: dict[str, Any]) -> None:
        """Write the settings down; what is None stays out."""
        lines = [
            f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None
        ]
        write_whole(self.path / SETTINGS, ["\n".join(lines).encode() + b"\n"])
        self.exists = True

    def check_same(self, wanted: dict[str, Any]) -> None:
        """Refuse settings that contradict the recorded ones, naming the first."""
        recorded = self.settings()
        for name, value in wanted.items():
            if name not in FREE and name in recorded and recorded[name] != value:
                raise StreammimlError(
                    f"{self.path} was begun with {name} {recorded[name]!r}, not {value!r}; "
                    "leave it out, or begin another run"
                )

    def cut_history(self, n_bytes: int) -> None:
        """Drop what was written after the last checkpoint; it will be written again."""
        path = self.path / HISTORY
        if path.exists():
            os.truncate(path, min(n_bytes, path.stat().st_size))

    def note(self, entry: dict[str, Any]) -> int:
        """Append a line to the history; returns its size."""
        path = self.path / HISTORY
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            return file.tell()
