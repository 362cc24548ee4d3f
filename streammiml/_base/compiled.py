"""Decorators that compile functions, the cache of compiled code, and the time compiling takes.

Three decorators differ only in how long a function takes to compile:

- ``njit``: Python calls it.
- ``inner``: compiled functions call it. It has no wrapper that unpacks Python's arguments, which
  for our tuples of arrays takes longer to compile than most functions. Called from Python, as
  tests do, it is compiled once more, with a wrapper.
- ``inlined``: it is copied into its callers before they are compiled, and not compiled by itself
  unless Python calls it. numba optimises a function once for itself and once more for every
  caller above it, so this is for functions in the middle of a chain that do little but call
  others. Large functions are slower to compile this way.

The fourth, ``exact``, gives the same bits on every processor.

numba's own cache notices edits in a function's file, but not in files of functions it calls. So the
folder of the cache is named by a hash of this package's compiled sources and of numba's version.
Where that folder cannot be written, numba would use the package's own ``__pycache__``, without the
hash: we compile in memory instead, and log it.

numba's cache has no lock: if two processes save different types of one function at the same time,
the code of one can end up under the name of the other. Our cache has a lock.
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
"""Bytes that the folder of compiled code must have room for, about as many as training compiles."""
NOTICE_SECONDS = 1.0
"""Compiling is announced once it has taken this long in all."""
_PACKAGE = Path(__file__).parent.parent
_COMPILED = (
    "_base/compiled.py",
    "_base/crc_compiled.py",
    "_base/hashing.py",
    "bags/fast_reads.py",
    "bags/fingerprint.py",
    "blocks/bag_copies.py",
)
_SOURCES = [
    *(_PACKAGE / name for name in _COMPILED),
    *sorted((_PACKAGE / "kernel").glob("*.py")),
]
"""Every file with compiled functions: a change in one of them gives the cache another folder."""


def cache_folder() -> Path | None:
    """Folder for compiled code, made if it is missing; None if no folder can be written.

    It is in ``NUMBA_CACHE_DIR``, else in ``XDG_CACHE_HOME``, else in ``~/.cache``.
    """
    key = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES))
    key.update(numba.__version__.encode())
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(given) if given else Path("~/.cache").expanduser()
        folder = home / "streammiml" / key.hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        # Checking permissions is not enough: a disk may be full, or mounted for reading only.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(LEAST_ROOM))
    except (OSError, RuntimeError):  # expanduser raises RuntimeError without a home.
        return None
    return folder


CACHE = cache_folder()
_DECORATING = Lock()


def _decorated(function: Callable[..., Any], **options: Any) -> Any:
    """Wrap a function for numba, with our cache folder, whatever folder other packages set."""
    config: Any = numba.config
    # The declared type of njit lacks the options about wrappers (checked: numba 0.61 to 0.68).
    decorate: Any = numba.njit
    with _DECORATING:
        before = config.CACHE_DIR
        config.CACHE_DIR = str(CACHE or "")
        try:
            # nogil lets the reader threads run. nnan and ninf stay out: a divergence must stay
            # visible; reassoc stays out: the order of a sum is ours. Nobody calls a function by
            # its C address, so no wrapper is compiled for that.
            options = {"fastmath": {"nsz", "arcp", "contract"}, **options}
            decorated = decorate(nogil=True, no_cfunc_wrapper=True, **options)(function)
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


def exact(function: Function) -> Function:
    """Compile a function that Python calls, with the same bits on every processor.

    Its multiplications and additions are not fused, as they are in the other functions on
    processors that can fuse them.
    """
    return _decorated(function, fastmath=False)  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """Copy a function into the compiled functions that call it."""
    return _decorated(function, inline="always")  # type: ignore[no-any-return]


def inner(function: Function) -> Function:
    """Compile a function that only compiled functions call, without a wrapper for Python."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    return _Inner(function)  # type: ignore[return-value]


class _Inner:
    """A function compiled without a wrapper; if Python calls it, it is compiled with one too."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.dispatcher = _decorated(function, no_cpython_wrapper=True)

    @cached_property
    def _entry(self) -> Any:
        function: Any = self.py_func
        # The copy has another name, since numba's cache would confuse two functions of one name.
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
    """Let compiled functions call the version without a wrapper."""
    return value.dispatcher._numba_type_


class _Compilation(event.Listener):
    """Measures how long functions are compiled, and announces the first long compilation.

    numba compiles one function at a time, so times never overlap; functions that the first one
    calls are compiled within its time.
    """

    def __init__(self) -> None:
        self._depth = 0
        # Seconds of all finished compilations, and the start of the running one. One tuple, so that
        # other threads always read values that belong together.
        self._state: tuple[float, float | None] = (0.0, None)
        self._is_announced = False
        self._timer: Timer | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all compilations, with the running one; never grows faster than the clock."""
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
        cached = "they are cached for later runs"
        if CACHE is None:
            cached = (
                "they cannot be cached, as no folder can be written: set NUMBA_CACHE_DIR=FOLDER"
            )
        _LOG.info("compiling kernels for this processor, which takes some seconds; %s", cached)


_COMPILATION = _Compilation()
event.register("numba:compile", _COMPILATION)  # type: ignore[no-untyped-call]


def compile_seconds() -> float:
    """Seconds that this process has spent on compiling so far."""
    return _COMPILATION.seconds
