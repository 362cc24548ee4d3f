"""A file that holds the rows of one bag: NumPy, HDF5, CSV, Parquet or Arrow.

``describe`` reads headers; ``rows_of`` reads the rows. Sizes are checked before anything is
allocated. HDF5 files are read as CLAM and TRIDENT write them: ``features`` of shape (rows,
features), or (1, rows, features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.kept_columns import (
    TEXT,
    Kept,
    KeptColumn,
    as_texts,
)
from streammiml.bags.kept_columns import n_bytes as column_bytes
from streammiml_tools.readers import arrow, column_roles, csv_cells, npz
from streammiml_tools.readers.arrow_tables import open_partition
from streammiml_tools.readers.bag_shapes import (
    HDF5,
    HDF5_FILES,
    NUMPY_FILES,
    has_no_offsets,
    inner_shape,
)
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.kept_cells import CellTypes, check_names, kept_column, storable_values
from streammiml_tools.readers.memory_checks import check_bag
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.numpy_bag import all_rows, array_of_rows, checked_shape, one_array
from streammiml_tools.readers.text import (
    LineBlock,
    bare_suffix,
    last_lines,
    line_blocks,
    maybe_cut,
    twice,
)


class BagFile(NamedTuple):
    """What the header of a file says of its bag."""

    n_features: int
    dtype: str
    n_bytes: int
    """Bytes of the rows in memory, or of the file where rows are text."""
    n_rows: int | None
    names: tuple[str, ...] | None = None
    """Names of the feature columns, if each has one."""
    left_out: tuple[str, ...] = ()
    """Columns that may hold labels, by their names."""


class OneBag(NamedTuple):
    """How files of one kind are read."""

    is_one: Callable[[Path, SourceOptions], bool]
    """Whether a file holds the rows of one bag, and not bags with offsets or ids."""
    describe: Callable[[Path, SourceOptions], BagFile]
    rows: Callable[[Path, SourceOptions], NDArray[Any]]
    kept_types: Callable[[Path, SourceOptions], tuple[KeptColumn, ...]]
    """Types of the columns to keep, by the headers; in text by a pass over their cells."""
    kept: Callable[[Path, SourceOptions, Sequence[KeptColumn]], Kept]
    """Values of the columns to keep."""


def kind_of(path: Path) -> OneBag | None:
    """How a file is read, by its suffix; None if its format cannot hold one bag."""
    return KINDS.get(bare_suffix(path))


def describe(path: Path, options: SourceOptions) -> BagFile:
    """Read the header of a file; a bag that does not fit into memory is refused."""
    kind = kind_of(path)
    if kind is None:
        raise SourceError(f"{path} cannot hold one bag; a file a bag is one of {listed(KINDS)}")
    bag = kind.describe(path, options)
    check_bag(str(path), bag.n_bytes, options.limits)
    return bag


def rows_of(path: Path, options: SourceOptions) -> NDArray[Any]:
    """Read the rows of a bag, of shape (rows, features); ``describe`` has checked their size."""
    kind = kind_of(path)
    assert kind is not None, "describe has refused other files"
    return kind.rows(path, options)


def kept_types_of(path: Path, options: SourceOptions) -> tuple[KeptColumn, ...]:
    """Types of the columns to keep, by name; columns that do not exist are refused."""
    kind = kind_of(path)
    assert kind is not None, "describe has refused other files"
    return kind.kept_types(path, options)


def kept_of(path: Path, options: SourceOptions, columns: Sequence[KeptColumn], n_rows: int) -> Kept:
    """Values of the columns to keep; ``n_rows`` is the number of rows of the bag."""
    kind = kind_of(path)
    assert kind is not None, "describe has refused other files"
    kept = kind.kept(path, options, columns)
    for name, values in kept.items():
        if len(values) != n_rows:
            raise SourceError(
                f"{path}: {len(values)} values of {name!r} (--keep) for {n_rows} rows"
            )
    return kept


def _no_such(path: Path | str, name: str, names: Iterable[str]) -> SourceError:
    return SourceError(
        f"{path} has no array {name!r} (--keep); arrays: {listed(sorted(names)) or 'none'}"
    )


# NumPy.


def _describe_numpy(path: Path, options: SourceOptions) -> BagFile:
    array = array_of_rows(path, options)
    n_rows, n_features = checked_shape(array.name, array.shape, array.dtype)
    return BagFile(n_features, array.dtype.name, array.nbytes, n_rows)


def _numpy_rows(path: Path, options: SourceOptions) -> NDArray[Any]:
    return all_rows(array_of_rows(path, options), options)


def _kept_stored(path: Path, name: str) -> npz.StoredArray:
    """Array of a column to keep: a member, or of .npy files the file in a folder of its name."""
    if bare_suffix(path) == ".npy":
        beside = kept_beside(path, name)
        if not beside.is_file():
            raise SourceError(
                f"{path}: there is no {beside} with the values of {name!r} (--keep); the values of "
                "NumPy files are in a folder of their name beside the folder of the bags"
            )
        return npz.npy_array(beside)
    arrays = npz.members_of(path)
    if name not in arrays:
        raise _no_such(path, name, arrays)
    return arrays[name]


def kept_beside(path: Path, name: str) -> Path:
    """File with the values of a column to keep, for a bag that is a .npy file."""
    return path.parent.with_name(name) / path.name


def _numpy_kept_types(path: Path, options: SourceOptions) -> tuple[KeptColumn, ...]:
    check_names(path, options.kept_names)
    columns = []
    for name in options.kept_names:
        array = _kept_stored(path, name)
        columns.append(kept_column(array.name, name, array.shape, array.dtype))
    return tuple(sorted(columns))


def _numpy_kept(path: Path, options: SourceOptions, columns: Sequence[KeptColumn]) -> Kept:
    kept: Kept = {}
    for column in columns:
        array = _kept_stored(path, column.name)
        check_bag(array.name, array.nbytes, options.limits)
        array.check(options.limits)
        values = array.open().all().reshape(inner_shape(array.shape))
        kept[column.name] = storable_values(values, array.name)
    return kept


# HDF5. The file is open only while values are read, as zarr and h5py can deadlock.


@contextmanager
def _dataset(path: Path, options: SourceOptions) -> Iterator[tuple[str, Any]]:
    access = HDF5.loaded(str(path))
    with access.open_hdf5(path) as file:
        names = [name for name in file if hasattr(access.child(path, file, name), "shape")]
        name = one_array(path, names, options)
        dataset = access.child(path, file, name)
        access.check_chunks(path, dataset, options.limits)
        yield f"{path}:{name}", dataset


def _describe_hdf5(path: Path, options: SourceOptions) -> BagFile:
    with _dataset(path, options) as (where, dataset):
        n_rows, n_features = checked_shape(where, dataset.shape or (), dataset.dtype)
        return BagFile(n_features, dataset.dtype.name, dataset.nbytes, n_rows)


def _hdf5_rows(path: Path, options: SourceOptions) -> NDArray[Any]:
    with _dataset(path, options) as (_, dataset):
        rows = np.asarray(dataset[()])
    return rows.reshape(-1, rows.shape[-1])


def _hdf5_kept_types(path: Path, options: SourceOptions) -> tuple[KeptColumn, ...]:
    check_names(path, options.kept_names)
    access = HDF5.loaded(str(path))
    columns = []
    with access.open_hdf5(path) as file:
        for name in options.kept_names:
            dataset = _kept_dataset(path, file, name, access)
            if access.is_text(dataset):
                columns.append(KeptColumn(name, TEXT))
            else:
                columns.append(
                    kept_column(f"{path}:{name}", name, dataset.shape or (), dataset.dtype)
                )
    return tuple(sorted(columns))


def _kept_dataset(path: Path, file: Any, name: str, access: Any) -> Any:
    if name not in file or not hasattr(access.child(path, file, name), "shape"):
        names = [name for name in file if hasattr(access.child(path, file, name), "shape")]
        raise _no_such(path, name, names)
    return access.child(path, file, name)


def _hdf5_kept(path: Path, options: SourceOptions, columns: Sequence[KeptColumn]) -> Kept:
    access = HDF5.loaded(str(path))
    kept: Kept = {}
    with access.open_hdf5(path) as file:
        for column in columns:
            dataset = _kept_dataset(path, file, column.name, access)
            where = f"{path}:{column.name}"
            access.check_chunks(path, dataset, options.limits)
            if access.is_text(dataset):
                if len(dataset.shape) != 1:
                    raise SourceError(f"{where} is text of shape {dataset.shape}, expected (rows,)")
                kept[column.name] = as_texts(access.read_texts(path, dataset, 0, len(dataset)))
                continue
            check_bag(where, dataset.nbytes, options.limits)
            values = np.asarray(dataset[()]).reshape(inner_shape(dataset.shape))
            kept[column.name] = storable_values(values, where)
    return kept


# Lines of text.


def _layout(path: Path, options: SourceOptions) -> csv_cells.CellLayout:
    lines = csv_cells.first_lines(path, options)
    offset, line = lines[0]
    separator = csv_cells.separator_of(path, line, options)
    csv_cells.check_columns(path, line.count(separator.encode()) + 1, options)
    cells = [csv_cells.split_cells(line, separator, path, offset) for offset, line in lines[:20]]
    header = options.header
    if header is None:
        header = not all(map(column_roles.is_number_text, cells[0]))
    names = (
        tuple(cell.strip() for cell in cells[0])
        if header
        else tuple(str(i + 1) for i in range(len(cells[0])))
    )
    repeated = twice(names)
    if repeated is not None:
        raise SourceError(f"{path}: two columns are called {repeated!r}; rename one")
    if header and len(lines) < 2:
        raise SourceError(f"{path} has no line of data, only the names of columns")
    features: Sequence[int]
    kept = column_roles.chosen(path, names, options.kept_names, "--keep")
    if options.feature_columns is not None:
        features = column_roles.chosen(path, names, options.feature_columns, "--feature-columns")
        column_roles.check_kept(path, [names[i] for i in kept], [names[i] for i in features])
    else:
        sample = [row for row in cells[header:] if len(row) == len(names)]
        features = [
            i
            for i in range(len(names))
            if i not in kept
            and not column_roles.looks_like_labels(names[i])
            and all(column_roles.is_number_text(row[i]) for row in sample)
        ]
    if not features:
        raise SourceError(
            f"{path} has no column of numbers for features; name the features by --feature-columns"
        )
    start = lines[1][0] if header else offset
    return csv_cells.CellLayout(separator, start, names, header, -1, tuple(features), kept=kept)


def _text_is_one(path: Path, options: SourceOptions) -> bool:
    offset, line = csv_cells.first_lines(path, options)[0]
    separator = csv_cells.separator_of(path, line, options)
    names = [name.strip() for name in csv_cells.split_cells(line, separator, path, offset)]
    return _names_no_bag(names, options)


def _names_no_bag(names: Sequence[str], options: SourceOptions) -> bool:
    return options.bag_column not in names and not column_roles.called(
        names, column_roles.BAG_NAMES
    )


def _describe_text(path: Path, options: SourceOptions) -> BagFile:
    layout = _layout(path, options)
    if last_lines(path) is not None and len(layout.names) - 1 in layout.features:
        raise maybe_cut(path)
    names = tuple(layout.names[i] for i in layout.features)
    return BagFile(
        len(names),
        "float32",
        path.stat().st_size,
        None,
        names if layout.has_names else None,
        _left_out(layout.names, (*names, *(layout.names[i] for i in layout.kept))),
    )


def _left_out(columns: Sequence[str], features: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        name for name in columns if column_roles.looks_like_labels(name) and name not in features
    )


def _text_rows(path: Path, options: SourceOptions) -> NDArray[Any]:
    layout, parts, n_bytes = _layout(path, options), [], 0
    for lines in _line_blocks(path, layout, options):
        parts.append(csv_cells.number_rows(lines, layout))
        n_bytes += parts[-1].nbytes
        check_bag(str(path), n_bytes, options.limits)
    return np.concatenate(parts) if parts else np.empty((0, len(layout.features)), np.float32)


def _line_blocks(
    path: Path, layout: csv_cells.CellLayout, options: SourceOptions
) -> Iterator[LineBlock]:
    return line_blocks(
        path,
        layout.start,
        aligned=True,
        block_bytes=csv_cells.BLOCK_BYTES,
        limits=options.limits,
        times=csv_cells.LINE_TIMES,
    )


def _text_kept_types(path: Path, options: SourceOptions) -> tuple[KeptColumn, ...]:
    layout = _layout(path, options)
    names = [layout.names[i] for i in layout.kept]
    column_roles.check_kept(path, names, ())
    types = CellTypes(names)
    for lines in _line_blocks(path, layout, options):
        csv_cells.add_types(lines, layout, types)
    return types.columns()


def _text_kept(path: Path, options: SourceOptions, columns: Sequence[KeptColumn]) -> Kept:
    layout, n_bytes = _layout(path, options), 0
    parts: dict[str, list[NDArray[Any]]] = {column.name: [column.empty()] for column in columns}
    for lines in _line_blocks(path, layout, options):
        for name, values in csv_cells.kept_rows(lines, layout, columns).items():
            parts[name].append(values)
            n_bytes += column_bytes(values)
        check_bag(str(path), n_bytes, options.limits)
    return {name: np.concatenate(values) for name, values in parts.items()}


# Parquet and Arrow.


def _arrow_is_one(path: Path, options: SourceOptions) -> bool:
    return _names_no_bag(open_partition(path).schema.names, options)


def _describe_arrow(path: Path, options: SourceOptions) -> BagFile:
    table = open_partition(path)
    table.check_memory(options.limits)
    layout = arrow.layout_of_rows(table, options)
    n_features, dtype = arrow.width_and_type(table, layout, options)
    n_rows = sum(table.group_records)
    n_bytes = max(n_rows * n_features * np.dtype(dtype).itemsize, sum(table.group_bytes))
    names = None if layout.is_list else layout.features
    left_out = _left_out(table.schema.names, layout.features)
    return BagFile(n_features, dtype, n_bytes, n_rows, names, left_out)


def _arrow_rows(path: Path, options: SourceOptions) -> NDArray[Any]:
    table = open_partition(path)
    layout = arrow.layout_of_rows(table, options)
    n_features, _ = arrow.width_and_type(table, layout, options)
    return arrow.all_rows(table, layout, n_features, options)


def _arrow_kept_types(path: Path, options: SourceOptions) -> tuple[KeptColumn, ...]:
    table = open_partition(path)
    return arrow.kept_types([table], arrow.layout_of_rows(table, options), options)


def _arrow_kept(path: Path, options: SourceOptions, columns: Sequence[KeptColumn]) -> Kept:
    return arrow.all_kept(open_partition(path), columns, options)


_NUMPY = OneBag(has_no_offsets, _describe_numpy, _numpy_rows, _numpy_kept_types, _numpy_kept)
_HDF5 = OneBag(has_no_offsets, _describe_hdf5, _hdf5_rows, _hdf5_kept_types, _hdf5_kept)
_TEXT = OneBag(_text_is_one, _describe_text, _text_rows, _text_kept_types, _text_kept)
_ARROW = OneBag(_arrow_is_one, _describe_arrow, _arrow_rows, _arrow_kept_types, _arrow_kept)
KINDS = {
    **dict.fromkeys(NUMPY_FILES, _NUMPY),
    **dict.fromkeys(HDF5_FILES, _HDF5),
    **dict.fromkeys((".csv", ".tsv", ".tab"), _TEXT),
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows"), _ARROW),
}
"""How files are read, by suffix."""
