"""Clusters as a user meets them on the command line: what cannot be gets one line, and soon."""

import os
import re
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.clusters import answering, outside_processes
from tests.stores import made_block, made_spec, write_parts

STREAMMIML = [sys.executable, "-m", "streammiml"]
SLOWLY = [sys.executable, "-m", "tests.slowly"]
LACKING = """
import sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "streammiml":
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Lacking())
"""
"""Run at the start of a process that is to have no streammiml."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "x.zarr"
    write_parts(path, made_spec(), [made_block(40)])
    return path


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_scheduler__something_else_that_answers_gets_one_line_and_no_long_wait(
    model, store, tmp_path, answer
):
    words = [*STREAMMIML, "predict", str(model), str(store), str(tmp_path / "out")]
    begun = time.monotonic()
    with answering(answer) as port:
        done = subprocess.run(
            [*words, "--scheduler", f"tcp://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert time.monotonic() - begun < 40
    assert done.returncode == 2
    assert done.stderr.startswith("streammiml: no Dask scheduler answers at tcp://127.0.0.1:")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_scheduler__that_is_killed_gets_one_line(model, store, tmp_path, verb):
    out = [str(tmp_path / "out")] if verb == "predict" else []
    words = [*SLOWLY, "600", verb, str(model), str(store), *out, "--scheduler"]
    with outside_processes(1) as (address, head, _):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([*words, address], **pipes) as process:
            assert process.stderr.readline() == "begun\n"
            assert process.stderr.readline().startswith("dashboard at http://")
            head.kill()
            out, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert out == ""
    assert re.fullmatch(
        r"streammiml: the Dask scheduler is gone; start the cluster again, .*\n", err
    )


@pytest.mark.slow
def test_scheduler__workers_without_streammiml_are_told_and_live_on(model, store, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    words = [*STREAMMIML, "predict", str(model), str(store), str(tmp_path / "out"), "--scheduler"]
    with outside_processes(1, PYTHONPATH=str(tmp_path)) as (address, _, workers):
        done = subprocess.run([*words, address], capture_output=True, text=True, timeout=120)
        assert workers[0].poll() is None
    assert done.returncode == 2
    assert re.fullmatch(
        r"streammiml: the worker at tcp://127\.0\.0\.1:\d+ cannot import what tasks need "
        r"\(No module named 'streammiml.*\n",
        done.stderr,
    )


@pytest.mark.slow
@pytest.mark.parametrize("limit", [16, 32])
def test_workers__a_low_soft_limit_on_open_files_is_raised(model, store, limit):
    words = ["evaluate", str(model), str(store), "--workers", "2"]
    done = limited([*STREAMMIML, *words], (limit, 1024))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [16, 32])
def test_workers__a_low_hard_limit_on_open_files_gets_one_line(model, store, tmp_path, limit):
    words = ["predict", str(model), str(store), str(tmp_path / "out"), "--workers", "2"]
    done = limited([*STREAMMIML, *words], (limit, limit))
    assert done.returncode == 2
    assert re.fullmatch(
        rf"streammiml: --workers 2 needs about \d+ open files, and the hard limit .* {limit}; .*\n",
        done.stderr,
    )
    assert not (tmp_path / "out").exists()


def limited(words, limits):
    """Run a command that may open so many files: a soft and a hard limit."""
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    )


GO_ON = "streammiml: interrupted; run the same command again to continue"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "seconds", "message"),
    [
        ("predict", 0.2, GO_ON),
        ("predict", 0.6, GO_ON),
        ("predict", 1, GO_ON),
        ("predict", None, GO_ON),
        ("explain", None, GO_ON),
        ("tune", None, GO_ON),
        ("convert", 3, GO_ON),
        ("evaluate", None, "streammiml: interrupted"),
    ],
)
def test_workers__an_interrupt_gets_one_line_and_leaves_nobody_behind(
    model, store, tmp_path, verb, seconds, message
):
    """``seconds`` after its begin, or when its tasks begin."""
    words = [str(store)] if verb in ("convert", "tune") else [str(model), str(store)]
    words += [] if verb == "evaluate" else [str(tmp_path / "out.zarr")]
    with subprocess.Popen(
        [*SLOWLY, "600", verb, *words, "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr.readline() == "begun\n"
        if seconds is None:
            lines = iter(process.stderr.readline, "")
            assert any(line == "tasks begin\n" for line in lines)
        time.sleep(seconds or 0.5)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert out == ""
    progress = ("tasks begin", "rung 1 of ")
    assert [line for line in err.splitlines() if not line.startswith(progress)] == [message]
    # Python may also end by the signal itself, if it came while generated code was running.
    assert process.returncode in (130, -signal.SIGINT)
    assert not list(living(process.pid))


def living(session):
    """What still runs of a session after a while."""
    until = time.monotonic() + 30
    while alive := [process for process in psutil.process_iter() if is_living(process, session)]:
        if time.monotonic() > until:
            return alive
        time.sleep(0.1)
    return []


def is_living(process, session):
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
