"""Reading ahead: results in order, a bounded number of them, errors where they belong.

Knows nothing of bags. Threads are daemons and are never waited for once they hang: a read that
does not come back must not keep the process alive, and the consumer is told within a deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Generic, NoReturn, TypeVar

from streammiml.errors import StoreError

Item = TypeVar("Item")
Result = TypeVar("Result")

DEADLINE = 300.0


def _stopped(_: object) -> NoReturn:
    raise StoreError("reading has been stopped")


class _Ahead(Generic[Item, Result]):
    """What the readers and the consumer share; everything is touched under one condition."""

    def __init__(self, read: Callable[[Item], Result], wanted: Iterator[Item], depth: int) -> None:
        self._read, self._wanted, self._depth = read, wanted, depth
        self._changed = threading.Condition()
        self._taken = 0
        self._given = 0
        self._ended = False
        self._stopped = False
        self._done: dict[int, tuple[Result | None, BaseException | None]] = {}
        self.waited = 0.0

    def work(self) -> None:
        """Read one item after another until none is left or the consumer has gone."""
        while True:
            with self._changed:
                while not (self._stopped or self._ended) and self._full:
                    self._changed.wait()
                if self._stopped or self._ended:
                    return
                number = self._taken
                try:
                    item = next(self._wanted)
                except StopIteration:
                    self._ended = True
                    self._changed.notify_all()
                    return
                except BaseException as error:
                    self._ended = True
                    self._taken += 1
                    self._done[number] = (None, error)
                    self._changed.notify_all()
                    return
                self._taken += 1
            try:
                outcome: tuple[Result | None, BaseException | None] = (self._read(item), None)
            except BaseException as error:
                outcome = (None, error)
            with self._changed:
                if not self._stopped:
                    self._done[number] = outcome
                self._changed.notify_all()
            # An error knows this frame, and the frame must not know it: a circle would hold all
            # that was read.
            del outcome

    @property
    def _full(self) -> bool:
        return self._taken - self._given >= self._depth

    def take(self, deadline: float | None) -> tuple[bool, Result | None]:
        """The next result, in order; False when there is none left."""
        begun = time.monotonic()
        with self._changed:
            while self._given not in self._done:
                if self._ended and self._given == self._taken:
                    return False, None
                if self._stopped:
                    _stopped(None)
                left = None if deadline is None else deadline - (time.monotonic() - begun)
                if left is not None and left <= 0:
                    raise StoreError(
                        f"a read did not come back within {deadline:g} s; "
                        "the disk or the network hangs"
                    )
                self._changed.wait(left)
            result, error = self._done.pop(self._given)
            self._given += 1
            self._changed.notify_all()
        self.waited += time.monotonic() - begun
        if isinstance(error, StopIteration):
            return False, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return True, result

    def stop(self) -> None:
        """Let the readers go; what they are reading is dropped when it comes.

        What they call may hold whoever holds us, and much memory: it is let go of now, not when
        the garbage collector finds the circle.
        """
        with self._changed:
            self._stopped = True
            self._done.clear()
            self._read, self._wanted = _stopped, iter(())
            self._changed.notify_all()


class ReadAhead(Generic[Item, Result]):
    """Iterates over ``read(item)`` for each wanted item, in order, reading ``depth`` of them ahead.

    An error is raised where its result would have come, and ends the iteration; StopIteration ends
    it in silence. ``waited`` is the
    time that the consumer spent waiting, in seconds. Closing it, or leaving it as a context,
    lets the readers go.
    """

    def __init__(
        self,
        read: Callable[[Item], Result],
        wanted: Iterable[Item],
        *,
        depth: int,
        threads: int = 1,
        deadline: float | None = DEADLINE,
    ) -> None:
        self._shared = _Ahead(read, iter(wanted), max(1, depth))
        self._deadline = deadline
        self._threads = [
            threading.Thread(target=self._shared.work, daemon=True, name=f"reader-{i}")
            for i in range(max(1, threads))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waited(self) -> float:
        """Seconds that the consumer has waited."""
        return self._shared.waited

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        try:
            there, result = self._shared.take(self._deadline)
        except BaseException:
            self.close()
            raise
        if not there:
            self.close()
            raise StopIteration
        return result  # type: ignore[return-value]

    def __enter__(self) -> ReadAhead[Item, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the readers go, and wait briefly for those that are not hanging."""
        self._shared.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=0.2)


def run_ahead(
    results: Iterator[Result], *, depth: int, deadline: float | None = None
) -> ReadAhead[int, Result]:
    """Run an iterator in a thread of its own, ``depth`` results ahead.

    Without a deadline unless given: one that reads has its own, for each of its reads.
    """
    # Not as what is wanted: that is asked for under the lock, and the consumer would wait with it.
    return ReadAhead(lambda _: next(results), count(), depth=depth, deadline=deadline)
