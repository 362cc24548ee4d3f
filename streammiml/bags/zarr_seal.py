"""Sealing a Zarr group that other programs wrote."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.fingerprint import digests_of
from streammiml.bags.ids import id_hashes, refuse_twice
from streammiml.bags.kept_columns import KEPT_DTYPES, TEXT, columns_in, is_kept, is_offsets
from streammiml.bags.layout import (
    ARRAY_DTYPES,
    RECORD,
    ROW_DTYPES,
    ArrayEntry,
    Manifest,
    array_names,
    refuse_huge,
)
from streammiml.bags.location import LocalFolder, Location, file_crc
from streammiml.bags.manifest_draft import ManifestDraft, PartTally, synced_entry, write_table
from streammiml.bags.validate import StoreSpec, names_in, refuse_unlike_stored
from streammiml.bags.verified_array import fetch
from streammiml.bags.verify import scan_bags
from streammiml.bags.views import Bags
from streammiml.bags.zarr_read import UNPACK
from streammiml.bags.zarr_write import ABSENT, shard_key
from streammiml.errors import StoreError


def index(folder: LocalFolder, scratch: Path, read: Callable[[Manifest], Bags]) -> Manifest:
    """Index the arrays of a group; see :class:`~streammiml.bags.backends.SealingBackend`."""
    arrays, attributes, metadata = foreign_arrays(folder)
    spec = _zarr_spec(folder, arrays, attributes)
    files: dict[str, int] = {}
    entries = {}
    for name, array in arrays.items():
        records = np.array([*_records(folder, array, files)], RECORD)
        entries[name] = ArrayEntry(
            dtype=array.dtype.name,
            length=array.length,
            width=array.width,
            coding=array.coding,
            pages=write_table(scratch, name, records, 0),
        )
    draft = ManifestDraft(
        entries,
        [[key, *file_crc(folder.path / key)] for key in files],
        {key: synced_entry(folder.path / key) for key in metadata},
        PartTally(),
    )
    # Bags can be read with a manifest that has only the counts of bags and rows. Reading them gives
    # the other counts.
    provisional = draft.manifest(spec, "zarr", spec.n_labels or 2**31 - 1)
    n_bags = arrays["bag_offsets"].length - 1
    store = read(replace(provisional, n_bags=n_bags, n_rows=_n_rows(arrays, spec)))
    tally = _tally(store, spec, folder.name)
    return replace(draft, tally=tally).manifest(spec, "zarr", tally.n_labels(spec))


def _tally(store: Bags, spec: StoreSpec, name: str) -> PartTally:
    """Read and count every bag; refuse bags that our own writer would refuse."""
    tally = PartTally()
    ids: list[NDArray[np.uint64]] = []
    for block in store.blocks(scan_bags(store)):
        where = f"{name}, bags {tally.n_bags} to {tally.n_bags + len(block)}"
        if spec.bag_ids:
            names = store.bag_ids(tally.n_bags, tally.n_bags + len(block))
            block = replace(block, bag_ids=names)
            ids.append(id_hashes(names))
        refuse_unlike_stored(block, spec, where)
        tally.add(digests_of(block), np.diff(block.bag_offsets), block.top_label, 0)
    if ids:
        refuse_twice(np.concatenate(ids), lambda bag: store.bag_ids(bag, bag + 1)[0], name)
    return tally


def _records(
    folder: LocalFolder, array: ForeignArray, files: dict[str, int]
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Make the record of every chunk; enter the number of each new file in ``files``."""
    for key, offset, size, first, count in array.chunks():
        refuse_huge(f"{folder.name}/{key}: a chunk", size, count, "smaller chunks")
        raw = memoryview(bytearray(size))
        fetch(folder, key, offset, raw, lambda: "")
        yield first, offset, count, size, crc32c(raw), files.setdefault(key, len(files))


def _zarr_spec(
    folder: LocalFolder, arrays: dict[str, ForeignArray], attributes: dict[str, Any]
) -> StoreSpec:
    sparse = "rows" not in arrays
    row_labels, bag_ids = "row_labels" in arrays, "bag_id_bytes" in arrays
    kept = columns_in({name: (array.dtype.name, array.width) for name, array in arrays.items()})
    expected = array_names(sparse=sparse, row_labels=row_labels, bag_ids=bag_ids, kept=kept)
    missing = [name for name in expected if name not in arrays]
    if missing:
        raise StoreError(f"{folder.name} has no array {missing[0]!r} (see FORMAT.md)")
    unknown = sorted(set(arrays) - set(expected))
    if unknown:
        raise StoreError(f"{folder.name} has an unknown array {unknown[0]!r} (see FORMAT.md)")
    n_features = arrays["rows"].width if not sparse else attributes.get("n_features")
    if not isinstance(n_features, int):
        raise StoreError(
            f"{folder.name}/zarr.json: the attribute 'streammiml' must have n_features"
        )
    spec = StoreSpec(
        n_features=n_features,
        dtype=arrays["values" if sparse else "rows"].dtype.name,
        n_labels=attributes.get("n_labels"),
        label_names=names_in(attributes, "label_names"),
        feature_names=names_in(attributes, "feature_names"),
        sparse=sparse,
        row_labels=row_labels,
        bag_ids=bag_ids,
        codec="none",
        kept=kept,
    )
    n_rows = _n_rows(arrays, spec)
    lengths = {column.values: n_rows for column in kept if column.offsets is None}
    lengths |= {column.offsets: n_rows + 1 for column in kept if column.offsets is not None}
    lengths |= {
        "label_offsets": arrays["bag_offsets"].length,
        "row_labels": n_rows,
        "bag_id_offsets": arrays["bag_offsets"].length,
        "columns": arrays["values"].length if sparse else 0,
    }
    for name, length in lengths.items():
        if name in arrays and arrays[name].length != length:
            raise StoreError(
                f"{folder.name}: {name} has {arrays[name].length} elements, expected {length}"
            )
    if arrays["bag_offsets"].length < 2:
        raise StoreError(f"{folder.name} holds no bags")
    return spec


def _n_rows(arrays: dict[str, ForeignArray], spec: StoreSpec) -> int:
    return arrays["row_offsets"].length - 1 if spec.sparse else arrays["rows"].length


class ForeignArray:
    """One array of a group that another program wrote: its layout and its chunks."""

    def __init__(self, location: Location, name: str, array: zarr.Array[Any]) -> None:
        self.name, self._location = name, location
        meta: dict[str, Any] = array.metadata.to_dict()
        where = f"{location.name}/{name}/zarr.json"
        shape, codecs = tuple(meta["shape"]), meta["codecs"]
        self._shard: tuple[int, ...] = tuple(meta["chunk_grid"]["configuration"]["chunk_shape"])
        encoding = meta["chunk_key_encoding"]
        if encoding["name"] != "default" or encoding["configuration"].get("separator") != "/":
            raise StoreError(
                f"{where}: chunk keys must have the default encoding, with separator '/'"
            )
        self.chunk = self._shard
        self.sharded = codecs[0]["name"] == "sharding_indexed"
        if self.sharded:
            inner = codecs[0]["configuration"]
            self.chunk, codecs = tuple(inner["chunk_shape"]), inner["codecs"]
            if inner.get("index_location", "end") != "end":
                raise StoreError(f"{where}: the shard index must be at the end")
        self.coding = _coding(codecs, where)
        self.dtype, self.length = np.dtype(array.dtype), int(shape[0])
        self.width = int(shape[1]) if len(shape) == 2 else 1
        n_axes = 2 if name == "rows" or (len(shape) == 2 and is_kept(name)) else 1
        if len(shape) != n_axes or self.chunk[1:] != shape[1:]:
            raise StoreError(
                f"{where}: {name} must have {n_axes} axes and be chunked "
                f"along the first only, has shape {shape} in chunks {self.chunk}"
            )
        if self._shard[1:] != shape[1:]:
            raise StoreError(f"{where}: shards must be cut along the first axis only")
        expected = list(_dtypes(name))
        if self.dtype.name not in expected:
            raise StoreError(
                f"{where}: dtype is {self.dtype.name}, expected {' or '.join(expected)}"
            )

    def chunks(self) -> Iterator[tuple[str, int, int, int, int]]:
        """(file, offset, bytes, first element, elements) of every chunk; refuse missing chunks."""
        step, per_file = self.chunk[0], self._shard[0] // self.chunk[0]
        for first in range(0, self.length, step):
            number = first // step
            key = shard_key(self.name, number // per_file, is_matrix=len(self.chunk) == 2)
            slot = number % per_file
            if slot == 0:
                slots = self._slots(key, per_file)
            offset, size = slots[slot]
            if offset == ABSENT:
                raise StoreError(
                    f"{self._location.name}/{key}: chunk {slot} is missing; write all chunks "
                    "(zarr leaves out chunks of zeros unless write_empty_chunks is set)"
                )
            chunk_bytes = step * self.width * self.dtype.itemsize
            if self.coding == "raw" and size != chunk_bytes:
                raise StoreError(
                    f"{self._location.name}/{key} is damaged: chunk {slot} has {size} bytes, "
                    f"expected {chunk_bytes}; restore the file"
                )
            yield key, offset, size, first, min(step, self.length - first)

    def _slots(self, key: str, per_file: int) -> list[tuple[int, int]]:
        """(offset, bytes) of each chunk of a file."""
        size = self._location.size(key)
        if size is None:
            raise StoreError(
                f"{self._location.name}/{key} is missing; write all chunks "
                "(zarr leaves out chunks of zeros unless write_empty_chunks is set)"
            )
        if not self.sharded:
            return [(0, size)]
        length = per_file * 16 + 4
        raw = bytearray(length)
        if size >= length:
            fetch(self._location, key, size - length, memoryview(raw), lambda: "")
        if size < length or struct.unpack("<I", raw[-4:])[0] != crc32c(raw[:-4]):
            raise StoreError(
                f"{self._location.name}/{key} is damaged: its shard index fails its checksum"
            )
        pairs: list[list[int]] = np.frombuffer(raw[:-4], "<u8").reshape(-1, 2).tolist()
        slots = [(offset, nbytes) for offset, nbytes in pairs]
        if any(offset != ABSENT and offset + nbytes > size for offset, nbytes in slots):
            raise StoreError(
                f"{self._location.name}/{key} is damaged: a chunk ends beyond the file"
            )
        return slots


def foreign_arrays(
    folder: LocalFolder,
) -> tuple[dict[str, ForeignArray], dict[str, Any], list[str]]:
    """Arrays of a group of another program, its attributes, and the keys of its metadata."""
    try:
        group = zarr.open_group(folder.path, mode="r", use_consolidated=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zarr_arrays = dict(group.arrays())
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{folder.name} is no Zarr 3 group: {reason}") from error
    if group.metadata.zarr_format != 3:
        raise StoreError(f"{folder.name} is Zarr 2; write it as Zarr 3")
    known = {*ARRAY_DTYPES, "rows", "values", *filter(is_kept, zarr_arrays)}
    unknown = sorted(set(zarr_arrays) - known)
    if unknown:
        raise StoreError(f"{folder.name} has an unknown array {unknown[0]!r} (see FORMAT.md)")
    arrays = {name: ForeignArray(folder, name, array) for name, array in zarr_arrays.items()}
    attributes = dict(group.attrs).get("streammiml", {})
    if not isinstance(attributes, dict):
        raise StoreError(f"{folder.name}/zarr.json: the attribute 'streammiml' must be an object")
    return arrays, attributes, ["zarr.json", *(f"{name}/zarr.json" for name in arrays)]


def _dtypes(name: str) -> Sequence[str]:
    """Types that an array may have."""
    if is_kept(name) and is_offsets(name):
        return ["int64"]
    if is_kept(name):
        columns = columns_in({name: (KEPT_DTYPES[0], 1)})
        return ["uint8"] if columns[0].dtype == TEXT else KEPT_DTYPES[:-1]
    return [ARRAY_DTYPES[name]] if name in ARRAY_DTYPES else ROW_DTYPES


def _coding(codecs: Any, where: str) -> str:
    """Coding of the chunks of an array, from its codecs; see ``ArrayEntry``."""
    names = [codec["name"] for codec in codecs]
    endian = codecs[0].get("configuration", {}).get("endian", "little")
    if names[0] != "bytes" or endian != "little" or len(names) > 2:
        raise StoreError(
            f"{where}: codecs are {names}, expected little-endian 'bytes' and one more at most"
        )
    if len(names) == 1:
        return "raw"
    if names[1] not in UNPACK:
        raise StoreError(
            f"{where}: codec {names[1]!r} is not supported; known: {', '.join(UNPACK)}"
        )
    return str(names[1])
