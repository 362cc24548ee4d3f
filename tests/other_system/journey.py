"""From a table to predictions, in the working folder: what a user does, and a run that is stopped.

``--workers`` adds processes of a cluster and a dry run. Prints a line of JSON: what the system was
found to offer.
"""

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path

import streammiml as sm
from streammiml._base import platform
from streammiml.bags import fast_reads
from streammiml.learn.stop_signals import Stopped
from streammiml.verbs.main import run

SETTINGS = {"epochs": 4, "shared_dim": 12, "subconcepts": 2}
OPTIONS = [word for name, n in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(n))]


def call(*words, out=None):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = run(words)
    if code:
        sys.exit(f"{words} gave {code}")
    if out is not None:
        Path(out).write_text(output.getvalue())


def stopped_run(folder):
    """Train for some steps, and stop there as Ctrl-C would."""
    waiting = [signal.SIGINT]

    def watch(progress):
        if progress.step and waiting:
            signal.raise_signal(waiting.pop())

    try:
        sm.train("x.zarr", sm.TrainConfig(**SETTINGS), run=folder, watch=watch)
    except Stopped:
        return
    sys.exit("the run was not stopped")


def main():
    call("convert", "x.csv", "x.zarr")
    call("verify", "x.zarr", "--source", "x.csv")
    call("train", "x.zarr", "run", *OPTIONS)
    stopped_run("resumed")
    call("train", "x.zarr", "resumed", "--resume", *OPTIONS)
    call("evaluate", "run", "x.zarr", "--json", out="threads.json")
    call("predict", "run", "x.zarr", "predictions")
    if "--workers" in sys.argv:
        call("evaluate", "run", "x.zarr", "--json", "--workers", "2", out="workers.json")
        call("train", "x.zarr", "none", "--dry-run", *OPTIONS)
    offers = {
        "advice": fast_reads._advise is not fast_reads._no_advice,
        "affinity": hasattr(os, "sched_getaffinity"),
        "direct": platform.direct_flag() is not None,
        "preadv": hasattr(os, "preadv"),
        "proc": platform.bytes_read() > 0,
        "sigmask": hasattr(signal, "pthread_sigmask"),
    }
    print(json.dumps([name for name, is_there in offers.items() if is_there]))


if __name__ == "__main__":
    main()
