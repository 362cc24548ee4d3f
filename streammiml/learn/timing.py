"""How a run spends its time. Checkpoints depend on measured times, the result never does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streammiml._base.compiled import compile_seconds

KERNEL, READING, VALIDATION, CHECKPOINTS = "kernel", "reading", "validation", "checkpoints"
REDUCING, WAITING, MOVING = "reducing", "waiting", "moving"
"""Time of runs with replicas: for the reduction of a round, and for collecting what each replica
changed; for waiting for the slowest thread; and for everything else of a round, which is moving
bytes and scheduling."""
OF_REPLICAS = (REDUCING, WAITING, MOVING)
COMPILING = "compiling"
_NAMES = (KERNEL, READING, VALIDATION, CHECKPOINTS, REDUCING, WAITING, MOVING, COMPILING)


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Steps, rows and bytes done in some time, and how the time was spent."""

    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    n_bytes: int = 0
    rounds: int = 0
    """Rounds of replicas."""
    moved: int = 0
    """Bytes that rounds sent to workers and back."""
    spent: tuple[float, ...] = (0.0,) * len(_NAMES)
    """Seconds by purpose, in the order of ``_NAMES``."""

    def __sub__(self, other: WorkDone) -> WorkDone:
        return WorkDone(
            self.seconds - other.seconds,
            self.steps - other.steps,
            self.rows - other.rows,
            self.n_bytes - other.n_bytes,
            self.rounds - other.rounds,
            self.moved - other.moved,
            tuple(a - b for a, b in zip(self.spent, other.spent, strict=True)),
        )

    @property
    def seconds_at_work(self) -> float:
        """Seconds without compiling, which happens only once and is no part of the pace."""
        return max(0.0, self.seconds - self.spent[-1])

    def per_second(self, count: int) -> float:
        """Rate of ``count`` per second of work."""
        return count / max(self.seconds_at_work, 1e-9)

    def times(self) -> dict[str, float]:
        """Seconds by purpose; their sum may be less than ``seconds``."""
        named = dict(zip(_NAMES, self.spent, strict=True))
        return {name: round(seconds, 4) for name, seconds in named.items()}


class TrainClock:
    """Counts work and its time, from the creation of the clock on.

    ``compiled`` returns the seconds that the process has spent on compiling, which are counted
    separately.
    """

    def __init__(self, compiled: Callable[[], float] = compile_seconds) -> None:
        self._begun = time.monotonic()
        self._compiled, self._compiled_before = compiled, compiled()
        self._spent = dict.fromkeys(_NAMES, 0.0)
        self._steps = self._rows = self._n_bytes = self._rounds = self._moved = 0

    @contextmanager
    def spending(self, on: str) -> Iterator[Callable[[], float]]:
        """Count the time of the block under the name ``on``, without the seconds of compiling.

        Yields a function that returns the seconds so far.
        """
        begun = self._working()
        try:
            yield lambda: self._working() - begun
        finally:
            self._spent[on] += max(0.0, self._working() - begun)

    def waited(self, seconds: float) -> None:
        """Set the total number of seconds that the loop has waited for bags."""
        self._spent[READING] = seconds

    def add(self, on: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._spent[on] += seconds

    def _working(self) -> float:
        """Time without the seconds of compiling; only differences are meaningful."""
        return time.monotonic() - self._compiled()

    def did(self, steps: int, rows: int, n_bytes: int) -> None:
        """Add finished work."""
        self._steps += steps
        self._rows += rows
        self._n_bytes += n_bytes

    def did_round(self, moved: int) -> None:
        """Add a finished round, which sent ``moved`` bytes to workers and back."""
        self._rounds += 1
        self._moved += moved

    def work(self) -> WorkDone:
        """Work and time since the creation of the clock."""
        seconds = time.monotonic() - self._begun
        self._spent[COMPILING] = self._compiled() - self._compiled_before
        return WorkDone(
            seconds,
            self._steps,
            self._rows,
            self._n_bytes,
            self._rounds,
            self._moved,
            tuple(self._spent.values()),
        )
