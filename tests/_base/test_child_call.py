"""Calls in processes of their own: results, errors, time limits, and nothing that stays behind."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from streammiml._base import child_call
from streammiml._base.child_call import (
    ChildEndedError,
    OverTimeLimitError,
    call_in_child,
    end_children,
)
from streammiml.errors import StoreError

LONG = 60.0
CALLER = """
from streammiml._base.child_call import call_in_child
from tests._base.test_child_call import report_and_wait
call_in_child(report_and_wait, {!r}, seconds=60, owner="x")
"""


def call(function, *arguments, seconds=LONG, owner="test"):
    return call_in_child(function, *arguments, seconds=seconds, owner=owner)


def facts(array):
    """What a child sees; printing does not mix with the result."""
    print("printed")
    return os.getpid(), array * 2, os.environ["OMP_NUM_THREADS"]


def refuse(text):
    raise StoreError(text)


def fail():
    raise KeyError("a bug")


def die(words=""):
    os.write(2, words.encode())
    os._exit(7)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def report_and_wait(path):
    Path(tempfile.mkdtemp(), "left").write_text("")
    Path(path).write_text(f"{os.getpid()} {tempfile.gettempdir()}")
    # A loop that never releases the interpreter, as a method may do.
    while True:
        sum(range(1000))


def reported(path):
    """Number and temporary folder of the child that waits."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if path.exists() and len(words := path.read_text().split()) == 2:
            return int(words[0]), Path(words[1])
        time.sleep(0.01)
    raise AssertionError("the child did not begin")


def is_gone(number):
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if not psutil.pid_exists(number):
            return True
        time.sleep(0.01)
    return False


def test_call_in_child__gives_the_result_of_another_process_with_one_thread():
    number, doubled, threads = call(facts, np.arange(100_000))
    assert number != os.getpid()
    np.testing.assert_array_equal(doubled, 2 * np.arange(100_000))
    assert threads == "1"


def test_call_in_child__raises_errors_of_users_and_names_others():
    with pytest.raises(StoreError, match=r"^it is broken$"):
        call(refuse, "it is broken")
    with pytest.raises(ChildEndedError, match=r"^KeyError: 'a bug'$"):
        call(fail)
    with pytest.raises(ChildEndedError, match=r"^its process ended with code 7$"):
        call(die)
    with pytest.raises(ChildEndedError, match=r"^last words$"):
        call(die, "last words")
    message = r"^its process was killed by signal 9, perhaps for lack of memory$"
    with pytest.raises(ChildEndedError, match=message):
        call(kill_itself)


def test_call_in_child__ends_at_the_time_limit_and_leaves_nothing(tmp_path):
    path = tmp_path / "report"
    with pytest.raises(OverTimeLimitError, match=r"^over the time limit$"):
        call(report_and_wait, str(path), seconds=3.0)
    number, folder = reported(path)
    assert is_gone(number)
    assert not folder.exists()
    assert not child_call._RUNNING


def test_end_children__ends_the_calls_of_one_owner(tmp_path):
    errors = []

    def wait(owner):
        with pytest.raises(ChildEndedError) as caught:
            call(report_and_wait, str(tmp_path / owner), owner=owner)
        errors.append((owner, str(caught.value)))

    threads = [threading.Thread(target=wait, args=(owner,)) for owner in ("one", "two")]
    for thread in threads:
        thread.start()
    numbers = [reported(tmp_path / owner)[0] for owner in ("one", "two")]
    end_children("one")
    threads[0].join(LONG)
    assert is_gone(numbers[0])
    assert psutil.pid_exists(numbers[1])
    # What an owner begins after its end does not run.
    with pytest.raises(ChildEndedError):
        call(report_and_wait, str(tmp_path / "later"), owner="one")
    end_children("two")
    threads[1].join(LONG)
    assert [owner for owner, _ in errors] == ["one", "two"]
    assert not child_call._RUNNING


def test_call_in_child__ends_with_a_caller_that_is_killed(tmp_path):
    path = tmp_path / "report"
    caller = subprocess.Popen([sys.executable, "-c", CALLER.format(str(path))])
    number, _ = reported(path)
    caller.kill()
    caller.wait()
    assert is_gone(number)
