"""Threads, a local cluster, or an address: one way to get a Dask scheduler.

Whichever it is, tasks go out in windows of bounded size, so a graph never grows with the store,
and results come back in the order of what was asked.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from importlib import import_module
from itertools import islice
from multiprocessing import resource_tracker
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from dask import config as dask_config
from dask.base import compute
from dask.callbacks import Callback
from dask.delayed import delayed

from streammiml._base.platform import signals_blocked, usable_cores
from streammiml.config import format_size, parse_size
from streammiml.errors import StreammimlError

Item = TypeVar("Item")
Result = TypeVar("Result")

CONNECT_SECONDS = 10
# Between looks at whether a cluster still lives, and how long it may be without workers.
LOOK_SECONDS = 5
LOST_SECONDS = 30
# How long all of its workers may be paused, which Dask does to those that hold too much.
PAUSED_SECONDS = 60
# Tasks of a window a thread: its end, where some threads wait, is then a small part of it.
WINDOW_OF_THREADS = 32
# Tasks sent ahead of the oldest unfinished one a thread of a cluster: none of them idles.
AHEAD_ON_CLUSTER = 4
_WORKERS = {
    # Workers would give memory back at every turn, and each page of the next batch be cleared
    # anew: a fifth of a core. What we hold is bounded, and used again.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    # And be woken a hundred times a second to see where they are.
    "distributed.worker.profile.enabled": False,
    # One that holds too much would wait for what is held by nobody else: it is to be ended, at
    # terminate of its limit, and that to be told.
    "distributed.worker.memory.pause": False,
    # What workers keep is the model, which every task needs.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
}
"""How local workers differ from Dask's own."""


def _ignore(_: object) -> None:
    """Nobody waits for single results."""


class Pool(ABC):
    """Where tasks run; a context, left when all is done."""

    n_threads: int
    """Tasks that run at a time."""
    is_remote = False
    """Whether tasks run in other processes, to which everything must be sent."""
    dashboard: str | None = None
    """Address of a page that shows what goes on."""
    relief = "--block-bytes"
    """The option to lower where memory does not suffice."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Something that many tasks need, sent once."""

    @abstractmethod
    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = _ignore,
    ) -> Iterator[Result]:
        """``task(item, *shared)`` of each item, in order; ``items`` are drawn as they are needed.

        The task must be pure: one whose worker is lost runs again elsewhere. ``seen`` is called
        with each result as early as it is known, in any order and before it is given out.
        """

    def __enter__(self) -> Pool:
        return self

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_pool(
    *,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    worker_memory: str | int | None = None,
    relief: str = "--block-bytes",
) -> Pool:
    """Threads of this process, unless a number of ``workers`` or a ``scheduler`` is given.

    ``worker_memory`` is what each of our own ``workers`` may take; an equal share of the machine's
    unless given. ``relief`` is the option to lower where memory does not suffice.
    """
    for name, count in (("threads", threads), ("workers", workers)):
        if count is not None and count < 1:
            raise StreammimlError(f"{name} must be at least 1, got {count}")
    given = {"threads": threads, "workers": workers, "scheduler": scheduler}
    several = [f"--{name}" for name, value in given.items() if value is not None]
    if len(several) > 1:
        raise StreammimlError(f"give one of {' and '.join(several)}, not both")
    if worker_memory is not None and workers is None:
        raise StreammimlError("--worker-memory is for the processes of --workers; give both")
    limit = None
    if worker_memory is not None:
        limit = parse_size(worker_memory, option="worker_memory", least=1)
    where = workers if workers is not None else scheduler
    pool: Pool = (
        ThreadPool(threads or usable_cores()) if where is None else ClusterPool(where, limit)
    )
    pool.relief = relief
    return pool


def _same(value: Result) -> Result:
    return value


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off Ctrl-C until the end; threads and processes that are begun here never hear it.

    A terminal sends it to all processes, and what Dask has half begun or half ended cannot be left.
    """
    noted: list[int] = []
    before = None
    with suppress(ValueError):  # Not the main thread: signals are not ours to hear.
        before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    # It would unblock the signal when the first process is begun.
    resource_tracker.ensure_running()
    try:
        with signals_blocked(signal.SIGINT):
            yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if noted:
        signal.raise_signal(signal.SIGINT)


def _is_stuck(worker: dict[str, Any]) -> bool:
    """Whether it is paused, and has no task that is still running."""
    counts = worker.get("metrics", {}).get("task_counts", {})
    return worker["status"] == "paused" and not counts.get("executing")


class ThreadPool(Pool):
    """Dask's threaded scheduler."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def share(self, value: Any) -> Any:
        """The value itself."""
        return value

    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = _ignore,
    ) -> Iterator[Result]:
        """See :meth:`Pool.map`."""
        rest = iter(items)
        size = WINDOW_OF_THREADS * self.n_threads
        while window := list(islice(rest, size)):
            # Bound beforehand: Dask looks into arguments for tasks, and here are none.
            calls = [
                delayed(partial(task, item, *shared), pure=False, traverse=False)()
                for item in window
            ]
            watching = Callback(  # type: ignore[no-untyped-call]
                posttask=lambda _key, result, *_: seen(result)
            )
            try:
                with watching:
                    results = compute(  # type: ignore[no-untyped-call]
                        *calls,
                        scheduler="threads",
                        num_workers=self.n_threads,
                        optimize_graph=False,
                        traverse=False,
                    )
            except MemoryError as error:
                raise StreammimlError(
                    f"a task ran out of memory ({error}); lower {self.relief}, or --threads"
                ) from error
            yield from results

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left to close."""


def _started(n_workers: int, memory: int | None, stack: ExitStack) -> Any:
    """A cluster of processes of our own, closed with the ``stack``."""
    distributed = import_module("distributed")
    with dask_config.set(_WORKERS), _undisturbed():
        cluster = distributed.LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            memory_limit=memory or "auto",
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
            # A copy, lest workers that are started again see what is set then.
            config=deepcopy(dask_config.config),
        )
        stack.callback(_undisturbed()(cluster.close))
        # Ctrl-C that comes while it looks on would be lost.
        import_module("distributed.gc").disable_gc_diagnosis(force=True)
    return cluster


class ClusterPool(Pool):
    """A scheduler of ``distributed``: one that runs somewhere, or one of our own processes."""

    is_remote = True

    def __init__(self, where: int | str, memory: int | None = None) -> None:
        # Loaded late: it takes half a second, and threads do without.
        self._distributed = import_module("distributed")
        self._is_own = isinstance(where, int)
        self._is_gone = self._is_interrupted = False
        self._memory = ""
        with ExitStack() as stack:
            # What goes wrong is told once, by us.
            stack.enter_context(self._distributed.utils.silence_logging_cmgr(logging.CRITICAL))
            address = where if isinstance(where, str) else _started(where, memory, stack)
            self._client = self._connected(address)
            stack.callback(self._leave)
            self.dashboard = self._dashboard()
            workers = self._first_workers(address)
            self.n_threads = max(1, sum(each["nthreads"] for each in workers))
            # What they may take, where they say so; asked at the start, while they live.
            known = [each["memory_limit"] for each in workers if each.get("memory_limit")]
            if least := min(known, default=memory):
                self._memory = f" (the smallest has {format_size(least)})"
            if isinstance(where, str):
                self._refuse_lacking()
            self._keep_copies(stack)
            self._hear(stack)
            self._stack = stack.pop_all()

    def _leave(self) -> None:
        with _undisturbed(), suppress(OSError, AssertionError):
            self._client.close(timeout=CONNECT_SECONDS)

    def _hear(self, stack: ExitStack) -> None:
        """Note Ctrl-C: where it comes while Python frees memory, it is told and then lost."""
        before = signal.getsignal(signal.SIGINT)

        def note(number: int, frame: FrameType | None) -> None:
            self._is_interrupted = True
            if callable(before):
                before(number, frame)

        if callable(before):
            with suppress(ValueError):  # Not the main thread: signals are not ours to hear.
                signal.signal(signal.SIGINT, note)
                stack.callback(signal.signal, signal.SIGINT, before)

    def _keep_copies(self, stack: ExitStack) -> None:
        """Let the cluster drop no copy of what is shared as long as this pool lives.

        If the worker dies that holds the last one while another is told to drop its own, Dask may
        wait for it forever.
        """

        def again() -> None:
            if not self._is_gone:
                with suppress(StreammimlError):
                    self._said("amm_handler", method="start")

        if self._said("amm_handler", method="running"):
            self._said("amm_handler", method="stop")
            stack.callback(again)

    def _connected(self, address: Any) -> Any:
        try:
            if isinstance(address, str):
                self._ask(address)
            return self._distributed.Client(
                address, timeout=CONNECT_SECONDS, set_as_default=False, name="streammiml"
            )
        # Anything may answer at an address, and say anything.
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, MemoryError):
                why = "what answers there is something else"
            elif isinstance(error, TimeoutError):
                why = f"it says nothing for {CONNECT_SECONDS} s"
            raise StreammimlError(
                f"no Dask scheduler answers at {address or repr(address)} ({why}); give "
                "tcp://HOST:PORT, start one with dask scheduler, or leave --scheduler out"
            ) from None

    def _ask(self, address: str) -> None:
        """Shake hands with what answers at an address.

        Dask's own client would wait forever for one that says nothing, and if the address is none
        try for twenty seconds to be rid of itself.
        """
        core = import_module("distributed.core")
        security = self._distributed.Security().get_connection_args("client")

        async def who() -> Any:
            comm = await core.connect(address, timeout=CONNECT_SECONDS, **security)
            try:
                return await core.send_recv(comm, op="identity")
            finally:
                comm.abort()

        runner = self._distributed.utils.LoopRunner()
        runner.start()
        try:
            # A second longer than the connection, which says why there is none.
            said = self._distributed.sync(runner.loop, who, callback_timeout=CONNECT_SECONDS + 1)
        finally:
            with suppress(TimeoutError):
                runner.stop(timeout=1)
        if said["type"] in ("Worker", "Nanny"):
            raise StreammimlError(f"a {said['type'].lower()} does")

    def _dashboard(self) -> str | None:
        """Its address; a scheduler may have none, and answer there all the same."""
        if "dashboard" not in self._said("identity", n_workers=0)["services"]:
            return None
        link = str(self._client.dashboard_link)
        try:
            build_opener(ProxyHandler({})).open(link, timeout=2).close()
        except HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
        # Where it cannot be reached from here, it may be from where the user is.
        except (OSError, ValueError, HTTPException):
            pass
        return link

    def _first_workers(self, address: Any) -> list[dict[str, Any]]:
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            if self._workers():
                raise self._starved("all workers are paused, as they are") from None
            raise StreammimlError(
                f"the Dask scheduler at {address} has no workers; "
                f"start some with dask worker {address}"
            ) from None
        return self._workers()

    def _refuse_lacking(self) -> None:
        """Ask workers whether they can load what tasks need; of a task they would die."""
        asked = "import streammiml.scoring"
        try:
            found = self._client.run(
                exec, asked, {}, on_error="return", callback_timeout=LOST_SECONDS
            )
        except OSError:
            return  # One that does not answer now is found out later.
        for error in found.values():
            if isinstance(error, ImportError):
                raise self._lacking(error)

    def _workers(self) -> list[dict[str, Any]]:
        """What the scheduler knows of its workers."""
        return list(self._said("identity", n_workers=-1)["workers"].values())

    def _said(self, what: str, **more: Any) -> Any:
        """An answer of the scheduler, which may be gone, or hang."""
        if self._client.status != "running":
            raise self._gone("the Dask scheduler is gone")
        try:
            asked = getattr(self._client.scheduler, what)
            return self._client.sync(asked, **more, callback_timeout=LOST_SECONDS)
        except OSError:
            raise self._gone("the Dask scheduler is gone") from None

    def share(self, value: Any) -> Any:
        """A future of the value, which workers copy from each other when they first need it.

        A task's result and no scattered data: what is scattered is lost with the last worker that
        holds it, a task runs again. Nor is it replicated beforehand: with the only worker dead, or
        one without streammiml, Dask would wait for that forever.
        """
        with warnings.catch_warnings():
            # Dask takes a large argument for an oversight; here it goes out once.
            warnings.filterwarnings("ignore", "Sending large graph")
            return self._submit(_same, value)

    def _submit(self, task: Callable[..., Any], *values: Any) -> Any:
        if self._client.status != "running":
            raise self._gone("the Dask scheduler is gone")
        return self._client.submit(task, *values, pure=False)

    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = _ignore,
    ) -> Iterator[Result]:
        """See :meth:`Pool.map`."""
        rest = iter(items)
        ahead: deque[Any] = deque()
        known: dict[str, Result] = {}
        try:
            while not self._is_interrupted:
                for item in islice(rest, AHEAD_ON_CLUSTER * self.n_threads - len(ahead)):
                    ahead.append(self._submit(task, item, *shared))
                if not ahead:
                    return
                waiting = [future for future in ahead if not future.done()]
                if waiting and not ahead[0].done():
                    self._wait(waiting)
                for future in ahead:
                    if future.status == "finished" and future.key not in known:
                        known[future.key] = self._fetched(future)
                        seen(known[future.key])
                while ahead and ahead[0].key in known:
                    yield known.pop(ahead.popleft().key)
                if ahead and ahead[0].status == "cancelled":
                    raise self._gone("the Dask scheduler is gone")
                if ahead and ahead[0].status == "error":
                    ahead[0].result()
            raise KeyboardInterrupt
        except self._distributed.KilledWorker as error:
            raise self._starved(
                "a task was given up because its workers died one after the other, as they do"
            ) from error
        except ImportError as error:
            raise self._lacking(error) from error
        except MemoryError as error:
            raise StreammimlError(
                f"a task ran out of memory ({error}){self._memory}; lower {self.relief}, or give "
                "workers more memory"
            ) from error
        finally:
            # Nobody else wants them, so that the scheduler forgets them; no answer is waited for.
            with suppress(RuntimeError):
                for future in ahead:
                    future.release()

    def _wait(self, futures: list[Any]) -> None:
        """Wait for one of them."""

        def is_done() -> bool:
            try:
                with self._client.as_current():
                    self._distributed.wait(
                        futures, timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED"
                    )
            except TimeoutError:
                return False
            except self._distributed.CancelledError:
                raise self._gone("the Dask scheduler is gone") from None
            return True

        self._watch(is_done)

    def _fetched(self, future: Any) -> Any:
        """A result; where the worker that held it died, of another run elsewhere."""
        fetching = asyncio.run_coroutine_threadsafe(
            self._client.gather(future, asynchronous=True), self._client.loop.asyncio_loop
        )
        self._watch(lambda: bool(wait([fetching], timeout=LOOK_SECONDS).done))
        try:
            return fetching.result()
        except (OSError, self._distributed.CancelledError):
            if future.status == "error":
                raise
            raise self._gone("the Dask scheduler is gone") from None

    def _watch(self, is_done: Callable[[], bool]) -> None:
        """Ask again and again; a cluster of which nothing is left is an error, not a hang."""
        seen_at = moved_at = monotonic()
        while not is_done():
            if self._is_interrupted:
                raise KeyboardInterrupt
            workers, now = self._workers(), monotonic()
            if workers:
                seen_at = now
            if not all(_is_stuck(each) for each in workers):
                moved_at = now
            if now - seen_at > LOST_SECONDS and self._is_own:
                raise self._starved("workers die before they do anything, as they do")
            if now - seen_at > LOST_SECONDS:
                raise self._gone("all workers of the Dask scheduler are gone")
            if workers and now - moved_at > PAUSED_SECONDS:
                raise self._starved("all workers are paused, as they are")

    def _starved(self, what: str) -> StreammimlError:
        return StreammimlError(
            f"{what} when they run out of memory{self._memory}; lower {self.relief}, or give "
            "workers more memory"
        )

    @staticmethod
    def _lacking(error: ImportError) -> StreammimlError:
        return StreammimlError(
            f"workers of the cluster lack what they need ({error}); install streammiml of this "
            "version in their environment"
        )

    def _gone(self, what: str) -> StreammimlError:
        self._is_gone = True
        return StreammimlError(
            f"{what}; start it again, and run the same command: parts that it has written are kept"
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
