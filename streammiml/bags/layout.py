"""The format of a store: names and types of its arrays, its manifest, its format version.

A store is a folder of data files that plain zarr or pyarrow can read, and a folder ``_streammiml``
with the manifest and a chunk table for each array. FORMAT.md explains the format to people who
write stores with other programs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from streammiml.bags.kept_columns import (
    KEPT_DTYPES,
    KeptColumn,
    column_name,
    columns_in,
    is_kept,
    is_offsets,
    name_problem,
)
from streammiml.errors import StoreError

FORMAT_VERSION = 1
KEPT_VERSION = 2
"""Version of stores with kept columns; all others have ``FORMAT_VERSION``."""
FOLDER = "_streammiml"
MANIFEST = f"{FOLDER}/manifest.json"
# Names the process that writes a store under a URL, until the store is complete.
OWNER = f"{FOLDER}/owner.json"
ROW_DTYPES = ("float32", "float16", "uint8", "int8", "int16")
CODECS = ("none", "lz4", "zstd")
MAX_FEATURES = 2**32

# Elements in a chunk, and in a piece of a chunk, of offsets, labels and ids.
INDEX_CHUNK = 8192
INDEX_PIECE = 1024
# Bytes of a chunk of rows, columns or values.
CHUNK_BYTES = 256 << 10
# Uncompressed chunks have a checksum for each piece, so that a read need not fetch full chunks.
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
"""Types of arrays, except ``rows`` and ``values``, which have the dtype of the store."""

# Record of one chunk: its elements, the position and number of its bytes, and their crc32c.
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
# Largest value of the 32-bit fields of a record.
RECORD_LIMIT = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFormat:
    """Names and codings of the files of one backend."""

    description: str
    """Key of the file that holds counts and names."""
    marker: str
    """Glob pattern of a file that every store of this backend has, and no other store."""
    codings: tuple[str, ...]
    """Permitted values of ``ArrayEntry.coding``."""
    offset_codings: tuple[str, ...]
    """Permitted values for arrays of offsets."""


_ZARR_CODINGS = ("raw", "blosc", "zstd", "gzip")
FORMATS = {
    "zarr": BackendFormat(
        description="zarr.json",
        marker="zarr.json",
        codings=_ZARR_CODINGS,
        offset_codings=_ZARR_CODINGS,
    ),
    "parquet": BackendFormat(
        description="_common_metadata",
        marker="*.parquet",
        codings=("tail", "arrow"),
        offset_codings=("raw",),
    ),
}
"""Formats by name of the backend, which is also the suffix of its stores."""
_CODINGS = [coding for form in FORMATS.values() for coding in (*form.offset_codings, *form.codings)]


def table_key(array: str) -> str:
    """Key of the chunk table of an array."""
    return f"{FOLDER}/chunks-{array}.bin"


def refuse_huge(where: str, nbytes: int, elements: int, instead: str) -> None:
    """Refuse a chunk that is too long for a record; ``instead`` says what to write instead."""
    for count, unit in ((nbytes, "bytes"), (elements, "elements")):
        if count > RECORD_LIMIT:
            raise StoreError(
                f"{where} has {count} {unit}, more than {RECORD_LIMIT}; write {instead}"
            )


def array_names(
    *, sparse: bool, row_labels: bool, bag_ids: bool, kept: Sequence[KeptColumn] = ()
) -> list[str]:
    """Names of the arrays of a store, in the order in which they are written."""
    names = ["bag_offsets", "label_offsets", "label_indices"]
    names += ["row_offsets", "columns", "values"] if sparse else ["rows"]
    names += ["row_labels"] if row_labels else []
    names += ["bag_id_offsets", "bag_id_bytes"] if bag_ids else []
    return names + [name for column in kept for name in column.arrays]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayEntry:
    """Description of one array in the manifest."""

    dtype: str
    length: int
    """Elements along the first axis; a row of ``rows`` is one element."""
    width: int
    """Values in an element: the number of features for ``rows``, 1 for most arrays."""
    coding: str
    """How chunks are coded: ``raw``, ``tail`` (values are the end of the chunk), or a codec."""
    pages: list[list[int]]
    """(crc32c, first element, records) of each page of the chunk table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The commit record of a store: a store is complete if, and only if, its manifest exists."""

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
    """(key, bytes, crc32c) of every data file; chunk records hold an index into this list."""
    metadata: dict[str, list[int]]
    """(offset, bytes, crc32c) of descriptions (``zarr.json``, Parquet footers), by key."""
    dropped_bags: int = 0
    """Number of empty bags that the writer left out."""
    format_version: int = field(default=FORMAT_VERSION)

    def to_bytes(self) -> bytes:
        """Serialise as JSON with a checksum."""
        body = {"format": "streammiml store", **asdict(self)}
        return _dump({**body, "checksum": _checksum(body)})

    @classmethod
    def from_bytes(cls, raw: bytes, name: str) -> Manifest:
        """Parse and check a manifest; ``name`` is the name of its store, for messages."""
        try:
            body = json.loads(raw)
            version = body.pop("format_version")
            checksum = body.pop("checksum")
            if body.pop("format") != "streammiml store" or type(version) is not int:
                raise KeyError("format")
            # Serialised here, where errors are caught: a deeply nested body may fail.
            _checksum(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StoreError(
                f"{name}/{MANIFEST} is damaged (not a manifest); convert or seal the store again"
            ) from None
        if version > KEPT_VERSION:
            raise StoreError(
                f"{name} was written by store format {version}, this reads up to "
                f"{KEPT_VERSION}; install a newer streammiml"
            )
        checksummed = {"format": "streammiml store", **body, "format_version": version}
        if checksum != _checksum(checksummed):
            raise StoreError(
                f"{name}/{MANIFEST} is damaged (checksum differs); convert or seal the store again"
            )
        problem = next(_problems(body), "")
        if problem:
            raise StoreError(
                f"{name}/{MANIFEST} is damaged ({problem}); convert or seal the store again"
            )
        arrays = {key: ArrayEntry(**entry) for key, entry in body.pop("arrays").items()}
        return cls(**body, arrays=arrays, format_version=version)

    @property
    def kept(self) -> tuple[KeptColumn, ...]:
        """The kept columns, by name."""
        return columns_in({name: (e.dtype, e.width) for name, e in self.arrays.items()})

    def contradiction(self) -> str:
        """First contradiction between fields; empty if there is none."""
        return next(self._contradictions(), "")

    def _contradictions(self) -> Iterator[str]:
        backend_format = FORMATS[self.backend]
        bags, rows = self.n_bags + 1, self.n_rows
        lengths = {"bag_offsets": bags, "label_offsets": bags, "bag_id_offsets": bags}
        lengths |= {"rows": rows, "row_labels": rows, "row_offsets": rows + 1}
        kept = self.kept
        names = array_names(
            sparse=self.sparse,
            row_labels="row_labels" in self.arrays,
            bag_ids="bag_id_bytes" in self.arrays,
            kept=kept,
        )
        if set(names) != set(self.arrays):
            yield f"it has the arrays {', '.join(self.arrays)}, expected {', '.join(names)}"
            return
        if self.sparse:
            lengths["columns"] = self.arrays["values"].length
        types = {name: kind for column in kept for name, kind in column.arrays.items()}
        lengths |= {column.values: rows for column in kept if column.offsets is None}
        lengths |= {column.offsets: rows + 1 for column in kept if column.offsets is not None}
        if len({column.name for column in kept}) < len(kept):
            yield "two kept columns have the same name"
        if bool(kept) != (self.format_version == KEPT_VERSION):
            has = "kept columns" if kept else "no kept columns"
            yield f"it has {has} and format_version {self.format_version}"
        for name, entry in self.arrays.items():
            if entry.length != lengths.get(name, entry.length):
                yield f"{name} has {entry.length} elements, expected {lengths[name]}"
            width = self.n_features if name == "rows" else types.get(name, ("", 1))[1]
            if entry.width != width:
                yield f"{name} has {entry.width} features, expected {width}"
            dtype = types[name][0] if name in types else ARRAY_DTYPES.get(name, self.dtype)
            if entry.dtype != dtype:
                yield f"{name} holds {entry.dtype}, expected {dtype}"
            codings = backend_format.offset_codings if is_offsets(name) else backend_format.codings
            if entry.coding not in codings:
                yield f"{name} is coded as {entry.coding}, expected {' or '.join(codings)}"
            yield from _page_problems(name, entry)
        if self.n_rows < self.n_bags:
            yield f"{self.n_bags} bags have {self.n_rows} rows, expected at least one in each bag"
        described = [backend_format.description]
        described += [key for key, _, _ in self.files if key.endswith(".parquet")]
        missing = [key for key in described if key not in self.metadata]
        if missing:
            yield f"the description of {missing[0]} is not listed"


def _page_problems(name: str, entry: ArrayEntry) -> Iterator[str]:
    """Yield contradictions between the pages of a chunk table."""
    firsts = [first for _, first, _ in entry.pages]
    if bool(firsts) != bool(entry.length):
        yield f"{name} has {entry.length} elements on {len(firsts)} pages"
    elif firsts and (firsts[0] or firsts[-1] >= entry.length):
        yield (
            f"pages of {name} begin at elements {firsts[0]} to {firsts[-1]}, expected 0 to at most "
            f"{entry.length - 1}"
        )
    elif any(after <= before for before, after in pairwise(firsts)):
        yield f"pages of {name} are not in rising order"


# Checks of the fields of a manifest. All code after parsing relies on them.

# Limit of all counts: no disk holds more, and sums of a few such counts fit into 64 bits.
MOST = 2**53
# Largest crc32c.
CRC = 2**32 - 1
# The length of a Parquet footer has 32 bits; metadata of Zarr is far smaller.
LONGEST_DESCRIPTION = 2**31 - 1
# A relative path with slashes, without "." and ".." as names. Lone surrogates are excluded: they
# are valid in JSON, but not in file names.
_PATH = re.compile(r"(?:(?!\.\.?(?:/|\Z))[^/\\\0\ud800-\udfff]+(?:/(?!\Z)|\Z))+")

Expected = Callable[[Any], str]
"""Returns "" for a valid value, else words for what the value must be."""


def _number(least: int, most: int) -> Expected:
    def expected(value: Any) -> str:
        # Not isinstance, because True is an instance of int.
        right = type(value) is int and least <= value <= most
        return "" if right else f"a whole number from {least} to {most}"

    return expected


def _one_of(*known: str) -> Expected:
    return lambda value: "" if value in known else f"one of {', '.join(known)}"


def _boolean(value: Any) -> str:
    return "" if type(value) is bool else "true or false"


def _hexadecimal(value: Any) -> str:
    right = isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value)
    return "" if right else "32 hexadecimal digits"


def _path(value: Any) -> str:
    right = isinstance(value, str) and _PATH.fullmatch(value)
    return "" if right else "a path inside the store"


def _listed(expected: Expected) -> Expected:
    """Expect a list in which every item is as ``expected``."""

    def expected_list(value: Any) -> str:
        if not isinstance(value, list):
            return "a list"
        wrong = next(filter(None, map(expected, value)), "")
        return f"a list, each item {wrong}" if wrong else ""

    return expected_list


def _tuple(*items: Expected) -> Expected:
    """Expect a list of fixed length with one expectation for each item."""

    def expected_tuple(value: Any) -> str:
        if not isinstance(value, list) or len(value) != len(items):
            return f"a list of {len(items)} items"
        wrong = (expected(item) for expected, item in zip(items, value, strict=True))
        words = next(filter(None, wrong), "")
        return f"a list of {len(items)} items, one of them {words}" if words else ""

    return expected_tuple


def _mapping(key: Expected, item: Expected) -> Expected:
    """Expect an object with one expectation for its keys and one for its values."""

    def expected_object(value: Any) -> str:
        if not isinstance(value, dict):
            return "an object"
        wrong = (key(name) or item(value[name]) for name in value)
        words = next(filter(None, wrong), "")
        return f"an object, each entry {words}" if words else ""

    return expected_object


def _array_name(name: Any) -> str:
    if is_kept(name):
        return "the name of an array" if name_problem(column_name(name)) else ""
    return _KNOWN_ARRAY(name)


_KNOWN_ARRAY = _one_of(*ARRAY_DTYPES, "rows", "values")


_COUNT, _CRC = _number(0, MOST), _number(0, CRC)
ENTRY_FIELDS: dict[str, Expected] = {
    "dtype": _one_of(
        *dict.fromkeys((*ROW_DTYPES, *ARRAY_DTYPES.values(), *KEPT_DTYPES[:-1])),
    ),
    "length": _COUNT,
    "width": _number(1, MAX_FEATURES),
    "coding": _one_of(*dict.fromkeys(_CODINGS)),
    "pages": _listed(_tuple(_CRC, _COUNT, _number(1, PAGE_RECORDS))),
}
"""Expectation for each field of the entry of an array."""


MANIFEST_FIELDS: dict[str, Expected] = {
    "backend": _one_of(*FORMATS),
    "n_bags": _number(1, MOST),
    "n_rows": _number(1, MOST),
    "n_features": _number(1, MAX_FEATURES),
    "n_labels": _number(0, 2**31 - 1),
    "dtype": _one_of(*ROW_DTYPES),
    "sparse": _boolean,
    "codec": _one_of(*CODECS),
    "fingerprint": _hexadecimal,
    "longest_bag": _COUNT,
    "dropped_bags": _COUNT,
    "files": _listed(_tuple(_path, _COUNT, _CRC)),
    "metadata": _mapping(_path, _tuple(_COUNT, _number(0, LONGEST_DESCRIPTION), _CRC)),
    "arrays": _mapping(
        _array_name,
        lambda value: "" if isinstance(value, dict) else "an object",
    ),
}
"""Expectation for each field of a manifest; ``ENTRY_FIELDS`` is for entries of ``arrays``."""


def _problems(body: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the fields of a manifest."""
    yield from _field_problems("", body, MANIFEST_FIELDS, optional={"dropped_bags"})
    for name, entry in body["arrays"].items():
        yield from _field_problems(f"{name}: ", entry, ENTRY_FIELDS)


def _field_problems(
    where: str,
    fields: dict[str, Any],
    table: dict[str, Expected],
    optional: frozenset[str] | set[str] = frozenset(),
) -> Iterator[str]:
    if not set(table) - optional <= set(fields) <= set(table):
        yield f"{where}fields are missing or unknown"
        return
    for name, value in fields.items():
        words = table[name](value)
        if words:
            yield f"{where}{name} is {value!r:.60}, expected {words}"


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(_dump(body)).hexdigest()
