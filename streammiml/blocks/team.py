"""A few threads that do one thing each, together, and are waited for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any


class Team:
    """``n`` threads, the caller's own among them; a context that lets the others go."""

    def __init__(self, n: int) -> None:
        self._inboxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(n - 1)]
        self._done: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        for number, inbox in enumerate(self._inboxes, 1):
            thread = threading.Thread(
                target=self._work, args=(number, inbox), daemon=True, name=f"team-{number}"
            )
            thread.start()

    def _work(self, number: int, inbox: queue.SimpleQueue[Any]) -> None:
        while (job := inbox.get()) is not None:
            try:
                self._done.put((number, job(), None))
            except BaseException as error:
                self._done.put((number, None, error))

    def run(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do each job in a thread of its own; results in order, the first error raised."""
        for inbox, job in zip(self._inboxes, jobs[1:], strict=True):
            inbox.put(job)
        results: list[Any] = [None] * len(jobs)
        errors: list[BaseException | None] = [None] * len(jobs)
        try:
            results[0] = jobs[0]()
        except BaseException as error:
            errors[0] = error
        for _ in jobs[1:]:
            number, results_there, error_there = self._done.get()
            results[number], errors[number] = results_there, error_there
        for problem in errors:
            if problem is not None:
                raise problem
        return results

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the threads go."""
        for inbox in self._inboxes:
            inbox.put(None)
