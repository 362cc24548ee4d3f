"""Tasks on workers: the version is checked, and errors name the worker."""

import errno
import pickle

import pytest

from streammiml._base import cluster_tasks
from streammiml._base.cluster_tasks import (
    UnfitWorkerError,
    forget_place,
    installed_version,
    place_of,
    run_task,
    say_place,
)
from streammiml.errors import StreammimlError
from tests._base.pool_tasks import fail, square


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    monkeypatch.setattr(cluster_tasks, "this_worker", lambda: "tcp://there:1")


def error_of(kind, *values):
    """The error of a task, as it arrives from a worker."""
    with pytest.raises(kind) as caught:
        run_task(fail_with, installed_version(), kind, values)
    return pickle.loads(pickle.dumps(caught.value))


def fail_with(kind, values):
    raise kind(*values)


def test_run_task__gives_the_result():
    assert run_task(square, installed_version(), 3, 1) == 10


def test_run_task__another_version_runs_nothing():
    message = "^the worker at tcp://there:1 has streammiml .*, this process has 99.1; install 99.1"
    with pytest.raises(UnfitWorkerError, match=message) as caught:
        run_task(fail, "99.1", KeyError, "not reached")
    assert place_of(caught.value) == "tcp://there:1"


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ValueError, ("bad",), "bad (on the worker at tcp://there:1)"),
        (StreammimlError, ("bad",), "bad (on the worker at tcp://there:1)"),
        (OSError, ("disk",), "disk (on the worker at tcp://there:1)"),
        (
            OSError,
            (errno.ENOENT, "No such file", "x"),
            "[Errno 2] No such file (on the worker at tcp://there:1): 'x'",
        ),
    ],
)
def test_place__is_in_the_message_instead_of_a_note(kind, values, message):
    error = error_of(kind, *values)
    assert place_of(error) == "tcp://there:1"
    say_place(error)
    say_place(error)
    assert str(error) == message
    assert error.__notes__ == []


def test_place__stays_a_note_where_a_class_makes_its_message():
    error = error_of(KeyError, "name")
    say_place(error)
    assert str(error) == "'name'"
    assert error.__notes__ == ["on the worker at tcp://there:1"]
    forget_place(error)
    assert error.__notes__ == []


def test_place__of_an_error_from_elsewhere_is_none():
    error = ValueError("here")
    say_place(error)
    forget_place(error)
    assert place_of(error) is None
    assert str(error) == "here"
