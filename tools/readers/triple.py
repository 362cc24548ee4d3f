"""Bags in three text files: features, labels of bags, labels of rows; the last may be missing.

Each has a line of names first. Labels are held in memory, features are not.
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
from streammiml_tools.readers.cells import (
    BLOCK_BYTES,
    Layout,
    column_values,
    first_lines,
    read_long,
    separator_of,
    split_cells,
)
from streammiml_tools.readers.columns import (
    BAG_NAMES,
    LIST_NAMES,
    MARK_NAME,
    ROW_LABEL_NAMES,
    UNKNOWN,
)
from streammiml_tools.readers.labelling import Labelling, cut_labels, labelling_in, labelling_of
from streammiml_tools.readers.text import byte_spans, line_blocks, where


def is_triple(paths: Sequence[Path], options: SourceOptions) -> bool:
    """Whether one file has features and the others, of another header, have labels."""
    if len(paths) not in (2, 3) or options.header is False:
        return False
    headers = [_header(path, options) for path in paths]
    if not all(header[0].lower() in BAG_NAMES for header in headers):
        return False
    return sum(not _heads_labels(header) for header in headers) == 1


def _header(path: Path, options: SourceOptions) -> list[str]:
    """Names of columns; brackets around them, as in ``bag_id,[labels]``, are no part of them."""
    offset, line = first_lines(path)[0]
    if line.strip().isdigit():
        return [""]
    cells = split_cells(line, separator_of(path, line, options), path, offset)
    return [cell.strip("[] ") for cell in cells]


def _heads_labels(header: Sequence[str]) -> bool:
    names = [name.lower().removeprefix("bag_").removeprefix("bag ") for name in header[1:2]]
    return any(
        name in LIST_NAMES or name in ROW_LABEL_NAMES or MARK_NAME.fullmatch(name) for name in names
    )


def scan_triple(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Reads the labels, and the ids of all rows: none may lack the other."""
    features, of_bags, of_rows = _roles(paths, options)
    layout = _features_layout(features, options)
    bag_labels = _bag_labels(of_bags, of_bags.stat().st_mtime_ns, options)
    row_labels = _row_label_lists(of_rows, options) if of_rows else {}
    blocks = line_blocks(features, layout.start, aligned=True, block_bytes=BLOCK_BYTES)
    ids = {cell for _, cell in column_values(blocks, layout, [layout.bag])}
    for path, labels in ((of_bags, bag_labels), (of_rows, row_labels)):
        odd = sorted(ids ^ labels.keys()) if path else []
        if odd:
            has, lacks = (features, path) if odd[0] in ids else (path, features)
            raise SourceError(
                f"{lacks} has no line of bag {odd[0]!r}, which {has} has ({len(odd)} such bags)"
            )
    found = {label for of in (bag_labels, row_labels) for each in of.values() for label in each}
    labelling = labelling_of(found - set(UNKNOWN), options)
    names = BESIDE.join(str(path) for path in (features, of_bags, of_rows) if path)
    spans = byte_spans(features, options.span_bytes, layout.start)
    sizes = [path.stat().st_size for path in (of_bags, of_rows) if path]
    notes = [f"features from {features}", f"labels of bags from {of_bags}"]
    return Scan(
        spans=tuple(span._replace(path=names) for span in spans),
        n_features=len(layout.features),
        label_names=labelling.names,
        n_labels=None if labelling.names is None else len(labelling.names),
        feature_names=tuple(layout.names[1:]) if layout.has_names else None,
        row_labels=of_rows is not None,
        bag_ids=True,
        n_bags=len(ids),
        # Lists of short texts, in a dictionary: about ten times what they take on disk.
        holds_bytes=10 * sum(sizes),
        notes=(*notes, f"labels of rows from {of_rows}") if of_rows else tuple(notes),
    )


def _roles(paths: Sequence[Path], options: SourceOptions) -> tuple[Path, Path, Path | None]:
    """The files of features, of labels of bags, and of labels of rows."""
    headers = {path: _header(path, options) for path in paths}
    features = next(path for path in paths if not _heads_labels(headers[path]))
    rest = [path for path in paths if path != features]
    rows = [path for path in rest if _labels_rows(path, headers[path])]
    bags = [path for path in rest if path not in rows]
    if len(bags) != 1 or len(rows) > 1:
        said = " and ".join(str(path) for path in rest)
        raise SourceError(
            f"which of {said} labels bags, and which rows? name the second column of the latter "
            "row_label"
        )
    return features, bags[0], rows[0] if rows else None


def _labels_rows(path: Path, header: Sequence[str]) -> bool:
    name = path.name.lower()
    if header[1].lower() in ROW_LABEL_NAMES:
        return True
    return "bag_label" not in name and any(part in name for part in ("row", "inst"))


def _features_layout(path: Path, options: SourceOptions) -> Layout:
    """The id, then features; the header may be shorter than the lines."""
    lines = first_lines(path)
    if len(lines) < 2:
        raise SourceError(f"{path} has no line of data, only the names of columns")
    header = _header(path, options)
    separator = separator_of(path, lines[1][1], options)
    n_columns = len(split_cells(lines[1][1], separator, path, lines[1][0]))
    named = len(header) == n_columns
    return Layout(
        separator=separator,
        start=lines[1][0],
        names=tuple(header) if named else tuple(str(i + 1) for i in range(n_columns)),
        has_names=named,
        bag=0,
        features=tuple(range(1, n_columns)),
    )


def _label_lines(path: Path, options: SourceOptions) -> Iterator[tuple[int, list[str]]]:
    """Cells of each line but the first; lines may have different numbers of them."""
    offset, line = first_lines(path)[0]
    separator = separator_of(path, line, options)
    for block in line_blocks(path):
        for offset, line in block.each():
            if line.strip():
                yield offset, split_cells(line, separator, path, offset)


@lru_cache(maxsize=4)
def _bag_labels(path: Path, _changed: int, options: SourceOptions) -> dict[str, list[str]]:
    """Labels of each bag: listed on its line, or marked with 0 and 1 under names."""
    lines = _label_lines(path, options)
    header = next(lines)[1]
    found: dict[str, list[str]] = {}
    for offset, (bag, *cells) in lines:
        if bag in found:
            raise SourceError(f"{where(path, offset)}: a second line of labels for bag {bag!r}")
        found[bag] = [part for cell in cells for part in cut_labels(cell, options)]
    names = header[1:]
    marked = len(names) > 1 and all(
        len(cells) == len(names) and set(cells) <= {"0", "1"} for cells in found.values()
    )
    if not marked:
        return found
    return {
        bag: [name for name, mark in zip(names, cells, strict=True) if mark == "1"]
        for bag, cells in found.items()
    }


def _row_label_lists(path: Path, options: SourceOptions) -> dict[str, list[str]]:
    return _row_labels_by_bag(path, path.stat().st_mtime_ns, options)


@lru_cache(maxsize=4)
def _row_labels_by_bag(path: Path, _changed: int, options: SourceOptions) -> dict[str, list[str]]:
    """Labels of the rows of each bag, in order."""
    found: dict[str, list[str]] = {}
    for offset, cells in islice(_label_lines(path, options), 1, None):
        if len(cells) != 2:
            raise SourceError(
                f"{where(path, offset)}: a line of {len(cells)} columns, expected 2: bag and label"
            )
        found.setdefault(cells[0], []).append(cells[1])
    return found


def read_triple(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Bags whose first line begins in the span of the file of features."""
    features, of_bags, *of_rows = (Path(path) for path in span.path.split(BESIDE))
    labelling = labelling_in(scan)
    bag_labels = _bag_labels(of_bags, of_bags.stat().st_mtime_ns, options)
    row_labels = _row_label_lists(of_rows[0], options) if of_rows else None
    layout = _features_layout(features, options)
    for block in read_long(span._replace(path=str(features)), layout, scan, options):
        ids = block.bag_ids or []
        labels = [labelling.indices(bag_labels[bag], f"{of_bags}, bag {bag!r}") for bag in ids]
        yield replace(
            block,
            label_offsets=from_sizes([len(of) for of in labels]),
            label_indices=np.array([label for of in labels for label in of], np.int32),
            row_labels=None
            if row_labels is None
            else _joined_row_labels(block, row_labels, labelling, of_rows[0]),
        )


def _joined_row_labels(
    block: BagBlock, row_labels: dict[str, list[str]], labelling: Labelling, path: Path
) -> NDArray[np.int32]:
    found: list[int] = []
    sizes = np.diff(block.bag_offsets).tolist()
    for bag, size in zip(block.bag_ids or [], sizes, strict=True):
        labels = row_labels[bag]
        if len(labels) != size:
            raise SourceError(f"{path} labels {len(labels)} rows of bag {bag!r}, which has {size}")
        for label in labels:
            unknown = label in UNKNOWN
            found.append(-1 if unknown else labelling.index(label, f"{path}, bag {bag!r}"))
    return np.array(found, np.int32)
