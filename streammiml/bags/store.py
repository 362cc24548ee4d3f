"""``open_store``: a read-only store, several as one, or a view of one without copying."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import ArrayLike, NDArray

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
from streammiml.bags.offsets import from_sizes, gather, runs
from streammiml.bags.parts import split_names
from streammiml.bags.place import LocalPlace, Place, Unreadable, open_place
from streammiml.errors import StoreError
from streammiml.notebook import listed, table_html

I64 = NDArray[np.int64]
# Bags between two wanted ones that are read along rather than skipped: a second read costs more.
GAP_BAGS = 8
SCAN_BAGS = 65536
SCAN_GAP = 1024
# Descriptions (zarr.json, footers) checked at open; a footer beyond is checked at its first use.
CHECKED_AT_OPEN = 4096
# Under a URL a look at one takes two requests.
CHECKED_AFAR = 16


class Bags(ABC):
    """Bags that can be read by range or by number: a store, several stores, or a view."""

    name: str
    n_bags: int
    n_features: int
    n_labels: int
    dtype: str
    sparse: bool
    label_names: list[str] | None
    feature_names: list[str] | None
    has_row_labels: bool
    has_bag_ids: bool
    fingerprint: str

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Rows of all bags."""

    @property
    @abstractmethod
    def n_label_entries(self) -> int:
        """Labels of all bags, added up."""

    @property
    @abstractmethod
    def n_values(self) -> int:
        """Stored values of all rows; of a view of sparse rows, about."""

    @abstractmethod
    def read(self, start: int, stop: int, *, row_labels: bool = True) -> BagBlock:
        """Read bags ``start`` to ``stop`` in one pass over their chunks.

        Rows come back in storage order; an empty range gives an empty block. Row labels, where
        there are any, come along unless they are not wanted. A chunk that is missing or fails its
        checksum raises StoreError, naming the file.
        """

    def read_ranges(self, ranges: Ranges) -> list[BagBlock]:
        """What :meth:`read` gives for each range, without row labels; stores read them together."""
        return [self.read(*each, row_labels=False) for each in ranges]

    @abstractmethod
    def bag_sizes(self, start: int, stop: int) -> I64:
        """Rows of each bag, without reading rows."""

    def bag_values(self, start: int, stop: int) -> I64:
        """Stored values of each bag: all of dense rows, some of sparse; a store reads none."""
        if not self.sparse:
            return self.bag_sizes(start, stop) * self.n_features
        block = self.read(start, stop)
        assert isinstance(block.rows, SparseRows), "sparse bags have sparse rows"
        return np.diff(block.rows.offsets[block.bag_offsets])

    @abstractmethod
    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices, without reading rows."""

    @abstractmethod
    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Names of bags; their numbers as text where the store has none."""

    def __len__(self) -> int:
        return self.n_bags

    def __repr__(self) -> str:
        kind = f"sparse {self.dtype}" if self.sparse else self.dtype
        return (
            f"<{type(self).__name__} {self.name}: {self.n_bags:,} bags, {self.n_rows:,} rows of "
            f"{self.n_features:,} features ({kind}), {self.n_labels:,} labels>"
        )

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        kind = f"sparse {self.dtype}" if self.sparse else self.dtype
        facts = {
            "bags": f"{self.n_bags:,}",
            "rows": f"{self.n_rows:,}",
            "features": f"{self.n_features:,} ({kind})",
            "labels": f"{self.n_labels:,}",
            "names": listed(self.label_names),
        }
        return table_html(self.name, facts)

    def read_bags(self, indices: ArrayLike, *, row_labels: bool = True) -> BagBlock:
        """Read bags by number, in the order given; a number may come twice."""
        wanted = _numbers(indices)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < self.n_bags):
            raise StoreError(
                f"{self.name} has bags 0 to {self.n_bags - 1}, asked for "
                f"{wanted.min()} to {wanted.max()}"
            )
        unique, back = np.unique(wanted, return_inverse=True)
        parts = []
        for start, stop in runs(unique, gap=GAP_BAGS):
            block = self.read(start, stop, row_labels=row_labels)
            here = unique[np.searchsorted(unique, start) : np.searchsorted(unique, stop)]
            parts.append(block if len(here) == len(block) else block.take(here - start))
        if not parts:
            return self.read(0, 0, row_labels=row_labels)
        whole = BagBlock.join(parts)
        in_order = len(back) == len(unique) and bool((np.diff(back) == 1).all())
        return whole if in_order else whole.take(back)

    def view(self, bags: slice | ArrayLike) -> StoreView:
        """These bags only, by range or by number, without copying."""
        if isinstance(bags, slice):
            return StoreView(self, np.arange(self.n_bags, dtype=np.int64)[bags])
        chosen = np.asarray(bags)
        if chosen.dtype == bool:
            if len(chosen) != self.n_bags:
                raise StoreError(
                    f"{self.name} has {self.n_bags} bags, the mask of a view has {len(chosen)}"
                )
            chosen = np.flatnonzero(chosen)
        return StoreView(self, _numbers(chosen))

    def with_label(self, label: int | str) -> StoreView:
        """Bags that carry a label, by number or name, without copying."""
        number = self.label_number(label)
        found = []
        for start in range(0, self.n_bags, SCAN_BAGS):
            stop = min(start + SCAN_BAGS, self.n_bags)
            offsets, labels = self.labels(start, stop)
            places = np.flatnonzero(labels == number)
            found.append(start + np.searchsorted(offsets, places, "right") - 1)
        return self.view(np.concatenate(found) if found else np.empty(0, np.int64))

    def label_number(self, label: int | str) -> int:
        """Number of a label, which may be given by name."""
        names = self.label_names or []
        if isinstance(label, str) and label in names:
            return names.index(label)
        if isinstance(label, str) or not 0 <= label < self.n_labels:
            known = ", ".join(names[:20]) if names else f"0 to {self.n_labels - 1}"
            raise StoreError(f"{self.name} has no label {label!r}; known: {known}")
        return int(label)

    def blocks(self, n_bags: int) -> Iterator[BagBlock]:
        """All bags in order, ``n_bags`` at a time."""
        for start in range(0, self.n_bags, n_bags):
            yield self.read(start, min(start + n_bags, self.n_bags))

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.n_bags:
            raise StoreError(
                f"{self.name} has bags 0 to {self.n_bags}, asked for {start} to {stop}"
            )


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
            array.unpacker = backend.unpacker

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


class JoinedStore(Bags):
    """Several stores as one, bags in the order of the stores."""

    def __init__(self, stores: Sequence[Bags]) -> None:
        first = stores[0]
        for other in stores[1:]:
            for what in ("n_features", "n_labels", "dtype", "sparse", "label_names"):
                mine, theirs = getattr(first, what), getattr(other, what)
                if mine != theirs:
                    raise StoreError(
                        f"{first.name} and {other.name} cannot be read as one: {what} is "
                        f"{_short(mine)} and {_short(theirs)}"
                    )
        self.stores = list(stores)
        self.name = " + ".join(store.name for store in stores)
        self._starts = from_sizes([store.n_bags for store in stores])
        self.n_bags = int(self._starts[-1])
        self.n_features, self.n_labels = first.n_features, first.n_labels
        self.dtype, self.sparse = first.dtype, first.sparse
        self.label_names, self.feature_names = first.label_names, first.feature_names
        self.has_row_labels = all(store.has_row_labels for store in stores)
        self.has_bag_ids = all(store.has_bag_ids for store in stores)
        self.fingerprint = _derived("join", *(store.fingerprint for store in stores))

    @property
    def n_rows(self) -> int:
        """Rows of all bags."""
        return sum(store.n_rows for store in self.stores)

    @property
    def n_label_entries(self) -> int:
        """Labels of all bags, added up."""
        return sum(store.n_label_entries for store in self.stores)

    @property
    def n_values(self) -> int:
        """Stored values of all rows."""
        return sum(store.n_values for store in self.stores)

    def read(self, start: int, stop: int, *, row_labels: bool = True) -> BagBlock:
        """Read bags ``start`` to ``stop``; see :meth:`Bags.read`."""
        wanted = self.has_row_labels and row_labels
        pieces = self._pieces(start, stop)
        blocks = [store.read(a, b, row_labels=wanted) for store, a, b in pieces]
        if not wanted:
            blocks = [replace(block, row_labels=None) for block in blocks]
        return BagBlock.join(blocks)

    def bag_sizes(self, start: int, stop: int) -> I64:
        """Rows of each bag, without reading rows."""
        return np.concatenate([s.bag_sizes(a, b) for s, a, b in self._pieces(start, stop)])

    def bag_values(self, start: int, stop: int) -> I64:
        """Stored values of each bag, without reading them."""
        return np.concatenate([s.bag_values(a, b) for s, a, b in self._pieces(start, stop)])

    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices, without reading rows."""
        parts = [store.labels(a, b) for store, a, b in self._pieces(start, stop)]
        sizes = np.concatenate([np.diff(offsets) for offsets, _ in parts])
        return from_sizes(sizes), np.concatenate([labels for _, labels in parts])

    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Names of bags; their numbers as text where a store has none."""
        self._check_range(start, stop)
        if not self.has_bag_ids:
            return [str(i) for i in range(start, stop)]
        return [name for s, a, b in self._pieces(start, stop) for name in s.bag_ids(a, b)]

    def _pieces(self, start: int, stop: int) -> list[tuple[Bags, int, int]]:
        self._check_range(start, stop)
        begins, ends = self._starts[:-1], self._starts[1:]
        pieces = [
            (store, max(start - int(a), 0), min(stop, int(b)) - int(a))
            for store, a, b in zip(self.stores, begins, ends, strict=True)
            if start < b and stop > a
        ]
        return pieces or [(self.stores[0], 0, 0)]


class StoreView(Bags):
    """Some bags of another store, in a given order."""

    def __init__(self, base: Bags, indices: I64) -> None:
        if len(indices) and not (indices.min() >= 0 and indices.max() < base.n_bags):
            raise StoreError(
                f"{base.name} has bags 0 to {base.n_bags - 1}, a view asks for "
                f"{indices.min()} to {indices.max()}"
            )
        self.base, self.indices = base, indices
        self.name, self.n_bags = f"view of {base.name}", len(indices)
        self.n_features, self.n_labels = base.n_features, base.n_labels
        self.dtype, self.sparse = base.dtype, base.sparse
        self.label_names, self.feature_names = base.label_names, base.feature_names
        self.has_row_labels, self.has_bag_ids = base.has_row_labels, base.has_bag_ids
        self.fingerprint = _derived("view", base.fingerprint, indices.astype("<i8").tobytes())

    @cached_property
    def n_rows(self) -> int:
        """Rows of all bags."""
        return int(self.bag_sizes(0, self.n_bags).sum())

    @cached_property
    def n_label_entries(self) -> int:
        """Labels of all bags, added up."""
        return int(self.labels(0, self.n_bags)[0][-1])

    @property
    def n_values(self) -> int:
        """Stored values of all rows, as if all rows of the store had equally many."""
        return round(self.base.n_values * self.n_rows / max(self.base.n_rows, 1))

    def read(self, start: int, stop: int, *, row_labels: bool = True) -> BagBlock:
        """Read bags ``start`` to ``stop`` of the view; see :meth:`Bags.read`."""
        self._check_range(start, stop)
        return self.base.read_bags(self.indices[start:stop], row_labels=row_labels)

    def bag_sizes(self, start: int, stop: int) -> I64:
        """Rows of each bag, without reading rows."""
        self._check_range(start, stop)
        wanted = self.indices[start:stop]
        out = np.empty(len(wanted), np.int64)
        for here, a, b in self._runs(wanted):
            out[here] = self.base.bag_sizes(a, b)[wanted[here] - a]
        return out

    def bag_values(self, start: int, stop: int) -> I64:
        """Stored values of each bag, without reading them."""
        self._check_range(start, stop)
        wanted = self.indices[start:stop]
        out = np.empty(len(wanted), np.int64)
        for here, a, b in self._runs(wanted):
            out[here] = self.base.bag_values(a, b)[wanted[here] - a]
        return out

    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices, without reading rows."""
        self._check_range(start, stop)
        wanted = self.indices[start:stop]
        sizes, order = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
        found, at = [np.empty(0, np.int32)], 0
        for here, a, b in self._runs(wanted):
            offsets, labels = self.base.labels(a, b)
            ends, places = gather(offsets, wanted[here] - a)
            sizes[here], order[here] = np.diff(ends), at + np.arange(len(here))
            found.append(labels[places])
            at += len(here)
        in_runs = np.empty(len(wanted), np.int64)
        in_runs[order] = sizes
        offsets, places = gather(from_sizes(in_runs), order)
        return offsets, np.concatenate(found)[places]

    @staticmethod
    def _runs(wanted: I64) -> Iterator[tuple[I64, int, int]]:
        """Places in ``wanted`` whose bags lie close together, and the range that covers them."""
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        for a, b in runs(np.unique(ordered), gap=SCAN_GAP):
            yield order[np.searchsorted(ordered, a) : np.searchsorted(ordered, b)], a, b

    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Names of bags; their numbers in the store behind the view where it has none."""
        self._check_range(start, stop)
        return [self.base.bag_ids(i, i + 1)[0] for i in self.indices[start:stop].tolist()]


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


def _derived(*parts: str | bytes) -> str:
    """A fingerprint for what is made of other stores."""
    raw = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def _numbers(indices: ArrayLike) -> I64:
    """Numbers of bags, which no fraction can be."""
    found = np.asarray(indices).reshape(-1)
    if len(found) and found.dtype.kind not in "iu":
        raise StoreError(f"bags are asked for by number, got {found.dtype}")
    return found.astype(np.int64)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 60 else f"{text[:57]}..."
