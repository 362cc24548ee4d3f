"""``Bags``, the interface of all stores; several stores as one; views of some bags."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streammiml._base.html_table import listed, table_html
from streammiml.bags.block import Bag, BagBlock, SparseRows
from streammiml.bags.kept_columns import Kept, KeptColumn
from streammiml.bags.offsets import from_sizes, gather, runs
from streammiml.bags.range_group import RangeGroup
from streammiml.bags.verified_array import Ranges
from streammiml.errors import StoreError

if TYPE_CHECKING:  # Types only: both packages take long to load.
    import pandas as pd
    import pyarrow as pa

I64 = NDArray[np.int64]
# Bags in gaps of at most this many are read and dropped, which costs less than a second read; but
# no bag of more than so many bytes.
GAP_BAGS, GAP_BYTES = 8, 1 << 20
# The same for reads of sizes and labels only.
SCAN_GAP = 1024
# Bags whose labels are read at a time to find the bags with a label.
SCAN_BAGS = 65536
ITERATED_BYTES = 4 << 20
"""About how many bytes an iteration over the bags of a store reads at a time."""


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
    kept_columns: tuple[KeptColumn, ...] = ()
    """Names and types of the kept columns."""
    fingerprint: str

    @property
    @abstractmethod
    def kept_digest(self) -> str:
        """Digest of the values of kept columns, which ``fingerprint`` leaves out.

        It also depends on how the store keeps them: equal values in stores of two backends have
        different digests.
        """

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Number of rows of all bags."""

    @property
    @abstractmethod
    def n_label_entries(self) -> int:
        """Number of labels of all bags, added up."""

    @property
    @abstractmethod
    def n_values(self) -> int:
        """Number of stored values of all rows; an estimate for a view of sparse rows."""

    @abstractmethod
    def read(
        self, start: int, stop: int, *, row_labels: bool = True, kept: bool = True
    ) -> BagBlock:
        """Read bags ``start`` to ``stop`` in one pass over their chunks.

        Rows come back in storage order; an empty range gives an empty block. Row labels and kept
        columns, if there are any, are read unless ``row_labels`` or ``kept`` is False. A chunk that
        is missing or fails its checksum raises StoreError, naming the file.
        """

    def kept(self, start: int, stop: int, names: Container[str] | None = None) -> Kept:  # noqa: ARG002
        """Values of kept columns for the rows of some bags, by name; rows are not read.

        Numbers are an array (rows,) or (rows, width), texts an array of Python strings. The rows of
        a bag follow those of the bag before, as in :meth:`read`. With ``names``, only these columns
        are read.
        """
        self._check_range(start, stop)
        return {}

    def read_ranges(self, ranges: Ranges) -> RangeGroup:
        """Read several ranges, without row labels; a store reads them together."""
        blocks = [self.read(*bags, row_labels=False, kept=False) for bags in ranges]
        return RangeGroup.from_blocks(blocks, self.dtype)

    def at_hand(self) -> BagBlock | None:
        """Return all bags if they are in memory in the form that kernels need, else None."""
        return None

    @property
    def reads_in_place(self) -> bool:
        """Whether values are read to where they stay, without a second copy while reading."""
        return False

    def reopened(self) -> Bags:
        """Return the same bags with files and locks of their own, as a forked process needs."""
        return self

    @abstractmethod
    def bag_sizes(self, start: int, stop: int) -> I64:
        """Number of rows of each bag; rows are not read."""

    def bag_values(self, start: int, stop: int) -> I64:
        """Number of stored values of each bag; a store does not read the values."""
        if not self.sparse:
            return self.bag_sizes(start, stop) * self.n_features
        block = self.read(start, stop, row_labels=False, kept=False)
        assert isinstance(block.rows, SparseRows), "sparse bags have sparse rows"
        return np.diff(block.rows.offsets[block.bag_offsets])

    @abstractmethod
    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices; rows are not read."""

    @abstractmethod
    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Ids of bags; their numbers as text if the store has no ids."""

    def __len__(self) -> int:
        return self.n_bags

    @overload
    def __getitem__(self, at: int) -> Bag: ...

    @overload
    def __getitem__(self, at: slice) -> list[Bag]: ...

    def __getitem__(self, at: int | slice) -> Bag | list[Bag]:
        """One bag by its number, or a list of bags by slice; −1 is the last bag."""
        if isinstance(at, slice):
            numbers = range(self.n_bags)[at]
            if numbers.step == 1 and numbers:
                ids = self.bag_ids(numbers.start, numbers.stop)
            else:
                ids = [self.bag_ids(number, number + 1)[0] for number in numbers]
            return _split(self.read_bags(list(numbers), row_labels=False), ids)
        # An IndexError, not a StoreError: Python ends loops over indices by it.
        number = range(self.n_bags)[at]
        block = self.read(number, number + 1, row_labels=False)
        return _split(block, self.bag_ids(number, number + 1))[0]

    def __iter__(self) -> Iterator[Bag]:
        """All bags in the order of the store; some megabytes are read at a time."""
        for start, stop in self._iterated():
            yield from _split(self.read(start, stop, row_labels=False), self.bag_ids(start, stop))

    def _iterated(self) -> Iterator[tuple[int, int]]:
        """Ranges of bags whose rows take about ``ITERATED_BYTES`` when they are dense."""
        limit = ITERATED_BYTES // (self.n_features * np.dtype(self.dtype).itemsize)
        for first in range(0, self.n_bags, SCAN_BAGS):
            last = min(first + SCAN_BAGS, self.n_bags)
            ends = np.cumsum(self.bag_sizes(first, last))
            start = 0
            while start < len(ends):
                before = int(ends[start - 1]) if start else 0
                stop = max(int(np.searchsorted(ends, before + limit, "right")), start + 1)
                yield first + start, first + stop
                start = stop

    def __repr__(self) -> str:
        kind = f"sparse {self.dtype}" if self.sparse else self.dtype
        return (
            f"<{type(self).__name__} {self.name}: {self.n_bags:,} bags, {self.n_rows:,} rows of "
            f"{self.n_features:,} features ({kind}), {self.n_labels:,} labels>"
        )

    def _repr_html_(self) -> str:
        """HTML table for notebooks."""
        kind = f"sparse {self.dtype}" if self.sparse else self.dtype
        facts = {
            "bags": f"{self.n_bags:,}",
            "rows": f"{self.n_rows:,}",
            "features": f"{self.n_features:,} ({kind})",
            "labels": f"{self.n_labels:,}",
            "names": listed(self.label_names),
        }
        return table_html(self.name, facts)

    def read_bags(
        self, indices: ArrayLike, *, row_labels: bool = True, kept: bool = True
    ) -> BagBlock:
        """Read bags by number, in the order given; a number may be repeated."""
        numbers = _numbers(indices)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self.n_bags):
            raise StoreError(
                f"{self.name} has bags 0 to {self.n_bags - 1}, requested "
                f"{numbers.min()} to {numbers.max()}"
            )
        unique, positions = np.unique(numbers, return_inverse=True)
        parts = []
        for start, stop in self._near(unique):
            block = self.read(start, stop, row_labels=row_labels, kept=kept)
            chosen = unique[np.searchsorted(unique, start) : np.searchsorted(unique, stop)]
            parts.append(block if len(chosen) == len(block) else block.take(chosen - start))
        if not parts:
            return self.read(0, 0, row_labels=row_labels, kept=kept)
        block = BagBlock.join(parts)
        in_order = len(positions) == len(unique) and bool((np.diff(positions) == 1).all())
        return block if in_order else block.take(positions)

    def _near(self, unique: I64) -> Iterator[tuple[int, int]]:
        """Yield ranges that cover ascending bags, with few and short other bags between them."""
        for start, stop in runs(unique, gap=GAP_BAGS):
            chosen = unique[np.searchsorted(unique, start) : np.searchsorted(unique, stop)]
            cuts: list[I64] = [chosen]
            if len(chosen) < stop - start:
                row_values = self.n_values / max(self.n_rows, 1) if self.sparse else self.n_features
                row_bytes = row_values * np.dtype(self.dtype).itemsize
                is_long = self.bag_sizes(start, stop) * row_bytes > GAP_BYTES
                is_long[chosen - start] = False
                # Number of long bags before each chosen bag: where it grows, one lies between.
                n_before = np.cumsum(is_long)[chosen - start]
                cuts = np.split(chosen, np.flatnonzero(np.diff(n_before)) + 1)
            for part in cuts:
                yield int(part[0]), int(part[-1]) + 1

    def to_arrow(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Bags ``start`` to ``stop`` as an Arrow table in memory, by default all bags.

        Columns: ``bag`` (number), ``bag_id``, ``rows`` (lists of the store's dtype), ``labels``
        (numbers), ``label_names`` and ``row_labels`` if the store has them, and for each kept
        column ``kept_NAME``, with a value for each row. A sparse store has ``columns`` and
        ``values`` instead of ``rows``. Rows are not copied, so that the table of bags in memory
        shares their memory. Take ranges of a store that is larger than memory.
        """
        # Loaded late: reading a Zarr store does not need pyarrow.
        tables = import_module("streammiml.bags.tables")
        return tables.arrow_table(self, *self._range(start, stop))

    def to_pandas(self, start: int = 0, stop: int | None = None) -> pd.DataFrame:
        """Bags ``start`` to ``stop`` as a pandas DataFrame, by default all bags.

        Columns are those of :meth:`to_arrow`. ``rows`` of a bag is an array (rows, features),
        ``labels``, ``row_labels`` and kept columns are arrays, and ``label_names`` is a list. In a
        sparse store, ``columns`` and ``values`` of a bag are lists of arrays, one for each row.
        Rows are not copied. Take ranges of a store that is larger than memory.
        """
        tables = import_module("streammiml.bags.tables")
        return tables.data_frame(self, *self._range(start, stop))

    def view(self, bags: slice | ArrayLike) -> StoreView:
        """View of some bags, chosen by slice, numbers or mask; nothing is copied."""
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
        """View of the bags that have a label, given by number or name; nothing is copied."""
        number = self.label_number(label)
        bags = []
        for start in range(0, self.n_bags, SCAN_BAGS):
            stop = min(start + SCAN_BAGS, self.n_bags)
            offsets, labels = self.labels(start, stop)
            matches = np.flatnonzero(labels == number)
            bags.append(start + np.searchsorted(offsets, matches, "right") - 1)
        return self.view(np.concatenate(bags) if bags else np.empty(0, np.int64))

    def label_number(self, label: int | str) -> int:
        """Number of a label that is given by number or name."""
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

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        """Range of bags that a user gave; without ``stop``, it ends with the last bag."""
        first, last = _numbers([start, self.n_bags if stop is None else stop]).tolist()
        self._check_range(first, last)
        return first, last

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.n_bags:
            raise StoreError(
                f"{self.name} has bags 0 to {self.n_bags}, requested {start} to {stop}"
            )


def _split(block: BagBlock, ids: Sequence[str]) -> list[Bag]:
    return [
        Bag(block.rows_of(i), block.labels_of(i), name, block.kept_of(i))
        for i, name in enumerate(ids)
    ]


class JoinedStore(Bags):
    """Several stores as one; bags keep the order of the stores."""

    def __init__(self, stores: Sequence[Bags]) -> None:
        first = stores[0]
        for store in stores[1:]:
            for field in ("n_features", "n_labels", "dtype", "sparse", "label_names"):
                first_value, value = getattr(first, field), getattr(store, field)
                if first_value != value:
                    raise StoreError(
                        f"{first.name} and {store.name} cannot be read as one: {field} is "
                        f"{_short(first_value)} and {_short(value)}"
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
        self.kept_columns = tuple(
            column
            for column in first.kept_columns
            if all(column in store.kept_columns for store in stores)
        )
        self.fingerprint = derived("join", *(store.fingerprint for store in stores))

    @property
    def kept_digest(self) -> str:
        """See :attr:`Bags.kept_digest`."""
        return derived("join", *(store.kept_digest for store in self.stores))

    @property
    def reads_in_place(self) -> bool:
        """Whether all stores do; see :attr:`Bags.reads_in_place`."""
        return all(store.reads_in_place for store in self.stores)

    def reopened(self) -> JoinedStore:
        """Open all stores again; see :meth:`Bags.reopened`."""
        return JoinedStore([store.reopened() for store in self.stores])

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedStore, (self.stores,)

    @property
    def n_rows(self) -> int:
        """Number of rows of all bags."""
        return sum(store.n_rows for store in self.stores)

    @property
    def n_label_entries(self) -> int:
        """Number of labels of all bags, added up."""
        return sum(store.n_label_entries for store in self.stores)

    @property
    def n_values(self) -> int:
        """Number of stored values of all rows."""
        return sum(store.n_values for store in self.stores)

    def read(
        self, start: int, stop: int, *, row_labels: bool = True, kept: bool = True
    ) -> BagBlock:
        """Read bags ``start`` to ``stop``; see :meth:`Bags.read`."""
        with_labels = self.has_row_labels and row_labels
        pieces = self._pieces(start, stop)
        blocks = [store.read(a, b, row_labels=with_labels, kept=False) for store, a, b in pieces]
        if not with_labels:
            blocks = [replace(block, row_labels=None) for block in blocks]
        block = BagBlock.join(blocks)
        return replace(block, kept=self.kept(start, stop)) if kept else block

    def kept(self, start: int, stop: int, names: Container[str] | None = None) -> Kept:
        """Values of the kept columns that all stores have; see :meth:`Bags.kept`."""
        common = [kept.name for kept in self.kept_columns if names is None or kept.name in names]
        parts = [store.kept(a, b, common) for store, a, b in self._pieces(start, stop)]
        return {name: np.concatenate([part[name] for part in parts]) for name in common}

    def bag_sizes(self, start: int, stop: int) -> I64:
        """Number of rows of each bag; rows are not read."""
        return np.concatenate([s.bag_sizes(a, b) for s, a, b in self._pieces(start, stop)])

    def bag_values(self, start: int, stop: int) -> I64:
        """Number of stored values of each bag; values are not read."""
        return np.concatenate([s.bag_values(a, b) for s, a, b in self._pieces(start, stop)])

    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices; rows are not read."""
        parts = [store.labels(a, b) for store, a, b in self._pieces(start, stop)]
        sizes = np.concatenate([np.diff(offsets) for offsets, _ in parts])
        return from_sizes(sizes), np.concatenate([labels for _, labels in parts])

    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Ids of bags; their numbers as text if any store has no ids."""
        self._check_range(start, stop)
        if not self.has_bag_ids:
            return [str(i) for i in range(start, stop)]
        return [name for s, a, b in self._pieces(start, stop) for name in s.bag_ids(a, b)]

    def _pieces(self, start: int, stop: int) -> list[tuple[Bags, int, int]]:
        """Split a range of bags by store: (store, start, stop) with the store's own numbers."""
        self._check_range(start, stop)
        begins, ends = self._starts[:-1], self._starts[1:]
        pieces = [
            (store, max(start - int(a), 0), min(stop, int(b)) - int(a))
            for store, a, b in zip(self.stores, begins, ends, strict=True)
            if start < b and stop > a
        ]
        return pieces or [(self.stores[0], 0, 0)]


class StoreView(Bags):
    """Some bags of a store, in a given order."""

    def __init__(self, base: Bags, indices: I64) -> None:
        if len(indices) and not (indices.min() >= 0 and indices.max() < base.n_bags):
            raise StoreError(
                f"{base.name} has bags 0 to {base.n_bags - 1}, a view requests "
                f"{indices.min()} to {indices.max()}"
            )
        self.base, self.indices = base, indices
        self.name, self.n_bags = f"view of {base.name}", len(indices)
        self.n_features, self.n_labels = base.n_features, base.n_labels
        self.dtype, self.sparse = base.dtype, base.sparse
        self.label_names, self.feature_names = base.label_names, base.feature_names
        self.has_row_labels, self.has_bag_ids = base.has_row_labels, base.has_bag_ids
        self.kept_columns = base.kept_columns
        self.fingerprint = derived("view", base.fingerprint, indices.astype("<i8").tobytes())

    @property
    def kept_digest(self) -> str:
        """See :attr:`Bags.kept_digest`; the fingerprint says which bags these are."""
        return self.base.kept_digest

    def reopened(self) -> StoreView:
        """View of the same bags of a store that is opened again; see :meth:`Bags.reopened`."""
        return StoreView(self.base.reopened(), self.indices)

    def __reduce__(self) -> tuple[Any, ...]:
        first = int(self.indices[0]) if self.n_bags else 0
        in_order = slice(first, first + self.n_bags)
        is_range = np.array_equal(self.indices, np.arange(in_order.start, in_order.stop))
        return Bags.view, (self.base, in_order if is_range else self.indices)

    @cached_property
    def n_rows(self) -> int:
        """Number of rows of all bags."""
        return int(self.bag_sizes(0, self.n_bags).sum())

    @cached_property
    def n_label_entries(self) -> int:
        """Number of labels of all bags, added up."""
        return int(self.labels(0, self.n_bags)[0][-1])

    @property
    def n_values(self) -> int:
        """Estimated number of stored values, as if all rows of the store had the same number."""
        return round(self.base.n_values * self.n_rows / max(self.base.n_rows, 1))

    def read(
        self, start: int, stop: int, *, row_labels: bool = True, kept: bool = True
    ) -> BagBlock:
        """Read bags ``start`` to ``stop`` of the view; see :meth:`Bags.read`."""
        self._check_range(start, stop)
        return self.base.read_bags(self.indices[start:stop], row_labels=row_labels, kept=kept)

    def kept(self, start: int, stop: int, names: Container[str] | None = None) -> Kept:
        """Values of kept columns; see :meth:`Bags.kept`."""

        def read(a: int, b: int) -> tuple[I64, Kept]:
            return from_sizes(self.base.bag_sizes(a, b)), self.base.kept(a, b, names)

        return self._gathered(read, start, stop, gap=GAP_BAGS)[1]

    def bag_sizes(self, start: int, stop: int) -> I64:
        """Number of rows of each bag; rows are not read."""
        return self._counts(self.base.bag_sizes, start, stop)

    def bag_values(self, start: int, stop: int) -> I64:
        """Number of stored values of each bag; values are not read."""
        return self._counts(self.base.bag_values, start, stop)

    def _counts(self, count: Callable[[int, int], I64], start: int, stop: int) -> I64:
        """Counts of the view's bags; ``count`` has those of a range of the base's bags."""
        self._check_range(start, stop)
        bags = self.indices[start:stop]
        out = np.empty(len(bags), np.int64)
        for group, a, b in self._runs(bags):
            out[group] = count(a, b)[bags[group] - a]
        return out

    def labels(self, start: int, stop: int) -> tuple[I64, NDArray[np.int32]]:
        """Label offsets (beginning with 0) and label indices; rows are not read."""

        def read(a: int, b: int) -> tuple[I64, Kept]:
            offsets, labels = self.base.labels(a, b)
            return offsets, {"labels": labels}

        offsets, gathered = self._gathered(read, start, stop, gap=SCAN_GAP)
        return offsets, gathered["labels"]

    def _gathered(
        self, read: Callable[[int, int], tuple[I64, Kept]], start: int, stop: int, *, gap: int
    ) -> tuple[I64, Kept]:
        """Offsets and items of the view's bags; ``read`` has those of a range of base bags."""
        self._check_range(start, stop)
        bags = self.indices[start:stop]
        sizes, order = np.empty(len(bags), np.int64), np.empty(len(bags), np.int64)
        parts: list[Kept] = []
        at = 0
        for group, a, b in self._runs(bags, gap):
            offsets, items = read(a, b)
            ends, chosen = gather(offsets, bags[group] - a)
            sizes[group], order[group] = np.diff(ends), at + np.arange(len(group))
            parts.append({name: values[chosen] for name, values in items.items()})
            at += len(group)
        if not parts:
            return from_sizes([]), read(0, 0)[1]
        sizes_as_read = np.empty(len(bags), np.int64)
        sizes_as_read[order] = sizes
        offsets, chosen = gather(from_sizes(sizes_as_read), order)
        return offsets, {
            name: np.concatenate([part[name] for part in parts])[chosen] for name in parts[0]
        }

    @staticmethod
    def _runs(bags: I64, gap: int = SCAN_GAP) -> Iterator[tuple[I64, int, int]]:
        """Yield groups of bags with close numbers: indices in ``bags``, range of the numbers."""
        order = np.argsort(bags, kind="stable")
        ordered = bags[order]
        for a, b in runs(np.unique(ordered), gap=gap):
            yield order[np.searchsorted(ordered, a) : np.searchsorted(ordered, b)], a, b

    def bag_ids(self, start: int, stop: int) -> list[str]:
        """Ids of bags; if there are no ids, the numbers of the bags in the store, as text."""
        self._check_range(start, stop)
        return [self.base.bag_ids(i, i + 1)[0] for i in self.indices[start:stop].tolist()]


def derived(*parts: str | bytes) -> str:
    """Digest of several parts, such as the fingerprints of joined stores."""
    raw = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def _numbers(indices: ArrayLike) -> I64:
    """Convert to numbers of bags; refuse anything but integers."""
    numbers = np.asarray(indices).reshape(-1)
    if len(numbers) and numbers.dtype.kind not in "iu":
        raise StoreError(f"numbers of bags must be integers, got {numbers.dtype}")
    return numbers.astype(np.int64)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 60 else f"{text[:57]}..."
