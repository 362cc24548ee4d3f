"""Writing the parts of a Parquet store: each part is a separate file, with a spooled index."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.atomic import sync_file
from streammiml.bags.array_writer import ArrayWriter
from streammiml.bags.fingerprint import U64
from streammiml.bags.ids import id_hashes
from streammiml.bags.kept_columns import is_offsets
from streammiml.bags.layout import (
    FOLDER,
    INDEX_CHUNK,
    INDEX_PIECE,
    RECORD,
    ArrayEntry,
)
from streammiml.bags.location import LocalFolder, Upload
from streammiml.bags.manifest_draft import (
    FileList,
    ManifestDraft,
    PartTally,
    store_attributes,
    synced_entry,
    write_table,
)
from streammiml.bags.parquet_read import COMMON
from streammiml.bags.parquet_write import (
    PartIndex,
    block_offsets,
    part_key,
    write_common,
    write_part,
)
from streammiml.bags.prepared_bags import PreparedBags
from streammiml.bags.spool import Arrays, load_arrays, n_spooled, part_path, save_arrays
from streammiml.bags.validate import StoreSpec


class ParquetIndex:
    """Builds the offsets and chunk tables of a Parquet store from the indexes of its parts."""

    def __init__(self, root: Path, spec: StoreSpec) -> None:
        self._root, self._spec = root, spec
        names = list(spec.arrays)
        self.tally = PartTally()
        self._part_files: FileList = []
        self._index_files: FileList = []
        self._footers: dict[str, list[int]] = {}
        shutil.rmtree(root / FOLDER, ignore_errors=True)
        self._offsets = {name: self._array(name) for name in names if is_offsets(name)}
        self._ends = dict.fromkeys(self._offsets, 0)
        for array in self._offsets.values():
            array.append(np.zeros(1, np.int64))
        columns = [name for name in names if name not in self._offsets]
        self._records: dict[str, list[NDArray[np.void]]] = {name: [] for name in columns}
        self._lengths = dict.fromkeys(columns, 0)
        self._plain = dict.fromkeys(columns, True)

    def _array(self, name: str) -> ArrayWriter:
        def closed(key: str, path: Path, size: int, crc: int) -> None:
            del path
            self._index_files.append([key, size, crc])

        return ArrayWriter(
            self._root,
            name,
            "int64",
            width=1,
            chunk=INDEX_CHUNK,
            piece=min(INDEX_PIECE, INDEX_CHUNK),
            shard_chunks=1 << 40,
            key=lambda _: f"{FOLDER}/{name}.bin",
            close=closed,
        )

    def add(self, key: str, part: PartIndex, digests: U64, top_label: int, dropped: int) -> None:
        """Add the index of the next part; a part without bags has no file."""
        sizes = np.diff(part.offsets["bag_offsets"])
        self.tally.add(digests, sizes, top_label, dropped)
        if not len(sizes):
            return
        file_number = len(self._part_files)
        self._part_files.append([key, part.size, part.crc])
        self._footers[key] = list(part.footer)
        for name, array in self._offsets.items():
            values = part.offsets[name]
            array.append(values[1:] + self._ends[name])
            self._ends[name] += int(values[-1])
        for name, records in part.records.items():
            store_records = records.copy()
            store_records["first"] += self._lengths[name]
            store_records["file"] = file_number
            self._records[name].append(store_records)
            self._lengths[name] += int(records["elements"].sum(dtype=np.int64))
        for name, plain in part.plain.items():
            self._plain[name] &= plain

    def finish(self, attributes: dict[str, Any]) -> ManifestDraft:
        """Write the offsets, the chunk tables and the common metadata."""
        for array in self._offsets.values():
            array.finish()
        files = self._part_files + self._index_files
        entries = {}
        for name, array in self._offsets.items():
            number = [file[0] for file in files].index(f"{FOLDER}/{name}.bin")
            records = np.frombuffer(array.take_records(), RECORD)
            entries[name] = array.entry("raw", write_table(self._root, name, records, number))
        for name, parts in self._records.items():
            records = np.concatenate(parts) if parts else np.empty(0, RECORD)
            dtype, width = self._spec.arrays[name]
            entries[name] = ArrayEntry(
                dtype=dtype,
                length=self._lengths[name],
                width=width,
                coding="tail" if self._plain[name] else "arrow",
                pages=write_table(self._root, name, records, 0),
            )
        common = self._root / COMMON
        write_common(common, self._spec, attributes)
        metadata = {**self._footers, COMMON: synced_entry(common)}
        return ManifestDraft(entries, files, metadata, self.tally)


class ParquetParts:
    """Parts of a Parquet store: each has a data file, and an index that is written after it."""

    def __init__(self, staging: Path, spec: StoreSpec, upload: Upload | None) -> None:
        self._staging, self._spec, self._upload = staging, spec, upload
        self._root = staging / "store"

    def has(self, number: int) -> bool:
        """Tell whether a part is completely written."""
        part = load_arrays(part_path(self._staging, number))
        if part is None:
            return False
        arrays, facts = part
        if self._upload is not None or not len(arrays["digests"]):
            return True
        # When a store was finished, its data files were moved; the index may still be here.
        size: int = facts["size"]
        return LocalFolder(self._root).size(part_key(number)) == size

    def write(self, number: int, bags: PreparedBags) -> None:
        """Write the data file of a part, then its index."""
        key, block, facts = part_key(number), bags.block, bags.facts()
        arrays: Arrays = {"digests": bags.digests}
        arrays |= {f"offsets/{name}": values for name, values in block_offsets(block).items()}
        # Remove the old index first: after a kill it must not describe a new data file.
        part_path(self._staging, number).unlink(missing_ok=True)
        if len(block):
            partial = self._staging / "parts" / f"{key}.{os.getpid()}.partial"
            part = write_part(partial, block, self._spec)
            sync_file(partial)
            path = self._root / key
            partial.replace(path)
            if self._upload is not None:
                self._upload(key, path)
                path.unlink()
            arrays |= {
                f"records/{name}": records.view(np.uint8) for name, records in part.records.items()
            }
            facts |= {"plain": part.plain, "size": part.size, "crc": part.crc}
            facts["footer"] = part.footer
        if block.bag_ids is not None:
            arrays["ids"] = id_hashes(block.bag_ids)
        save_arrays(part_path(self._staging, number), arrays, facts)

    def absorb(self) -> None:
        """Do nothing: each part is a separate file."""

    def missing(self, n_parts: int) -> list[int]:
        """Numbers of the parts that are missing."""
        return [number for number in range(n_parts) if not self.has(number)]

    def n_begun(self) -> int:
        """Highest number of an existing part, plus one; 0 if no part exists."""
        return n_spooled(self._staging)

    def finish(self, n_parts: int, spec: StoreSpec) -> ManifestDraft:
        """Index all parts; may be repeated after a failure."""
        index = ParquetIndex(self._root, spec)
        for number in range(n_parts):
            index.add(part_key(number), *_part_index(*self._loaded(number)))
        return index.finish(store_attributes(spec, index.tally.n_labels(spec)))

    def id_hashes(self, number: int) -> NDArray[np.uint64]:
        """Hashes of the bag ids of a part."""
        return self._loaded(number)[0]["ids"]

    def _loaded(self, number: int) -> tuple[Arrays, dict[str, Any]]:
        part = load_arrays(part_path(self._staging, number))
        assert part is not None, "the writer refuses missing parts first"
        return part


def staged_parts(
    staging: Path,
    spec: StoreSpec,
    upload: Upload | None,
    *,
    is_owner: bool,  # noqa: ARG001 (all processes write separate files)
) -> ParquetParts:
    """Open the parts in a staging folder; see :class:`~streammiml.bags.backends.WritingBackend`."""
    return ParquetParts(staging, spec, upload)


def _part_index(arrays: Arrays, facts: dict[str, Any]) -> tuple[PartIndex, U64, int, int]:
    """Turn the spooled index of a part into the arguments of :meth:`ParquetIndex.add`."""
    offsets, records = (
        {
            name.removeprefix(prefix): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        for prefix in ("offsets/", "records/")
    )
    part = PartIndex(
        offsets=offsets,
        records={name: raw.view(RECORD) for name, raw in records.items()},
        plain=facts.get("plain", {}),
        size=facts.get("size", 0),
        crc=facts.get("crc", 0),
        footer=tuple(facts.get("footer", (0, 0, 0))),
    )
    return part, arrays["digests"], facts["top_label"], facts["dropped"]
