"""TensorBoard's event files of a run: every line of the history, as scalars."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from streammiml.errors import StreammimlError
from streammiml.learn.progress import Progress

SCALARS = ["loss", "share_of_violations", "validation_loss", "best_loss", "epoch"]
SCALARS += ["steps_per_second", "rows_per_second", "mb_per_second"]


class EventFiles:
    """A watcher of training that writes into a folder; a context that closes the file.

    What a run that was killed had written beyond its last checkpoint is hidden by TensorBoard once
    the run has gone on from there.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            # Loaded late: it takes half a second.
            self._make: Any = import_module("tensorboardX").SummaryWriter
        except ImportError:
            raise StreammimlError(
                "--tensorboard needs tensorboardX; pip install 'streammiml[tensorboard]'"
            ) from None
        self._folder = Path(folder)
        self._writer: Any = None

    def __enter__(self) -> EventFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, progress: Progress) -> None:
        """Write a line of the history; nothing for what is shown between lines."""
        try:
            if self._writer is None:
                again = progress.step if any(self._folder.glob("events.out.*")) else None
                # Names are by the second, and one of the same name would be written over.
                suffix = f".{progress.step}"
                self._writer = self._make(
                    str(self._folder), purge_step=again, filename_suffix=suffix
                )
            if not progress.is_line:
                return
            for name in SCALARS:
                if getattr(progress, name) is not None:
                    self._writer.add_scalar(f"train/{name}", getattr(progress, name), progress.step)
            for name, seconds in progress.time.items():
                self._writer.add_scalar(f"seconds/{name}", seconds, progress.step)
            self._writer.flush()
        except OSError as error:
            raise StreammimlError(f"{self._folder} cannot be written: {error.strerror}") from error
