"""Where the time of a run goes. Nothing that a run does follows from it but when it is saved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

KERNEL, READING, VALIDATION, CHECKPOINTS = "kernel", "reading", "validation", "checkpoints"


@dataclass(frozen=True, slots=True)
class Work:
    """What was done within some time."""

    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    n_bytes: int = 0
    spent: tuple[float, ...] = (0.0,) * 4
    """Seconds of the kernel, of waiting for bags, of looks and of checkpoints."""

    def __sub__(self, other: Work) -> Work:
        return Work(
            self.seconds - other.seconds,
            self.steps - other.steps,
            self.rows - other.rows,
            self.n_bytes - other.n_bytes,
            tuple(a - b for a, b in zip(self.spent, other.spent, strict=True)),
        )

    def a_second(self, count: int) -> float:
        """How many of a count come on one second."""
        return count / max(self.seconds, 1e-9)

    def times(self) -> dict[str, float]:
        """Seconds by name; what is left is all else."""
        named = dict(zip((KERNEL, READING, VALIDATION, CHECKPOINTS), self.spent, strict=True))
        return {name: round(seconds, 4) for name, seconds in named.items()}


class Clock:
    """Counts work and the time it takes, from when it is made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._spent = {KERNEL: 0.0, READING: 0.0, VALIDATION: 0.0, CHECKPOINTS: 0.0}
        self._steps = self._rows = self._n_bytes = 0

    @contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """Time what is done within."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._spent[on] += time.monotonic() - begun

    def waited(self, seconds: float) -> None:
        """Bags have been waited for so long, in all."""
        self._spent[READING] = seconds

    def did(self, steps: int, rows: int, n_bytes: int) -> None:
        """Count work."""
        self._steps += steps
        self._rows += rows
        self._n_bytes += n_bytes

    def work(self) -> Work:
        """All so far."""
        seconds = time.monotonic() - self._begun
        return Work(seconds, self._steps, self._rows, self._n_bytes, tuple(self._spent.values()))
