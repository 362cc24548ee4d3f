"""A process that converts in children of its own, and kills them where it is told.

As ``killing.py`` does for the writer: children are forked from a process that has everything loaded
and has started no threads of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from streammiml.bags.fingerprint import digests_of
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers import READERS, reader_of
from streammiml_tools.readers.base import SourceOptions
from tests.faults.killing import ROOT, _in_child, _kill_at
from tests.stores import as_sparse, made_block, sizes

SPAN_BYTES = 200


def options(*, group: bool = False) -> SourceOptions:
    """Spans of a few bags."""
    return SourceOptions(group=group, span_bytes=SPAN_BYTES)


def work(order: dict[str, Any]) -> None:
    """One conversion, in the process that may be killed."""
    settings = {**order["settings"], "where_label": tuple(order["settings"]["where_label"])}
    convert(
        order["source"], order["path"], ConvertConfig(**settings), options(group=order["group"])
    )


def _run(order: dict[str, Any]) -> None:
    counter = [0]
    _kill_at(order["at"], str(Path(order["path"]).parent), counter)
    work(order)
    Path(order["tally"]).write_text(str(counter[0]))


def serve() -> None:
    """Obey orders that come as lines of JSON; answer each with how the child ended."""
    # Compiled and loaded once here rather than in every child.
    for block in (made_block(), as_sparse(made_block())):
        digests_of(block)
    for name in READERS:
        reader_of(name)
    with sizes():
        for line in sys.stdin:
            order = json.loads(line)
            pid = _in_child(partial(_run, order))
            if order["after"]:
                time.sleep(order["after"])
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


class Converter:
    """Converts in another process, which may be killed; a context manager."""

    def __init__(self, tally: Path) -> None:
        self._tally = tally
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.converting_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def convert(
        self,
        source: Path,
        path: Path,
        settings: ConvertConfig,
        *,
        group: bool = False,
        at: int = 0,
        after: float = 0,
    ) -> bool:
        """Convert; die at the n-th change, or after seconds. Whether it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"source": str(source), "path": str(path), "settings": asdict(settings)}
        order |= {"group": group, "at": at, "after": after, "tally": str(self._tally)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(json.loads(self._process.stdout.readline())["status"])
        assert status in (0, -signal.SIGKILL), f"the conversion failed with {status}"
        return status != 0

    @property
    def changes(self) -> int:
        """Changes that the last undisturbed conversion made."""
        return int(self._tally.read_text())

    def __enter__(self) -> Converter:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    serve()
