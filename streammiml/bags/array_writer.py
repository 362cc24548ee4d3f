"""Append-only writing of one array: full chunks go to the current file, the rest stays in memory.

:meth:`ArrayWriter.state` returns a small state, so that writing can stop after any part and resume
there. Resuming truncates the bytes that were written after the state was saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.layout import PAGE_RECORDS, RECORD, ArrayEntry

Encode = Callable[[NDArray[Any]], bytes]
Close = Callable[[str, Path, int, int], None]
"""Called with (key, path, bytes, crc32c) of each complete file."""


class ArrayWriter:
    """Writes elements as chunks of ``chunk`` elements, ``shard_chunks`` chunks to a file.

    An element has ``width`` values. ``key`` returns the key of a file, given its number. ``ending``
    makes the last bytes of a file (the index of a shard) from the (offset, bytes) of its chunks;
    without ``ending`` the last chunk is not padded. In uncompressed arrays every ``piece`` elements
    have their own record and checksum, so that a read need not fetch full chunks.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        dtype: str,
        *,
        width: int,
        chunk: int,
        shard_chunks: int,
        piece: int = 0,
        key: Callable[[int], str],
        close: Close,
        codec: str = "none",
        encode: Encode | None = None,
        ending: Callable[[list[tuple[int, int]]], bytes] | None = None,
    ) -> None:
        self.name, self.dtype, self.width = name, np.dtype(dtype), width
        self.chunk, self.shard_chunks, self.codec = chunk, shard_chunks, codec
        self._piece = piece or chunk
        self.length = 0
        self._root, self._key, self._close_file = root, key, close
        self._encode, self._ending = encode, ending
        self._rest = np.empty(0, self.dtype)
        self._n_chunks = 0
        self._offset, self._crc = 0, 0
        self._slots: list[tuple[int, int]] = []
        self._file: Any = None
        self._records: list[tuple[int, int, int, int, int, int]] = []
        self._n_files = 0

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()

    # State, which the journal saves.

    def state(self) -> tuple[dict[str, Any], bytes]:
        """State for :meth:`restore`: numbers, and the bytes of the unfinished chunk."""
        if self._file is not None:
            self._file.flush()
        numbers = {
            "length": self.length,
            "n_chunks": self._n_chunks,
            "offset": self._offset,
            "crc": self._crc,
            "slots": self._slots,
            "n_files": self._n_files,
        }
        return numbers, self._rest.tobytes()

    def restore(self, numbers: dict[str, Any], rest: bytes) -> None:
        """Roll back to a state: truncate everything that was written later."""
        self.length, self._n_chunks = numbers["length"], numbers["n_chunks"]
        self._offset, self._crc = numbers["offset"], numbers["crc"]
        self._slots = [(offset, size) for offset, size in numbers["slots"]]
        self._n_files = numbers["n_files"]
        self._rest = np.frombuffer(rest, self.dtype).copy()
        if self._slots:
            self._file = self._path().open("r+b")
            self._file.truncate(self._offset)
            self._file.seek(self._offset)

    def file_at(self, numbers: dict[str, Any]) -> tuple[Path, int, int]:
        """Path, bytes and crc32c of the file that was open when a state was saved."""
        return self._root / self._key(numbers["n_files"]), numbers["offset"], numbers["crc"]

    def take_records(self) -> bytes:
        """Return the records of the chunks written since the last call."""
        raw = np.array(self._records, RECORD).tobytes()
        self._records = []
        return raw

    # Writing.

    def append(self, values: NDArray[Any]) -> None:
        """Add elements; write all full chunks."""
        flat = np.ascontiguousarray(values, self.dtype).reshape(-1)
        self.length += len(flat) // self.width
        per_chunk = self.chunk * self.width
        if len(self._rest):
            missing = per_chunk - len(self._rest)
            self._rest = np.concatenate([self._rest, flat[:missing]])
            flat = flat[missing:]
            if len(self._rest) < per_chunk:
                return
            self._write(self._rest)
        full = len(flat) // per_chunk * per_chunk
        self._write(flat[:full])
        self._rest = flat[full:].copy()

    def finish(self) -> None:
        """Write the unfinished chunk, and close the last file."""
        if len(self._rest):
            rest = self._rest
            if self._ending is not None:
                padding = self.chunk * self.width - len(rest)
                rest = np.concatenate([rest, np.zeros(padding, self.dtype)])
            self._write(rest, last=True)
        self._rest = np.empty(0, self.dtype)
        self._close()

    def _write(self, values: NDArray[Any], *, last: bool = False) -> None:
        """Write the chunks in ``values``; several uncompressed chunks at a time."""
        per_chunk = self.chunk * self.width
        at = 0
        while at < len(values):
            room = self.shard_chunks - len(self._slots)
            part = values[at : at + (room if self._encode is None else 1) * per_chunk]
            at += len(part)
            if self._encode is None:
                raw = part.data.cast("B")
                sizes = [per_chunk * self.dtype.itemsize] * (len(part) // per_chunk)
                sizes += [] if not last or self._ending else [len(raw)]
            else:
                raw = memoryview(self._encode(part))
                sizes = [len(raw)]
            self._put(raw, sizes)

    def _put(self, raw: memoryview, sizes: list[int]) -> None:
        """Write chunks of these sizes, with a record for each chunk or each of its pieces."""
        if self._file is None:
            self._path().parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path().open("wb", buffering=0)
        begin = 0
        for size in sizes:
            self._slots.append((self._offset + begin, size))
            first = self._n_chunks * self.chunk
            step = self._piece if self._encode is None else self.chunk
            piece = step * self.width * self.dtype.itemsize if self._encode is None else size
            for at in range(begin, begin + size, piece):
                part = raw[at : min(at + piece, begin + size)]
                count = min(step, self.length - first)
                if count > 0:
                    offset = self._offset + at
                    self._records.append(
                        (first, offset, count, len(part), crc32c(part), self._n_files)
                    )
                first += step
            self._n_chunks += 1
            begin += size
        self._emit(raw)
        if len(self._slots) == self.shard_chunks:
            self._close()

    def _emit(self, raw: memoryview) -> None:
        """Append bytes to the current file."""
        done = 0
        while done < len(raw):
            done += self._file.write(raw[done:])
        self._crc = crc32c(raw, self._crc)
        self._offset += len(raw)

    def _close(self) -> None:
        """Complete, sync and close the current file, if any."""
        if self._file is None:
            return
        if self._ending is not None:
            self._emit(memoryview(self._ending(self._slots)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        key = self._key(self._n_files)
        self._close_file(key, self._path(), self._offset, self._crc)
        self._file, self._slots, self._offset, self._crc = None, [], 0, 0
        self._n_files += 1

    def _path(self) -> Path:
        """Path of the current file."""
        return self._root / self._key(self._n_files)

    def entry(self, coding: str, pages: list[list[int]]) -> ArrayEntry:
        """Describe the array for the manifest."""
        return ArrayEntry(
            dtype=self.dtype.name, length=self.length, width=self.width, coding=coding, pages=pages
        )


def table_pages(table: NDArray[np.void]) -> list[list[int]]:
    """(crc32c, first element, records) of each page of a chunk table."""
    pages = (table[at : at + PAGE_RECORDS] for at in range(0, len(table), PAGE_RECORDS))
    return [[crc32c(page.tobytes()), int(page["first"][0]), len(page)] for page in pages]
