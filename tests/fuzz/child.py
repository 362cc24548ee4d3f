"""The process that runs a target on inputs: it may crash, hang or fill the memory.

The hunt sends a case, and the child answers with its outcome and the lines of code that ran for
the first time. ``sys.settrace`` finds the lines, on every Python and without another package.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from streammiml.errors import StreammimlError
from tests.fuzz.case import Case
from tests.fuzz.targets import target_of

ROOT = Path(__file__).parents[2]
TRACED = tuple(f"{ROOT / folder}{os.sep}" for folder in ("streammiml", "tools"))
GROWTH_LIMIT = 512 << 20
"""Bytes of memory that reading one input may take; the targets allow 64 MiB to the readers."""
HARD_LIMIT = 1 << 30
"""Bytes by which the data of the process may grow at all."""
CRASHES = "crash.txt"


class Outcome(NamedTuple):
    """What became of an input."""

    kind: str
    """``read``, ``refused`` (StreammimlError), ``foreign`` (another exception), ``memory``;
    the hunt adds ``died``, ``hang`` and ``silent``."""
    text: str = ""
    """The message, or the traceback of a foreign exception."""
    where: str = ""
    """Type of a foreign exception and the function of ours that it passed last."""
    answer: str = ""
    """What the target returned."""
    lines: frozenset[tuple[str, int]] = frozenset()
    """Lines of code that this process ran for the first time."""

    @property
    def is_finding(self) -> bool:
        """Whether the outcome is a fault of ours."""
        return self.kind not in ("read", "refused")

    @property
    def signature(self) -> str:
        """Equal for findings that probably have one cause."""
        return f"{self.kind}: {self.where}" if self.where else self.kind


class LineTracer:
    """Collects lines of our code that run; functions whose lines have all run cost little."""

    def __init__(self) -> None:
        self._missing: dict[CodeType, set[int]] = {}
        self.new: set[tuple[str, int]] = set()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace this thread."""
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    def taken(self) -> frozenset[tuple[str, int]]:
        """The lines since the last call."""
        lines, self.new = frozenset(self.new), set()
        return lines

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        missing = self._missing.get(code)
        if missing is None:
            traced = code.co_filename.startswith(TRACED)
            missing = {line for *_, line in code.co_lines() if line} if traced else set()
            self._missing[code] = missing
        if not missing:
            return None
        name = code.co_filename

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line" and frame.f_lineno in missing:
                missing.discard(frame.f_lineno)
                self.new.add((name, frame.f_lineno))
            return line

        if event == "call" and frame.f_lineno in missing:
            missing.discard(frame.f_lineno)
            self.new.add((name, frame.f_lineno))
        return line


def serve(name: str, warm: Case, folder: Path, pipe: Connection) -> None:
    """Run the cases that come through the pipe in a folder, until the pipe is closed."""
    silence()
    target = target_of(name)
    tracer = LineTracer()
    with (folder / CRASHES).open("w") as crashes, suppress(EOFError, OSError):
        target.warm(folder / "warm", warm)
        limit_memory()
        # The frames of a crash tell crashes of different causes apart.
        faulthandler.enable(crashes, all_threads=False)
        pipe.send(None)
        number = 0
        while True:
            case: Case = pipe.recv()
            number += 1
            # Every input has a folder of its own: readers keep results by path.
            here = folder / f"{number}"
            here.mkdir()
            case.write(here)
            outcome = run_case(target, here, case.choice, tracer)
            shutil.rmtree(here, ignore_errors=True)
            pipe.send(outcome)


def run_case(target: Any, folder: Path, choice: int, tracer: LineTracer) -> Outcome:
    """Run a target on the files of a folder."""
    begun = reset_peak()
    outcome: Outcome
    try:
        with tracer.tracing():
            answer = target.run(folder, choice)
        outcome = Outcome("read", answer=answer)
    except KeyboardInterrupt:
        raise
    except StreammimlError as error:
        kind = "memory" if is_out_of_memory(error) else "refused"
        outcome = Outcome(kind, str(error), last_function(error) if kind == "memory" else "")
    except BaseException as error:
        kind = "memory" if is_out_of_memory(error) else "foreign"
        text = "".join(traceback.format_exception(error))[-4000:]
        outcome = Outcome(kind, text, f"{type(error).__name__} in {last_function(error)}")
    peak = memory_peak()
    if begun is not None and peak is not None and peak - begun > GROWTH_LIMIT:
        text = f"memory grew by {(peak - begun) >> 20} MiB; {outcome.text}"
        outcome = outcome._replace(kind="memory", text=text)
    return outcome._replace(lines=tracer.taken())


def last_function(error: BaseException) -> str:
    """File and name of the last function of ours that an exception passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(TRACED)]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).name}:{last.name}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception comes from a MemoryError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def silence() -> None:
    """Leave the terminal to the hunt."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)


def limit_memory() -> None:
    """Let no allocation succeed that is far beyond the limit, so that the machine survives."""
    status = _status("VmData")
    if status is not None:
        limit = status + HARD_LIMIT
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def reset_peak() -> int | None:
    """Forget the peak of memory; the bytes that are held now, or None where Linux is missing."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return memory_peak()


def memory_peak() -> int | None:
    """The highest memory since ``reset_peak``."""
    return _status("VmHWM")


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field)), None)
