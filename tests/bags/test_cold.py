"""Ranges of files, in the page cache or not: the same bytes, whichever way they come."""

import ctypes
import gc
import mmap
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streammiml.bags import cold, place
from streammiml.bags.block import BagBlock
from streammiml.bags.checks import StoreSpec
from streammiml.bags.cold import OpenFile
from streammiml.bags.store import open_store
from streammiml.errors import StoreError
from tests.stores import BACKENDS, write_parts, write_store

SIZE = 9 * 1024 * 1024 + 77
WHOLE = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "O_DIRECT"), reason="this system reads past its page cache otherwise"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("cold") / "rows"
    file.write_bytes(WHOLE.tobytes())
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    return file


def forget(path):
    """Empty the page cache of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read(file, offset, size):
    out = np.full(size, 7, np.uint8)
    return out[: file.read(offset, out.data)]


@settings(max_examples=60)
@given(
    bypass=st.booleans(),
    emptied=st.booleans(),
    ranges=st.lists(
        st.tuples(
            st.integers(0, SIZE + 10) | st.integers(0, SIZE >> 12).map(lambda page: page << 12),
            st.integers(1, 300_000) | st.just(6 << 20),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_read__gives_the_bytes_of_the_file(path, bypass, emptied, ranges):
    if emptied:
        forget(path)
    file = OpenFile(path, bypass=bypass)
    for offset, size in ranges:
        np.testing.assert_array_equal(read(file, offset, size), WHOLE[offset : offset + size])


def in_cache(path):
    """Share of a file's pages that the cache holds."""
    with path.open("rb+") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = np.zeros(-(-SIZE // mmap.PAGESIZE), np.uint8)
        view = np.frombuffer(mapped, np.uint8)
        address = ctypes.c_void_p(view.ctypes.data)
        wrong = ctypes.CDLL(None).mincore(
            address, ctypes.c_size_t(SIZE), ctypes.c_void_p(pages.ctypes.data)
        )
        assert not wrong
        del view
        return float((pages & 1).mean())


def test_read__past_the_cache_leaves_it_empty(path):
    forget(path)
    if in_cache(path) > 0.5:
        pytest.skip("this file system keeps files in memory")
    file = OpenFile(path, bypass=True)
    for offset in range(0, SIZE, 1 << 20):
        read(file, offset, 1 << 20)
    assert in_cache(path) < 0.1


def test_read__through_the_cache_has_all_of_it_soon(path):
    """One read of each stretch, and the rest of it comes along."""
    forget(path)
    file = OpenFile(path, bypass=False)
    for offset in range(0, SIZE, cold.STRETCH):
        read(file, offset, cold.COLD_BYTES)
    for _ in range(1200):
        if in_cache(path) == 1:
            return
        time.sleep(0.05)
    pytest.fail("the cache has not been asked for all of the file")


def test_read__falls_back_where_the_file_system_knows_no_other_way(path, monkeypatch):
    real = os.open

    def refusing(where, flags, *rest, **more):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(where, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    forget(path)
    file = OpenFile(path, bypass=True)
    np.testing.assert_array_equal(read(file, 5, 1 << 20), WHOLE[5 : 5 + (1 << 20)])


def open_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_read__by_several_threads_at_once_leaves_no_descriptor_open(path):
    before = open_descriptors()
    for _ in range(20):
        file, start = OpenFile(path, bypass=True), threading.Barrier(8)

        def long_read(file=file, start=start):
            start.wait()
            read(file, 0, cold.COLD_BYTES)

        threads = [threading.Thread(target=long_read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del file, long_read, threads, thread
    assert open_descriptors() <= before


@pytest.mark.parametrize("backend", BACKENDS)
def test_opening__that_looked_at_a_file_lets_it_be_read_past_the_cache(
    tmp_path, monkeypatch, backend
):
    """Footers are looked at when a Parquet store is opened, before anything is known of it."""
    rows = np.ones((1000, 32), np.float32)
    write_store(tmp_path / f"x.{backend}", BagBlock.from_bags([rows], [[0]]))
    monkeypatch.setenv("STREAMMIML_DIRECT", "always")
    store = open_store(tmp_path / f"x.{backend}")
    past, real = [], os.open

    def noting(where, flags, *rest, **more):
        if flags & os.O_DIRECT:
            past.append(str(where))
        return real(where, flags, *rest, **more)

    monkeypatch.setattr(os, "open", noting)
    np.testing.assert_array_equal(store.read(0, 1).rows, rows)
    data = [file for file, _, _ in store.manifest.files if "rows" in file or backend == "parquet"]
    assert str(tmp_path / f"x.{backend}" / data[0]) in past


def test_read__is_plain_when_told_so(path, monkeypatch):
    monkeypatch.setenv("STREAMMIML_DIRECT", "0")
    monkeypatch.setattr(os, "posix_fadvise", None)
    file = OpenFile(path, bypass=True)
    np.testing.assert_array_equal(read(file, 4096, 1 << 20), WHOLE[4096 : 4096 + (1 << 20)])
    assert not cold.may_bypass()


def test_read__fails_where_the_disk_does(path, monkeypatch):
    def failing(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(OSError, match="Input/output"):
        read(OpenFile(path, bypass=True), 0, 1 << 20)


def test_outgrows_cache__is_said_of_what_the_machine_could_not_hold():
    assert cold.outgrows_cache(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    assert not cold.outgrows_cache(1)


PARTS = [
    BagBlock.from_bags([WHOLE[i << 20 :][: 3000 * 64].reshape(-1, 64)] * 4, [[0]] * 4)
    for i in range(3)
]


@pytest.fixture(scope="module", params=["none", "lz4"])
def three_files(request, tmp_path_factory):
    """A store of twelve bags of 192 kB, four in each of its files; and these bags."""
    path = tmp_path_factory.mktemp("three") / "x.zarr"
    spec = StoreSpec(n_features=64, dtype="uint8", n_labels=1, codec=request.param)
    write_parts(path, spec, PARTS)
    return path, np.concatenate([part.rows for part in PARTS])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    way=st.sampled_from(["always", "1", "0"]),
    ranges=st.lists(
        st.tuples(st.integers(0, 11), st.integers(1, 8)).map(lambda r: (r[0], min(12, sum(r)))),
        min_size=1,
        max_size=5,
    ),
)
def test_store__gives_the_same_bags_past_the_cache_and_through_it(
    three_files, monkeypatch, way, ranges
):
    path, rows = three_files
    monkeypatch.setenv("STREAMMIML_DIRECT", way)
    for file in path.rglob("*"):
        if file.is_file():
            forget(file)
    found = open_store(path).read_ranges(ranges)
    for (start, stop), block in zip(ranges, found, strict=True):
        np.testing.assert_array_equal(block.rows, rows[3000 * start : 3000 * stop])


@pytest.mark.parametrize("way", ["always", "1", "0"])
@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_store__refuses_damage_whichever_way_it_is_read(
    three_files, tmp_path, monkeypatch, way, harm
):
    whole, _ = three_files
    path = tmp_path / "x.zarr"
    shutil.copytree(whole, path)
    rows = sorted(file for file in (path / "rows").rglob("*") if file.stat().st_size > 100_000)
    raw = bytearray(rows[-1].read_bytes())
    at = len(raw) * 7 // 8
    raw[at] ^= 4
    rows[-1].write_bytes(raw if harm == "flip" else raw[:at])
    monkeypatch.setenv("STREAMMIML_DIRECT", way)
    store = open_store(path)
    with pytest.raises(StoreError, match=rf"{rows[-1].name} .*; restore the file"):
        store.read_ranges([(0, 2), (10, 12)])
    assert len(store.read_ranges([(0, 2)])[0].rows) == 6000


def test_stores__share_the_files_that_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "OPEN_FILES", 3 * place.FEWEST_FILES)
    for i in range(20):
        (tmp_path / f"{i}").write_bytes(b"abc")
    gc.collect()
    folders = [place.LocalPlace(tmp_path) for _ in range(3)]
    before = open_descriptors()
    for folder in folders:
        for i in range(20):
            buffer = bytearray(3)
            folder.read_into(f"{i}", 0, memoryview(buffer))
            assert buffer == b"abc"
    assert open_descriptors() - before <= 3 * place.FEWEST_FILES
    del folders, folder
    assert open_descriptors() <= before
