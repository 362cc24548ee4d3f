"""A process that writes stores in children of its own, and kills them where it is told.

Children are forked from a process that has everything loaded and has started no threads, so that
a kill costs milliseconds. ``Killer`` is the test's side; this module run as a program is the other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

# Loaded once here rather than in every child: Arrow loads the first two when it meets a table.
import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
import zarr  # noqa: F401

from streammiml.bags.block import BagBlock
from streammiml.bags.fingerprint import digests_of
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from tests.stores import as_sparse, made_block, made_spec, sizes

ROOT = Path(__file__).parents[2]
N_PARTS = 4
# What changes the folder, by the name under which Python announces it before it happens.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def job(kind: str) -> tuple[StoreSpec, list[BagBlock]]:
    """What every process writes: one store in four parts."""
    block = made_block(14)
    block = as_sparse(block) if kind == "sparse" else block
    spec = made_spec(sparse=kind == "sparse", chunk_bytes=48)
    cuts = [(0, 4), (4, 5), (5, 11), (11, 14)]
    return spec, [block.slice(a, b) for a, b in cuts]


def write(path: Path, kind: str, order: list[int], joined: Sequence[int] = ()) -> None:
    """Begin or go on, write the parts that are missing in this order, and finish."""
    spec, parts = job(kind)
    with BagWriter.begin(path, spec, source="made") as writer:
        helpers = [in_child(partial(_help, path, n, parts[n])) for n in joined]
        for pid in helpers:
            # A helper that is killed leaves its part to its owner.
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status in (0, -signal.SIGKILL), f"a helper failed with {status}"
        for number in order:
            if not writer.has_part(number):
                writer.write_part(number, parts[number])
        writer.finish(N_PARTS)


def _help(path: Path, number: int, part: BagBlock) -> None:
    BagWriter.join(path).write_part(number, part)


def in_child(work: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(1)


def kill_at(number: int, folder: str, counter: list[int]) -> None:
    """Die at the n-th thing that changes the folder, just before it happens; 0: only count."""

    def count() -> None:
        counter[0] += 1
        if counter[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        writes = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        # Names within a folder that is open begin with no slash. A compiler that keeps what it made
        # elsewhere is none of ours.
        if writes or event in CHANGES:
            name = str(args[0])
            if name.startswith(folder) or (event in CHANGES and not name.startswith("/")):
                count()

    def fsync(fd: int) -> None:
        count()
        real(fd)

    real, os.fsync = os.fsync, fsync
    sys.addaudithook(hook)


def _run(order: dict[str, Any]) -> None:
    path, counter = Path(order["path"]), [0]
    if order["what"] == "hold":
        spec, parts = job(order["kind"])
        writer = BagWriter.begin(path, spec, source="made")
        writer.write_part(0, parts[0])
        Path(order["tally"]).write_text(str(os.getpid()))
        time.sleep(60)
    kill_at(order["at"], str(path.parent), counter)
    write(path, order["kind"], order["order"], order["joined"])
    Path(order["tally"]).write_text(str(counter[0]))


def serve() -> None:
    """Obey orders that come as lines of JSON; answer each with how the child ended."""
    for kind in ("dense", "sparse"):
        for part in job(kind)[1]:
            # Compiled once here rather than in every child.
            digests_of(part)
    obey(_run)


def obey(run: Callable[[dict[str, Any]], None]) -> None:
    """Run each order in a child, and answer with how it ended; ``hold`` is not waited for."""
    with sizes():
        for line in sys.stdin:
            order = json.loads(line)
            pid = in_child(partial(run, order))
            if order.get("what") == "hold":
                print(json.dumps({"pid": pid}), flush=True)
                continue
            if order["after"]:
                time.sleep(order["after"])
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


class ChildOwner:
    """Sends orders to a module that obeys them in children; a context manager."""

    def __init__(self, module: str, tally: Path, *words: str) -> None:
        self._tally = tally
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**order, "tally": str(self._tally)}) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def _was_killed(self, **order: Any) -> bool:
        status = int(self._ask(**order)["status"])
        assert status in (0, -signal.SIGKILL), f"the child failed with {status}"
        return status != 0

    @property
    def changes(self) -> int:
        """Changes that the last undisturbed child made."""
        return int(self._tally.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Killer(ChildOwner):
    """Writes stores in another process, which may be killed; a context manager."""

    def __init__(self, tally: Path) -> None:
        super().__init__("tests.faults.killing", tally)

    def write(
        self,
        path: Path,
        kind: str,
        *,
        at: int = 0,
        after: float = 0,
        order: list[int] | None = None,
        joined: list[int] | None = None,
    ) -> bool:
        """Write a store; die at the n-th change, or after seconds. Whether it was killed."""
        parts = {"order": list(range(N_PARTS)) if order is None else order, "joined": joined or []}
        return self._was_killed(
            what="write", path=str(path), kind=kind, at=at, after=after, **parts
        )

    def hold(self, path: Path, kind: str) -> int:
        """Begin a store and write one part in a process that then sleeps; its number."""
        self._tally.unlink(missing_ok=True)
        pid = int(self._ask(what="hold", path=str(path), kind=kind)["pid"])
        while not self._tally.exists() or not self._tally.read_text():
            time.sleep(0.01)
        return pid


if __name__ == "__main__":
    serve()
