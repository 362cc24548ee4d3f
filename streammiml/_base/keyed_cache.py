"""Values by key that the threads of a process share, one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Value = TypeVar("Value")


class KeyedCache(Generic[Value]):
    """Keeps the values of the ``most`` keys that were used last."""

    def __init__(self, make: Callable[[], Value], most: int) -> None:
        self._make, self._most = make, most
        self._lock = threading.Lock()
        # The dictionary begins with the least recently used key.
        self._values: dict[str, tuple[Value, threading.Lock]] = {}

    @contextmanager
    def using(self, key: str) -> Iterator[Value]:
        """Give the value of a key to one thread at a time; a new value if there is none."""
        with self._lock:
            entry = self._values.pop(key) if key in self._values else self._new_entry()
            self._values[key] = entry
            for old in list(self._values)[: -self._most]:
                del self._values[old]
        value, lock = entry
        with lock:
            yield value

    def _new_entry(self) -> tuple[Value, threading.Lock]:
        return self._make(), threading.Lock()

    def forget(self, key: str) -> None:
        """Forget the value of a key."""
        with self._lock:
            self._values.pop(key, None)
