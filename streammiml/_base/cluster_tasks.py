"""What tasks do on a worker beside their work: they check its version, and name it in errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import distributions
from typing import Any

from streammiml._base.pool_interface import Result, this_worker
from streammiml.errors import StreammimlError

_PLACE = "on the worker at "


class UnfitWorkerError(StreammimlError):
    """A worker must not run tasks; other workers may."""


@cache
def installed_version() -> str:
    """Version of streammiml that is installed in this process."""
    return next((found.version for found in distributions(name="streammiml")), "unknown")


def run_task(task: Callable[..., Result], version: str, *values: Any) -> Result:
    """Run a task on a worker that has the given version; note the worker in an error of the task.

    A worker that joins late may have another version, and might compute something else.
    """
    try:
        if installed_version() != version:
            raise UnfitWorkerError(
                f"the worker at {this_worker()} has streammiml {installed_version()}, this "
                f"process has {version}; install {version} on all workers"
            )
        return task(*values)
    except Exception as error:
        error.add_note(f"{_PLACE}{this_worker()}")
        raise


def place_of(error: BaseException) -> str | None:
    """Address of the worker on which a task raised an error; None if that is not known.

    An error while a worker loads a task, before the task begins, has no place.
    """
    for note in getattr(error, "__notes__", ()):
        if note.startswith(_PLACE):
            return str(note.removeprefix(_PLACE))
    return None


def say_place(error: BaseException) -> None:
    """Name the worker in the message of an error, instead of in a note.

    The note stays where the class of the error builds its message itself.
    """
    place = place_of(error)
    if place is None:
        return
    if isinstance(error, OSError) and error.strerror is not None:
        error.strerror = f"{error.strerror} ({_PLACE}{place})"
    elif error.args == (str(error),):
        error.args = (f"{error} ({_PLACE}{place})",)
    else:
        return
    forget_place(error)


def forget_place(error: BaseException) -> None:
    """Remove the note that names the worker: addresses of our own processes tell nothing."""
    notes = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(_PLACE)]
