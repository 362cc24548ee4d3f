"""Writing the Zarr 3 backend, and listing what others wrote.

Arrays are written here byte by byte (chunks in order, then the shard's index), so that
uncompressed chunks lie end to end and are read back by plain ``pread``. zarr itself writes the
metadata and has the last word on what it means.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from crc32c import crc32c
from numcodecs import blosc
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from streammiml.bags.appending import ArrayWriter
from streammiml.bags.layout import ARRAY_DTYPES, ROW_DTYPES
from streammiml.bags.place import LocalPlace, Place
from streammiml.bags.zarr_rows import UNPACK
from streammiml.errors import StoreError

SHARD_BYTES = 64 << 20
_ABSENT = 2**64 - 1


def shard_key(name: str, number: int) -> str:
    """File of a shard: arrays are cut along their first axis only."""
    return f"{name}/c/{number}/0" if name == "rows" else f"{name}/c/{number}"


def shard_index(chunks: list[tuple[int, int]], n_slots: int) -> bytes:
    """The index that ends a shard: (offset, bytes) of each chunk, then its crc32c."""
    slots = [*chunks, *[(_ABSENT, _ABSENT)] * (n_slots - len(chunks))]
    raw = np.array(slots, "<u8").tobytes()
    return raw + struct.pack("<I", crc32c(raw))


def compress(values: NDArray[Any], codec: str) -> bytes:
    """One chunk, as the array's codec has it."""
    shuffle = blosc.SHUFFLE if shuffled(values.dtype, codec) else blosc.NOSHUFFLE
    return bytes(blosc.compress(values, codec.encode(), 5, shuffle))


def shuffled(dtype: np.dtype[Any], codec: str) -> bool:
    """Whether bytes are sorted by significance first.

    Under lz4 floats gain 7 % from it and are read ten times slower; integers gain half.
    """
    return dtype.itemsize > 1 and (codec == "zstd" or dtype.kind != "f")


def write_metadata(
    folder: Path, arrays: list[ArrayWriter], codec: str, attributes: dict[str, Any]
) -> list[str]:
    """Describe arrays whose chunks are written; returns the keys of the metadata files.

    zarr describes the arrays in memory, and this thread writes the files. If zarr's threads wrote
    them and one failed, the others would go on, perhaps when the store is already tried again.
    """
    for left in folder.glob("**/zarr.*.partial"):
        left.unlink()  # Earlier versions let zarr write these files, and could be interrupted.
    descriptions: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(descriptions)
    zarr.create_group(store, attributes={"streammiml": attributes}, zarr_format=3)
    for array in arrays:
        coded = BloscCodec(
            typesize=array.dtype.itemsize,
            cname=cast("Any", codec),
            clevel=5,
            shuffle="shuffle" if shuffled(array.dtype, codec) else "noshuffle",
        )
        tail = (array.width,) if array.name == "rows" else ()
        zarr.create_array(
            store,
            name=array.name,
            shape=(array.length, *tail),
            chunks=(array.chunk, *tail),
            shards=(array.chunk * array.shard_chunks, *tail),
            dtype=array.dtype,
            compressors=None if array.codec == "none" else coded,
            filters=None,
            fill_value=0,
        )
    with warnings.catch_warnings():
        # Readers that do not know consolidated metadata ignore it; those that do list no strangers.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store)
    keys = ["zarr.json", *(f"{array.name}/zarr.json" for array in arrays)]
    assert sorted(descriptions) == sorted(keys), "zarr describes a group in one file a node"
    # The group comes last, so that nobody takes half of a store for the whole.
    for key in reversed(keys):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(descriptions[key].to_bytes())
    return keys


class ForeignArray:
    """One array of a group that somebody else wrote, as the sealer needs it."""

    def __init__(self, place: Place, name: str, array: zarr.Array[Any]) -> None:
        self.name, self._place = name, place
        meta: dict[str, Any] = array.metadata.to_dict()
        where = f"{place.name}/{name}/zarr.json"
        shape, codecs = tuple(meta["shape"]), meta["codecs"]
        self._shard: tuple[int, ...] = tuple(meta["chunk_grid"]["configuration"]["chunk_shape"])
        encoding = meta["chunk_key_encoding"]
        if encoding["name"] != "default" or encoding["configuration"].get("separator") != "/":
            raise StoreError(f"{where}: chunk keys must be of the default kind, with a slash")
        self.chunk = self._shard
        self.sharded = codecs[0]["name"] == "sharding_indexed"
        if self.sharded:
            inner = codecs[0]["configuration"]
            self.chunk, codecs = tuple(inner["chunk_shape"]), inner["codecs"]
            if inner.get("index_location", "end") != "end":
                raise StoreError(f"{where}: the shard index must stand at the end")
        self.coding = _coding(codecs, where)
        self.dtype, self.length = np.dtype(array.dtype), int(shape[0])
        self.width = int(shape[1]) if len(shape) == 2 else 1
        if len(shape) != (2 if name == "rows" else 1) or self.chunk[1:] != shape[1:]:
            raise StoreError(
                f"{where}: {name} must have {2 if name == 'rows' else 1} axes and be cut along "
                f"the first only, has shape {shape} in chunks {self.chunk}"
            )
        if self._shard[1:] != shape[1:]:
            raise StoreError(f"{where}: shards must be cut along the first axis only")
        wanted = [ARRAY_DTYPES[name]] if name in ARRAY_DTYPES else list(ROW_DTYPES)
        if self.dtype.name not in wanted:
            raise StoreError(f"{where}: dtype is {self.dtype.name}, expected {' or '.join(wanted)}")

    def chunks(self) -> Iterator[tuple[str, int, int, int, int]]:
        """(file, offset, bytes, first element, elements) of every chunk; all must be there."""
        step, per_file = self.chunk[0], self._shard[0] // self.chunk[0]
        for first in range(0, self.length, step):
            number = first // step
            key = shard_key(self.name, number // per_file)
            slot = number % per_file
            if slot == 0:
                slots = self._slots(key, per_file)
            offset, size = slots[slot]
            if offset == _ABSENT:
                raise StoreError(
                    f"{self._place.name}/{key}: chunk {slot} is not there; write all chunks "
                    "(zarr leaves out chunks of zeros unless write_empty_chunks is set)"
                )
            whole = step * self.width * self.dtype.itemsize
            if self.coding == "raw" and size != whole:
                raise StoreError(
                    f"{self._place.name}/{key} is damaged: chunk {slot} has {size} bytes, "
                    f"expected {whole}; restore the file"
                )
            yield key, offset, size, first, min(step, self.length - first)

    def _slots(self, key: str, per_file: int) -> list[tuple[int, int]]:
        size = self._place.size(key)
        if size is None:
            raise StoreError(
                f"{self._place.name}/{key} is missing; write all chunks "
                "(zarr leaves out chunks of zeros unless write_empty_chunks is set)"
            )
        if not self.sharded:
            return [(0, size)]
        length = per_file * 16 + 4
        raw = bytearray(length)
        if size >= length:
            self._place.read_into(key, size - length, memoryview(raw))
        if size < length or struct.unpack("<I", raw[-4:])[0] != crc32c(raw[:-4]):
            raise StoreError(
                f"{self._place.name}/{key} is damaged: its shard index fails its checksum"
            )
        pairs: list[list[int]] = np.frombuffer(raw[:-4], "<u8").reshape(-1, 2).tolist()
        slots = [(offset, nbytes) for offset, nbytes in pairs]
        if any(offset != _ABSENT and offset + nbytes > size for offset, nbytes in slots):
            raise StoreError(f"{self._place.name}/{key} is damaged: a chunk lies beyond its end")
        return slots


def foreign_arrays(place: LocalPlace) -> tuple[dict[str, ForeignArray], dict[str, Any], list[str]]:
    """Arrays of a group written by anyone, its attributes, and its metadata files."""
    try:
        group = zarr.open_group(place.path, mode="r", use_consolidated=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = dict(group.arrays())
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{place.name} is no Zarr 3 group: {reason}") from error
    if group.metadata.zarr_format != 3:
        raise StoreError(f"{place.name} is Zarr 2; write it as Zarr 3")
    strangers = sorted(set(found) - {*ARRAY_DTYPES, "rows", "values"})
    if strangers:
        raise StoreError(f"{place.name} has an array {strangers[0]!r} that no store has")
    arrays = {name: ForeignArray(place, name, array) for name, array in found.items()}
    attributes = dict(group.attrs).get("streammiml", {})
    if not isinstance(attributes, dict):
        raise StoreError(f"{place.name}/zarr.json: the attribute 'streammiml' must be an object")
    return arrays, attributes, ["zarr.json", *(f"{name}/zarr.json" for name in arrays)]


def _coding(codecs: Any, where: str) -> str:
    names = [codec["name"] for codec in codecs]
    endian = codecs[0].get("configuration", {}).get("endian", "little")
    if names[0] != "bytes" or endian != "little" or len(names) > 2:
        raise StoreError(f"{where}: codecs are {names}, expected little-endian bytes and one more")
    if len(names) == 1:
        return "raw"
    if names[1] not in UNPACK:
        raise StoreError(
            f"{where}: codec {names[1]!r} is not read here; known: {', '.join(UNPACK)}"
        )
    return str(names[1])
