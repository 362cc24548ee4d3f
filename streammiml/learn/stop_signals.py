"""Signals that ask a run to stop: SIGINT and SIGTERM, handled between two steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """A signal stopped a run in a folder, which can be resumed; ``number`` is the signal's."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped at step {step:,}")
        self.number = number


class Interrupted(Exception):
    """A signal came while the run waited for a read."""


class StopSignals:
    """The first stop signal, and whether a signal may interrupt the main thread now."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the stop signal; 0 before any signal."""
        self._is_waiting = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note the first signal. A second signal ends the process, as without a handler."""

        def note(number: int, _: object) -> None:
            self.number = number
            for kind in _NUMBERS:
                signal.signal(kind, signal.SIG_DFL)
            if self._is_waiting:
                raise Interrupted

        try:
            previous = {kind: signal.signal(kind, note) for kind in _NUMBERS}
        except ValueError:  # Python lets only the main thread set handlers.
            yield
            return
        try:
            yield
        finally:
            for kind, handler in previous.items():
                signal.signal(kind, handler)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """In this context a signal raises ``Interrupted``; an earlier signal raises it on entry."""
        try:
            self._is_waiting = True
            if self.number:
                raise Interrupted
            yield
        finally:
            self._is_waiting = False
