"""The Zarr format as we write it."""

import struct

import numpy as np
import pytest
from crc32c import crc32c
from numcodecs import blosc

from streammiml.bags import zarr_write


def test_shard_index__lists_chunks_and_marks_absent_ones():
    raw = zarr_write.shard_index([(0, 7), (7, 9)], 4)
    slots = np.frombuffer(raw[:-4], "<u8").reshape(-1, 2).tolist()
    absent = [zarr_write.ABSENT] * 2
    assert slots == [[0, 7], [7, 9], absent, absent]
    assert raw[-4:] == struct.pack("<I", crc32c(raw[:-4]))


def test_shard_key__has_an_index_for_each_axis():
    assert zarr_write.shard_key("rows", 3, is_matrix=True) == "rows/c/3/0"
    assert zarr_write.shard_key("values", 3, is_matrix=False) == "values/c/3"


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("dtype", ["float32", "int16", "uint8"])
def test_compress__is_undone_by_blosc(codec, dtype):
    values = np.arange(1000).astype(dtype)
    raw = zarr_write.compress(values, codec)
    assert np.frombuffer(blosc.decompress(raw), dtype).tolist() == values.tolist()


def test_shuffled__depends_on_type_and_codec():
    assert not zarr_write.shuffled(np.dtype("uint8"), "zstd")
    assert zarr_write.shuffled(np.dtype("float32"), "zstd")
    assert not zarr_write.shuffled(np.dtype("float32"), "lz4")
    assert zarr_write.shuffled(np.dtype("int16"), "lz4")
