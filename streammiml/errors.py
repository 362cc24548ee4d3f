"""Errors that a user can cause; the command line prints them as one line, with exit code 2."""

from __future__ import annotations

from collections.abc import Iterable


class StreammimlError(ValueError):
    """An error that a user can correct; the message says what, where and what to do.

    ``page`` names a page of the guide that helps; the command line and tracebacks show it.
    """

    def __init__(self, *message: object, page: str | None = None) -> None:
        super().__init__(*message)
        self.page = page
        if page is not None:
            self.add_note(f"streammiml guide {page} says more")


class StoreError(StreammimlError):
    """A store is missing, unfinished, damaged, or of another kind than needed."""


class RepeatedIdError(StoreError):
    """Two bags of one store have the same id."""


class UnfitValueError(StoreError):
    """A value does not fit into the type that a store has for its rows."""


class DivergedError(StreammimlError):
    """Training led to a score or weight that is not a finite number."""


def unknown(
    kind: str, name: str, known: Iterable[str], *, page: str | None = None
) -> StreammimlError:
    """Make an error that lists the unknown name and all known names."""
    return StreammimlError(
        f"no {kind} is called {name!r}; known: {', '.join(sorted(known))}", page=page
    )
