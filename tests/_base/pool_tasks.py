"""Tasks for tests of pools; workers in other processes import them from here."""

import os
import time
from contextlib import suppress
from pathlib import Path

from streammiml._base import platform
from streammiml._base.pool_interface import this_worker
from streammiml.errors import StreammimlError

HELD = []


def square(item, shared):
    return item * item + shared


def as_list(item, shared):
    return [(item, shared)]


def add(one, other):
    return one + other


def killing(item, path):
    """The item; the first process that comes to item 30 dies."""
    if item == 30:
        with suppress(FileExistsError):
            Path(path).touch(exist_ok=False)
            os._exit(1)
    return [item]


def squares_and_shared(squares, shared):
    return [*squares, shared]


def combined_at(_squares, _shared):
    return this_worker()


def where(item, _shared):
    """The item, and the address of the worker of this task."""
    return item, this_worker()


def with_number(partition, number, shared):
    """The items of a partition, with its number and a value for all partitions."""
    return [*partition, number, shared]


def refuse(item, _):
    if item == 5:
        raise StreammimlError("five is refused")
    return item


def die(item, _):
    os._exit(item)


def hoard(item, _):
    raise MemoryError(f"Unable to allocate {item} TiB")


def need(item, _):
    raise ModuleNotFoundError(f"No module named 'package{item}'")


def fail(kind, message):
    raise kind(message)


def fill(item, size):
    """Let the process hold so many bytes, and keep them."""
    HELD.append(b"x" * max(0, size - platform.resident_bytes()))
    time.sleep(0.3)
    return item


def nap(item, seconds):
    time.sleep(seconds)
    return item, os.getpid()


def process_id():
    return os.getpid()
