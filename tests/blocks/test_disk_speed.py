"""Speeds of a disk: every case is measured, fallbacks serve, and errors name the file."""

import os
import threading
import time

import pytest

from streammiml._base import platform
from streammiml.blocks import disk_speed
from streammiml.blocks.disk_speed import device_limit, drop_from_cache, pread_speed
from streammiml.errors import StoreError

MIB = 1 << 20
MACOS_LACKS = ("O_DIRECT", "posix_fadvise")
MEASURES = {
    "device_limit": lambda files: device_limit(files, seconds=0.01),
    "pread_speed": lambda files: pread_speed(files, seconds=0.01),
}
any_measure = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)


@pytest.fixture
def files(tmp_path):
    """Files whose sizes are no multiples of a page, one of them empty."""
    paths = []
    for number, size in enumerate((9 * MIB + 123, MIB + 1, 4096, 7, 0)):
        paths.append(tmp_path / f"{number}.bin")
        paths[-1].write_bytes(os.urandom(size))
    return paths


@pytest.fixture
def reads(monkeypatch):
    """(descriptor, offset, bytes) of all reads."""
    calls, read_at = [], platform.read_at

    def read(fd, buffer, offset):
        n_read = read_at(fd, buffer, offset)
        calls.append((fd, offset, n_read))
        return n_read

    monkeypatch.setattr(disk_speed, "read_at", read)
    return calls


def take_away(monkeypatch, *names):
    for name in names:
        monkeypatch.delattr(os, name, raising=False)


def test_device_limit__is_the_best_of_all_cases(files, monkeypatch):
    speeds, cases = iter([5.0, 1.0, 2.0, 9.0, 3.0, 4.0]), []

    def measured(_, size, threads, seconds, **_how):
        cases.append((size, threads, seconds))
        return next(speeds)

    monkeypatch.setattr(disk_speed, "_random_reads", measured)
    limit = device_limit(files, seconds=0.5)
    sizes = [(size, n) for size in (256 << 10, MIB, 4 * MIB) for n in (4, 8)]
    assert cases == [(*case, 0.5) for case in sizes]
    assert (limit.bytes_per_second, limit.read_bytes, limit.threads) == (9.0, MIB, 8)


def test_device_limit__reads_whole_pieces_inside_the_files(files, reads):
    limit = device_limit(files, seconds=0.02)
    assert limit.bytes_per_second > 0
    sizes = {n_bytes for _, _, n_bytes in reads}
    # Where reads bypass the cache, one page is read first to find that out.
    assert sizes - {4096} == {*disk_speed.READ_BYTES}
    assert all(offset % n_bytes == 0 for _, offset, n_bytes in reads)


def test_device_limit__leaves_out_reads_that_are_longer_than_all_files(files):
    assert device_limit(files[1:], seconds=0.01).read_bytes <= MIB
    small = device_limit(files[3:], seconds=0.01)
    assert small.read_bytes == 256 << 10
    assert small.bytes_per_second > 0


def test_device_limit__reads_no_more_than_its_limit_of_bytes(files, reads, monkeypatch):
    monkeypatch.setattr(disk_speed, "CASE_BYTES", 16 * MIB)
    device_limit(files, seconds=60)
    # Six cases; every thread may exceed its share by one read.
    assert sum(n_bytes for _, _, n_bytes in reads) <= 6 * (16 + 8 * 4) * MIB


@pytest.mark.parametrize("lacks", [(), ("posix_fadvise",), MACOS_LACKS, (*MACOS_LACKS, "preadv")])
def test_speeds__without_calls_of_linux_ordinary_reads_serve(files, monkeypatch, lacks):
    take_away(monkeypatch, *lacks)
    limit = device_limit(files, seconds=0.01)
    assert limit.bytes_per_second > 0
    assert not (limit.direct and "O_DIRECT" in lacks)
    assert pread_speed(files, seconds=0.01) > 0
    assert drop_from_cache(files) == hasattr(os, "posix_fadvise")


def test_device_limit__falls_back_where_the_file_system_refuses(files, reads, monkeypatch):
    real = os.open
    monkeypatch.setattr(disk_speed, "direct_flag", lambda: 1 << 30)
    monkeypatch.setattr(disk_speed, "may_bypass", lambda: True)

    def refuse(path, flags, *more):
        if flags & 1 << 30:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *more)

    dropped = []
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(disk_speed, "advise_not_needed", lambda *range_: dropped.append(range_))
    limit = device_limit(files, seconds=0.01)
    assert not limit.direct
    # Every range is dropped before it is read.
    assert sorted((fd, offset) for fd, offset, _ in dropped) == sorted(
        (fd, offset) for fd, offset, _ in reads
    )


def test_device_limit__can_be_told_not_to_bypass_the_cache(files, monkeypatch):
    monkeypatch.setenv("STREAMMIML_DIRECT", "0")
    assert not device_limit(files, seconds=0.01).direct


def test_pread_speed__reads_again_what_it_brought_into_the_cache(files, reads, monkeypatch):
    monkeypatch.setattr(disk_speed, "WARM_BYTES", 3 * MIB)
    assert pread_speed(files, seconds=0.02) > 0
    assert {offset for _, offset, _ in reads} == {0, MIB, 2 * MIB}


def test_drop_from_cache__skips_files_that_are_missing(files, tmp_path):
    before = [path.read_bytes() for path in files]
    drop_from_cache([*files, tmp_path / "missing"])
    assert [path.read_bytes() for path in files] == before


@any_measure
def test_speeds__of_no_bytes_are_refused(tmp_path, measure):
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for files in ([], [tmp_path / name for name in ("empty", "folder", "pipe", "missing")]):
        with pytest.raises(StoreError, match="no bytes to read: all files are empty or missing"):
            measure(files)


@any_measure
def test_speeds__an_error_of_the_disk_names_the_file(files, monkeypatch, measure):
    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk_speed, "read_at", broken)
    with pytest.raises(StoreError, match=r"0\.bin cannot be read: Input/output error"):
        measure(files[:1])


@any_measure
def test_speeds__a_file_that_shrinks_is_named(files, monkeypatch, measure):
    monkeypatch.setattr(disk_speed, "read_at", lambda *_: 0)
    with pytest.raises(StoreError, match=r"0\.bin is short: ends before byte \d+"):
        measure(files[:1])


@any_measure
def test_speeds__a_file_that_cannot_be_opened_is_named(files, monkeypatch, measure):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"0\.bin cannot be read: Permission denied"):
        measure(files[:1])


def test_device_limit__a_disk_that_hangs_is_an_error_and_holds_up_nobody(files, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(disk_speed, "may_bypass", lambda: False)
    monkeypatch.setattr(disk_speed, "read_at", lambda *_: released.wait(60) and 1)
    monkeypatch.setattr(disk_speed, "DEADLINE", 0.05)
    try:
        with pytest.raises(StoreError, match=r"did not return within 0\.05 s; the disk hangs"):
            device_limit(files, seconds=0.01)
        assert all(thread.daemon for thread in own_threads())
    finally:
        released.set()
    wait_for_end()


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name == "disk-speed"]


def wait_for_end():
    deadline = time.monotonic() + 60
    while own_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert own_threads() == []


def test_device_limit__closes_its_files_and_ends_its_threads(files):
    n_open = platform.open_files()
    device_limit(files, seconds=0.01)
    pread_speed(files, seconds=0.01)
    drop_from_cache(files)
    assert platform.open_files() == n_open
    assert own_threads() == []


def test_speeds__open_only_the_largest_of_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_speed, "MOST_FILES", 2)
    paths = [tmp_path / str(number) for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(100 * (number + 1)))
    with disk_speed._opened(paths, direct=False) as sources:
        assert [(source.path, source.size) for source in sources] == [
            (paths[4], 500),
            (paths[3], 400),
        ]
