"""Sealing a folder of Parquet files that other programs wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.fingerprint import digests_of
from streammiml.bags.ids import id_hashes, refuse_twice
from streammiml.bags.kept_columns import (
    KEPT_DTYPES,
    TEXT,
    KeptColumn,
    as_texts,
    column_name,
    is_kept,
)
from streammiml.bags.layout import ROW_DTYPES, Manifest
from streammiml.bags.location import LocalFolder
from streammiml.bags.manifest_draft import store_attributes, synced_entry
from streammiml.bags.offsets import from_sizes
from streammiml.bags.parquet_parts import ParquetIndex
from streammiml.bags.parquet_read import COMMON, KEY, attributes_in, is_list
from streammiml.bags.parquet_write import block_offsets, index_part, schema, write_common
from streammiml.bags.validate import StoreSpec, names_in, refuse_unlike_stored
from streammiml.bags.views import Bags
from streammiml.errors import StoreError


def index(folder: LocalFolder, scratch: Path, read: Callable[[Manifest], Bags]) -> Manifest:
    """Index part files; see :class:`~streammiml.bags.backends.SealingBackend`."""
    spec, keys = foreign_spec(folder)
    parquet_index = ParquetIndex(scratch, spec)
    ids: list[NDArray[np.uint64]] = []
    for key in keys:
        _add_file(folder.path / key, spec, parquet_index, ids)
    tally = parquet_index.tally
    if not tally.n_bags:
        raise StoreError(f"{folder.name} holds no bags")
    attributes = store_attributes(spec, tally.n_labels(spec))
    manifest = parquet_index.finish(attributes).manifest(spec, "parquet", tally.n_labels(spec))
    if ids:
        store = read(manifest)
        refuse_twice(np.concatenate(ids), lambda bag: store.bag_ids(bag, bag + 1)[0], folder.name)
    # Write the common metadata again, with the columns and keys of the existing file.
    common = scratch / COMMON
    write_common(common, spec, attributes, foreign_common(folder))
    return replace(manifest, metadata={**manifest.metadata, COMMON: synced_entry(common)})


def _add_file(
    file: Path, spec: StoreSpec, parquet_index: ParquetIndex, ids: list[NDArray[np.uint64]]
) -> None:
    """Check and index one part file, a row group at a time."""
    digests: list[NDArray[np.uint64]] = []
    sizes: list[dict[str, NDArray[np.int64]]] = []
    top_labels = [-1]

    def groups() -> Iterator[BagBlock]:
        for number, block in enumerate(foreign_blocks(file, spec)):
            refuse_unlike_stored(block, spec, f"{file}, row group {number}")
            digests.append(digests_of(block))
            top_labels.append(block.top_label)
            sizes.append({name: np.diff(array) for name, array in block_offsets(block).items()})
            if block.bag_ids is not None:
                ids.append(id_hashes(block.bag_ids))
            yield block

    part = index_part(file, groups(), {})
    if digests:
        offsets = {
            name: from_sizes(np.concatenate([group_sizes[name] for group_sizes in sizes]))
            for name in sizes[0]
        }
        part = replace(part, offsets=offsets)
        parquet_index.add(file.name, part, np.concatenate(digests), max(top_labels), 0)


def foreign_spec(folder: LocalFolder) -> tuple[StoreSpec, list[str]]:
    """Derive the spec from the first part file; return it with the keys of all files in order."""
    keys = [key for key in folder.files() if key.endswith(".parquet") and "/" not in key]
    if not keys:
        raise StoreError(f"{folder.name} holds no .parquet files")
    first = _schema_of(folder.path / keys[0])
    names = first.names
    where = f"{folder.name}/{keys[0]}"
    sparse = "columns" in names and "values" in names
    if not sparse and "rows" not in names:
        raise StoreError(f"{where} has neither 'rows' nor 'columns' and 'values'")
    if "labels" not in names:
        raise StoreError(f"{where} has no column 'labels'")
    common = foreign_common(folder)
    has_key = common is not None and KEY in (common.metadata or {})
    attributes = attributes_in(common if has_key else first, folder)
    spec = _spec_from(first, attributes, sparse=sparse, where=where)
    return replace(spec, kept=_kept_columns(first, folder.path / keys[0])), keys


def foreign_common(folder: LocalFolder) -> pa.Schema | None:
    """Read the schema of ``_common_metadata`` of a folder; None if there is no such file."""
    path = folder.path / COMMON
    return _schema_of(path) if path.exists() else None


def _schema_of(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{path} is no Parquet file: {reason}") from error


def _spec_from(
    first: pa.Schema, attributes: dict[str, Any], *, sparse: bool, where: str
) -> StoreSpec:
    column = "values" if sparse else "rows"
    leaf = first.field(column).type
    for _ in range(2):
        if not is_list(leaf):
            raise StoreError(
                f"{where}: {column!r} is {first.field(column).type}, expected lists of lists"
            )
        leaf = leaf.value_type
    dtype = _type_name(leaf)
    if dtype not in ROW_DTYPES:
        raise StoreError(f"{where}: {column!r} holds {dtype}, expected {' or '.join(ROW_DTYPES)}")
    n_features = attributes.get("n_features")
    if not isinstance(n_features, int):
        raise StoreError(
            f"{where}: the metadata key 'streammiml' must have n_features (see FORMAT.md)"
        )
    return StoreSpec(
        n_features=n_features,
        dtype=dtype,
        sparse=sparse,
        n_labels=attributes.get("n_labels"),
        label_names=names_in(attributes, "label_names"),
        feature_names=names_in(attributes, "feature_names"),
        row_labels="row_labels" in first.names,
        bag_ids="bag_id" in first.names,
        codec="none",
    )


def _kept_columns(first: pa.Schema, path: Path) -> tuple[KeptColumn, ...]:
    """Kept columns by the types of the first file, and their widths by its first row."""
    columns = []
    for name in filter(is_kept, first.names):
        kind, n_lists = first.field(name).type, 0
        while is_list(kind):
            kind, n_lists = kind.value_type, n_lists + 1
        dtype = TEXT if _is_text(kind) else _type_name(kind)
        if n_lists not in ((1,) if dtype == TEXT else (1, 2)) or dtype not in KEPT_DTYPES:
            raise StoreError(
                f"{path}: {name!r} is {first.field(name).type}, expected lists of numbers or "
                "texts, or lists of lists of numbers (see FORMAT.md)"
            )
        width = 1 if n_lists == 1 else _first_width(path, name)
        columns.append(KeptColumn(column_name(name), dtype, width))
    return tuple(columns)


def _first_width(path: Path, name: str) -> int:
    """Number of values in the first inner list of a column."""
    try:
        for batch in pq.ParquetFile(path).iter_batches(1, columns=[name]):
            for row in batch.column(0).to_pylist()[0] or []:
                return len(row or [])
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{path} cannot be read: {reason}") from error
    return 1


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _type_name(kind: pa.DataType) -> str:
    """NumPy's name of an Arrow type."""
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return names.get(str(kind), str(kind))


def _type_in_words(kind: pa.DataType) -> str:
    """Type of a column in words; large lists and strings are named like small ones."""
    lists = 0
    while is_list(kind):
        kind, lists = kind.value_type, lists + 1
    leaf = "string" if pa.types.is_large_string(kind) else _type_name(kind)
    return ("list of " + "lists of " * (lists - 1) if lists else "") + leaf


def _refuse_types(columns: pa.Schema, spec: StoreSpec, where: str) -> None:
    """Refuse a file whose columns do not have the types of the first file."""
    for field in schema(spec):
        if field.name not in columns.names:
            raise StoreError(f"{where} has no column {field.name!r}, which the first file has")
        kind, expected = columns.field(field.name).type, _type_in_words(field.type)
        if _type_in_words(kind) != expected:
            raise StoreError(f"{where}: {field.name!r} is {kind}, expected {expected}")


def foreign_blocks(path: Path, spec: StoreSpec) -> Iterator[BagBlock]:
    """Read a file of another program, one block for each row group; values are not checked."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        _refuse_types(file.schema_arrow, spec, str(path))
        names = schema(spec).names
        for group in range(file.metadata.num_row_groups):
            table = file.read_row_group(group, columns=names, use_threads=False)
            yield _block(table, spec, f"{path}, row group {group}")
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{path} cannot be read: {reason}") from error


def _block(table: pa.Table, spec: StoreSpec, where: str) -> BagBlock:
    label_offsets, labels = _unnest(table, "labels", where)
    if spec.sparse:
        bag_offsets, inner = _unnest(table, "columns", where)
        row_offsets, columns = _unlist(inner, "columns", where)
        value_bag_offsets, inner = _unnest(table, "values", where)
        value_row_offsets, values = _unlist(inner, "values", where)
        same_bags = np.array_equal(bag_offsets, value_bag_offsets)
        if not (same_bags and np.array_equal(row_offsets, value_row_offsets)):
            raise StoreError(f"{where}: 'columns' and 'values' have different lengths")
        rows: NDArray[Any] | SparseRows = SparseRows(
            row_offsets, columns.to_numpy(), values.to_numpy(), spec.n_features
        )
    else:
        bag_offsets, inner = _unnest(table, "rows", where)
        row_offsets, values = _unlist(inner, "rows", where)
        widths = np.diff(row_offsets)
        if (widths != spec.n_features).any():
            row = int((widths != spec.n_features).argmax())
            raise StoreError(
                f"{where}: row {row} has {widths[row]} values, expected {spec.n_features}"
            )
        rows = values.to_numpy(zero_copy_only=False).reshape(-1, spec.n_features)
    row_labels = None
    if spec.row_labels:
        offsets, labels_of_rows = _unnest(table, "row_labels", where)
        if not np.array_equal(offsets, bag_offsets):
            raise StoreError(f"{where}: 'row_labels' and rows have different lengths")
        row_labels = labels_of_rows.to_numpy()
    ids = table.column("bag_id").to_pylist() if spec.bag_ids else None
    if ids is not None and None in ids:
        raise StoreError(f"{where}: 'bag_id' is null at record {ids.index(None)}")
    kept = {column.name: _kept(table, column, bag_offsets, where) for column in spec.kept}
    return BagBlock(bag_offsets, rows, label_offsets, labels.to_numpy(), row_labels, ids, kept)


def _kept(
    table: pa.Table, column: KeptColumn, bag_offsets: NDArray[np.int64], where: str
) -> NDArray[Any]:
    """Values of a kept column of another program's file."""
    offsets, values = _unnest(table, column.array, where)
    if not np.array_equal(offsets, bag_offsets):
        raise StoreError(f"{where}: {column.array!r} and rows have different lengths")
    if column.dtype == TEXT:
        return as_texts(values.to_pylist())
    if column.width == 1:
        numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return numbers
    row_offsets, values = _unlist(values, column.array, where)
    widths = np.diff(row_offsets)
    if (widths != column.width).any():
        row = int((widths != column.width).argmax())
        raise StoreError(
            f"{where}: row {row} has {widths[row]} values in {column.array!r}, expected "
            f"{column.width}"
        )
    matrix: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(-1, column.width)
    return matrix


def _unnest(table: pa.Table, name: str, where: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Split a list column into offsets and values; refuse null values."""
    return _unlist(table.column(name).combine_chunks(), name, where)


def _unlist(array: Any, name: str, where: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Split a list array into offsets and values; refuse null values."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else array.combine_chunks()
    values = array.flatten()
    if array.null_count or values.null_count:
        raise StoreError(f"{where}: {name!r} has null values")
    return array.offsets.to_numpy().astype(np.int64) - array.offsets[0].as_py(), values
