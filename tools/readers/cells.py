"""Lines of cells, parsed by pyarrow a block at a time, become bags.

Cells may be quoted, but no cell may go over several lines: files are cut into spans at any line.
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
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.columns import UNKNOWN, is_number_text
from streammiml_tools.readers.labelling import (
    Labelling,
    cut_labels,
    labelling_in,
    labels_of_marks,
    places_of,
)
from streammiml_tools.readers.long_form import Piece, other_labels, run_starts, whole_bags
from streammiml_tools.readers.text import Lines, as_text, bare_suffix, line_blocks, where

I64 = NDArray[np.int64]

BLOCK_BYTES = 4 << 20
"""Bytes of text that are parsed together, about."""
PARSE_BYTES = 1 << 20
TAIL_BYTES = 256 << 10
"""The same, behind a span, where the last bag may end soon."""
SAMPLED = 100
"""Lines that are looked at to tell what the columns are."""
SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": None}
"""Suffixes of files, and what is between columns there if it occurs at all."""
SEPARATORS = (",", "\t", ";", "|")
SPOKEN = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of a file are; numbers of columns count from 0."""

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

    @property
    def texts(self) -> list[int]:
        """Columns that are read as text."""
        others = (self.label_list, self.row_label)
        return [self.bag, *(column for column in others if column is not None)]

    @property
    def numbers(self) -> list[int]:
        """Columns that are read as numbers."""
        return [*self.features, *self.marks]


def first_lines(path: Path) -> list[tuple[int, bytes]]:
    """Some lines with their offsets, at least one; empty ones are left out."""
    lines: list[tuple[int, bytes]] = []
    for block in line_blocks(path):
        lines += [each for each in islice(block.each(), SAMPLED) if each[1].strip()]
        # A form that needs more than one line to be told needs three.
        if len(lines) >= 3:
            break
    if not lines:
        raise SourceError(f"{path} is empty")
    return lines


def separator_of(path: Path, line: bytes, options: SourceOptions) -> str:
    """What is between columns: by the user, by suffix, or the only one that a line has."""
    if options.separator is not None:
        found = SPOKEN.get(options.separator, options.separator)
        if len(found) != 1 or not found.isascii():
            raise SourceError(f"--separator must be one character, got {options.separator!r}")
        return found
    there = [separator for separator in SEPARATORS if separator.encode() in line]
    usual = SUFFIXES.get(bare_suffix(path))
    if usual in there:
        return str(usual)
    if len(there) != 1:
        what = "no known separator" if not there else f"{' and '.join(map(repr, there))} both"
        raise SourceError(
            f"{where(path, 0)}: {what} in the first line; --separator says what is between columns"
        )
    return there[0]


def split_cells(line: bytes, separator: str, path: str | Path, offset: int) -> list[str]:
    """Cells of one line, as pyarrow would cut it."""
    text = as_text(line, path, offset)
    if '"' not in text:
        return text.split(separator)
    if text.count('"') % 2:
        raise SourceError(
            f"{where(path, offset)}: a quote is not closed on its line; cells cannot go over lines"
        )
    try:
        return next(plain_csv.reader([text], delimiter=separator))
    except plain_csv.Error as error:
        raise SourceError(f"{where(path, offset)}: no line of cells ({error})") from None


def column_values(
    blocks: Iterable[Lines], layout: Layout, columns: list[int]
) -> set[tuple[int, str]]:
    """What stands in some columns of text: cells are cut, but no others made into anything."""
    found: set[tuple[int, str]] = set()
    for lines in blocks:
        table = _table(lines, layout, columns, [])
        for column in columns:
            cells = pc.unique(table.column(str(column))).to_pylist()
            found |= {(column, cell) for cell in cells}
    return found


def read_long(span: Span, layout: Layout, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Bags whose first line begins in the span."""
    labelling = labelling_in(scan)

    def pieces(start: int, stop: int | None, block_bytes: int) -> Iterator[Piece]:
        aligned = start <= layout.start
        for lines in line_blocks(span.path, start, stop, aligned=aligned, block_bytes=block_bytes):
            piece = _piece(lines, layout, labelling, options)
            if piece is not None:
                yield piece

    return whole_bags(
        pieces(span.start, span.stop, BLOCK_BYTES),
        lambda: pieces(span.stop, None, TAIL_BYTES),
        _id_before(span, layout),
        group=options.group,
    )


def _id_before(span: Span, layout: Layout) -> str | None:
    """The bag of the line before a span's first."""
    reach = 4096
    while span.start > layout.start:
        start = max(layout.start, span.start - reach)
        blocks = line_blocks(
            span.path, start, span.start, aligned=start == layout.start, block_bytes=TAIL_BYTES
        )
        lines = [each for block in blocks for each in block.each() if each[1].strip()]
        if lines:
            offset, line = lines[-1]
            cells = split_cells(line, layout.separator, span.path, offset)
            # A line that is too short is refused where it is read.
            return cells[layout.bag] if len(cells) > layout.bag else None
        if start == layout.start:
            break
        reach *= 8
    return None


def _piece(
    lines: Lines, layout: Layout, labelling: Labelling, options: SourceOptions
) -> Piece | None:
    table = _table(lines, layout, layout.texts, layout.numbers)
    if not table.num_rows:
        return None
    rows = _matrix(table, layout.features)
    # Minimum and maximum carry NaN and infinity, and read faster than a mask is made.
    if not np.isfinite([rows.min(), rows.max()]).all():
        _table_by_cell(lines, layout, layout.texts, layout.numbers)
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
        offsets, rows, label_offsets, labels, row_labels, ids.take(pa.array(firsts)).to_pylist()
    )
    if "" in (block.bag_ids or ()):
        row = int(offsets[(block.bag_ids or []).index("")])
        raise SourceError(f"{locate(row)}: the bag's id is empty")
    return Piece(block, locate)


def _changes(cells: pa.Array) -> NDArray[np.bool_]:
    found = pc.not_equal(cells.slice(1), cells.slice(0, len(cells) - 1))
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def _refuse_other(
    changes: NDArray[np.bool_], offsets: I64, ids: pa.Array, locate: Callable[[int], str]
) -> None:
    """Refuse labels that change within a bag."""
    within = changes.copy()
    within[offsets[1:-1] - 1] = False
    if within.any():
        row = int(within.argmax()) + 1
        raise other_labels(locate(row), ids[row].as_py())


def _marked(
    table: pa.Table,
    layout: Layout,
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
            "--label-columns says which columns are labels"
        )
    changes = (marks[1:] != marks[:-1]).any(axis=1)
    _refuse_other(changes, offsets, table.column(str(layout.bag)), locate)
    places = None
    if layout.mark_names is not None and labelling.names is not None:
        places = places_of(layout.mark_names, options, "")
    return labels_of_marks(marks[offsets[:-1]], "", places)


def _from_lists(
    cells: pa.Array,
    rows: I64,
    labelling: Labelling,
    options: SourceOptions,
    locate: Callable[[int], str],
) -> tuple[I64, NDArray[np.int32]]:
    known: dict[str, list[int]] = {}
    found: list[list[int]] = []
    for row, cell in zip(rows.tolist(), cells.take(pa.array(rows)).to_pylist(), strict=True):
        if cell not in known:
            try:
                known[cell] = labelling.indices(cut_labels(cell, options), "")
            except SourceError as error:
                raise SourceError(f"{locate(row)}{error}") from None
        found.append(known[cell])
    labels = np.array([label for of in found for label in of], np.int32)
    return from_sizes([len(of) for of in found]), labels


def _row_labels(
    cells: pa.ChunkedArray, labelling: Labelling, locate: Callable[[int], str]
) -> NDArray[np.int32]:
    encoded = cells.combine_chunks().dictionary_encode()
    names, places = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    numbers = np.empty(len(names), np.int32)
    for i, name in enumerate(names):
        try:
            label = name.strip()
            numbers[i] = -1 if label in UNKNOWN else labelling.index(label, "")
        except SourceError as error:
            raise SourceError(f"{locate(int((places == i).argmax()))}{error}") from None
    return np.asarray(numbers[places], np.int32)


def _matrix(table: pa.Table, columns: Sequence[int]) -> NDArray[np.float32]:
    """Columns side by side, a row contiguous."""
    batches = table.select([str(i) for i in columns]).to_batches()
    parts: list[NDArray[Any]] = [batch.to_tensor().to_numpy() for batch in batches]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _table(lines: Lines, layout: Layout, texts: list[int], numbers: list[int]) -> pa.Table:
    """Some columns, called by their numbers: text as it is, numbers as float32."""
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
    """Bytes that one thread parses; a line must fit into them."""
    several = content.count(b"\n", 0, PARSE_BYTES) > 16
    return PARSE_BYTES if several else len(content) + 1


def _refuse_open_quotes(lines: Lines) -> None:
    for offset, line in lines.each():
        if line.count(b'"') % 2:
            split_cells(line, ",", lines.path, offset)


def _table_by_cell(lines: Lines, layout: Layout, texts: list[int], numbers: list[int]) -> pa.Table:
    """The same, cell by cell: knows ``+1``, and what is wrong."""
    kept: list[list[str]] = []
    values: list[list[float]] = []
    for offset, line in lines.each():
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
    found = {str(i): pa.array([cells[i] for cells in kept], pa.string()) for i in texts}
    for place, i in enumerate(numbers):
        found[str(i)] = pa.array([of[place] for of in values], pa.float32())
    return pa.table(found)


def _number(cell: str, name: str, lines: Lines, offset: int) -> float:
    if not is_number_text(cell):
        said = "is empty" if not cell else f"is {cell[:40]!r}"
        raise SourceError(
            f"{where(lines.path, offset)}: column {name!r} {said}, expected a number; "
            "mend it, or --feature-columns leaves the column out"
        )
    value = float(cell)
    if not abs(value) <= FLOAT32_MAX:
        raise SourceError(
            f"{where(lines.path, offset)}: column {name!r} is {cell}; only finite numbers within "
            "float32 can be stored; mend it, or --feature-columns leaves the column out"
        )
    return value


def _offset_of(lines: Lines, row: int) -> int:
    """Where the line of a row begins; empty lines are no rows."""
    rows = (offset for offset, line in lines.each() if line)
    return next(islice(rows, row, None), lines.offset)
