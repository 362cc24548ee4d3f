"""Text for readers: plain or compressed streams, the complete lines of a span, rows of numbers.

Positions are byte offsets into the decompressed text: they are cheap to keep, and the same in every
span. Only an error message needs a line number; it counts the lines up to the offset.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from streammiml_tools.readers.base import Limits, SourceError, Span
from streammiml_tools.readers.record_header import HEADER, is_header
from streammiml_tools.readers.remote_files import arrow_source, source_path

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

FLOAT32_LIMIT = (2.0 - 2.0**-24) * 2.0**127
"""Values of at least this size round to infinity in float32. It is half a step above the largest
float32, whose shortest text, 3.4028235e+38, is larger than the number itself."""
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
BOM = b"\xef\xbb\xbf"
BLOCK_BYTES = 1 << 20
"""Default size of a block of lines, approximately."""
MAX_LINE = 1 << 30
"""Upper limit in bytes for a line, which must be held in memory."""
BOMB_LINE = 64 << 20
BOMB_RATIO = 100
"""A line that is larger than BOMB_LINE and than this multiple of its compressed file is refused."""


class TextSource(Protocol):
    """A stream of bytes."""

    def read(self, n_bytes: int, /) -> bytes: ...  # noqa: D102


class LineBlock(NamedTuple):
    """Consecutive complete lines; only the last line of a file may lack its line break."""

    path: str
    offset: int
    """Offset of the first byte in the decompressed text."""
    content: bytes

    def with_offsets(self) -> Iterator[tuple[int, bytes]]:
        """Yield every line with its offset, without its line break (Unix or Windows)."""
        offset = self.offset
        lines = self.content.split(b"\n")
        if not lines[-1]:
            lines.pop()
        for line in lines:
            yield offset, line.removesuffix(b"\r")
            offset += len(line) + 1


def compression_of(path: str | Path) -> str | None:
    """``gzip``, ``zstd`` or None, by suffix, otherwise by the first bytes."""
    by_suffix = COMPRESSIONS.get(Path(path).suffix.lower())
    if by_suffix is not None:
        return by_suffix
    with _opening(path), source_path(path).open("rb") as file:
        first = file.read(HEADER.size)
    # The length of a TFRecord may begin like a compressed file, but has its checksum behind it.
    if is_header(first):
        return None
    return next((name for magic, name in MAGIC.items() if first.startswith(magic)), None)


def bare_suffix(path: str | Path) -> str:
    """Suffix before the suffix of a compression: ``.csv`` for ``a.csv.gz``."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def open_bytes(path: str | Path, start: int = 0) -> Iterator[TextSource]:
    """Open the decompressed bytes from ``start`` on; a damaged file raises SourceError."""
    compression = compression_of(path)
    with _opening(path):
        if compression is None:
            with source_path(path).open("rb") as file:
                file.seek(start)
                yield file
        else:
            with pa.input_stream(arrow_source(path), compression=compression) as stream:
                while start > 0 and (n_skipped := len(stream.read(min(start, BLOCK_BYTES)))):
                    start -= n_skipped
                yield stream


@contextmanager
def _opening(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from error
        raise SourceError(f"{path} is damaged or cut short ({error}); fetch it again") from error


def head(path: str | Path, n_bytes: int = 1 << 16) -> bytes:
    """Read the first bytes, decompressed, without a byte order mark."""
    parts: list[bytes] = []
    with open_bytes(path) as stream:
        while n_bytes > 0 and (part := stream.read(n_bytes)):
            parts.append(part)
            n_bytes -= len(part)
    return b"".join(parts).removeprefix(BOM)


def byte_spans(path: str | Path, span_bytes: int, start: int = 0) -> tuple[Span, ...]:
    """Cut a file, from ``start`` on, into spans; a compressed file is one span.

    Cuts fall anywhere: a line belongs to the span in which it begins. The span of a compressed file
    stops beyond any text, as the decompressed size is unknown.
    """
    with _opening(path):
        size = source_path(path).stat().st_size
    if compression_of(path) is not None:
        return (Span(str(path), start, 1 << 62, size),)
    n_spans = max(1, round((size - start) / max(span_bytes, 1)))
    cuts = [start + (size - start) * i // n_spans for i in range(n_spans + 1)]
    return tuple(Span(str(path), first, last, last - first) for first, last in pairwise(cuts))


def line_blocks(
    path: str | Path,
    start: int = 0,
    stop: int | None = None,
    *,
    aligned: bool = False,
    block_bytes: int = BLOCK_BYTES,
    limits: Limits | None = None,
    times: int = 8,
) -> Iterator[LineBlock]:
    """Yield, in blocks, the lines that begin at ``start`` or later and before ``stop``.

    ``aligned`` promises that a line begins at ``start``; otherwise the rest of a line that began
    earlier is skipped. A byte order mark is not part of the first line. Parsing a line takes
    ``times`` its bytes; a line that needs more memory than ``limits`` is refused.
    """
    limit = _line_limit(path)
    if limits is not None:
        limit = min(limit, max(block_bytes, limits.share // times))
    # One byte earlier, so that a line that begins exactly at the start is not skipped.
    offset = start if aligned or start == 0 else start - 1
    skipping = offset < start
    rest: list[bytes] = []
    with open_bytes(path, offset) as stream:
        if offset == 0:
            rest = [stream.read(len(BOM))]
            if rest[0] == BOM:
                rest, offset = [], len(BOM)
        while stop is None or offset < stop:
            read = stream.read(block_bytes)
            end = read.rfind(b"\n") + 1
            if read and not end:
                rest.append(read)
                _check_line(path, offset, sum(map(len, rest)), limit)
                continue
            content, rest = b"".join([*rest, read[:end]]), [read[end:]]
            if skipping and content:
                n_skipped = content.find(b"\n") + 1 or len(content)
                content, offset, skipping = content[n_skipped:], offset + n_skipped, False
            kept = content if stop is None else _before(content, stop - offset)
            if kept:
                yield LineBlock(str(path), offset, kept)
            if not read or len(kept) < len(content):
                return
            offset += len(content)


def _before(content: bytes, stop: int) -> bytes:
    """The lines that begin before the position ``stop`` in the content."""
    if stop >= len(content):
        return content
    end = content.find(b"\n", stop - 1) + 1 if stop > 0 else 0
    return content[: end or (len(content) if stop > 0 else 0)]


def _line_limit(path: str | Path) -> int:
    if compression_of(path) is None:
        return MAX_LINE
    return min(MAX_LINE, max(BOMB_LINE, BOMB_RATIO * source_path(path).stat().st_size))


def _check_line(path: str | Path, offset: int, length: int, limit: int) -> None:
    if length > limit:
        raise SourceError(
            f"{where(path, offset)}: the line is longer than {limit >> 20} MiB, the limit for one "
            "line; is this text with one record on each line? More --memory allows longer lines"
        )


def last_lines(path: str | Path) -> tuple[bytes, bytes] | None:
    """The last two lines of a plain file whose last line has no line break, otherwise None.

    A compressed file that is cut short cannot be decompressed, so the result is None there too.
    """
    size = source_path(path).stat().st_size
    if compression_of(path) is not None or not size:
        return None
    reach = 1 << 12
    with _opening(path), source_path(path).open("rb") as file:
        while True:
            file.seek(max(0, size - reach))
            read = file.read()
            if read.endswith((b"\n", b"\r")):
                return None
            lines = read.rsplit(b"\n", 2)
            if len(lines) == 3 or reach >= min(size, MAX_LINE):
                return (lines[-2] if len(lines) > 1 else b""), lines[-1]
            reach *= 8


def maybe_cut(path: str | Path) -> SourceError:
    """The error for a last line without line break: its last number may be cut, yet be valid."""
    size = source_path(path).stat().st_size
    return SourceError(
        f"{where(path, size)}: the last line has no line break, so its last value may be "
        f"cut short; if the file is complete, add a line break: echo >> {shlex.quote(str(path))}"
    )


def line_number(path: str | Path, offset: int) -> int:
    """Number, from 1, of the line that contains the offset."""
    ends, left = 0, offset
    with open_bytes(path) as stream:
        while left > 0 and (read := stream.read(min(left, BLOCK_BYTES))):
            ends += read.count(b"\n")
            left -= len(read)
    return ends + 1


def where(path: str | Path, offset: int) -> str:
    """``file, line n``, as the beginning of a message."""
    return f"{path}, line {line_number(path, offset)}"


def as_text(raw: bytes, path: str | Path, offset: int) -> str:
    """Decode bytes of a file; ``offset`` is their position, for the message."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{where(path, offset)}: byte {raw[error.start]:#04x} is not UTF-8; "
            "convert the file to UTF-8"
        ) from None


class RowError(Exception):
    """A row that is not a row of finite numbers, with its number from 0 and the reason."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.reason = row, reason


def parse_rows(rows: bytes, n_columns: int, separator: str = ",") -> F64:
    """Parse lines of finite numbers; raises RowError for the first invalid row.

    Decimal numbers are rounded once, to the nearest float64. Spaces around a number are ignored. An
    empty line is a row without values, and so invalid.
    """
    if not rows:
        return np.empty((0, n_columns))
    try:
        values = _parse_fast(rows, n_columns, separator)
    except pa.ArrowInvalid:
        values = _parse_each(rows, n_columns, separator)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int((~finite).argmax())
        column = int((~np.isfinite(values[row])).argmax())
        raise RowError(
            row, f"value {column + 1} is {values[row, column]}; only finite numbers can be stored"
        )
    return values


def narrowed(rows: F64) -> F32:
    """Round values to float32; raises RowError for a value that is too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = rows.astype(np.float32)
    if not np.isfinite(narrow).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(narrow))[0])
        raise RowError(row, f"value {column + 1} is {rows[row, column]}, too large for float32")
    return narrow


def _parse_fast(rows: bytes, n_columns: int, separator: str) -> F64:
    names = [str(i) for i in range(n_columns)]
    table = csv.read_csv(
        pa.BufferReader(rows),
        read_options=csv.ReadOptions(
            column_names=names, use_threads=False, block_size=min(len(rows) + 1, 2**31 - 1)
        ),
        parse_options=csv.ParseOptions(
            delimiter=separator, quote_char=False, ignore_empty_lines=False
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.float64()), null_values=[]
        ),
    )
    out = np.empty((table.num_rows, n_columns))
    for i, column in enumerate(table.columns):
        out[:, i] = column.to_numpy()
    return out


def _parse_each(rows: bytes, n_columns: int, separator: str) -> F64:
    """Parse number by number: slower, but accepts ``+1`` and names the invalid value."""
    lines = rows.removesuffix(b"\n").split(b"\n")
    cut = separator.encode()
    out = np.empty((len(lines), n_columns))
    for row, line in enumerate(lines):
        parts = line.split(cut) if line.strip() else []
        if len(parts) != n_columns:
            raise RowError(row, f"a row of {len(parts)} values, expected {n_columns}")
        for column, part in enumerate(parts):
            out[row, column] = parse_number(part, row, column)
    return out


def parse_number(raw: bytes, row: int, column: int) -> float:
    """Parse one number; raises RowError if it is invalid."""
    try:
        # Python reads 1_000 as a thousand; other programs do not.
        if b"_" not in raw:
            return float(raw)
    except ValueError:
        pass
    shown = raw.strip().decode(errors="replace")
    raise RowError(row, f"value {column + 1} is {shown[:40]!r}, expected a number")


def twice(names: Sequence[Any]) -> Any | None:
    """The first name that occurs a second time, or None."""
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
