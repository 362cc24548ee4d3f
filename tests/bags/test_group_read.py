"""Reading ranges together: where values lie in memory, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest

from streammiml._base.crc import has_fast_way
from streammiml.bags import fast_reads, location
from streammiml.bags.block import BagBlock
from streammiml.bags.store import open_one
from streammiml.errors import StoreError
from tests.stores import BACKENDS, write_store

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
        assert 0 <= begin - end <= fast_reads.SURPLUS_BYTES + 2 * 4096


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
