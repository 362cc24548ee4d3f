"""NumPy files: flat arrays of bags in one ``.npz``, or as ``.npy`` files side by side.

Rows, dense (rows, features) or compressed (CSR), with ``offsets`` of bags; or (bags, rows,
features) where all bags are equally long. Labels as offsets and indices, or as a matrix of marks.
Arrays are read by byte range, never mapped: a file that shrinks while it is read is an error, not
a dead process. Members of an npz that are only stored are read the same way; compressed ones are
streams, read once from front to end.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from streammiml._base.platform import read_at
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml.config import format_size
from streammiml_tools.readers.base import BESIDE, Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.labelling import labels_of_marks, numbered_names, places_of

I64 = NDArray[np.int64]

BLOCK_BYTES = 8 << 20
"""Bytes of rows that are read together, about."""
MAX_HEADER = 1 << 20
NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"

NAMES = {
    "rows": ("instances", "rows", "bags", "X", "x", "features"),
    "bag_offsets": ("offsets", "bag_offsets", "bag_indptr"),
    "label_offsets": ("label_indptr", "label_offsets"),
    "label_indices": ("label_indices", "labels"),
    "marks": ("targets", "target", "Y", "y"),
    "row_labels": ("row_labels", "instance_labels"),
    "bag_ids": ("bag_ids", "ids"),
    "n_labels": ("n_labels",),
    "label_names": ("label_names", "class_name", "class_names"),
    "feature_names": ("feature_names",),
    "values": ("data", "values"),
    "columns": ("indices", "columns"),
    "row_offsets": ("indptr", "row_offsets"),
    "shape": ("shape",),
}
"""What each array is called, the first name that is there; CSR as scipy saves it."""
LABEL_ROLES = ("label_offsets", "label_indices", "marks", "row_labels", "n_labels", "label_names")
# Held whole while bags are read, with the bytes that an element takes then.
HELD = {"bag_offsets": 8, "label_offsets": 8, "row_offsets": 8}


@dataclass(frozen=True)
class Array:
    """One array on disk: what its header says, and where its values lie."""

    name: str
    """Of file and member, for messages."""
    path: Path
    member: str | None
    """Name in a zip; None for a file of its own."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool
    """Whether values lie in Fortran's order."""
    start: int
    """Byte of the first value, in the file where that is known, in the member otherwise."""
    is_stream: bool
    """Whether it can only be read from the front."""

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def width(self) -> int:
        """Values in an element along the first axis."""
        return math.prod(self.shape[1:])

    def open(self) -> Values:
        """Its elements; other formats of flat arrays have their own."""
        return Values(self)


ArraysIn = Callable[[Sequence[Path]], dict[str, Array]]
"""What finds the arrays of a source, by name."""


def _tells(path: Path, head: bytes) -> bool:
    if path.is_dir():
        return any(path.glob("*.npy"))
    return head.startswith(NPY) or (head.startswith(ZIP) and path.suffix == ".npz")


# Headers.


def _header(file: IO[bytes], name: str, available: int) -> tuple[Any, bool, np.dtype[Any], int]:
    """Shape, order and type, and the bytes that the header takes; nothing is allocated."""
    try:
        version = np.lib.format.read_magic(file)
        width, read = (
            ("<H", np.lib.format.read_array_header_1_0)
            if version[0] == 1
            else ("<I", np.lib.format.read_array_header_2_0)
        )
        prefix = file.read(struct.calcsize(width))
        length = struct.unpack(width, prefix)[0]
        if length > min(MAX_HEADER, available):
            raise ValueError(f"a header of {length} bytes")
        raw = io.BytesIO(prefix + file.read(length))
        shape, by_columns, dtype = read(raw, max_header_size=MAX_HEADER)
    except (ValueError, struct.error, EOFError, SyntaxError, TypeError, OverflowError) as error:
        why = " ".join(str(error).split())[:120]
        raise SourceError(f"{name} is no NumPy array, or is damaged: {why}") from None
    if dtype.hasobject:
        raise SourceError(
            f"{name} holds Python objects, which could run code when read; "
            "save plain arrays of numbers or text"
        )
    return shape, by_columns, dtype, 8 + len(prefix) + length


def _checked(array: Array, available: int) -> Array:
    """Refuse a header that promises other bytes than there are, before anything is allocated."""
    if array.nbytes != available:
        raise SourceError(
            f"{array.name} is cut short or lies: its header promises {array.shape} "
            f"{array.dtype}, {array.nbytes:,} bytes, and {available:,} are there"
        )
    if array.by_columns and array.is_stream and len(array.shape) > 1:
        raise SourceError(
            f"{array.name} lies in Fortran's order in a compressed npz, and cannot be read row by "
            "row; save it with np.ascontiguousarray, or by np.savez"
        )
    return array


def _npy(path: Path) -> Array:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            shape, by_columns, dtype, start = _header(file, str(path), size)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    array = Array(str(path), path, None, shape, dtype, by_columns, start, False)
    return _checked(array, size - start)


def _zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise SourceError(f"{path} is no npz, or is cut short: {error}") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Array:
    name = f"{path}, member {info.filename}"
    try:
        with archive.open(info) as file:
            shape, by_columns, dtype, length = _header(file, name, info.file_size)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        raise SourceError(f"{name} cannot be read: {error}") from None
    is_stream = info.compress_type != zipfile.ZIP_STORED
    start = length if is_stream else _stored_at(path, info, name) + length
    array = Array(name, path, info.filename, shape, dtype, by_columns, start, is_stream)
    return _checked(array, info.file_size - length)


def _stored_at(path: Path, info: zipfile.ZipInfo, name: str) -> int:
    """Where the bytes of a member that is not compressed begin in the file."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        raw = file.read(30)
    if len(raw) < 30 or not raw.startswith(ZIP):
        raise SourceError(f"{name} is damaged: its header is not where the index says")
    n_name, n_extra = struct.unpack("<HH", raw[26:30])
    begin = info.header_offset + 30 + n_name + n_extra
    if begin + info.file_size > path.stat().st_size:
        raise SourceError(f"{name} is cut short: it ends beyond the end of the file")
    return int(begin)


def _arrays(paths: Sequence[Path]) -> dict[str, Array]:
    """Arrays of one npz, of a folder of npy files, or of such files, by their own names."""
    files = [
        file for path in paths for file in (sorted(path.glob("*.npy")) if path.is_dir() else [path])
    ]
    if len(files) == 1 and files[0].suffix != ".npy":
        with _zip(files[0]) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            known = {name for names in NAMES.values() for name in names}
            wanted = [info for info in infos if info.filename[:-4] in known]
            return {info.filename[:-4]: _member(archive, info, files[0]) for info in wanted}
    strangers = [file for file in files if file.suffix != ".npy"]
    if strangers:
        raise SourceError(
            f"{strangers[0]}: one npz at a time is converted, or npy files of one corpus; "
            "convert each and open the stores together"
        )
    names = [file.stem for file in files]
    doubled = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if doubled is not None:
        raise SourceError(f"two files are called {doubled}.npy; name the files of one corpus")
    return {file.stem: _npy(file) for file in files}


def _roles(paths: Sequence[Path], options: SourceOptions, arrays_in: ArraysIn) -> dict[str, Array]:
    """Which array is what; names by options first."""
    found = arrays_in(paths)
    names, marks = dict(NAMES), options.label_columns
    if options.no_labels:
        marks = None
        names = {role: called for role, called in names.items() if role not in LABEL_ROLES}
    for role, given in (
        ("rows", options.variables),
        ("marks", marks if len(marks or ()) == 1 else None),
        ("row_labels", (options.row_label_column,) if options.row_label_column else None),
        ("bag_ids", (options.bag_column,) if options.bag_column else None),
    ):
        if given:
            if given[0] not in found:
                known = ", ".join(found) or "none"
                raise SourceError(f"{paths[0]} has no array {given[0]!r}; arrays: {known}")
            names[role] = (given[0],)
    roles: dict[str, Array] = {}
    for role, called in names.items():
        name = next((name for name in called if name in found), None)
        if name is not None:
            roles[role] = found[name]
    if "rows" not in roles and len(found) == 1 and "marks" not in roles:
        roles["rows"] = next(iter(found.values()))
    return roles


# Values.


def _bytes_of(out: NDArray[Any]) -> memoryview:
    return memoryview(out.reshape(-1).view(np.uint8).data)


def _pread(array: Array, offset: int, out: NDArray[Any]) -> None:
    """Fill ``out`` from a place among the values, in bytes."""
    try:
        with array.path.open("rb", buffering=0) as file:
            view, done = _bytes_of(out), 0
            while done < len(view):
                got = read_at(file.fileno(), view[done:], array.start + offset + done)
                if got == 0:
                    raise SourceError(
                        f"{array.name} is shorter than when it was looked at: it ends at byte "
                        f"{array.start + offset + done:,}; convert it again once it is whole"
                    )
                done += got
    except OSError as error:
        raise SourceError(f"{array.name} cannot be read: {error.strerror}") from error


class _Stream:
    """A compressed member, read forward; going back begins again."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._archive: zipfile.ZipFile | None = None
        self._file: IO[bytes] | None = None
        self._at = 0

    def fill(self, offset: int, out: NDArray[Any]) -> None:
        """Fill ``out`` from a place among the values, in bytes."""
        array = self._array
        assert array.member is not None
        try:
            if self._file is None or offset < self._at:
                self.close()
                self._archive = _zip(array.path)
                self._file = self._archive.open(array.member)
                self._at = -array.start
            while self._at < offset:
                passed = len(self._file.read(min(offset - self._at, 1 << 20)))
                if not passed:
                    raise EOFError
                self._at += passed
            view, done = _bytes_of(out), 0
            while done < len(view):
                got = self._file.readinto(view[done:])  # type: ignore[attr-defined]
                if not got:
                    raise EOFError
                done += got
            self._at += done
            if self._at == array.nbytes:
                # The checksum of a member is looked at where it ends.
                self._file.read(1)
        except EOFError:
            raise SourceError(f"{array.name} ends before its values do; fetch it again") from None
        except (zipfile.BadZipFile, OSError, ValueError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
            raise SourceError(f"{array.name} is damaged: {error}; fetch it again") from None

    def close(self) -> None:
        """Let go of the file."""
        if self._archive is not None:
            self._archive.close()


class Values:
    """Elements of an array by range along its first axis."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self._stream = _Stream(array) if array.is_stream else None

    def __getitem__(self, bounds: tuple[int, int]) -> NDArray[Any]:
        start, stop = bounds
        array = self.array
        shape = (stop - start, *array.shape[1:])
        if array.by_columns and len(array.shape) > 1:
            return self._columns(start, stop)
        out = np.empty(shape, array.dtype)
        row = array.width * array.dtype.itemsize
        if self._stream is not None:
            self._stream.fill(start * row, out)
        else:
            _pread(array, start * row, out)
        return out if array.dtype.isnative else out.astype(array.dtype.newbyteorder("="))

    def _columns(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of an array that lies column by column."""
        array, size = self.array, self.array.dtype.itemsize
        flat = np.empty((array.width, stop - start), array.dtype)
        for column in range(array.width):
            _pread(array, (column * array.shape[0] + start) * size, flat[column])
        out = flat.T.reshape((stop - start, *array.shape[:0:-1]), order="C")
        if len(array.shape) > 2:
            out = out.transpose(0, *range(len(array.shape) - 1, 0, -1))
        out = np.ascontiguousarray(out)
        return out if array.dtype.isnative else out.astype(array.dtype.newbyteorder("="))

    def all(self) -> NDArray[Any]:
        """Every element; for arrays that are small beside the rows."""
        return self[0, self.array.shape[0]] if self.array.shape else self._scalar()

    def _scalar(self) -> NDArray[Any]:
        out = np.empty((), self.array.dtype)
        if self._stream is not None:
            self._stream.fill(0, out)
        else:
            _pread(self.array, 0, out)
        return out


def _offsets(array: Array, end: int | None, what: str) -> I64:
    """Offsets of ragged items, checked: everything that is read follows them."""
    if len(array.shape) != 1 or array.dtype.kind not in "iu" or array.shape[0] < 1:
        raise SourceError(
            f"{array.name}: offsets are {array.dtype} of shape {array.shape}, expected a row of "
            "integers that begins with 0"
        )
    found = array.open().all().astype(np.int64)
    falls = found[1:] < found[:-1]
    if found[0] != 0 or falls.any():
        at = int(falls.argmax()) if found[0] == 0 else 0
        raise SourceError(
            f"{array.name}: offsets must begin with 0 and never fall; number {at} is {found[at]}"
            + (f" and the next {found[at + 1]}" if falls.any() and found[0] == 0 else "")
        )
    if end is not None and found[-1] != end:
        raise SourceError(
            f"{array.name}: offsets end at {found[-1]:,}, but there are {end:,} {what}"
        )
    return found


def _texts(array: Array, what: str) -> tuple[str, ...]:
    if len(array.shape) != 1 or array.dtype.kind not in "USiu":
        raise SourceError(
            f"{array.name}: {what} are {array.dtype} of shape {array.shape}, expected a row of text"
        )
    return tuple(_as_text(value, array) for value in array.open().all().tolist())


def _as_text(value: Any, array: Array) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise SourceError(f"{array.name}: {value!r} is not UTF-8") from None


class Corpus:
    """The arrays of one source, by what they are, with their offsets held."""

    def __init__(self, paths: Sequence[Path], options: SourceOptions, arrays_in: ArraysIn) -> None:
        roles = _roles(paths, options, arrays_in)
        self.where = str(paths[0])
        self.roles, self.no_labels = roles, options.no_labels
        self.sparse = "rows" not in roles and {"values", "columns", "row_offsets"} <= roles.keys()
        if "rows" not in roles and not self.sparse:
            known = ", ".join(NAMES["rows"])
            raise SourceError(
                f"{self.where} has no array of rows; it is called one of {known} (or data, indices "
                "and indptr for sparse rows), or named by --variables"
            )
        self.row_offsets: I64 | None = None
        if self.sparse:
            n_values = roles["values"].shape[0] if roles["values"].shape else 0
            if roles["columns"].shape != roles["values"].shape or len(roles["values"].shape) != 1:
                raise SourceError(
                    f"{self.where}: sparse rows have {roles['values'].shape} values and "
                    f"{roles['columns'].shape} columns, expected as many of both"
                )
            if roles["columns"].dtype.kind not in "iu":
                raise SourceError(
                    f"{roles['columns'].name}: columns are {roles['columns'].dtype}, "
                    "expected integers"
                )
            self.row_offsets = _offsets(roles["row_offsets"], n_values, "values")
            self.n_rows = len(self.row_offsets) - 1
        else:
            self._take_rows(roles["rows"])
        self.bag_offsets = self._bag_offsets()
        self.n_bags = len(self.bag_offsets) - 1
        self.label_offsets: I64 | None = None
        self._check_labels()
        self.values = {role: array.open() for role, array in roles.items()}

    def _take_rows(self, array: Array) -> None:
        if array.dtype.kind not in "fiub" or len(array.shape) not in (2, 3):
            raise SourceError(
                f"{array.name}: rows are {array.dtype} of shape {array.shape}, expected numbers of "
                "shape (rows, features) or (bags, rows, features)"
            )
        self.n_rows = array.shape[0] * (array.shape[1] if len(array.shape) == 3 else 1)

    def _bag_offsets(self) -> I64:
        rows = self.roles.get("rows")
        if rows is not None and len(rows.shape) == 3:
            return np.arange(rows.shape[0] + 1, dtype=np.int64) * rows.shape[1]
        if "bag_offsets" not in self.roles:
            raise SourceError(
                f"{self.where} has no offsets of bags; save an array 'offsets' that says how many "
                "rows come before each bag, and how many there are"
            )
        return _offsets(self.roles["bag_offsets"], self.n_rows, "rows")

    def _check_labels(self) -> None:
        roles = self.roles
        if "label_offsets" in roles and "label_indices" in roles:
            indices = roles["label_indices"]
            if len(indices.shape) != 1 or indices.dtype.kind not in "iu":
                raise SourceError(
                    f"{indices.name}: label indices are {indices.dtype} of shape {indices.shape}, "
                    "expected a row of integers"
                )
            self.label_offsets = _offsets(roles["label_offsets"], indices.shape[0], "labels")
            n_found = len(self.label_offsets) - 1
        elif "marks" in roles:
            marks = roles["marks"]
            if len(marks.shape) != 2 or marks.dtype.kind not in "fiub":
                raise SourceError(
                    f"{marks.name}: targets are {marks.dtype} of shape {marks.shape}, "
                    "expected numbers of shape (bags, labels)"
                )
            n_found = marks.shape[0]
        elif self.no_labels:
            self.label_offsets = np.zeros(self.n_bags + 1, np.int64)
            n_found = self.n_bags
        else:
            raise SourceError(
                f"{self.where} has no labels; save label_indptr and label_indices, or targets of "
                "shape (bags, labels), or say --label-columns none"
            )
        if n_found != self.n_bags:
            raise SourceError(f"{self.where}: {self.n_bags:,} bags, but labels for {n_found:,}")
        for role, count, what in (
            ("row_labels", self.n_rows, "rows"),
            ("bag_ids", self.n_bags, "bags"),
        ):
            if role in roles and roles[role].shape != (count,):
                raise SourceError(
                    f"{roles[role].name} has shape {roles[role].shape}, expected one for each of "
                    f"{count:,} {what}"
                )

    @property
    def n_features(self) -> int:
        """Features of a row; as many as the highest column shows where nothing says it."""
        if not self.sparse:
            return int(self.roles["rows"].shape[-1])
        if "shape" in self.roles:
            return int(self.roles["shape"].open().all().reshape(-1)[-1])
        return 1 + self._highest("columns")

    def _highest(self, role: str) -> int:
        values, step = self.roles[role].open(), 1 << 20
        count = self.roles[role].shape[0]
        ends = range(0, count, step)
        return max((int(values[at, min(at + step, count)].max()) for at in ends), default=-1)

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """Type of the values in the files."""
        return self.roles["values" if self.sparse else "rows"].dtype

    @property
    def is_stream(self) -> bool:
        """Whether anything that grows with the corpus can only be read from the front."""
        big = {"rows", "values", "columns", "label_indices", "marks", "row_labels", "bag_ids"}
        return any(self.roles[role].is_stream for role in big & self.roles.keys())

    def bag_bytes(self) -> I64:
        """Bytes of the rows of each bag."""
        if self.row_offsets is not None:
            element = self.roles["values"].dtype.itemsize + self.roles["columns"].dtype.itemsize
            found: I64 = np.diff(self.row_offsets[self.bag_offsets]) * element
            return found
        row = self.roles["rows"].shape[-1] * self.value_dtype.itemsize
        return np.diff(self.bag_offsets) * row

    def block(self, start: int, stop: int, places: I64 | None) -> BagBlock:
        """Bags ``start`` to ``stop``."""
        offsets = self.bag_offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        label_offsets, labels = self._labels(start, stop, places)
        row_labels = self.values["row_labels"][first, last] if "row_labels" in self.roles else None
        ids = None
        if "bag_ids" in self.roles:
            array = self.roles["bag_ids"]
            ids = [_as_text(value, array) for value in self.values["bag_ids"][start, stop].tolist()]
        if row_labels is not None and places is not None:
            row_labels = np.where(row_labels >= 0, places[row_labels], row_labels)
        rows = self._rows(start, stop, first, last)
        return BagBlock(offsets - first, rows, label_offsets, labels, row_labels, ids)

    def _rows(self, start: int, stop: int, first: int, last: int) -> NDArray[Any] | SparseRows:
        if self.row_offsets is not None:
            offsets = self.row_offsets[first : last + 1]
            a, b = int(offsets[0]), int(offsets[-1])
            columns, values = self.values["columns"][a, b], self.values["values"][a, b]
            # Signed: columns below 0 stay visible for the writer to refuse.
            return SparseRows(offsets - a, columns, values, self.n_features_held)
        if len(self.roles["rows"].shape) == 3:
            found = self.values["rows"][start, stop]
            return found.reshape(-1, found.shape[-1])
        return self.values["rows"][first, last]

    n_features_held = 0
    """Set by the reader: counting features of sparse rows takes a pass."""

    def _labels(self, start: int, stop: int, places: I64 | None) -> tuple[I64, NDArray[Any]]:
        if self.label_offsets is None:
            marks = self.values["marks"][start, stop]
            return labels_of_marks(marks, f"{self.where}, bags {start:,} to {stop:,}", places)
        offsets = self.label_offsets[start : stop + 1]
        if self.no_labels:
            return offsets, np.empty(0, np.int32)
        found = self.values["label_indices"][int(offsets[0]), int(offsets[-1])]
        if places is not None and len(found):
            outside = (found < 0) | (found >= len(places))
            if outside.any():
                raise SourceError(
                    f"{self.where}: label {found[outside.argmax()]} is outside "
                    f"0 to {len(places) - 1}"
                )
            found = places[found]
        return offsets - offsets[0], found


def _narrow(dtype: np.dtype[Any]) -> str:
    """The type of a store that holds every value of a type, as far as there is one."""
    if dtype.kind == "b":
        return "uint8"
    return dtype.name if dtype.name in ROW_DTYPES else "float32"


def _label_facts(
    corpus: Corpus, options: SourceOptions
) -> tuple[tuple[str, ...] | None, int | None, I64 | None]:
    """Names, number, and the place of each of the source's labels among the names."""
    own = None
    if "label_names" in corpus.roles:
        own = _texts(corpus.roles["label_names"], "label names")
    count = None
    if "n_labels" in corpus.roles:
        number = corpus.roles["n_labels"].open().all().reshape(-1)
        if len(number) != 1 or number.dtype.kind not in "iu":
            raise SourceError(f"{corpus.roles['n_labels'].name}: n_labels must be one integer")
        count = int(number[0])
    elif "marks" in corpus.roles and corpus.label_offsets is None:
        count = corpus.roles["marks"].shape[1]
    if own is not None and count is not None and len(own) != count:
        raise SourceError(f"{corpus.where}: {len(own)} label names, but n_labels is {count}")
    if options.labels is None:
        return own, None if own is not None else count, None
    if own is not None:
        return options.labels, None, places_of(own, options, corpus.where)
    if count is not None:
        return numbered_names(count, options, corpus.where), None, None
    return options.labels, None, None


def scan_arrays(
    paths: Sequence[Path], options: SourceOptions, arrays_in: ArraysIn, called: str
) -> Scan:
    """What flat arrays hold, whatever the format that they are ``called`` after."""
    corpus = Corpus(paths, options, arrays_in)
    names, n_labels, _ = _label_facts(corpus, options)
    n_features = options.n_features or corpus.n_features
    feature_names = None
    if "feature_names" in corpus.roles:
        feature_names = _texts(corpus.roles["feature_names"], "feature names")
    sizes = corpus.bag_bytes()
    # A stream is read once from the front: cutting it would read the front again and again.
    cuts = cuts_by_bytes(sizes, options.span_bytes)
    if corpus.is_stream and len(cuts) > 1:
        cuts = [(0, corpus.n_bags)]
    source = BESIDE.join(str(path) for path in paths)
    ends = from_sizes(sizes)
    spans = [Span(source, a, b, int(ends[b] - ends[a]), b - a) for a, b in cuts]
    held = sum(
        corpus.roles[role].shape[0] * size for role, size in HELD.items() if role in corpus.roles
    )
    taken = ", ".join(
        f"{role} from {Path(array.name).name}" for role, array in corpus.roles.items()
    )
    notes = [f"{called} arrays: {taken}"]
    if corpus.is_stream:
        notes.append("compressed members are read from front to end by one process")
    if corpus.value_dtype.name == "float64":
        notes.append("float64 values are rounded to float32")
    if held > 64 << 20:
        notes.append(f"offsets are held whole: {format_size(held)}")
    return Scan(
        spans=tuple(spans),
        n_features=n_features,
        dtype=_narrow(corpus.value_dtype),
        sparse=corpus.sparse,
        label_names=names,
        n_labels=n_labels,
        feature_names=feature_names,
        row_labels="row_labels" in corpus.roles,
        bag_ids="bag_ids" in corpus.roles,
        n_bags=corpus.n_bags,
        n_rows=corpus.n_rows,
        holds_bytes=held if held > 64 << 20 else 0,
        notes=tuple(notes),
    )


@lru_cache(maxsize=2)
def _corpus(
    source: str,
    options: SourceOptions,
    stamp: tuple[tuple[int, int], ...],
    arrays_in: ArraysIn,
) -> Corpus:
    del stamp  # A source that was replaced is opened anew.
    return Corpus([Path(part) for part in source.split(BESIDE)], options, arrays_in)


def read_arrays(
    span: Span, scan: Scan, options: SourceOptions, arrays_in: ArraysIn
) -> Iterator[BagBlock]:
    """Bags of a span of flat arrays."""
    try:
        status = [Path(part).stat() for part in span.path.split(BESIDE)]
    except OSError as error:
        raise SourceError(
            f"{span.path.split(BESIDE)[0]} cannot be read: {error.strerror}"
        ) from error
    stamp = tuple((found.st_size, found.st_mtime_ns) for found in status)
    corpus = _corpus(span.path, options, stamp, arrays_in)
    if corpus.n_bags < span.stop:
        raise SourceError(f"{corpus.where} holds {corpus.n_bags:,} bags, {scan.n_bags:,} before")
    corpus.n_features_held = scan.n_features
    _, _, places = _label_facts(corpus, options)
    sizes = corpus.bag_bytes()[span.start : span.stop]
    # A span that was cut to size is read at once: joining it later would be another copy.
    for start, stop in cuts_by_bytes(sizes, BLOCK_BYTES if corpus.is_stream else 1 << 62):
        yield corpus.block(span.start + start, span.start + stop, places)


def _scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    return scan_arrays(paths, options, _arrays, "NumPy")


def _read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    return read_arrays(span, scan, options, _arrays)


READER = Reader(
    name="npz",
    suffixes=(".npz", ".npy"),
    line="NumPy: flat arrays (instances, offsets, label_indptr, label_indices), dense or CSR",
    tells=_tells,
    scan=_scan,
    read=_read,
    may_lack_labels=True,
)
