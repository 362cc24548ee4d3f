"""What a conversion keeps beside the store until it is complete: spooled parts, logs, a lock.

A spooled part is one file of arrays with a checksum, renamed into place when whole. It need not
be synced: after a power cut a torn one fails its checksum and counts as never written.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml._base.platform import lock_file
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.errors import StoreError

Arrays = dict[str, NDArray[Any]]


def save_arrays(path: Path, arrays: Arrays, facts: dict[str, Any]) -> None:
    """Write arrays and JSON facts as one checked file, whole or not at all."""
    kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    raw = safetensors.numpy.save(kept, {"facts": json.dumps(facts, sort_keys=True)})
    beside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with beside.open("wb") as file:
        file.write(struct.pack("<I", crc32c(raw)))
        file.write(raw)
    beside.replace(path)


def load_arrays(path: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """What :func:`save_arrays` wrote; None if the file is missing or not whole."""
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
    """A block as named arrays; :func:`block_from` is the inverse."""
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
    return arrays


def block_from(arrays: Arrays, n_features: int) -> BagBlock:
    """The block that :func:`block_arrays` took apart."""
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
    )


def split_names(offsets: NDArray[np.int64], raw: NDArray[np.uint8]) -> list[str]:
    """Strings from their bytes end to end; ``offsets`` begin at 0."""
    whole, ends = raw.tobytes(), offsets.tolist()
    return [whole[a:b].decode() for a, b in pairwise(ends)]


class AppendLog:
    """A file that only grows; what lies behind its last known state is cut off on going back."""

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
        """Bytes and crc32c."""
        return [self._size, self._crc]

    def restore(self, state: list[int]) -> None:
        """Go back to a state."""
        self._size, self._crc = state

    def content(self) -> bytes:
        """All bytes up to the last known state."""
        if not self._size:
            return b""
        with self.path.open("rb") as file:
            return file.read(self._size)


class Lock:
    """One owner a folder; the operating system lets go of it when the owner dies."""

    def __init__(self, path: Path, what: str) -> None:
        # The package filelock does not serve here: it empties the file before it has the lock, and
        # with it the name of the owner, which the error below tells.
        self._path, self._file = path, path.open("a+")
        if not lock_file(self._file):
            self._file.seek(0)
            owner = self._file.read().strip() or "another process"
            self._file.close()
            raise StoreError(f"{what} is being written by {owner}; wait for it or stop it")
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._file.flush()

    @property
    def is_in_place(self) -> bool:
        """Whether what is locked still lies where others look for it."""
        mine = os.fstat(self._file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def release(self) -> None:
        """Let others in."""
        self._file.close()
