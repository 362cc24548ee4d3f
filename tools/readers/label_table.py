"""A table of labels beside the bags: one line for each bag, in CSV, TSV, Parquet or Arrow.

The table has a column with the ids of the bags, and either a column of 0/1 marks for each label or
one column that lists labels. It gives labels to the bags of any reader that gives ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes, gather
from streammiml_tools.readers.arrow_tables import is_text, open_table
from streammiml_tools.readers.base import Limits, SourceError, SourceOptions
from streammiml_tools.readers.column_roles import (
    BAG_NAMES,
    LIST_NAMES,
    MARK_NAME,
    called,
    chosen,
    mark_names,
)
from streammiml_tools.readers.csv_cells import separator_of, split_cells
from streammiml_tools.readers.labelling import (
    cut_labels,
    label_numbers_of,
    labelling_of,
    labels_of_marks,
    refuse_joined,
)
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes
from streammiml_tools.readers.messages import listed, reason_of
from streammiml_tools.readers.remote_files import source_path
from streammiml_tools.readers.text import BOM, bare_suffix, last_lines, maybe_cut, open_bytes, twice

I64 = NDArray[np.int64]

TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
TABLE_SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows")
TEXT_TIMES = 6
"""Memory for a table of text while it is parsed, as a multiple of its bytes."""
PIECE_BYTES = 1 << 20
MARKS = {"0": 0, "1": 1, "-1": -1, "0.0": 0, "1.0": 1, "true": 1, "false": 0}
"""Texts of marks, in lower case."""


@dataclass(frozen=True, slots=True, eq=False)
class BagLabels:
    """Labels of bags by the ids of the bags."""

    where: str
    """Name of the table, for messages."""
    column: str
    """Name of the column of ids."""
    rows: dict[str, int]
    """Number of the record of each bag."""
    names: tuple[str, ...] | None
    n_labels: int | None
    offsets: I64
    indices: NDArray[np.int32]
    note: str
    """A line for the user: which columns hold what."""

    def labelled(self, block: BagBlock, where: str) -> BagBlock:
        """Return the bags of a block with the labels of the table.

        A bag that is not in the table, or a block without ids, raises SourceError.
        """
        if block.bag_ids is None:
            raise no_ids(where)
        self.refuse_missing(block.bag_ids, where)
        records = np.array([self.rows[name] for name in block.bag_ids], np.int64)
        offsets, labels = gather(self.offsets, records)
        return replace(
            block, label_offsets=offsets, label_indices=self.indices[labels], row_labels=None
        )

    def refuse_missing(self, ids: Sequence[str], where: str) -> None:
        """Refuse bags that are not in the table, and name them."""
        missing = [name for name in ids if name not in self.rows]
        if missing:
            example = next(iter(self.rows))
            count = "bag" if len(missing) == 1 else f"{len(missing):,} bags"
            raise SourceError(
                f"{where}: {count} {listed(map(repr, missing))} not in {self.where}, column "
                f"{self.column!r}, whose ids are like {example!r}; add a line for each bag, or "
                "remove the bag"
            )

    def without_bag(self, ids: Sequence[str]) -> list[str]:
        """Ids of the table that no bag has."""
        present = set(ids)
        return [name for name in self.rows if name not in present]


def no_ids(where: str) -> SourceError:
    """The error for a source without ids, which a table of labels needs."""
    return SourceError(
        f"{where}: the bags have no ids, by which --bag-labels finds their labels; name the ids by "
        "--bag-column"
    )


def load_label_table(path: str, options: SourceOptions) -> BagLabels:
    """Read the table that ``--bag-labels`` names; a table that was read already is kept."""
    try:
        status = source_path(path).stat()
    except OSError as error:
        raise SourceError(f"--bag-labels {path} cannot be read: {error.strerror}") from None
    relevant = SourceOptions(
        labels=options.labels,
        bag_column=options.bag_column,
        label_columns=options.label_columns,
        separator=options.separator if bare_suffix(path) in TEXT_SUFFIXES else None,
        label_separator=options.label_separator,
        limits=options.limits,
    )
    return _loaded(path, status.st_size, status.st_mtime_ns, relevant)


@lru_cache(maxsize=2)
def _loaded(path: str, size: int, changed: int, options: SourceOptions) -> BagLabels:  # noqa: ARG001
    suffix = bare_suffix(path)
    if suffix in TEXT_SUFFIXES:
        return label_table_of(_text_table(source_path(path), options), path, options)
    if suffix in TABLE_SUFFIXES:
        return label_table_of(_arrow_table(path, options.limits), path, options)
    raise SourceError(
        f"--bag-labels {path} is of no known format; save the table as .csv, .tsv or .parquet"
    )


def _text_table(path: Path, options: SourceOptions) -> pa.Table:
    """The cells of a CSV or TSV file as text."""
    content = _content(path, options.limits)
    first = content.partition(b"\n")[0].removesuffix(b"\r")
    if not first.strip():
        raise SourceError(f"{path} is empty, or its first line is; it must name the columns")
    separator = separator_of(path, first, options)
    names = [name.strip() for name in split_cells(first, separator, path, 0)]
    repeated = twice(names)
    if repeated is not None:
        raise SourceError(f"{path}: two columns are called {repeated!r}; rename one")
    try:
        return csv.read_csv(
            pa.BufferReader(content),
            read_options=csv.ReadOptions(
                column_names=names, skip_rows=1, block_size=max(len(content), 1), use_threads=False
            ),
            parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError, ValueError) as error:
        raise SourceError(f"{path} is not a table of text ({reason_of(error)})") from None


def _content(path: Path, limits: Limits) -> bytes:
    """The decompressed bytes of a file; more than fit into memory are refused."""
    held = HeldBytes(str(path), "a table of labels", limits)
    pieces: list[bytes] = []
    with open_bytes(path) as stream:
        while piece := stream.read(PIECE_BYTES):
            held.add(TEXT_TIMES * len(piece))
            pieces.append(piece)
    return b"".join(pieces).removeprefix(BOM)


def _arrow_table(path: str, limits: Limits) -> pa.Table:
    table = open_table(path)
    table.check_memory(limits)
    held = HeldBytes(path, "a table of labels", limits)
    names = table.schema.names
    repeated = twice(names)
    if repeated is not None:
        raise SourceError(f"{path}: two columns are called {repeated!r}; rename one")
    columns = [name for name in names if _may_be_used(table.schema.field(name).type)]
    batches = []
    for _, batch in table.batches(0, table.n_groups, columns, limits):
        held.add(2 * batch.nbytes)
        batches.append(batch)
    schema = pa.schema([table.schema.field(name) for name in columns])
    if not batches:
        return schema.empty_table()
    return pa.Table.from_batches(batches)


def _may_be_used(kind: pa.DataType) -> bool:
    """Whether a column may hold ids, marks or lists of labels."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        is_text(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind)
    )


def label_table_of(table: pa.Table, where: str, options: SourceOptions) -> BagLabels:
    """Find the columns of a table, and read its ids and labels."""
    names = table.column_names
    if not table.num_rows:
        raise SourceError(f"{where} holds no bags, only the names of columns")
    column = names[_bag_column(where, names, options)]
    marks, listing = _label_columns(where, table, column, options)
    held = HeldBytes(where, "ids and labels of bags", options.limits)
    rows = _rows_by_id(where, table.column(column), column, held)
    if listing is None:
        labelled = _from_marks(where, table, marks, list(rows), options, held)
        note = f"{len(marks)} columns of 0 and 1"
    else:
        labelled = _from_lists(where, table, listing, list(rows), options, held)
        note = f"column {listing!r}"
    label_names, n_labels, offsets, indices = labelled
    note = f"labels of bags from {note} of {where}, bags by its column {column!r}"
    return BagLabels(where, column, rows, label_names, n_labels, offsets, indices, note)


def _bag_column(where: str, names: Sequence[str], options: SourceOptions) -> int:
    path = source_path(where)
    if options.bag_column is not None:
        return chosen(path, names, [options.bag_column], "--bag-column")[0]
    candidates = called(names, BAG_NAMES) or [
        i for i, name in enumerate(names) if name.lower().endswith("_id")
    ]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        which = " and ".join(repr(names[i]) for i in candidates[:2])
        raise SourceError(f"{where}: columns {which} may both name the bag; give --bag-column")
    raise SourceError(
        f"{where}: which column names the bag? give --bag-column; the columns are {listed(names)}",
        page="convert",
    )


def _label_columns(
    where: str, table: pa.Table, bag: str, options: SourceOptions
) -> tuple[list[str], str | None]:
    """Find the columns of 0/1 marks, or else the column that lists labels."""
    names = table.column_names
    if options.no_labels:
        raise SourceError("--bag-labels gives labels, and --label-columns none leaves them out")
    if options.label_columns is not None:
        columns = [
            names[i]
            for i in chosen(source_path(where), names, options.label_columns, "--label-columns")
        ]
        is_list = len(columns) == 1 and (
            columns[0].lower() in LIST_NAMES or not _is_marks(table.column(columns[0]))
        )
        return ([], columns[0]) if is_list else (columns, None)
    others = [name for name in names if name != bag]
    lists = [name for name in others if name.lower() in LIST_NAMES]
    if not lists:
        prefixed = [name for name in others if MARK_NAME.fullmatch(name)]
        if prefixed:
            return prefixed, None
        if others and all(_is_marks(table.column(name)) for name in others):
            return others, None
    if len(lists) == 1:
        return [], lists[0]
    raise SourceError(
        f"{where}: which columns hold labels? name the column that lists them, or all columns of 0 "
        f"and 1, by --label-columns; the columns are {listed(names)}"
    )


def _is_marks(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return False
    return {
        str(value).strip().lower() for value in pc.unique(column.slice(0, 1000)).to_pylist()
    } <= {*MARKS}


def _rows_by_id(where: str, column: pa.ChunkedArray, name: str, held: HeldBytes) -> dict[str, int]:
    """Number of the record of each id; bags that stand twice are named."""
    rows: dict[str, int] = {}
    repeated: dict[str, None] = {}
    for record, value in enumerate(_values(column)):
        text = "" if value is None else str(value).strip()
        if not text:
            raise SourceError(f"{where}, record {record}: the bag's id ({name!r}) is empty")
        if text in rows:
            repeated[text] = None
            continue
        held.add(2 * ID_BYTES + len(text))
        rows[text] = record
    if repeated:
        count = "bag" if len(repeated) == 1 else f"{len(repeated):,} bags"
        stand = "stands" if len(repeated) == 1 else "stand"
        raise SourceError(
            f"{where}: {count} {listed(map(repr, repeated))} {stand} twice in column {name!r}; "
            "keep one line for each bag"
        )
    return rows


def _values(column: pa.ChunkedArray) -> Iterator[Any]:
    """The values of a column as Python objects, a chunk of limited size at a time."""
    for chunk in column.chunks:
        for start in range(0, len(chunk), 1 << 16):
            yield from chunk.slice(start, 1 << 16).to_pylist()


Labelled = tuple[tuple[str, ...] | None, int | None, I64, NDArray[np.int32]]
"""Label names, number of labels, and offsets and numbers of the labels of each bag."""


def _from_marks(
    where: str,
    table: pa.Table,
    marks: Sequence[str],
    ids: Sequence[str],
    options: SourceOptions,
    held: HeldBytes,
) -> Labelled:
    held.add(32 * table.num_rows * len(marks))
    matrix = np.empty((table.num_rows, len(marks)), np.int8)
    for column, name in enumerate(marks):
        for record, value in enumerate(_values(table.column(name))):
            mark = MARKS.get(str(value).strip().lower())
            if mark is None:
                shown = "empty" if value in (None, "") else repr(value)[:40]
                raise SourceError(
                    f"{where}, bag {ids[record]!r}: the mark of label {name!r} is {shown}, "
                    "expected 0 or 1; name the label columns by --label-columns"
                )
            matrix[record, column] = mark
    names = mark_names(marks)
    assert names is not None
    label_numbers = label_numbers_of(names, options, where)
    offsets, indices = labels_of_marks(matrix, where, label_numbers)
    all_names = options.labels or names
    return all_names, None, offsets, indices


def _from_lists(
    where: str,
    table: pa.Table,
    listing: str,
    ids: Sequence[str],
    options: SourceOptions,
    held: HeldBytes,
) -> Labelled:
    labels: list[list[str | int]] = []
    is_cell = False
    for record, value in enumerate(_values(table.column(listing))):
        if isinstance(value, str):
            is_cell = True
            bag_labels: list[Any] = list(cut_labels(value, options))
        else:
            bag_labels = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(label, str | int) for label in bag_labels):
            raise SourceError(
                f"{where}, bag {ids[record]!r}: {listing!r} is {str(value)[:40]}, expected names "
                "or numbers of labels"
            )
        held.add(ID_BYTES + 8 * len(bag_labels))
        labels.append(bag_labels)
    different = {label for bag_labels in labels for label in bag_labels}
    if is_cell:
        refuse_joined((str(label) for label in different), options, where)
        _refuse_cut(where, labels)
    labelling = labelling_of(different, options, where)
    numbers = [
        labelling.indices(bag_labels, f"{where}, bag {bag!r}")
        for bag, bag_labels in zip(ids, labels, strict=True)
    ]
    flat = np.array([number for bag_numbers in numbers for number in bag_numbers], np.int32)
    return labelling.names, labelling.n_labels, from_sizes([len(n) for n in numbers]), flat


def _refuse_cut(where: str, labels: Sequence[Sequence[str | int]]) -> None:
    """Refuse a text file whose last label may be cut.

    The file ends without a line break, and no other bag has that label.
    """
    path = source_path(where)
    if bare_suffix(path) not in TEXT_SUFFIXES or last_lines(path) is None or not labels[-1]:
        return
    last = labels[-1][-1]
    if not any(last in bag_labels for bag_labels in labels[:-1]):
        raise maybe_cut(path)
