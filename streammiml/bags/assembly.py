"""From blocks to the arrays, tables and counts of a finished store, one class a backend."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags import parquet_rows, zarr_writing
from streammiml.bags.appending import ArrayWriter, table_pages
from streammiml.bags.block import BagBlock
from streammiml.bags.block_facts import digests_of, top_label
from streammiml.bags.checks import StoreSpec
from streammiml.bags.layout import (
    ARRAY_DTYPES,
    FOLDER,
    INDEX_CHUNK,
    INDEX_PIECE,
    PIECE_BYTES,
    RECORD,
    ArrayEntry,
    Manifest,
    array_names,
    table_key,
)
from streammiml.bags.parquet_rows import PartIndex
from streammiml.bags.parts import AppendLog, block_arrays, load_arrays, save_arrays
from streammiml.bags.place import LocalPlace, file_crc, sync_file, sync_folder
from streammiml.digest import U64, Fingerprint

JOURNAL, SYNCED_JOURNAL = "journal", "journal.synced"
Uploader = Callable[[str, Path], None]
FileList = list[list[Any]]


@dataclass(slots=True)
class Tally:
    """Counts that grow with every part."""

    n_bags: int = 0
    n_rows: int = 0
    top_label: int = -1
    longest_bag: int = 0
    dropped_bags: int = 0
    sums: tuple[int, int] = (0, 0)

    def add(self, digests: U64, sizes: NDArray[Any], top_label: int, dropped: int) -> None:
        """Count the bags of one part, which follow those counted before."""
        total = Fingerprint(self.sums)
        total.add(self.n_bags, digests)
        self.sums = total.sums
        self.n_bags += len(sizes)
        self.n_rows += int(sizes.sum())
        self.top_label = max(self.top_label, top_label)
        self.longest_bag = max(self.longest_bag, int(sizes.max(initial=0)))
        self.dropped_bags += dropped


@dataclass(frozen=True, slots=True)
class Assembled:
    """All that a manifest says, but for the names."""

    arrays: dict[str, ArrayEntry]
    files: FileList
    metadata: dict[str, list[int]]
    tally: Tally

    def manifest(self, spec: StoreSpec, backend: str, n_labels: int) -> Manifest:
        """The manifest of the finished store."""
        return Manifest(
            backend=backend,
            n_bags=self.tally.n_bags,
            n_rows=self.tally.n_rows,
            n_features=spec.n_features,
            n_labels=n_labels,
            dtype=spec.dtype,
            sparse=spec.sparse,
            codec=spec.resolved_codec,
            fingerprint=Fingerprint(self.tally.sums).text(),
            longest_bag=self.tally.longest_bag,
            arrays=self.arrays,
            files=self.files,
            metadata=self.metadata,
            dropped_bags=self.tally.dropped_bags,
        )


class ZarrAssembly:
    """Appends parts, in order, to the arrays of a Zarr store; can stop and go on after any."""

    def __init__(self, root: Path, logs: Path, spec: StoreSpec, upload: Uploader | None) -> None:
        self._root, self._logs, self._spec, self._upload = root, logs, spec, upload
        self._finishing = False
        self._closed_some = False
        self._last_files: list[tuple[str, list[Any]]] = []
        self._sent: list[Path] = []
        self.next_part = 0
        self.tally = Tally()
        names = array_names(sparse=spec.sparse, row_labels=spec.row_labels, bag_ids=spec.bag_ids)
        self.arrays = {name: self._array(name) for name in names}
        self._tables = {name: AppendLog(logs / f"chunks-{name}") for name in names}
        self._files = {name: AppendLog(logs / f"files-{name}") for name in names}
        self._ends = {name: 0 for name in names if name.endswith("_offsets")}
        for name in self._ends:
            self.arrays[name].append(np.zeros(1, np.int64))

    def _array(self, name: str) -> ArrayWriter:
        spec = self._spec
        dtype = ARRAY_DTYPES.get(name, spec.dtype)
        width = spec.n_features if name == "rows" else 1
        codec = spec.resolved_codec if name in ("rows", "values", "columns") else "none"
        chunk, per_file, piece = INDEX_CHUNK, 1024, min(INDEX_PIECE, INDEX_CHUNK)
        if name in ("rows", "values", "columns"):
            element = np.dtype(dtype).itemsize * width
            piece = max(1, min(PIECE_BYTES, spec.chunk_bytes) // element)
            chunk = piece * max(1, spec.chunk_bytes // (piece * element))
            per_file = max(1, min(1024, zarr_writing.SHARD_BYTES // (chunk * element)))
        return ArrayWriter(
            self._root,
            name,
            dtype,
            width=width,
            chunk=chunk,
            shard_chunks=per_file,
            piece=piece,
            key=partial(zarr_writing.shard_key, name),
            close=partial(self._closed, name),
            codec=codec,
            encode=None if codec == "none" else partial(zarr_writing.compress, codec=codec),
            ending=partial(zarr_writing.shard_index, n_slots=per_file),
        )

    def _closed(self, name: str, key: str, path: Path, size: int, crc: int) -> None:
        self._closed_some = True
        if not self._finishing:
            self._files[name].append(json.dumps([key, size, crc]).encode() + b"\n")
        else:
            self._last_files.append((name, [key, size, crc]))
        if self._upload is not None:
            self._upload(key, path)
            # Until the journal knows that it is closed, a kill goes back to the file as it was.
            self._sent.append(path)

    def add(self, block: BagBlock, dropped: int, digests: U64 | None = None) -> None:
        """Append the next part; its digests are computed unless given."""
        for name, values in block_arrays(block).items():
            if name in self._ends:
                self.arrays[name].append(values[1:] + self._ends[name])
                self._ends[name] += int(values[-1])
            else:
                self.arrays[name].append(values)
        digests = digests_of(block) if digests is None else digests
        self.tally.add(digests, np.diff(block.bag_offsets), top_label(block), dropped)
        for name, array in self.arrays.items():
            self._tables[name].append(array.take_records())
        self.next_part += 1

    def save(self, folder: Path) -> None:
        """Write down how far it is; a kill loses nothing that was added before.

        When a file was completed, which is synced, so is all that a second journal speaks of: a
        power cut loses what came after it.
        """
        states = {name: array.state() for name, array in self.arrays.items()}
        facts = {
            "next_part": self.next_part,
            "tally": asdict(self.tally),
            "ends": self._ends,
            "arrays": {name: numbers for name, (numbers, _) in states.items()},
            "tables": {name: log.state() for name, log in self._tables.items()},
            "files": {name: log.state() for name, log in self._files.items()},
        }
        rests = {name: np.frombuffer(rest, np.uint8) for name, (_, rest) in states.items()}
        save_arrays(folder / JOURNAL, rests, facts)
        if self._closed_some:
            logs = [log.path for log in (*self._tables.values(), *self._files.values())]
            current = [
                array.file_at(numbers)[0]
                for array, (numbers, _) in zip(self.arrays.values(), states.values(), strict=True)
                if numbers["slots"]
            ]
            for path in (*logs, *current):
                if path.exists():
                    sync_file(path)
            save_arrays(folder / SYNCED_JOURNAL, rests, facts)
            sync_file(folder / SYNCED_JOURNAL)
            sync_folder(folder)
            self._closed_some = False
        for path in self._sent:
            path.unlink(missing_ok=True)
        self._sent.clear()

    def restore(self, journal: Path) -> bool:
        """Go on from a journal; False if there is none, or if files do not bear it out."""
        loaded = load_arrays(journal)
        if loaded is None:
            return False
        rests, facts = loaded
        for kind, logs in (("tables", self._tables), ("files", self._files)):
            for name, log in logs.items():
                size, crc = state = facts[kind][name]
                if size and (not log.path.exists() or file_crc(log.path, size) != (size, crc)):
                    return False
                log.restore(state)
        if self._upload is None and not self._closed_are_there():
            return False
        for name, array in self.arrays.items():
            numbers = facts["arrays"][name]
            if numbers["slots"]:
                path, size, crc = array.file_at(numbers)
                if not path.exists() or file_crc(path, size) != (size, crc):
                    return False
            array.restore(numbers, rests[name].tobytes())
        self.next_part, self._ends = facts["next_part"], facts["ends"]
        tally = facts["tally"]
        self.tally = Tally(**{**tally, "sums": tuple(tally["sums"])})
        return True

    def _closed_are_there(self) -> bool:
        """Whether the files that were complete still are; a finished store was moved away."""
        closed = (json.loads(line) for log in self._files.values() for line in _lines(log))
        place = LocalPlace(self._root)
        return all(place.size(key) == size for key, size, _ in closed)

    def finish(self, said: dict[str, Any]) -> Assembled:
        """Close every array and describe it; can be done again after a kill."""
        self._finishing = True
        self._last_files.clear()
        entries: dict[str, ArrayEntry] = {}
        files: FileList = []
        for name, array in self.arrays.items():
            array.finish()
            base = len(files)
            files += [json.loads(line) for line in _lines(self._files[name])]
            files += [file for of, file in self._last_files if of == name]
            raw = self._tables[name].content() + array.take_records()
            coding = "raw" if array.codec == "none" else "blosc"
            pages = write_table(self._root, name, np.frombuffer(raw, RECORD), base)
            entries[name] = array.entry(coding, pages)
        codec = self._spec.resolved_codec
        keys = zarr_writing.write_metadata(
            self._root, list(self.arrays.values()), codec if codec != "none" else "lz4", said
        )
        metadata = {key: whole_file(self._root / key) for key in keys}
        return Assembled(entries, files, metadata, self.tally)


class ParquetAssembly:
    """Builds the offsets index of a Parquet store from the indexes of its parts, in order."""

    def __init__(self, root: Path, spec: StoreSpec) -> None:
        self._root, self._spec = root, spec
        names = array_names(sparse=spec.sparse, row_labels=spec.row_labels, bag_ids=spec.bag_ids)
        self.tally = Tally()
        self._part_files: FileList = []
        self._index_files: FileList = []
        self._footers: dict[str, list[int]] = {}
        shutil.rmtree(root / FOLDER, ignore_errors=True)
        self._offsets = {name: self._array(name) for name in names if name.endswith("_offsets")}
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
            ARRAY_DTYPES[name],
            width=1,
            chunk=INDEX_CHUNK,
            piece=min(INDEX_PIECE, INDEX_CHUNK),
            shard_chunks=1 << 40,
            key=lambda _: f"{FOLDER}/{name}.bin",
            close=closed,
        )

    def add(self, key: str, part: PartIndex, digests: U64, top_label: int, dropped: int) -> None:
        """Take in the next part; a part without bags has no file."""
        sizes = np.diff(part.offsets["bag_offsets"])
        self.tally.add(digests, sizes, top_label, dropped)
        if not len(sizes):
            return
        file = len(self._part_files)
        self._part_files.append([key, part.size, part.crc])
        self._footers[key] = list(part.footer)
        for name, array in self._offsets.items():
            values = part.offsets[name]
            array.append(values[1:] + self._ends[name])
            self._ends[name] += int(values[-1])
        for name, records in part.records.items():
            moved = records.copy()
            moved["first"] += self._lengths[name]
            moved["file"] = file
            self._records[name].append(moved)
            self._lengths[name] += int(records["elements"].sum(dtype=np.int64))
        for name, plain in part.plain.items():
            self._plain[name] &= plain

    def finish(self, said: dict[str, Any]) -> Assembled:
        """Write the offsets, the tables and the common metadata."""
        for array in self._offsets.values():
            array.finish()
        files = self._part_files + self._index_files
        entries = {}
        for name, array in self._offsets.items():
            at = [file[0] for file in files].index(f"{FOLDER}/{name}.bin")
            records = np.frombuffer(array.take_records(), RECORD)
            entries[name] = array.entry("raw", write_table(self._root, name, records, at))
        for name, parts in self._records.items():
            records = np.concatenate(parts) if parts else np.empty(0, RECORD)
            entries[name] = ArrayEntry(
                dtype=ARRAY_DTYPES.get(name, self._spec.dtype),
                length=self._lengths[name],
                width=self._spec.n_features if name == "rows" else 1,
                coding="tail" if self._plain[name] else "arrow",
                pages=write_table(self._root, name, records, 0),
            )
        common = self._root / parquet_rows.COMMON
        parquet_rows.write_common(common, self._spec, said)
        metadata = {**self._footers, parquet_rows.COMMON: whole_file(common)}
        return Assembled(entries, files, metadata, self.tally)


def write_table(root: Path, name: str, records: NDArray[np.void], base: int) -> list[list[int]]:
    """Write an array's chunk records, their files counted from ``base`` on; returns its pages."""
    moved = records.copy()
    moved["file"] += base
    path = root / table_key(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(moved.tobytes())
    sync_file(path)
    return table_pages(moved)


def whole_file(path: Path) -> list[int]:
    """(offset, bytes, crc32c) of a small file, which is also made to last."""
    raw = path.read_bytes()
    sync_file(path)
    return [0, len(raw), crc32c(raw)]


def _lines(log: AppendLog) -> list[bytes]:
    return log.content().splitlines()
