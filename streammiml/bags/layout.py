"""What a store is: the names and types of its arrays, its manifest and its format version.

A store is a folder of data files in one of two backends, readable by anyone's zarr or pyarrow,
and a folder ``_streammiml`` beside them: the manifest, and a table of chunks for each array.
FORMAT.md is the same in words, for those who write stores with other programs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from streammiml.errors import StoreError

FORMAT_VERSION = 1
BACKENDS = ("zarr", "parquet")
FOLDER = "_streammiml"
MANIFEST = f"{FOLDER}/manifest.json"
# Under a URL: who is writing the store; there until it is complete.
OWNER = f"{FOLDER}/owner.json"
ROW_DTYPES = ("float32", "float16", "uint8", "int8", "int16")
CODECS = ("none", "lz4", "zstd")
MAX_FEATURES = 2**32

# Elements of the small arrays that one read fetches; rows and values follow a size in bytes.
INDEX_CHUNK = 8192
INDEX_PIECE = 1024
CHUNK_BYTES = 256 << 10
# Uncompressed chunks are checked in smaller pieces, so that a read need not fetch whole chunks.
PIECE_BYTES = 64 << 10

ARRAY_DTYPES = {
    "bag_offsets": "int64",
    "label_offsets": "int64",
    "label_indices": "int32",
    "row_labels": "int32",
    "bag_id_offsets": "int64",
    "bag_id_bytes": "uint8",
    "row_offsets": "int64",
    "columns": "uint32",
}
"""Arrays whose type is always the same; ``rows`` and ``values`` have the store's own."""

# One record a chunk: the elements it holds, where its bytes lie, and their crc32c.
RECORD = np.dtype(
    [
        ("first", "<i8"),
        ("offset", "<i8"),
        ("elements", "<u4"),
        ("nbytes", "<u4"),
        ("crc", "<u4"),
        ("file", "<u4"),
    ]
)
PAGE_RECORDS = 2048
RECORD_LIMIT = 2**32 - 1


def table_key(array: str) -> str:
    """Name of the file that holds an array's chunk records."""
    return f"{FOLDER}/chunks-{array}.bin"


def refuse_huge(where: str, nbytes: int, elements: int, instead: str) -> None:
    """Refuse a chunk that no record can describe; ``instead`` is what to write."""
    for count, what in ((nbytes, "bytes"), (elements, "elements")):
        if count > RECORD_LIMIT:
            raise StoreError(
                f"{where} has {count} {what}, more than {RECORD_LIMIT}; write {instead}"
            )


def array_names(*, sparse: bool, row_labels: bool, bag_ids: bool) -> list[str]:
    """Arrays of a store, in the order in which they are written."""
    names = ["bag_offsets", "label_offsets", "label_indices"]
    names += ["row_offsets", "columns", "values"] if sparse else ["rows"]
    names += ["row_labels"] if row_labels else []
    return names + (["bag_id_offsets", "bag_id_bytes"] if bag_ids else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayEntry:
    """One array as the manifest describes it."""

    dtype: str
    length: int
    """Elements along the first axis; a row of ``rows`` is one element."""
    width: int
    """Values in an element: the number of features for ``rows``, else 1."""
    coding: str
    """How chunk bytes become values: ``raw``, ``tail`` (values end the chunk), or a codec."""
    pages: list[list[int]]
    """(crc32c, first element, records) of each page of the table of chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The commit record of a store: it is complete if, and only if, this is there."""

    backend: str
    n_bags: int
    n_rows: int
    n_features: int
    n_labels: int
    dtype: str
    sparse: bool
    codec: str
    fingerprint: str
    longest_bag: int
    arrays: dict[str, ArrayEntry]
    files: list[list[Any]]
    """(key, bytes, crc32c) of every data file; chunk records name them by their place here."""
    metadata: dict[str, list[int]]
    """Where others are described (``zarr.json``, footers): key to (offset, bytes, crc32c)."""
    dropped_bags: int = 0
    format_version: int = field(default=FORMAT_VERSION)

    def to_bytes(self) -> bytes:
        """JSON that carries a checksum of itself."""
        body = {"format": "streammiml store", **asdict(self)}
        return _dump({**body, "checksum": _checksum(body)})

    @classmethod
    def from_bytes(cls, raw: bytes, name: str) -> Manifest:
        """Read and check a manifest; ``name`` is its store, for the message."""
        try:
            body = json.loads(raw)
            version = body.pop("format_version")
            checksum = body.pop("checksum")
            if body.pop("format") != "streammiml store" or not isinstance(version, int):
                raise KeyError("format")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StoreError(
                f"{name}/{MANIFEST} is damaged (not a manifest); convert or seal the store again"
            ) from None
        if version > FORMAT_VERSION:
            raise StoreError(
                f"{name} was written by store format {version}, this reads up to "
                f"{FORMAT_VERSION}; install a newer streammiml"
            )
        whole = {"format": "streammiml store", **body, "format_version": version}
        if checksum != _checksum(whole):
            raise StoreError(
                f"{name}/{MANIFEST} is damaged (checksum differs); convert or seal the store again"
            )
        try:
            arrays = {key: ArrayEntry(**entry) for key, entry in body.pop("arrays").items()}
            return cls(**body, arrays=arrays, format_version=version)
        except (KeyError, TypeError, AttributeError):
            raise StoreError(
                f"{name}/{MANIFEST} is damaged (fields are missing or unknown); "
                "convert or seal the store again"
            ) from None

    def contradiction(self) -> str:
        """What the counts say against each other, or nothing."""
        bags, rows = self.n_bags + 1, self.n_rows
        wanted = {"bag_offsets": bags, "label_offsets": bags, "bag_id_offsets": bags}
        wanted |= {"rows": rows, "row_labels": rows, "row_offsets": rows + 1}
        for name, entry in self.arrays.items():
            if entry.length != wanted.get(name, entry.length):
                return f"{name} has {entry.length} elements, expected {wanted[name]}"
        width = self.arrays["rows"].width if "rows" in self.arrays else self.n_features
        if width != self.n_features:
            return f"rows has {width} features, expected {self.n_features}"
        return ""


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(_dump(body)).hexdigest()
