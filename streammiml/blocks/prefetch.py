"""Reading ahead in threads: a bounded number of results in order; an error takes a result's place.

This module does not depend on bags. Its threads are daemons, and nobody waits for a thread that
hangs: a read that never returns must not keep the process alive. The consumer gets an error when
the deadline has passed.
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
"""Seconds that a consumer waits for a result by default."""


def _stopped(_: object) -> NoReturn:
    raise StoreError("reading has been stopped")


class _ReadQueue(Generic[Item, Result]):
    """State that the reading threads and the consumer share, guarded by one lock."""

    def __init__(self, read: Callable[[Item], Result], items: Iterator[Item], depth: int) -> None:
        self._read, self._items, self._depth = read, items, depth
        lock = threading.Lock()
        # Two conditions, so that an event wakes only a thread that can go on.
        self._has_room, self._has_result = threading.Condition(lock), threading.Condition(lock)
        self._n_begun = 0
        """Number of items that threads have begun to read."""
        self._n_returned = 0
        """Number of results that the consumer has received."""
        self._ended = False
        self._stopped = False
        self._outcomes: dict[int, tuple[Result | None, BaseException | None]] = {}
        self.waited = 0.0

    def work(self) -> None:
        """Read one item after another until no item is left or the consumer has stopped."""
        while True:
            with self._has_room:
                while not (self._stopped or self._ended) and self._is_full:
                    self._has_room.wait()
                if self._stopped or self._ended:
                    return
                number = self._n_begun
                try:
                    item = next(self._items)
                except StopIteration:
                    self._end()
                    return
                except BaseException as error:
                    self._n_begun += 1
                    self._outcomes[number] = (None, error)
                    self._end()
                    return
                self._n_begun += 1
            try:
                outcome: tuple[Result | None, BaseException | None] = (self._read(item), None)
            except BaseException as error:
                outcome = (None, error)
            with self._has_result:
                if not self._stopped:
                    self._outcomes[number] = outcome
                if number == self._n_returned:
                    self._has_result.notify()
            # The traceback of an error refers to this frame. If the frame referred to the error,
            # the cycle would keep everything that was read alive.
            del outcome

    def _end(self) -> None:
        """Tell all threads that no item is left; the caller has the lock."""
        self._ended = True
        self._has_room.notify_all()
        self._has_result.notify_all()

    @property
    def _is_full(self) -> bool:
        return self._n_begun - self._n_returned >= self._depth

    def take(self, deadline: float | None) -> tuple[bool, Result | None]:
        """Wait for the next result; (False, None) when no result is left."""
        begun = time.monotonic()
        with self._has_result:
            while self._n_returned not in self._outcomes:
                if self._ended and self._n_returned == self._n_begun:
                    return False, None
                if self._stopped:
                    _stopped(None)
                seconds_left = None if deadline is None else deadline - (time.monotonic() - begun)
                if seconds_left is not None and seconds_left <= 0:
                    raise StoreError(
                        f"a read did not return within {deadline:g} s; "
                        "the disk or the network hangs"
                    )
                self._has_result.wait(seconds_left)
            result, error = self._outcomes.pop(self._n_returned)
            self._n_returned += 1
            self._has_room.notify()
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
        """Tell the threads to end; a result that is still being read will be dropped.

        ``read`` and the items may refer to the owner of this queue and to much memory. They are
        released now, not when the garbage collector finds the cycle.
        """
        with self._has_room:
            self._stopped = True
            self._outcomes.clear()
            self._read, self._items = _stopped, iter(())
            self._has_room.notify_all()
            self._has_result.notify_all()


class ReadAhead(Generic[Item, Result]):
    """Iterates over ``read(item)`` for each item, in order, up to ``depth`` items ahead.

    If ``read`` raises, the error is raised in the place of the result and ends the iteration; a
    StopIteration ends it without an error. ``close``, or leaving the context, ends the threads.
    Only one thread may iterate.
    """

    def __init__(
        self,
        read: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        depth: int,
        threads: int = 1,
        deadline: float | None = DEADLINE,
    ) -> None:
        self._shared = _ReadQueue(read, iter(items), max(1, depth))
        self._deadline = deadline
        self._threads = [
            threading.Thread(target=self._shared.work, daemon=True, name=f"reader-{i}")
            for i in range(max(1, threads))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waited(self) -> float:
        """Seconds that the consumer has waited for results."""
        return self._shared.waited

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        try:
            has_result, result = self._shared.take(self._deadline)
        except BaseException:
            self.close()
            raise
        if not has_result:
            self.close()
            raise StopIteration
        return result  # type: ignore[return-value]

    def __enter__(self) -> ReadAhead[Item, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Tell the threads to end, and wait briefly for those that do not hang."""
        self._shared.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=0.2)


def run_ahead(
    results: Iterator[Result], *, depth: int, deadline: float | None = None
) -> ReadAhead[int, Result]:
    """Run an iterator in a thread of its own, ``depth`` results ahead.

    There is no deadline by default: an iterator that reads has its own deadline for each read.
    """
    # ``results`` must not be passed as ``items``: items are advanced under the lock, and the
    # consumer needs the lock to take a result that is ready.
    return ReadAhead(lambda _: next(results), count(), depth=depth, deadline=deadline)
