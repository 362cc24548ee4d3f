"""What the system offers, and the fallback that takes its place where a call is missing."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streammiml._base import platform
from streammiml.bags import page_cache
from streammiml.errors import StreammimlError

MIB = 1 << 20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="compares with what Linux says")


@pytest.fixture
def without_kernel_files(monkeypatch):
    """Nothing under /proc and /sys can be read."""
    monkeypatch.setattr(platform, "_text_of", lambda _: "")


def kernel_files(monkeypatch, **texts):
    """Only these files of the kernel can be read; names stand for what their paths end with."""

    def text_of(path):
        return next((t for name, t in texts.items() if str(path).endswith(name)), "")

    monkeypatch.setattr(platform, "_text_of", text_of)


# Cores.


@on_linux
def test_kill_process__ends_it_at_once_and_may_be_repeated():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    platform.kill_process(child.pid)
    assert child.wait(60) == -signal.SIGKILL
    platform.kill_process(child.pid)


def test_usable_cores__are_those_of_the_process():
    assert platform.usable_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("cpu_count", "cores"), [(7, 7), (None, 1)])
def test_usable_cores__without_affinity_are_those_of_the_machine(monkeypatch, cpu_count, cores):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cpu_count)
    assert platform.usable_cores() == cores


# Memory.


def test_usable_memory__is_no_more_than_the_machine_has():
    physical_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert MIB < platform.usable_memory() <= physical_bytes


@pytest.mark.usefixtures("without_kernel_files")
def test_usable_memory__without_proc_is_all_of_the_machine():
    physical_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert platform.usable_memory() == physical_bytes


@pytest.mark.usefixtures("without_kernel_files")
@pytest.mark.parametrize("error", [ValueError, OSError, AttributeError])
def test_usable_memory__is_unlimited_where_nothing_is_known(monkeypatch, error):
    def sysconf(_):
        raise error

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert platform.usable_memory() == platform.UNLIMITED


MEMINFO = "MemTotal:       8000 kB\nMemFree:         100 kB\nMemAvailable:   4000 kB\n"


@pytest.mark.parametrize(
    ("groups", "limits", "usable"),
    [
        ("0::/user/job\n", {"user/job/memory.max": "1048576\n"}, MIB),
        ("0::/user/job\n", {"cgroup/user/memory.max": "2097152\n"}, 2 * MIB),
        ("0::/user/job\n", {"user/job/memory.max": "max\n"}, 4000 << 10),
        ("4:cpu,memory:/job\n", {"memory/job/memory.limit_in_bytes": "1048576\n"}, MIB),
        ("4:cpu:/job\n", {"memory/job/memory.limit_in_bytes": "1048576\n"}, 4000 << 10),
        ("", {}, 4000 << 10),
    ],
)
def test_usable_memory__is_limited_by_control_groups(monkeypatch, groups, limits, usable):
    kernel_files(monkeypatch, **{"/meminfo": MEMINFO, "self/cgroup": groups}, **limits)
    assert platform.usable_memory() == usable


@on_linux
def test_resident_bytes__grow_with_what_is_held():
    before = platform.resident_bytes()
    held = np.ones(64 * MIB, np.uint8)
    assert platform.resident_bytes() - before > 48 * MIB
    assert platform.peak_resident_bytes() >= before + 48 * MIB
    del held


@on_linux
def test_peak_resident_bytes__is_near_what_the_fallback_says(monkeypatch):
    held = np.ones(256 * MIB, np.uint8)
    fast = platform.peak_resident_bytes()
    kernel_files(monkeypatch)
    # Linux counts what a process held before exec, too: the fallback may be more, never much less.
    assert platform.peak_resident_bytes() > 0.9 * fast > 0.9 * held.nbytes
    assert platform.resident_bytes() == platform.peak_resident_bytes()


@pytest.mark.usefixtures("without_kernel_files")
@pytest.mark.parametrize(("system", "unit"), [("darwin", 1), ("linux", 1024), ("freebsd14", 1024)])
def test_peak_resident_bytes__macos_counts_bytes_and_others_kib(monkeypatch, system, unit):
    usage = resource.struct_rusage([0.0, 0.0, 123_456, *[0] * 13])
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "getrusage", lambda _: usage)
    assert platform.peak_resident_bytes() == platform.resident_bytes() == 123_456 * unit


@pytest.mark.usefixtures("without_kernel_files")
def test_memory__is_0_where_nobody_says(monkeypatch):
    monkeypatch.setattr(platform, "resource", None)
    assert platform.resident_bytes() == platform.peak_resident_bytes() == 0


@on_linux
def test_peak_resident_bytes__is_told_whatever_the_process_is_called(tmp_path, monkeypatch):
    status = tmp_path / "status"
    status.write_bytes("Name:\tdög".encode()[:-2] + b"\nVmHWM:\t    2048 kB\n")
    real = platform._text_of
    monkeypatch.setattr(platform, "_text_of", lambda _: real(status))
    assert platform.peak_resident_bytes() == 2 * MIB


# Files.


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("platform") / "rows"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes())
    return path


@on_linux
def test_bytes_read__counts_what_files_were_asked_for(written):
    before = platform.bytes_read()
    written.read_bytes()
    assert platform.bytes_read() - before >= 5000


@pytest.mark.usefixtures("without_kernel_files")
def test_bytes_read__is_0_where_the_system_does_not_say():
    assert platform.bytes_read() == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    offset=st.integers(0, 5100),
    size=st.integers(0, 6000),
    longest=st.sampled_from([1 << 30, 700]),
    preadv=st.booleans(),
)
def test_read_at__gives_the_bytes_of_the_file(written, offset, size, longest, preadv):
    out = np.full(size, 7, np.uint8)
    with pytest.MonkeyPatch.context() as patch, written.open("rb", buffering=0) as file:
        patch.setattr(platform, "LONGEST_READ", longest)
        if not preadv:
            patch.delattr(os, "preadv", raising=False)
        got = platform.read_at(file.fileno(), out.data, offset)
        assert file.tell() == 0, "the file's own position must not move"
    expected = written.read_bytes()[offset : offset + size]
    assert out[:got].tobytes() == expected[:longest]
    assert (out[got:] == 7).all()


@pytest.mark.parametrize("preadv", [True, False])
def test_read_at__fails_as_the_system_does(written, monkeypatch, preadv):
    if not preadv:
        monkeypatch.delattr(os, "preadv", raising=False)
    fd = os.open(written, os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            platform.read_at(fd, memoryview(bytearray(10)), 0)
    finally:
        os.close(fd)


@on_linux
def test_direct_flag__is_that_of_the_system():
    assert platform.direct_flag() == os.O_DIRECT


def test_direct_flag__without_it_long_reads_are_plain(written, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    monkeypatch.setenv("STREAMMIML_DIRECT", "always")
    assert platform.direct_flag() is None
    assert not page_cache.may_bypass()
    out = np.zeros(max(5000, page_cache.COLD_BYTES), np.uint8)
    assert page_cache.OpenFile(written, bypass=True).read(0, out.data) == 5000
    assert out[:5000].tobytes() == written.read_bytes()


@on_linux
def test_advise_will_need__tells_the_page_cache(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *words: calls.append(words))
    platform.advise_will_need(3, 4096, 100)
    assert calls == [(3, 4096, 100, os.POSIX_FADV_WILLNEED)]
    assert platform.will_need_advice() == os.POSIX_FADV_WILLNEED


@on_linux
def test_advise_not_needed__tells_the_page_cache(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *words: calls.append(words))
    assert platform.advise_not_needed(3, 4096, 0)
    assert calls == [(3, 4096, 0, os.POSIX_FADV_DONTNEED)]


def test_advise_not_needed__without_the_call_says_so(monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert not platform.advise_not_needed(-1, 0, 0)


def test_advise_will_need__without_the_call_does_nothing(monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert platform.will_need_advice() is None
    platform.advise_will_need(-1, 0, 100)


# Locks.


def test_lock_file__has_one_owner_until_the_file_is_closed(tmp_path):
    with (tmp_path / "lock").open("a+") as second:
        with (tmp_path / "lock").open("a+") as first:
            assert platform.lock_file(first)
            assert not platform.lock_file(second)
        assert platform.lock_file(second)


def test_lock_file__is_released_when_its_owner_dies(tmp_path):
    code = "import sys; from streammiml._base.platform import lock_file; "
    code += "file = open(sys.argv[1], 'a+'); print(lock_file(file), flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdout.readline() == "True\n"
        with (tmp_path / "lock").open("a+") as file:
            assert not platform.lock_file(file)
            owner.kill()
            owner.wait()
            assert platform.lock_file(file)


def test_lock_file__is_refused_in_one_line_where_there_are_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "fcntl", None)
    refused = pytest.raises(StreammimlError, match=r"has no file locks \(fcntl\); use Linux or")
    with (tmp_path / "lock").open("a+") as file, refused:
        platform.lock_file(file)


def test_lock_file__shared_ones_exclude_only_the_others(tmp_path):
    path = tmp_path / "lock"
    with path.open("a") as first, path.open("a") as second, path.open("a") as third:
        assert platform.lock_file(first, shared=True)
        assert platform.lock_file(second, shared=True)
        assert not platform.lock_file(third)


def test_waiting_lock__waits_for_the_owner(tmp_path):
    order = []
    with platform.waiting_lock(tmp_path / "lock"):

        def follow():
            with platform.waiting_lock(tmp_path / "lock", seconds=60):
                order.append("second")

        thread = threading.Thread(target=follow)
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_waiting_lock__goes_on_without_where_none_can_be_had(tmp_path):
    with (
        platform.waiting_lock(tmp_path / "lock"),
        platform.waiting_lock(tmp_path / "lock", seconds=0.02),
    ):
        pass
    with platform.waiting_lock(tmp_path / "no folder" / "lock"):
        pass
    with pytest.raises(OSError, match="of the caller"), platform.waiting_lock(tmp_path / "lock"):
        raise OSError("of the caller")


# Signals.


def test_signals_blocked__come_afterwards():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("note"))
    try:
        with platform.signals_blocked(signal.SIGINT):
            signal.raise_signal(signal.SIGINT)
            assert heard == []
        assert heard == ["note"]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("call", ["with", "without"])
def test_signals_blocked__leaves_the_mask_as_it_was(call):
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.MonkeyPatch.context() as patch:
        if call == "without":
            patch.delattr(signal, "pthread_sigmask")
        with pytest.raises(KeyError), platform.signals_blocked(signal.SIGINT):
            raise KeyError
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_signals_blocked__without_the_call_handlers_hear_at_once(monkeypatch):
    monkeypatch.delattr(signal, "pthread_sigmask")
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("note"))
    try:
        with platform.signals_blocked(signal.SIGINT):
            signal.raise_signal(signal.SIGINT)
            assert heard == ["note"]
    finally:
        signal.signal(signal.SIGINT, before)


# Windows.


def test_refuse_windows__says_what_to_do(monkeypatch):
    platform.refuse_windows()
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(StreammimlError, match="Windows is not supported; use WSL") as caught:
        platform.refuse_windows()
    assert "\n" not in str(caught.value)


def test_platform__every_function_is_tested_here():
    here, there = Path(__file__).read_text(), Path(platform.__file__).read_text()
    for name in re.findall(r"^def ([a-z]\w+)", there, re.M):
        assert f"platform.{name}(" in here


# Open files.


@pytest.fixture
def limits_of_open_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_open_files__are_counted():
    before = platform.open_files()
    with Path(__file__).open(), Path(__file__).open():
        assert platform.open_files() == before + 2


def test_open_files__the_limit_is_raised_up_to_the_hard_one(limits_of_open_files):
    _, hard = limits_of_open_files
    low = platform.open_files() + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    assert platform.allow_open_files(low - 1) == low
    assert platform.allow_open_files(low + 1) == low + 1
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low + 1, hard)


def test_open_files__the_limit_that_holds_is_told(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 32))
    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert platform.allow_open_files(1024) == 32
    assert raised == [(32, 32)]

    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert platform.allow_open_files(1024) == 16
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert platform.allow_open_files(1024) == platform.UNLIMITED
    monkeypatch.setattr(platform, "resource", None)
    assert platform.allow_open_files(1024) == platform.UNLIMITED


def test_thread_shortage__is_told_from_other_errors(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    monkeypatch.setattr(threading, name, refuse)
    with pytest.raises(RuntimeError) as caught:
        threading.Thread(target=print).start()
    assert platform.is_thread_shortage(caught.value)
    assert not platform.is_thread_shortage(RuntimeError("a bug of ours"))
    assert not platform.is_thread_shortage(ValueError("can't start new thread"))


# Memory that processes share.


@pytest.mark.parametrize("has_memory_files", [True, False])
def test_memory_file__has_zeros_and_can_be_written(monkeypatch, has_memory_files):
    if not has_memory_files:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    with platform.memory_file(100) as file:
        assert file.read() == bytes(100)
        file.seek(50)
        file.write(b"1")
        file.seek(0)
        assert file.read() == bytes(50) + b"1" + bytes(49)
