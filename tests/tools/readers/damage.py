"""Damaged files, read in another process: a reader that crashes must not end the tests.

``DamagedReads`` is the test's side; this module run as a program is the other. Files are read in a
forked child, which reports each outcome; where the child dies, another one goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Loaded once here rather than in every child.
import pyarrow.compute
import pyarrow.parquet  # noqa: F401

from streammiml_tools.readers import reader_of
from streammiml_tools.readers.base import SourceError, SourceOptions

ROOT = Path(__file__).parents[3]


def outcome(reader: str, path: str) -> str:
    """What reading all bags of a file comes to: ``read``, ``refused: …``, or another error."""
    try:
        scan = reader_of(reader).scan([Path(path)], SourceOptions())
        for span in scan.spans:
            for _ in reader_of(reader).read(span, scan, SourceOptions()):
                pass
    except SourceError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def serve() -> None:
    """Read the files that each line of JSON names; answer with a line for each file."""
    reader_of("arrow")
    for line in sys.stdin:
        reader, paths = json.loads(line)
        done = 0
        while done < len(paths):
            done += _read_in_child(reader, paths[done:])


def _read_in_child(reader: str, paths: list[str]) -> int:
    """Read files until the end or a crash; how many were answered for."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        with os.fdopen(sink, "w") as out:
            for path in paths:
                print(json.dumps(outcome(reader, path)), file=out, flush=True)
        os._exit(0)
    os.close(sink)
    with os.fdopen(source) as answers:
        done = 0
        for answer in answers:
            print(answer, end="", flush=True)
            done += 1
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        print(json.dumps(f"died: {code}"), flush=True)
        done += 1
    return done


class DamagedReads:
    """Reads files in another process; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.readers.damage"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def outcomes(self, reader: str, paths: Sequence[Path]) -> list[str]:
        """What becomes of each file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([reader, list(map(str, paths))]) + "\n")
        self._process.stdin.flush()
        return [json.loads(self._process.stdout.readline()) for _ in paths]

    def __enter__(self) -> DamagedReads:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    serve()
