"""Text of the protein corpora: ``>ID`` and rows in one file, ``>ID`` and label marks in another.

Values are separated by tabs; lines end as on Windows or Unix. A ``>`` without id at the end of a
file is not a bag; it is skipped with a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import (
    BESIDE,
    Limits,
    Reader,
    Scan,
    SourceError,
    SourceOptions,
    Span,
)
from streammiml_tools.readers.csv_cells import LINE_TIMES, check_columns
from streammiml_tools.readers.labelling import labels_of_marks, numbered_names
from streammiml_tools.readers.memory_checks import BLOCK_COPIES, ID_BYTES, HeldBytes, check_bag
from streammiml_tools.readers.text import (
    BLOCK_BYTES,
    RowError,
    as_text,
    compression_of,
    head,
    last_lines,
    line_blocks,
    maybe_cut,
    narrowed,
    parse_rows,
    where,
)

I64 = NDArray[np.int64]
ROW_BYTES = 100
"""Memory for a line of a bag in addition to its characters."""
LABELS_BYTES = 500
"""Memory for the labels of a bag and two copies of its id."""
MARKS = {b"-1", b"0", b"1", b"+1"}


class ProteinRecord(NamedTuple):
    """The lines below one ``>ID``, with the offsets of all lines."""

    name: str
    offset: int
    rows: list[bytes]
    row_offsets: list[int]


def _records(
    path: str | Path, limits: Limits, start: int = 0, stop: int | None = None
) -> Iterator[ProteinRecord]:
    """Yield the records from ``start``, where one must begin; ``>`` alone has an empty name."""
    current: ProteinRecord | None = None
    n_bytes = 0
    for lines in line_blocks(path, start, stop, aligned=True, limits=limits, times=LINE_TIMES):
        for offset, line in lines.with_offsets():
            line = line.strip()
            if line.startswith(b">"):
                if current is not None:
                    yield current
                current = ProteinRecord(as_text(line[1:].strip(), path, offset), offset, [], [])
                n_bytes = 0
            elif line and current is None:
                raise SourceError(
                    f"{where(path, offset)}: a row before the first '>' line; every bag begins "
                    "with '>' and its id"
                )
            elif line and current is not None:
                n_bytes += len(line) + ROW_BYTES
                if n_bytes > limits.share // BLOCK_COPIES:
                    check_bag(f"{path}, bag {current.name[:40]!r}", n_bytes, limits)
                current.rows.append(line)
                current.row_offsets.append(offset)
    if current is not None:
        yield current


def _separator(line: bytes, options: SourceOptions) -> str:
    if options.separator is not None:
        return options.separator
    return "\t" if b"\t" in line else "," if b"," in line else " "


def _is_labels(path: Path, options: SourceOptions) -> bool:
    """Whether the first records have one line of marks each."""
    lines = [line.strip() for line in head(path, 1 << 20).split(b"\n")]
    complete = [line for line in (lines[:-1] if len(lines) > 2 else lines) if line]
    rows = [line for line in complete if not line.startswith(b">")]
    names = len(complete) - len(rows)
    if not rows or abs(names - len(rows)) > 1:
        return False
    cut = _separator(rows[0], options).encode()
    return all(value.strip() in MARKS for row in rows[:50] for value in row.split(cut))


def _sorted_files(paths: Sequence[Path], options: SourceOptions) -> tuple[Path, Path]:
    """The file of rows and the file of labels, by content, otherwise by name."""
    if len(paths) != 2:
        raise SourceError(
            f"{paths[0]}: rows and labels are two files of '>ID' records; give both, in any order "
            f"(got {len(paths)})"
        )
    has_labels = [_is_labels(path, options) for path in paths]
    if has_labels[0] == has_labels[1]:
        has_labels = ["label" in path.name.lower() for path in paths]
    if has_labels[0] == has_labels[1]:
        raise SourceError(
            f"{paths[0]} and {paths[1]}: it is not clear which file has the labels; rename that "
            "file to labels.txt"
        )
    return (paths[1], paths[0]) if has_labels[0] else (paths[0], paths[1])


class _ProteinLabels(NamedTuple):
    numbers: dict[str, NDArray[np.int32]]
    n_labels: int
    notes: tuple[str, ...]


def _labels(path: Path, options: SourceOptions) -> _ProteinLabels:
    stat = path.stat()
    settings = (options.separator, options.limits)
    return _read_labels(str(path), stat.st_size, stat.st_mtime_ns, *settings)


@lru_cache(maxsize=2)
def _read_labels(
    path: str,
    size: int,  # noqa: ARG001
    changed: int,  # noqa: ARG001
    separator: str | None,
    limits: Limits,
) -> _ProteinLabels:
    """Read the labels of all records; they are small enough to be held in memory."""
    numbers: dict[str, NDArray[np.int32]] = {}
    held: list[ProteinRecord] = []
    n_labels, cut, n_bytes = 0, "\t", 0
    notes: list[str] = []
    seen: set[str] = set()

    def flush() -> None:
        try:
            marks = parse_rows(b"\n".join(labelled.rows[0] for labelled in held), n_labels, cut)
        except RowError as error:
            labelled = held[error.row]
            raise SourceError(
                f"{where(path, labelled.row_offsets[0])}: labels of {labelled.name!r}: "
                f"{error.reason}"
            ) from None
        offsets, label_numbers = labels_of_marks(marks, f"{path}, from {held[0].name!r} on")
        for i, labelled in enumerate(held):
            numbers[labelled.name] = label_numbers[offsets[i] : offsets[i + 1]]

    memory = HeldBytes(path, "labels of bags", limits)
    for record, last in _with_last(_records(path, limits)):
        if _is_stray(record, last, path, notes):
            continue
        if len(record.rows) != 1:
            raise SourceError(
                f"{where(path, record.offset)}: {record.name!r} has {len(record.rows)} lines of "
                "labels, expected 1; is the file cut short?"
            )
        if record.name in seen:
            raise _twice(path, record)
        seen.add(record.name)
        memory.add(LABELS_BYTES + 2 * len(record.name))
        if not n_labels:
            cut = _separator(record.rows[0], SourceOptions(separator=separator))
            n_labels = record.rows[0].count(cut.encode()) + 1
            check_columns(path, n_labels, SourceOptions(limits=limits))
        held.append(record)
        n_bytes += len(record.rows[0])
        if n_bytes > BLOCK_BYTES:
            flush()
            held, n_bytes = [], 0
    if held:
        flush()
    return _ProteinLabels(numbers, n_labels, tuple(notes))


def _with_last(records: Iterator[ProteinRecord]) -> Iterator[tuple[ProteinRecord, bool]]:
    """Yield every record, and whether it is the last."""
    before: ProteinRecord | None = None
    for record in records:
        if before is not None:
            yield before, False
        before = record
    if before is not None:
        yield before, True


def _is_stray(record: ProteinRecord, last: bool, path: str | Path, notes: list[str]) -> bool:
    """Whether a record is a ``>`` without id at the end; elsewhere, a missing id is refused."""
    if record.name:
        return False
    if record.rows or not last:
        raise SourceError(f"{where(path, record.offset)}: '>' without an id; every bag needs an id")
    notes.append(f"{where(path, record.offset)}: a '>' without id ends the file, and is skipped")
    return True


def _twice(path: str | Path, record: ProteinRecord) -> SourceError:
    return SourceError(
        f"{where(path, record.offset)}: {record.name!r} occurs twice; ids must be unique"
    )


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Read the labels, and the ids and sizes of bags; rows are not parsed."""
    rows, marks = _sorted_files(paths, options)
    ends = last_lines(rows)
    if ends is not None and not ends[1].startswith(b">"):
        raise maybe_cut(rows)
    labels = _labels(marks, options)
    notes = [f"{rows}: rows; {marks}: labels", *labels.notes]
    seen: set[str] = set()
    starts: list[int] = []
    n_rows, n_features = 0, 0
    held = HeldBytes(str(rows), "ids of bags", options.limits)
    for record, last in _with_last(_records(rows, options.limits)):
        if _is_stray(record, last, rows, notes):
            continue
        if record.name in seen:
            raise _twice(rows, record)
        if record.name not in labels.numbers:
            raise SourceError(
                f"{where(rows, record.offset)}: {record.name!r} has no labels in {marks}"
            )
        seen.add(record.name)
        held.add(ID_BYTES + len(record.name))
        starts.append(record.offset)
        n_rows += len(record.rows)
        if not n_features and record.rows:
            cut = _separator(record.rows[0], options)
            n_features = record.rows[0].count(cut.encode()) + 1
            check_columns(rows, n_features, options)
    if not n_features:
        raise SourceError(f"{rows} has no rows; is it cut short?")
    if len(seen) < len(labels.numbers):
        first = next(name for name in labels.numbers if name not in seen)
        raise SourceError(
            f"{marks}: {len(labels.numbers) - len(seen)} ids have no rows in {rows}, the first is "
            f"{first!r}; is the file of rows cut short?"
        )
    return Scan(
        spans=tuple(_spans(rows, marks, np.array(starts, np.int64), options)),
        n_features=n_features,
        label_names=numbered_names(labels.n_labels, options, str(marks)),
        n_labels=labels.n_labels,
        bag_ids=True,
        n_bags=len(seen),
        n_rows=n_rows,
        holds_bytes=marks.stat().st_size,
        notes=tuple(notes),
    )


def _spans(rows: Path, marks: Path, starts: I64, options: SourceOptions) -> Iterator[Span]:
    """Yield spans of complete records; a compressed file is one span."""
    source, size = BESIDE.join((str(rows), str(marks))), rows.stat().st_size
    if compression_of(rows) is not None:
        yield Span(source, int(starts[0]), 1 << 62, size, len(starts))
        return
    first = 0
    while first < len(starts):
        after = int(np.searchsorted(starts, starts[first] + options.span_bytes))
        after = max(after, first + 1)
        stop = int(starts[after]) if after < len(starts) else size
        yield Span(source, int(starts[first]), stop, stop - int(starts[first]), after - first)
        first = after


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags of the records in a span."""
    rows, marks = span.path.split(BESIDE)
    labels = _labels(Path(marks), options)
    held: list[ProteinRecord] = []
    n_bytes = 0
    for record in _records(rows, options.limits, span.start, span.stop):
        if not record.name:
            continue
        held.append(record)
        n_bytes += sum(map(len, record.rows))
        if n_bytes > BLOCK_BYTES:
            yield _block(rows, held, labels, scan, options)
            held, n_bytes = [], 0
    if held:
        yield _block(rows, held, labels, scan, options)


def _block(
    path: str,
    records: list[ProteinRecord],
    labels: _ProteinLabels,
    scan: Scan,
    options: SourceOptions,
) -> BagBlock:
    lines = [line for record in records for line in record.rows]
    try:
        cut = _separator(lines[0], options) if lines else "\t"
        rows = narrowed(parse_rows(b"\n".join(lines), scan.n_features, cut))
    except RowError as error:
        row_places = [(record, offset) for record in records for offset in record.row_offsets]
        record, offset = row_places[error.row]
        raise SourceError(f"{where(path, offset)}: bag {record.name!r}: {error.reason}") from None
    label_lists = [labels.numbers[record.name] for record in records]
    return BagBlock(
        from_sizes([len(record.rows) for record in records]),
        rows,
        from_sizes([len(bag_labels) for bag_labels in label_lists]),
        np.concatenate(label_lists),
        bag_ids=[record.name for record in records],
    )


def tells(path: Path, first: bytes) -> bool:
    """Whether a text begins with ``>ID`` and a line of numbers."""
    lines = [line.strip() for line in first.split(b"\n", 3)[:2]]
    if path.suffix.lower() == ".xml" or len(lines) < 2 or not lines[0].startswith(b">"):
        return False
    number = lines[1].replace(b",", b"\t").split(b"\t")[0].split(b" ")[0]
    try:
        return float(number) is not None
    except ValueError:
        return False


READER = Reader(
    name="protein",
    suffixes=(),
    line="text of the protein sets: '>ID' and rows in one file, '>ID' and -1/1 marks in another",
    tells=tells,
    scan=scan,
    read=read,
)
