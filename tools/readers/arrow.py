"""Parquet, Arrow IPC and Feather, as written by Spark, DuckDB, Polars and Hugging Face.

*Long*: one record for each row, with the bag's id, features (columns, or one list) and labels.
*Nested*: one record for each bag, with a list of rows. *Flat*: one record for each bag, with the
values of all rows in one list, and the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streammiml._base.json_and_toml import parse_json
from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import TEXT, Kept, KeptColumn, as_texts
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.offsets import cuts_by_bytes, from_sizes, gather
from streammiml_tools.readers.arrow_tables import (
    IPC,
    PARQUET,
    STREAM,
    TableFile,
    is_text,
    open_partition,
)
from streammiml_tools.readers.base import Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.column_roles import (
    LIST_NAMES,
    MARK_NAME,
    UNKNOWN,
    bag_column,
    called,
    check_kept,
    chosen,
    looks_like_labels,
    mark_names,
    row_label_column,
)
from streammiml_tools.readers.labelling import (
    Labelling,
    cut_labels,
    label_numbers_of,
    labelling_in,
    labelling_of,
    labels_of_marks,
    refuse_joined,
)
from streammiml_tools.readers.long_form import RowRun, other_labels, run_starts, whole_bags
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.remote_files import source_path
from streammiml_tools.readers.text import bare_suffix

I64 = NDArray[np.int64]
Locate = Callable[[int], str]

SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows")
ROWS_NAMES = ("instances", "rows", "features", "x", "embeddings", "embedding", "vectors")
COUNT_NAMES = ("n_rows", "n_instances", "num_rows", "num_instances")
ID_NAMES = ("bag_id", "id", "bag", "bagid")


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Roles of the columns of a table."""

    form: str
    """``long``, ``nested`` or ``flat``; see the top of this module."""
    bag: str | None
    features: tuple[str, ...]
    is_list: bool
    """Whether the features of a row, or the rows of a bag, are one column."""
    n_rows: str | None
    marks: tuple[str, ...]
    label_list: str | None
    row_label: str | None
    kept: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """All columns that are read."""
        names = (
            self.bag,
            *self.features,
            self.n_rows,
            *self.marks,
            self.label_list,
            self.row_label,
            *self.kept,
        )
        return [name for name in names if name is not None]


def tells(path: Path, head: bytes) -> bool:
    """Whether first bytes or suffix are those of Parquet or Arrow."""
    known = head.startswith((PARQUET, IPC)) or (
        head.startswith(STREAM) and bare_suffix(path) in SUFFIXES
    )
    return known or bare_suffix(path) in SUFFIXES


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Read schema and sizes; label names need a pass over their column."""
    tables = [open_partition(path) for path in paths]
    for table in tables:
        table.check_memory(options.limits)
    layout = layout_of(tables[0], options)
    for table in tables[1:]:
        _refuse_other_schema(table, tables[0], layout)
    _refuse_label_types(tables[0], layout)
    width, value_type = _width_and_type(tables, layout, options)
    kept = kept_types(tables, layout, options)
    names, n_labels = _labels_found(tables, layout, options)
    n_records = sum(sum(table.group_records) for table in tables)
    is_long = layout.form == "long"
    return Scan(
        spans=tuple(span for table in tables for span in _spans(table, options)),
        n_features=width,
        dtype=value_type.name if value_type.name in ROW_DTYPES else "float32",
        label_names=names,
        n_labels=n_labels,
        feature_names=None if layout.is_list else layout.features,
        row_labels=layout.row_label is not None,
        bag_ids=layout.bag is not None,
        kept=kept,
        n_bags=None if is_long else n_records,
        n_rows=n_records if is_long else None,
        holds_bytes=max(table.held_bytes for table in tables),
        notes=_notes(layout, tables[0]),
    )


def _spans(table: TableFile, options: SourceOptions) -> list[Span]:
    cuts = cuts_by_bytes(np.array(table.group_bytes, np.int64), options.span_bytes)
    return [
        Span(table.path, start, stop, sum(table.group_bytes[start:stop])) for start, stop in cuts
    ]


def _notes(layout: TableLayout, table: TableFile) -> tuple[str, ...]:
    form_notes = {
        "long": "a record a row",
        "nested": f"a record a bag, rows listed in {layout.features[0]!r}",
        "flat": f"a record a bag, values in {layout.features[0]!r}, rows counted in "
        f"{layout.n_rows!r}",
    }
    notes = [form_notes[layout.form]]
    notes += [f"bags by column {layout.bag!r}"] if layout.bag else ["bags have no ids"]
    if layout.form == "long":
        first = layout.features[0]
        notes.append(
            f"features listed in column {first!r}"
            if layout.is_list
            else f"{len(layout.features)} features, from column {first!r} on"
        )
    if layout.label_list:
        notes.append(f"labels from column {layout.label_list!r}")
    elif layout.marks:
        notes.append(f"labels from {len(layout.marks)} columns of 0 and 1")
    else:
        notes.append("no labels")
    notes += [f"labels of rows from column {layout.row_label!r}"] if layout.row_label else []
    notes += [f"kept: columns {listed(layout.kept)}"] if layout.kept else []
    if table.partition:
        notes.append(
            f"columns from the names of folders: {listed(key for key, _ in table.partition)}"
        )
    left_out = [name for name in table.schema.names if name not in layout.columns]
    return (*notes, f"left out: columns {listed(left_out)}") if left_out else tuple(notes)


# --- columns -----------------------------------------------------------------------------------


def layout_of(table: TableFile, options: SourceOptions) -> TableLayout:
    """Layout of a table, by names and types of its columns and the options."""
    path, names = source_path(table.path), table.schema.names
    if len(set(names)) != len(names):
        raise SourceError(f"{path}: two columns have the same name; rename one")
    row_label = row_label_column(path, names, options)
    kept = tuple(names[i] for i in chosen(path, names, options.kept_names, "--keep"))
    rows = _rows_column(path, table, options, kept)
    depth = 0 if rows is None else _depth(table.schema.field(rows).type)
    counts = [names[i] for i in called(names, COUNT_NAMES)] if depth == 1 else []
    form = "nested" if depth == 2 else "flat" if counts else "long"
    bag: str | None
    if form == "long":
        bag = names[bag_column(path, names, options, True)]
    else:
        bag = _id_column(path, names, options)
    taken = {bag, rows, *counts, None if row_label is None else names[row_label]}
    marks, label_list = _label_columns(path, table, options, {*taken, *kept})
    used = [name for name in (*taken, *marks, label_list) if name is not None]
    check_kept(path, kept, used)
    features = (
        (rows,)
        if rows is not None
        else _scalar_features(path, table, options, {*taken, *marks, label_list, *kept})
    )
    check_kept(path, kept, features)
    return TableLayout(
        form=form,
        bag=bag,
        features=features,
        is_list=rows is not None,
        n_rows=counts[0] if counts else None,
        marks=marks,
        label_list=label_list,
        row_label=None if row_label is None else names[row_label],
        kept=kept,
    )


def layout_of_rows(table: TableFile, options: SourceOptions) -> TableLayout:
    """Layout of a table whose records are the rows of one bag: only features have a role."""
    names = table.schema.names
    kept = tuple(
        names[i] for i in chosen(source_path(table.path), names, options.kept_names, "--keep")
    )
    rows = _rows_column(source_path(table.path), table, options, kept)
    if rows is not None and _depth(table.schema.field(rows).type) != 1:
        raise SourceError(
            f"{table.path}: column {rows!r} holds lists of rows, so a record is a bag; "
            "convert it without a file for each bag: --format arrow"
        )
    labels: set[str | None] = {name for name in names if looks_like_labels(name)} | {*kept}
    features = (
        (rows,)
        if rows is not None
        else _scalar_features(source_path(table.path), table, options, labels)
    )
    check_kept(Path(table.path), kept, features)
    return TableLayout(
        form="long",
        bag=None,
        features=features,
        is_list=rows is not None,
        n_rows=None,
        marks=(),
        label_list=None,
        row_label=None,
        kept=kept,
    )


def width_and_type(
    table: TableFile, layout: TableLayout, options: SourceOptions
) -> tuple[int, str]:
    """Number of values in a row, and the name of their type."""
    width, value_type = _width_and_type([table], layout, options)
    return width, value_type.name


def all_rows(
    table: TableFile, layout: TableLayout, width: int, options: SourceOptions
) -> NDArray[Any]:
    """Return the features of all records."""
    parts = []
    for first, batch in table.batches(0, table.n_groups, layout.columns, options.limits):
        parts.append(_bag_rows(batch, layout, width, _locator(table, first))[1])
    return np.concatenate(parts) if parts else np.empty((0, width), np.float32)


def all_kept(table: TableFile, columns: Sequence[KeptColumn], options: SourceOptions) -> Kept:
    """Return the kept columns of all records, each of which is a row."""
    parts = [{column.name: column.empty() for column in columns}]
    names = [column.name for column in columns]
    for first, batch in table.batches(0, table.n_groups, names, options.limits):
        parts.append(kept_values(batch, columns, None, _locator(table, first)))
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _depth(kind: pa.DataType) -> int:
    """Depth of nested lists of numbers, 0 for plain numbers; −1 for any other type."""
    depth, kind = 0, _storage(kind)
    while _is_list(kind):
        depth, kind = depth + 1, _storage(kind.value_type)
    return depth if _is_number(kind) else -1


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _rows_column(
    path: Path, table: TableFile, options: SourceOptions, kept: Sequence[str]
) -> str | None:
    """Column of lists that holds the rows; None if every feature has its own column."""
    names = table.schema.names
    if options.feature_columns is not None:
        columns = [
            names[i] for i in chosen(path, names, options.feature_columns, "--feature-columns")
        ]
        depths = [_depth(table.schema.field(name).type) for name in columns]
        for name, depth in zip(columns, depths, strict=True):
            if depth not in (0, 1, 2) or (depth and len(columns) > 1):
                raise SourceError(
                    f"{path}: features cannot be read from column {name!r} of type "
                    f"{table.schema.field(name).type}; expected numbers, or one column of lists"
                )
        return columns[0] if depths[0] else None
    candidates = [names[i] for i in called(names, ROWS_NAMES)]
    candidates = [
        name
        for name in candidates
        if name not in kept and _depth(table.schema.field(name).type) in (1, 2)
    ]
    if len(candidates) > 1:
        raise SourceError(
            f"{path}: columns {candidates[0]!r} and {candidates[1]!r} may both hold rows; "
            "give --feature-columns"
        )
    return candidates[0] if candidates else _only_rows(table, kept)


def _only_rows(table: TableFile, kept: Sequence[str]) -> str | None:
    """The only column that can hold rows: of lists of lists, or else the only numbers at all."""
    depths = {field.name: _depth(field.type) for field in table.schema if field.name not in kept}
    nested = [name for name, depth in depths.items() if depth == 2]
    if nested:
        return nested[0] if len(nested) == 1 else None
    floats = [
        field.name
        for field in table.schema
        if depths.get(field.name) in (0, 1) and _holds_floats(field.type)
    ]
    return floats[0] if len(floats) == 1 and depths[floats[0]] == 1 else None


def _holds_floats(kind: pa.DataType) -> bool:
    """Whether numbers, or the numbers in lists, are floats; integers may be labels or counts."""
    kind = _storage(kind)
    while _is_list(kind):
        kind = _storage(kind.value_type)
    return bool(pa.types.is_floating(kind))


def _id_column(path: Path, names: Sequence[str], options: SourceOptions) -> str | None:
    if options.bag_column is not None:
        return names[chosen(path, names, [options.bag_column], "--bag-column")[0]]
    candidates = called(names, ID_NAMES)
    if len(candidates) > 1:
        which = " and ".join(repr(names[i]) for i in candidates)
        raise SourceError(f"{path}: columns {which} may both name the bag; give --bag-column")
    return names[candidates[0]] if candidates else None


def _scalar_features(
    path: Path, table: TableFile, options: SourceOptions, taken: set[str | None]
) -> tuple[str, ...]:
    names = table.schema.names
    if options.feature_columns is not None:
        return tuple(
            names[i] for i in chosen(path, names, options.feature_columns, "--feature-columns")
        )
    for name in names:
        kind = table.schema.field(name).type
        if name not in taken and pa.types.is_decimal(kind):
            raise SourceError(
                f"{path}: column {name!r} is {kind}; write it as float32 or float64, or leave it "
                "out by --feature-columns"
            )
    features = tuple(
        name
        for name in names
        if name not in taken
        and not (options.no_labels and looks_like_labels(name))
        and _is_number(_storage(table.schema.field(name).type))
    )
    if not features:
        raise SourceError(
            f"{path} has no column of numbers for features; name the features by "
            f"--feature-columns; the columns are {listed(names)}"
        )
    return features


def _label_columns(
    path: Path, table: TableFile, options: SourceOptions, taken: set[str | None]
) -> tuple[tuple[str, ...], str | None]:
    """Find the columns of 0/1 marks, or the column that lists labels; neither without labels."""
    names = table.schema.names
    if options.no_labels:
        return (), None
    if options.label_columns is not None:
        columns = [names[i] for i in chosen(path, names, options.label_columns, "--label-columns")]
        kind = table.schema.field(columns[0]).type
        if len(columns) == 1 and not pa.types.is_boolean(kind):
            return (), columns[0]
        return tuple(columns), None
    lists = [names[i] for i in called(names, LIST_NAMES) if names[i] not in taken]
    marks = tuple(name for name in names if name not in taken and MARK_NAME.fullmatch(name))
    if (lists and marks) or len(lists) > 1:
        candidates = [*lists, *marks]
        raise SourceError(
            f"{path}: columns {candidates[0]!r} and {candidates[1]!r} may both hold labels; "
            "give --label-columns"
        )
    if not lists and not marks:
        raise SourceError(
            f"{path}: which columns hold labels? name them by --label-columns, or give none; "
            f"the columns are {listed(names)}"
        )
    return marks, lists[0] if lists else None


def _refuse_other_schema(table: TableFile, first: TableFile, layout: TableLayout) -> None:
    for name in layout.columns:
        index = table.schema.get_field_index(name)
        kind = first.schema.field(name).type
        if index < 0 or table.schema.field(index).type != kind:
            other_type = "no column" if index < 0 else f"{table.schema.field(index).type} as"
            raise SourceError(
                f"{table.path} has {other_type} {name!r}, but {first.path} has {kind}; convert "
                "files of one schema at a time"
            )


def _width_and_type(
    tables: Sequence[TableFile], layout: TableLayout, options: SourceOptions
) -> tuple[int, np.dtype[Any]]:
    """Number of values in a row, and the type that holds them."""
    schema = tables[0].schema
    if not layout.is_list:
        kinds = [_storage(schema.field(name).type).to_pandas_dtype() for name in layout.features]
        return len(layout.features), np.result_type(*kinds)
    kind, widths = _storage(schema.field(layout.features[0]).type), []
    while _is_list(kind):
        widths.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = _storage(kind.value_type)
    value_type = np.dtype(kind.to_pandas_dtype())
    if layout.form != "flat" and widths[-1] is not None:
        return widths[-1], value_type
    for table in tables:
        for first, batch in table.batches(0, table.n_groups, layout.columns, options.limits):
            width = _first_width(batch, layout, _locator(table, first))
            if width:
                return width, value_type
    raise SourceError(f"{tables[0].path} has no rows at all")


def _first_width(batch: pa.RecordBatch, layout: TableLayout, locate: Locate) -> int:
    """Number of values in the first row of a batch; 0 if the batch has no rows."""
    sizes, values = _unwrapped(batch.column(layout.features[0]), layout.features[0], locate)
    if layout.form == "flat":
        rows = _counts(batch, layout, locate)
        at = int((rows > 0).argmax())
        return int(sizes[at] // rows[at]) if rows[at] else 0
    if layout.form == "nested":
        ends = from_sizes(sizes)
        sizes, _ = _unwrapped(values, layout.features[0], lambda row: locate(_item_of(ends, row)))
    return int(sizes[0]) if len(sizes) else 0


# --- kept columns ------------------------------------------------------------------------------


def kept_types(
    tables: Sequence[TableFile], layout: TableLayout, options: SourceOptions
) -> tuple[KeptColumn, ...]:
    """Types of the kept columns by the schema; the width of lists by the first row."""
    columns = []
    for name in sorted(layout.kept):
        declared = tables[0].schema.field(name).type
        kind = _storage(declared)
        # Where a record is a bag, it lists the values of its rows.
        of_bags = layout.form != "long"
        if of_bags:
            kind = _storage(kind.value_type) if _is_list(kind) else pa.null()
        is_list = _is_list(kind)
        leaf = _label_type(kind)
        dtype = TEXT if is_text(leaf) else None
        if _is_number(leaf) or pa.types.is_boolean(leaf):
            dtype = "uint8" if pa.types.is_boolean(leaf) else np.dtype(leaf.to_pandas_dtype()).name
        if dtype is None or (is_list and dtype == TEXT):
            raise SourceError(
                f"{tables[0].path}: column {name!r} of type {declared} cannot be kept; expected a "
                f"number, a text or a list of numbers for each row{', listed' if of_bags else ''}"
            )
        width = 1
        if is_list:
            width = _kept_width(tables, name, kind, of_bags, options)
        columns.append(KeptColumn(name, dtype, width))
    return tuple(columns)


def _kept_width(
    tables: Sequence[TableFile],
    name: str,
    kind: pa.DataType,
    of_bags: bool,
    options: SourceOptions,
) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    for table in tables:
        for first, batch in table.batches(0, table.n_groups, [name], options.limits):
            values, locate = batch.column(name), _locator(table, first)
            if of_bags:
                values = _unwrapped(values, name, locate)[1]
            sizes, _ = _unwrapped(values, name, partial(_first_record, locate))
            if len(sizes):
                return int(sizes[0])
    return 1


def _first_record(locate: Locate, _: int) -> str:
    return locate(0)


def kept_values(
    batch: pa.RecordBatch, columns: Sequence[KeptColumn], rows: I64 | None, locate: Locate
) -> Kept:
    """Kept columns of a batch; ``rows`` counts the rows of each record, None if each is a row."""
    return {column.name: _kept_values(batch, column, rows, locate) for column in columns}


def _kept_values(
    batch: pa.RecordBatch, column: KeptColumn, rows: I64 | None, locate: Locate
) -> NDArray[Any]:
    name, values = column.name, _plain(batch.column(column.name))
    ends = np.arange(batch.num_rows + 1)
    if rows is not None:
        sizes, values = _unwrapped(values, name, locate)
        if not (sizes == rows).all():
            at = int((sizes != rows).argmax())
            raise SourceError(f"{locate(at)}: {sizes[at]} values of {name!r} for {rows[at]} rows")
        ends = from_sizes(sizes)

    def record_of(row: int) -> int:
        return _item_of(ends, row)

    if _is_list(values.type):
        widths, values = _unwrapped(values, name, lambda row: locate(record_of(row)))
        if not (widths == column.width).all():
            row = int((widths != column.width).argmax())
            raise SourceError(
                f"{locate(record_of(row))}: {name!r} has {widths[row]} values, expected "
                f"{column.width} for each row"
            )
    values = _plain(values)
    if not pa.types.is_floating(values.type):
        _refuse_nulls(values, name, locate, lambda i: record_of(i // column.width))
    if column.dtype == TEXT:
        return as_texts(values.to_pylist())
    # A null among floats becomes NaN, which is how pandas writes it.
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    numbers = numbers.astype(np.uint8) if numbers.dtype == bool else numbers
    return numbers if column.width == 1 else numbers.reshape(-1, column.width)


# --- labels ------------------------------------------------------------------------------------


def _labels_found(
    tables: Sequence[TableFile], layout: TableLayout, options: SourceOptions
) -> tuple[tuple[str, ...] | None, int | None]:
    if layout.marks:
        column_labels = mark_names(layout.marks)
        assert column_labels is not None
        label_numbers_of(column_labels, options, tables[0].path)
        all_labels = options.labels or column_labels
        return all_labels, len(all_labels)
    if options.labels is not None:
        return options.labels, len(options.labels)
    if layout.label_list is None:
        return None, None
    kind = _label_type(tables[0].schema.field(layout.label_list).type)
    if pa.types.is_integer(kind):
        names = _class_names(tables[0].schema, layout.label_list)
        return names, None if names is None else len(names)
    if not is_text(kind):
        raise _no_labels(tables[0], layout.label_list)
    labels = _names_in(tables, layout, options)
    if not _is_list(_storage(tables[0].schema.field(layout.label_list).type)):
        refuse_joined(labels, options, str(tables[0].path))
    labelling = labelling_of(labels, options)
    return labelling.names, None if labelling.names is None else len(labelling.names)


def _refuse_label_types(table: TableFile, layout: TableLayout) -> None:
    """Refuse label columns of other types than texts, numbers and nulls."""
    for name in (layout.label_list, layout.row_label):
        if name is None:
            continue
        kind = _label_type(table.schema.field(name).type)
        if not (is_text(kind) or _is_number(kind) or pa.types.is_null(kind)):
            raise _no_labels(table, name)


def _no_labels(table: TableFile, name: str) -> SourceError:
    return SourceError(
        f"{table.path}: labels cannot be read from column {name!r} of type "
        f"{table.schema.field(name).type}; expected names or numbers"
    )


def _label_type(kind: pa.DataType) -> pa.DataType:
    kind = _storage(kind)
    if _is_list(kind):
        kind = _storage(kind.value_type)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _class_names(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Class names that Hugging Face datasets store in the schema, for labels given by number."""
    metadata = (schema.metadata or {}).get(b"huggingface")
    if metadata is None:
        return None
    try:
        feature = parse_json(metadata)["info"]["features"][column]
    except (ValueError, KeyError, TypeError):
        return None
    while isinstance(feature, dict) and "feature" in feature:
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def _names_in(tables: Sequence[TableFile], layout: TableLayout, options: SourceOptions) -> set[str]:
    """Distinct names in the label columns; other columns are not read."""
    labels: set[str] = set()
    assert layout.label_list is not None
    columns = [layout.label_list]
    if layout.row_label and is_text(_label_type(tables[0].schema.field(layout.row_label).type)):
        columns.append(layout.row_label)
    for table in tables:
        for _, batch in table.batches(0, table.n_groups, columns, options.limits):
            for name in columns:
                column = _plain(batch.column(name))
                texts = _flat(column) if _is_list(column.type) else column
                for text in pc.unique(_plain(texts)).to_pylist():
                    if text is not None and name == layout.row_label:
                        labels |= {text} - set(UNKNOWN)
                    elif text is not None:
                        labels.update(
                            [text] if _is_list(column.type) else cut_labels(text, options)
                        )
    return labels


# --- arrays ------------------------------------------------------------------------------------


def _locator(table: TableFile, first: int) -> Locate:
    return lambda record: f"{table.path}, record {first + record}"


def _plain(column: pa.Array) -> pa.Array:
    """Convert extension types, dictionaries and other text types to plain arrays.

    List views stay as they are: casting them to lists loses values in pyarrow 26.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.string())
    return column


def _flat(column: pa.Array) -> pa.Array:
    return _plain(column.flatten())


def _refuse_nulls(column: pa.Array, name: str, locate: Locate, record_of: Any = None) -> None:
    """Refuse a null; ``record_of`` maps an index in the column to its record, if they differ."""
    if column.null_count:
        position = int(np.asarray(column.is_null().to_numpy(zero_copy_only=False)).argmax())
        record = position if record_of is None else int(record_of(position))
        raise SourceError(
            f"{locate(record)}: {name!r} is null or contains a null; fill it or drop it"
        )


def _unwrapped(column: pa.Array, name: str, locate: Locate) -> tuple[I64, pa.Array]:
    """Lengths of the lists in a column, and their concatenated items."""
    column = _plain(column)
    _refuse_nulls(column, name, locate)
    sizes = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes, _flat(column)


def _numbers(values: pa.Array, name: str, locate: Locate, record_of: Any) -> NDArray[Any]:
    """Values as an array, all finite."""
    values = _plain(values)
    _refuse_nulls(values, name, locate, record_of)
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if (
        numbers.dtype.kind == "f"
        and numbers.size
        and not np.isfinite([numbers.min(), numbers.max()]).all()
    ):
        position = int((~np.isfinite(numbers)).argmax())
        raise SourceError(
            f"{locate(int(record_of(position)))}: {name!r} holds {numbers[position]}; only finite "
            "numbers can be stored"
        )
    return numbers


def _counts(batch: pa.RecordBatch, layout: TableLayout, locate: Locate) -> I64:
    assert layout.n_rows is not None
    column = _plain(batch.column(layout.n_rows))
    _refuse_nulls(column, layout.n_rows, locate)
    counts = column.to_numpy(zero_copy_only=False)
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        at = int((counts < 0).argmax())
        raise SourceError(f"{locate(at)}: {layout.n_rows!r} is {counts[at]}, expected a count")
    return np.asarray(counts, np.int64)


def _item_of(ends: I64, position: int) -> int:
    """Number of the item that contains a position, given the offsets of items."""
    return int(np.searchsorted(ends, position, "right")) - 1


def _bag_rows(
    batch: pa.RecordBatch, layout: TableLayout, width: int, locate: Locate
) -> tuple[I64, NDArray[Any]]:
    """Number of rows in each record, and the matrix of all rows."""
    name = layout.features[0]
    if layout.form == "long" and not layout.is_list:
        return np.ones(batch.num_rows, np.int64), _matrix(batch, layout.features, locate)
    sizes, inner = _unwrapped(batch.column(name), name, locate)
    ends = from_sizes(sizes)

    if layout.form == "nested":
        widths, values = _unwrapped(inner, name, lambda row: locate(_item_of(ends, row)))
        rows = sizes
        if not (widths == width).all():
            row = int((widths != width).argmax())
            raise SourceError(
                f"{locate(_item_of(ends, row))}: a row of {widths[row]} values, expected {width}; "
                "correct or remove the record"
            )
    else:
        rows = (
            np.ones(len(sizes), np.int64)
            if layout.form == "long"
            else _counts(batch, layout, locate)
        )
        values = inner
        if not (sizes == rows * width).all():
            at = int((sizes != rows * width).argmax())
            expected = width * int(rows[at])
            raise SourceError(f"{locate(at)}: {sizes[at]} values in {name!r}, expected {expected}")
    row_ends = from_sizes(rows)
    numbers = _numbers(values, name, locate, lambda position: _item_of(row_ends, position // width))
    return rows, numbers.reshape(-1, width)


def _matrix(batch: pa.RecordBatch, columns: Sequence[str], locate: Locate) -> NDArray[Any]:
    """Columns of numbers as a matrix in C order."""
    arrays = [_plain(batch.column(name)) for name in columns]
    for name, array in zip(columns, arrays, strict=True):
        _refuse_nulls(array, name, locate)
    if len({array.type for array in arrays}) > 1:
        # pyarrow makes a matrix of float16 columns only if all columns are float16.
        arrays = [_wider(array) for array in arrays]
    matrix = pa.RecordBatch.from_arrays(arrays, list(columns)).to_tensor().to_numpy()
    if (
        matrix.dtype.kind == "f"
        and matrix.size
        and not np.isfinite([matrix.min(), matrix.max()]).all()
    ):
        row, column = (int(i) for i in np.argwhere(~np.isfinite(matrix))[0])
        raise SourceError(
            f"{locate(row)}: {columns[column]!r} is {matrix[row, column]}; only finite numbers can "
            "be stored"
        )
    return np.asarray(matrix)


def _wider(array: pa.Array) -> pa.Array:
    """Convert float16 to float32; leave other types unchanged."""
    if not pa.types.is_float16(array.type):
        return array
    return pa.array(array.to_numpy(zero_copy_only=False).astype(np.float32))


def _labels(
    batch: pa.RecordBatch,
    layout: TableLayout,
    labelling: Labelling,
    options: SourceOptions,
    locate: Locate,
) -> tuple[I64, NDArray[np.int32]]:
    """Label offsets and sorted label numbers of the records."""
    if layout.marks:
        return _marked(batch, layout, options, locate)
    if layout.label_list is None:
        return np.zeros(batch.num_rows + 1, np.int64), np.empty(0, np.int32)
    column = _plain(batch.column(layout.label_list))
    if _is_list(column.type):
        sizes, texts = _unwrapped(column, layout.label_list, locate)
    else:
        _refuse_nulls(column, layout.label_list, locate)
        sizes, texts = np.ones(len(column), np.int64), column
        if is_text(column.type):
            lists = [cut_labels(text, options) for text in column.to_pylist()]
            sizes = np.array([len(bag_labels) for bag_labels in lists], np.int64)
            texts = pa.array([label for bag_labels in lists for label in bag_labels], pa.string())
    offsets = from_sizes(sizes)
    record = np.repeat(np.arange(len(sizes)), sizes)
    numbers = _indices(texts, layout.label_list, labelling, lambda i: locate(int(record[i])))
    order = np.lexsort((numbers, record))
    numbers = numbers[order]
    is_repeated = (np.diff(numbers) == 0) & (np.diff(record) == 0)
    if is_repeated.any():
        at = int(is_repeated.argmax())
        name = numbers[at] if labelling.names is None else repr(labelling.names[numbers[at]])
        raise SourceError(f"{locate(int(record[at]))}: label {name} occurs twice; remove one")
    return offsets, numbers


def _indices(
    labels: pa.Array, name: str, labelling: Labelling, locate: Locate, unknown: bool = False
) -> NDArray[np.int32]:
    """Label numbers; if ``unknown`` is allowed, −1 for labels that are null, empty or −1."""
    labels = _plain(labels)
    if not unknown:
        _refuse_nulls(labels, name, locate)
    encoded = labels.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    numbers = np.empty(len(encoded.dictionary), np.int32)
    for i, label in enumerate(encoded.dictionary.to_pylist()):
        if unknown and (label is None or label == -1 or label in UNKNOWN):
            numbers[i] = -1
            continue
        try:
            numbers[i] = labelling.index(label, "")
        except SourceError as error:
            raise SourceError(f"{locate(int((codes == i).argmax()))}{error}") from None
    return np.asarray(numbers[codes], np.int32)


def _marked(
    batch: pa.RecordBatch, layout: TableLayout, options: SourceOptions, locate: Locate
) -> tuple[I64, NDArray[np.int32]]:
    arrays = []
    for name in layout.marks:
        column = _plain(batch.column(name))
        _refuse_nulls(column, name, locate)
        try:
            arrays.append(column.to_numpy(zero_copy_only=False).astype(np.float32))
        except (ValueError, TypeError):
            raise SourceError(
                f"{locate(0)}: label column {name!r} is {column.type}, expected 0 or 1; "
                "name the label columns by --label-columns"
            ) from None
    marks = np.stack(arrays, axis=1)
    wrong = (marks != 0) & (marks != 1)
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        raise SourceError(
            f"{locate(row)}: label column {layout.marks[column]!r} is {marks[row, column]:g}, "
            "expected 0 or 1; name the label columns by --label-columns"
        )
    column_labels = mark_names(layout.marks)
    assert column_labels is not None
    return labels_of_marks(marks, "", label_numbers_of(column_labels, options, ""))


def _row_labels(
    batch: pa.RecordBatch, layout: TableLayout, labelling: Labelling, rows: I64, locate: Locate
) -> NDArray[np.int32] | None:
    if layout.row_label is None:
        return None
    column = _plain(batch.column(layout.row_label))
    if layout.form == "long":
        return _indices(column, layout.row_label, labelling, locate, unknown=True)
    sizes, labels = _unwrapped(column, layout.row_label, locate)
    if not (sizes == rows).all():
        at = int((sizes != rows).argmax())
        raise SourceError(f"{locate(at)}: {sizes[at]} labels of rows for {rows[at]} rows")
    record = np.repeat(np.arange(len(sizes)), sizes)
    return _indices(
        labels, layout.row_label, labelling, lambda i: locate(int(record[i])), unknown=True
    )


def _ids(column: pa.Array, name: str, locate: Locate) -> pa.Array:
    column = _plain(column)
    _refuse_nulls(column, name, locate)
    if not (is_text(column.type) or pa.types.is_integer(column.type)):
        raise SourceError(
            f"{locate(0)}: ids in {name!r} are {column.type}, expected text or numbers"
        )
    return column.cast(pa.string())


# --- bags --------------------------------------------------------------------------------------


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags that begin in the groups of the span."""
    table = open_partition(span.path)
    layout = layout_of(table, options)
    if layout.form == "long":
        return _read_long(table, span, layout, scan, options)
    return _read_nested(table, span, layout, scan, options)


def _read_nested(
    table: TableFile, span: Span, layout: TableLayout, scan: Scan, options: SourceOptions
) -> Iterator[BagBlock]:
    labelling = labelling_in(scan)
    for first, batch in table.batches(span.start, span.stop, layout.columns, options.limits):
        locate = _locator(table, first)
        sizes, rows = _bag_rows(batch, layout, scan.n_features, locate)
        label_offsets, labels = _labels(batch, layout, labelling, options, locate)
        ids = None
        if layout.bag is not None:
            ids = _ids(batch.column(layout.bag), layout.bag, locate).to_pylist()
        row_labels = _row_labels(batch, layout, labelling, sizes, locate)
        kept = kept_values(batch, scan.kept, sizes, locate)
        yield BagBlock(from_sizes(sizes), rows, label_offsets, labels, row_labels, ids, kept)


def _read_long(
    table: TableFile, span: Span, layout: TableLayout, scan: Scan, options: SourceOptions
) -> Iterator[BagBlock]:
    labelling = labelling_in(scan)

    def pieces(start: int, stop: int) -> Iterator[RowRun]:
        for first, batch in table.batches(start, stop, layout.columns, options.limits):
            yield _piece(batch, layout, scan, labelling, options, _locator(table, first))

    return whole_bags(
        pieces(span.start, span.stop),
        lambda: pieces(span.stop, table.n_groups),
        _id_before(table, span, layout, options),
        group=options.group,
    )


def _id_before(
    table: TableFile, span: Span, layout: TableLayout, options: SourceOptions
) -> str | None:
    """Id of the bag in the last record before the span."""
    assert layout.bag is not None
    for group in reversed(range(span.start)):
        last = None
        for first, batch in table.batches(group, group + 1, [layout.bag], options.limits):
            last = _ids(batch.column(layout.bag), layout.bag, _locator(table, first))[-1].as_py()
        if last is not None:
            return str(last)
    return None


def _piece(
    batch: pa.RecordBatch,
    layout: TableLayout,
    scan: Scan,
    labelling: Labelling,
    options: SourceOptions,
    locate: Locate,
) -> RowRun:
    assert layout.bag is not None
    sizes, rows = _bag_rows(batch, layout, scan.n_features, locate)
    ids = _ids(batch.column(layout.bag), layout.bag, locate)
    changes = pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1))
    offsets = run_starts(np.asarray(changes.to_numpy(zero_copy_only=False), bool))
    label_offsets, labels = _labels(batch, layout, labelling, options, locate)
    _refuse_other_labels(offsets, label_offsets, labels, ids, locate)
    bag_label_offsets, positions = gather(label_offsets, offsets[:-1])
    block = BagBlock(
        offsets,
        rows,
        bag_label_offsets,
        labels[positions],
        _row_labels(batch, layout, labelling, sizes, locate),
        ids.take(pa.array(offsets[:-1])).to_pylist(),
        kept_values(batch, scan.kept, None, locate),
    )
    return RowRun(block, locate)


def _refuse_other_labels(
    runs: I64, label_offsets: I64, labels: NDArray[np.int32], ids: pa.Array, locate: Locate
) -> None:
    """Refuse rows whose labels differ from the labels of the first row of their bag."""
    firsts = np.repeat(runs[:-1], np.diff(runs))
    sizes = np.diff(label_offsets)
    wrong = sizes != sizes[firsts]
    same_size = np.flatnonzero(~wrong)
    ends, positions = gather(label_offsets, same_size)
    _, first_positions = gather(label_offsets, firsts[same_size])
    differ = labels[positions] != labels[first_positions]
    if differ.any():
        rows = np.repeat(same_size, np.diff(ends))
        wrong[rows[differ]] = True
    if wrong.any():
        row = int(wrong.argmax())
        raise other_labels(locate(row), ids[row].as_py())


READER = Reader(
    name="arrow",
    suffixes=SUFFIXES,
    line="Parquet, Arrow IPC and Feather: a record a row, or a record a bag",
    tells=tells,
    scan=scan,
    read=read,
    streams=True,
    may_lack_labels=True,
)
