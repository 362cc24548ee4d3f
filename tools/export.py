"""``export``: a store to JSON lines, CSV or NumPy arrays that any program reads.

Values are written so that they come back to the last bit. Labels go by name where the store has
names; their order is then written beside, a name a line, for ``convert --labels``.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import orjson
import pyarrow as pa
from cyclopts import Parameter
from numpy.typing import NDArray
from pyarrow import csv

from streammiml.bags.audit import scan_bags
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.place import free_bytes, sync_folder
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.errors import StoreError, StreammimlError
from streammiml_tools.choosing import shaped

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
CSV_FEATURES = 1 << 16
RESERVED = ("bag", "labels", "row_label")
BAGS_AT_A_TIME = 1 << 16


def export(
    store: str | os.PathLike[str] | Bags,
    out: str | os.PathLike[str],
    *,
    label_separator: str = ";",
) -> list[Path]:
    """Write all bags of a store to one file, whole or not at all; the files that were written.

    The suffix decides: ``.jsonl``, ``.csv`` or ``.tsv``, each also with ``.gz`` or ``.zst``, or
    ``.npz``.
    """
    bags = store if isinstance(store, Bags) else open_store(store)
    path = Path(out)
    compression = COMPRESSIONS.get(path.suffix)
    kind = (path.with_suffix("") if compression else path).suffix
    if kind not in WRITERS or (kind == ".npz" and compression):
        known = ", ".join(f"{name}" for name in WRITERS)
        raise StreammimlError(
            f"{path}: a store is exported to {known} (text also with .gz or .zst), by the suffix"
        )
    beside = _labels_path(path) if _says_labels(bags, kind) else None
    names = [f"{name}\n" for name in bags.label_names or range(bags.n_labels)]
    taken = [path] if path.exists() else []
    if beside is not None and beside.exists() and beside.read_text("utf-8") != "".join(names):
        taken.append(beside)
    if not path.absolute().parent.is_dir():
        raise StreammimlError(f"{path} cannot be written: there is no folder {path.parent}")
    if taken:
        raise StreammimlError(f"{taken[0]} exists already; remove it or choose another name")
    with _whole(path) as partial_path:
        WRITERS[kind](bags, partial_path, compression, label_separator)
    if beside is None:
        return [path]
    with _whole(beside) as partial_path:
        partial_path.write_text("".join(names), "utf-8")
    return [path, beside]


def _says_labels(bags: Bags, kind: str) -> bool:
    """Whether the order or the number of labels would be lost without a file that says it."""
    if kind == ".npz":
        return False
    return bags.label_names is not None or _top_label(bags) + 1 < bags.n_labels


def _top_label(bags: Bags) -> int:
    top = -1
    for start in range(0, bags.n_bags, BAGS_AT_A_TIME):
        labels = bags.labels(start, min(start + BAGS_AT_A_TIME, bags.n_bags))[1]
        top = max(top, int(labels.max(initial=-1)))
    return top


def _labels_path(path: Path) -> Path:
    name = path.name
    for suffix in (*COMPRESSIONS, *WRITERS):
        name = name.removesuffix(suffix)
    return path.with_name(f"{name}.labels.txt")


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file beside the wanted one, which takes its place when it is complete."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        there = path.parent if path.parent.is_dir() else Path("/")
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error} "
            f"({free_bytes(there):,} bytes free)"
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def blocks_of(bags: Bags) -> Iterator[BagBlock]:
    """All bags in order, with their ids: numbers where the store has none."""
    step, first = scan_bags(bags), 0
    for block in bags.blocks(step):
        stop = first + len(block)
        yield replace(block, bag_ids=bags.bag_ids(first, stop))
        first = stop


def exact(values: NDArray[Any]) -> NDArray[Any]:
    """The same values, such that the shortest text of each comes back as the same float32.

    A reader may go through float64. So the shortest decimal of the float32 is taken as a float64,
    and, in the rare case that this rounds to a neighbour, the float32's own value.
    """
    if values.dtype.kind != "f":
        return values
    narrow = values.astype(np.float32, copy=False)
    text = pa.array(narrow.reshape(-1)).cast(pa.string())
    wide = np.array(text.cast(pa.float64()).to_numpy(zero_copy_only=False)).reshape(values.shape)
    with np.errstate(over="ignore"):
        wrong = wide.astype(np.float32) != narrow
    wide[wrong] = narrow[wrong]
    return wide


def _label_texts(bags: Bags) -> list[str] | list[int]:
    return bags.label_names or list(range(bags.n_labels))


def _stream(path: Path, compression: str | None) -> Any:
    file = pa.OSFile(str(path), "wb")
    return file if compression is None else pa.CompressedOutputStream(file, compression)


# JSON lines.


def _write_jsonl(bags: Bags, path: Path, compression: str | None, separator: str) -> None:
    del separator
    names = _label_texts(bags)
    with _stream(path, compression) as out:
        for block in blocks_of(bags):
            lines = [
                orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
                for record in records(block, names, with_ids=bags.has_bag_ids)
            ]
            out.write(b"".join(lines))


def records(
    block: BagBlock, names: list[str] | list[int], *, with_ids: bool
) -> Iterator[dict[str, Any]]:
    """One object a bag, as the JSON lines have it."""
    rows = block.rows
    is_sparse = isinstance(rows, SparseRows)
    values = exact(rows.values if isinstance(rows, SparseRows) else rows)
    for bag in range(len(block)):
        start, stop = int(block.bag_offsets[bag]), int(block.bag_offsets[bag + 1])
        record: dict[str, Any] = {}
        if with_ids and block.bag_ids is not None:
            record["id"] = block.bag_ids[bag]
        if is_sparse and isinstance(rows, SparseRows):
            ends = rows.offsets[start : stop + 1].tolist()
            record["instances"] = [
                {"indices": rows.columns[a:b], "values": values[a:b]} for a, b in pairwise(ends)
            ]
        else:
            record["instances"] = values[start:stop]
        record["labels"] = [names[label] for label in block.labels_of(bag).tolist()]
        if block.row_labels is not None:
            found = block.row_labels[start:stop].tolist()
            record["instance_labels"] = [names[i] if i >= 0 else None for i in found]
        yield record


# CSV.


def _write_csv(
    bags: Bags, path: Path, compression: str | None, separator: str, between: str = ","
) -> None:
    if bags.n_features > CSV_FEATURES:
        raise StreammimlError(
            f"{bags.name} has {bags.n_features:,} features, too many for columns (up to "
            f"{CSV_FEATURES:,}); export to .jsonl or .npz"
        )
    if separator == between or len(separator) != 1:
        raise StreammimlError(
            f"label_separator must be one character other than {between!r}, got {separator!r}"
        )
    names = [str(name) for name in _label_texts(bags)]
    bad = next((name for name in names if separator in name or name != name.strip()), None)
    if bad is not None:
        raise StreammimlError(
            f"{bags.name}: the label {bad!r} cannot stand in a list with {separator!r} between "
            "labels; choose another --label-separator, or export to .jsonl"
        )
    features = _feature_columns(bags)
    fields = [pa.field("bag", pa.string())]
    fields += [pa.field("row_label", pa.string())] if bags.has_row_labels else []
    floats = bags.dtype.startswith("float")
    kind = pa.float64() if floats else pa.from_numpy_dtype(bags.dtype)
    fields += [pa.field(name, kind) for name in features]
    schema = pa.schema([*fields, pa.field("labels", pa.string())])
    options = csv.WriteOptions(delimiter=between)
    with _stream(path, compression) as out, csv.CSVWriter(out, schema, write_options=options) as to:
        for block in blocks_of(bags):
            to.write_table(_table(bags, block, names, separator, schema))


def _feature_columns(bags: Bags) -> list[str]:
    """Names of features where they can be columns beside the others, else f0, f1 and so on."""
    names = bags.feature_names
    if names is not None and len({*map(str.lower, names), *RESERVED}) == len(names) + len(RESERVED):
        plain = all(name and name == name.strip() and name.isprintable() for name in names)
        numbers = any(name.replace(".", "", 1).isdigit() for name in names)
        if plain and not numbers:
            return names
    return [f"f{i}" for i in range(bags.n_features)]


def _table(
    bags: Bags, block: BagBlock, names: list[str], separator: str, schema: pa.Schema
) -> pa.Table:
    rows = shaped(block, sparse=False).rows
    assert not isinstance(rows, SparseRows)
    values = exact(rows)
    sizes = np.diff(block.bag_offsets)
    lists = [
        separator.join(names[label] for label in block.labels_of(bag).tolist())
        for bag in range(len(block))
    ]
    ids = block.bag_ids or []
    bad = next((name for name in ids if any(mark in name for mark in "\r\n")), None)
    if bad is not None:
        raise StreammimlError(
            f"{bags.name}: the bag id {bad!r} has a line break, which no line of CSV can hold; "
            "export to .jsonl"
        )
    of_bag = np.repeat(np.arange(len(block)), sizes)
    columns = [pa.array(ids).take(pa.array(of_bag))]
    if block.row_labels is not None:
        known = np.array([*names, ""], object)
        columns.append(pa.array(known[block.row_labels], pa.string()))
    columns += [pa.array(np.ascontiguousarray(values[:, i])) for i in range(values.shape[1])]
    columns.append(pa.array(lists, pa.string()).take(pa.array(of_bag)))
    return pa.table(columns, schema=schema)


# NumPy.


def _write_npz(bags: Bags, path: Path, compression: str | None, separator: str) -> None:
    del compression, separator
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        put = partial(_put, archive)
        if bags.sparse:
            n_values = bags.n_values
            _stored(put, bags, "data", bags.dtype, (n_values,), lambda b: _sparse(b).values)
            _stored(put, bags, "indices", "uint32", (n_values,), lambda b: _sparse(b).columns)
            put("indptr", np.dtype("int64"), (bags.n_rows + 1,), _row_ends(bags))
            shape = np.array([bags.n_rows, bags.n_features], np.int64)
            put("shape", shape.dtype, (2,), iter([shape]))
        else:
            shape2 = (bags.n_rows, bags.n_features)
            _stored(put, bags, "instances", bags.dtype, shape2, lambda b: b.rows)
        put("offsets", np.dtype("int64"), (bags.n_bags + 1,), _running(_sizes(bags)))
        put("label_indptr", np.dtype("int64"), (bags.n_bags + 1,), _running(_label_sizes(bags)))
        labels = (bags.labels(a, b)[1] for a, b in _ranges(bags))
        put("label_indices", np.dtype("int32"), (bags.n_label_entries,), labels)
        put("n_labels", np.dtype("int64"), (), iter([np.array(bags.n_labels, np.int64)]))
        for name, texts in (
            ("label_names", bags.label_names),
            ("feature_names", bags.feature_names),
        ):
            if texts is not None:
                array = np.array(texts)
                put(name, array.dtype, array.shape, iter([array]))
        if bags.has_row_labels:
            _stored(put, bags, "row_labels", "int32", (bags.n_rows,), lambda b: b.row_labels)
        if bags.has_bag_ids:
            longest = max(len(name) for a, b in _ranges(bags) for name in bags.bag_ids(a, b))
            dtype = np.dtype(f"<U{max(longest, 1)}")
            ids = (np.array(bags.bag_ids(a, b), dtype) for a, b in _ranges(bags))
            put("bag_ids", dtype, (bags.n_bags,), ids)


Put = Callable[[str, np.dtype[Any], tuple[int, ...], Iterator[NDArray[Any]]], None]


def _put(
    archive: zipfile.ZipFile,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    arrays: Iterator[NDArray[Any]],
) -> None:
    """One member, written as its pieces come."""
    # A fixed date: the same store gives the same bytes.
    info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
    with archive.open(info, "w", force_zip64=True) as member:
        _header(member, dtype, shape)
        for array in arrays:
            member.write(np.ascontiguousarray(array, dtype).tobytes())


def _header(member: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    said = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, said)


def _stored(
    put: Put, bags: Bags, name: str, dtype: str, shape: tuple[int, ...], of: Callable[..., Any]
) -> None:
    put(name, np.dtype(dtype), shape, (of(block) for block in bags.blocks(scan_bags(bags))))


def _sparse(block: BagBlock) -> SparseRows:
    assert isinstance(block.rows, SparseRows)
    return block.rows


def _ranges(bags: Bags) -> Iterator[tuple[int, int]]:
    for start in range(0, bags.n_bags, BAGS_AT_A_TIME):
        yield start, min(start + BAGS_AT_A_TIME, bags.n_bags)


def _sizes(bags: Bags) -> Iterator[NDArray[np.int64]]:
    return (bags.bag_sizes(a, b) for a, b in _ranges(bags))


def _label_sizes(bags: Bags) -> Iterator[NDArray[np.int64]]:
    return (np.diff(bags.labels(a, b)[0]) for a, b in _ranges(bags))


def _row_ends(bags: Bags) -> Iterator[NDArray[np.int64]]:
    return _running(np.diff(_sparse(block).offsets) for block in bags.blocks(scan_bags(bags)))


def _running(sizes: Iterator[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    """Offsets, piece by piece, from sizes."""
    yield np.zeros(1, np.int64)
    end = 0
    for piece in sizes:
        ends = end + np.cumsum(piece)
        end = int(ends[-1]) if len(ends) else end
        yield ends


WRITERS: dict[str, Callable[[Bags, Path, str | None, str], None]] = {
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
    ".tsv": partial(_write_csv, between="\t"),
    ".npz": _write_npz,
}


def export_verb(
    store: str,
    out: Path,
    /,
    *,
    label_separator: Annotated[str, Parameter(allow_leading_hyphen=True)] = ";",
) -> None:
    """Write all bags of a store to one file that other programs read.

    Parameters
    ----------
    store
        Folder or URL.
    out
        File to write: .jsonl, .csv, .tsv (also with .gz or .zst), or .npz.
    label_separator
        Between the labels of a bag in CSV.
    """
    bags = open_store(store)
    path, *beside = export(bags, out, label_separator=label_separator)
    print(f"{path}: {bags.n_bags:,} bags, {bags.n_rows:,} rows, {path.stat().st_size:,} bytes")
    for labels in beside:
        print(f"{labels}: the labels in their order; give it to convert as --labels")
    if bags.sparse and path.suffix != ".npz":
        print(f"rows are sparse: give --n-features {bags.n_features} to convert")
