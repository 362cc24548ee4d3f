"""Writing the parts of a Zarr store, in any order, with a journal to resume after a kill."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.atomic import sync_file, sync_folder
from streammiml.bags import zarr_write
from streammiml.bags.array_writer import ArrayWriter
from streammiml.bags.block import BagBlock
from streammiml.bags.fingerprint import U64, digests_of
from streammiml.bags.ids import id_hashes
from streammiml.bags.kept_columns import is_offsets
from streammiml.bags.layout import (
    INDEX_CHUNK,
    INDEX_PIECE,
    PIECE_BYTES,
    RECORD,
    ArrayEntry,
)
from streammiml.bags.location import LocalFolder, Upload, file_crc
from streammiml.bags.manifest_draft import (
    FileList,
    ManifestDraft,
    PartTally,
    store_attributes,
    synced_entry,
    write_table,
)
from streammiml.bags.prepared_bags import PreparedBags
from streammiml.bags.spool import (
    JOURNAL,
    SYNCED_JOURNAL,
    AppendLog,
    block_arrays,
    block_from,
    load_arrays,
    n_spooled,
    part_path,
    save_arrays,
)
from streammiml.bags.validate import StoreSpec


class ZarrAppender:
    """Appends parts, in order, to the arrays of a Zarr store; can be resumed after any part."""

    def __init__(self, root: Path, logs: Path, spec: StoreSpec, upload: Upload | None) -> None:
        self._root, self._logs, self._spec, self._upload = root, logs, spec, upload
        self._finishing = False
        self._file_was_closed = False
        self._last_files: list[tuple[str, list[Any]]] = []
        self._uploaded: list[Path] = []
        self.next_part = 0
        self.tally = PartTally()
        names = list(spec.arrays)
        self.arrays = {name: self._array(name, *kind) for name, kind in spec.arrays.items()}
        self._tables = {name: AppendLog(logs / f"chunks-{name}") for name in names}
        self._files = {name: AppendLog(logs / f"files-{name}") for name in names}
        self._ends = {name: 0 for name in names if is_offsets(name)}
        for name in self._ends:
            self.arrays[name].append(np.zeros(1, np.int64))

    def _array(self, name: str, dtype: str, width: int) -> ArrayWriter:
        spec = self._spec
        codec = spec.resolved_codec if name in ("rows", "values", "columns") else "none"
        piece = max(1, min(INDEX_PIECE, INDEX_CHUNK) // width)
        chunk, per_file = piece * (INDEX_CHUNK // min(INDEX_PIECE, INDEX_CHUNK)), 1024
        if name in ("rows", "values", "columns"):
            element = np.dtype(dtype).itemsize * width
            piece = max(1, min(PIECE_BYTES, spec.chunk_bytes) // element)
            chunk = piece * max(1, spec.chunk_bytes // (piece * element))
            per_file = max(1, min(1024, zarr_write.SHARD_BYTES // (chunk * element)))
        return ArrayWriter(
            self._root,
            name,
            dtype,
            width=width,
            chunk=chunk,
            shard_chunks=per_file,
            piece=piece,
            key=partial(zarr_write.shard_key, name, is_matrix=name == "rows" or width > 1),
            close=partial(self._closed, name),
            codec=codec,
            encode=None if codec == "none" else partial(zarr_write.compress, codec=codec),
            ending=partial(zarr_write.shard_index, n_slots=per_file),
        )

    def _closed(self, name: str, key: str, path: Path, size: int, crc: int) -> None:
        self._file_was_closed = True
        if not self._finishing:
            self._files[name].append(json.dumps([key, size, crc]).encode() + b"\n")
        else:
            self._last_files.append((name, [key, size, crc]))
        if self._upload is not None:
            self._upload(key, path)
            # The local file is kept until a journal lists it as complete: until then, a kill would
            # roll back to the last journal, which needs the incomplete file.
            self._uploaded.append(path)

    def add(self, block: BagBlock, dropped: int, digests: U64 | None = None) -> None:
        """Append the next part; digests are computed if they are None."""
        for name, values in block_arrays(block).items():
            if name in self._ends:
                self.arrays[name].append(values[1:] + self._ends[name])
                self._ends[name] += int(values[-1])
            else:
                self.arrays[name].append(values)
        digests = digests_of(block) if digests is None else digests
        self.tally.add(digests, np.diff(block.bag_offsets), block.top_label, dropped)
        for name, array in self.arrays.items():
            self._tables[name].append(array.take_records())
        self.next_part += 1

    def save(self, folder: Path) -> None:
        """Write the journal, so that a kill loses no part that was added before.

        Whenever a file was completed, all files are synced and a second journal is written: a power
        cut loses only the parts that were added after the second journal.
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
        if self._file_was_closed:
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
            self._file_was_closed = False
        for path in self._uploaded:
            path.unlink(missing_ok=True)
        self._uploaded.clear()

    def restore(self, journal: Path) -> bool:
        """Resume from a journal; False if there is none, or if the files do not match it."""
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
        if self._upload is None and not self._complete_files_exist():
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
        self.tally = PartTally(**{**tally, "sums": tuple(tally["sums"])})
        return True

    def _complete_files_exist(self) -> bool:
        """Tell whether complete files still exist; finishing a store moves them."""
        closed = (json.loads(line) for log in self._files.values() for line in _lines(log))
        folder = LocalFolder(self._root)
        return all(folder.size(key) == size for key, size, _ in closed)

    def finish(self, attributes: dict[str, Any]) -> ManifestDraft:
        """Close and describe all arrays; may be repeated after a kill."""
        self._finishing = True
        self._last_files.clear()
        entries: dict[str, ArrayEntry] = {}
        files: FileList = []
        for name, array in self.arrays.items():
            array.finish()
            base = len(files)
            files += [json.loads(line) for line in _lines(self._files[name])]
            files += [file for array_name, file in self._last_files if array_name == name]
            raw = self._tables[name].content() + array.take_records()
            coding = "raw" if array.codec == "none" else "blosc"
            pages = write_table(self._root, name, np.frombuffer(raw, RECORD), base)
            entries[name] = array.entry(coding, pages)
        codec = self._spec.resolved_codec
        keys = zarr_write.write_metadata(
            self._root, list(self.arrays.values()), codec if codec != "none" else "lz4", attributes
        )
        metadata = {key: synced_entry(self._root / key) for key in keys}
        return ManifestDraft(entries, files, metadata, self.tally)


class ZarrParts:
    """Parts of a Zarr store: the next part is appended to the arrays, later ones are spooled."""

    def __init__(
        self, staging: Path, spec: StoreSpec, upload: Upload | None, *, is_owner: bool
    ) -> None:
        self._staging, self._spec, self._upload = staging, spec, upload
        self._appender = self._resumed() if is_owner else None

    def _resumed(self) -> ZarrAppender:
        """Resume from a journal, or start with empty arrays."""
        # The synced journal is a little older, and survives a power cut.
        for name in (JOURNAL, SYNCED_JOURNAL):
            appender = self._new_appender()
            if appender.restore(self._staging / name) and self._has_ids(appender.next_part):
                return appender
        for subfolder in ("store", "logs"):
            shutil.rmtree(self._staging / subfolder, ignore_errors=True)
            (self._staging / subfolder).mkdir()
        return self._new_appender()

    def _new_appender(self) -> ZarrAppender:
        root, logs = self._staging / "store", self._staging / "logs"
        return ZarrAppender(root, logs, self._spec, self._upload)

    def has(self, number: int) -> bool:
        """Tell whether a part is completely written."""
        if number < self._n_appended():
            return True
        return load_arrays(part_path(self._staging, number)) is not None

    def _n_appended(self) -> int:
        """Number of parts in the arrays; another process may have appended them."""
        if self._appender is not None:
            return self._appender.next_part
        journal = load_arrays(self._staging / JOURNAL)
        return 0 if journal is None else int(journal[1]["next_part"])

    def write(self, number: int, bags: PreparedBags) -> None:
        """Append the part if it is the next one, else spool it."""
        if self._appender is not None and number == self._appender.next_part:
            self._append(bags.block, bags.dropped, bags.digests)
            self.absorb()
        else:
            arrays = {**block_arrays(bags.block), "digests": bags.digests}
            save_arrays(part_path(self._staging, number), arrays, bags.facts())

    def _append(self, block: BagBlock, dropped: int, digests: U64 | None) -> None:
        assert self._appender is not None, "only the owner appends"
        # After a failure the arrays do not match the journal, so this appender is not used again.
        appender, self._appender = self._appender, None
        if block.bag_ids is not None:
            path = self._ids_path(appender.next_part)
            path.write_bytes(id_hashes(block.bag_ids).tobytes())
            sync_file(path)
        appender.add(block, dropped, digests)
        appender.save(self._staging)
        self._appender = appender

    def absorb(self) -> None:
        """Append spooled parts in order, up to the first missing part."""
        while self._appender is not None:
            path = part_path(self._staging, self._appender.next_part)
            part = load_arrays(path)
            if part is None:
                return
            arrays, facts = part
            block = block_from(arrays, self._spec.n_features)
            self._append(block, facts["dropped"], arrays.get("digests"))
            path.unlink()

    def missing(self, n_parts: int) -> list[int]:
        """Append the parts below ``n_parts``; return the numbers of missing parts."""
        if self._appender is None:
            self._appender = self._resumed()
        while True:
            self.absorb()
            first = self._n_appended()
            missing = [number for number in range(first, n_parts) if not self.has(number)]
            # Nothing is missing, but another process spooled a part after absorb: repeat.
            if missing or first >= n_parts:
                return missing

    def n_begun(self) -> int:
        """Highest number of an existing part, plus one; 0 if no part exists."""
        return max(self._n_appended(), n_spooled(self._staging))

    def finish(self, n_parts: int, spec: StoreSpec) -> ManifestDraft:
        """Close the arrays; after a failure, finishing resumes from the journal."""
        assert self._appender is not None, f"the writer calls missing({n_parts}) first"
        appender, self._appender = self._appender, None
        return appender.finish(store_attributes(spec, appender.tally.n_labels(spec)))

    def id_hashes(self, number: int) -> NDArray[np.uint64]:
        """Hashes of the bag ids of a part."""
        return np.fromfile(self._ids_path(number), np.uint64)

    def _has_ids(self, n_parts: int) -> bool:
        """Tell whether the id hashes of all appended parts exist."""
        paths = (self._ids_path(number) for number in range(n_parts))
        return not self._spec.bag_ids or all(path.exists() for path in paths)

    def _ids_path(self, number: int) -> Path:
        return self._staging / "parts" / f"ids-{number:08d}"


def staged_parts(
    staging: Path, spec: StoreSpec, upload: Upload | None, *, is_owner: bool
) -> ZarrParts:
    """Open the parts in a staging folder; see :class:`~streammiml.bags.backends.WritingBackend`."""
    return ZarrParts(staging, spec, upload, is_owner=is_owner)


def _lines(log: AppendLog) -> list[bytes]:
    return log.content().splitlines()
