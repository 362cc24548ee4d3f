"""A pool on a Dask scheduler: a running one, that of a client, or a local cluster of our own."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from itertools import islice
from time import monotonic, sleep
from types import FrameType
from typing import Any
from uuid import uuid4

from streammiml._base.cluster_connection import (
    CONNECT_SECONDS,
    connect,
    find_dashboard,
    how_to_start_workers,
)
from streammiml._base.cluster_results import LOOK_SECONDS, ResultStream, tell
from streammiml._base.cluster_tasks import (
    UnfitWorkerError,
    forget_place,
    installed_version,
    place_of,
    run_task,
    say_place,
)
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

# How long a cluster may be without workers: before a message, and in all. An adaptive cluster
# starts workers when there is work, which can take minutes; only a cluster of our own has its
# workers from the beginning.
NO_WORKERS_SECONDS, LOST_SECONDS, START_SECONDS = 10, 30, 600
POLL_SECONDS = 0.1
# How long all workers may be paused; Dask pauses workers that hold too much memory.
PAUSED_SECONDS = 60
STALL_SECONDS = 60
"""How long workers may run nothing and fetch nothing, although they have tasks."""
# Combined results of groups that this process holds at most.
GROUPS_HELD = 2
# How often sums are added up on workers before they are fetched: a sum of FAN_IN ** SUM_LEVELS
# tasks. The scheduler remembers tasks until their sum is fetched.
SUM_LEVELS = 3
# Results that are added up at a time: sums are sent in one message.
ADDED_AT_ONCE = FAN_IN**2
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


def _n_tasks(worker: dict[str, Any], *states: str) -> int:
    """Number of tasks of a worker in some states."""
    counts = worker.get("metrics", {}).get("task_counts", {})
    return sum(counts.get(state, 0) for state in states)


def _is_stuck(worker: dict[str, Any]) -> bool:
    """Whether a worker is paused and runs no task."""
    return worker["status"] == "paused" and not _n_tasks(worker, "executing")


def _is_idle(worker: dict[str, Any]) -> bool:
    """Whether a worker neither runs a task nor fetches what a task needs."""
    return not _n_tasks(worker, "executing", "long-running", "flight")


@dataclass(slots=True, eq=False)
class _SharedValue:
    """A value that many tasks need, and its future on the cluster."""

    value: Any
    future: Any


class _SumTree:
    """Adds up the results of consecutive futures on workers, ``FAN_IN`` at a time.

    ``send`` makes the futures of sums, whose parts are lists of futures.
    """

    def __init__(self, send: Callable[[list[list[Any]]], list[Any]]) -> None:
        self._send = send
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
            futures = self._send([level[first:n_full:FAN_IN] for first in range(FAN_IN)])
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
    open, or a Dask cluster object. On a cluster that is not ours, nothing of the cluster itself is
    changed: its other users keep their settings.
    """

    is_remote = True

    def __init__(self, where: Any, memory: int | None = None) -> None:
        # Loaded late: distributed takes half a second, and pools of threads do not need it.
        self._distributed = import_module("distributed")
        self._is_own = isinstance(where, int)
        self.is_interrupted = False
        self._least_memory: int | None = memory
        self._shared: list[_SharedValue] = []
        self._unfit: dict[str, str] = {}
        """Addresses of workers that get no tasks, and why."""
        self._stall_seconds = STALL_SECONDS
        self._next_look = 0.0
        with ExitStack() as stack:
            if isinstance(where, int | str):
                # We report failures ourselves, once. A client or cluster object of the user's
                # keeps its log.
                level = logging.CRITICAL
                stack.enter_context(self._distributed.utils.silence_logging_cmgr(level))
            if isinstance(where, self._distributed.Client):
                self._client = where
            else:
                address = start_cluster(where, memory, stack) if self._is_own else where
                self._client = connect(address)
                stack.callback(self._disconnect)
            stack.callback(self._release_shared)
            self.dashboard = None
            if not self._is_own:
                services = self._ask_scheduler("identity", n_workers=0)["services"]
                self.dashboard = find_dashboard(self._client, services)
                self._wait_for_workers()
                self._check_imports()
            else:
                # Its processes have begun, and run this very installation.
                self.n_threads = where
                self._known_workers()
            self._note_interrupts(stack)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Leave the scheduler, or end our own cluster."""
        self._stack.close()

    def _release_shared(self) -> None:
        """Let the scheduler forget all values: a client of the user's may stay open."""
        with suppress(RuntimeError):
            for shared in self._shared:
                shared.future.release()

    def _disconnect(self) -> None:
        with interrupt_deferred(), suppress(OSError, AssertionError):
            self._client.close(timeout=CONNECT_SECONDS)

    def _note_interrupts(self, stack: ExitStack) -> None:
        """Remember Ctrl-C: Python prints and drops an interrupt that comes while it frees memory.

        :meth:`map` raises a remembered interrupt again.
        """
        before = signal.getsignal(signal.SIGINT)

        def note(number: int, frame: FrameType | None) -> None:
            self.is_interrupted = True
            if callable(before):
                before(number, frame)

        if callable(before):
            with suppress(ValueError):  # Only the main thread may set handlers.
                signal.signal(signal.SIGINT, note)
                stack.callback(signal.signal, signal.SIGINT, before)

    def _wait_for_workers(self) -> None:
        """Wait for the first worker, with a task for which an adaptive cluster starts one."""
        pending = self._client.submit(eval, "None", key=f"first-task-{uuid4()}", pure=False)
        begun, is_told = monotonic(), False
        try:
            while True:
                workers, waited = self._known_workers().values(), monotonic() - begun
                if any(worker["status"] == "running" for worker in workers):
                    return
                if workers and waited > NO_WORKERS_SECONDS:
                    raise self._out_of_memory("all workers are paused, as they are")
                # A scheduler may refuse tasks that wait too long (its no-workers-timeout).
                if waited > START_SECONDS or pending.status == "error":
                    raise StreammimlError(f"{self._no_workers()}; {self._more_workers()}")
                if waited > NO_WORKERS_SECONDS and not is_told:
                    is_told = True
                    self._tell_waiting(START_SECONDS - waited)
                sleep(POLL_SECONDS)
        finally:
            pending.release()

    def _no_workers(self) -> str:
        return f"the Dask scheduler at {self._client.scheduler.address} has no workers"

    def _more_workers(self) -> str:
        return how_to_start_workers(self._client)

    def _tell_waiting(self, seconds: float) -> None:
        minutes = max(1, math.ceil(seconds / 60))
        tell(
            f"{self._no_workers()}; waiting up to {minutes} minutes for one; {self._more_workers()}"
        )

    def _check_imports(self) -> None:
        """Refuse workers that lack what tasks need, or have another version of streammiml.

        The first task would kill the former; the latter might compute something else.
        """
        reasons = self._unfit_workers()
        if reasons:
            raise StreammimlError(next(iter(reasons.values())))

    def _unfit_workers(self) -> dict[str, str]:
        """Addresses of workers that lack what tasks need or have another version, and why."""
        here, reasons = installed_version(), {}
        answers = self.on_every_worker(eval, _VERSION_OF_WORKER)
        for address, answer in answers.items():
            if isinstance(answer, ImportError):
                reasons[address] = str(self._lacks_packages(answer, address))
        others = {
            address: version
            for address, version in answers.items()
            # A worker that did not answer is noticed later.
            if isinstance(version, str) and version != here
        }
        for address, version in others.items():
            reasons[address] = (
                f"{len(others)} of {len(answers)} workers have another version of streammiml: "
                f"{address} has {version}, this process has {here}; install {here} on all workers"
            )
        return reasons

    def is_of_unfit_worker(self, error: BaseException) -> bool:
        """See :meth:`Cluster.is_of_unfit_worker`; the worker is told of once."""
        reasons: dict[str, str] = {}
        if isinstance(error, UnfitWorkerError):
            reasons = {place_of(error) or "": str(error)}
        # A worker that lacks a module cannot even load the task.
        elif isinstance(error, ImportError | AttributeError) and place_of(error) is None:
            reasons = {} if self._is_own else self._unfit_workers()
        for address, why in reasons.items():
            if address not in self._unfit:
                tell(f"{why}; until then, its tasks run on other workers")
        self._unfit.update(reasons)
        return bool(reasons)

    def _fit_workers(self) -> list[str] | None:
        """Addresses of the workers that may run tasks; None if all workers may."""
        if not self._unfit:
            return None
        known = self._known_workers()
        self._unfit = {address: why for address, why in self._unfit.items() if address in known}
        if self._unfit and len(self._unfit) == len(known):
            raise StreammimlError(next(iter(self._unfit.values())))
        return [address for address in known if address not in self._unfit] or None

    def workers(self) -> dict[str, int]:
        """See :meth:`Pool.workers`; workers may come and go."""
        return {
            address: facts["nthreads"]
            for address, facts in self._known_workers().items()
            if address not in self._unfit
        }

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

    def look(self) -> None:
        """See :meth:`Cluster.look`."""
        if monotonic() >= self._next_look:
            self._known_workers()

    def _known_workers(self) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knows about its workers, by address."""
        workers = dict(self._ask_scheduler("identity", n_workers=-1)["workers"])
        self._next_look = monotonic() + LOOK_SECONDS
        if workers:
            self.n_threads = max(1, sum(facts["nthreads"] for facts in workers.values()))
        # Kept for later messages: the limit of a dead worker cannot be read.
        limits = [facts.get("memory_limit") for facts in workers.values()]
        self._least_memory = min(filter(None, [*limits, self._least_memory]), default=None)
        return workers

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
        """Send a value to the cluster; workers copy it from each other when they first need it.

        The value is the result of a task, not scattered data: scattered data is lost with the last
        worker that holds it, while a task runs again. The value is not replicated beforehand
        either: if the only worker is dead or lacks streammiml, Dask would wait forever.
        """
        self._shared.append(_SharedValue(value, *self._send(_same, [value])))
        return self._shared[-1]

    def release(self, shared: Any) -> None:
        """See :meth:`Pool.release`."""
        self._shared.remove(shared)
        shared.future.release()

    def share_again(self) -> None:
        """See :meth:`Cluster.share_again`."""
        for shared in self._shared:
            before = shared.future
            [shared.future] = self._send(_same, [shared.value])
            before.release()

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
        fit = self._fit_workers()
        numbers_of: dict[str | None, list[int]] = {}
        for number, item in enumerate(items):
            numbers_of.setdefault(prefer(item) if fit is None else None, []).append(number)
        futures: list[Any] = [None] * len(items)
        for worker, numbers in numbers_of.items():
            where: dict[str, Any] = {} if fit is None else {"workers": fit}
            if worker is not None:
                where = {"workers": [worker], "allow_other_workers": True}
            with warnings.catch_warnings():
                # Dask takes large arguments for a mistake; here each is sent only once.
                warnings.filterwarnings("ignore", "Sending large graph")
                sent = self._client.map(
                    partial(run_task, task, installed_version()),
                    [items[number] for number in numbers],
                    *([value] * len(numbers) for value in _futures_of(shared)),
                    key=_name(task),
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
        partitions = list(collection.to_delayed())

        def send(numbers: list[int]) -> list[Any]:
            if self._client.status != "running":
                raise self._lost(GONE)
            fit = self._fit_workers()
            computed = self._client.compute([partitions[number] for number in numbers])
            more = [[value] * len(numbers) for value in _futures_of(shared)]
            if each is not None:
                more.append([each[number] for number in numbers])
            futures = self._client.map(
                partial(run_task, task, installed_version()),
                computed,
                numbers,
                *more,
                key=_name(task),
                pure=False,
                **({} if fit is None else {"workers": fit}),
            )
            # Only the tasks need the partitions; a worker forgets each once its task is done.
            for future in computed:
                future.release()
            return list(futures)

        return self._collect(send, range(len(partitions)), ignore_result, all_at_once=True)

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
            fit = self._fit_workers()
            # A group is combined where most of its results are.
            return [
                self._client.submit(
                    partial(run_task, combine, installed_version()),
                    list(islice(results, len(group))),
                    *_futures_of(shared),
                    key=f"{_name(combine)}-{uuid4()}",
                    workers=fit,
                    pure=False,
                    fifo_timeout=0,
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
        """See :meth:`Pool.map_reduce`.

        Results are added up once they are there, so that tasks may be sent again until then.
        """
        waiting: deque[Item] = deque()
        done: list[Any] = []

        def drawn() -> Iterator[Item]:
            for item in items:
                waiting.append(item)
                yield item

        def send(some: list[Item]) -> list[Any]:
            return self._send(task, some, shared)

        def send_sums(parts: list[list[Any]]) -> list[Any]:
            fit = self._fit_workers()
            sums: list[Any] = self._client.map(
                partial(run_task, partial(added, add), installed_version()),
                *parts,
                key=_name(added),
                pure=False,
                fifo_timeout=0,
                # Before the tasks that wait: a sum frees the memory of its parts.
                priority=1,
                **({} if fit is None else {"workers": fit}),
            )
            return sums

        tree = _SumTree(send_sums)

        def sums() -> Iterator[Any]:
            for number, future in enumerate(
                self._collect(send, drawn(), ignore_result, most_held=0), 1
            ):
                seen(waiting.popleft())
                done.append(future)
                if number % ADDED_AT_ONCE == 0:
                    tree.push(done)
                    done.clear()
                if number % FAN_IN**SUM_LEVELS == 0:
                    yield from self._collect(None, [tree.sums.popleft()], ignore_result)
            tree.push(done)
            done.clear()
            rest = tree.take_rest()
            yield from self._collect(None, rest, ignore_result, most_held=GROUPS_HELD)

        total: Result = reduce(add, sums())
        return total

    def _collect(
        self,
        send: Callable[[list[Any]], list[Any]] | None,
        items: Iterable[Any],
        seen: Callable[[Any], None],
        *,
        most_held: int | None = None,
        all_at_once: bool = False,
    ) -> Iterator[Any]:
        """Yield the results of the futures that ``send`` makes of items, in order.

        The options are those of :class:`ResultStream`.
        """
        results = ResultStream(
            self._client,
            self,
            send,
            items,
            seen,
            most_held=most_held,
            all_at_once=all_at_once,
        )
        try:
            yield from results
        except self._distributed.KilledWorker as error:
            raise self._killed(error) from error
        except ImportError as error:
            raise self._lacks_packages(error, place_of(error)) from error
        except MemoryError as error:
            place = None if self._is_own else place_of(error)
            where = f" on the worker at {place}" if place else ""
            raise StreammimlError(
                f"a task ran out of memory{where} ({error}){self._memory}; lower {self.relief}, or "
                "give workers more memory"
            ) from error
        except Exception as error:
            (forget_place if self._is_own else say_place)(error)
            raise
        finally:
            results.forget()

    def watch(self, is_done: Callable[[], bool]) -> bool:
        """See :meth:`Cluster.watch`; a cluster without living workers is an error, not a hang."""
        seen_at = moved_at = busy_at = monotonic()
        is_told = False
        while not is_done():
            if self.is_interrupted:
                raise KeyboardInterrupt
            workers, now = self._known_workers().values(), monotonic()
            if workers:
                seen_at = now
            if not all(_is_stuck(worker) for worker in workers):
                moved_at = now
            running = [worker for worker in workers if worker["status"] == "running"]
            if not running or not all(_is_idle(worker) for worker in workers):
                busy_at = now
            gone = now - seen_at
            if gone > LOST_SECONDS and self._is_own:
                raise self._out_of_memory("workers die before they do anything, as they do")
            if gone > START_SECONDS:
                raise self._lost("all workers of the Dask scheduler are gone")
            if gone > LOST_SECONDS and not is_told:
                is_told = True
                self._tell_waiting(START_SECONDS - gone)
            if workers and now - moved_at > PAUSED_SECONDS:
                raise self._out_of_memory("all workers are paused, as they are")
            if now - busy_at > self._stall_seconds:
                tell(f"no worker has run or fetched anything for {now - busy_at:.0f} s")
                # If workers are only slow to begin, they get more time.
                self._stall_seconds *= 2
                return False
        return True

    def lost_tasks(self) -> StreammimlError:
        """See :meth:`Cluster.lost_tasks`."""
        return self._lost("no worker runs the tasks that are left")

    def lost_scheduler(self) -> StreammimlError:
        """See :meth:`Cluster.lost_scheduler`."""
        return self._lost(GONE)

    @property
    def _memory(self) -> str:
        least = self._least_memory
        return f" (the smallest has {format_size(least)})" if least else ""

    def _out_of_memory(self, symptom: str) -> StreammimlError:
        return StreammimlError(
            f"{symptom} when they run out of memory{self._memory}; lower {self.relief}, or give "
            "workers more memory"
        )

    def _killed(self, error: Any) -> StreammimlError:
        """The error for a task whose workers died; Dask does not know why they died."""
        last = "" if self._is_own else f", the last at {error.last_worker.address}"
        count = error.allowed_failures + 1
        workers = "the worker" if count == 1 else f"the {count} workers"
        return StreammimlError(
            f"a task was given up because {workers} that ran it died{last}; if they ran out of "
            f"memory{self._memory}, lower {self.relief}, or give workers more memory; "
            f"if they were ended from outside (preempted), {self.goes_on}"
        )

    @staticmethod
    def _lacks_packages(error: ImportError, worker: str | None) -> StreammimlError:
        who = f"the worker at {worker}" if worker else "a worker of the cluster"
        return StreammimlError(
            f"{who} cannot import what tasks need ({error}); install this version of streammiml "
            "in its environment"
        )

    def _lost(self, what: str) -> StreammimlError:
        return StreammimlError(
            f"{what}; start the cluster again, and {self.goes_on}", page="clusters"
        )


def _futures_of(shared: Iterable[Any]) -> list[Any]:
    """Values as arguments of tasks: shared ones as their futures."""
    return [value.future if isinstance(value, _SharedValue) else value for value in shared]


def _name(task: Callable[..., Any]) -> str:
    """Name of a task on the dashboard."""
    return str(getattr(task, "__name__", "task"))
