"""Writing Parquet files: one file for each part, and an index of its column chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import TEXT, encoded, is_offsets, kept_arrays, n_bytes
from streammiml.bags.layout import RECORD, refuse_huge
from streammiml.bags.location import file_crc
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml.bags.parquet_read import COLUMNS, KEY, column_chunks, kept_paths
from streammiml.bags.validate import StoreSpec
from streammiml.errors import StoreError

GROUP_BYTES = 512 << 10
# Limit of a page, high enough that a column chunk has only one page.
PAGE_BYTES = 1 << 30
# Limit of pyarrow for the elements of a list array.
LIST_LIMIT = 2**31 - 1
# Most bytes of a character.
MOST_UTF8 = 4
# Kept columns may take as many times the bytes of the rows before row groups have fewer bags.
KEPT_TIMES = 16

Offsets = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class PartIndex:
    """Index of one part file."""

    offsets: Offsets
    """``bag_offsets``, ``label_offsets`` and so on, each beginning with 0."""
    records: dict[str, NDArray[np.void]]
    """Chunk records of each array; they count elements and files within the part."""
    plain: dict[str, bool]
    """For each array: True if every chunk ends with its plain values."""
    size: int
    crc: int
    footer: tuple[int, int, int]
    """Offset, bytes and crc32c of the file's footer."""


def part_key(number: int) -> str:
    """Key of the file of a part."""
    return f"part-{number:08d}.parquet"


def _list(values: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", values, nullable=False))


def schema(spec: StoreSpec) -> pa.Schema:
    """Arrow schema of a store; no field may be null."""
    value = pa.from_numpy_dtype(spec.dtype)
    fields = {"bag_id": pa.string()} if spec.bag_ids else {}
    fields["labels"] = _list(pa.int32())
    if spec.sparse:
        fields["columns"] = _list(_list(pa.uint32()))
        fields["values"] = _list(_list(value))
    else:
        fields["rows"] = _list(_list(value))
    if spec.row_labels:
        fields["row_labels"] = _list(pa.int32())
    for column in spec.kept:
        kind = pa.string() if column.dtype == TEXT else pa.from_numpy_dtype(column.dtype)
        fields[column.array] = _list(kind if column.width == 1 else _list(kind))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields.items()])


def _refuse_long(length: int) -> None:
    if length > LIST_LIMIT:
        raise StoreError(
            f"{length} values are too many for a Parquet row group; write a .zarr store"
        )


def _nested(offsets: NDArray[np.int64], items: pa.Array) -> pa.Array:
    """Make a list array from offsets and items."""
    _refuse_long(offsets[-1])
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), items, type=_list(items.type)
    )


def _table(block: BagBlock, spec: StoreSpec) -> pa.Table:
    arrays: dict[str, pa.Array] = {}
    if block.bag_ids is not None:
        arrays["bag_id"] = pa.array(block.bag_ids, pa.string())
    arrays["labels"] = _nested(block.label_offsets, pa.array(block.label_indices))
    rows = block.rows
    if isinstance(rows, SparseRows):
        for name, flat in (("columns", rows.columns), ("values", rows.values)):
            arrays[name] = _nested(block.bag_offsets, _nested(rows.offsets, pa.array(flat)))
    else:
        inner = np.arange(len(rows) + 1, dtype=np.int64) * spec.n_features
        flat_rows = _nested(inner, pa.array(rows.reshape(-1)))
        arrays["rows"] = _nested(block.bag_offsets, flat_rows)
    if block.row_labels is not None:
        arrays["row_labels"] = _nested(block.bag_offsets, pa.array(block.row_labels))
    for column in spec.kept:
        arrays[column.array] = _nested(block.bag_offsets, _kept_items(block.kept[column.name]))
    return pa.table(arrays, schema=schema(spec))


def _kept_items(values: NDArray[Any]) -> pa.Array:
    """Values of a kept column, with a list for each row of a wide column."""
    if values.dtype == object:
        if sum(map(len, values.tolist())) * MOST_UTF8 > LIST_LIMIT:
            _refuse_long(encoded(values)[0][-1])
        return pa.array(values.tolist(), pa.string())
    items = pa.array(values.reshape(-1))
    if values.ndim == 1:
        return items
    return _nested(np.arange(len(values) + 1, dtype=np.int64) * values.shape[1], items)


def _flat(block: BagBlock) -> dict[str, NDArray[Any]]:
    """Values of each array of the block, as its Parquet column stores them."""
    flat: dict[str, NDArray[Any]] = {"label_indices": block.label_indices}
    if isinstance(block.rows, SparseRows):
        flat |= {"columns": block.rows.columns, "values": block.rows.values}
    else:
        flat["rows"] = block.rows
    if block.row_labels is not None:
        flat["row_labels"] = block.row_labels
    if block.bag_ids is not None:
        flat["bag_id_bytes"] = np.frombuffer("".join(block.bag_ids).encode(), np.uint8)
    kept = kept_arrays(block.kept)
    return flat | {name: values for name, values in kept.items() if not is_offsets(name)}


def block_offsets(block: BagBlock) -> Offsets:
    """Offsets of a block by their names in a store."""
    offsets = {"bag_offsets": block.bag_offsets, "label_offsets": block.label_offsets}
    if isinstance(block.rows, SparseRows):
        offsets["row_offsets"] = block.rows.offsets
    if block.bag_ids is not None:
        offsets["bag_id_offsets"] = from_sizes([len(name.encode()) for name in block.bag_ids])
    kept = kept_arrays(block.kept)
    return offsets | {name: values for name, values in kept.items() if is_offsets(name)}


def write_part(path: Path, block: BagBlock, spec: StoreSpec) -> PartIndex:
    """Write and index one file, in row groups of about half a MiB."""
    with_statistics = ["bag_id"] if spec.bag_ids else []
    compressed = ["columns", "values"] if spec.sparse else ["rows"]
    names = set(schema(spec).names)
    codecs = {
        column: spec.resolved_codec if name in compressed else "none"
        for name, column in (COLUMNS | kept_paths(spec.kept)).items()
        if column.split(".")[0] in names
    }
    integers = not spec.dtype.startswith("float")
    # Parquet stores integers as 32 bits or more; a dictionary shrinks them to a byte or less.
    dictionary = [COLUMNS[compressed[-1]]] if integers else False
    cuts = cuts_by_bytes(_bag_bytes(block), max(GROUP_BYTES, 2 * spec.chunk_bytes))
    with pq.ParquetWriter(
        path,
        schema(spec),
        compression=codecs,
        use_dictionary=dictionary,
        data_page_size=PAGE_BYTES,
        write_batch_size=PAGE_BYTES,
        write_page_checksum=True,
        write_statistics=with_statistics,
        store_schema=False,
    ) as file:
        for start, stop in cuts:
            file.write_table(_table(block.slice(start, stop), spec), row_group_size=stop - start)
    return index_part(path, (block.slice(*cut) for cut in cuts), block_offsets(block))


def _bag_bytes(block: BagBlock) -> NDArray[np.int64]:
    rows = block.rows
    if isinstance(rows, SparseRows):
        per_bag = np.diff(rows.offsets[block.bag_offsets]) * (4 + rows.values.dtype.itemsize)
    else:
        per_bag = np.diff(block.bag_offsets) * rows.shape[1] * rows.dtype.itemsize
    if block.kept:
        row_bytes = sum(map(n_bytes, block.kept.values())) / max(block.n_rows, 1)
        kept = np.diff(block.bag_offsets) * row_bytes
        per_bag = np.maximum(per_bag, (kept / KEPT_TIMES).astype(np.int64))
    return cast("NDArray[np.int64]", per_bag)


def index_part(path: Path, groups: Iterable[BagBlock], offsets: Offsets) -> PartIndex:
    """Index a file, given the block of each row group and the offsets of all its bags."""
    meta = pq.read_metadata(path)
    records: dict[str, list[tuple[int, int, int, int, int, int]]] = {}
    plain: dict[str, bool] = {}
    lengths: dict[str, int] = {}
    with path.open("rb") as file:
        for number, block in enumerate(groups):
            flat = _flat(block)
            for name, offset, size in column_chunks(meta, number):
                values, first = flat[name], lengths.get(name, 0)
                column = COLUMNS.get(name, name).split(".")[0]
                where = f"{path}, row group {number}: {column!r}"
                refuse_huge(where, size, len(values), "smaller row groups, or a .zarr store")
                file.seek(offset)
                chunk = file.read(size)
                is_plain = chunk.endswith(values.tobytes())
                plain[name] = plain.get(name, True) and is_plain
                if len(values):
                    record = (first, offset, len(values), size, crc32c(chunk), 0)
                    records.setdefault(name, []).append(record)
                    lengths[name] = first + len(values)
        size, crc = file_crc(path)
        file.seek(size - 8)
        length = int.from_bytes(file.read(4), "little") + 8
        file.seek(size - length)
        footer = (size - length, length, crc32c(file.read()))
    return PartIndex(
        offsets=offsets,
        records={name: np.array(tuples, RECORD) for name, tuples in records.items()},
        plain=plain,
        size=size,
        crc=crc,
        footer=footer,
    )


def write_common(
    path: Path, spec: StoreSpec, attributes: dict[str, Any], kept: pa.Schema | None = None
) -> None:
    """Write ``_common_metadata``: the schema with our key, and no bags.

    ``kept`` is the schema of a file that another program wrote; its columns and its other keys are
    kept.
    """
    base = schema(spec) if kept is None else kept
    text = json.dumps(attributes, sort_keys=True).encode()
    pq.write_metadata(base.with_metadata({**(base.metadata or {}), KEY: text}), path)
