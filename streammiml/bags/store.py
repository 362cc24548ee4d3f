"""``open_store``: a read-only store, or several as one; what is read of it has been checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.chunks import (
    CachedArray,
    ChunkTable,
    Ranges,
    VerifiedArray,
    damaged,
    tried_twice,
)
from streammiml.bags.layout import FOLDER, MANIFEST, OWNER, Manifest
from streammiml.bags.parts import split_names
from streammiml.bags.place import LocalPlace, Place, Unreadable, open_place
from streammiml.bags.views import I64, Bags, JoinedStore
from streammiml.errors import StoreError

# Descriptions (zarr.json, footers) checked at open; a footer beyond is checked at its first use.
CHECKED_AT_OPEN = 4096
# Under a URL a look at one takes two requests.
CHECKED_AFAR = 16


class BagStore(Bags):
    """A store on disk or under a URL; see :class:`Bags` for what it can do."""

    def __init__(self, place: Place, manifest: Manifest) -> None:
        self.place, self.manifest = place, manifest
        self.name = place.name
        self.n_bags, self.n_features = manifest.n_bags, manifest.n_features
        self.n_labels, self.dtype, self.sparse = manifest.n_labels, manifest.dtype, manifest.sparse
        self.fingerprint = manifest.fingerprint
        self.has_row_labels = "row_labels" in manifest.arrays
        self.has_bag_ids = "bag_id_bytes" in manifest.arrays
        backend = backend_module(manifest)
        decoders = backend.decoders(place, manifest)
        self._arrays = {
            name: self._array(name, place, name, entry, manifest.files, decoders[name])
            for name, entry in manifest.arrays.items()
        }
        for array in self._arrays.values():
            array.unpackers = backend.unpackers

    def _array(self, name: str, *args: Any) -> VerifiedArray:
        """Rows are read once and let go; of everything else the last chunks are kept."""
        if name in ("rows", "values", "columns"):
            return VerifiedArray(*args)
        if name.endswith("_offsets"):
            return CachedArray(*args, inspect=partial(self._check_rising, name), joints=True)
        if name in ("label_indices", "row_labels"):
            return CachedArray(*args, inspect=partial(self._check_labels, name))
        return CachedArray(*args, inspect=lambda _: None)

    @property
    def n_rows(self) -> int:
        """Rows of all bags."""
        return self.manifest.n_rows

    @property
    def n_label_entries(self) -> int:
        """Labels of all bags, added up."""
        return len(self._arrays["label_indices"])

    @property
    def n_values(self) -> int:
        """Stored values of all rows."""
        return len(self._arrays["values"]) if self.sparse else self.n_rows * self.n_features

    @cached_property
    def _said(self) -> dict[str, Any]:
        return dict(backend_module(self.manifest).attributes(self.place, self.manifest))

    @cached_property
    def label_names(self) -> list[str] | None:  # type: ignore[override]
        """Names of the labels, or None."""
        return self._said.get("label_names")

    @cached_property
    def feature_names(self) -> list[str] | None:  # type: ignore[override]
        """Names of the features, or None."""
        return self._said.get("feature_names")

    def read(self, start: int, stop: int, *, row_labels: bool = True) -> BagBlock:
        """Read bags ``start`` to ``stop``; see :meth:`Bags.read`."""
        self._check_range(start, stop)
        offsets = self._offsets("bag_offsets", start, stop, self.n_rows)
        first, last = int(offsets[0]), int(offsets[-1])
        label_offsets, labels = self._labels(start, stop)
        of_rows = None
        if self.has_row_labels and row_labels:
            of_rows = self._arrays["row_labels"].read(first, last).copy()
        return BagBlock(offsets - first, self._rows(first, last), label_offsets, labels, of_rows)

    def read_ranges(self, ranges: Ranges) -> list[BagBlock]:
        """Bags of each range; see :meth:`Bags.read_ranges`."""
        for each in ranges:
            self._check_range(*each)
        offsets = [self._offsets("bag_offsets", *each, self.n_rows) for each in ranges]
        rows = self._rows_of([(int(of[0]), int(of[-1])) for of in offsets])
        return [
            BagBlock(of - of[0], found, *self._labels(*each))
            for each, of, found in zip(ranges, offsets, rows, strict=True)
        ]

    def _rows_of(self, ranges: Ranges) -> Sequence[NDArray[Any] | SparseRows]:
        if not self.sparse:
            return self._arrays["rows"].read_many(ranges)
        ends = [self._offsets("row_offsets", *each, self.n_values) for each in ranges]
        spans = [(int(of[0]), int(of[-1])) for of in ends]
        columns = self._arrays["columns"].read_many(spans)
        values = self._arrays["values"].read_many(spans)
        for found in columns:
            self._check_columns(found)
        return [
            SparseRows(of - of[0], of_columns, of_values, self.n_features)
            for of, of_columns, of_values in zip(ends, columns, values, strict=True)
        ]

    def bag_sizes(self, start: int, stop: int) -> I64:
        """Rows of each bag, without reading rows."""
        self._check_range(start, stop)
        return np.diff(self._offsets("bag_offsets", start, stop, self.n_rows))

    def bag_values(self, start: int, stop: int) -> I64:
        """Stored values of each bag, without reading them."""
        if not self.sparse:
            return super().bag_values(start, stop)
        self._check_range(start, stop)
        rows = self._offsets("bag_offsets", start, stop, self.n_rows)
        ends = self._offsets("row_offsets", int(rows[0]), int(rows[-1]), self.n_values)
        found: I64 = np.diff(ends[rows - rows[0]])
        return found

    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices, without reading rows."""
        self._check_range(start, stop)
        return self._labels(start, stop)

    def _labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        offsets = self._offsets("label_offsets", start, stop, self.n_label_entries)
        labels = self._arrays["label_indices"].read(int(offsets[0]), int(offsets[-1]))
        # A copy: what a caller does to it must not reach the chunks that are kept.
        return offsets - offsets[0], labels.copy()

    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Names of bags; their numbers as text where the store has none."""
        self._check_range(start, stop)
        if not self.has_bag_ids:
            return [str(i) for i in range(start, stop)]
        raw = self._arrays["bag_id_bytes"]
        offsets = self._offsets("bag_id_offsets", start, stop, len(raw))
        names = raw.read(int(offsets[0]), int(offsets[-1]))
        try:
            return split_names(offsets - offsets[0], names)
        except UnicodeDecodeError:
            raise damaged(self.place, "bag_id_bytes", "is no text in UTF-8") from None

    def _rows(self, first: int, last: int) -> NDArray[Any] | SparseRows:
        if not self.sparse:
            return self._arrays["rows"].read(first, last)
        values, columns = self._arrays["values"], self._arrays["columns"]
        offsets = self._offsets("row_offsets", first, last, len(values))
        start, stop = int(offsets[0]), int(offsets[-1])
        found = columns.read(start, stop)
        self._check_columns(found)
        return SparseRows(offsets - start, found, values.read(start, stop), self.n_features)

    def _check_columns(self, columns: NDArray[Any]) -> None:
        if len(columns) and int(columns.max()) >= self.n_features:
            what = f"names feature {columns.max()} of {self.n_features}"
            raise damaged(self.place, "columns", what)

    def _offsets(self, name: str, start: int, stop: int, end: int) -> I64:
        """Offsets of a range; checked, since everything that is read follows them."""
        array = self._arrays[name]
        offsets = array.read(start, stop + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        lies = first < 0 or last > end or (start == 0 and first != 0)
        if lies or (stop == len(array) - 1 and last != end):
            what = f"lies: offsets {start} to {stop} are {first} to {last} of {end}"
            raise damaged(self.place, name, what)
        return offsets

    def _check_rising(self, name: str, offsets: I64) -> None:
        if len(offsets) > 1 and not bool((offsets[1:] >= offsets[:-1]).all()):
            at = int((offsets[1:] < offsets[:-1]).argmax())
            raise damaged(self.place, name, f"lies: offsets fall from {offsets[at]} on")

    def _check_labels(self, name: str, labels: NDArray[Any]) -> None:
        lowest = -1 if name == "row_labels" else 0
        if len(labels) and not (lowest <= labels.min() and labels.max() < self.n_labels):
            wrong = labels.max() if labels.max() >= self.n_labels else labels.min()
            kind = "row label" if name == "row_labels" else "label"
            raise StoreError(
                f"{self.name}: {kind} {wrong} is outside {lowest} to {self.n_labels - 1}; "
                "convert the source again"
            )

    def tables(self) -> list[ChunkTable]:
        """Tables of chunks, one an array."""
        return [array.table for array in self._arrays.values()]

    def check(self) -> list[str]:
        """Read and check every file and every chunk; a line for each file that is wrong."""
        # Loaded late: checking compiles the fingerprint's kernels, opening must not.
        return list(import_module("streammiml.bags.audit").problems(self))


def backend_module(manifest: Manifest) -> Any:
    """The module that reads a backend; loaded late, so that Zarr users never load pyarrow."""
    return import_module(f"streammiml.bags.{manifest.backend}_rows")


def metadata_problem(place: Place, key: str, entry: list[int]) -> str:
    """What is wrong with a file that describes others, or with a Parquet footer."""
    offset, size, crc = entry
    raw = bytearray(size)

    def attempt() -> str:
        whole = place.size(key)
        if whole is None:
            return "is missing"
        if whole != offset + size:
            return f"has {whole} bytes, expected {offset + size}"
        place.read_into(key, offset, memoryview(raw))
        return "" if crc32c(raw) == crc else "is damaged or was edited: it fails its checksum"

    return tried_twice(place, attempt)


def open_store(where: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Bags:
    """Open a store by path or URL, or several as one; nothing but its description is read."""
    if not isinstance(where, str | os.PathLike):
        stores = [open_one(each) for each in where]
        if not stores:
            raise StoreError("no store was named")
        return stores[0] if len(stores) == 1 else JoinedStore(stores)
    return open_one(where)


def open_one(where: str | os.PathLike[str]) -> BagStore:
    """Open one store through its manifest, and check what describes it."""
    place = open_place(where)
    manifest = _manifest(place)
    if manifest.contradiction():
        raise damaged(place, MANIFEST, f"contradicts itself: {manifest.contradiction()}")
    checked = CHECKED_AT_OPEN if isinstance(place, LocalPlace) else CHECKED_AFAR
    for key, entry in islice(manifest.metadata.items(), checked):
        problem = metadata_problem(place, key, entry)
        if problem:
            raise damaged(place, key, problem)
    if isinstance(place, LocalPlace):
        place.expect(sum(size for _, size, _ in manifest.files))
    return BagStore(place, manifest)


def _manifest(place: Place) -> Manifest:
    """The manifest of a store; what is wrong with it at first may be mended by reading again."""
    try:
        raw = place.read_all(MANIFEST)
    except Unreadable:
        raw = b""
    try:
        return Manifest.from_bytes(raw, place.name)
    except StoreError:
        place.forget()
    try:
        return Manifest.from_bytes(place.read_all(MANIFEST), place.name)
    except Unreadable as error:
        raise _no_store(place, str(error)) from None


def _no_store(place: Place, why: str) -> StoreError:
    name = place.name
    if why != "is missing":
        return StoreError(f"{name}/{MANIFEST} {why}")
    if isinstance(place, LocalPlace):
        path = place.path
        staging = staging_of(path)
        if staging.exists():
            return StoreError(f"{name} is unfinished; run streammiml convert again to finish it")
        if not path.exists():
            return StoreError(f"{name} does not exist")
        if (path / "zarr.json").exists() or any(path.glob("*.parquet")):
            return StoreError(f"{name} has no {FOLDER}; run streammiml seal {name} to complete it")
    elif place.size(OWNER) is not None:
        return StoreError(f"{name} is unfinished; run streammiml convert again to finish it")
    return StoreError(f"{name} is no store: it has no {MANIFEST}")


def staging_of(path: Path) -> Path:
    """The hidden folder beside a store in which it is written."""
    return path.parent / f".{path.name}.partial"
