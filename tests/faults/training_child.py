"""Trains in processes that can be killed: forked from one that has loaded everything already.

Reads orders from stdin, a JSON object a line, and answers each with the exit status of the process
that carried it out: its exit code, or the negative number of the signal that ended it.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import zarr  # noqa: F401  loaded once here rather than in every child

from streammiml import model
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn import begin
from streammiml.learn.train import train as train_model
from tests.planted import planted


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


class DieAt:
    """Stands in for several functions: the n-th call of any of them is never made."""

    def __init__(self, n):
        self.left = n

    def instead_of(self, real, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            die()
        return real(*args, **kwargs)


def die_at_call(n):
    """Die before the n-th time that a file is synced or renamed."""
    at = DieAt(n)
    for name in ("fsync", "replace"):
        setattr(os, name, partial(at.instead_of, getattr(os, name)))


def die_at_piece(n):
    """Die before the n-th piece of a checkpoint or model is written, with the others flushed."""
    at, real = DieAt(n), model.save_whole

    def save_whole(path, pieces):
        def cut():
            for piece in pieces:
                at.instead_of(lambda: None)
                yield piece

        real(path, cut())

    model.save_whole = save_whole


def forget(part):
    """Lose a part of every checkpoint that is loaded: the protection switched off."""
    real = begin.load_checkpoint

    def load(folder, expected):
        state = real(folder, expected)
        if state is not None and part == "place":
            state.at.place = 0
        if state is not None and part == "averages":
            state.averages.labels[...] = 0
        return state

    begin.load_checkpoint = load


def limit_file_size(n_bytes):
    sys.dont_write_bytecode = True  # Half of a module would be taken for the whole.
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))


FAULTS = {
    "call": die_at_call, "piece": die_at_piece, "forget": forget, "file_size": limit_file_size
}  # fmt: skip


def train(order):
    """In the child: train slowly, as a command would end."""
    for name, how in order.get("faults", {}).items():
        FAULTS[name](how)
    config = TrainConfig(**order["settings"])
    pace = order.get("pace", 0)
    with contextlib.redirect_stderr(Path(order["log"]).open("w")):
        try:
            train_model(
                order["store"],
                config,
                run=order["run"],
                resume=True,
                watch=lambda _: time.sleep(pace),
            )
        except StreammimlError as error:
            print(error, file=sys.stderr, flush=True)
            return 2
    return 0


def carried_out(order):
    """The status of a child that trains, killed after a while if the order says so."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = train(order)
        finally:
            os._exit(code)
    end = time.monotonic() + order.get("kill_after", 600)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)


def load_kernels():
    """Once here rather than in every child, and with threads that are gone when it returns."""
    config = TrainConfig(shared_dim=8, subconcepts=2, epochs=1, validation=0.1)
    train_model(MemoryBags(planted()), config)
    deadline = time.monotonic() + 30
    while threading.active_count() > 1:
        assert time.monotonic() < deadline, f"these threads stay: {threading.enumerate()}"
        time.sleep(0.001)


if __name__ == "__main__":
    load_kernels()
    for line in sys.stdin:
        print(carried_out(json.loads(line)), flush=True)
