"""CSV and TSV: one line for each row, in three forms.

*Long*: columns for the bag's id, the features, and the labels (one 0/1 column each, or one column
that lists them). *mimllearning*: the first line is the number of labels; label columns come last.
*Triple*: two or three files, for features, bag labels and row labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KeptColumn
from streammiml_tools.readers.base import BESIDE, Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.column_roles import (
    BAG_NAMES,
    UNKNOWN,
    bag_column,
    check_kept,
    chosen,
    is_number_text,
    label_columns,
    looks_like_labels,
    mark_names,
    row_label_column,
)
from streammiml_tools.readers.csv_cells import (
    BLOCK_BYTES,
    LINE_TIMES,
    SEPARATORS,
    SUFFIXES,
    CellLayout,
    add_types,
    check_columns,
    column_values,
    first_lines,
    read_long,
    separator_of,
    split_cells,
)
from streammiml_tools.readers.csv_triple import is_triple, read_triple, scan_triple
from streammiml_tools.readers.kept_cells import CellTypes
from streammiml_tools.readers.labelling import (
    LABEL_SEPARATOR,
    cut_labels,
    label_numbers_of,
    labelling_of,
    numbered_names,
    refuse_joined,
)
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.remote_files import source_path
from streammiml_tools.readers.text import BLOCK_BYTES as FIRST_BYTES
from streammiml_tools.readers.text import (
    LineBlock,
    bare_suffix,
    byte_spans,
    last_lines,
    line_blocks,
    maybe_cut,
    twice,
    where,
)

NO_VALUE = ("", "na", "n/a", "null", "none", "?")


def tells(path: Path, head: bytes) -> bool:
    """Whether suffix and first line are those of CSV or TSV."""
    suffix = bare_suffix(path)
    if suffix not in SUFFIXES:
        return False
    if suffix != ".txt":
        return True
    lines = head.split(b"\n", 2)
    first = lines[1] if lines[0].strip().isdigit() and len(lines) > 1 else lines[0]
    is_other_format = head.lstrip()[:1] in (b">", b"@", b"{", b"%") or b"qid:" in first
    return not is_other_format and any(separator.encode() in first for separator in SEPARATORS)


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Find columns by the first lines, and label names by a pass over their column if needed."""
    if not options.no_labels and is_triple(paths, options):
        _refuse_keep(paths[0], options)
        for path in paths:
            if last_lines(path) is not None:
                raise maybe_cut(path)
        return scan_triple(paths, options)
    layouts = [layout_of(path, options) for path in paths]
    first = layouts[0]
    for path, layout in zip(paths, layouts, strict=True):
        if replace(layout, start=0) != replace(first, start=0):
            raise SourceError(
                f"{path} has other columns than {paths[0]}; convert files of one layout at a time"
            )
        if _may_be_cut(path, layout):
            raise maybe_cut(path)
    label_names, n_labels = _labels_found(paths, first, options)
    return Scan(
        spans=_spans(paths, layouts, options),
        n_features=len(first.features),
        label_names=label_names,
        n_labels=n_labels,
        feature_names=tuple(first.names[i] for i in first.features) if first.has_names else None,
        row_labels=first.row_label is not None,
        bag_ids=True,
        kept=_kept_found(paths, layouts, options),
        notes=_notes(first),
    )


def _kept_found(
    paths: Sequence[Path], layouts: Sequence[CellLayout], options: SourceOptions
) -> tuple[KeptColumn, ...]:
    """Types of the kept columns, by a pass over their cells in all files."""
    types = CellTypes(layouts[0].names[i] for i in layouts[0].kept)
    if layouts[0].kept:
        for path, layout in zip(paths, layouts, strict=True):
            for lines in _data_blocks(path, layout.start, options, BLOCK_BYTES):
                add_types(lines, layout, types)
    return types.columns()


def _refuse_keep(path: Path, options: SourceOptions) -> None:
    if options.kept_names:
        raise SourceError(
            f"{path}: --keep needs one file with a line a row and a column of bag ids, not the "
            "forms of mimllearning and of three files"
        )


def _spans(
    paths: Sequence[Path], layouts: Sequence[CellLayout], options: SourceOptions
) -> tuple[Span, ...]:
    spans: list[Span] = []
    for path, layout in zip(paths, layouts, strict=True):
        spans += byte_spans(path, options.span_bytes, layout.start)
    return tuple(spans)


def _may_be_cut(path: Path, layout: CellLayout) -> bool:
    """Whether the last value of a file may be cut, as its line has no line break."""
    lines = last_lines(path)
    if lines is None:
        return False
    before, last = lines
    column = len(layout.names) - 1
    # One digit cannot be cut in two, and a line without its last mark is refused as too short.
    if column in layout.marks:
        return False
    if last.endswith(b'"') and b'""' not in last and not last.count(b'"') % 2:
        return False
    if column != layout.label_list:
        return True
    # If the line before has the same bag, cut labels differ from its labels and are refused.
    ids = [split_cells(line, layout.separator, path, layout.start) for line in (before, last)]
    return any(len(cells) <= column for cells in ids) or ids[0][layout.bag] != ids[1][layout.bag]


def _notes(layout: CellLayout) -> tuple[str, ...]:
    used = {*layout.texts_and_kept, *layout.numbers}
    left_out = [name for i, name in enumerate(layout.names) if i not in used]
    if layout.label_list is not None:
        labels = f"labels listed in column {layout.names[layout.label_list]!r}"
    elif layout.marks:
        labels = f"labels from {len(layout.marks)} columns of 0 and 1"
    else:
        labels = "no labels"
    notes = [
        f"bags by column {layout.names[layout.bag]!r}",
        f"{len(layout.features)} features, from column {layout.names[layout.features[0]]!r} on",
        labels,
    ]
    if layout.row_label is not None:
        notes.append(f"labels of rows from column {layout.names[layout.row_label]!r}")
    if layout.kept:
        notes.append(f"kept: columns {listed([layout.names[i] for i in layout.kept])}")
    if left_out:
        notes.append(f"left out: columns {listed(left_out)}")
    return tuple(notes)


def layout_of(path: Path, options: SourceOptions) -> CellLayout:
    """Layout of a file, from its first lines and the options."""
    return _layout(path, path.stat().st_mtime_ns, options)


@lru_cache(maxsize=64)
def _layout(path: Path, _changed: int, options: SourceOptions) -> CellLayout:
    lines = first_lines(path, options)
    if lines[0][1].strip().isdigit() and len(lines) > 1 and options.header is None:
        return _mimllearning(path, lines, options)
    separator = separator_of(path, lines[0][1], options)
    check_columns(path, lines[0][1].count(separator.encode()) + 1, options)
    cells = [split_cells(line, separator, path, offset) for offset, line in lines]
    header = _has_header(path, cells[0], options)
    names = (
        tuple(cell.strip() for cell in cells[0])
        if header
        else tuple(str(i + 1) for i in range(len(cells[0])))
    )
    repeated = twice(names)
    if repeated is not None:
        raise SourceError(f"{where(path, 0)}: two columns are called {repeated!r}; rename one")
    sample = [row for row in cells[header:] if len(row) == len(names)]
    if len(lines) < 1 + header:
        if b"\r" in lines[0][1]:
            raise SourceError(
                f"{path} has a carriage return alone at the end of its lines; "
                "tr '\\r' '\\n' makes them line breaks"
            )
        raise SourceError(f"{path} has no line of data, only the names of columns")
    start = lines[1][0] if header else lines[0][0]
    return _long(path, names, sample, options, separator, start, header)


def _has_header(path: Path, cells: Sequence[str], options: SourceOptions) -> bool:
    if options.header is not None:
        return options.header
    numbers = sum(map(is_number_text, cells))
    if numbers == len(cells):
        return False
    known = {options.bag_column, *BAG_NAMES}
    if not numbers or any(cell in known or cell.lower() in known for cell in map(str.strip, cells)):
        return True
    raise SourceError(
        f"{where(path, 0)}: is {listed(cells[:4])} a line of names or of data? "
        "give --header or --no-header"
    )


def _long(
    path: Path,
    names: tuple[str, ...],
    sample: Sequence[Sequence[str]],
    options: SourceOptions,
    separator: str,
    start: int,
    header: bool,
) -> CellLayout:
    bag = bag_column(path, names, options, header)
    row_label = row_label_column(path, names, options)
    kept = chosen(path, names, options.kept_names, "--keep")
    marks, label_list = label_columns(path, names, sample, options, {bag, row_label, *kept})
    taken = {bag, row_label, label_list, *marks}
    check_kept(path, [names[i] for i in kept], [names[i] for i in taken if i is not None])
    taken |= {*kept}
    if options.feature_columns is not None:
        features = chosen(path, names, options.feature_columns, "--feature-columns")
        claimed = [names[i] for i in features if i in taken]
        if claimed:
            raise SourceError(
                f"{path}: column {claimed[0]!r} is a feature and has another role too"
            )
    else:
        features = tuple(
            i
            for i in range(len(names))
            if i not in taken
            and not (options.no_labels and looks_like_labels(names[i]))
            and _may_be_number(sample, i)
        )
        like_ids = [names[i] for i in features if names[i].lower() in BAG_NAMES]
        if like_ids:
            raise SourceError(
                f"{path}: is column {like_ids[0]!r} a feature? name the features by "
                "--feature-columns"
            )
    if not features:
        raise SourceError(
            f"{path} has no column of numbers for features; name the features by --feature-columns"
        )
    if label_list is not None and separator == (options.label_separator or LABEL_SEPARATOR):
        raise SourceError(
            f"{path}: {separator!r} is between columns and between labels; "
            "give --label-separator, the separator of labels"
        )
    return CellLayout(
        separator=separator,
        start=start,
        names=names,
        has_names=header,
        bag=bag,
        features=features,
        marks=marks,
        mark_names=mark_names([names[i] for i in marks]) if header else None,
        label_list=label_list,
        row_label=row_label,
        kept=kept,
    )


def _may_be_number(sample: Sequence[Sequence[str]], column: int) -> bool:
    """Whether any of the first cells is a number or a common mark of a missing number."""
    cells = [row[column].strip() for row in sample]
    return any(is_number_text(cell) or cell.lower() in NO_VALUE for cell in map(str.strip, cells))


def _mimllearning(path: Path, lines: list[tuple[int, bytes]], options: SourceOptions) -> CellLayout:
    _refuse_keep(path, options)
    n_labels = int(lines[0][1])
    separator = separator_of(path, lines[1][1], options)
    check_columns(path, lines[1][1].count(separator.encode()) + 1, options)
    first = split_cells(lines[1][1], separator, path, lines[1][0])
    if not 1 <= n_labels < len(first) - 1:
        raise SourceError(
            f"{where(path, 0)}: {n_labels} labels (the first line) do not fit into lines of "
            f"{len(first)} columns: the bag's id, features, labels"
        )
    header = not all(map(is_number_text, first[1:]))
    if header and len(lines) < 3:
        raise SourceError(f"{path} has no line of data, only the names of columns")
    names = (
        tuple(cell.strip() for cell in first)
        if header
        else tuple(str(i + 1) for i in range(len(first)))
    )
    n_columns = len(names)
    first_mark = n_columns - n_labels
    marks = () if options.no_labels else tuple(range(first_mark, n_columns))
    return CellLayout(
        separator=separator,
        start=lines[1 + header][0],
        names=names,
        has_names=header,
        bag=0,
        features=tuple(range(1, first_mark)),
        marks=marks,
        mark_names=tuple(names[i] for i in marks) if header else None,
    )


def _labels_found(
    paths: Sequence[Path], layout: CellLayout, options: SourceOptions
) -> tuple[tuple[str, ...] | None, int | None]:
    """Label names, and the number of labels if it is known."""
    if layout.marks:
        if layout.mark_names is None:
            return numbered_names(len(layout.marks), options, str(paths[0])), len(layout.marks)
        label_numbers_of(layout.mark_names, options, str(paths[0]))
        names = options.labels or layout.mark_names
        return names, len(names)
    if options.labels is not None:
        return options.labels, len(options.labels)
    columns = [column for column in layout.texts if column != layout.bag]
    if not columns:
        return None, None
    first_values = column_values(
        islice(_data_blocks(paths[0], layout.start, options), 1), layout, columns, options
    )
    # If later labels are names, reading refuses them.
    if _are_numbers(_labels_in(first_values, layout, options)):
        return None, None
    labels: set[str] = set()
    by_number: Path | None = None
    for path in paths:
        start = layout_of(path, options).start
        blocks = _data_blocks(path, start, options, BLOCK_BYTES)
        labels_of_file = _labels_in(
            column_values(blocks, layout, columns, options), layout, options
        )
        if labels_of_file and _are_numbers(labels_of_file):
            by_number = by_number or path
        labels |= labels_of_file
    refuse_joined(labels, options, str(paths[0]))
    labelling = labelling_of(labels, options)
    if by_number is not None and labelling.names is not None:
        raise SourceError(
            f"{by_number} gives labels by number, other files by name; give --labels FILE, with "
            "one name a line in the order of the numbers"
        )
    return labelling.names, None if labelling.names is None else len(labelling.names)


def _data_blocks(
    path: Path, start: int, options: SourceOptions, block_bytes: int = FIRST_BYTES
) -> Iterator[LineBlock]:
    return line_blocks(
        path,
        start,
        aligned=True,
        block_bytes=block_bytes,
        limits=options.limits,
        times=LINE_TIMES,
    )


def _are_numbers(labels: set[str]) -> bool:
    return all(label.isascii() and label.isdigit() for label in labels)


def _labels_in(
    values: set[tuple[int, str]], layout: CellLayout, options: SourceOptions
) -> set[str]:
    labels: set[str] = set()
    for column, cell in values:
        if column == layout.row_label:
            labels |= {cell.strip()} - set(UNKNOWN)
        else:
            labels |= set(cut_labels(cell, options))
    return labels


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags whose first line begins in the span."""
    if BESIDE in span.path:
        return read_triple(span, scan, options)
    path = source_path(span.path)
    return read_long(span, layout_of(path, options), scan, options)


READER = Reader(
    name="csv",
    suffixes=tuple(SUFFIXES),
    line="CSV and TSV: a line a row, or the forms of mimllearning and of three files",
    tells=tells,
    scan=scan,
    read=read,
    streams=True,
    may_lack_labels=True,
)
