"""Ranges of files: the same bytes, read through the page cache or bypassing it."""

import ctypes
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

from streammiml.bags import page_cache
from streammiml.bags.block import BagBlock
from streammiml.bags.page_cache import OpenFile
from streammiml.bags.store import open_store
from streammiml.bags.validate import StoreSpec
from streammiml.errors import StoreError
from tests.stores import BACKENDS, read_together, write_parts, write_store

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


def test_read__bypassing_the_cache_leaves_it_empty(path):
    forget(path)
    if in_cache(path) > 0.5:
        pytest.skip("this file system keeps files in memory")
    file = OpenFile(path, bypass=True)
    for offset in range(0, SIZE, 1 << 20):
        read(file, offset, 1 << 20)
    assert in_cache(path) < 0.1


def test_read__through_the_cache_soon_caches_the_whole_file(path):
    """A short read in each STRETCH bytes is enough: the system reads the rest of them."""
    forget(path)
    file = OpenFile(path, bypass=False)
    for offset in range(0, SIZE, page_cache.STRETCH):
        read(file, offset, page_cache.COLD_BYTES)
    for _ in range(1200):
        if in_cache(path) == 1:
            return
        time.sleep(0.05)
    pytest.fail("the cache does not hold all of the file")


def test_read__falls_back_where_the_file_system_cannot_bypass_the_cache(path, monkeypatch):
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
            read(file, 0, page_cache.COLD_BYTES)

        threads = [threading.Thread(target=long_read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del file, long_read, threads, thread
    assert open_descriptors() <= before


@pytest.mark.parametrize("backend", BACKENDS)
def test_opening__does_not_keep_later_reads_from_bypassing_the_cache(
    tmp_path, monkeypatch, backend
):
    """Opening a Parquet store reads footers before the size of the store is known."""
    rows = np.ones((1000, 32), np.float32)
    write_store(tmp_path / f"x.{backend}", BagBlock.from_bags([rows], [[0]]))
    monkeypatch.setenv("STREAMMIML_DIRECT", "always")
    store = open_store(tmp_path / f"x.{backend}")
    bypassed, real = [], os.open

    def recording(where, flags, *rest, **more):
        if flags & os.O_DIRECT:
            bypassed.append(str(where))
        return real(where, flags, *rest, **more)

    monkeypatch.setattr(os, "open", recording)
    np.testing.assert_array_equal(store.read(0, 1).rows, rows)
    data = [file for file, _, _ in store.manifest.files if "rows" in file or backend == "parquet"]
    assert str(tmp_path / f"x.{backend}" / data[0]) in bypassed


def test_read__is_ordinary_if_bypassing_is_forbidden(path, monkeypatch):
    monkeypatch.setenv("STREAMMIML_DIRECT", "0")
    monkeypatch.setattr(os, "posix_fadvise", None)
    file = OpenFile(path, bypass=True)
    np.testing.assert_array_equal(read(file, 4096, 1 << 20), WHOLE[4096 : 4096 + (1 << 20)])
    assert not page_cache.may_bypass()


def test_read__fails_where_the_disk_does(path, monkeypatch):
    def failing(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(OSError, match="Input/output"):
        read(OpenFile(path, bypass=True), 0, 1 << 20)


def test_outgrows_cache__is_true_of_stores_larger_than_memory():
    assert page_cache.outgrows_cache(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    assert not page_cache.outgrows_cache(1)


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
    got = read_together(open_store(path), ranges).rows
    expected = np.concatenate([rows[3000 * start : 3000 * stop] for start, stop in ranges])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("way", ["always", "1", "0"])
@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_store__refuses_damage_whichever_way_it_is_read(
    three_files, tmp_path, monkeypatch, way, harm
):
    intact, _ = three_files
    path = tmp_path / "x.zarr"
    shutil.copytree(intact, path)
    rows = sorted(file for file in (path / "rows").rglob("*") if file.stat().st_size > 100_000)
    raw = bytearray(rows[-1].read_bytes())
    at = len(raw) * 7 // 8
    raw[at] ^= 4
    rows[-1].write_bytes(raw if harm == "flip" else raw[:at])
    monkeypatch.setenv("STREAMMIML_DIRECT", way)
    store = open_store(path)
    with pytest.raises(StoreError, match=rf"{rows[-1].name} .*; restore the file"):
        store.read_ranges([(0, 2), (10, 12)])
    assert len(read_together(store, [(0, 2)]).rows) == 6000
