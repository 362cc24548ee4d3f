"""Files of the staging folder: spooled parts, journals, and append-only logs.

A spooled part holds the bags of a Zarr part until they are appended to the arrays, or the index of
a Parquet part. A spooled part or a journal is one file of arrays with a checksum, renamed when it
is complete. Syncing is not necessary: a file that a power cut left incomplete fails its checksum
and counts as missing.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.ids import split_names
from streammiml.bags.kept_columns import kept_arrays, kept_from

Arrays = dict[str, NDArray[Any]]
SUBFOLDERS = ("store", "parts", "logs")
JOURNAL, SYNCED_JOURNAL = "journal", "journal.synced"


def part_path(staging: Path, number: int) -> Path:
    """File of a spooled part."""
    return staging / "parts" / f"part-{number:08d}"


def n_spooled(staging: Path) -> int:
    """Highest number of a spooled part, plus one; 0 if there is none."""
    parts = (staging / "parts").glob("part-" + "[0-9]" * 8)
    return max((int(path.name[5:]) + 1 for path in parts), default=0)


def save_arrays(path: Path, arrays: Arrays, facts: dict[str, Any]) -> None:
    """Write arrays and JSON facts as one file with a checksum, completely or not at all."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    raw = safetensors.numpy.save(contiguous, {"facts": json.dumps(facts, sort_keys=True)})
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(struct.pack("<I", crc32c(raw)))
        file.write(raw)
    partial.replace(path)


def load_arrays(path: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """Read a file of :func:`save_arrays`; None if the file is missing or incomplete."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) < 12 or struct.unpack("<I", raw[:4])[0] != crc32c(memoryview(raw)[4:]):
        return None
    length = struct.unpack("<Q", raw[4:12])[0]
    header = json.loads(raw[12 : 12 + length])
    facts = json.loads(header["__metadata__"]["facts"])
    return safetensors.numpy.load(raw[4:]), facts


def block_arrays(block: BagBlock) -> Arrays:
    """Arrays of a block by their names in a store; :func:`block_from` is the inverse."""
    arrays: Arrays = {
        "bag_offsets": block.bag_offsets,
        "label_offsets": block.label_offsets,
        "label_indices": block.label_indices,
    }
    rows = block.rows
    if isinstance(rows, SparseRows):
        arrays |= {"row_offsets": rows.offsets, "columns": rows.columns, "values": rows.values}
    else:
        arrays["rows"] = rows
    if block.row_labels is not None:
        arrays["row_labels"] = block.row_labels
    if block.bag_ids is not None:
        raw = [name.encode() for name in block.bag_ids]
        arrays["bag_id_offsets"] = np.cumsum([0, *map(len, raw)], dtype=np.int64)
        arrays["bag_id_bytes"] = np.frombuffer(b"".join(raw), np.uint8)
    return arrays | kept_arrays(block.kept)


def block_from(arrays: Arrays, n_features: int) -> BagBlock:
    """Make a block from the arrays of :func:`block_arrays`."""
    rows: NDArray[Any] | SparseRows
    if "rows" in arrays:
        rows = arrays["rows"]
    else:
        rows = SparseRows(arrays["row_offsets"], arrays["columns"], arrays["values"], n_features)
    ids = None
    if "bag_id_offsets" in arrays:
        ids = split_names(arrays["bag_id_offsets"], arrays["bag_id_bytes"])
    return BagBlock(
        arrays["bag_offsets"],
        rows,
        arrays["label_offsets"],
        arrays["label_indices"],
        arrays.get("row_labels"),
        ids,
        kept_from(arrays),
    )


class AppendLog:
    """An append-only file; :meth:`restore` rolls it back to an earlier state."""

    def __init__(self, path: Path) -> None:
        self.path, self._size, self._crc = path, 0, 0

    def append(self, raw: bytes) -> None:
        """Add bytes at the end."""
        if not raw:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self._size else "wb") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(raw)
        self._size, self._crc = self._size + len(raw), crc32c(raw, self._crc)

    def state(self) -> list[int]:
        """Number of bytes and their crc32c."""
        return [self._size, self._crc]

    def restore(self, state: list[int]) -> None:
        """Roll back to a state: the next append truncates the file there."""
        self._size, self._crc = state

    def content(self) -> bytes:
        """All bytes up to the current state."""
        if not self._size:
            return b""
        with self.path.open("rb") as file:
            return file.read(self._size)
