"""MATLAB files, version 5 (read whole) and 7.3 (streamed): cells of bags, or rows with their bag.

What the variables are is decided in ``matlab_layout``; here their values become bags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml_tools.readers import matlab5, matlab73
from streammiml_tools.readers.base import Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.hdf5 import MAGIC
from streammiml_tools.readers.labelling import labels_of_marks, numbered_names, places_of
from streammiml_tools.readers.matlab_layout import Layout, Outline, understand

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
BLOCK_BYTES = 4 << 20
"""Bytes of rows in a block, about."""


class Values(Protocol):
    """Where the values of variables come from."""

    def matrix(self, one: Outline) -> Any:
        """A whole matrix."""

    def lines(self, one: Outline, start: int, stop: int, *, transposed: bool) -> Any:
        """Some rows of a matrix, or columns as rows."""

    def items(self, one: Outline, start: int, stop: int) -> list[Any]:
        """Some matrices of a cell."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Values of a file of version 5, all in memory."""

    held: dict[str, Any]

    def matrix(self, one: Outline) -> Any:
        return self.held[one.name]

    def lines(self, one: Outline, start: int, stop: int, *, transposed: bool) -> Any:
        whole = self.held[one.name]
        return whole[:, start:stop].T if transposed else whole[start:stop]

    def items(self, one: Outline, start: int, stop: int) -> list[Any]:
        return list(self.held[one.name][start:stop])


@dataclass(frozen=True, slots=True)
class _Streamed:
    """Values of a file of version 7.3, read as they are asked for."""

    path: Path

    def matrix(self, one: Outline) -> Any:
        return matlab73.matrix(self.path, one)

    def lines(self, one: Outline, start: int, stop: int, *, transposed: bool) -> Any:
        return matlab73.lines(self.path, one, start, stop, transposed=transposed)

    def items(self, one: Outline, start: int, stop: int) -> list[Any]:
        return matlab73.items(self.path, one, start, stop)


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == MAGIC or (file.seek(512) == 512 and file.read(8) == MAGIC)


def _layout(path: Path, options: SourceOptions) -> Layout:
    try:
        stat = path.stat()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    # The options that cut spans or name labels change nothing of what is understood.
    told = replace(options, labels=None, span_bytes=1)
    return _understood(str(path), stat.st_size, stat.st_mtime_ns, told)


@lru_cache(maxsize=8)
def _understood(path: str, size: int, changed: int, options: SourceOptions) -> Layout:  # noqa: ARG001
    source = Path(path)
    hdf5 = _is_hdf5(source)
    found = matlab73.outlines(source) if hdf5 else matlab5.outlines(source)

    def count_bags(index: Outline) -> int:
        raw = matlab73.matrix(source, index) if hdf5 else matlab5.load(source, [index.name])
        numbers = _bag_numbers(raw if hdf5 else raw[index.name], f"{path}, {index.name}")
        return int(numbers.max()) if len(numbers) else 0

    layout = understand(path, found, options, count_bags)
    _refuse_opaque(path, found, {one.top for one in layout.used})
    return layout


def _refuse_opaque(path: str, found: Sequence[Outline], used: set[str]) -> None:
    """Refuse what would be loaded unknown: the fields of a struct come together."""
    unknown = [one.top for one in found if one.kind == "opaque" and one.top in used]
    if unknown:
        raise SourceError(
            f"{path}: {unknown[0]} holds objects or functions beside its matrices; save the fields "
            "that are needed alone"
        )


def _bag_numbers(raw: Any, where: str) -> I64:
    numbers = np.asarray(raw).ravel()
    wrong = ~(np.isfinite(numbers) & (numbers == np.floor(numbers)))
    if wrong.any():
        row = int(wrong.argmax())
        raise SourceError(f"{where}, row {row}: bag {numbers[row]} is no number of a bag")
    return numbers.astype(np.int64)


def _class_names(path: Path, layout: Layout) -> tuple[str, ...] | None:
    one = layout.class_names
    if one is None:
        return None
    if _is_hdf5(path):
        return matlab73.texts(path, one)
    return matlab5.texts(matlab5.load(path, [one.name])[one.name])


def _places(path: Path, layout: Layout, options: SourceOptions) -> I64 | None:
    """Number of each column's label, where they are not simply counted."""
    names = _class_names(path, layout)
    if names is None or options.labels is None:
        return None
    return places_of(names, options, str(path))


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Outlines of all files; values are read only where bags must be counted."""
    layouts = [_layout(path, options) for path in paths]
    names = [_class_names(path, layout) for path, layout in zip(paths, layouts, strict=True)]
    first = layouts[0]
    for path, layout, called in zip(paths, layouts, names, strict=True):
        mine = (layout.n_features, layout.n_labels, called, layout.row_labels is None)
        if mine != (first.n_features, first.n_labels, names[0], first.row_labels is None):
            raise SourceError(
                f"{path}: {layout.n_features} features and {layout.n_labels} labels do not go "
                f"with {first.n_features} and {first.n_labels} of {paths[0]}, or their names "
                "differ; convert them one by one"
            )
        if called is None:
            numbered_names(layout.n_labels, options, str(path))
        else:
            places_of(called, options, str(path))
    told = options.labels or names[0]
    holds = 0
    spans: list[Span] = []
    for path, layout in zip(paths, layouts, strict=True):
        if _is_hdf5(path):
            spans += _streamed_spans(path, layout, options)
            continue
        holds = max(holds, 2 * sum(one.n_bytes for one in layout.used))
        n_bags = None if layout.is_flat else layout.n_bags
        spans.append(Span(str(path), 0, layout.n_bags, path.stat().st_size, n_bags))
    kinds = {layout.dtype for layout in layouts}
    flat = any(layout.is_flat for layout in layouts)
    sparse = all(layout.sparse for layout in layouts)
    return Scan(
        spans=tuple(spans),
        n_features=first.n_features,
        dtype=first.dtype if len(kinds) == 1 else "float32",
        sparse=sparse if options.sparse is None else options.sparse,
        label_names=told,
        n_labels=len(told) if told is not None else first.n_labels,
        row_labels=first.row_labels is not None,
        n_bags=None if flat else sum(layout.n_bags for layout in layouts),
        n_rows=None if flat else int(sum(layout.sizes.sum() for layout in layouts)),
        holds_bytes=holds,
        notes=tuple(note for layout in layouts for note in layout.notes),
    )


def _streamed_spans(path: Path, layout: Layout, options: SourceOptions) -> Iterator[Span]:
    runs = _runs(path, layout, _Streamed(path))
    row_bytes = layout.n_features * np.dtype(layout.dtype).itemsize
    for start, stop in cuts_by_bytes(runs.sizes * row_bytes, options.span_bytes):
        n_bytes = int(runs.sizes[start:stop].sum()) * row_bytes
        yield Span(str(path), start, stop, n_bytes, stop - start)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Bags in the order of their rows."""

    sizes: I64
    lines: I64
    """Which line of the targets is each bag's."""


def _runs(path: Path, layout: Layout, values: Values) -> _Runs:
    if not layout.is_flat:
        return _Runs(layout.sizes, np.arange(layout.n_bags))
    assert layout.bag_of_row is not None
    where = f"{path}, {layout.bag_of_row.name}"
    numbers = _bag_numbers(values.matrix(layout.bag_of_row), where)
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    bags, sizes = numbers[starts], np.diff(np.append(starts, len(numbers)))
    seen: set[int] = set()
    for bag, row in zip(bags.tolist(), starts.tolist(), strict=True):
        if bag in seen:
            raise SourceError(
                f"{where}, row {row}: bag {bag} comes back; rows of a bag must follow each other: "
                "sort them by bag"
            )
        seen.add(bag)
    lines = _lines_of(layout, values, bags, where)
    if (np.diff(lines) > 0).all():
        # In order, so that bags without rows have their place too.
        whole = np.zeros(layout.n_bags, np.int64)
        whole[lines] = sizes
        return _Runs(whole, np.arange(layout.n_bags))
    if len(lines) != layout.n_bags:
        raise SourceError(f"{where}: {len(lines)} bags have rows, but there are {layout.n_bags}")
    return _Runs(sizes, lines)


def _lines_of(layout: Layout, values: Values, bags: I64, where: str) -> I64:
    """Line of the targets of each bag: by the list of bags, else counted from 1."""
    lines = bags - 1
    if layout.bag_order is not None:
        listed = _bag_numbers(values.matrix(layout.bag_order), where)
        places = {number: i for i, number in enumerate(listed.tolist())}
        lines = np.array([places.get(bag, -1) for bag in bags.tolist()], np.int64)
    wrong = (lines < 0) | (lines >= layout.n_bags)
    if wrong.any():
        bag = int(bags[wrong.argmax()])
        raise SourceError(f"{where}: bag {bag} has no targets; they are given for {layout.n_bags}")
    return lines


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Bags of a span, in blocks; a file of version 5 is loaded first."""
    path = Path(span.path)
    layout = _layout(path, options)
    values: Values = _Streamed(path)
    if not _is_hdf5(path):
        values = _Loaded(matlab5.load(path, [one.name for one in layout.used]))
    runs = _runs(path, layout, values)
    offsets = from_sizes(runs.sizes)
    targets = _Targets.of(path, layout, values, _places(path, layout, options))
    row_bytes = max(1, layout.n_features * np.dtype(scan.dtype).itemsize)
    for first, last in cuts_by_bytes(runs.sizes[span.start : span.stop] * row_bytes, BLOCK_BYTES):
        start, stop = span.start + first, span.start + last
        rows, row_labels = _rows_of(path, layout, values, offsets, start, stop, scan)
        if row_labels is not None and targets.places is not None:
            row_labels = np.append(targets.places, -1)[row_labels].astype(np.int32)
        label_offsets, labels = targets.labels(runs.lines[start:stop])
        sizes = from_sizes(runs.sizes[start:stop])
        yield BagBlock(sizes, rows, label_offsets, labels, row_labels)


@dataclass(frozen=True, slots=True)
class _Targets:
    """Labels of bags by the line that they have among the targets."""

    where: str
    layout: Layout
    values: Values
    places: I64 | None
    marked: Any
    """Rows of a sparse matrix, (bags, labels); None if dense."""

    @classmethod
    def of(cls, path: Path, layout: Layout, values: Values, places: I64 | None) -> _Targets:
        where = f"{path}, {layout.targets.name}"
        if not layout.targets.sparse:
            return cls(where, layout, values, places, None)
        whole = values.matrix(layout.targets)
        marked = scipy.sparse.csr_array(whole.T if layout.targets_transposed else whole)
        marked.eliminate_zeros()
        if (marked.data != 1).any():
            wrong = marked.data[int((marked.data != 1).argmax())]
            raise SourceError(f"{where}: a mark is {wrong}, expected 0 and 1")
        return cls(where, layout, values, places, marked)

    def labels(self, lines: I64) -> tuple[I64, I32]:
        """Label offsets and numbers of these bags."""
        if self.marked is not None:
            found = self.marked[lines].tocoo()
            numbers = found.col if self.places is None else self.places[found.col]
            order = np.lexsort((numbers, found.row))
            sizes = np.bincount(found.row, minlength=len(lines))
            return from_sizes(sizes), numbers[order].astype(np.int32)
        if not len(lines):
            return from_sizes([]), np.empty(0, np.int32)
        first, last = int(lines.min()), int(lines.max()) + 1
        up = self.layout.targets_transposed
        marks = self.values.lines(self.layout.targets, first, last, transposed=up)
        where = self.where if first == 0 else f"{self.where}, from bag {first} on"
        return labels_of_marks(np.asarray(marks)[lines - first], where, self.places)


def _rows_of(
    path: Path,
    layout: Layout,
    values: Values,
    offsets: I64,
    start: int,
    stop: int,
    scan: Scan,
) -> tuple[NDArray[Any] | SparseRows, I32 | None]:
    """Rows of bags, and their labels."""
    named = layout.row_labels
    marks: list[Any]
    if layout.is_flat:
        first, last = int(offsets[start]), int(offsets[stop])
        whole = values.matrix(layout.bags) if layout.sparse else None
        if whole is not None:
            parts = [whole[:, first:last].T if layout.transposed else whole[first:last]]
        else:
            parts = [values.lines(layout.bags, first, last, transposed=layout.transposed)]
        sizes = np.array([last - first])
        if named is not None:
            marks = [values.lines(named, first, last, transposed=False)]
    else:
        parts = values.items(layout.bags, start, stop)
        parts = [part.T if layout.transposed else part for part in parts]
        sizes = np.diff(offsets[start : stop + 1])
        if named is not None:
            marks = values.items(named, start, stop)
    where = f"{path}, {layout.bags.name}"
    rows = _joined([part for part in parts if part.shape[0]], scan, where, offsets, start)
    if named is None:
        return rows, None
    found = [
        _row_numbers(_dense(of), int(size), layout.n_labels, f"{path}, {named.name}", start + i)
        for i, (of, size) in enumerate(zip(marks, sizes, strict=True))
    ]
    return rows, np.concatenate(found).astype(np.int32) if found else np.empty(0, np.int32)


def _dense(matrix: Any) -> Any:
    return matrix.toarray() if scipy.sparse.issparse(matrix) else matrix


def _joined(
    parts: list[Any], scan: Scan, where: str, offsets: I64, start: int
) -> NDArray[Any] | SparseRows:
    """Rows of bags in the type of the store, all finite."""
    if not parts:
        parts = [np.empty((0, scan.n_features))]
    if scan.sparse:
        whole = scipy.sparse.vstack([scipy.sparse.csr_array(part) for part in parts], format="csr")
        whole.sort_indices()
        rows = np.repeat(np.arange(whole.shape[0]), np.diff(whole.indptr))
        values = _narrowed(whole.data, scan.dtype, where, offsets, start, rows)
        columns = whole.indices.astype(np.uint32)
        return SparseRows(whole.indptr.astype(np.int64), columns, values, scan.n_features)
    dense = np.concatenate([_dense(part) for part in parts])
    return _narrowed(dense, scan.dtype, where, offsets, start, None)


def _narrowed(
    values: NDArray[Any], dtype: str, where: str, offsets: I64, start: int, rows: I64 | None
) -> NDArray[Any]:
    """Values in a type; ``rows`` are those of values in one dimension."""
    if values.dtype.kind != "f":
        # Integers of 32 bits and more are left for the writer, which sees whether they fit.
        return values.astype(dtype) if np.can_cast(values.dtype, dtype) else values
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.ascontiguousarray(values, np.dtype(dtype) if dtype == "float32" else None)
    if not np.isfinite(found).all():
        wrong = np.argwhere(~np.isfinite(found))
        row = int(wrong[0][0]) if rows is None else int(rows[wrong[0][0]])
        at = row + int(offsets[start])
        bag = int(np.searchsorted(offsets, at, "right")) - 1
        raise SourceError(
            f"{where}, bag {bag}, row {at - int(offsets[bag])}: value is {values[tuple(wrong[0])]} "
            f"({len(wrong)} such values nearby); only finite numbers of float32 can be stored"
        )
    return found


def _row_numbers(marks: Any, n_rows: int, n_labels: int, where: str, bag: int) -> I64:
    """The label of each row, −1 where none, of marks (rows, labels) or of numbers from 1."""
    if marks.shape == (n_labels, n_rows) and n_labels != n_rows:
        marks = marks.T
    if marks.shape == (n_rows, n_labels):
        on = marks == 1
        wrong = ~(on | (marks == 0) | (marks == -1)).all(axis=1) | (on.sum(axis=1) > 1)
        found = np.where(on.any(axis=1), on.argmax(axis=1), -1)
    elif sorted(marks.shape) == sorted((1, n_rows)):
        flat = marks.ravel()
        wrong = ~np.isin(flat, np.arange(n_labels + 1))
        found = np.where(wrong, 0, flat).astype(np.int64) - 1
    elif n_rows == 0:
        return np.empty(0, np.int64)
    else:
        raise SourceError(
            f"{where}, bag {bag}: row labels are {'×'.join(map(str, marks.shape))}, expected "
            f"{n_rows}×{n_labels}; --row-label-column none leaves them out"
        )
    if wrong.any():
        raise SourceError(
            f"{where}, from bag {bag} on, row {int(wrong.argmax())}: not one label a row "
            f"({int(wrong.sum())} such rows); --row-label-column none leaves them out"
        )
    return found.astype(np.int64)
