"""Reading ranges together: where values lie in memory, and what is refused."""

import ctypes
from itertools import pairwise

import numpy as np
import pytest

from streammiml._base.crc import has_fast_way
from streammiml.bags import group_read, location, verified_array
from streammiml.bags.block import BagBlock
from streammiml.bags.store import open_one
from streammiml.errors import StoreError
from tests.stores import BACKENDS, sizes, write_store

pytestmark = pytest.mark.skipif(not has_fast_way(), reason="this processor reads one by one")
N_BAGS, N_FEATURES = 12, 64


@pytest.fixture(scope="module", params=BACKENDS)
def written(request, tmp_path_factory):
    """Path and rows of a store with bags of 300 KiB."""
    rng = np.random.default_rng(0)
    bags = [rng.normal(size=(1200, N_FEATURES)).astype(np.float32) for _ in range(N_BAGS)]
    path = tmp_path_factory.mktemp("group") / f"x.{request.param}"
    write_store(path, BagBlock.from_bags(bags, [[0]] * N_BAGS), codec="none")
    return path, np.concatenate(bags)


def rows_of(path):
    return open_one(path)._arrays["rows"]


@pytest.mark.parametrize("way", ["always", "0", "1"])
def test_read_group__reads_every_range_by_compiled_code(written, monkeypatch, way):
    monkeypatch.setenv("STREAMMIML_DIRECT", way)
    path, rows = written
    ranges = [(5000, 6200), (0, 1), (3, 3), (100, 9000), (14_399, 14_400)]
    group = rows_of(path)._read_group(ranges)
    assert sorted(group.ranges) == [0, 1, 3, 4]
    for number, (begin, end) in group.ranges.items():
        values = group.buffer[begin:end].view(np.float32).reshape(-1, N_FEATURES)
        np.testing.assert_array_equal(values, rows[slice(*ranges[number])])
        assert values.flags.aligned


def test_read_group__ranges_do_not_overlap_and_have_little_between_them(written):
    path, _ = written
    group = rows_of(path)._read_group([(i * 1200, (i + 1) * 1200) for i in range(N_BAGS)])
    bounds = sorted(group.ranges.values())
    for (_, end), (begin, _) in pairwise(bounds):
        assert 0 <= begin - end <= group_read.SURPLUS_BYTES + 2 * 4096


def test_read_group__without_its_file_is_an_error_that_names_it(written, monkeypatch):
    path, _ = written
    array = rows_of(path)
    monkeypatch.setattr(location.LocalFolder, "opened", lambda *_: None)
    assert array._read_group([(0, 10), (600, 700)]) is None
    # One by one, the file is opened in another way.
    assert array.read_many([(0, 10)])[0].shape == (10, N_FEATURES)


def test_read_group__of_a_damaged_chunk_gives_nothing_and_the_error_names_the_file(
    written, tmp_path
):
    path, rows = written
    copy = tmp_path / path.name
    write_store(copy, BagBlock.from_bags([rows], [[0]]), codec="none")
    file = max((file for file in copy.rglob("*") if file.is_file()), key=lambda f: f.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    array = rows_of(copy)
    assert array._read_group([(0, len(rows))]) is None
    with pytest.raises(StoreError, match=rf"{file.name} is damaged.*restore the file"):
        array.locate([(0, len(rows))])


@pytest.mark.parametrize("most_files", [1, 2, 1000])
def test_read_group__of_many_files_is_split_into_groups(tmp_path, monkeypatch, most_files):
    """A process may have few open files, whatever the number of files of a store."""
    monkeypatch.setattr(group_read, "MOST_FILES", most_files)
    rows = np.random.default_rng(1).normal(size=(4000, 64)).astype(np.float32)
    with sizes(shard=1 << 16):
        store = write_store(
            tmp_path / "x.zarr",
            BagBlock.from_bags([rows], [[0]]),
            codec="none",
            chunk_bytes=1 << 14,
        )
    assert len(store.manifest.files) > 10
    array, ranges = store._arrays["rows"], [(i, i + 300) for i in range(0, 3700, 500)]
    opened, real = [], group_read._Layout

    class Counted(real):
        def __init__(self, *args):
            super().__init__(*args)
            opened.append(self._opened)

    monkeypatch.setattr(group_read, "_Layout", Counted)
    for (start, stop), values in zip(ranges, array.read_many(ranges), strict=True):
        np.testing.assert_array_equal(values, rows[start:stop])
    assert max(map(len, opened), default=0) <= most_files
    located = array.locate(ranges)
    for (start, stop), address in zip(ranges, located.addresses.tolist(), strict=True):
        there = ctypes.string_at(address, (stop - start) * 256)
        np.testing.assert_array_equal(
            np.frombuffer(there, np.float32), rows[start:stop].reshape(-1)
        )


@pytest.mark.parametrize("name", ["bag_offsets", "label_offsets"])
def test_offsets__whose_differences_overflow_are_refused(written, monkeypatch, name):
    """The differences of these offsets are positive, modulo 2 to the power of 64."""
    path, _ = written
    store = open_one(path)
    wrong = np.array([0, 6148914691236517205, -6148914691236517206, 10])
    monkeypatch.setattr(verified_array, "CACHED_BYTES", 0)
    array = store._arrays[name]
    monkeypatch.setattr(array, "gather", lambda *_: wrong)
    with pytest.raises(StoreError, match=f"{name} is invalid: offsets fall after"):
        store.read_ranges([(0, 3)])
