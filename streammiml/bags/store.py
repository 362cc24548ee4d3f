"""``open_store``: open a store, or several as one; all bytes are checked when they are read."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from copy import copy
from functools import cached_property, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.backends import BACKENDS
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.file_errors import MissingFile, Unreadable
from streammiml.bags.ids import split_names
from streammiml.bags.kept_columns import Kept, decoded, is_kept, is_offsets
from streammiml.bags.layout import FOLDER, FORMATS, MANIFEST, OWNER, Manifest
from streammiml.bags.location import LocalFolder, Location, open_location
from streammiml.bags.offsets import from_sizes
from streammiml.bags.range_group import Located, RangeGroup, SparseGroup
from streammiml.bags.staging import staging_of
from streammiml.bags.verified_array import (
    CachedArray,
    ChunkTable,
    Ranges,
    VerifiedArray,
    damaged,
    description_problem,
)
from streammiml.bags.views import I64, Bags, JoinedStore, derived
from streammiml.errors import StoreError

# Number of descriptions (zarr.json, footers) that are checked at open; other footers are checked
# at their first use.
CHECKED_AT_OPEN = 4096
# The same for a store under a URL, where each check takes two requests.
CHECKED_AFAR = 16


class BagStore(Bags):
    """A store on disk or under a URL; :class:`Bags` explains its methods."""

    def __init__(self, location: Location, manifest: Manifest) -> None:
        self.location, self.manifest = location, manifest
        self.name = location.name
        self.n_bags, self.n_features = manifest.n_bags, manifest.n_features
        self.n_labels, self.dtype, self.sparse = manifest.n_labels, manifest.dtype, manifest.sparse
        self.fingerprint = manifest.fingerprint
        self.has_row_labels = "row_labels" in manifest.arrays
        self.has_bag_ids = "bag_id_bytes" in manifest.arrays
        self.kept_columns = manifest.kept
        backend = BACKENDS[manifest.backend].reader()
        decoders = backend.decoders(location, manifest)
        self._arrays = {
            name: self._array(name, location, name, entry, manifest.files, decoders[name])
            for name, entry in manifest.arrays.items()
        }
        for array in self._arrays.values():
            array.unpackers = backend.unpackers

    def _array(self, name: str, *args: Any) -> VerifiedArray:
        """Choose the class of an array: rows, columns, values and kept values are not cached."""
        if is_offsets(name):
            return CachedArray(*args, inspect=partial(self._check_rising, name), joints=True)
        if name in ("rows", "values", "columns") or is_kept(name):
            return VerifiedArray(*args)
        if name in ("label_indices", "row_labels"):
            return CachedArray(*args, inspect=partial(self._check_labels, name))
        return CachedArray(*args, inspect=lambda _: None)

    @property
    def n_rows(self) -> int:
        """Number of rows of all bags."""
        return self.manifest.n_rows

    @property
    def n_label_entries(self) -> int:
        """Number of labels of all bags, added up."""
        return len(self._arrays["label_indices"])

    @property
    def n_values(self) -> int:
        """Number of stored values of all rows."""
        return len(self._arrays["values"]) if self.sparse else self.n_rows * self.n_features

    @cached_property
    def _attributes(self) -> dict[str, Any]:
        """Attributes of the store; names of labels and features are checked."""
        backend = BACKENDS[self.manifest.backend].reader()
        try:
            attributes = dict(backend.attributes(self.location, self.manifest))
        except StoreError:
            raise
        # Raised for invalid JSON, for JSON of another structure, and for invalid Parquet.
        except (ValueError, TypeError, AttributeError, LookupError, RuntimeError, OSError) as error:
            raise self._misdescribed(f"cannot be understood ({type(error).__name__})") from None
        for key, count in (("label_names", self.n_labels), ("feature_names", self.n_features)):
            names = attributes.get(key)
            if names is None:
                continue
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise self._misdescribed(
                    f"is invalid: {key} must be a list of texts, or be left out"
                )
            if len(names) != count:
                raise self._misdescribed(f"is invalid: it has {len(names)} {key}, expected {count}")
        return attributes

    def _misdescribed(self, problem: str) -> StoreError:
        return damaged(self.location, FORMATS[self.manifest.backend].description, problem)

    @cached_property
    def label_names(self) -> list[str] | None:  # type: ignore[override]
        """Names of the labels, or None."""
        return self._attributes.get("label_names")

    @cached_property
    def feature_names(self) -> list[str] | None:  # type: ignore[override]
        """Names of the features, or None."""
        return self._attributes.get("feature_names")

    def read(
        self, start: int, stop: int, *, row_labels: bool = True, kept: bool = True
    ) -> BagBlock:
        """Read bags ``start`` to ``stop``; see :meth:`Bags.read`."""
        self._check_range(start, stop)
        offsets = self._offsets("bag_offsets", start, stop, self.n_rows)
        first, last = int(offsets[0]), int(offsets[-1])
        label_offsets, labels = self._labels(start, stop)
        labels_of_rows = None
        if self.has_row_labels and row_labels:
            labels_of_rows = self._arrays["row_labels"].read(first, last).copy()
        rows = self._rows(first, last)
        values = self._kept(first, last) if kept else {}
        return BagBlock(offsets - first, rows, label_offsets, labels, labels_of_rows, kept=values)

    @property
    def reads_in_place(self) -> bool:
        """Whether values are stored as they are in memory, on a local disk."""
        values = self._arrays["values" if self.sparse else "rows"]
        return values.entry.coding == "raw" and isinstance(self.location, LocalFolder)

    def read_ranges(self, ranges: Ranges) -> RangeGroup:
        """Bags of several ranges; see :meth:`Bags.read_ranges`."""
        for bags in ranges:
            self._check_range(*bags)
        starts, stops = np.array(ranges, np.int64).T
        bag_offsets, first_rows, n_rows = self._offset_group(
            "bag_offsets", starts, stops, self.n_rows
        )
        label_offsets, first_labels, n_labels = self._offset_group(
            "label_offsets", starts, stops, self.n_label_entries
        )
        labels = self._cached("label_indices").gather(first_labels, n_labels)
        self._check_labels("label_indices", labels)
        n_bags = stops - starts
        return RangeGroup(
            n_bags,
            bag_offsets,
            self._sparse_group(first_rows, n_rows, bag_offsets, n_bags)
            if self.sparse
            else self._arrays["rows"].locate(_pairs(first_rows, n_rows)),
            label_offsets,
            Located.of_parts(labels, n_labels),
        )

    def _sparse_group(
        self, first_rows: I64, n_rows: I64, bag_offsets: I64, n_bags: I64
    ) -> SparseGroup:
        """Read ranges of sparse rows, which hold the bags of a group."""
        row_offsets, first_values, n_values = self._offset_group(
            "row_offsets", first_rows, first_rows + n_rows, self.n_values
        )
        spans = _pairs(first_values, n_values)
        columns = self._arrays["columns"].read_many(spans)
        for array in columns:
            self._check_columns(array)
        # A range has one offset more than rows; the difference between two ranges is dropped.
        begins = from_sizes(n_rows + 1)
        lengths = np.delete(np.diff(row_offsets), begins[1:-1] - 1)
        value_offsets = row_offsets[bag_offsets + np.repeat(begins[:-1], n_bags + 1)]
        return SparseGroup(
            Located.of_parts(lengths, n_rows),
            Located.of_arrays(columns),
            self._arrays["values"].locate(spans),
            value_offsets,
        )

    def _cached(self, name: str) -> CachedArray:
        array = self._arrays[name]
        assert isinstance(array, CachedArray), "all arrays but rows, columns and values are cached"
        return array

    def _offset_group(self, name: str, starts: I64, stops: I64, end: int) -> tuple[I64, I64, I64]:
        """Read and check offsets ``starts`` to ``stops``, which divide an array of length ``end``.

        Returns the offsets in the form of :class:`RangeGroup`. Also returns, for each range, its
        first element of the divided array and its number of elements.
        """
        array, n_offsets = self._cached(name), stops - starts + 1
        offsets, bounds = array.gather(starts, n_offsets), from_sizes(n_offsets)
        firsts, lasts = offsets[bounds[:-1]], offsets[bounds[1:] - 1]
        # Compared, not subtracted: a difference of 64-bit integers may overflow.
        falls = offsets[1:] < offsets[:-1]
        falls[bounds[1:-1] - 1] = False
        if falls.any():
            for part in np.split(offsets, bounds[1:-1]):
                self._check_rising(name, part)
        is_wrong = (firsts < 0) | (lasts > end) | ((starts == 0) & (firsts != 0))
        is_wrong |= (stops == len(array) - 1) & (lasts != end)
        for i in np.flatnonzero(is_wrong).tolist():
            start, stop, first, last = (int(x[i]) for x in (starts, stops, firsts, lasts))
            self._check_bounds(name, start, stop, first, last, end)
        return offsets - np.repeat(firsts, n_offsets), firsts, lasts - firsts

    def bag_sizes(self, start: int, stop: int) -> I64:
        """Number of rows of each bag, without reading rows."""
        self._check_range(start, stop)
        return np.diff(self._offsets("bag_offsets", start, stop, self.n_rows))

    def bag_values(self, start: int, stop: int) -> I64:
        """Number of stored values of each bag, without reading the values."""
        if not self.sparse:
            return super().bag_values(start, stop)
        self._check_range(start, stop)
        rows = self._offsets("bag_offsets", start, stop, self.n_rows)
        ends = self._offsets("row_offsets", int(rows[0]), int(rows[-1]), self.n_values)
        n_values: I64 = np.diff(ends[rows - rows[0]])
        return n_values

    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices, without reading rows."""
        self._check_range(start, stop)
        return self._labels(start, stop)

    def _labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        offsets = self._offsets("label_offsets", start, stop, self.n_label_entries)
        labels = self._arrays["label_indices"].read(int(offsets[0]), int(offsets[-1]))
        # A copy, so that callers cannot change the cached chunks.
        return offsets - offsets[0], labels.copy()

    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Ids of bags; their numbers as text if the store has no ids."""
        self._check_range(start, stop)
        if not self.has_bag_ids:
            return [str(i) for i in range(start, stop)]
        raw = self._arrays["bag_id_bytes"]
        offsets = self._offsets("bag_id_offsets", start, stop, len(raw))
        names = raw.read(int(offsets[0]), int(offsets[-1]))
        try:
            return split_names(offsets - offsets[0], names)
        except UnicodeDecodeError:
            raise damaged(self.location, "bag_id_bytes", "is not UTF-8 text") from None

    def kept(self, start: int, stop: int, names: Container[str] | None = None) -> Kept:
        """Values of kept columns; see :meth:`Bags.kept`."""
        self._check_range(start, stop)
        rows = self._offsets("bag_offsets", start, stop, self.n_rows)
        return self._kept(int(rows[0]), int(rows[-1]), names)

    def _kept(self, first: int, last: int, names: Container[str] | None = None) -> Kept:
        """Values of kept columns for rows ``first`` to ``last``."""
        kept: Kept = {}
        for column in self.kept_columns:
            if names is not None and column.name not in names:
                continue
            values = self._arrays[column.values]
            if column.offsets is None:
                kept[column.name] = values.read(first, last)
                continue
            offsets = self._offsets(column.offsets, first, last, len(values))
            raw = values.read(int(offsets[0]), int(offsets[-1]))
            try:
                kept[column.name] = decoded(offsets - offsets[0], raw)
            except UnicodeDecodeError:
                raise damaged(self.location, column.values, "is not UTF-8 text") from None
        return kept

    def _rows(self, first: int, last: int) -> NDArray[Any] | SparseRows:
        if not self.sparse:
            return self._arrays["rows"].read(first, last)
        values, columns = self._arrays["values"], self._arrays["columns"]
        offsets = self._offsets("row_offsets", first, last, len(values))
        start, stop = int(offsets[0]), int(offsets[-1])
        columns_read = columns.read(start, stop)
        self._check_columns(columns_read)
        return SparseRows(offsets - start, columns_read, values.read(start, stop), self.n_features)

    def _check_columns(self, columns: NDArray[Any]) -> None:
        if len(columns) and int(columns.max()) >= self.n_features:
            problem = (
                f"is invalid: it has feature {columns.max()}, expected below {self.n_features}"
            )
            raise damaged(self.location, "columns", problem)

    def _offsets(self, name: str, start: int, stop: int, end: int) -> I64:
        """Read and check a range of offsets, which divide an array of length ``end``."""
        offsets = self._arrays[name].read(start, stop + 1)
        self._check_bounds(name, start, stop, int(offsets[0]), int(offsets[-1]), end)
        return offsets

    def _check_bounds(
        self, name: str, start: int, stop: int, first: int, last: int, end: int
    ) -> None:
        """Check the values of offsets ``start`` and ``stop``; the last of all must be ``end``."""
        is_outside = first < 0 or last > end
        begins_late = start == 0 and first != 0
        ends_early = last != end and stop == len(self._arrays[name]) - 1
        if is_outside or begins_late or ends_early:
            problem = f"is invalid: offsets {start} to {stop} are {first} to {last} of {end}"
            raise damaged(self.location, name, problem)

    def _check_rising(self, name: str, offsets: I64) -> None:
        if len(offsets) > 1 and not bool((offsets[1:] >= offsets[:-1]).all()):
            at = int((offsets[1:] < offsets[:-1]).argmax())
            raise damaged(self.location, name, f"is invalid: offsets fall after {offsets[at]}")

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
        """Chunk table of each array."""
        return [array.table for array in self._arrays.values()]

    @property
    def kept_digest(self) -> str:
        """See :attr:`Bags.kept_digest`; computed from the checksums in the manifest."""
        arrays = sorted(self.manifest.arrays.items())
        return derived(*(f"{name} {entry.pages}" for name, entry in arrays if is_kept(name)))

    def reopened(self) -> BagStore:
        """Open the store again, with files, caches and locks of its own."""
        return _reopen(self.location, self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.location, self.fingerprint)

    def check(self) -> list[str]:
        """Read and check every file and every chunk; return a line for each problem."""
        # Loaded late: the fingerprint needs a compiler, which opening must not load.
        verify = import_module("streammiml.bags.verify")
        return list(verify.problems(self, self.manifest, self.location, self.tables()))


def _pairs(starts: I64, lengths: I64) -> list[tuple[int, int]]:
    """Ranges as pairs of start and stop."""
    return list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))


def open_store(where: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Bags:
    """Open a store by path or URL, or several as one; no data is read yet."""
    if not isinstance(where, str | os.PathLike):
        _refuse_tables(where)
        stores = [open_one(path) for path in where]
        if not stores:
            raise StoreError("no store was named")
        return stores[0] if len(stores) == 1 else JoinedStore(stores)
    return open_one(where)


def _refuse_tables(where: object) -> None:
    """Refuse what is no path, such as a table, before its columns are taken for paths."""
    is_paths = isinstance(where, list | tuple) and all(
        isinstance(path, str | os.PathLike) for path in where
    )
    if is_paths:
        return
    if hasattr(where, "columns"):
        raise StoreError(
            "a table is no store; write its bags to one first: "
            "sm.convert(table, 'corpus.zarr', bag='doc_id', labels='labels')"
        )
    if hasattr(where, "__dask_graph__"):
        raise StoreError(
            f"a {type(where).__name__} of Dask is no store; write its bags to one first: "
            "sm.convert(collection, 'corpus.zarr')"
        )
    raise StoreError(
        f"a store is named by its path, not by {type(where).__name__}; write bags in memory to a "
        "store first: sm.write_store('corpus.zarr', bags, labels)"
    )


def open_one(where: str | os.PathLike[str]) -> BagStore:
    """Open one store: read and check its manifest and its descriptions."""
    return _open_at(open_location(where))


def _open_at(location: Location) -> BagStore:
    manifest = _manifest(location)
    if manifest.contradiction():
        raise damaged(location, MANIFEST, f"contradicts itself: {manifest.contradiction()}")
    n_checked = CHECKED_AT_OPEN if isinstance(location, LocalFolder) else CHECKED_AFAR
    for key, entry in islice(manifest.metadata.items(), n_checked):
        problem = description_problem(location, key, entry)
        if problem:
            raise damaged(location, key, problem)
    if isinstance(location, LocalFolder):
        location.expect(sum(size for _, size, _ in manifest.files))
    return BagStore(location, manifest)


def _reopen(location: Location, fingerprint: str) -> BagStore:
    """Open a store that another process or object has open; refuse other content."""
    store = _open_at(copy(location))
    if store.fingerprint != fingerprint:
        raise StoreError(f"{store.name} has changed since it was opened; open it again")
    return store


def _manifest(location: Location) -> Manifest:
    """Read the manifest of a store; a manifest that fails its checks is read once more."""
    try:
        raw = location.read_all(MANIFEST)
    except Unreadable:
        raw = b""
    try:
        return Manifest.from_bytes(raw, location.name)
    except StoreError:
        location.forget()
    try:
        return Manifest.from_bytes(location.read_all(MANIFEST), location.name)
    except Unreadable as error:
        raise _no_store(location, error) from None


def _no_store(location: Location, error: Unreadable) -> StoreError:
    """Make the error for a manifest that cannot be read."""
    name = location.name
    if isinstance(location, LocalFolder) and location.path.is_file():
        converted = Path(name).with_name(f"{Path(name).stem}-store.zarr")
        return StoreError(
            f"{name} is no store but a file; convert it first: streammiml convert {name} "
            f"{converted}",
            page="convert",
        )
    if not isinstance(error, MissingFile):
        return StoreError(f"{name}/{MANIFEST} {error}")
    if isinstance(location, LocalFolder):
        path = location.path
        if staging_of(path).exists():
            return _unfinished(name)
        if not path.exists():
            return StoreError(f"{name} does not exist")
        if any(any(path.glob(form.marker)) for form in FORMATS.values()):
            return StoreError(
                f"{name} has no {FOLDER}; run streammiml seal {name} to complete it", page="format"
            )
    elif location.size(OWNER) is not None:
        return _unfinished(name)
    return StoreError(f"{name} is no store: it has no {MANIFEST}", page="stores")


def _unfinished(name: str) -> StoreError:
    return StoreError(
        f"{name} is unfinished; run streammiml convert again to finish it", page="convert"
    )
