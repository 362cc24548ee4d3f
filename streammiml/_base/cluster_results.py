"""Results of tasks on a cluster, in order: which tasks are sent, done, fetched, and sent again."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future as ConcurrentFuture
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple, Protocol

_LOG = logging.getLogger("streammiml")
# Tasks per thread that are sent ahead, so that no thread is idle, and the least number of them;
# more are sent when half of them are done.
AHEAD_ON_CLUSTER, LEAST_AHEAD = 4, 32
# How many times as many tasks are held: sent, or done and waiting for an earlier one.
HELD = 2
# How many messages with results are on their way at the same time, at most. With more, messages
# would be shorter; with one, a result would wait for the results that were done just before it.
FETCHES = 3
LOOK_SECONDS = 5
# After how many times in which nothing moves a result is given up that cannot be computed again.
MOST_STALLS = 3
"""How often the state of the cluster is checked."""


def tell(message: str) -> None:
    """Tell the user something in the middle of a call: as a log record, or else as a warning.

    Without a handler of a program, nobody would see the record.
    """
    _LOG.warning(message)
    handlers = [*_LOG.handlers, *logging.getLogger().handlers]
    if all(isinstance(handler, logging.NullHandler) for handler in handlers):
        warnings.warn(message, stacklevel=2)


class Cluster(Protocol):
    """What a stream of results needs to know about its cluster."""

    n_threads: int
    is_interrupted: bool

    def look(self) -> None:
        """Read the state of the cluster again, if it was not read recently."""

    def watch(self, is_done: Callable[[], bool]) -> bool:
        """Poll until done; return False if the workers do nothing, although they have tasks."""

    def is_of_unfit_worker(self, error: BaseException) -> bool:
        """Whether a task failed on a worker that gets no more tasks, so that another may run it."""

    def share_again(self) -> None:
        """Send all shared values again."""

    def lost_tasks(self) -> Exception:
        """The error that says that the workers do nothing, although they have tasks."""

    def lost_scheduler(self) -> Exception:
        """The error that says that the scheduler is gone."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A task that was sent: its item, and the future of its result."""

    item: Any
    future: Any


class _Fetch(NamedTuple):
    """Results that are on their way to this process."""

    futures: list[Any]
    results: ConcurrentFuture[list[Any]]

    @property
    def is_done(self) -> bool:
        """Whether all results are here, or an error."""
        return self.results.done()


class ResultStream:
    """Sends tasks in a window of bounded size, and yields their results in order.

    ``send`` makes futures of items; without it, items are futures, which cannot be sent again. With
    ``most_held``, only the results that are wanted next are fetched, at most so many; the others
    stay on the workers. With 0, none is fetched, and the stream yields futures. With
    ``all_at_once``, the window is as long as the items are.
    """

    def __init__(
        self,
        client: Any,
        cluster: Cluster,
        send: Callable[[list[Any]], list[Any]] | None,
        items: Iterable[Any],
        seen: Callable[[Any], None],
        *,
        most_held: int | None = None,
        all_at_once: bool = False,
    ) -> None:
        self._distributed = import_module("distributed")
        self._client, self._cluster = client, cluster
        self._send, self._seen = send, seen
        self._n_stalls = 0
        self._remaining = iter(items)
        self._most_held, self._all_at_once = most_held, all_at_once
        # Tasks whose results are not yielded yet, in order; and the same by the key of the future.
        self._ahead: deque[_Sent] = deque()
        self._by_key: dict[str, _Sent] = {}
        # Keys of tasks that failed; futures that are done, but not fetched; results that wait for
        # an earlier one; and futures of results that are here.
        self._failed: set[str] = set()
        self._done: list[Any] = []
        self._results: dict[str, Any] = {}
        self._fetched_futures: list[Any] = []
        self._fetches: list[_Fetch] = []
        self._n_running = 0
        self._watch_anew()

    def __iter__(self) -> Iterator[Any]:
        while not self._cluster.is_interrupted:
            self._send_ahead()
            if not self._ahead:
                return
            if self._wait():
                self._sort_completed()
                self._receive()
            else:
                self._send_all_again()
            while self._ahead and self._ahead[0].future.key in self._results:
                key = self._ahead.popleft().future.key
                del self._by_key[key]
                yield self._results.pop(key)
            if self._ahead and self._ahead[0].future.key in self._failed:
                self._ahead[0].future.result()
            self._fetch_done()
        raise KeyboardInterrupt

    def forget(self) -> None:
        """Let the scheduler forget the remaining tasks, without waiting for its answer."""
        with suppress(RuntimeError):
            for sent in self._ahead:
                sent.future.release()
            self._release_fetched()

    def _watch_anew(self) -> None:
        # Dask tells which futures are done, so that the cost of a task does not grow with the
        # number of futures. Results are fetched while others are waited for.
        self._completed = self._distributed.as_completed(loop=self._client.loop)

    def _send_ahead(self) -> None:
        """Send more tasks, if half of those that run are done."""
        self._cluster.look()
        n_ahead = max(LEAST_AHEAD, AHEAD_ON_CLUSTER * self._cluster.n_threads)
        # Many tasks in one message cost the scheduler half as much as many messages.
        if 2 * self._n_running > n_ahead:
            return
        n_new = min(n_ahead - self._n_running, HELD * n_ahead - len(self._ahead))
        if new := list(islice(self._remaining, None if self._all_at_once else n_new)):
            tasks = [_Sent(item, None) for item in new]
            self._send_tasks(tasks)
            self._ahead.extend(tasks)

    def _send_tasks(self, tasks: list[_Sent]) -> None:
        items = [task.item for task in tasks]
        futures = items if self._send is None else self._send(items)
        self._release_fetched()
        for task, future in zip(tasks, futures, strict=True):
            task.future = future
            self._by_key[future.key] = task
        self._completed.update(futures)
        self._n_running += len(futures)

    def _send_again(self, tasks: list[_Sent]) -> None:
        """Forget the futures of some tasks, and send the tasks again, with shared values."""
        self._cluster.share_again()
        before = [task.future for task in tasks]
        for future in before:
            del self._by_key[future.key]
        self._send_tasks(tasks)
        for future in before:
            future.release()

    def _send_all_again(self) -> None:
        """Send all tasks again that have no result yet; Dask has lost track of them.

        Futures that cannot be sent again are waited for a little longer.
        """
        if self._send is None:
            self._n_stalls += 1
            if self._n_stalls == MOST_STALLS:
                raise self._cluster.lost_tasks()
            return
        tell("sending the tasks that are left again")
        self._watch_anew()
        self._done, self._fetches, self._n_running = [], [], 0
        self._send_again(
            [
                task
                for task in self._ahead
                if task.future.key not in self._results and task.future.key not in self._failed
            ]
        )

    def _wait(self) -> bool:
        """Wait until a future is done, or results are fetched; False if nothing moves."""
        completed, fetches = self._completed, self._fetches

        def is_ready() -> bool:
            return bool(completed.has_ready()) or any(fetch.is_done for fetch in fetches)

        def is_ready_soon() -> bool:
            with completed.thread_condition:
                if not is_ready():
                    completed.thread_condition.wait(LOOK_SECONDS)
                return is_ready()

        return self._cluster.watch(is_ready_soon)

    def _sort_completed(self) -> None:
        """Note which futures finished and which failed; send tasks of unfit workers again.

        A future whose result was lost with its worker is waited for again: Dask repeats its task.
        """
        again = []
        for future in self._completed.next_batch(block=False):
            status = future.status
            if status == "finished":
                self._n_running -= 1
                if self._most_held == 0:
                    self._results[future.key] = future
                else:
                    self._done.append(future)
            elif status == "error":
                self._n_running -= 1
                if self._cluster.is_of_unfit_worker(future.exception()) and self._send is not None:
                    again.append(self._by_key[future.key])
                else:
                    self._failed.add(future.key)
            elif status == "cancelled":
                raise self._cluster.lost_scheduler()
            else:
                self._completed.add(future)
        if again:
            self._send_again(again)

    def _receive(self) -> None:
        """Take the results of fetches that are done."""
        for fetch in [fetch for fetch in self._fetches if fetch.is_done]:
            for future, result in zip(fetch.futures, self._fetched(fetch), strict=True):
                self._results[future.key] = result
                self._fetched_futures.append(future)
                self._seen(result)
            self._fetches.remove(fetch)

    def _fetched(self, fetch: _Fetch) -> list[Any]:
        """Return the results of a fetch that is done."""
        try:
            return list(fetch.results.result())
        except (OSError, self._distributed.CancelledError):
            if any(future.status == "error" for future in fetch.futures):
                raise
            raise self._cluster.lost_scheduler() from None

    def _fetch_done(self) -> None:
        """Begin to fetch results that are done, if few fetches are on their way."""
        wanted, later = self._done, []
        if self._most_held is not None:
            next_keys = {task.future.key for task in islice(self._ahead, self._most_held)}
            wanted = [future for future in self._done if future.key in next_keys]
            later = [future for future in self._done if future.key not in next_keys]
        if wanted and len(self._fetches) < FETCHES:
            self._fetches.append(self._start_fetch(wanted))
            self._done = later

    def _start_fetch(self, futures: list[Any]) -> _Fetch:
        """Begin to fetch results, in one message, and end a wait afterwards.

        If a worker died with its results, Dask runs the tasks again elsewhere.
        """
        completed = self._completed

        def wake(_: object) -> None:
            with completed.thread_condition:
                completed.thread_condition.notify()

        results = asyncio.run_coroutine_threadsafe(
            self._client.gather(futures, asynchronous=True), self._client.loop.asyncio_loop
        )
        results.add_done_callback(wake)
        return _Fetch(futures, results)

    def _release_fetched(self) -> None:
        """Let workers forget the results that are here.

        Called after new tasks are sent: Dask delays what is sent within 10 ms of another message to
        the scheduler, and within 5 ms of another message to a worker.
        """
        with suppress(RuntimeError):
            while self._fetched_futures:
                self._fetched_futures.pop().release()
