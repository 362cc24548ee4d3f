"""Every error that a user can cause; the command line prints one as a line and exits with 2."""

from __future__ import annotations

from collections.abc import Iterable


class StreammimlError(ValueError):
    """Something a user can put right; the message says what, where and what to do."""


class StoreError(StreammimlError):
    """A store that is missing, unfinished, damaged, or not what was asked for."""


def unknown(kind: str, name: str, known: Iterable[str]) -> StreammimlError:
    """Say what was asked for and everything that would have worked."""
    return StreammimlError(f"no {kind} is called {name!r}; known: {', '.join(sorted(known))}")
