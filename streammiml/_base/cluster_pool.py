"""A pool on a Dask scheduler: a running one, that of a client, or a local cluster of our own."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future as ConcurrentFuture
from contextlib import ExitStack, suppress
from functools import partial, reduce
from http import HTTPStatus
from http.client import HTTPException
from importlib import import_module
from importlib.metadata import distributions
from itertools import islice
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from streammiml._base.local_cluster import interrupt_deferred, start_cluster
from streammiml._base.pool_interface import (
    FAN_IN,
    Combined,
    Item,
    Pool,
    Result,
    added,
    ignore_result,
    prefer_none,
)
from streammiml.config import format_size
from streammiml.errors import StreammimlError

CONNECT_SECONDS = 10
# How often the state of the cluster is checked, and how long it may be without workers.
LOOK_SECONDS = 5
LOST_SECONDS = 30
# How long all workers may be paused; Dask pauses workers that hold too much memory.
PAUSED_SECONDS = 60
# Tasks per thread that are sent ahead, so that no thread is idle, and the least number of them;
# more are sent when half of them are done.
AHEAD_ON_CLUSTER, LEAST_AHEAD = 4, 32
# How many times as many tasks are held: sent, or done and waiting for an earlier one.
HELD = 2
# How many messages with results are on their way at the same time, at most. With more, messages
# would be shorter; with one, a result would wait for the results that were done just before it.
FETCHES = 3
# Combined results of groups that this process holds at most.
GROUPS_HELD = 2
# How often sums are added up on workers before they are fetched: a sum of FAN_IN ** SUM_LEVELS
# tasks. The scheduler remembers tasks until their sum is fetched.
SUM_LEVELS = 3
GONE = "the Dask scheduler is gone"
# Text instead of a function of ours, since a worker may lack streammiml or have another version.
_VERSION_OF_WORKER = """(
    __import__("streammiml.scorer"),
    next(
        (
            found.version
            for found in __import__("importlib.metadata").metadata.distributions(name="streammiml")
        ),
        "unknown",
    ),
)[1]"""


def _same(value: Result) -> Result:
    """Return the value; as a task, this makes the value available on the cluster."""
    return value


def _is_stuck(worker: dict[str, Any]) -> bool:
    """Whether a worker is paused and runs no task."""
    counts = worker.get("metrics", {}).get("task_counts", {})
    return worker["status"] == "paused" and not counts.get("executing")


def default_client() -> Any:
    """The client that Dask uses in this thread by default; None if there is none."""
    # A client can only be there if its package is loaded.
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    with suppress(ValueError):
        return distributed.default_client()
    return None


class _Fetch(NamedTuple):
    """Results that are on their way to this process."""

    futures: list[Any]
    results: ConcurrentFuture[list[Any]]

    @property
    def is_done(self) -> bool:
        """Whether all results are here, or an error."""
        return self.results.done()


class _SumTree:
    """Adds up the results of consecutive futures on workers, ``FAN_IN`` at a time."""

    def __init__(self, client: Any, add: Callable[..., Any]) -> None:
        self._client, self._add = client, add
        self._levels: list[list[Any]] = [[] for _ in range(SUM_LEVELS)]
        self.sums: deque[Any] = deque()
        """Futures of the sums of ``FAN_IN ** SUM_LEVELS`` futures each, in order."""

    def push(self, futures: list[Any]) -> None:
        """Add up these futures too; sums of them are sent as soon as their parts are known."""
        for level in self._levels:
            level += futures
            n_full = len(level) // FAN_IN * FAN_IN
            if n_full == 0:
                return
            parts = [level[first:n_full:FAN_IN] for first in range(FAN_IN)]
            # Before the tasks that wait: a sum frees the memory of its parts.
            futures = self._client.map(self._add, *parts, pure=False, fifo_timeout=0, priority=1)
            del level[:n_full]
        self.sums.extend(futures)

    def take_rest(self) -> list[Any]:
        """Futures whose results, in order, are what is not in ``sums``."""
        rest = [future for level in reversed(self._levels) for future in level]
        self._levels.clear()
        return rest


class ClusterPool(Pool):
    """A scheduler of ``distributed``: at an address, of a client, or of a local cluster of our own.

    ``where`` is the number of processes of our own cluster, an address, a client, which stays
    open, or a Dask cluster object.
    """

    is_remote = True

    def __init__(self, where: Any, memory: int | None = None) -> None:
        # Loaded late: distributed takes half a second, and pools of threads do not need it.
        self._distributed = import_module("distributed")
        self._is_own = isinstance(where, int)
        self._is_gone = self._is_interrupted = False
        self._memory = ""
        self._shared: list[Any] = []
        self._fetched_futures: list[Any] = []
        if not isinstance(where, int | str):
            self._check_client(where)
        with ExitStack() as stack:
            # We report failures ourselves, once.
            stack.enter_context(self._distributed.utils.silence_logging_cmgr(logging.CRITICAL))
            if isinstance(where, self._distributed.Client):
                self._client = where
            else:
                address = start_cluster(where, memory, stack) if self._is_own else where
                self._client = self._connect(address)
                stack.callback(self._disconnect)
            stack.callback(self._release_shared)
            self.dashboard = None if self._is_own else self._find_dashboard()
            workers = self._first_workers()
            self.n_threads = max(1, sum(worker["nthreads"] for worker in workers))
            # Read now for later messages: the limit of a dead worker cannot be read.
            limits = [worker["memory_limit"] for worker in workers if worker.get("memory_limit")]
            if least := min(limits, default=memory):
                self._memory = f" (the smallest has {format_size(least)})"
            # Processes of our own cluster run this very installation.
            if not self._is_own:
                self._check_imports()
            self._keep_copies(stack)
            self._note_interrupts(stack)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Leave the scheduler, or end our own cluster."""
        self._stack.close()

    def _check_client(self, client: Any) -> None:
        """Refuse what is neither a client nor a cluster, or cannot be used from this thread."""
        kind = "client" if isinstance(client, self._distributed.Client) else "cluster"
        if kind == "cluster" and not isinstance(getattr(client, "scheduler_address", None), str):
            raise StreammimlError(
                "client= takes a distributed.Client or a Dask cluster such as LocalCluster, got "
                f"{type(client).__name__}; scheduler= takes an address"
            )
        status = getattr(client.status, "name", client.status)
        if status in ("closing", "closed", "failed"):
            raise StreammimlError(f"the {kind} of client= is closed; give one that is open")
        if getattr(client, "asynchronous", False):
            raise StreammimlError(
                f"the {kind} of client= is asynchronous, and this call would block its event loop; "
                "give a synchronous one, or call from another thread (asyncio.to_thread)"
            )

    def _release_shared(self) -> None:
        """Let the scheduler forget all values: a client of the user's may stay open."""
        self._release_fetched()
        with suppress(RuntimeError):
            for future in self._shared:
                future.release()

    def _release_fetched(self) -> None:
        """Let workers forget the results that are here.

        Called after new tasks are sent: Dask delays what is sent within 10 ms of another message to
        the scheduler, and within 5 ms of another message to a worker.
        """
        with suppress(RuntimeError):
            while self._fetched_futures:
                self._fetched_futures.pop().release()

    def _disconnect(self) -> None:
        with interrupt_deferred(), suppress(OSError, AssertionError):
            self._client.close(timeout=CONNECT_SECONDS)

    def _note_interrupts(self, stack: ExitStack) -> None:
        """Remember Ctrl-C: Python prints and drops an interrupt that comes while it frees memory.

        :meth:`map` raises a remembered interrupt again.
        """
        before = signal.getsignal(signal.SIGINT)

        def note(number: int, frame: FrameType | None) -> None:
            self._is_interrupted = True
            if callable(before):
                before(number, frame)

        if callable(before):
            with suppress(ValueError):  # Only the main thread may set handlers.
                signal.signal(signal.SIGINT, note)
                stack.callback(signal.signal, signal.SIGINT, before)

    def _keep_copies(self, stack: ExitStack) -> None:
        """Stop Dask from dropping copies of shared values as long as this pool is open.

        If a worker with a copy dies while Dask removes the other copies, Dask may wait forever for
        the value.
        """

        def restart() -> None:
            if not self._is_gone:
                with suppress(StreammimlError):
                    self._ask_scheduler("amm_handler", method="start")

        if self._ask_scheduler("amm_handler", method="running"):
            self._ask_scheduler("amm_handler", method="stop")
            stack.callback(restart)

    def _connect(self, address: Any) -> Any:
        """Return a client of the scheduler at an address, or of a cluster object."""
        try:
            if isinstance(address, str):
                self._check_scheduler(address)
            return self._distributed.Client(
                address, timeout=CONNECT_SECONDS, set_as_default=False, name="streammiml"
            )
        # Any program may answer at an address, with anything.
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, MemoryError):
                why = "another program answers there"
            elif isinstance(error, TimeoutError):
                why = f"no answer within {CONNECT_SECONDS} s"
            raise StreammimlError(
                f"no Dask scheduler answers at {address or repr(address)} ({why}); give "
                "tcp://HOST:PORT, start one with dask scheduler, or leave --scheduler out"
            ) from None

    def _check_scheduler(self, address: str) -> None:
        """Ask the program at an address for its identity; refuse workers and nannies.

        Dask's own client would wait forever for a program that does not answer. For a malformed
        address the client would take twenty seconds to close.
        """
        core = import_module("distributed.core")
        security = self._distributed.Security().get_connection_args("client")

        async def identify() -> Any:
            comm = await core.connect(address, timeout=CONNECT_SECONDS, **security)
            try:
                return await core.send_recv(comm, op="identity")
            finally:
                comm.abort()

        runner = self._distributed.utils.LoopRunner()
        runner.start()
        try:
            # One second longer than the timeout of the connection, whose error says more.
            identity = self._distributed.sync(
                runner.loop, identify, callback_timeout=CONNECT_SECONDS + 1
            )
        finally:
            with suppress(TimeoutError):
                runner.stop(timeout=1)
        if identity["type"] in ("Worker", "Nanny"):
            raise StreammimlError(f"a {identity['type'].lower()} does")

    def _find_dashboard(self) -> str | None:
        """Return the address of the dashboard; None if the scheduler has none.

        A scheduler without a dashboard still names a port, whose pages are all "not found".
        """
        if "dashboard" not in self._ask_scheduler("identity", n_workers=0)["services"]:
            return None
        link = str(self._client.dashboard_link)
        try:
            build_opener(ProxyHandler({})).open(link, timeout=2).close()
        except HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
        # The user may reach a dashboard that this machine cannot reach.
        except (OSError, ValueError, HTTPException):
            pass
        return link

    def _first_workers(self) -> list[dict[str, Any]]:
        """Wait for a worker; return what the scheduler knows about its workers."""
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            if self._known_workers():
                raise self._out_of_memory("all workers are paused, as they are") from None
            address = self._client.scheduler.address
            raise StreammimlError(
                f"the Dask scheduler at {address} has no workers; "
                f"start some with dask worker {address}"
            ) from None
        return list(self._known_workers().values())

    def _check_imports(self) -> None:
        """Refuse workers that lack what tasks need, or have another version of streammiml.

        The first task would kill the former; the latter might compute something else.
        """
        answers = self.on_every_worker(eval, _VERSION_OF_WORKER)
        for answer in answers.values():
            if isinstance(answer, ImportError):
                raise self._lacks_packages(answer)
        here = next((found.version for found in distributions(name="streammiml")), "unknown")
        # A worker that did not answer is noticed later.
        others = {
            address: version
            for address, version in answers.items()
            if isinstance(version, str) and version != here
        }
        if others:
            address, version = next(iter(others.items()))
            raise StreammimlError(
                f"{len(others)} of {len(answers)} workers have another version of streammiml: "
                f"{address} has {version}, this process has {here}; install {here} on all workers"
            )

    def workers(self) -> dict[str, int]:
        """See :meth:`Pool.workers`; workers may come and go."""
        return {address: facts["nthreads"] for address, facts in self._known_workers().items()}

    def least_memory(self) -> int | None:
        """See :meth:`Pool.least_memory`."""
        limits = [facts.get("memory_limit") for facts in self._known_workers().values()]
        return min((limit for limit in limits if limit), default=None)

    def on_every_worker(self, function: Callable[..., Any], *values: Any) -> dict[str, Any]:
        """See :meth:`Pool.on_every_worker`."""
        client = self._client

        async def ask(address: str) -> Any:
            answer = client.run(
                function, *values, workers=[address], on_error="return", asynchronous=True
            )
            try:
                return (await asyncio.wait_for(answer, LOST_SECONDS))[address]
            except (OSError, KeyError) as error:
                # The worker is gone, or does not answer.
                return error if isinstance(error, TimeoutError) else OSError(f"{address} is gone")

        async def ask_all(addresses: list[str]) -> list[Any]:
            return await asyncio.gather(*map(ask, addresses))

        addresses = list(self._known_workers())
        answers = client.sync(ask_all, addresses)
        return dict(zip(addresses, answers, strict=True))

    def _known_workers(self) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knows about its workers, by address."""
        return dict(self._ask_scheduler("identity", n_workers=-1)["workers"])

    def _ask_scheduler(self, handler: str, **arguments: Any) -> Any:
        """Call a handler of the scheduler; a scheduler that is gone or hangs is an error."""
        if self._client.status != "running":
            raise self._lost(GONE)
        try:
            call = getattr(self._client.scheduler, handler)
            return self._client.sync(call, **arguments, callback_timeout=LOST_SECONDS)
        except OSError:
            raise self._lost(GONE) from None

    def share(self, value: Any) -> Any:
        """Return a future of the value; workers copy it from each other when they first need it.

        The value is the result of a task, not scattered data: scattered data is lost with the last
        worker that holds it, while a task runs again. The value is not replicated beforehand
        either: if the only worker is dead or lacks streammiml, Dask would wait forever.
        """
        self._shared += self._send(_same, [value])
        return self._shared[-1]

    def release(self, shared: Any) -> None:
        """See :meth:`Pool.release`."""
        self._shared.remove(shared)
        shared.release()

    def _send(
        self,
        task: Callable[..., Any],
        items: list[Any],
        shared: tuple[Any, ...] = (),
        prefer: Callable[[Any], str | None] = prefer_none,
    ) -> list[Any]:
        """Send tasks out, in one message for each preferred worker; futures are in order."""
        if self._client.status != "running":
            raise self._lost(GONE)
        numbers_of: dict[str | None, list[int]] = {}
        for number, item in enumerate(items):
            numbers_of.setdefault(prefer(item), []).append(number)
        futures: list[Any] = [None] * len(items)
        for worker, numbers in numbers_of.items():
            where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
            with warnings.catch_warnings():
                # Dask takes large arguments for a mistake; here each is sent only once.
                warnings.filterwarnings("ignore", "Sending large graph")
                sent = self._client.map(
                    task,
                    [items[number] for number in numbers],
                    *([value] * len(numbers) for value in shared),
                    pure=False,
                    # Earlier messages first: results are wanted in order.
                    fifo_timeout=0,
                    **where,
                )
            for number, future in zip(numbers, sent, strict=True):
                futures[number] = future
        return futures

    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = ignore_result,
        prefer: Callable[[Item], str | None] = prefer_none,
    ) -> Iterator[Result]:
        """See :meth:`Pool.map`."""
        return self._collect(lambda some: self._send(task, some, shared, prefer), items, seen)

    def map_partitions(
        self,
        task: Callable[..., Result],
        collection: Any,
        *shared: Any,
        each: Sequence[Any] | None = None,
    ) -> Iterator[Result]:
        """See :meth:`Pool.map_partitions`.

        All tasks are sent at once, as partitions may share tasks that would run again otherwise.
        """
        if self._client.status != "running":
            raise self._lost(GONE)
        partitions = self._client.compute(list(collection.to_delayed()))
        numbers = range(len(partitions))
        more = [[value] * len(partitions) for value in shared]
        if each is not None:
            more.append(list(each))
        futures = self._client.map(task, partitions, numbers, *more, pure=False)
        # Only the tasks need the partitions; a worker forgets each once its task is done.
        for future in partitions:
            future.release()
        del partitions
        return self._collect(lambda some: some, futures, ignore_result)

    def map_groups(
        self,
        task: Callable[..., Result],
        groups: Iterable[Sequence[Item]],
        combine: Callable[..., Combined],
        *shared: Any,
        prefer: Callable[[Item], str | None] = prefer_none,
    ) -> Iterator[Combined]:
        """See :meth:`Pool.map_groups`."""

        def send(some: list[Sequence[Item]]) -> list[Any]:
            items = [item for group in some for item in group]
            results = iter(self._send(task, items, shared, prefer))
            # A group is combined where most of its results are.
            return [
                self._client.submit(
                    combine, list(islice(results, len(group))), *shared, pure=False, fifo_timeout=0
                )
                for group in some
            ]

        return self._collect(send, groups, ignore_result, most_held=GROUPS_HELD)

    def map_reduce(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        add: Callable[[Result, Result], Result],
        *shared: Any,
        seen: Callable[[Item], None] = ignore_result,
    ) -> Result:
        """See :meth:`Pool.map_reduce`."""
        tree = _SumTree(self._client, partial(added, add))
        waiting: deque[Item] = deque()

        def send(some: list[Item]) -> list[Any]:
            waiting.extend(some)
            futures = self._send(task, some, shared)
            tree.push(futures)
            return futures

        def sums() -> Iterator[Any]:
            for number, _ in enumerate(self._collect(send, items, ignore_result, most_held=0), 1):
                seen(waiting.popleft())
                if number % FAN_IN**SUM_LEVELS == 0:
                    yield from self._collect(list, [tree.sums.popleft()], ignore_result)
            yield from self._collect(list, tree.take_rest(), ignore_result, most_held=GROUPS_HELD)

        total: Result = reduce(add, sums())
        return total

    def _collect(
        self,
        send: Callable[[list[Item]], list[Any]],
        items: Iterable[Item],
        seen: Callable[[Result], None],
        most_held: int | None = None,
    ) -> Iterator[Result]:
        """Yield the results of the futures that ``send`` makes of items, in order.

        With ``most_held``, only the results that are wanted next are fetched, at most so many; the
        others stay on the workers. With 0, none is fetched, and None stands for each.
        """
        remaining = iter(items)
        # Futures of the items that are not yielded yet, in order; keys of those that failed; those
        # that are done, but not fetched; and results that wait for an earlier one.
        ahead: deque[Any] = deque()
        failed: set[str] = set()
        done: list[Any] = []
        results: dict[str, Any] = {}
        # Dask tells which futures are done, so that the cost of a task does not grow with the
        # number of futures. Results are fetched while others are waited for.
        completed = self._distributed.as_completed(loop=self._client.loop)
        fetches: list[_Fetch] = []
        n_ahead, n_running = max(LEAST_AHEAD, AHEAD_ON_CLUSTER * self.n_threads), 0
        try:
            while not self._is_interrupted:
                # Many tasks in one message cost the scheduler half as much as many messages.
                if 2 * n_running <= n_ahead:
                    n_new = min(n_ahead - n_running, HELD * n_ahead - len(ahead))
                    if new := list(islice(remaining, n_new)):
                        futures = send(new)
                        self._release_fetched()
                        ahead.extend(futures)
                        completed.update(futures)
                        n_running += len(futures)
                if not ahead:
                    return
                self._wait(completed, fetches)
                finished, errors = self._sort_completed(completed)
                if most_held == 0:
                    results |= dict.fromkeys(future.key for future in finished)
                else:
                    done += finished
                failed |= errors
                n_running -= len(finished) + len(errors)
                for fetch in [fetch for fetch in fetches if fetch.is_done]:
                    for future, result in zip(fetch.futures, self._fetched(fetch), strict=True):
                        results[future.key] = result
                        self._fetched_futures.append(future)
                        seen(result)
                    fetches.remove(fetch)
                while ahead and ahead[0].key in results:
                    yield results.pop(ahead.popleft().key)
                if ahead and ahead[0].key in failed:
                    ahead[0].result()
                wanted, later = done, []
                if most_held is not None:
                    next_keys = {future.key for future in islice(ahead, most_held)}
                    wanted = [future for future in done if future.key in next_keys]
                    later = [future for future in done if future.key not in next_keys]
                if wanted and len(fetches) < FETCHES:
                    fetches.append(self._start_fetch(wanted, completed))
                    done = later
            raise KeyboardInterrupt
        except self._distributed.KilledWorker as error:
            raise self._out_of_memory(
                "a task was given up because its workers died one after the other, as they do"
            ) from error
        except ImportError as error:
            raise self._lacks_packages(error) from error
        except MemoryError as error:
            raise StreammimlError(
                f"a task ran out of memory ({error}){self._memory}; lower {self.relief}, or give "
                "workers more memory"
            ) from error
        finally:
            # Let the scheduler forget the remaining tasks, without waiting for its answer.
            with suppress(RuntimeError):
                for future in ahead:
                    future.release()

    def _wait(self, completed: Any, fetches: list[_Fetch]) -> None:
        """Wait until a future is done, or results are fetched."""

        def is_ready() -> bool:
            return bool(completed.has_ready()) or any(fetch.is_done for fetch in fetches)

        def is_ready_soon() -> bool:
            with completed.thread_condition:
                if not is_ready():
                    completed.thread_condition.wait(LOOK_SECONDS)
                return is_ready()

        self._watch(is_ready_soon)

    def _sort_completed(self, completed: Any) -> tuple[list[Any], set[str]]:
        """Return the futures that finished since the last call, and the keys of those that failed.

        A future whose result was lost with its worker is waited for again: Dask repeats its task.
        """
        finished, failed = [], set()
        for future in completed.next_batch(block=False):
            status = future.status
            if status == "finished":
                finished.append(future)
            elif status == "error":
                failed.add(future.key)
            elif status == "cancelled":
                raise self._lost(GONE)
            else:
                completed.add(future)
        return finished, failed

    def _start_fetch(self, futures: list[Any], completed: Any) -> _Fetch:
        """Begin to fetch results, in one message, and end a wait for ``completed`` afterwards.

        If a worker died with its results, Dask runs the tasks again elsewhere.
        """

        def wake(_: object) -> None:
            with completed.thread_condition:
                completed.thread_condition.notify()

        results = asyncio.run_coroutine_threadsafe(
            self._client.gather(futures, asynchronous=True), self._client.loop.asyncio_loop
        )
        results.add_done_callback(wake)
        return _Fetch(futures, results)

    def _fetched(self, fetch: _Fetch) -> list[Any]:
        """Return the results of a fetch that is done."""
        try:
            return list(fetch.results.result())
        except (OSError, self._distributed.CancelledError):
            if any(future.status == "error" for future in fetch.futures):
                raise
            raise self._lost(GONE) from None

    def _watch(self, is_done: Callable[[], bool]) -> None:
        """Poll until done; a cluster without living workers is an error instead of a hang."""
        seen_at = moved_at = monotonic()
        while not is_done():
            if self._is_interrupted:
                raise KeyboardInterrupt
            workers, now = self._known_workers().values(), monotonic()
            if workers:
                seen_at = now
            if not all(_is_stuck(worker) for worker in workers):
                moved_at = now
            if now - seen_at > LOST_SECONDS and self._is_own:
                raise self._out_of_memory("workers die before they do anything, as they do")
            if now - seen_at > LOST_SECONDS:
                raise self._lost("all workers of the Dask scheduler are gone")
            if workers and now - moved_at > PAUSED_SECONDS:
                raise self._out_of_memory("all workers are paused, as they are")

    def _out_of_memory(self, symptom: str) -> StreammimlError:
        return StreammimlError(
            f"{symptom} when they run out of memory{self._memory}; lower {self.relief}, or give "
            "workers more memory"
        )

    @staticmethod
    def _lacks_packages(error: ImportError) -> StreammimlError:
        return StreammimlError(
            f"workers of the cluster cannot import what tasks need ({error}); install this "
            "version of streammiml in their environment"
        )

    def _lost(self, what: str) -> StreammimlError:
        self._is_gone = True
        return StreammimlError(
            f"{what}; start the cluster again, and {self.goes_on}", page="clusters"
        )
