"""How tests start: signals, bytecode, Hypothesis profiles, and a tiny store in each backend."""

import faulthandler
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.stores import BACKENDS, Tiny, made_block, made_spec, write_parts

# The first example of a type compiles kernels, so no example has a deadline.
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "quick", max_examples=25, deadline=None, derandomize=True, suppress_health_check=QUIET
)
settings.register_profile("ci", max_examples=200, deadline=None, suppress_health_check=QUIET)
settings.load_profile("ci" if os.environ.get("STREAMMIML_THOROUGH") else "quick")


ALARM_FILE = pytest.StashKey()
# No test takes longer than this on any machine that we know of.
HANGING_SECONDS = 1200


def pytest_configure(config: pytest.Config) -> None:
    """Make this process, xdist's workers and all children of tests what they are anywhere."""
    # A shell makes what it starts in the background deaf to these, and children inherit that.
    # SIGHUP stays: who says nohup wants the tests to go on.
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
    # Where nobody may write bytecode beside sources, each of hundreds of children would compile
    # all modules that it loads, for seconds; one folder of our own serves them all.
    cache = getattr(config, "cache", None)
    if sys.dont_write_bytecode and cache is not None and not sys.pycache_prefix:
        # A checkout that cannot be written stays without.
        with suppress(OSError):
            sys.pycache_prefix = str(cache.mkdir("bytecode"))
            sys.dont_write_bytecode = False
            os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # The alarm of a test that hangs prints every thread's stack, then ends the process.
    stderr = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")
    config.stash[ALARM_FILE] = stderr
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, file=stderr, chain=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """End the process if a test hangs, instead of waiting for ever.

    pytest's own faulthandler_timeout starts a thread for each test; a timer needs none.
    """
    signal.setitimer(signal.ITIMER_REAL, HANGING_SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    return request.param


@pytest.fixture(scope="session", params=BACKENDS)
def tiny(request, tmp_path_factory) -> Tiny:
    """A finished store with ids, row labels and names; copy it before doing it harm."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    path, block = folder / f"tiny.{request.param}", made_block()
    write_parts(path, made_spec(), [block.slice(0, 5), block.slice(5, len(block))])
    return Tiny(request.param, path, block)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server."""
    servers = pytest.importorskip("tests.remote_servers", reason="the server is moto's")
    with servers.s3_server() as address:
        yield address


@pytest.fixture
def s3(server, monkeypatch, tmp_path) -> str:
    """The URL of an empty prefix, with the environment set as a user would."""
    servers = pytest.importorskip("tests.remote_servers", reason="the server is moto's")
    for name, value in servers.s3_settings(server).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return f"s3://{servers.BUCKET}/{tmp_path.name}"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real sets; what needs it is skipped where there is none."""
    folder = os.environ.get("STREAMMIML_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("STREAMMIML_DATA names no folder of real data sets")
    return Path(folder)
