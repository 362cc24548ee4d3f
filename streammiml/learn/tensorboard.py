"""Event files for TensorBoard: the lines of the history as scalars."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from streammiml._base.atomic import local_path
from streammiml.errors import StreammimlError
from streammiml.learn.progress import TrainProgress

SCALARS = ["loss", "share_of_violations", "validation_loss", "best_loss", "epoch"]
SCALARS += ["steps_per_second", "rows_per_second", "mb_per_second"]


class EventFiles:
    """A ``watch`` of training that writes event files; a context manager that closes the file.

    A killed run may have written lines beyond its last checkpoint. TensorBoard hides them once the
    resumed run writes with ``purge_step``.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            # Imported only here, because the import takes half a second.
            self._make: Any = import_module("tensorboardX").SummaryWriter
        except ImportError:
            raise StreammimlError(
                "--tensorboard needs tensorboardX; pip install 'streammiml[tensorboard]'"
            ) from None
        self._folder = local_path(folder, "event files")
        self._writer: Any = None

    def __enter__(self) -> EventFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, progress: TrainProgress) -> None:
        """Write the scalars of a line of the history; ignore moments between two lines.

        Only the first restart is written: the steps of the others have the same numbers.
        """
        if progress.restart:
            return
        try:
            if self._writer is None:
                purge_step = progress.step if any(self._folder.glob("events.out.*")) else None
                # File names have a resolution of one second; an equal name would be overwritten.
                suffix = f".{progress.step}"
                self._writer = self._make(
                    str(self._folder), purge_step=purge_step, filename_suffix=suffix
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
