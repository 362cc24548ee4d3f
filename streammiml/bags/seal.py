"""Sealing: a store that somebody else wrote gains its index, manifest and fingerprint.

The data files are read and checked in full, and never touched; ``_streammiml`` appears by a
rename when everything is in order. A Parquet store's ``_common_metadata``, which has no bags,
gains our key just before.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags import parquet_rows
from streammiml.bags.assembly import (
    Assembled,
    ParquetAssembly,
    Tally,
    whole_file,
    write_table,
)
from streammiml.bags.audit import scan_bags
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.block_facts import digests_of, top_label
from streammiml.bags.checks import StoreSpec, clean
from streammiml.bags.cold import OpenFile
from streammiml.bags.ids import refuse_twice
from streammiml.bags.layout import (
    FOLDER,
    MANIFEST,
    RECORD,
    ArrayEntry,
    Manifest,
    array_names,
    refuse_huge,
)
from streammiml.bags.offsets import from_sizes
from streammiml.bags.place import SCHEMES, LocalPlace, file_crc, sync_file, sync_folder
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.writer import id_hashes, said_of
from streammiml.bags.zarr_writing import ForeignArray, foreign_arrays
from streammiml.errors import StoreError


def seal(where: str | os.PathLike[str]) -> BagStore:
    """Check a store written by others, add what makes it complete, and open it."""
    path = Path(where)
    if os.fspath(where).startswith(SCHEMES):
        raise StoreError(f"{where} cannot be sealed: seal a local copy, then send its {FOLDER}")
    if not path.is_dir():
        raise StoreError(f"{path} does not exist" if not path.exists() else f"{path} is no folder")
    if (path / ".zgroup").exists():
        raise StoreError(f"{path} is of Zarr 2; write its arrays with zarr_format=3")
    if (path / MANIFEST).exists():
        raise StoreError(f"{path} is sealed already; to seal it anew, remove {path / FOLDER}")
    beside = path / f"{FOLDER}.partial"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        # Tables are written below a scratch root of their own and moved in by one rename.
        is_zarr = (path / "zarr.json").exists()
        manifest = _seal_zarr(path, beside) if is_zarr else _seal_parquet(path, beside)
        folder = beside / FOLDER
        (folder / "manifest.json").write_bytes(manifest.to_bytes())
        for file in folder.iterdir():
            sync_file(file)
        sync_folder(folder)
        if not is_zarr:
            (beside / parquet_rows.COMMON).replace(path / parquet_rows.COMMON)
        folder.rename(path / FOLDER)
        sync_folder(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be sealed: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return open_one(path)


def _seal_zarr(path: Path, scratch: Path) -> Manifest:
    place = LocalPlace(path)
    arrays, said, metadata = foreign_arrays(place)
    spec = _zarr_spec(place, arrays, said)
    files: dict[str, int] = {}
    entries = {}
    for name, array in arrays.items():
        records = np.array([*_records(place, array, files)], RECORD)
        pages = write_table(scratch, name, records, 0)
        entries[name] = ArrayEntry(
            dtype=array.dtype.name,
            length=array.length,
            width=array.width,
            coding=array.coding,
            pages=pages,
        )
    listed: list[list[Any]] = [[key, *file_crc(path / key)] for key in files]
    assembled = Assembled(
        entries, listed, {key: whole_file(path / key) for key in metadata}, Tally()
    )
    draft = assembled.manifest(spec, "zarr", spec.n_labels or 2**31 - 1)
    draft = replace(draft, n_bags=arrays["bag_offsets"].length - 1, n_rows=_n_rows(arrays, spec))
    store = BagStore(_Overlay(path, scratch), draft)
    tally = _tally(store, spec, place.name)
    count = spec.labels_known if spec.labels_known is not None else tally.top_label + 1
    return replace(assembled, tally=tally).manifest(spec, "zarr", count)


class _Overlay(LocalPlace):
    """A store's folder, with ``_streammiml`` still lying elsewhere."""

    def __init__(self, path: Path, scratch: Path) -> None:
        super().__init__(path)
        self._scratch = LocalPlace(scratch)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from wherever the file lies."""
        if key.startswith(f"{FOLDER}/"):
            self._scratch.read_into(key, offset, buffer)
        else:
            super().read_into(key, offset, buffer)

    def opened(self, key: str) -> OpenFile | None:
        """The file, open, wherever it lies."""
        here = key.startswith(f"{FOLDER}/")
        return self._scratch.opened(key) if here else super().opened(key)


def _records(
    place: LocalPlace, array: ForeignArray, files: dict[str, int]
) -> Iterator[tuple[int, int, int, int, int, int]]:
    for key, offset, size, first, count in array.chunks():
        refuse_huge(f"{place.name}/{key}: a chunk", size, count, "smaller chunks")
        raw = memoryview(bytearray(size))
        place.read_into(key, offset, raw)
        yield first, offset, count, size, crc32c(raw), files.setdefault(key, len(files))


def _zarr_spec(
    place: LocalPlace, arrays: dict[str, ForeignArray], said: dict[str, Any]
) -> StoreSpec:
    sparse = "rows" not in arrays
    row_labels, bag_ids = "row_labels" in arrays, "bag_id_bytes" in arrays
    wanted = array_names(sparse=sparse, row_labels=row_labels, bag_ids=bag_ids)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise StoreError(f"{place.name} has no array {missing[0]!r} (see FORMAT.md)")
    strangers = sorted(set(arrays) - set(wanted))
    if strangers:
        raise StoreError(f"{place.name} has an array {strangers[0]!r} that no store has")
    n_features = arrays["rows"].width if not sparse else said.get("n_features")
    if not isinstance(n_features, int):
        raise StoreError(f"{place.name}/zarr.json: the attribute 'streammiml' must say n_features")
    spec = StoreSpec(
        n_features=n_features,
        dtype=arrays["values" if sparse else "rows"].dtype.name,
        n_labels=said.get("n_labels"),
        label_names=parquet_rows.names_in(said, "label_names"),
        feature_names=parquet_rows.names_in(said, "feature_names"),
        sparse=sparse,
        row_labels=row_labels,
        bag_ids=bag_ids,
        codec="none",
    )
    lengths = {
        "label_offsets": arrays["bag_offsets"].length,
        "row_labels": _n_rows(arrays, spec),
        "bag_id_offsets": arrays["bag_offsets"].length,
        "columns": arrays["values"].length if sparse else 0,
    }
    for name, length in lengths.items():
        if name in arrays and arrays[name].length != length:
            raise StoreError(
                f"{place.name}: {name} has {arrays[name].length} elements, expected {length}"
            )
    if arrays["bag_offsets"].length < 2:
        raise StoreError(f"{place.name} holds no bags")
    return spec


def _n_rows(arrays: dict[str, ForeignArray], spec: StoreSpec) -> int:
    return arrays["row_offsets"].length - 1 if spec.sparse else arrays["rows"].length


def _tally(store: BagStore, spec: StoreSpec, name: str) -> Tally:
    """Read every bag, refuse what may not be in a store, and count."""
    tally = Tally()
    ids: list[NDArray[np.uint64]] = []
    for block in store.blocks(scan_bags(store)):
        where = f"{name}, bags {tally.n_bags} to {tally.n_bags + len(block)}"
        if spec.bag_ids:
            names = store.bag_ids(tally.n_bags, tally.n_bags + len(block))
            block = replace(block, bag_ids=names)
            ids.append(id_hashes(names))
        _as_stored(block, spec, where)
        tally.add(digests_of(block), np.diff(block.bag_offsets), top_label(block), 0)
    _refuse_twice(ids, store)
    return tally


def _as_stored(block: BagBlock, spec: StoreSpec, where: str) -> None:
    """Refuse a block that our own writer would have refused, or written otherwise."""
    cleaned, _ = clean(block, spec, where)
    if not np.array_equal(cleaned.label_indices, block.label_indices):
        raise StoreError(f"{where}: labels of a bag must be in rising order")
    # Kernels merge the columns of two rows.
    if not np.array_equal(_columns(cleaned), _columns(block)):
        raise StoreError(f"{where}: columns of a row must be in rising order")


def _columns(block: BagBlock) -> NDArray[Any]:
    rows = block.rows
    return rows.columns if isinstance(rows, SparseRows) else np.empty(0, np.uint32)


def _refuse_twice(hashes: list[NDArray[np.uint64]], store: BagStore) -> None:
    """Refuse a store in which two bags have one id."""
    if hashes:
        refuse_twice(np.concatenate(hashes), lambda bag: store.bag_ids(bag, bag + 1)[0], store.name)


def _seal_parquet(path: Path, scratch: Path) -> Manifest:
    place = LocalPlace(path)
    spec, keys = parquet_rows.foreign_spec(place)
    assembly = ParquetAssembly(scratch, spec)
    ids: list[NDArray[np.uint64]] = []
    for key in keys:
        _add_file(path / key, spec, assembly, ids)
    if not assembly.tally.n_bags:
        raise StoreError(f"{path} holds no bags")
    known = spec.labels_known
    count = assembly.tally.top_label + 1 if known is None else known
    said = said_of(spec, count)
    manifest = assembly.finish(said).manifest(spec, "parquet", count)
    _refuse_twice(ids, BagStore(_Overlay(path, scratch), manifest))
    common = scratch / parquet_rows.COMMON
    parquet_rows.write_common(common, spec, said, parquet_rows.foreign_common(place))
    return replace(
        manifest, metadata={**manifest.metadata, parquet_rows.COMMON: whole_file(common)}
    )


def _add_file(
    file: Path, spec: StoreSpec, assembly: ParquetAssembly, ids: list[NDArray[np.uint64]]
) -> None:
    """Check and index one part file, a row group at a time."""
    digests: list[NDArray[np.uint64]] = []
    sizes: list[dict[str, NDArray[np.int64]]] = []
    highest = [-1]

    def groups() -> Iterator[BagBlock]:
        for number, block in enumerate(parquet_rows.foreign_blocks(file, spec)):
            _as_stored(block, spec, f"{file}, row group {number}")
            digests.append(digests_of(block))
            highest.append(top_label(block))
            offsets = parquet_rows.block_offsets(block)
            sizes.append({name: np.diff(of) for name, of in offsets.items()})
            if block.bag_ids is not None:
                ids.append(id_hashes(block.bag_ids))
            yield block

    part = parquet_rows.index_part(file, groups(), {})
    if digests:
        whole = {name: from_sizes(np.concatenate([of[name] for of in sizes])) for name in sizes[0]}
        part = replace(part, offsets=whole)
        assembly.add(file.name, part, np.concatenate(digests), max(highest), 0)
