"""A fixed team of threads that run one job each at the same time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any


class Team:
    """``n`` threads, one of which is the caller's; leaving the context ends the others."""

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
        """Run each job in a thread of its own and wait for all jobs.

        Returns the results in the order of the jobs; raises the error of the first job that failed.
        """
        for inbox, job in zip(self._inboxes, jobs[1:], strict=True):
            inbox.put(job)
        results: list[Any] = [None] * len(jobs)
        errors: list[BaseException | None] = [None] * len(jobs)
        try:
            results[0] = jobs[0]()
        except BaseException as error:
            errors[0] = error
        for _ in jobs[1:]:
            number, result, job_error = self._done.get()
            results[number], errors[number] = result, job_error
        for job_error in errors:
            if job_error is not None:
                raise job_error
        return results

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads."""
        for inbox in self._inboxes:
            inbox.put(None)
