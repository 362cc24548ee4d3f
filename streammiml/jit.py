"""The decorators of compiled functions, where compiled code is kept, and what compiling costs.

Three decorators, which differ only in how long a function takes to compile:

- ``njit``: Python calls it.
- ``inner``: compiled functions call it. It has no wrapper that unpacks Python's arguments, which
  for our tuples of arrays takes longer to compile than most functions. Called from Python, as
  tests do, it is compiled once more, with a wrapper.
- ``inlined``: it is copied into its callers before they are compiled, and not compiled by itself
  unless Python calls it. numba optimises a function once for itself and once more for every
  caller above it, so this is for functions in the middle of a chain that do little but call
  others. Large functions are slower to compile this way.

numba's own cache notices edits in a function's file but not in the files of what it calls. So the
folder of the cache is named by a hash of this package's compiled sources and of numba's version.
Where that folder cannot be written, numba would use the package's own ``__pycache__``, without the
hash: we compile in memory instead, and say so.

numba's cache has no lock: of two processes that keep different types of one function in the same
moment, one can leave its code under the other's name. Ours has one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from functools import cached_property, update_wrapper
from pathlib import Path
from threading import Lock, Timer
from time import monotonic
from types import FunctionType
from typing import Any, TypeVar

import numba
from numba.core import event
from numba.core.caching import FunctionCache
from numba.extending import typeof_impl

from streammiml._base.platform import waiting_lock

Function = TypeVar("Function", bound=Callable[..., Any])

_LOG = logging.getLogger("streammiml")
LEAST_ROOM = 4 << 20
"""Bytes that the folder of compiled code must have room for: about what a training compiles."""
NOTICE_SECONDS = 1.0
"""Compiling is announced once it has taken this long in all."""
_HERE = Path(__file__).parent
_COMPILED = ("jit.py", "digest.py", "drawing.py", "fast_crc.py", "laying.py", "fetching.py")
_SOURCES = [
    *(_HERE / name for name in _COMPILED),
    *sorted((_HERE / "kernel").glob("*.py")),
]


def cache_folder() -> Path | None:
    """Folder for compiled code, made if it is missing; None if no folder can be written.

    It lies in the folder that ``NUMBA_CACHE_DIR`` names, else in the user's cache.
    """
    key = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES))
    key.update(numba.__version__.encode())
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(given) if given else Path("~/.cache").expanduser()
        folder = home / "streammiml" / key.hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        # Asking for permissions is not enough: a disk may be full, or mounted for reading only.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(LEAST_ROOM))
    except (OSError, RuntimeError):  # A user without a home is a RuntimeError.
        return None
    return folder


CACHE = cache_folder()
_DECORATING = Lock()


def _decorated(function: Callable[..., Any], **options: Any) -> Any:
    """Wrap a function for numba; its cache is ours, whatever other packages set for theirs."""
    config: Any = numba.config
    # Its type does not list the options about wrappers, which numba has (checked: 0.61 to 0.68).
    decorate: Any = numba.njit
    with _DECORATING:
        before = config.CACHE_DIR
        config.CACHE_DIR = str(CACHE or "")
        try:
            # nogil lets the reader threads run. nnan and ninf stay out: a divergence must stay
            # visible; reassoc stays out: the order of a sum is ours. Nobody calls a function by
            # its C address, so no wrapper is compiled for that.
            decorated = decorate(
                nogil=True,
                fastmath={"nsz", "arcp", "contract"},
                no_cfunc_wrapper=True,
                **options,
            )(function)
            if CACHE is not None and not config.DISABLE_JIT:
                decorated._cache = _LockedCache(function)  # type: ignore[no-untyped-call]
            return decorated
        finally:
            config.CACHE_DIR = before


class _LockedCache(FunctionCache):
    """numba's cache of one function, used by one process at a time."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with waiting_lock(_lock_path(), shared=True):
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        with waiting_lock(_lock_path()):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _lock_path() -> Path:
    assert CACHE is not None, "functions have a cache only where there is a folder"
    return CACHE / "lock"


def njit(function: Function) -> Function:
    """Compile a function that Python calls."""
    return _decorated(function)  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """Copy a function into the compiled functions that call it."""
    return _decorated(function, inline="always")  # type: ignore[no-any-return]


def inner(function: Function) -> Function:
    """Compile a function that only compiled functions call, without a wrapper for Python."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    return _Inner(function)  # type: ignore[return-value]


class _Inner:
    """A function compiled without a wrapper, and with one when Python calls it all the same."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.dispatcher = _decorated(function, no_cpython_wrapper=True)

    @cached_property
    def _entry(self) -> Any:
        function: Any = self.py_func
        # Under a name of its own, since numba's cache would take one for the other.
        name = f"{function.__name__}_from_python"
        copy = FunctionType(
            function.__code__,
            function.__globals__,
            name,
            function.__defaults__,
            function.__closure__,
        )
        copy.__module__, copy.__qualname__ = function.__module__, name
        return _decorated(copy)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._entry(*args, **options)


@typeof_impl.register(_Inner)
def _type_of_inner(value: _Inner, _: object) -> Any:
    """Let compiled functions see the function itself."""
    return value.dispatcher._numba_type_


class _Compilation(event.Listener):
    """Measures how long functions are compiled, and announces the first long compilation.

    numba compiles one function at a time, so times never overlap; functions that the first one
    calls are compiled within its time.
    """

    def __init__(self) -> None:
        self._depth = 0
        # Seconds of what is compiled, and when the running compilation began. One tuple, so that
        # other threads never see the one without the other.
        self._state: tuple[float, float | None] = (0.0, None)
        self._is_announced = False
        self._timer: Timer | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all compilations, also of the running one; never grows faster than time."""
        seconds, begun = self._state
        return seconds + (monotonic() - begun if begun is not None else 0.0)

    def on_start(self, started: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._state = self.seconds, monotonic()
        # Other packages compile functions, too. Functions made by exec may have no module.
        module = started.data["dispatcher"].py_func.__module__ or ""
        if module.startswith("streammiml") and not self._is_announced:
            self._timer = Timer(max(0.0, NOTICE_SECONDS - self.seconds), self._announce)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, _: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._state = self.seconds, None
            if self._timer is not None:
                self._timer.cancel()

    def _announce(self) -> None:
        self._is_announced = True
        kept = "they are kept for the next time"
        if CACHE is None:
            kept = "they cannot be kept, for lack of a folder: NUMBA_CACHE_DIR=FOLDER names one"
        _LOG.info("compiling kernels for this processor, which takes some seconds; %s", kept)


_COMPILATION = _Compilation()
event.register("numba:compile", _COMPILATION)  # type: ignore[no-untyped-call]


def compile_seconds() -> float:
    """Seconds that this process has spent on compiling so far."""
    return _COMPILATION.seconds
