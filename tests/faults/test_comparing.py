"""kill −9 in compare, at changes it makes and at random: run again, the same table."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import psutil
import pytest

from tests.faults.killing import ROOT, ChildOwner
from tests.planted import planted
from tests.stores import scratch, write_store

MARK = "STREAMMIML_TEST_MARK"
SECONDS = ("choose_seconds", "fit_seconds", "score_seconds")


class Comparing(ChildOwner):
    """A process that compares in children of its own, and kills them where it is told."""

    def __init__(self, folder):
        self.folder = folder
        self.store = write_store(folder / "x.zarr", planted(30), n_labels=5).name
        # Processes that this one starts have its environment, by which tests find them.
        with mock.patch.dict(os.environ, {MARK: str(folder)}):
            super().__init__("tests.faults.comparing_child", folder / "tally", self.store)

    def __call__(self, out, *, at=0, after=0.0, children=False):
        """Compare; die before the n-th change, or after seconds. Whether it was killed."""
        order = {"out": str(out), "store": self.store, "children": children}
        return self._was_killed(**order, at=at, after=after)


@pytest.fixture(scope="module")
def comparing():
    with scratch() as folder, Comparing(folder) as comparing:
        yield comparing


@pytest.fixture(scope="module")
def undisturbed(comparing):
    """What a comparison that is not killed writes, and how many changes it makes."""
    out = comparing.folder / "undisturbed"
    assert not comparing(out)
    return results(out), comparing.changes


def results(out):
    """Everything that was measured or decided, without times."""
    lines = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    table, _, _ = (out / "table.md").read_text().partition("## Seconds")
    untimed = [{name: line[name] for name in line if name not in SECONDS} for line in lines]
    files = sorted(path.name for path in out.rglob("*") if path.name != "_lock")
    return untimed, table, (out / "settings.toml").read_bytes(), files


def kill_and_go_on(comparing, want, **where):
    out = comparing.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    killed = comparing(out, **where)
    assert killed != (out / "_SUCCESS").exists()
    # Cells run in processes of their own or not: the results are the same.
    assert not comparing(out)
    assert results(out) == want
    return killed


def test_compare__killed_at_some_changes_goes_on_to_the_same_table(comparing, undisturbed):
    want, changes = undisturbed
    assert changes > 40
    for at in (1, 4, *range(9, changes, changes // 4), changes - 1):
        assert kill_and_go_on(comparing, want, at=at)


@pytest.mark.slow
def test_compare__killed_at_every_change_goes_on_to_the_same_table(comparing, undisturbed):
    want, changes = undisturbed
    for at in range(1, changes):
        assert kill_and_go_on(comparing, want, at=at)


@pytest.mark.slow
def test_compare__killed_at_random_goes_on_to_the_same_table_and_leaves_no_process(
    comparing, undisturbed
):
    want, _ = undisturbed
    draw = random.Random(0)
    killed = [
        kill_and_go_on(comparing, want, after=draw.uniform(0.05, 8), children=True)
        for _ in range(10)
    ]
    assert sum(killed) >= 5
    deadline = time.monotonic() + 60
    while running(comparing.folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running(comparing.folder)


def running(mark):
    """Processes of cells that descend from a process with this mark."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if any("child_call" in word for word in process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get(MARK) == str(mark)
    ]


@pytest.mark.slow
def test_compare__ctrl_c_ends_it_at_once_and_the_same_command_goes_on(comparing, tmp_path):
    out = tmp_path / "out"
    words = [sys.executable, "-m", "streammiml", "compare", comparing.store, str(out)]
    words += ["--methods", "mimlfast,mimlboost,forest", "--splits", "2", "--threads", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    pipes["env"] = {**os.environ, MARK: str(out)}
    process = subprocess.Popen(words, **pipes, start_new_session=True)
    assert process.stderr.readline() == "0 of 6 cells\n"
    process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == (
        "streammiml: interrupted; run the same command again to continue"
    )
    assert "Traceback" not in err
    assert not running(out)
    assert subprocess.run(words, **pipes).returncode == 0
    assert json.loads((out / "_SUCCESS").read_text()) == {"n_cells": 6}
