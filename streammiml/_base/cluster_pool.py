"""A pool on a Dask scheduler: a running one, or a local cluster that the pool starts."""

from __future__ import annotations

import asyncio
import logging
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from http import HTTPStatus
from http.client import HTTPException
from importlib import import_module
from itertools import islice
from time import monotonic
from types import FrameType
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from streammiml._base.local_cluster import interrupt_deferred, start_cluster
from streammiml._base.pool_interface import Item, Pool, Result, ignore_result
from streammiml.config import format_size
from streammiml.errors import StreammimlError

CONNECT_SECONDS = 10
# How often the state of the cluster is checked, and how long it may be without workers.
LOOK_SECONDS = 5
LOST_SECONDS = 30
# How long all workers may be paused; Dask pauses workers that hold too much memory.
PAUSED_SECONDS = 60
# Tasks per thread that are sent before the oldest one is finished, so that no thread is idle.
AHEAD_ON_CLUSTER = 4
GONE = "the Dask scheduler is gone"


def _same(value: Result) -> Result:
    """Return the value; as a task, this makes the value available on the cluster."""
    return value


def _is_stuck(worker: dict[str, Any]) -> bool:
    """Whether a worker is paused and runs no task."""
    counts = worker.get("metrics", {}).get("task_counts", {})
    return worker["status"] == "paused" and not counts.get("executing")


class ClusterPool(Pool):
    """A scheduler of ``distributed``: at an address, or of a local cluster of our own processes."""

    is_remote = True

    def __init__(self, where: int | str, memory: int | None = None) -> None:
        # Loaded late: distributed takes half a second, and pools of threads do not need it.
        self._distributed = import_module("distributed")
        self._is_own = isinstance(where, int)
        self._is_gone = self._is_interrupted = False
        self._memory = ""
        with ExitStack() as stack:
            # We report failures ourselves, once.
            stack.enter_context(self._distributed.utils.silence_logging_cmgr(logging.CRITICAL))
            address = where if isinstance(where, str) else start_cluster(where, memory, stack)
            self._client = self._connect(address)
            stack.callback(self._disconnect)
            self.dashboard = None if self._is_own else self._find_dashboard()
            workers = self._first_workers(address)
            self.n_threads = max(1, sum(worker["nthreads"] for worker in workers))
            # Read now for later messages: the limit of a dead worker cannot be read.
            limits = [worker["memory_limit"] for worker in workers if worker.get("memory_limit")]
            if least := min(limits, default=memory):
                self._memory = f" (the smallest has {format_size(least)})"
            if isinstance(where, str):
                self._check_imports()
            self._keep_copies(stack)
            self._note_interrupts(stack)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Leave the scheduler, or end our own cluster."""
        self._stack.close()

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

    def _first_workers(self, address: Any) -> list[dict[str, Any]]:
        """Wait for a worker; return what the scheduler knows about its workers."""
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            if self._workers():
                raise self._out_of_memory("all workers are paused, as they are") from None
            raise StreammimlError(
                f"the Dask scheduler at {address} has no workers; "
                f"start some with dask worker {address}"
            ) from None
        return self._workers()

    def _check_imports(self) -> None:
        """Refuse workers that cannot import what tasks need: the first task would kill them."""
        try:
            answers = self._client.run(
                exec,
                "import streammiml.scorer",
                {},
                on_error="return",
                callback_timeout=LOST_SECONDS,
            )
        except OSError:
            return  # A worker that does not answer now is noticed later.
        for error in answers.values():
            if isinstance(error, ImportError):
                raise self._lacks_packages(error)

    def _workers(self) -> list[dict[str, Any]]:
        """Return what the scheduler knows about its workers."""
        return list(self._ask_scheduler("identity", n_workers=-1)["workers"].values())

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
        with warnings.catch_warnings():
            # Dask takes a large argument for a mistake; here it is sent only once.
            warnings.filterwarnings("ignore", "Sending large graph")
            return self._submit(_same, value)

    def _submit(self, task: Callable[..., Any], *values: Any) -> Any:
        if self._client.status != "running":
            raise self._lost(GONE)
        return self._client.submit(task, *values, pure=False)

    def map(
        self,
        task: Callable[..., Result],
        items: Iterable[Item],
        *shared: Any,
        seen: Callable[[Result], None] = ignore_result,
    ) -> Iterator[Result]:
        """See :meth:`Pool.map`."""
        remaining = iter(items)
        ahead: deque[Any] = deque()
        results: dict[str, Result] = {}
        try:
            while not self._is_interrupted:
                for item in islice(remaining, AHEAD_ON_CLUSTER * self.n_threads - len(ahead)):
                    ahead.append(self._submit(task, item, *shared))
                if not ahead:
                    return
                waiting = [future for future in ahead if not future.done()]
                if waiting and not ahead[0].done():
                    self._wait(waiting)
                for future in ahead:
                    if future.status == "finished" and future.key not in results:
                        results[future.key] = self._fetch(future)
                        seen(results[future.key])
                while ahead and ahead[0].key in results:
                    yield results.pop(ahead.popleft().key)
                if ahead and ahead[0].status == "cancelled":
                    raise self._lost(GONE)
                if ahead and ahead[0].status == "error":
                    ahead[0].result()
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

    def _wait(self, futures: list[Any]) -> None:
        """Wait until one of the futures is done."""

        def is_done() -> bool:
            try:
                with self._client.as_current():
                    self._distributed.wait(
                        futures, timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED"
                    )
            except TimeoutError:
                return False
            except self._distributed.CancelledError:
                raise self._lost(GONE) from None
            return True

        self._watch(is_done)

    def _fetch(self, future: Any) -> Any:
        """Return a result; if its worker died, Dask runs the task again elsewhere."""
        fetching = asyncio.run_coroutine_threadsafe(
            self._client.gather(future, asynchronous=True), self._client.loop.asyncio_loop
        )
        self._watch(lambda: bool(wait([fetching], timeout=LOOK_SECONDS).done))
        try:
            return fetching.result()
        except (OSError, self._distributed.CancelledError):
            if future.status == "error":
                raise
            raise self._lost(GONE) from None

    def _watch(self, is_done: Callable[[], bool]) -> None:
        """Poll until done; a cluster without living workers is an error instead of a hang."""
        seen_at = moved_at = monotonic()
        while not is_done():
            if self._is_interrupted:
                raise KeyboardInterrupt
            workers, now = self._workers(), monotonic()
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
            f"{what}; start the cluster again, and run the same command: finished parts are kept"
        )
