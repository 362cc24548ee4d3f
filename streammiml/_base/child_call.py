"""Calls in processes of their own, which end at a time limit, and when their caller ends.

Python cannot stop a thread, so a call that may have to be stopped needs a process. The child's
standard input is a pipe that the caller keeps open: when the caller is gone, the pipe ends, and so
does the child.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from streammiml.errors import StreammimlError

# The child finds modules where its caller finds them.
_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from streammiml._base.child_call import serve; serve()"
)
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Sums of a library depend on its number of threads, and so would results."""
_PIECE = 1 << 16
_CRASH_SECONDS = 10
_RUNNING: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
"""Children of this process by their numbers, with the names of their owners."""
_ENDED: set[str] = set()
"""Owners whose calls are ended; a call that one of them begins later ends at once."""


class OverTimeLimitError(StreammimlError):
    """A call took longer than its time limit, and was ended."""


class ChildEndedError(StreammimlError):
    """The process of a call ended without a result."""


def call_in_child(function: Callable[..., Any], *arguments: Any, seconds: float, owner: str) -> Any:
    """Return ``function(*arguments)`` from a new process, in which libraries use one thread.

    Function, arguments and result are pickled. After ``seconds`` the process is ended, which raises
    OverTimeLimitError. Errors that a user can correct, and those of the system, are raised here
    too; any other error raises ChildEndedError with its name, and so does a crash, with the last
    line that the process wrote.
    :func:`end_children` ends all calls of an ``owner``, a name that is used for nothing else.
    """
    deadline = time.monotonic() + seconds
    with (
        tempfile.TemporaryFile() as messages,
        # A child that is ended cannot remove its temporary files.
        tempfile.TemporaryDirectory(prefix="streammiml-call-", ignore_cleanup_errors=True) as own,
    ):
        child = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            env={**os.environ, **_ONE_THREAD, "TMPDIR": own},
            # Ctrl-C on a terminal is for the caller alone, which then ends its children.
            start_new_session=True,
        )
        _RUNNING[child.pid] = owner, child
        try:
            if owner in _ENDED:
                child.kill()
            assert child.stdin is not None
            with suppress(BrokenPipeError):  # Its last words are read below.
                child.stdin.write(pickle.dumps(sys.path) + pickle.dumps((function, arguments)))
                child.stdin.flush()
            answer = _answer(child, deadline)
            if answer is None:
                # It may still be writing why it ends.
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_CRASH_SECONDS)
        finally:
            child.kill()
            child.wait()
            del _RUNNING[child.pid]
            for pipe in (child.stdin, child.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
        if answer is None:
            raise ChildEndedError(_last_line(messages) or _ending(child.returncode))
    result, error = pickle.loads(answer)
    if error is not None:
        raise error
    return result


def end_children(owner: str) -> None:
    """End all calls of an owner, for good; they raise ChildEndedError in their threads."""
    _ENDED.add(owner)
    for name, child in list(_RUNNING.values()):
        if name == owner:
            child.kill()


def _answer(child: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """Read what the child writes until it closes its output; None if it wrote nothing whole."""
    assert child.stdout is not None
    pieces = []
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise OverTimeLimitError("over the time limit")
            piece = os.read(child.stdout.fileno(), _PIECE)
            if not piece:
                break
            pieces.append(piece)
    answer = b"".join(pieces)
    # A pickle ends with this byte, so an answer that a crash cut short is noticed.
    return answer if answer.endswith(pickle.STOP) else None


def _last_line(messages: IO[bytes]) -> str:
    """Last line that the child wrote on stderr, such as ``ValueError: …``; empty if none."""
    messages.seek(0)
    lines = messages.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _ending(code: int) -> str:
    """How a process ended, by its exit code; negative codes are signals."""
    if code < 0:
        return f"its process was killed by signal {-code}, perhaps for lack of memory"
    return f"its process ended with code {code}"


def serve() -> None:
    """Read a call from stdin, make it, and write its result to stdout: what a child does."""
    function, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_caller, daemon=True).start()
    # What the call prints must not mix with its result.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        try:
            answer = pickle.dumps((function(*arguments), None))
        except (StreammimlError, OSError, MemoryError) as error:
            answer = pickle.dumps((None, error))
        except Exception as error:
            answer = pickle.dumps((None, ChildEndedError(f"{type(error).__name__}: {error}")))
        out.write(answer)


def _end_with_caller() -> None:
    # The caller writes nothing more, so this read returns when the caller is gone. A read of
    # sys.stdin would hold its lock, which Python needs when it ends.
    os.read(0, 1)
    os._exit(1)
