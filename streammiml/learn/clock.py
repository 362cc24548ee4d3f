"""Where the time of a run goes. Nothing that a run does follows from it but when it is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streammiml.jit import compile_seconds

KERNEL, READING, VALIDATION, CHECKPOINTS = "kernel", "reading", "validation", "checkpoints"
COMPILING = "compiling"
_NAMES = (KERNEL, READING, VALIDATION, CHECKPOINTS, COMPILING)


@dataclass(frozen=True, slots=True)
class Work:
    """What was done within some time."""

    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    n_bytes: int = 0
    spent: tuple[float, ...] = (0.0,) * len(_NAMES)
    """Seconds of the kernel, of waiting for bags, of looks, of checkpoints, and of compiling."""

    def __sub__(self, other: Work) -> Work:
        return Work(
            self.seconds - other.seconds,
            self.steps - other.steps,
            self.rows - other.rows,
            self.n_bytes - other.n_bytes,
            tuple(a - b for a, b in zip(self.spent, other.spent, strict=True)),
        )

    @property
    def seconds_at_work(self) -> float:
        """Seconds without those of compiling, which happens once and says nothing of the pace."""
        return max(0.0, self.seconds - self.spent[-1])

    def a_second(self, count: int) -> float:
        """How many of a count come on one second of work."""
        return count / max(self.seconds_at_work, 1e-9)

    def times(self) -> dict[str, float]:
        """Seconds by name; what is left is all else."""
        named = dict(zip(_NAMES, self.spent, strict=True))
        return {name: round(seconds, 4) for name, seconds in named.items()}


class Clock:
    """Counts work and the time it takes, from when it is made.

    ``compiled`` gives the seconds that the process has compiled for; they are counted apart.
    """

    def __init__(self, compiled: Callable[[], float] = compile_seconds) -> None:
        self._begun = time.monotonic()
        self._compiled, self._compiled_before = compiled, compiled()
        self._spent = dict.fromkeys(_NAMES, 0.0)
        self._steps = self._rows = self._n_bytes = 0

    @contextmanager
    def spending(self, on: str) -> Iterator[Callable[[], float]]:
        """Time what is done within, without compiling; gives a function that tells the seconds."""
        begun = self._working()
        try:
            yield lambda: self._working() - begun
        finally:
            self._spent[on] += max(0.0, self._working() - begun)

    def waited(self, seconds: float) -> None:
        """Bags have been waited for so long, in all."""
        self._spent[READING] = seconds

    def _working(self) -> float:
        return time.monotonic() - self._compiled()

    def did(self, steps: int, rows: int, n_bytes: int) -> None:
        """Count work."""
        self._steps += steps
        self._rows += rows
        self._n_bytes += n_bytes

    def work(self) -> Work:
        """All so far."""
        seconds = time.monotonic() - self._begun
        self._spent[COMPILING] = self._compiled() - self._compiled_before
        return Work(seconds, self._steps, self._rows, self._n_bytes, tuple(self._spent.values()))
