"""Bags in two or three text files: features, labels of bags and, if present, labels of rows.

Each file begins with a line of column names. Labels are held in memory, features are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import BESIDE, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.column_roles import (
    BAG_NAMES,
    LIST_NAMES,
    MARK_NAME,
    ROW_LABEL_NAMES,
    UNKNOWN,
)
from streammiml_tools.readers.csv_cells import (
    BLOCK_BYTES,
    LINE_TIMES,
    CellLayout,
    check_columns,
    column_values,
    first_lines,
    read_long,
    separator_of,
    split_cells,
)
from streammiml_tools.readers.labelling import Labelling, cut_labels, labelling_in, labelling_of
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes
from streammiml_tools.readers.remote_files import source_path
from streammiml_tools.readers.text import byte_spans, line_blocks, where


def is_triple(paths: Sequence[Path], options: SourceOptions) -> bool:
    """Whether exactly one of two or three files has features, and the others have labels."""
    if len(paths) not in (2, 3) or options.header is False:
        return False
    headers = [_header(path, options) for path in paths]
    if not all(header[0].lower() in BAG_NAMES for header in headers):
        return False
    return sum(not _names_labels(header) for header in headers) == 1


def _header(path: Path, options: SourceOptions) -> list[str]:
    """Names of columns, without brackets, as in ``bag_id,[labels]``."""
    offset, line = first_lines(path, options)[0]
    if line.strip().isdigit():
        return [""]
    cells = split_cells(line, separator_of(path, line, options), path, offset)
    return [cell.strip("[] ") for cell in cells]


def _names_labels(header: Sequence[str]) -> bool:
    names = [name.lower().removeprefix("bag_").removeprefix("bag ") for name in header[1:2]]
    return any(
        name in LIST_NAMES or name in ROW_LABEL_NAMES or MARK_NAME.fullmatch(name) for name in names
    )


def scan_triple(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Read the labels and the ids of all rows; bags must be the same in all files."""
    features, bag_label_path, row_label_path = _roles(paths, options)
    layout = _features_layout(features, options)
    bag_labels = _bag_labels(bag_label_path, bag_label_path.stat().st_mtime_ns, options)
    row_labels = _row_label_lists(row_label_path, options) if row_label_path else {}
    blocks = line_blocks(
        features,
        layout.start,
        aligned=True,
        block_bytes=BLOCK_BYTES,
        limits=options.limits,
        times=LINE_TIMES,
    )
    ids = {cell for _, cell in column_values(blocks, layout, [layout.bag], options)}
    for path, labels in ((bag_label_path, bag_labels), (row_label_path, row_labels)):
        unmatched = sorted(ids ^ labels.keys()) if path else []
        if unmatched:
            has, lacks = (features, path) if unmatched[0] in ids else (path, features)
            raise SourceError(
                f"{lacks} has no line of bag {unmatched[0]!r}, which is in {has} "
                f"({len(unmatched)} such bags)"
            )
    labels_seen = {
        label for by_bag in (bag_labels, row_labels) for names in by_bag.values() for label in names
    }
    labelling = labelling_of(labels_seen - set(UNKNOWN), options)
    names = BESIDE.join(str(path) for path in (features, bag_label_path, row_label_path) if path)
    spans = byte_spans(features, options.span_bytes, layout.start)
    sizes = [path.stat().st_size for path in (bag_label_path, row_label_path) if path]
    notes = [f"features from {features}", f"labels of bags from {bag_label_path}"]
    return Scan(
        spans=tuple(span._replace(path=names) for span in spans),
        n_features=len(layout.features),
        label_names=labelling.names,
        n_labels=None if labelling.names is None else len(labelling.names),
        feature_names=tuple(layout.names[1:]) if layout.has_names else None,
        row_labels=row_label_path is not None,
        bag_ids=True,
        n_bags=len(ids),
        # Lists of short texts in a dictionary take about ten times their bytes on disk.
        holds_bytes=10 * sum(sizes),
        notes=(*notes, f"labels of rows from {row_label_path}") if row_label_path else tuple(notes),
    )


def _roles(paths: Sequence[Path], options: SourceOptions) -> tuple[Path, Path, Path | None]:
    """The files of features, of bag labels, and of row labels."""
    headers = {path: _header(path, options) for path in paths}
    features = next(path for path in paths if not _names_labels(headers[path]))
    label_paths = [path for path in paths if path != features]
    rows = [path for path in label_paths if _labels_rows(path, headers[path])]
    bags = [path for path in label_paths if path not in rows]
    if len(bags) != 1 or len(rows) > 1:
        names = " and ".join(str(path) for path in label_paths)
        raise SourceError(
            f"which of {names} labels bags, and which rows? name the second column of the file "
            "with row labels row_label"
        )
    return features, bags[0], rows[0] if rows else None


def _labels_rows(path: Path, header: Sequence[str]) -> bool:
    name = path.name.lower()
    if header[1].lower() in ROW_LABEL_NAMES:
        return True
    return "bag_label" not in name and any(part in name for part in ("row", "inst"))


def _features_layout(path: Path, options: SourceOptions) -> CellLayout:
    """Layout of the feature file: id, then features; the header may be shorter than the lines."""
    lines = first_lines(path, options)
    if len(lines) < 2:
        raise SourceError(f"{path} has no line of data, only the names of columns")
    header = _header(path, options)
    separator = separator_of(path, lines[1][1], options)
    check_columns(path, lines[1][1].count(separator.encode()) + 1, options)
    n_columns = len(split_cells(lines[1][1], separator, path, lines[1][0]))
    named = len(header) == n_columns
    return CellLayout(
        separator=separator,
        start=lines[1][0],
        names=tuple(header) if named else tuple(str(i + 1) for i in range(n_columns)),
        has_names=named,
        bag=0,
        features=tuple(range(1, n_columns)),
    )


def _label_lines(path: Path, options: SourceOptions) -> Iterator[tuple[int, list[str]]]:
    """Yield offset and cells of every line; lines may have different numbers of cells."""
    offset, line = first_lines(path, options)[0]
    separator = separator_of(path, line, options)
    held = HeldBytes(str(path), "labels of bags or rows", options.limits)
    for block in line_blocks(path, limits=options.limits, times=LINE_TIMES):
        for offset, line in block.with_offsets():
            if line.strip():
                # One text and one list for the bag, and a text for every label.
                held.add(3 * ID_BYTES + len(line))
                yield offset, split_cells(line, separator, path, offset)


@lru_cache(maxsize=4)
def _bag_labels(path: Path, _changed: int, options: SourceOptions) -> dict[str, list[str]]:
    """Labels of each bag: listed on its line, or marked by 0 and 1 under label names."""
    lines = _label_lines(path, options)
    header = next(lines)[1]
    by_bag: dict[str, list[str]] = {}
    for offset, (bag, *cells) in lines:
        if bag in by_bag:
            raise SourceError(f"{where(path, offset)}: a second line of labels for bag {bag!r}")
        by_bag[bag] = [part for cell in cells for part in cut_labels(cell, options)]
    names = header[1:]
    marked = len(names) > 1 and all(
        len(cells) == len(names) and set(cells) <= {"0", "1"} for cells in by_bag.values()
    )
    if not marked:
        return by_bag
    return {
        bag: [name for name, mark in zip(names, cells, strict=True) if mark == "1"]
        for bag, cells in by_bag.items()
    }


def _row_label_lists(path: Path, options: SourceOptions) -> dict[str, list[str]]:
    return _row_labels_by_bag(path, path.stat().st_mtime_ns, options)


@lru_cache(maxsize=4)
def _row_labels_by_bag(path: Path, _changed: int, options: SourceOptions) -> dict[str, list[str]]:
    """Row labels of each bag, in the order of its rows."""
    by_bag: dict[str, list[str]] = {}
    for offset, cells in islice(_label_lines(path, options), 1, None):
        if len(cells) != 2:
            raise SourceError(
                f"{where(path, offset)}: a line of {len(cells)} columns, expected 2: bag and label"
            )
        by_bag.setdefault(cells[0], []).append(cells[1])
    return by_bag


def read_triple(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags whose first line begins in the span of the feature file."""
    features, bag_label_path, *row_label_paths = (
        source_path(path) for path in span.path.split(BESIDE)
    )
    labelling = labelling_in(scan)
    bag_labels = _bag_labels(bag_label_path, bag_label_path.stat().st_mtime_ns, options)
    row_labels = _row_label_lists(row_label_paths[0], options) if row_label_paths else None
    layout = _features_layout(features, options)
    for block in read_long(span._replace(path=str(features)), layout, scan, options):
        ids = block.bag_ids or []
        labels = [
            labelling.indices(bag_labels[bag], f"{bag_label_path}, bag {bag!r}") for bag in ids
        ]
        yield replace(
            block,
            label_offsets=from_sizes([len(numbers) for numbers in labels]),
            label_indices=np.array([label for numbers in labels for label in numbers], np.int32),
            row_labels=None
            if row_labels is None
            else _joined_row_labels(block, row_labels, labelling, row_label_paths[0]),
        )


def _joined_row_labels(
    block: BagBlock, row_labels: dict[str, list[str]], labelling: Labelling, path: Path
) -> NDArray[np.int32]:
    numbers: list[int] = []
    sizes = np.diff(block.bag_offsets).tolist()
    for bag, size in zip(block.bag_ids or [], sizes, strict=True):
        labels = row_labels[bag]
        if len(labels) != size:
            raise SourceError(f"{path} labels {len(labels)} rows of bag {bag!r}, which has {size}")
        for label in labels:
            unknown = label in UNKNOWN
            numbers.append(-1 if unknown else labelling.index(label, f"{path}, bag {bag!r}"))
    return np.array(numbers, np.int32)
