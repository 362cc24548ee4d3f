"""NumPy files: flat arrays of bags in one ``.npz`` file, or in several ``.npy`` files.

Rows are dense (rows, features) or sparse (CSR), with ``offsets`` of bags; or (bags, rows, features)
if all bags have the same length. Labels are offsets and indices, or a matrix of marks.

Arrays are read by byte range and never memory-mapped: if a mapped file shrinks while it is read,
the process dies. Uncompressed members of an npz are read the same way. Compressed members are
streams, read once from the beginning to the end. The CRC-32 of every member is checked: the scan
checks uncompressed members, and compressed members are checked at the end of their streams.
"""

from __future__ import annotations

import bz2
import errno
import io
import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import KeptColumn
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml.config import format_size
from streammiml_tools.readers.base import (
    BESIDE,
    Limits,
    Reader,
    Scan,
    SourceError,
    SourceOptions,
    Span,
)
from streammiml_tools.readers.kept_cells import check_names, kept_column, storable_values
from streammiml_tools.readers.labelling import label_numbers_of, labels_of_marks, numbered_names
from streammiml_tools.readers.memory_checks import check_fits, check_ratio
from streammiml_tools.readers.messages import reason_of
from streammiml_tools.readers.remote_files import is_url, source_path
from streammiml_tools.readers.text import twice

I64 = NDArray[np.int64]

BLOCK_BYTES = 8 << 20
"""Size of a block of rows in bytes, approximately."""
MAX_HEADER = 1 << 20
PIECE_BYTES = 1 << 20
"""Upper limit of the bytes of a member that are decompressed at a time."""
FEED_BYTES = 1 << 16
"""Compressed bytes that a decompressor gets at a time."""
NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"
ENCRYPTED = 1
"""Flag of an encrypted zip member."""
LEAST_DICTIONARY = 4096
"""Smallest dictionary size in bytes that LZMA accepts."""
METHODS = {
    zipfile.ZIP_STORED: "stored",
    zipfile.ZIP_DEFLATED: "deflate",
    zipfile.ZIP_BZIP2: "bzip2",
    zipfile.ZIP_LZMA: "lzma",
}

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
"""Names of the array of each role; the first name that exists counts. CSR has scipy's names."""
LABEL_ROLES = ("label_offsets", "label_indices", "marks", "row_labels", "n_labels", "label_names")
HELD = {"bag_offsets": 8, "label_offsets": 8, "row_offsets": 8}
"""Arrays that are held in memory while bags are read, with the bytes of an element in memory."""
KEPT = "kept:"
"""How the roles of columns to keep begin; their names follow."""
OFFSET_BYTES = 96
"""Memory for an offset, as measured: the offset, sizes, sums and Python integers."""
BESIDE_BYTES = {"marks": 32, "label_indices": 32, "row_labels": 32, "bag_ids": 100}
"""Memory for an element in addition to its value: masks, int64 indices, Python objects."""
TEXT_BYTES = 100
"""Memory for a text in addition to its characters."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file whose bytes are in memory, such as a member of a tar; it opens like a ``Path``."""

    name: str
    """Name for messages; it ends with the suffix of the file."""
    content: bytes

    def __str__(self) -> str:
        return self.name

    def open(self, mode: str = "rb", buffering: int = 0) -> io.BytesIO:
        """Open the bytes for reading; the arguments are those of ``Path.open``."""
        assert mode == "rb", "the bytes are only read"
        del buffering
        return io.BytesIO(self.content)


@dataclass(frozen=True)
class StoredArray:
    """One array on disk: its header, and the position of its values."""

    name: str
    """File and member, for messages."""
    path: Path | HeldFile
    member: str | None
    """Name in a zip file; None if the array is a file."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool
    """Whether values are in Fortran order."""
    start: int
    """Offset of the first value: in the member if the array is a stream, otherwise in the file."""
    is_stream: bool
    """Whether the array can only be read from its beginning."""
    packed: ZipMember | None = None
    """Position of the member in its zip file; None if the array is a file."""

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def width(self) -> int:
        """Number of values in an element along the first axis."""
        return math.prod(self.shape[1:])

    @property
    def n_compressed(self) -> int | None:
        """Compressed size in bytes; None if the array is not compressed."""
        return self.packed.n_stored if self.packed is not None and self.is_stream else None

    @property
    def copies(self) -> int:
        """Upper limit of the copies of values in memory while they become rows of a store."""
        return 3 + (self.by_columns or not self.dtype.isnative)

    def open(self) -> ArrayValues:
        """Elements of the array; formats other than NumPy override this."""
        return ArrayValues(self)

    def check(self, limits: Limits) -> None:
        """Check the CRC-32 of a member; raises SourceError.

        A stream that will be read to its end is checked there instead: decompressing it twice
        would make the conversion take half as long again.
        """
        if self.packed is None or (self.is_stream and limits.reads_all):
            return
        with _damage(self.name):
            member = MemberReader(self.path, self.packed)
            while member.read():
                pass


ArraysIn = Callable[[Sequence[Path], SourceOptions], dict[str, StoredArray]]
"""Function that finds the arrays of a source, by name."""


def _tells(path: Path, head: bytes) -> bool:
    if path.is_dir():
        return any(path.glob("*.npy"))
    return head.startswith(NPY) or (head.startswith(ZIP) and path.suffix == ".npz")


# Headers.


class _ByteSource(Protocol):
    def read(self, n_bytes: int = ..., /) -> bytes: ...


def _header(file: _ByteSource, name: str, available: int) -> tuple[Any, bool, np.dtype[Any], int]:
    """Shape, order and type of an array, and the length of its header; allocates no values."""
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
    # NumPy parses the header with Python's tokenizer.
    except (
        *(ValueError, struct.error, EOFError, SyntaxError, TypeError, OverflowError),
        tokenize.TokenError,
    ) as error:
        why = reason_of(error)
        raise SourceError(f"{name} is not a NumPy array, or is damaged: {why}") from None
    if dtype.hasobject:
        raise SourceError(
            f"{name} holds Python objects, which could run code when read; "
            "save plain arrays of numbers or text"
        )
    return shape, by_columns, dtype, 8 + len(prefix) + length


def _checked(array: StoredArray, available: int) -> StoredArray:
    """Refuse a header that declares another size than the available one, before any allocation."""
    if array.nbytes != available:
        raise SourceError(
            f"{array.name} is cut short or damaged: its header declares {array.shape} "
            f"{array.dtype}, {array.nbytes:,} bytes, but {available:,} are there"
        )
    if array.by_columns and array.is_stream and len(array.shape) > 1:
        raise SourceError(
            f"{array.name} has Fortran order in a compressed npz and cannot be read row by row; "
            "save it with np.ascontiguousarray, or uncompressed with np.savez"
        )
    return array


def npy_array(path: Path | HeldFile) -> StoredArray:
    """The array of an npy file; only its header is read."""
    try:
        with path.open("rb") as file:
            size = _size(file)
            shape, by_columns, dtype, start = _header(file, str(path), size)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    array = StoredArray(str(path), path, None, shape, dtype, by_columns, start, False)
    return _checked(array, size - start)


def _size(file: BinaryIO) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turn any exception of zipfile and its decompressors into a SourceError of one line."""
    try:
        yield
    except SourceError:
        raise
    except EOFError:
        raise SourceError(f"{name} ends before its values do; fetch it again") from None
    except Exception as error:  # Flipped bits gave zlib.error, LZMAError, struct.error …
        if isinstance(error, OSError) and error.errno is not None:
            raise SourceError(f"{name} cannot be read: {error.strerror}") from error
        reason = reason_of(error)
        raise SourceError(f"{name} is damaged: {reason}; fetch it again") from None


def _zip(path: Path | HeldFile) -> zipfile.ZipFile:
    try:
        if isinstance(path, HeldFile):
            return zipfile.ZipFile(path.open())
        return zipfile.ZipFile(path.open("rb") if is_url(path) else path)
    except OSError as error:
        if error.errno is None or error.errno == errno.EINVAL:
            # A damaged index can name a position before the first byte.
            raise SourceError(f"{path} is not an npz, or is cut short: {error}") from None
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # Flipped bits gave BadZipFile, struct.error, ValueError …
        reason = reason_of(error)
        raise SourceError(f"{path} is not an npz, or is cut short: {reason}") from None


class ZipMember(NamedTuple):
    """Position of a member in a zip file, its sizes and its checksum."""

    begin: int
    """Offset of the stored bytes in the file."""
    n_stored: int
    n_bytes: int
    method: str
    crc: int


class MemberReader:
    """Reads a member in pieces; the last piece is returned only if the checksum agrees.

    zipfile has no limit for bzip2 and LZMA: 4 kB can become 4 GB in one call.
    """

    def __init__(self, path: Path | HeldFile, packed: ZipMember) -> None:
        self._path, self._packed = path, packed
        self._left_in, self._left_out, self._crc = packed.n_stored, packed.n_bytes, 0
        self._decompressor = self._new_decompressor()

    def read(self, n_bytes: int = PIECE_BYTES, /) -> bytes:
        """Up to ``n_bytes`` bytes, none at the end; raises EOFError or a decompressor's error."""
        n_bytes = min(n_bytes, PIECE_BYTES, self._left_out)
        if n_bytes <= 0:
            return b""
        piece = self._piece(n_bytes)
        if not piece:
            raise EOFError
        self._left_out -= len(piece)
        self._crc = zlib.crc32(piece, self._crc)
        if not self._left_out and self._crc != self._packed.crc:
            raise zipfile.BadZipFile("Bad CRC-32")
        return piece

    def _read_stored(self, n_bytes: int) -> bytes:
        # The file is opened for every piece, so that no caller has to close it.
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._packed.begin + self._packed.n_stored - self._left_in)
            raw = file.read(min(n_bytes, self._left_in))
        self._left_in -= len(raw)
        return raw

    def _new_decompressor(self) -> Any:
        method = self._packed.method
        if method == "deflate":
            return zlib.decompressobj(-zlib.MAX_WBITS)
        if method == "bzip2":
            return bz2.BZ2Decompressor()
        if method == "lzma":
            # Version, length of the properties, and the properties: lc, lp, pb, and a size.
            _, n_properties, first, size = struct.unpack("<HHBI", self._read_stored(9))
            if n_properties != 5 or first >= 9 * 5 * 5:
                raise ValueError("no LZMA properties")
            # No distance is longer than the member, so a larger dictionary is useless.
            size = max(LEAST_DICTIONARY, min(size, self._packed.n_bytes))
            lzma_filter = {"id": lzma.FILTER_LZMA1, "lc": first % 9, "lp": first // 9 % 5}
            lzma_filter |= {"pb": first // 45, "dict_size": size}
            return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[lzma_filter])
        return None

    def _piece(self, n_bytes: int) -> bytes:
        decompressor = self._decompressor
        if decompressor is None:
            return self._read_stored(n_bytes)
        while not decompressor.eof:
            if self._packed.method == "deflate":
                feed = decompressor.unconsumed_tail or self._read_stored(FEED_BYTES)
            else:
                feed = self._read_stored(FEED_BYTES) if decompressor.needs_input else b""
                if decompressor.needs_input and not feed:
                    return b""
            piece: bytes = decompressor.decompress(feed, n_bytes)
            if piece or not (feed or self._left_in):
                return piece
        return b""


def _member(path: Path | HeldFile, info: zipfile.ZipInfo) -> StoredArray:
    name = f"{path}, member {info.filename}"
    method = METHODS.get(info.compress_type)
    if method is None or info.flag_bits & ENCRYPTED:
        how = f"compression {info.compress_type}" if method is None else "encryption"
        raise SourceError(f"{name} has {how}, which is not supported; save it again with np.savez")
    check_ratio(name, info.file_size, info.compress_size, method)
    with _damage(name):
        begin = _begin_of(path, info, name)
        packed = ZipMember(begin, info.compress_size, info.file_size, method, info.CRC)
        file = MemberReader(path, packed)
        shape, by_columns, dtype, length = _header(file, name, info.file_size)
    is_stream = method != "stored"
    start = length if is_stream else packed.begin + length
    array = StoredArray(
        name, path, info.filename, shape, dtype, by_columns, start, is_stream, packed
    )
    return _checked(array, info.file_size - length)


def _begin_of(path: Path | HeldFile, info: zipfile.ZipInfo, name: str) -> int:
    """Offset in the file of the stored bytes of a member."""
    raw = b""
    with path.open("rb") as file:
        size = _size(file)
        if info.header_offset >= 0:
            file.seek(info.header_offset)
            raw = file.read(30)
    if len(raw) < 30 or not raw.startswith(ZIP):
        raise SourceError(f"{name} is damaged: its header is not where the index says")
    n_name, n_extra = struct.unpack("<HH", raw[26:30])
    begin = info.header_offset + 30 + n_name + n_extra
    if begin + info.compress_size > size:
        raise SourceError(f"{name} is cut short: it ends beyond the end of the file")
    return int(begin)


def _arrays(paths: Sequence[Path], options: SourceOptions) -> dict[str, StoredArray]:
    """Arrays, by name, of one npz file, of a folder of npy files, or of npy files."""
    files = [
        file for path in paths for file in (sorted(path.glob("*.npy")) if path.is_dir() else [path])
    ]
    if len(files) == 1 and files[0].suffix != ".npy":
        with _zip(files[0]) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            known = {name for names in NAMES.values() for name in names}
            known |= {name for kept in options.kept_names for name in kept_called(kept)}
            members = [info for info in infos if info.filename[:-4] in known]
            return {info.filename[:-4]: _member(files[0], info) for info in members}
    other_files = [file for file in files if file.suffix != ".npy"]
    if other_files:
        raise SourceError(
            f"{other_files[0]}: one npz at a time is converted, or npy files of one corpus; "
            "convert each and open the stores together"
        )
    names = [file.stem for file in files]
    repeated = twice(names)
    if repeated is not None:
        raise SourceError(f"two files are called {repeated}.npy; name the files of one corpus")
    return {file.stem: npy_array(file) for file in files}


def kept_called(name: str) -> tuple[str, str]:
    """Names of the array of a column to keep: its own, or the one that ``export`` gives it."""
    return name, KeptColumn(name, "").array


def members_of(path: Path | HeldFile) -> dict[str, StoredArray]:
    """All arrays of an npz file by name."""
    with _zip(path) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        return {info.filename[:-4]: _member(path, info) for info in infos}


def _roles(
    paths: Sequence[Path], options: SourceOptions, arrays_in: ArraysIn
) -> dict[str, StoredArray]:
    """Array of each role; names given by options come first."""
    arrays = arrays_in(paths, options)
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
            if given[0] not in arrays:
                known = ", ".join(arrays) or "none"
                raise SourceError(f"{paths[0]} has no array {given[0]!r}; arrays: {known}")
            names[role] = (given[0],)
    roles: dict[str, StoredArray] = {}
    for role, called in names.items():
        name = next((name for name in called if name in arrays), None)
        if name is not None:
            roles[role] = arrays[name]
    if "rows" not in roles and len(arrays) == 1 and "marks" not in roles:
        roles["rows"] = next(iter(arrays.values()))
    return roles | _kept_roles(paths[0], options.kept_names, arrays)


def _kept_roles(
    path: Path, names: Sequence[str], arrays: dict[str, StoredArray]
) -> dict[str, StoredArray]:
    """Array of each column to keep, by the role ``kept:`` with its name."""
    check_names(path, names)
    roles: dict[str, StoredArray] = {}
    for name in names:
        called = next((called for called in kept_called(name) if called in arrays), None)
        if called is None:
            known = ", ".join(arrays) or "none"
            raise SourceError(f"{path} has no array {name!r} (--keep); arrays: {known}")
        roles[KEPT + name] = arrays[called]
    return roles


# Values.


def _bytes_of(out: NDArray[Any]) -> memoryview:
    return memoryview(out.reshape(-1).view(np.uint8).data)


def _pread(array: StoredArray, offset: int, out: NDArray[Any]) -> None:
    """Fill ``out`` with the values from a byte offset on."""
    try:
        with array.path.open("rb", buffering=0) as file:
            view, done = _bytes_of(out), 0
            file.seek(array.start + offset)
            while done < len(view):
                got = file.readinto(view[done:])
                if not got:
                    raise SourceError(
                        f"{array.name} is shorter than at the scan: it ends at byte "
                        f"{array.start + offset + done:,}; convert it again once it is complete"
                    )
                done += got
    except OSError as error:
        raise SourceError(f"{array.name} cannot be read: {error.strerror}") from error


class _MemberStream:
    """A compressed member, read forward; going back starts again at its beginning."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array
        self._member: MemberReader | None = None
        self._at = 0

    def fill(self, offset: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with the values from a byte offset on."""
        array = self._array
        assert array.packed is not None
        with _damage(array.name):
            if self._member is None or offset < self._at:
                self._member = MemberReader(array.path, array.packed)
                self._at = -array.start
            while self._at < offset:
                self._at += len(self._read(offset - self._at))
            view, done = _bytes_of(out), 0
            while done < len(view):
                piece = self._read(len(view) - done)
                view[done : done + len(piece)] = piece
                done += len(piece)
            self._at += done

    def _read(self, n_bytes: int) -> bytes:
        assert self._member is not None
        piece = self._member.read(n_bytes)
        if not piece:
            raise EOFError
        return piece


class ArrayValues:
    """Elements of an array by range along its first axis."""

    def __init__(self, array: StoredArray) -> None:
        self.array = array
        self._stream = _MemberStream(array) if array.is_stream else None

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
        """Rows of an array in Fortran order."""
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
        """Every element; for arrays that are much smaller than the rows."""
        return self[0, self.array.shape[0]] if self.array.shape else self._scalar()

    def _scalar(self) -> NDArray[Any]:
        out = np.empty((), self.array.dtype)
        if self._stream is not None:
            self._stream.fill(0, out)
        else:
            _pread(self.array, 0, out)
        return out


def _check_whole(array: StoredArray, need: int, limits: Limits) -> None:
    """Refuse to load an array that does not fit into memory."""
    check_fits(array.name, need, limits, declared=array.nbytes, stored=array.n_compressed)


def _offsets(array: StoredArray, end: int | None, what: str, limits: Limits) -> I64:
    """Load offsets of ragged items, and check them, as every later read depends on them."""
    if len(array.shape) != 1 or array.dtype.kind not in "iu" or array.shape[0] < 1:
        raise SourceError(
            f"{array.name}: offsets are {array.dtype} of shape {array.shape}, expected a row of "
            "integers that begins with 0"
        )
    _check_whole(array, OFFSET_BYTES * array.shape[0], limits)
    offsets = array.open().all().astype(np.int64, copy=False)
    falls = offsets[1:] < offsets[:-1]
    if offsets[0] != 0 or falls.any():
        at = int(falls.argmax()) if offsets[0] == 0 else 0
        raise SourceError(
            f"{array.name}: offsets must begin with 0 and never fall; number {at} is {offsets[at]}"
            + (f" and the next {offsets[at + 1]}" if falls.any() and offsets[0] == 0 else "")
        )
    if end is not None and offsets[-1] != end:
        raise SourceError(
            f"{array.name}: offsets end at {offsets[-1]:,}, but there are {end:,} {what}"
        )
    return offsets


def _texts(array: StoredArray, what: str, limits: Limits) -> tuple[str, ...]:
    if len(array.shape) != 1 or array.dtype.kind not in "USiu":
        raise SourceError(
            f"{array.name}: {what} are {array.dtype} of shape {array.shape}, expected a row of text"
        )
    need = 2 * array.nbytes + TEXT_BYTES * array.shape[0]
    _check_whole(array, need, limits)
    return tuple(_as_text(value, array) for value in array.open().all().tolist())


def _as_text(value: Any, array: StoredArray) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise SourceError(f"{array.name}: {value!r} is not UTF-8") from None


class ArrayCorpus:
    """The arrays of one source by role, with all offsets in memory."""

    def __init__(
        self,
        paths: Sequence[Path],
        options: SourceOptions,
        arrays_in: ArraysIn,
        *,
        check: bool = False,
    ) -> None:
        """Find the arrays and check their shapes; ``check`` also verifies their checksums."""
        roles = _roles(paths, options, arrays_in)
        self.where, self.limits = str(paths[0]), options.limits
        if check:
            for array in roles.values():
                array.check(options.limits)
        self.roles, self.no_labels = roles, options.no_labels
        self.sparse = "rows" not in roles and {"values", "columns", "row_offsets"} <= roles.keys()
        if "rows" not in roles and not self.sparse:
            known = ", ".join(NAMES["rows"])
            raise SourceError(
                f"{self.where} has no array of rows; name it one of {known} (or data, indices "
                "and indptr for sparse rows), or give its name as --variables"
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
            self.row_offsets = _offsets(roles["row_offsets"], n_values, "values", self.limits)
            self.n_rows = len(self.row_offsets) - 1
        else:
            self._take_rows(roles["rows"])
        self.bag_offsets = self._bag_offsets()
        self.n_bags = len(self.bag_offsets) - 1
        self.label_offsets: I64 | None = None
        self._check_labels()
        self.values = {role: array.open() for role, array in roles.items()}

    def _take_rows(self, array: StoredArray) -> None:
        if array.dtype.kind not in "fiub" or len(array.shape) not in (2, 3):
            raise SourceError(
                f"{array.name}: rows are {array.dtype} of shape {array.shape}, expected numbers of "
                "shape (rows, features) or (bags, rows, features)"
            )
        self.n_rows = array.shape[0] * (array.shape[1] if len(array.shape) == 3 else 1)

    def _bag_offsets(self) -> I64:
        rows = self.roles.get("rows")
        if rows is not None and len(rows.shape) == 3:
            check_fits(f"{rows.name}, {rows.shape}", OFFSET_BYTES * rows.shape[0], self.limits)
            return np.arange(rows.shape[0] + 1, dtype=np.int64) * rows.shape[1]
        if "bag_offsets" not in self.roles:
            raise SourceError(
                f"{self.where} has no offsets of bags; save an array 'offsets' with the number "
                "of rows before each bag and, at the end, the number of all rows"
            )
        return _offsets(self.roles["bag_offsets"], self.n_rows, "rows", self.limits)

    def _check_labels(self) -> None:
        roles = self.roles
        if "label_offsets" in roles and "label_indices" in roles:
            indices = roles["label_indices"]
            if len(indices.shape) != 1 or indices.dtype.kind not in "iu":
                raise SourceError(
                    f"{indices.name}: label indices are {indices.dtype} of shape {indices.shape}, "
                    "expected a row of integers"
                )
            self.label_offsets = _offsets(
                roles["label_offsets"], indices.shape[0], "labels", self.limits
            )
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
                "shape (bags, labels), or give --label-columns none"
            )
        if n_found != self.n_bags:
            raise SourceError(f"{self.where}: {self.n_bags:,} bags, but labels for {n_found:,}")
        for role, array in roles.items():
            if role.startswith(KEPT) and array.shape[:1] != (self.n_rows,):
                raise SourceError(
                    f"{array.name} has shape {array.shape}, expected values for each of "
                    f"{self.n_rows:,} rows"
                )
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
        """Number of features; for sparse rows without ``shape``, the highest column plus one."""
        if not self.sparse:
            return int(self.roles["rows"].shape[-1])
        if "shape" in self.roles:
            shape = self.roles["shape"]
            if math.prod(shape.shape) != 2 or shape.dtype.kind not in "iu":
                raise SourceError(
                    f"{shape.name} is {shape.dtype} of shape {shape.shape}, expected two integers, "
                    "the numbers of rows and features"
                )
            return int(shape.open().all().reshape(-1)[-1])
        return 1 + self._highest("columns")

    def _highest(self, role: str) -> int:
        values, step = self.roles[role].open(), 1 << 20
        count = self.roles[role].shape[0]
        ends = range(0, count, step)
        return max((int(values[at, min(at + step, count)].max()) for at in ends), default=-1)

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """Type of the values on disk."""
        return self.roles["values" if self.sparse else "rows"].dtype

    @property
    def is_stream(self) -> bool:
        """Whether an array that grows with the corpus can only be read from its beginning."""
        big = {"rows", "values", "columns", "label_indices", "marks", "row_labels", "bag_ids"}
        return any(
            array.is_stream
            for role, array in self.roles.items()
            if role in big or role.startswith(KEPT)
        )

    @cached_property
    def kept(self) -> dict[str, KeptColumn]:
        """Type of each column to keep, by its role."""
        return {
            role: kept_column(array.name, role.removeprefix(KEPT), array.shape, array.dtype)
            for role, array in self.roles.items()
            if role.startswith(KEPT)
        }

    @cached_property
    def bag_bytes(self) -> I64:
        """Bytes of each bag on disk: rows, labels and id."""
        roles = self.roles
        if self.row_offsets is not None:
            element = roles["values"].dtype.itemsize + roles["columns"].dtype.itemsize
            n_bytes: I64 = np.diff(self.row_offsets[self.bag_offsets]) * element
        else:
            row = roles["rows"].shape[-1] * self.value_dtype.itemsize
            n_bytes = np.diff(self.bag_offsets) * row
        if self.label_offsets is not None and "label_indices" in roles:
            n_bytes += np.diff(self.label_offsets) * roles["label_indices"].dtype.itemsize
        elif "marks" in roles:
            n_bytes += roles["marks"].width * roles["marks"].dtype.itemsize
        if "bag_ids" in roles:
            n_bytes += roles["bag_ids"].dtype.itemsize
        for role in self.kept:
            n_bytes += np.diff(self.bag_offsets) * roles[role].width * roles[role].dtype.itemsize
        return n_bytes

    def _take(self, role: str, start: int, stop: int) -> NDArray[Any]:
        """Elements ``start`` to ``stop`` of an array; refused if they do not fit into memory."""
        array = self.roles[role]
        count = (stop - start) * array.width
        declared = count * array.dtype.itemsize
        beside = BESIDE_BYTES.get(role)
        if array.dtype.kind in "US" and beside is None:
            beside = TEXT_BYTES
        need = declared * array.copies if beside is None else 2 * declared + count * beside
        check_fits(
            f"{array.name}, elements {start:,} to {stop:,}",
            need,
            self.limits,
            declared=declared,
            stored=array.n_compressed,
        )
        return self.values[role][start, stop]

    def block(self, start: int, stop: int, label_numbers: I64 | None) -> BagBlock:
        """Read bags ``start`` to ``stop``."""
        offsets = self.bag_offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        label_offsets, labels = self._labels(start, stop, label_numbers)
        row_labels = self._take("row_labels", first, last) if "row_labels" in self.roles else None
        ids = None
        if "bag_ids" in self.roles:
            array = self.roles["bag_ids"]
            ids = [_as_text(value, array) for value in self._take("bag_ids", start, stop).tolist()]
        if row_labels is not None and label_numbers is not None:
            row_labels = np.where(row_labels >= 0, label_numbers[row_labels], row_labels)
        kept = {
            column.name: storable_values(self._take(role, first, last), self.roles[role].name)
            for role, column in self.kept.items()
        }
        rows = self._rows(start, stop, first, last)
        return BagBlock(offsets - first, rows, label_offsets, labels, row_labels, ids, kept)

    def _rows(self, start: int, stop: int, first: int, last: int) -> NDArray[Any] | SparseRows:
        if self.row_offsets is not None:
            offsets = self.row_offsets[first : last + 1]
            a, b = int(offsets[0]), int(offsets[-1])
            columns, values = self._take("columns", a, b), self._take("values", a, b)
            # Columns stay signed, so that the writer can see and refuse negative columns.
            return SparseRows(offsets - a, columns, values, self.n_features_held)
        if len(self.roles["rows"].shape) == 3:
            bags = self._take("rows", start, stop)
            return bags.reshape(-1, bags.shape[-1])
        return self._take("rows", first, last)

    n_features_held = 0
    """Set by the reader, as counting the features of sparse rows takes a pass."""

    def _labels(self, start: int, stop: int, label_numbers: I64 | None) -> tuple[I64, NDArray[Any]]:
        if self.label_offsets is None:
            marks = self._take("marks", start, stop)
            return labels_of_marks(
                marks, f"{self.where}, bags {start:,} to {stop:,}", label_numbers
            )
        offsets = self.label_offsets[start : stop + 1]
        if self.no_labels:
            return offsets, np.empty(0, np.int32)
        labels = self._take("label_indices", int(offsets[0]), int(offsets[-1]))
        if label_numbers is not None and len(labels):
            outside = (labels < 0) | (labels >= len(label_numbers))
            if outside.any():
                raise SourceError(
                    f"{self.where}: label {labels[outside.argmax()]} is outside "
                    f"0 to {len(label_numbers) - 1}"
                )
            labels = label_numbers[labels]
        return offsets - offsets[0], labels


def _narrow(dtype: np.dtype[Any]) -> str:
    """Row type of a store for values of a type; float32 if no other type fits."""
    if dtype.kind == "b":
        return "uint8"
    return dtype.name if dtype.name in ROW_DTYPES else "float32"


def _label_facts(
    corpus: ArrayCorpus, options: SourceOptions
) -> tuple[tuple[str, ...] | None, int | None, I64 | None]:
    """Label names, number of labels, and the new number of each label of the source."""
    stored_names = None
    if "label_names" in corpus.roles:
        stored_names = _texts(corpus.roles["label_names"], "label names", options.limits)
    count = None
    if "n_labels" in corpus.roles:
        array = corpus.roles["n_labels"]
        if math.prod(array.shape) != 1 or array.dtype.kind not in "iu":
            raise SourceError(f"{array.name}: n_labels must be one integer")
        count = int(array.open().all().reshape(-1)[0])
    elif "marks" in corpus.roles and corpus.label_offsets is None:
        count = corpus.roles["marks"].shape[1]
    if stored_names is not None and count is not None and len(stored_names) != count:
        raise SourceError(
            f"{corpus.where}: {len(stored_names)} label names, but n_labels is {count}"
        )
    if options.labels is None:
        return stored_names, None if stored_names is not None else count, None
    if stored_names is not None:
        return options.labels, None, label_numbers_of(stored_names, options, corpus.where)
    if count is not None:
        return numbered_names(count, options, corpus.where), None, None
    return options.labels, None, None


def scan_arrays(
    paths: Sequence[Path], options: SourceOptions, arrays_in: ArraysIn, format_name: str
) -> Scan:
    """Scan flat arrays of any format; ``format_name`` is used in notes."""
    corpus = ArrayCorpus(paths, options, arrays_in, check=True)
    names, n_labels, _ = _label_facts(corpus, options)
    n_features = options.n_features or corpus.n_features
    feature_names = None
    if "feature_names" in corpus.roles:
        feature_names = _texts(corpus.roles["feature_names"], "feature names", options.limits)
    sizes = corpus.bag_bytes
    # A stream is read once: with several spans, each would read it from its beginning.
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
    notes = [f"{format_name} arrays: {taken}"]
    if corpus.is_stream:
        notes.append("compressed members are read from front to end by one process")
    if corpus.value_dtype.name == "float64":
        notes.append("float64 values are rounded to float32")
    if held > 64 << 20:
        notes.append(f"offsets are held in memory: {format_size(held)}")
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
        kept=tuple(sorted(corpus.kept.values())),
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
) -> ArrayCorpus:
    del stamp  # Part of the cache key, so that a source that was replaced is opened again.
    return ArrayCorpus([source_path(part) for part in source.split(BESIDE)], options, arrays_in)


def read_arrays(
    span: Span, scan: Scan, options: SourceOptions, arrays_in: ArraysIn
) -> Iterator[BagBlock]:
    """Yield the bags of a span of flat arrays."""
    try:
        status = [source_path(part).stat() for part in span.path.split(BESIDE)]
    except OSError as error:
        raise SourceError(
            f"{span.path.split(BESIDE)[0]} cannot be read: {error.strerror}"
        ) from error
    stamp = tuple((stat.st_size, stat.st_mtime_ns) for stat in status)
    corpus = _corpus(span.path, options, stamp, arrays_in)
    if corpus.n_bags < span.stop:
        raise SourceError(
            f"{corpus.where} holds {corpus.n_bags:,} bags, but had {scan.n_bags:,} when it was "
            "scanned"
        )
    corpus.n_features_held = scan.n_features
    _, _, label_numbers = _label_facts(corpus, options)
    sizes = corpus.bag_bytes[span.start : span.stop]
    # A span of limited size is read as one block: joining smaller blocks would copy them again.
    for start, stop in cuts_by_bytes(sizes, BLOCK_BYTES if corpus.is_stream else 1 << 62):
        yield corpus.block(span.start + start, span.start + stop, label_numbers)


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
    streams=True,
    may_lack_labels=True,
)
