"""Lines of cells (CSV, TSV) to bags; pyarrow parses a block of lines at a time.

Cells may be quoted, but may not contain line breaks: files are cut into spans at any line.
"""

from __future__ import annotations

import csv as plain_csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import Kept, KeptColumn
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.column_roles import UNKNOWN, is_number_text
from streammiml_tools.readers.kept_cells import CellTypes, kept_cells
from streammiml_tools.readers.labelling import (
    Labelling,
    cut_labels,
    label_numbers_of,
    labelling_in,
    labels_of_marks,
)
from streammiml_tools.readers.long_form import RowRun, other_labels, run_starts, whole_bags
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes, check_fits
from streammiml_tools.readers.text import (
    FLOAT32_LIMIT,
    LineBlock,
    as_text,
    bare_suffix,
    line_blocks,
    where,
)

I64 = NDArray[np.int64]

BLOCK_BYTES = 4 << 20
"""Size of a block of lines, approximately."""
PARSE_BYTES = 1 << 20
"""Size of the part of a block that one thread of pyarrow parses."""
TAIL_BYTES = 256 << 10
"""Size of a block beyond the end of a span, where the last bag probably ends soon."""
LINE_TIMES = 40
"""Memory for splitting a line into cells, as a multiple of its bytes."""
COLUMN_BYTES = 5000
"""Memory for a column while lines are parsed, as measured: pyarrow has buffers for each column."""
SAMPLED = 100
"""Number of first lines that determine the roles of columns."""
SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": None}
"""Suffixes of files, with the usual separator of columns."""
SEPARATORS = (",", "\t", ";", "|")
SEPARATOR_NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}


@dataclass(frozen=True, slots=True)
class CellLayout:
    """Roles of the columns of a file; columns are numbered from 0."""

    separator: str
    start: int
    """Offset of the first line of data."""
    names: tuple[str, ...]
    has_names: bool
    bag: int
    features: tuple[int, ...]
    marks: tuple[int, ...] = ()
    mark_names: tuple[str, ...] | None = None
    label_list: int | None = None
    row_label: int | None = None
    kept: tuple[int, ...] = ()

    @property
    def texts(self) -> list[int]:
        """Columns that are read as text."""
        optional = (self.label_list, self.row_label)
        return [self.bag, *(column for column in optional if column is not None)]

    @property
    def texts_and_kept(self) -> list[int]:
        """Columns whose cells are read unchanged."""
        return [*self.texts, *self.kept]

    @property
    def numbers(self) -> list[int]:
        """Columns that are read as numbers."""
        return [*self.features, *self.marks]


def first_lines(path: Path, options: SourceOptions) -> list[tuple[int, bytes]]:
    """The first lines that are not empty, at least one, with their offsets."""
    lines: list[tuple[int, bytes]] = []
    for block in line_blocks(path, limits=options.limits, times=LINE_TIMES):
        lines += [
            numbered for numbered in islice(block.with_offsets(), SAMPLED) if numbered[1].strip()
        ]
        # The form of mimllearning needs three lines: a number, names, data.
        if len(lines) >= 3:
            break
    if not lines:
        raise SourceError(f"{path} is empty")
    return lines


def check_columns(path: str | Path, n_columns: int, options: SourceOptions) -> None:
    """Refuse more columns than fit into memory; every column needs arrays of its own."""
    check_fits(f"{path}: a line of {n_columns:,} columns", COLUMN_BYTES * n_columns, options.limits)


def separator_of(path: Path, line: bytes, options: SourceOptions) -> str:
    """Separator of columns: by option, by suffix, or the only separator in the line."""
    if options.separator is not None:
        given = SEPARATOR_NAMES.get(options.separator, options.separator)
        if len(given) != 1 or not given.isascii():
            raise SourceError(f"--separator must be one character, got {options.separator!r}")
        return given
    present = [separator for separator in SEPARATORS if separator.encode() in line]
    usual = SUFFIXES.get(bare_suffix(path))
    if usual in present:
        return str(usual)
    if len(present) != 1:
        what = "no known separator" if not present else f"{' and '.join(map(repr, present))} both"
        raise SourceError(f"{where(path, 0)}: {what} in the first line; give --separator")
    return present[0]


def split_cells(line: bytes, separator: str, path: str | Path, offset: int) -> list[str]:
    """Split a line into cells, as pyarrow does."""
    text = as_text(line, path, offset)
    if '"' not in text:
        return text.split(separator)
    if text.count('"') % 2:
        raise SourceError(
            f"{where(path, offset)}: a quote is not closed on its line; a cell cannot contain a "
            "line break"
        )
    try:
        return next(plain_csv.reader([text], delimiter=separator))
    except plain_csv.Error as error:
        raise SourceError(f"{where(path, offset)}: not a line of cells ({error})") from None


def column_values(
    blocks: Iterable[LineBlock], layout: CellLayout, columns: list[int], options: SourceOptions
) -> set[tuple[int, str]]:
    """Distinct values of some text columns, as (column, cell); other columns are not converted."""
    values: set[tuple[int, str]] = set()
    held: HeldBytes | None = None
    for lines in blocks:
        held = held or HeldBytes(lines.path, "different ids and labels", options.limits)
        table = _table(lines, layout, columns, [])
        for column in columns:
            cells = pc.unique(table.column(str(column))).to_pylist()
            new = {(column, cell) for cell in cells} - values
            held.add(sum(2 * ID_BYTES + len(cell) for _, cell in new))
            values |= new
    return values


def read_long(
    span: Span, layout: CellLayout, scan: Scan, options: SourceOptions
) -> Iterator[BagBlock]:
    """Yield the bags whose first line begins in the span."""
    labelling = labelling_in(scan)

    def pieces(start: int, stop: int | None, block_bytes: int) -> Iterator[RowRun]:
        aligned = start <= layout.start
        blocks = line_blocks(
            span.path,
            start,
            stop,
            aligned=aligned,
            block_bytes=block_bytes,
            limits=options.limits,
            times=LINE_TIMES,
        )
        for lines in blocks:
            piece = _piece(lines, layout, labelling, scan.kept, options)
            if piece is not None:
                yield piece

    return whole_bags(
        pieces(span.start, span.stop, BLOCK_BYTES),
        lambda: pieces(span.stop, None, TAIL_BYTES),
        _id_before(span, layout, options),
        group=options.group,
        where=span.path,
        limits=options.limits,
    )


def _id_before(span: Span, layout: CellLayout, options: SourceOptions) -> str | None:
    """Id of the bag in the last line before the span."""
    reach = 4096
    while span.start > layout.start:
        start = max(layout.start, span.start - reach)
        blocks = line_blocks(
            span.path,
            start,
            span.start,
            aligned=start == layout.start,
            block_bytes=TAIL_BYTES,
            limits=options.limits,
            times=LINE_TIMES,
        )
        lines = [
            numbered for block in blocks for numbered in block.with_offsets() if numbered[1].strip()
        ]
        if lines:
            offset, line = lines[-1]
            cells = split_cells(line, layout.separator, span.path, offset)
            # A line that is too short is refused when its own span is read.
            return cells[layout.bag] if len(cells) > layout.bag else None
        if start == layout.start:
            break
        reach *= 8
    return None


def _piece(
    lines: LineBlock,
    layout: CellLayout,
    labelling: Labelling,
    kept: Sequence[KeptColumn],
    options: SourceOptions,
) -> RowRun | None:
    table = _table(lines, layout, layout.texts_and_kept, layout.numbers)
    if not table.num_rows:
        return None
    rows = _matrix(table, layout.features)
    # Minimum and maximum keep NaN and infinity, and are faster than a mask.
    if not np.isfinite([rows.min(), rows.max()]).all():
        _table_by_cell(lines, layout, layout.texts_and_kept, layout.numbers)
    ids = table.column(str(layout.bag)).combine_chunks()
    offsets = run_starts(_changes(ids))
    firsts = offsets[:-1]

    def locate(row: int) -> str:
        return where(lines.path, _offset_of(lines, row))

    if layout.marks:
        label_offsets, labels = _marked(table, layout, labelling, options, offsets, locate)
    elif layout.label_list is not None:
        cells = table.column(str(layout.label_list)).combine_chunks()
        _refuse_other(_changes(cells), offsets, ids, locate)
        label_offsets, labels = _from_lists(cells, firsts, labelling, options, locate)
    else:
        label_offsets, labels = np.zeros(len(offsets), np.int64), np.empty(0, np.int32)
    row_labels = None
    if layout.row_label is not None:
        row_labels = _row_labels(table.column(str(layout.row_label)), labelling, locate)
    block = BagBlock(
        offsets,
        rows,
        label_offsets,
        labels,
        row_labels,
        ids.take(pa.array(firsts)).to_pylist(),
        kept_cells(table, layout.names.index, kept, locate),
    )
    if "" in (block.bag_ids or ()):
        row = int(offsets[(block.bag_ids or []).index("")])
        raise SourceError(f"{locate(row)}: the bag's id is empty")
    return RowRun(block, locate)


def number_rows(lines: LineBlock, layout: CellLayout) -> NDArray[np.float32]:
    """Return the features of a block of lines; ids and labels are not read."""
    table = _table(lines, layout, [], list(layout.features))
    if not table.num_rows:
        return np.empty((0, len(layout.features)), np.float32)
    rows = _matrix(table, layout.features)
    if not np.isfinite([rows.min(), rows.max()]).all():
        _table_by_cell(lines, layout, [], list(layout.features))
    return rows


def add_types(lines: LineBlock, layout: CellLayout, types: CellTypes) -> None:
    """Take the kept cells of a block of lines into account."""
    table = _table(lines, layout, list(layout.kept), [])
    for column in layout.kept:
        types.add(layout.names[column], table.column(str(column)))


def kept_rows(lines: LineBlock, layout: CellLayout, columns: Sequence[KeptColumn]) -> Kept:
    """Kept columns of a block of lines; features are not read."""
    table = _table(lines, layout, list(layout.kept), [])
    return kept_cells(
        table,
        layout.names.index,
        columns,
        lambda row: where(lines.path, _offset_of(lines, row)),
    )


def _changes(cells: pa.Array) -> NDArray[np.bool_]:
    changes = pc.not_equal(cells.slice(1), cells.slice(0, len(cells) - 1))
    return np.asarray(changes.to_numpy(zero_copy_only=False), bool)


def _refuse_other(
    changes: NDArray[np.bool_], offsets: I64, ids: pa.Array, locate: Callable[[int], str]
) -> None:
    """Refuse labels that change within a bag."""
    changes_in_bag = changes.copy()
    changes_in_bag[offsets[1:-1] - 1] = False
    if changes_in_bag.any():
        row = int(changes_in_bag.argmax()) + 1
        raise other_labels(locate(row), ids[row].as_py())


def _marked(
    table: pa.Table,
    layout: CellLayout,
    labelling: Labelling,
    options: SourceOptions,
    offsets: I64,
    locate: Callable[[int], str],
) -> tuple[I64, NDArray[np.int32]]:
    marks = _matrix(table, layout.marks)
    bits, signs = (marks == 0) | (marks == 1), (marks == -1) | (marks == 1)
    if not bits.all() and not signs.all():
        wrong = ~signs if signs.sum() > bits.sum() else ~bits
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        name = layout.names[layout.marks[column]]
        raise SourceError(
            f"{locate(row)}: label column {name!r} is {marks[row, column]:g}, expected 0 or 1; "
            "name the label columns by --label-columns"
        )
    changes = (marks[1:] != marks[:-1]).any(axis=1)
    _refuse_other(changes, offsets, table.column(str(layout.bag)), locate)
    label_numbers = None
    if layout.mark_names is not None and labelling.names is not None:
        label_numbers = label_numbers_of(layout.mark_names, options, "")
    return labels_of_marks(marks[offsets[:-1]], "", label_numbers)


def _from_lists(
    cells: pa.Array,
    rows: I64,
    labelling: Labelling,
    options: SourceOptions,
    locate: Callable[[int], str],
) -> tuple[I64, NDArray[np.int32]]:
    labels_of_cell: dict[str, list[int]] = {}
    lists: list[list[int]] = []
    for row, cell in zip(rows.tolist(), cells.take(pa.array(rows)).to_pylist(), strict=True):
        if cell not in labels_of_cell:
            try:
                labels_of_cell[cell] = labelling.indices(cut_labels(cell, options), "")
            except SourceError as error:
                raise SourceError(f"{locate(row)}{error}") from None
        lists.append(labels_of_cell[cell])
    labels = np.array([label for bag_labels in lists for label in bag_labels], np.int32)
    return from_sizes([len(bag_labels) for bag_labels in lists]), labels


def _row_labels(
    cells: pa.ChunkedArray, labelling: Labelling, locate: Callable[[int], str]
) -> NDArray[np.int32]:
    encoded = cells.combine_chunks().dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    numbers = np.empty(len(names), np.int32)
    for i, name in enumerate(names):
        try:
            label = name.strip()
            numbers[i] = -1 if label in UNKNOWN else labelling.index(label, "")
        except SourceError as error:
            raise SourceError(f"{locate(int((codes == i).argmax()))}{error}") from None
    return np.asarray(numbers[codes], np.int32)


def _matrix(table: pa.Table, columns: Sequence[int]) -> NDArray[np.float32]:
    """Columns of numbers as a matrix in C order."""
    batches = table.select([str(i) for i in columns]).to_batches()
    parts: list[NDArray[Any]] = [batch.to_tensor().to_numpy() for batch in batches]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _table(lines: LineBlock, layout: CellLayout, texts: list[int], numbers: list[int]) -> pa.Table:
    """Table of some columns, named by their numbers: texts unchanged, numbers as float32."""
    types = {str(i): pa.float32() for i in numbers} | {str(i): pa.string() for i in texts}
    quoted = b'"' in lines.content
    if quoted:
        _refuse_open_quotes(lines)
    try:
        return csv.read_csv(
            pa.BufferReader(lines.content),
            read_options=csv.ReadOptions(
                column_names=[str(i) for i in range(len(layout.names))],
                block_size=_parse_bytes(lines.content),
            ),
            parse_options=csv.ParseOptions(
                delimiter=layout.separator, quote_char='"' if quoted else False
            ),
            convert_options=csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return _table_by_cell(lines, layout, texts, numbers)


def _parse_bytes(content: bytes) -> int:
    """Bytes that one thread parses; pyarrow needs at least one complete line."""
    several = content.count(b"\n", 0, PARSE_BYTES) > 16
    return PARSE_BYTES if several else len(content) + 1


def _refuse_open_quotes(lines: LineBlock) -> None:
    for offset, line in lines.with_offsets():
        if line.count(b'"') % 2:
            split_cells(line, ",", lines.path, offset)


def _table_by_cell(
    lines: LineBlock, layout: CellLayout, texts: list[int], numbers: list[int]
) -> pa.Table:
    """Parse cell by cell: slower than ``_table``, but accepts ``+1`` and names the invalid cell."""
    kept: list[list[str]] = []
    values: list[list[float]] = []
    for offset, line in lines.with_offsets():
        if not line:
            continue
        cells = split_cells(line, layout.separator, lines.path, offset)
        if len(cells) != len(layout.names):
            raise SourceError(
                f"{where(lines.path, offset)}: a line of {len(cells)} columns, expected "
                f"{len(layout.names)}; is it cut short, or is a separator missing?"
            )
        kept.append(cells)
        values.append([_number(cells[i], layout.names[i], lines, offset) for i in numbers])
    columns = {str(i): pa.array([cells[i] for cells in kept], pa.string()) for i in texts}
    for place, i in enumerate(numbers):
        columns[str(i)] = pa.array([row_values[place] for row_values in values], pa.float32())
    return pa.table(columns)


def _number(cell: str, name: str, lines: LineBlock, offset: int) -> float:
    if not is_number_text(cell):
        shown = "is empty" if not cell else f"is {cell[:40]!r}"
        raise SourceError(
            f"{where(lines.path, offset)}: column {name!r} {shown}, expected a number; "
            "correct it, or name the columns to keep with --feature-columns"
        )
    value = float(cell)
    if not abs(value) < FLOAT32_LIMIT:
        raise SourceError(
            f"{where(lines.path, offset)}: column {name!r} is {cell[:40]}; only finite numbers "
            "within float32 can be stored; correct it, or name the columns to keep with "
            "--feature-columns"
        )
    return value


def _offset_of(lines: LineBlock, row: int) -> int:
    """Offset of the line of a row; empty lines are not rows."""
    rows = (offset for offset, line in lines.with_offsets() if line)
    return next(islice(rows, row, None), lines.offset)
