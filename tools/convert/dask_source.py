"""Dask collections as sources: each partition becomes a file, written where it was computed.

A partition of a ``dask.dataframe`` becomes an Arrow file of rows. A partition of a ``dask.bag``
becomes an Arrow file with a record for each bag, or JSON lines if rows are sparse. A chunk of a
``dask.array`` becomes an Arrow file of rows, or of bags if the array has three dimensions. The
files are then converted like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streammiml._base.cluster_connection import default_client
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool, PoolOptions
from streammiml.bags.ids import id_hashes
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StreammimlError
from streammiml_tools.convert.tables import arrow_table, is_sorted, is_table
from streammiml_tools.readers.base import SourceError

BATCH_BYTES = 8 << 20
"""Size of a record batch of a file, approximately."""
FIELDS = ("rows", "labels", "id", "row_labels")
"""Fields of a bag: the keys of a dict, and the places in a tuple."""


@dataclass(frozen=True, slots=True)
class SavedPartition:
    """Facts about a partition that a task has written."""

    path: str | None
    """None if the partition is empty."""
    schema: pa.Schema | None = None
    """None if the file has no schema, because its rows are sparse."""
    id_hashes: NDArray[np.uint64] | None = None
    """Hashes of the ids of bags."""
    is_sorted: bool = True
    """Whether the rows of each bag are adjacent."""
    n_features: int | None = None
    may_be_marks: bool = False
    """Whether the labels of all bags are [0, 1] or [1, 0]."""


@dataclass(frozen=True, slots=True)
class SavedCollection:
    """The files of a collection, in the order of its partitions."""

    paths: tuple[str, ...]
    format: str
    needs_group: bool
    """Whether the rows of a bag are apart, or in several partitions."""
    n_features: int | None = None
    """Number of features of sparse rows."""
    may_be_marks: bool = False


def is_collection(value: Any) -> bool:
    """Whether a value is a ``dask.dataframe``, a ``dask.bag`` or a ``dask.array``."""
    # The class is asked, because an object of dask.delayed claims to have every attribute.
    return hasattr(value, "__dask_graph__") and hasattr(type(value), "to_delayed")


def is_array(value: Any) -> bool:
    """Whether a value is a ``dask.array``."""
    return is_collection(value) and hasattr(value, "rechunk")


def save_collection(
    collection: Any, folder: Path, bag: str | None, pool_options: PoolOptions, ids: Any = None
) -> SavedCollection:
    """Write the partitions of a Dask collection to files in a folder.

    ``bag`` is the column that names the bag of a row in a dataframe, and the column of ids in the
    files of other collections. ``ids`` are those of the rows, or bags, of an array.
    """
    task: Callable[..., SavedPartition]
    more: tuple[str | None, ...] = (str(folder), bag or "id")
    each: list[Any] | None = None
    if is_table(collection):
        task, more = _save_frame, (str(folder), bag)
    elif hasattr(collection, "foldby"):
        task = _save_bags
    else:
        task = _save_chunk
        collection, each = _chunks(collection, ids)
    with open_pool(with_default_client(pool_options), relief="the size of partitions") as pool:
        results = pool.map_partitions(task, collection, *more, each=each)
        saved = [one for one in results if one.path]
        if not saved:
            raise StreammimlError(
                "the Dask collection is empty: none of its partitions has records"
            )
        formats = {Path(one.path or "").suffix for one in saved}
        if len(formats) > 1:
            raise StreammimlError("some bags of the dask.bag are sparse and others dense")
        if formats == {".arrow"}:
            _unify(saved, pool)
    hashes = [one.id_hashes for one in saved if one.id_hashes is not None]
    joined = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    widths = {one.n_features for one in saved}
    if len(widths) > 1:
        one, other = sorted(width or 0 for width in widths)[:2]
        raise StreammimlError(f"the dask.bag has rows of {one} and of {other} values")
    is_apart = len(np.unique(joined)) < len(joined)
    return SavedCollection(
        paths=tuple(one.path for one in saved if one.path is not None),
        format="arrow" if formats == {".arrow"} else "jsonl",
        needs_group=is_apart or not all(one.is_sorted for one in saved),
        n_features=widths.pop(),
        may_be_marks=all(one.may_be_marks for one in saved),
    )


def with_default_client(options: PoolOptions) -> PoolOptions:
    """The options, or else the client that Dask uses by default, where data may be held already."""
    if options == PoolOptions():
        return PoolOptions(client=default_client())
    return options


def _unify(saved: Sequence[SavedPartition], pool: Pool) -> None:
    """Write files again whose columns have another type than in all files together.

    A partition may lack what determines a type: its lists are empty, or its values are missing.
    """
    schemas = [one.schema for one in saved if one.schema is not None]
    names = {tuple(schema.names) for schema in schemas}
    if len(names) > 1:
        one, other = sorted(names)[:2]
        raise StreammimlError(
            f"partitions have different columns: {', '.join(one)}, and {', '.join(other)}"
        )
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise StreammimlError(
            f"partitions have columns of different types: {' '.join(str(error).split())[:160]}"
        ) from None
    others = [one.path for one in saved if one.schema is not None and not one.schema.equals(schema)]
    for _ in pool.map(_cast, others, pool.share(schema)):
        pass


def _cast(path: str, schema: pa.Schema) -> None:
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
        table = reader.read_all()
    _write(table.cast(schema), Path(path))


def _write(table: pa.Table, path: Path) -> None:
    """Write a file whole or not at all, as a task may run twice."""
    rows = max(1, BATCH_BYTES * table.num_rows // max(1, table.nbytes))
    partial = path.with_suffix(".partial")
    with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    partial.replace(path)


# Partitions of a dataframe.


def _save_frame(frame: Any, number: int, folder: str, bag: str | None) -> SavedPartition:
    table = _without_dictionaries(arrow_table(frame, f"partition {number}", index=bag))
    if not table.num_rows:
        return SavedPartition(None)
    table = table.replace_schema_metadata(None)
    path = Path(folder) / f"part-{number:06d}.arrow"
    _write(table, path)
    hashes, is_adjacent = None, True
    if bag is not None and bag in table.column_names:
        ids = pc.unique(table.column(bag).cast(pa.large_string())).to_pylist()
        hashes = id_hashes([str(name) for name in ids])
        is_adjacent = is_sorted(table, bag)
    return SavedPartition(str(path), table.schema, hashes, is_adjacent)


def _without_dictionaries(table: pa.Table) -> pa.Table:
    """The table with plain columns: partitions may have different dictionaries."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = table.column(number).cast(field.type.value_type)
            table = table.set_column(number, field.name, plain)
    return table


# Partitions of a dask.bag.


def _save_bags(items: Any, number: int, folder: str, id_name: str) -> SavedPartition:
    bags = [_fields(item, f"partition {number}, bag {i}") for i, item in enumerate(items)]
    if not bags:
        return SavedPartition(None)
    for name in FIELDS:
        given = [name in bag for bag in bags]
        if any(given) and not all(given):
            raise SourceError(
                f"partition {number}, bag {given.index(not given[0])} has "
                f"{'no' if given[0] else 'a field'} {name!r}, unlike bag 0 of the partition"
            )
    sparse = [hasattr(bag["rows"], "tocsr") for bag in bags]
    if any(sparse) and not all(sparse):
        raise SourceError(f"partition {number}: some bags are sparse and others dense")
    labels = [list(bag.get("labels", ())) for bag in bags]
    may_be_marks = "labels" in bags[0] and all(own in ([0, 1], [1, 0]) for own in labels)
    path = Path(folder) / f"part-{number:06d}{'.jsonl' if sparse[0] else '.arrow'}"
    if sparse[0]:
        matrices = [_canonical(bag["rows"]) for bag in bags]
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            for bag, matrix in zip(bags, matrices, strict=True):
                file.write(
                    orjson.dumps(_record(bag, matrix, id_name), option=orjson.OPT_SERIALIZE_NUMPY)
                )
                file.write(b"\n")
        partial.replace(path)
        return SavedPartition(str(path), n_features=matrices[0].shape[1], may_be_marks=may_be_marks)
    table = _table_of_bags(bags, number, id_name)
    _write(table, path)
    return SavedPartition(str(path), table.schema, may_be_marks=may_be_marks)


def _canonical(rows: Any) -> Any:
    """Rows as a CSR matrix whose columns are sorted, each once in a row."""
    matrix = rows.tocsr()
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def _fields(item: Any, where: str) -> dict[str, Any]:
    """The fields of a bag, labels as names and numbers of Python; fields of None are left out."""
    if isinstance(item, dict):
        unknown = [name for name in item if name not in FIELDS]
        fields = dict(item)
        if unknown:
            raise SourceError(f"{where} has a field {unknown[0]!r}; known: {', '.join(FIELDS)}")
    elif isinstance(item, tuple) and 1 <= len(item) <= len(FIELDS):
        fields = dict(zip(FIELDS, item, strict=False))
    else:
        raise SourceError(
            f"{where} is of type {type(item).__name__}; expected (rows, labels, id), or a dict "
            f"with {', '.join(FIELDS)}"
        )
    fields = {name: value for name, value in fields.items() if value is not None}
    if "rows" not in fields:
        raise SourceError(f"{where} has no 'rows'")
    if not hasattr(fields["rows"], "tocsr"):
        fields["rows"] = np.asarray(fields["rows"])
    if len(fields["rows"].shape) != 2 or fields["rows"].dtype.kind not in "fiub":
        raise SourceError(
            f"{where} is {fields['rows'].dtype} of shape {fields['rows'].shape}, expected numbers "
            "of shape (rows, features)"
        )
    for name in ("labels", "row_labels"):
        if name in fields:
            fields[name] = [_plain(label, where) for label in fields[name]]
    if "id" in fields:
        fields["id"] = str(fields["id"])
    return fields


def _plain(label: Any, where: str) -> str | int:
    label = label.item() if isinstance(label, np.generic) else label
    if not isinstance(label, str | int) or isinstance(label, bool):
        raise SourceError(f"{where} has the label {label!r}, expected a name or a number")
    return label


def _record(bag: dict[str, Any], matrix: Any, id_name: str) -> dict[str, Any]:
    """A bag of sparse rows, as the reader of JSON lines has it."""
    ends = matrix.indptr
    record: dict[str, Any] = {
        "instances": [
            {"indices": matrix.indices[a:b], "values": matrix.data[a:b]} for a, b in pairwise(ends)
        ]
    }
    names = {"labels": "labels", "id": id_name, "row_labels": "instance_labels"}
    return record | {names[name]: bag[name] for name in names if name in bag}


def _table_of_bags(bags: Sequence[dict[str, Any]], number: int, id_name: str) -> pa.Table:
    """Dense bags as a table with a record for each."""
    widths = {bag["rows"].shape[1] for bag in bags}
    if len(widths) > 1:
        one, other = sorted(widths)[:2]
        raise SourceError(f"partition {number} has rows of {one} and of {other} values")
    width = widths.pop()
    values = np.concatenate([bag["rows"] for bag in bags]).reshape(-1)
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(values), width)
    offsets = from_sizes([len(bag["rows"]) for bag in bags])
    columns: dict[str, pa.Array] = {
        "instances": pa.LargeListArray.from_arrays(pa.array(offsets), rows)
    }
    for name in FIELDS[1:]:
        if name in bags[0]:
            try:
                values_of = pa.array([bag[name] for bag in bags])
            except pa.ArrowException:
                raise SourceError(
                    f"partition {number}: {name!r} are names and numbers; give one or the other"
                ) from None
            columns[id_name if name == "id" else name] = values_of
    return pa.table(columns)


# Chunks of an array.


class _Chunks(NamedTuple):
    """The chunks of an array along its first axis, as partitions."""

    array: Any

    def to_delayed(self) -> list[Any]:
        """The chunks in order."""
        return list(self.array.to_delayed().ravel())


def _chunks(array: Any, ids: Any) -> tuple[_Chunks, list[Any]]:
    """Chunks that have all features, and the ids of the rows or bags of each."""
    if array.ndim not in (2, 3) or np.dtype(array.dtype).kind not in "fiub":
        raise StreammimlError(
            f"the dask.array is {array.dtype} of shape {array.shape}, expected numbers of shape "
            "(rows, features) or (bags, rows, features)"
        )
    n_items, what = array.shape[0], "row" if array.ndim == 2 else "bag"
    if n_items != n_items:  # Dask does not know the sizes of chunks after a filter, for example.
        raise StreammimlError(
            "the sizes of the chunks of the dask.array are not known; call compute_chunk_sizes()"
        )
    if ids is None and array.ndim == 2:
        raise StreammimlError(
            "which bag has each row of the dask.array? give bag=…, an array with the id of the bag "
            "of each row"
        )
    if ids is None:
        ids = np.arange(n_items)
    ids = np.asarray(ids.compute() if is_collection(ids) else ids)
    if ids.shape != (n_items,):
        raise StreammimlError(
            f"bag=… has shape {ids.shape}, expected ({n_items},): an id for each {what} of the "
            "dask.array"
        )
    array = array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
    bounds = from_sizes(array.chunks[0])
    return _Chunks(array), [ids[a:b] for a, b in pairwise(bounds.tolist())]


def _save_chunk(
    chunk: NDArray[Any], number: int, folder: str, id_name: str, own_ids: NDArray[Any]
) -> SavedPartition:
    """Write the rows, or the bags, of a chunk."""
    ids = [str(name) for name in own_ids.tolist()]
    if chunk.ndim == 3:
        items = [{"rows": rows, "id": own} for rows, own in zip(chunk, ids, strict=True)]
        return _save_bags(items, number, folder, id_name)
    values = np.ascontiguousarray(chunk.astype(np.uint8) if chunk.dtype.kind == "b" else chunk)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), chunk.shape[1])
    return _save_frame(pa.table({id_name: ids, "instances": rows}), number, folder, id_name)


def partition_names(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each file, and what messages call it."""
    for path in paths:
        yield path, f"partition {int(Path(path).stem.removeprefix('part-'))} of the source"
