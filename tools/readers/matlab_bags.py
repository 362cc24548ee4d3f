"""Bags of MATLAB files, version 5 (loaded into memory) and 7.3 (streamed).

``matlab_layout`` decides the roles of variables; this module turns their values into bags.
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
from streammiml_tools.readers.base import Limits, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.hdf5 import MAGIC
from streammiml_tools.readers.labelling import label_numbers_of, labels_of_marks, numbered_names
from streammiml_tools.readers.matlab_layout import MatlabLayout, Outline, understand
from streammiml_tools.readers.memory_checks import check_bag, check_fits

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
TEXT_TIMES = 12
"""Memory for texts as a multiple of their bytes: every letter is an object before a text is
joined."""
BLOCK_BYTES = 4 << 20
"""Size of a block of rows in bytes, approximately."""


class VariableSource(Protocol):
    """Reads the values of variables."""

    def matrix(self, outline: Outline) -> Any:
        """All of a matrix."""

    def lines(self, outline: Outline, start: int, stop: int, *, transposed: bool) -> Any:
        """Rows ``start`` to ``stop`` of a matrix, or columns as rows if it is ``transposed``."""

    def items(self, cell: Outline, start: int, stop: int) -> list[Any]:
        """Matrices ``start`` to ``stop`` of a cell."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Values of a file of version 5, loaded into memory."""

    variables: dict[str, Any]

    def matrix(self, outline: Outline) -> Any:
        return self.variables[outline.name]

    def lines(self, outline: Outline, start: int, stop: int, *, transposed: bool) -> Any:
        matrix = self.variables[outline.name]
        return matrix[:, start:stop].T if transposed else matrix[start:stop]

    def items(self, cell: Outline, start: int, stop: int) -> list[Any]:
        return list(self.variables[cell.name][start:stop])


@dataclass(frozen=True, slots=True)
class _Streamed:
    """Values of a file of version 7.3, read on demand."""

    path: Path
    limits: Limits

    def _check(self, outline: Outline, n_bytes: int) -> None:
        check_bag(f"{self.path}, {outline.name}", n_bytes, self.limits)

    def matrix(self, outline: Outline) -> Any:
        self._check(outline, outline.n_bytes)
        return matlab73.matrix(self.path, outline)

    def lines(self, outline: Outline, start: int, stop: int, *, transposed: bool) -> Any:
        n_lines = max(1, outline.shape[1 if transposed else 0])
        self._check(outline, outline.n_bytes // n_lines * (stop - start))
        return matlab73.lines(self.path, outline, start, stop, transposed=transposed)

    def items(self, cell: Outline, start: int, stop: int) -> list[Any]:
        self._check(cell, sum(item.n_bytes for item in cell.items[start:stop]))
        return matlab73.items(self.path, cell, start, stop)


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == MAGIC or (file.seek(512) == 512 and file.read(8) == MAGIC)


def _layout(path: Path, options: SourceOptions) -> MatlabLayout:
    try:
        stat = path.stat()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    # Span size and label names do not change the layout, so they stay out of the cache key.
    relevant = replace(options, labels=None, span_bytes=1)
    return _cached_layout(str(path), stat.st_size, stat.st_mtime_ns, relevant)


@lru_cache(maxsize=4)
def _outlines(path: str, size: int, changed: int, limits: Limits) -> Sequence[Outline]:
    del size, changed  # Part of the cache key, so that a file that was replaced is read again.
    source = Path(path)
    if _is_hdf5(source):
        return matlab73.outlines(source, limits)
    return matlab5.outlines(source, limits)


@lru_cache(maxsize=8)
def _cached_layout(path: str, size: int, changed: int, options: SourceOptions) -> MatlabLayout:
    source = Path(path)
    hdf5 = _is_hdf5(source)
    outlines = _outlines(path, size, changed, options.limits)

    def count_bags(index: Outline) -> int:
        if hdf5:
            raw = _Streamed(source, options.limits).matrix(index)
        else:
            raw = _load(source, [index], options.limits)[index.name]
        numbers = _bag_numbers(raw, f"{path}, {index.name}")
        return int(numbers.max()) if len(numbers) else 0

    layout = understand(path, outlines, options, count_bags)
    _refuse_opaque(path, outlines, {outline.top for outline in layout.used})
    return layout


def _refuse_opaque(path: str, outlines: Sequence[Outline], used: set[str]) -> None:
    """Refuse to load a variable with opaque fields: scipy loads all fields of a struct."""
    unknown = [
        outline.top for outline in outlines if outline.kind == "opaque" and outline.top in used
    ]
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
        raise SourceError(f"{where}, row {row}: {numbers[row]} is not the number of a bag")
    return numbers.astype(np.int64)


def _load(path: Path, variables: Sequence[Outline], limits: Limits) -> dict[str, Any]:
    """Load variables of a file of version 5; refused if they do not fit into memory."""
    tops = {outline.top for outline in variables}
    stat = path.stat()
    outlines = _outlines(str(path), stat.st_size, stat.st_mtime_ns, limits)
    # scipy loads all fields of a struct, so all of them are counted.
    declared = sum(outline.n_bytes for outline in outlines if outline.top in tops)
    where = f"{path}: {', '.join(sorted(tops))}"
    check_fits(where, 2 * declared, limits, declared=declared, stored=stat.st_size)
    return matlab5.load(path, [outline.name for outline in variables])


def _class_names(path: Path, layout: MatlabLayout, limits: Limits) -> tuple[str, ...] | None:
    variable = layout.class_names
    if variable is None:
        return None
    if _is_hdf5(path):
        check_fits(f"{path}: {variable.name}", TEXT_TIMES * variable.n_bytes, limits)
        return matlab73.texts(path, variable)
    return matlab5.texts(_load(path, [variable], limits)[variable.name])


def _label_numbers(path: Path, layout: MatlabLayout, options: SourceOptions) -> I64 | None:
    """Label number of each column; None if columns are in the order of label numbers."""
    names = _class_names(path, layout, options.limits)
    if names is None or options.labels is None:
        return None
    return label_numbers_of(names, options, str(path))


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Read the outlines of all files; values are read only if bags must be counted."""
    layouts = [_layout(path, options) for path in paths]
    names = [
        _class_names(path, layout, options.limits)
        for path, layout in zip(paths, layouts, strict=True)
    ]
    first = layouts[0]
    for path, layout, file_names in zip(paths, layouts, names, strict=True):
        facts = (layout.n_features, layout.n_labels, file_names, layout.row_labels is None)
        if facts != (first.n_features, first.n_labels, names[0], first.row_labels is None):
            raise SourceError(
                f"{path}: {layout.n_features} features and {layout.n_labels} labels do not match "
                f"{first.n_features} and {first.n_labels} of {paths[0]}, or their names "
                "differ; convert them one by one"
            )
        if file_names is None:
            numbered_names(layout.n_labels, options, str(path))
        else:
            label_numbers_of(file_names, options, str(path))
    label_names = options.labels or names[0]
    holds = 0
    spans: list[Span] = []
    for path, layout in zip(paths, layouts, strict=True):
        if _is_hdf5(path):
            spans += _streamed_spans(path, layout, options)
            continue
        holds = max(holds, 2 * sum(outline.n_bytes for outline in layout.used))
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
        label_names=label_names,
        n_labels=len(label_names) if label_names is not None else first.n_labels,
        row_labels=first.row_labels is not None,
        n_bags=None if flat else sum(layout.n_bags for layout in layouts),
        n_rows=None if flat else int(sum(layout.sizes.sum() for layout in layouts)),
        holds_bytes=holds,
        notes=tuple(note for layout in layouts for note in layout.notes),
    )


def _streamed_spans(path: Path, layout: MatlabLayout, options: SourceOptions) -> Iterator[Span]:
    runs = _runs(path, layout, _Streamed(path, options.limits))
    row_bytes = layout.n_features * np.dtype(layout.dtype).itemsize
    for start, stop in cuts_by_bytes(runs.sizes * row_bytes, options.span_bytes):
        n_bytes = int(runs.sizes[start:stop].sum()) * row_bytes
        yield Span(str(path), start, stop, n_bytes, stop - start)


@dataclass(frozen=True, slots=True)
class _BagRuns:
    """Sizes of bags in the order of their rows, and their lines among the targets."""

    sizes: I64
    lines: I64
    """Line of the targets of each bag."""


def _runs(path: Path, layout: MatlabLayout, values: VariableSource) -> _BagRuns:
    if not layout.is_flat:
        return _BagRuns(layout.sizes, np.arange(layout.n_bags))
    assert layout.bag_of_row is not None
    where = f"{path}, {layout.bag_of_row.name}"
    numbers = _bag_numbers(values.matrix(layout.bag_of_row), where)
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    bags, sizes = numbers[starts], np.diff(np.append(starts, len(numbers)))
    seen: set[int] = set()
    for bag, row in zip(bags.tolist(), starts.tolist(), strict=True):
        if bag in seen:
            raise SourceError(
                f"{where}, row {row}: bag {bag} returns after other bags; sort the rows by bag"
            )
        seen.add(bag)
    lines = _lines_of(layout, values, bags, where)
    if (np.diff(lines) > 0).all():
        # Bags are in the order of the targets, so bags without rows can be included.
        all_sizes = np.zeros(layout.n_bags, np.int64)
        all_sizes[lines] = sizes
        return _BagRuns(all_sizes, np.arange(layout.n_bags))
    if len(lines) != layout.n_bags:
        raise SourceError(f"{where}: {len(lines)} bags have rows, but there are {layout.n_bags}")
    return _BagRuns(sizes, lines)


def _lines_of(layout: MatlabLayout, values: VariableSource, bags: I64, where: str) -> I64:
    """Line of the targets of each bag: its index in the list of bags, or its number minus 1."""
    lines = bags - 1
    if layout.bag_order is not None:
        bag_order = _bag_numbers(values.matrix(layout.bag_order), where)
        line_of_bag = {number: i for i, number in enumerate(bag_order.tolist())}
        lines = np.array([line_of_bag.get(bag, -1) for bag in bags.tolist()], np.int64)
    wrong = (lines < 0) | (lines >= layout.n_bags)
    if wrong.any():
        bag = int(bags[wrong.argmax()])
        raise SourceError(f"{where}: bag {bag} has no targets; they are given for {layout.n_bags}")
    return lines


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags of a span in blocks; a file of version 5 is loaded first."""
    path = Path(span.path)
    layout = _layout(path, options)
    values: VariableSource = _Streamed(path, options.limits)
    if not _is_hdf5(path):
        values = _Loaded(_load(path, layout.used, options.limits))
    runs = _runs(path, layout, values)
    offsets = from_sizes(runs.sizes)
    targets = _Targets.of(path, layout, values, _label_numbers(path, layout, options))
    row_bytes = max(1, layout.n_features * np.dtype(scan.dtype).itemsize)
    for first, last in cuts_by_bytes(runs.sizes[span.start : span.stop] * row_bytes, BLOCK_BYTES):
        start, stop = span.start + first, span.start + last
        rows, row_labels = _rows_of(path, layout, values, offsets, start, stop, scan)
        if row_labels is not None and targets.label_numbers is not None:
            row_labels = np.append(targets.label_numbers, -1)[row_labels].astype(np.int32)
        label_offsets, labels = targets.labels(runs.lines[start:stop])
        sizes = from_sizes(runs.sizes[start:stop])
        yield BagBlock(sizes, rows, label_offsets, labels, row_labels)


@dataclass(frozen=True, slots=True)
class _Targets:
    """Labels of bags, found by their lines among the targets."""

    where: str
    layout: MatlabLayout
    values: VariableSource
    label_numbers: I64 | None
    marked: Any
    """Targets as a CSR matrix (bags, labels); None if they are dense."""

    @classmethod
    def of(
        cls, path: Path, layout: MatlabLayout, values: VariableSource, label_numbers: I64 | None
    ) -> _Targets:
        where = f"{path}, {layout.targets.name}"
        if not layout.targets.sparse:
            return cls(where, layout, values, label_numbers, None)
        matrix = values.matrix(layout.targets)
        marked = scipy.sparse.csr_array(matrix.T if layout.targets_transposed else matrix)
        marked.eliminate_zeros()
        if (marked.data != 1).any():
            wrong = marked.data[int((marked.data != 1).argmax())]
            raise SourceError(f"{where}: a mark is {wrong}, expected 0 and 1")
        return cls(where, layout, values, label_numbers, marked)

    def labels(self, lines: I64) -> tuple[I64, I32]:
        """Label offsets and label numbers of the bags with these lines."""
        if self.marked is not None:
            entries = self.marked[lines].tocoo()
            columns = entries.col
            numbers = columns if self.label_numbers is None else self.label_numbers[columns]
            order = np.lexsort((numbers, entries.row))
            sizes = np.bincount(entries.row, minlength=len(lines))
            return from_sizes(sizes), numbers[order].astype(np.int32)
        if not len(lines):
            return from_sizes([]), np.empty(0, np.int32)
        first, last = int(lines.min()), int(lines.max()) + 1
        transposed = self.layout.targets_transposed
        marks = self.values.lines(self.layout.targets, first, last, transposed=transposed)
        where = self.where if first == 0 else f"{self.where}, from bag {first} on"
        return labels_of_marks(np.asarray(marks)[lines - first], where, self.label_numbers)


def _rows_of(
    path: Path,
    layout: MatlabLayout,
    values: VariableSource,
    offsets: I64,
    start: int,
    stop: int,
    scan: Scan,
) -> tuple[NDArray[Any] | SparseRows, I32 | None]:
    """Rows of bags ``start`` to ``stop``, and their row labels."""
    row_label_variable = layout.row_labels
    marks: list[Any]
    if layout.is_flat:
        first, last = int(offsets[start]), int(offsets[stop])
        matrix = values.matrix(layout.bags) if layout.sparse else None
        if matrix is not None:
            parts = [matrix[:, first:last].T if layout.transposed else matrix[first:last]]
        else:
            parts = [values.lines(layout.bags, first, last, transposed=layout.transposed)]
        sizes = np.array([last - first])
        if row_label_variable is not None:
            marks = [values.lines(row_label_variable, first, last, transposed=False)]
    else:
        parts = values.items(layout.bags, start, stop)
        parts = [part.T if layout.transposed else part for part in parts]
        sizes = np.diff(offsets[start : stop + 1])
        if row_label_variable is not None:
            marks = values.items(row_label_variable, start, stop)
    where = f"{path}, {layout.bags.name}"
    rows = _joined([part for part in parts if part.shape[0]], scan, where, offsets, start)
    if row_label_variable is None:
        return rows, None
    numbers = [
        _row_numbers(
            _dense(bag_marks),
            int(size),
            layout.n_labels,
            f"{path}, {row_label_variable.name}",
            start + i,
        )
        for i, (bag_marks, size) in enumerate(zip(marks, sizes, strict=True))
    ]
    return rows, np.concatenate(numbers).astype(np.int32) if numbers else np.empty(0, np.int32)


def _dense(matrix: Any) -> Any:
    return matrix.toarray() if scipy.sparse.issparse(matrix) else matrix


def _joined(
    parts: list[Any], scan: Scan, where: str, offsets: I64, start: int
) -> NDArray[Any] | SparseRows:
    """Concatenate rows in the type of the store; values that are not finite are refused."""
    if not parts:
        parts = [np.empty((0, scan.n_features))]
    if scan.sparse:
        matrix = scipy.sparse.vstack([scipy.sparse.csr_array(part) for part in parts], format="csr")
        matrix.sort_indices()
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        values = _narrowed(matrix.data, scan.dtype, where, offsets, start, rows)
        columns = matrix.indices.astype(np.uint32)
        return SparseRows(matrix.indptr.astype(np.int64), columns, values, scan.n_features)
    dense = np.concatenate([_dense(part) for part in parts])
    return _narrowed(dense, scan.dtype, where, offsets, start, None)


def _narrowed(
    values: NDArray[Any], dtype: str, where: str, offsets: I64, start: int, rows: I64 | None
) -> NDArray[Any]:
    """Convert values to a row type; ``rows`` gives the row of each value of sparse rows."""
    if values.dtype.kind != "f":
        # The writer checks whether integers of 32 bits and more fit.
        return values.astype(dtype) if np.can_cast(values.dtype, dtype) else values
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.ascontiguousarray(values, np.dtype(dtype) if dtype == "float32" else None)
    if not np.isfinite(narrow).all():
        wrong = np.argwhere(~np.isfinite(narrow))
        row = int(wrong[0][0]) if rows is None else int(rows[wrong[0][0]])
        at = row + int(offsets[start])
        bag = int(np.searchsorted(offsets, at, "right")) - 1
        raise SourceError(
            f"{where}, bag {bag}, row {at - int(offsets[bag])}: value is {values[tuple(wrong[0])]} "
            f"({len(wrong)} such values nearby); only finite numbers of float32 can be stored"
        )
    return narrow


def _row_numbers(marks: Any, n_rows: int, n_labels: int, where: str, bag: int) -> I64:
    """Label of each row, −1 for none, from marks (rows, labels) or from numbers counted from 1."""
    if marks.shape == (n_labels, n_rows) and n_labels != n_rows:
        marks = marks.T
    if marks.shape == (n_rows, n_labels):
        is_set = marks == 1
        wrong = ~(is_set | (marks == 0) | (marks == -1)).all(axis=1) | (is_set.sum(axis=1) > 1)
        numbers = np.where(is_set.any(axis=1), is_set.argmax(axis=1), -1)
    elif sorted(marks.shape) == sorted((1, n_rows)):
        flat = marks.ravel()
        wrong = ~np.isin(flat, np.arange(n_labels + 1))
        numbers = np.where(wrong, 0, flat).astype(np.int64) - 1
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
    return numbers.astype(np.int64)
