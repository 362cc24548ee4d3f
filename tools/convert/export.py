"""``export``: writes a store as JSON lines, CSV or NumPy arrays for other programs.

Values can be read back to the last bit. Labels are written by name if the store has names. The
order of the names is then written to a second file, one name a line, for ``convert --labels``.
"""

from __future__ import annotations

import os
import shlex
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import orjson
import pyarrow as pa
from cyclopts import Parameter
from numpy.typing import NDArray
from pyarrow import csv

from streammiml._base.atomic import free_bytes, local_path, sync_file, sync_folder
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import TEXT, KeptColumn, plain_values
from streammiml.bags.store import open_store
from streammiml.bags.verify import scan_bags
from streammiml.bags.views import Bags
from streammiml.errors import StoreError, StreammimlError
from streammiml.model import MODEL_FILE, Model, load_model
from streammiml_tools.convert.split_and_filter import shaped
from streammiml_tools.readers.base import ExtraModule

ONNX = ExtraModule("streammiml_tools.convert.onnx_model", extra="onnx", packages=("onnx",))
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
CSV_FEATURES = 1 << 16
"""Upper limit of features that become columns of CSV."""
RESERVED = ("bag", "labels", "row_label")
BAGS_AT_A_TIME = 1 << 16
# Spreadsheets compute a cell that begins with one of FORMULA_MARKS or SIGNS. After a sign or @, the
# cell does harm only if it calls a function or another program, which takes one of CALLS.
FORMULA_MARKS, SIGNS, CALLS = ("=", "\t", "\r"), ("+", "-", "@"), "(|!"


def export(
    store: str | os.PathLike[str] | Bags,
    out: str | os.PathLike[str],
    *,
    label_separator: str = ";",
) -> list[Path]:
    """Write all bags of a store to one file, whole or not at all, and return the written files.

    The suffix decides the format: ``.jsonl``, ``.csv`` or ``.tsv``, each also with ``.gz`` or
    ``.zst``, or ``.npz``.
    """
    bags = store if isinstance(store, Bags) else open_store(store)
    path = local_path(out, "files of a store", "file")
    compression = COMPRESSIONS.get(path.suffix)
    kind = (path.with_suffix("") if compression else path).suffix
    if kind not in WRITERS or (kind == ".npz" and compression):
        known = ", ".join(f"{name}" for name in WRITERS)
        raise StreammimlError(
            f"{path}: the suffix must be one of {known}; text also with .gz or .zst"
        )
    _refuse_unwritable(path)
    labels_path = _labels_path(path) if _needs_labels(bags, kind) else None
    existing = [path] if path.exists() else []
    if labels_path is not None and labels_path.exists() and not _holds_labels(labels_path, bags):
        existing.append(labels_path)
    if existing:
        raise StreammimlError(f"{existing[0]} exists already; remove it or choose another name")
    with _replacing(path) as partial_path:
        WRITERS[kind](bags, partial_path, compression, label_separator)
    if labels_path is None:
        return [path]
    with _replacing(labels_path) as partial_path, partial_path.open("w", encoding="utf-8") as file:
        file.writelines(_label_lines(bags))
    return [path, labels_path]


def export_model(model: str | os.PathLike[str] | Model, out: str | os.PathLike[str]) -> Path:
    """Write a model as an ONNX file, whole or not at all, and return its path.

    ``model`` is a model, or the path of a run folder or model file. The module ``onnx_model``
    describes the inputs and outputs of the graph.
    """
    path = local_path(out, "models", "file")
    if path.suffix != ".onnx":
        raise StreammimlError(f"{path}: a model is written as .onnx; give the file this suffix")
    _refuse_unwritable(path)
    if path.exists():
        raise StreammimlError(f"{path} exists already; remove it or choose another name")
    graphs = ONNX.loaded(str(path))
    content = graphs.onnx_bytes(model if isinstance(model, Model) else load_model(model))
    with _replacing(path) as partial_path:
        partial_path.write_bytes(content)
    return path


def _label_lines(bags: Bags) -> Iterator[str]:
    """Yield a line for each label; a list would be too long if a store declares 2³¹ labels."""
    return (f"{name}\n" for name in _label_texts(bags))


def _holds_labels(path: Path, bags: Bags) -> bool:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        return all(line == label for line, label in zip_longest(file, _label_lines(bags)))


def _needs_labels(bags: Bags, kind: str) -> bool:
    """Return whether order or number of the labels would be lost without a file of labels."""
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


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _refuse_unwritable(path: Path) -> None:
    """Refuse a folder in which no file can be created, before bags are read."""
    if not path.absolute().parent.is_dir():
        raise StreammimlError(f"{path} cannot be written: there is no folder {path.parent}")
    try:
        _partial(path).open("wb").close()
        _partial(path).unlink()
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}; choose another folder"
        ) from error


def _is_model(path: str) -> bool:
    """Whether a path is that of a model file or of a run folder with a model."""
    return path.endswith(".safetensors") or (Path(path) / MODEL_FILE).is_file()


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of a file, and rename it to the file when it is complete."""
    temporary = _partial(path)
    try:
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        folder = path.parent if path.parent.is_dir() else Path("/")
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error} "
            f"({free_bytes(folder):,} bytes free)"
        ) from error
    finally:
        # An error while cleaning up would hide the error that matters.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def blocks_of(bags: Bags) -> Iterator[BagBlock]:
    """Yield all bags in order, with their ids, which are numbers where the store has no ids."""
    step, first = scan_bags(bags), 0
    for block in bags.blocks(step):
        stop = first + len(block)
        yield replace(block, bag_ids=bags.bag_ids(first, stop))
        first = stop


def exact(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as float64 whose shortest text reads back as the same float32.

    Readers may parse the text as float64 and round to float32. So the shortest decimal of each
    float32 is parsed as float64. Rarely, that number rounds to a neighbour of the float32; then the
    float32's own value is taken.
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


def _label_texts(bags: Bags) -> list[str] | range:
    return bags.label_names or range(bags.n_labels)


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
    block: BagBlock, names: list[str] | range, *, with_ids: bool
) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each bag."""
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
            row_labels = block.row_labels[start:stop].tolist()
            record["instance_labels"] = [names[i] if i >= 0 else None for i in row_labels]
        if block.kept:
            kept = block.kept_of(bag)
            record["kept"] = {name: plain_values(values) for name, values in kept.items()}
        yield record


# CSV.


def _write_csv(
    bags: Bags, path: Path, compression: str | None, separator: str, delimiter: str = ","
) -> None:
    if bags.n_features > CSV_FEATURES:
        raise StreammimlError(
            f"{bags.name} has {bags.n_features:,} features, too many for columns (up to "
            f"{CSV_FEATURES:,}); export to .jsonl or .npz"
        )
    if separator == delimiter or len(separator) != 1:
        raise StreammimlError(
            f"label_separator must be one character other than {delimiter!r}, got {separator!r}"
        )
    # Labels without names are written as their numbers.
    names = bags.label_names or [str(digit) for digit in range(min(10, bags.n_labels))]
    bad = next((name for name in names if separator in name or name != name.strip()), None)
    if bad is not None:
        raise StreammimlError(
            f"{bags.name}: the label {bad!r} cannot be written in a list separated by "
            f"{separator!r}; choose another --label-separator, or export to .jsonl"
        )
    _refuse_formulas(bags, "label", names)
    features = _feature_columns(bags)
    fields = [pa.field("bag", pa.string())]
    fields += [pa.field("row_label", pa.string())] if bags.has_row_labels else []
    fields += _kept_fields(bags, features)
    floats = bags.dtype.startswith("float")
    kind = pa.float64() if floats else pa.from_numpy_dtype(bags.dtype)
    fields += [pa.field(name, kind) for name in features]
    schema = pa.schema([*fields, pa.field("labels", pa.string())])
    options = csv.WriteOptions(delimiter=delimiter)
    with (
        _stream(path, compression) as out,
        csv.CSVWriter(out, schema, write_options=options) as writer,
    ):
        for block in blocks_of(bags):
            writer.write_table(_table(bags, block, separator, schema))


def _is_formula(text: str) -> bool:
    """Return whether a spreadsheet would take the text of a cell for a formula."""
    if text.startswith(SIGNS):
        return any(call in text for call in CALLS)
    return text.startswith(FORMULA_MARKS)


def _refuse_formulas(bags: Bags, kind: str, texts: Iterable[str]) -> None:
    """Refuse texts that a spreadsheet would run as formulas.

    Marking them as text does not help: other programs, and ``convert``, would take the mark for a
    part of the name.
    """
    bad = next(filter(_is_formula, texts), None)
    if bad is not None:
        raise StreammimlError(
            f"{bags.name}: the {kind} {bad!r} would be a formula in a spreadsheet; export to .jsonl"
        )


def _feature_columns(bags: Bags) -> list[str]:
    """Return the feature names if all of them can name columns, else f0, f1 and so on."""
    names = bags.feature_names
    if names is not None and len({*map(str.lower, names), *RESERVED}) == len(names) + len(RESERVED):
        plain = all(name and name == name.strip() and name.isprintable() for name in names)
        plain = plain and not any(map(_is_formula, names))
        numbers = any(name.replace(".", "", 1).isdigit() for name in names)
        if plain and not numbers:
            return names
    return [f"f{i}" for i in range(bags.n_features)]


def _kept_fields(bags: Bags, features: list[str]) -> list[pa.Field]:
    """Return a field for each number of a kept column in a row, or for its text."""
    fields = []
    for column in bags.kept_columns:
        kind = pa.string() if column.dtype == TEXT else pa.float64()
        if column.dtype not in (TEXT, "float16", "float32", "float64"):
            kind = pa.from_numpy_dtype(column.dtype)
        fields += [pa.field(name, kind) for name in kept_names(column)]
    names = [*features, *RESERVED, *(field.name for field in fields)]
    twice = next((name for name in names if names.count(name) > 1), None) if fields else None
    if twice is not None:
        raise StreammimlError(
            f"{bags.name}: a kept column would have the name {twice!r} of another column; export "
            "to .jsonl or .npz"
        )
    return fields


def kept_names(column: KeptColumn) -> list[str]:
    """Return the columns of CSV for a kept column: ``coords_0`` and so on if a row has several."""
    if column.width == 1:
        return [column.name]
    return [f"{column.name}_{i}" for i in range(column.width)]


def _kept_arrays(bags: Bags, block: BagBlock) -> Iterator[pa.Array]:
    for column in bags.kept_columns:
        values = block.kept[column.name]
        if column.dtype != TEXT:
            numbers = values.reshape(len(values), column.width)
            numbers = numbers if column.dtype == "float64" else exact(numbers)
            yield from (pa.array(np.ascontiguousarray(numbers[:, i])) for i in range(column.width))
            continue
        texts = values.tolist()
        if any(mark in text for text in texts for mark in "\r\n"):
            raise StreammimlError(
                f"{bags.name}: a text of {column.name!r} has a line break, which no line of CSV "
                "can hold; export to .jsonl"
            )
        _refuse_formulas(bags, f"text of {column.name!r}", texts)
        yield pa.array(texts, pa.string())


def _table(bags: Bags, block: BagBlock, separator: str, schema: pa.Schema) -> pa.Table:
    names = _label_texts(bags)
    rows = shaped(block, sparse=False).rows
    assert not isinstance(rows, SparseRows)
    values = exact(rows)
    sizes = np.diff(block.bag_offsets)
    label_lists = [
        separator.join(str(names[label]) for label in block.labels_of(bag).tolist())
        for bag in range(len(block))
    ]
    ids = block.bag_ids or []
    bad = next((name for name in ids if any(mark in name for mark in "\r\n")), None)
    if bad is not None:
        raise StreammimlError(
            f"{bags.name}: the bag id {bad!r} has a line break, which no line of CSV can hold; "
            "export to .jsonl"
        )
    _refuse_formulas(bags, "bag id", ids)
    bag_of_row = np.repeat(np.arange(len(block)), sizes)
    columns = [pa.array(ids).take(pa.array(bag_of_row))]
    if block.row_labels is not None:
        labels, inverse = np.unique(block.row_labels, return_inverse=True)
        texts = [str(names[label]) if label >= 0 else "" for label in labels.tolist()]
        columns.append(pa.array(np.array(texts, object)[inverse], pa.string()))
    columns += _kept_arrays(bags, block)
    columns += [pa.array(np.ascontiguousarray(values[:, i])) for i in range(values.shape[1])]
    columns.append(pa.array(label_lists, pa.string()).take(pa.array(bag_of_row)))
    return pa.table(columns, schema=schema)


# NumPy.


def _write_npz(bags: Bags, path: Path, compression: str | None, separator: str) -> None:
    del compression, separator
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        put = partial(_put, archive)
        if bags.sparse:
            n_values = bags.n_values
            _put_blocks(put, bags, "data", bags.dtype, (n_values,), lambda b: _sparse(b).values)
            _put_blocks(put, bags, "indices", "uint32", (n_values,), lambda b: _sparse(b).columns)
            put("indptr", np.dtype("int64"), (bags.n_rows + 1,), _row_ends(bags))
            shape = np.array([bags.n_rows, bags.n_features], np.int64)
            put("shape", shape.dtype, (2,), iter([shape]))
        else:
            dense_shape = (bags.n_rows, bags.n_features)
            _put_blocks(put, bags, "instances", bags.dtype, dense_shape, lambda b: b.rows)
        put("offsets", np.dtype("int64"), (bags.n_bags + 1,), _offsets_from(_sizes(bags)))
        put(
            "label_indptr", np.dtype("int64"), (bags.n_bags + 1,), _offsets_from(_label_sizes(bags))
        )
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
            _put_blocks(put, bags, "row_labels", "int32", (bags.n_rows,), lambda b: b.row_labels)
        for column in bags.kept_columns:
            _put_kept(put, bags, column)
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
    """Write a member of the archive, array by array."""
    # The date is fixed, so that the same store gives the same bytes.
    info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
    with archive.open(info, "w", force_zip64=True) as member:
        _header(member, dtype, shape)
        for array in arrays:
            member.write(np.ascontiguousarray(array, dtype).tobytes())


def _header(member: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, header)


def _put_blocks(
    put: Put, bags: Bags, name: str, dtype: str, shape: tuple[int, ...], array: Callable[..., Any]
) -> None:
    put(name, np.dtype(dtype), shape, (array(block) for block in bags.blocks(scan_bags(bags))))


def _put_kept(put: Put, bags: Bags, column: KeptColumn) -> None:
    """Write a kept column; NumPy pads texts to the length of the longest."""
    dtype = column.dtype
    shape: tuple[int, ...] = (bags.n_rows,)
    if dtype == TEXT:
        texts = (bags.kept(a, b)[column.name].tolist() for a, b in _ranges(bags))
        longest = max((len(text) for part in texts for text in part), default=0)
        dtype = f"<U{max(longest, 1)}"
    elif column.width > 1:
        shape = (bags.n_rows, column.width)
    values = (bags.kept(a, b)[column.name] for a, b in _ranges(bags))
    put(column.array, np.dtype(dtype), shape, values)


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
    return _offsets_from(np.diff(_sparse(block).offsets) for block in bags.blocks(scan_bags(bags)))


def _offsets_from(sizes: Iterator[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    """Yield offsets, array by array, from arrays of sizes."""
    yield np.zeros(1, np.int64)
    end = 0
    for sizes_of_range in sizes:
        ends = end + np.cumsum(sizes_of_range)
        end = int(ends[-1]) if len(ends) else end
        yield ends


WRITERS: dict[str, Callable[[Bags, Path, str | None, str], None]] = {
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
    ".tsv": partial(_write_csv, delimiter="\t"),
    ".npz": _write_npz,
}


def export_verb(
    store: str,
    out: Path,
    /,
    *,
    label_separator: Annotated[str, Parameter(allow_leading_hyphen=True)] = ";",
) -> None:
    """Write all bags of a store, or a model, to one file that other programs read.

    An ONNX file takes the rows of some bags, and the number of each row's bag (all 0 for one bag);
    it gives the scores of rows and bags, the dummy label's score, and which labels are predicted.

    Parameters
    ----------
    store
        Folder or URL of a store; or a run folder or model file.
    out
        File to write: .jsonl, .csv, .tsv (also with .gz or .zst), or .npz for a store, .onnx for a
        model. Names that a spreadsheet would take for formulas are refused in CSV and TSV.
    label_separator
        Character between the labels of a bag in CSV.
    """
    if out.suffix == ".onnx" or _is_model(store):
        path = export_model(store, out)
        print(f"{path}: {path.stat().st_size:,} bytes; inputs are rows and bag")
        return
    bags = open_store(store)
    path, *others = export(bags, out, label_separator=label_separator)
    print(f"{path}: {bags.n_bags:,} bags, {bags.n_rows:,} rows, {path.stat().st_size:,} bytes")
    for labels_path in others:
        print(f"{labels_path}: the labels in their order; give this file to convert as --labels")
    if bags.sparse and path.suffix != ".npz":
        print(f"rows are sparse: give --n-features {bags.n_features} to convert")
    if bags.kept_columns:
        names = [column.name for column in bags.kept_columns]
        if {".csv", ".tsv"} & {*path.suffixes}:
            names = [name for column in bags.kept_columns for name in kept_names(column)]
        options = " ".join(f"--keep {shlex.quote(name)}" for name in names)
        print(f"kept columns are in the file too: give {options} to convert")
