"""Memory that Python, NumPy or Arrow allocate within a block of a test."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

_ARROW_POOLS: list[pa.MemoryPool] = []


@dataclass
class TracedMemory:
    """Bytes allocated within the block; both are 0 until the block ends."""

    held: int = 0
    peak: int = 0


@contextmanager
def traced() -> Iterator[TracedMemory]:
    """Trace allocations until the block ends.

    ``tracemalloc.stop`` crashes the process if a thread of a C library (Arrow's, for one) is
    waiting for the GIL to allocate (python/cpython#128679, in Python before 3.12.9 and 3.13.2).
    A short sleep without the GIL lets such threads finish first.
    """
    memory = TracedMemory()
    tracemalloc.start()
    try:
        yield memory
    finally:
        memory.held, memory.peak = tracemalloc.get_traced_memory()
        time.sleep(0.02)
        tracemalloc.stop()


@contextmanager
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """Let Arrow allocate from a pool of its own until the block ends.

    The pool is kept until the process ends. Arrow's threads may free a buffer after the reader
    that asked for it has returned, and that crashes the process if the pool is gone by then.
    """
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    _ARROW_POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
