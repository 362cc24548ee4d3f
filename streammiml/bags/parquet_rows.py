"""The Parquet backend: write a part as a file, decode a column chunk, list what others wrote.

One record is a bag. Our own reading goes by row group and column: the bytes of one column chunk
are fetched and checked, and where the values are stored plainly on a single page they are simply
the end of those bytes; lengths come from the offsets index. Anything else pyarrow decodes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.checks import StoreSpec
from streammiml.bags.chunks import Decode, DecodeOne, Record, fetch_checked, one_by_one
from streammiml.bags.layout import RECORD, ROW_DTYPES, Manifest, refuse_huge
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml.bags.place import LocalPlace, Place, file_crc
from streammiml.errors import StoreError

GROUP_BYTES = 512 << 10
# One page a column chunk: what a page may hold at most, and pyarrow's own limit on a list.
PAGE_BYTES = 1 << 30
LIST_LIMIT = 2**31 - 1

COLUMNS = {
    "rows": "rows.list.element.list.element",
    "columns": "columns.list.element.list.element",
    "values": "values.list.element.list.element",
    "label_indices": "labels.list.element",
    "row_labels": "row_labels.list.element",
    "bag_id_bytes": "bag_id",
}
"""Arrays of a store, and the Parquet column that holds each."""
ARRAYS = {column.split(".")[0]: name for name, column in COLUMNS.items()}
COMMON = "_common_metadata"
KEY = b"streammiml"

Offsets = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class PartIndex:
    """What the offsets index must know of one part file."""

    offsets: Offsets
    """``bag_offsets``, ``label_offsets``, …, beginning with 0."""
    records: dict[str, NDArray[np.void]]
    """Chunk records of each array, elements and file counted within the part."""
    plain: dict[str, bool]
    """Whether the values of every chunk of an array are the end of its bytes."""
    size: int
    crc: int
    footer: tuple[int, int, int]
    """Offset, bytes and crc32c of the file's footer."""


def part_key(number: int) -> str:
    """File of a part."""
    return f"part-{number:08d}.parquet"


def _list(values: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", values, nullable=False))


def schema(spec: StoreSpec) -> pa.Schema:
    """Columns of a store; nothing in it may be null."""
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
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields.items()])


def _nested(offsets: NDArray[np.int64], items: pa.Array) -> pa.Array:
    if offsets[-1] > LIST_LIMIT:
        raise StoreError(
            f"{offsets[-1]} values are too many for a Parquet row group; write a .zarr store"
        )
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
    return pa.table(arrays, schema=schema(spec))


def _flat(block: BagBlock) -> dict[str, NDArray[Any]]:
    """Values of each array of the block, as the Parquet columns hold them end to end."""
    flat: dict[str, NDArray[Any]] = {"label_indices": block.label_indices}
    if isinstance(block.rows, SparseRows):
        flat |= {"columns": block.rows.columns, "values": block.rows.values}
    else:
        flat["rows"] = block.rows
    if block.row_labels is not None:
        flat["row_labels"] = block.row_labels
    if block.bag_ids is not None:
        flat["bag_id_bytes"] = np.frombuffer("".join(block.bag_ids).encode(), np.uint8)
    return flat


def block_offsets(block: BagBlock) -> Offsets:
    """Offsets of a block by the names that the store gives them."""
    offsets = {"bag_offsets": block.bag_offsets, "label_offsets": block.label_offsets}
    if isinstance(block.rows, SparseRows):
        offsets["row_offsets"] = block.rows.offsets
    if block.bag_ids is not None:
        offsets["bag_id_offsets"] = from_sizes([len(name.encode()) for name in block.bag_ids])
    return offsets


def write_part(path: Path, block: BagBlock, spec: StoreSpec) -> PartIndex:
    """Write one file, in row groups of about half a MiB, and index it."""
    names = ["bag_id"] if spec.bag_ids else []
    big = ["columns", "values"] if spec.sparse else ["rows"]
    packed = spec.resolved_codec != "none"
    paths = {COLUMNS[name]: spec.resolved_codec if packed else "none" for name in big}
    paths |= {COLUMNS[name]: "none" for name in ("label_indices", "row_labels", "bag_id_bytes")}
    kept = set(schema(spec).names)
    codecs = {column: codec for column, codec in paths.items() if column.split(".")[0] in kept}
    integers = not spec.dtype.startswith("float")
    # Parquet has no narrow integers: a dictionary brings them back to a byte or less.
    dictionary = [COLUMNS[big[-1]]] if integers else False
    cuts = cuts_by_bytes(_bag_bytes(block), max(GROUP_BYTES, 2 * spec.chunk_bytes))
    with pq.ParquetWriter(
        path,
        schema(spec),
        compression=codecs,
        use_dictionary=dictionary,
        data_page_size=PAGE_BYTES,
        write_batch_size=PAGE_BYTES,
        write_page_checksum=True,
        write_statistics=names,
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
    return cast("NDArray[np.int64]", per_bag)


def index_part(path: Path, groups: Iterable[BagBlock], offsets: Offsets) -> PartIndex:
    """Index a file, given the blocks that its row groups hold and the offsets of the whole."""
    meta = pq.read_metadata(path)
    records: dict[str, list[tuple[int, int, int, int, int, int]]] = {}
    plain: dict[str, bool] = {}
    done: dict[str, int] = {}
    with path.open("rb") as file:
        for number, block in enumerate(groups):
            flat = _flat(block)
            for name, offset, size in _column_chunks(meta, number):
                values, first = flat[name], done.get(name, 0)
                where = f"{path}, row group {number}: {COLUMNS[name].split('.')[0]!r}"
                refuse_huge(where, size, len(values), "smaller row groups, or a .zarr store")
                file.seek(offset)
                chunk = file.read(size)
                ends = chunk.endswith(values.tobytes())
                plain[name] = plain.get(name, True) and ends
                if len(values):
                    record = (first, offset, len(values), size, crc32c(chunk), 0)
                    records.setdefault(name, []).append(record)
                    done[name] = first + len(values)
        size, crc = file_crc(path)
        file.seek(size - 8)
        length = int.from_bytes(file.read(4), "little") + 8
        file.seek(size - length)
        footer = (size - length, length, crc32c(file.read()))
    return PartIndex(
        offsets=offsets,
        records={name: np.array(of, RECORD) for name, of in records.items()},
        plain=plain,
        size=size,
        crc=crc,
        footer=footer,
    )


def _column_chunks(meta: pq.FileMetaData, group: int) -> Iterator[tuple[str, int, int]]:
    """(array, offset, bytes) of the columns of one row group that belong to a store."""
    row_group = meta.row_group(group)
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        name = ARRAYS.get(column.path_in_schema.split(".")[0])
        if name is not None:
            start = column.data_page_offset
            if column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            yield name, start, column.total_compressed_size


def _decode_tail(raw: NDArray[np.uint8], record: Record, out: NDArray[Any]) -> None:
    """Values that end the bytes of their chunk."""
    del record
    out.view(np.uint8)[:] = raw[len(raw) - out.nbytes :]


class _Window(io.RawIOBase):
    """A file of which only checked bytes are there; reading anything else is an error of ours."""

    def __init__(self, raw: memoryview, offset: int, size: int) -> None:
        self._raw, self._offset, self._size, self._at = raw, offset, size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        start = self._at - self._offset
        if start < 0 or n < 0:
            raise OSError("read outside the checked bytes")
        got = bytes(self._raw[start : start + n])
        self._at += len(got)
        return got


class ArrowDecoder:
    """Decodes column chunks with pyarrow, from checked bytes and a checked footer."""

    def __init__(
        self, place: Place, files: list[list[Any]], metadata: dict[str, list[int]]
    ) -> None:
        self._place, self._files, self._footers = place, files, metadata
        self._meta = lru_cache(64)(self._read_footer)

    def _read_footer(self, file: int) -> tuple[pq.FileMetaData, dict[int, int]]:
        key = self._files[file][0]
        raw = fetch_checked(self._place, key, self._footers[key])
        meta = pq.read_metadata(io.BytesIO(b"PAR1" + raw))
        starts: dict[int, int] = {}
        for group in range(meta.num_row_groups):
            starts |= {start: group for _, start, _ in _column_chunks(meta, group)}
        return meta, starts

    def of(self, array: str) -> DecodeOne:
        """The function that decodes the chunks of one array."""

        def decode(raw: NDArray[np.uint8], record: Record, out: NDArray[Any]) -> None:
            file, offset = record.file, record.offset
            meta, starts = self._meta(file)
            window = _Window(raw.data, offset, self._files[file][1])
            # Read ahead, threads of Arrow's would hold the window; one that lets go of it while
            # the interpreter ends aborts the process.
            source = pq.ParquetFile(
                pa.PythonFile(window, mode="r"), metadata=meta, pre_buffer=False
            )
            column = source.reader.read_row_group(
                starts[offset], column_indices=[_leaf(meta, array)], use_threads=False
            )
            out[:] = flatten(column.column(0).combine_chunks(), out.dtype)

        return decode


def _leaf(meta: pq.FileMetaData, array: str) -> int:
    paths = [meta.schema.column(i).path.split(".")[0] for i in range(meta.num_columns)]
    return [ARRAYS.get(path) for path in paths].index(array)


def flatten(array: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values at the bottom of nested lists, or the bytes of strings, end to end."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    while _is_list(array.type):
        array = array.flatten()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(pa.binary())
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
        raw = np.frombuffer(array.buffers()[2] or b"", np.uint8)
        return raw[offsets[0] : offsets[-1]]
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype)


def unpackers() -> tuple[int, ...]:
    """No chunk is unpacked by compiled code."""
    return ()


def decoders(place: Place, manifest: Manifest) -> dict[str, Decode]:
    """A function for each array that turns checked bytes of a column chunk into its values."""
    arrow = ArrowDecoder(place, manifest.files, manifest.metadata)
    return {
        name: one_by_one(_decode_tail if entry.coding == "tail" else arrow.of(name), entry.width)
        for name, entry in manifest.arrays.items()
    }


def attributes(place: Place, manifest: Manifest) -> dict[str, Any]:
    """What the store says of itself: names of labels and features."""
    raw = fetch_checked(place, COMMON, manifest.metadata[COMMON])
    return _said(pq.read_schema(io.BytesIO(raw)), place)


def foreign_spec(place: LocalPlace) -> tuple[StoreSpec, list[str]]:
    """What the part files of a folder hold, by the schema of the first, and their keys in order."""
    keys = [key for key in place.files() if key.endswith(".parquet") and "/" not in key]
    if not keys:
        raise StoreError(f"{place.name} holds no .parquet files")
    found = _schema_of(place.path / keys[0])
    names = found.names
    where = f"{place.name}/{keys[0]}"
    sparse = "columns" in names and "values" in names
    if not sparse and "rows" not in names:
        raise StoreError(f"{where} has neither 'rows' nor 'columns' and 'values'")
    if "labels" not in names:
        raise StoreError(f"{where} has no column 'labels'")
    common = foreign_common(place)
    says = common is not None and KEY in (common.metadata or {})
    said = _said(common if says else found, place)
    return _spec_from(found, said, sparse=sparse, where=where), keys


def foreign_common(place: LocalPlace) -> pa.Schema | None:
    """The schema that stands in a folder's common metadata, if there is any."""
    path = place.path / COMMON
    return _schema_of(path) if path.exists() else None


def write_common(
    path: Path, spec: StoreSpec, said: dict[str, Any], kept: pa.Schema | None = None
) -> None:
    """Write the schema alone, with what the store says of itself; part readers pass over it.

    ``kept`` is a schema that others wrote: its columns and its other keys stay.
    """
    base = schema(spec) if kept is None else kept
    text = json.dumps(said, sort_keys=True).encode()
    pq.write_metadata(base.with_metadata({**(base.metadata or {}), KEY: text}), path)


def _schema_of(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{path} is no Parquet file: {reason}") from error


def _said(found: pa.Schema, place: Place) -> dict[str, Any]:
    try:
        return dict(json.loads((found.metadata or {}).get(KEY, b"{}")))
    except (ValueError, TypeError):
        raise StoreError(f"{place.name}: the key 'streammiml' of the metadata is no JSON") from None


def _spec_from(
    found: pa.Schema, attributes: dict[str, Any], *, sparse: bool, where: str
) -> StoreSpec:
    column = "values" if sparse else "rows"
    leaf = found.field(column).type
    for _ in range(2):
        if not _is_list(leaf):
            raise StoreError(
                f"{where}: {column!r} is {found.field(column).type}, expected lists of lists"
            )
        leaf = leaf.value_type
    dtype = _type_name(leaf)
    if dtype not in ROW_DTYPES:
        raise StoreError(f"{where}: {column!r} holds {dtype}, expected {' or '.join(ROW_DTYPES)}")
    n_features = attributes.get("n_features")
    if not isinstance(n_features, int):
        raise StoreError(
            f"{where}: the metadata key 'streammiml' must say n_features (see FORMAT.md)"
        )
    return StoreSpec(
        n_features=n_features,
        dtype=dtype,
        sparse=sparse,
        n_labels=attributes.get("n_labels"),
        label_names=names_in(attributes, "label_names"),
        feature_names=names_in(attributes, "feature_names"),
        row_labels="row_labels" in found.names,
        bag_ids="bag_id" in found.names,
        codec="none",
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _type_name(kind: pa.DataType) -> str:
    """What numpy calls a type, where Arrow has another name for it."""
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return names.get(str(kind), str(kind))


def _shape(kind: pa.DataType) -> str:
    """A column's type in words; whether lists and strings are large does not matter."""
    lists = 0
    while _is_list(kind):
        kind, lists = kind.value_type, lists + 1
    leaf = "string" if pa.types.is_large_string(kind) else _type_name(kind)
    return ("list of " + "lists of " * (lists - 1) if lists else "") + leaf


def _refuse_types(found: pa.Schema, spec: StoreSpec, where: str) -> None:
    """Refuse a file whose columns are not of the types that the store has."""
    for field in schema(spec):
        if field.name not in found.names:
            raise StoreError(f"{where} has no column {field.name!r}, which the first file has")
        kind, expected = found.field(field.name).type, _shape(field.type)
        if _shape(kind) != expected:
            raise StoreError(f"{where}: {field.name!r} is {kind}, expected {expected}")


def names_in(said: dict[str, Any], key: str) -> tuple[str, ...] | None:
    """Names that a store's description holds, or None."""
    names = said.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StoreError(f"{key} of a store must be a list of texts, got {names!r:.60}")
    return tuple(names)


def foreign_blocks(path: Path, spec: StoreSpec) -> Iterator[BagBlock]:
    """The row groups of a file written by anyone, one block each, as they are."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        _refuse_types(file.schema_arrow, spec, str(path))
        wanted = schema(spec).names
        for group in range(file.metadata.num_row_groups):
            table = file.read_row_group(group, columns=wanted, use_threads=False)
            yield _block(table, spec, f"{path}, row group {group}")
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{path} cannot be read: {reason}") from error


def _block(table: pa.Table, spec: StoreSpec, where: str) -> BagBlock:
    label_offsets, labels = _unnest(table, "labels", where)
    if spec.sparse:
        bag_offsets, inner = _unnest(table, "columns", where)
        row_offsets, columns = _unlist(inner, "columns", where)
        again, inner = _unnest(table, "values", where)
        ends, values = _unlist(inner, "values", where)
        if not (np.array_equal(bag_offsets, again) and np.array_equal(row_offsets, ends)):
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
        offsets, found = _unnest(table, "row_labels", where)
        if not np.array_equal(offsets, bag_offsets):
            raise StoreError(f"{where}: 'row_labels' and rows have different lengths")
        row_labels = found.to_numpy()
    ids = table.column("bag_id").to_pylist() if spec.bag_ids else None
    if ids is not None and None in ids:
        raise StoreError(f"{where}: 'bag_id' is null at record {ids.index(None)}")
    return BagBlock(bag_offsets, rows, label_offsets, labels.to_numpy(), row_labels, ids)


def _unnest(table: pa.Table, name: str, where: str) -> tuple[NDArray[np.int64], pa.Array]:
    return _unlist(table.column(name).combine_chunks(), name, where)


def _unlist(array: Any, name: str, where: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Offsets and values of a list array; nothing may be null."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else array.combine_chunks()
    values = array.flatten()
    if array.null_count or values.null_count:
        raise StoreError(f"{where}: {name!r} has null values")
    return array.offsets.to_numpy().astype(np.int64) - array.offsets[0].as_py(), values
