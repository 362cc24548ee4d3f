"""The Zarr 3 format as we write it: shards, compression, metadata.

We write the bytes of arrays ourselves (chunks in order, then the index of the shard), so that
uncompressed chunks lie end to end and one ``pread`` reads several. zarr describes the arrays, so
the metadata is what zarr itself would write.
"""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from crc32c import crc32c
from numcodecs import blosc
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from streammiml.bags.array_writer import ArrayWriter

SHARD_BYTES = 64 << 20
# Offset and size of a missing chunk in the index of a shard.
ABSENT = 2**64 - 1


def shard_key(name: str, number: int, *, is_matrix: bool) -> str:
    """Key of a shard; arrays are cut along their first axis only."""
    return f"{name}/c/{number}/0" if is_matrix else f"{name}/c/{number}"


def shard_index(chunks: list[tuple[int, int]], n_slots: int) -> bytes:
    """Make the index at the end of a shard: (offset, bytes) of each chunk, then their crc32c."""
    slots = [*chunks, *[(ABSENT, ABSENT)] * (n_slots - len(chunks))]
    raw = np.array(slots, "<u8").tobytes()
    return raw + struct.pack("<I", crc32c(raw))


def compress(values: NDArray[Any], codec: str) -> bytes:
    """Compress one chunk."""
    shuffle = blosc.SHUFFLE if shuffled(values.dtype, codec) else blosc.NOSHUFFLE
    return bytes(blosc.compress(values, codec.encode(), 5, shuffle))


def shuffled(dtype: np.dtype[Any], codec: str) -> bool:
    """Tell whether blosc groups bytes by significance before it compresses them.

    With shuffling, lz4 makes floats 7 % smaller, but reading ten times slower; it makes integers
    half as large.
    """
    return dtype.itemsize > 1 and (codec == "zstd" or dtype.kind != "f")


def write_metadata(
    folder: Path, arrays: list[ArrayWriter], codec: str, attributes: dict[str, Any]
) -> list[str]:
    """Describe arrays whose chunks are written; return the keys of the metadata files.

    zarr describes the arrays in memory, and this thread writes the files. If zarr's own threads
    wrote them and one failed, the others would still be writing while we retry.
    """
    for partial in folder.glob("**/zarr.*.partial"):
        partial.unlink()  # Left by earlier versions, in which zarr wrote these files.
    descriptions: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(descriptions)
    zarr.create_group(store, attributes={"streammiml": attributes}, zarr_format=3)
    for array in arrays:
        blosc_codec = BloscCodec(
            typesize=array.dtype.itemsize,
            cname=cast("Any", codec),
            clevel=5,
            shuffle="shuffle" if shuffled(array.dtype, codec) else "noshuffle",
        )
        width = (array.width,) if array.name == "rows" or array.width > 1 else ()
        zarr.create_array(
            store,
            name=array.name,
            shape=(array.length, *width),
            chunks=(array.chunk, *width),
            shards=(array.chunk * array.shard_chunks, *width),
            dtype=array.dtype,
            compressors=None if array.codec == "none" else blosc_codec,
            filters=None,
            fill_value=0,
        )
    with warnings.catch_warnings():
        # zarr warns that consolidated metadata is not in the specification of Zarr 3. Readers that
        # do not know it ignore it.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store)
    keys = ["zarr.json", *(f"{array.name}/zarr.json" for array in arrays)]
    assert sorted(descriptions) == sorted(keys), (
        "zarr writes one file for the group and one for each array"
    )
    # The group comes last, so that no reader opens an incomplete store.
    for key in reversed(keys):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(descriptions[key].to_bytes())
    return keys
