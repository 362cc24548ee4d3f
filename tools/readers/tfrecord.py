"""TFRecord files of ``tf.train.SequenceExample`` or ``tf.train.Example``: a record a bag.

A SequenceExample is a bag of frames: the lists of frames, such as ``rgb`` and ``audio`` of
YouTube-8M or ``audio_embedding`` of AudioSet, are joined to rows. An Example has one row, or
several if a feature has ``--n-features`` values for each. Frames that are bytes become rows of
uint8. Columns to keep are further lists of frames, or features with a value for each row.

Both checksums of every record are verified. TensorFlow is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KeptColumn, columns_of
from streammiml.bags.kept_columns import n_bytes as column_bytes
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import Limits, Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.kept_cells import check_names, storable_values
from streammiml_tools.readers.labelling import Labelling, labelling_in, labelling_of, refuse_marks
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes, check_fits
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.record_header import HEADER, is_header, masked
from streammiml_tools.readers.remote_files import source_path
from streammiml_tools.readers.text import (
    TextSource,
    bare_suffix,
    compression_of,
    open_bytes,
)
from streammiml_tools.readers.tf_examples import (
    FeatureValues,
    Message,
    MessageError,
    as_text,
    frame_rows,
    kept_frames,
    kept_values,
    parse_message,
)

SUFFIXES = (".tfrecord", ".tfrecords")
CRC_BYTES = 4
BLOCK_BYTES = 8 << 20
"""Bytes of rows that become one block, approximately."""
PIECE_BYTES = 1 << 20
RECORD_TIMES = 4
"""Memory for a record while it is read, as a multiple of its bytes."""
LONG_RECORD = 1 << 20
"""Records of at least this many bytes are checked for memory before they are read."""
IDS = ("id", "video_id", "bag_id", "bag")
LABELS = ("labels", "label", "targets", "classes")
FIRST_ROWS = ("rgb", "audio")
"""Lists of frames that come first in a row, in this order, as in YouTube-8M."""


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """Roles of the features of the messages in a file, as the first message has them."""

    is_sequence: bool
    rows: tuple[str, ...]
    widths: tuple[int, ...]
    dtype: str
    """Type of the values in the file: uint8, float32 or int64."""
    labels: str | None
    id: str | None
    kept: tuple[KeptColumn, ...] = ()


class _Record(NamedTuple):
    offset: int
    """Offset of its first byte in the decompressed file."""
    content: bytes


def tells(path: Path, head: bytes) -> bool:
    """Whether the first bytes are a length with its checksum, or the suffix is known."""
    if bare_suffix(path) in SUFFIXES:
        return True
    return is_header(head) and not path.is_dir()


# Records.


def where(path: str | Path, offset: int) -> str:
    """``file, record n``, as the beginning of a message; records are counted from 0."""
    number = at = 0
    with open_bytes(path) as stream:
        while at < offset:
            length, _ = HEADER.unpack(_exactly(stream, HEADER.size, path, at))
            _skip(stream, length + CRC_BYTES)
            at += HEADER.size + length + CRC_BYTES
            number += 1
    return f"{path}, record {number}"


def _skip(stream: TextSource, n_bytes: int) -> None:
    while n_bytes > 0 and (piece := stream.read(min(n_bytes, PIECE_BYTES))):
        n_bytes -= len(piece)


def _exactly(stream: TextSource, n_bytes: int, path: str | Path, offset: int) -> bytes:
    """Read so many bytes, a piece at a time: a length on disk may be wrong."""
    content = stream.read(min(n_bytes, PIECE_BYTES))
    if len(content) < n_bytes:
        pieces = [content]
        left = n_bytes - len(content)
        while left > 0 and (piece := stream.read(min(left, PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        content = b"".join(pieces)
    if len(content) < n_bytes:
        raise SourceError(f"{where(path, offset)} is cut short; fetch the file again")
    return content


def _length(header: bytes, path: str | Path, offset: int) -> int:
    """Length of a record, whose checksum must agree."""
    if not is_header(header):
        raise SourceError(
            f"{where(path, offset)}: the length does not have its checksum; the file is damaged, "
            "fetch it again"
        )
    return int(HEADER.unpack(header)[0])


def _lengths(path: Path) -> Iterator[tuple[int, int]]:
    """Yield offset and length of every record of a plain file, without reading the records."""
    size, offset = path.stat().st_size, 0
    with open_bytes(path) as stream:
        assert hasattr(stream, "seek")
        while offset < size:
            stream.seek(offset)
            length = _length(_exactly(stream, HEADER.size, path, offset), path, offset)
            end = offset + HEADER.size + length + CRC_BYTES
            if end > size:
                raise SourceError(f"{where(path, offset)} is cut short; fetch the file again")
            yield offset, length
            offset = end


def _records(path: str | Path, start: int, stop: int, limits: Limits) -> Iterator[_Record]:
    """Yield the records that begin at ``start`` or later and before ``stop``, all verified."""
    offset = start
    with open_bytes(path, start) as stream:
        while offset < stop:
            header = stream.read(HEADER.size)
            if not header:
                return
            if len(header) < HEADER.size:
                raise SourceError(f"{where(path, offset)} is cut short; fetch the file again")
            length = _length(header, path, offset)
            if length >= LONG_RECORD:
                name = f"{where(path, offset)}, of {length:,} bytes,"
                check_fits(name, RECORD_TIMES * length, limits)
            content = _exactly(stream, length, path, offset)
            crc = int.from_bytes(_exactly(stream, CRC_BYTES, path, offset), "little")
            if masked(crc32c(content)) != crc:
                raise SourceError(
                    f"{where(path, offset)} does not have its checksum; the file is damaged, fetch "
                    "it again"
                )
            yield _Record(offset, content)
            offset += HEADER.size + length + CRC_BYTES


def _messages(
    path: str | Path, start: int, stop: int, limits: Limits
) -> Iterator[tuple[int, Message]]:
    """Yield offset and message of each record."""
    for record in _records(path, start, stop, limits):
        try:
            yield record.offset, parse_message(record.content)
        except MessageError as error:
            raise _no_message(path, record.offset, error) from None


def _no_message(path: str | Path, offset: int, error: MessageError) -> SourceError:
    return SourceError(
        f"{where(path, offset)} is not a tf.train.Example or SequenceExample as expected: {error}"
    )


# Roles of features.


def layout_of(path: Path, options: SourceOptions) -> MessageLayout | None:
    """Roles of the features, by the first message that has rows; None if the file has none."""
    status = path.stat()
    return _layout(str(path), status.st_size, status.st_mtime_ns, options)


@lru_cache(maxsize=64)
def _layout(path: str, size: int, changed: int, options: SourceOptions) -> MessageLayout | None:  # noqa: ARG001
    for offset, message in _messages(path, 0, 1 << 62, options.limits):
        try:
            layout = _layout_in(message, options)
        except MessageError as error:
            raise SourceError(f"{where(path, offset)}: {error}") from None
        if layout is not None:
            return layout
    return None


def _layout_in(message: Message, options: SourceOptions) -> MessageLayout | None:
    """Roles of the features of a message; None if it has no rows."""
    features, frames = message.features, message.frames
    label_key = None
    if not options.no_labels:
        label_key = _named(features, options.label_columns, LABELS)
        if label_key is None:
            raise MessageError(
                f"which feature has the labels? give --label-columns, or none; the features are "
                f"{listed(features) or 'none'}"
            )
    id_key = _named(features, (options.bag_column,) if options.bag_column else None, IDS)
    taken = {label_key, id_key}
    names: tuple[str, ...]
    if frames:
        names = options.feature_columns or _by_default(message, options)
        parts = [_frames(message, name) for name in names]
    else:
        floats = (name for name, values in features.items() if _is_floats(values))
        names = options.feature_columns or tuple(
            sorted({*floats} - {*taken} - {*options.kept_names})
        )
        parts = [_feature_rows(message, name, options) for name in names]
    if not names:
        raise MessageError(
            "no feature is a list of floats; name those of the rows by --feature-columns; the "
            f"features are {listed(features) or 'none'}"
        )
    if not all(part.shape[1] for part in parts):
        return None
    kinds = {part.dtype.name for part in parts}
    if len(kinds) > 1:
        raise MessageError(
            f"{listed(names)} are of different types ({', '.join(sorted(kinds))}); name those of "
            "one type by --feature-columns"
        )
    kind = kinds.pop()
    widths = tuple(part.shape[1] for part in parts)
    for name in options.kept_names:
        if name in (*names, *taken):
            raise MessageError(f"{name!r} has another role, and is not kept too (--keep)")
    kept = columns_of({name: _kept_in(message, name, len(parts[0])) for name in options.kept_names})
    return MessageLayout(bool(frames), names, widths, kind, label_key, id_key, kept)


def _kept_in(message: Message, name: str, n_rows: int) -> NDArray[Any]:
    """Values of a column to keep, for each row; raises MessageError."""
    if name in message.frames:
        values = kept_frames(message, name)
    elif name in message.features:
        values = kept_values(message.features[name], n_rows)
    else:
        raise MessageError(
            f"no list of frames and no feature is called {name!r} (--keep); there are "
            f"{listed([*message.frames, *message.features]) or 'none'}"
        )
    if len(values) != n_rows:
        raise MessageError(f"{len(values):,} values of {name!r} (--keep) for {n_rows:,} rows")
    try:
        return storable_values(values, repr(name))
    except SourceError as error:
        raise MessageError(str(error)) from None


def _kept_as(values: NDArray[Any], column: KeptColumn) -> NDArray[Any]:
    """Values of a column, which must be of its type; an empty list has none."""
    if not len(values):
        return column.empty()
    found = columns_of({column.name: values})[0]
    if found != column:
        raise MessageError(f"{found} (--keep) is not {column}, as in the first record")
    return values


def _named(
    features: dict[str, FeatureValues], given: tuple[str, ...] | None, known: Sequence[str]
) -> str | None:
    if given is None:
        return next((name for name in known if name in features), None)
    if given[0] not in features:
        raise MessageError(f"no feature is called {given[0]!r}; there are {listed(features)}")
    return given[0]


def _is_floats(values: FeatureValues) -> bool:
    return values.numbers is not None and values.numbers.dtype.kind == "f" and len(values) > 0


def _by_default(message: Message, options: SourceOptions) -> tuple[str, ...]:
    """Lists of frames of bytes or floats: rgb and audio first, others by name."""
    first = [name for name in FIRST_ROWS if name in message.frames]
    if first:
        return tuple(first)
    names = sorted({*message.frames} - {*options.kept_names})
    rows = {name: frame_rows(message, name) for name in names}
    return tuple(name for name, values in rows.items() if values.dtype.kind != "i")


def _frames(message: Message, name: str) -> NDArray[Any]:
    if name not in message.frames:
        raise MessageError(
            f"no list of frames is called {name!r}; there are {listed(message.frames) or 'none'}"
        )
    return frame_rows(message, name)


def _feature_rows(message: Message, name: str, options: SourceOptions) -> NDArray[Any]:
    """Rows in a feature of an Example: one for each text, or for each ``--n-features`` numbers."""
    values = message.features.get(name)
    if values is None:
        raise MessageError(f"no feature is called {name!r}; there are {listed(message.features)}")
    if values.texts is not None:
        widths = {len(text) for text in values.texts}
        if len(widths) > 1:
            raise MessageError(f"the texts of {name!r} have different lengths")
        raw = np.frombuffer(b"".join(values.texts), np.uint8)
        return raw.reshape(len(values.texts), widths.pop() if widths else 0)
    numbers = np.empty(0, np.float32) if values.numbers is None else values.numbers
    width = options.n_features or len(numbers)
    if width and len(numbers) % width:
        raise MessageError(
            f"{name!r} has {len(numbers):,} values, not a multiple of --n-features {width}"
        )
    return numbers.reshape(-1, width) if width else np.empty((0, 0), np.float32)


# Scan.


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Walk over the lengths of all records; names of labels need a pass over the messages."""
    check_names(paths[0], options.kept_names)
    layouts = [(path, layout_of(path, options)) for path in paths]
    known = [(path, layout) for path, layout in layouts if layout is not None]
    if not known:
        raise SourceError(f"{paths[0]} has no rows at all")
    first_path, first = known[0]
    for path, layout in known[1:]:
        if layout != first:
            raise SourceError(
                f"{path} has other features than {first_path}: {_described(layout)} instead of "
                f"{_described(first)}; convert files of one kind at a time"
            )
    spans = tuple(span for path in paths for span in _spans(path, options.span_bytes))
    labelling = _labelling(paths, first, options)
    counts = [span.n_bags for span in spans]
    return Scan(
        spans=spans,
        n_features=sum(first.widths),
        dtype="uint8" if first.dtype == "uint8" else "float32",
        label_names=labelling.names,
        n_labels=labelling.n_labels,
        bag_ids=first.id is not None,
        kept=first.kept,
        n_bags=None if None in counts else sum(count or 0 for count in counts),
        notes=_notes(first),
    )


def _described(layout: MessageLayout) -> str:
    pairs = zip(layout.rows, layout.widths, strict=True)
    rows = " + ".join(f"{name} ({width:,} {layout.dtype})" for name, width in pairs)
    return f"{rows}, kept: {listed([*map(str, layout.kept)])}" if layout.kept else rows


def _notes(layout: MessageLayout) -> tuple[str, ...]:
    kind = "SequenceExample" if layout.is_sequence else "Example"
    return (
        f"a record a bag: tf.train.{kind}, rows from {_described(layout)}",
        f"ids from {layout.id!r}" if layout.id else "bags have no ids",
        f"labels from {layout.labels!r}" if layout.labels else "no labels",
    )


def _spans(path: Path, span_bytes: int) -> Iterator[Span]:
    """Cut a plain file between records; a compressed file is one span."""
    size = path.stat().st_size
    if compression_of(path) is not None:
        yield Span(str(path), 0, 1 << 62, size)
        return
    start = n_bags = 0
    for offset, _ in _lengths(path):
        if offset - start >= span_bytes:
            yield Span(str(path), start, offset, offset - start, n_bags)
            start, n_bags = offset, 0
        n_bags += 1
    if n_bags:
        yield Span(str(path), start, size, size - start, n_bags)


def _labelling(paths: Sequence[Path], layout: MessageLayout, options: SourceOptions) -> Labelling:
    """The labels: names of the option, or numbers, or the names in all messages."""
    if layout.labels is not None:
        name = layout.labels
        refuse_marks(
            (labels for path in paths for labels in _labels_of_all(path, name, options)),
            options,
            str(paths[0]),
        )
    if layout.labels is None or options.labels is not None:
        return Labelling(None if layout.labels is None else options.labels)
    labels: set[str | int] = set()
    for path in paths:
        held = HeldBytes(str(path), "names of labels", options.limits)
        for of_bag in _labels_of_all(path, layout.labels, options):
            if of_bag and isinstance(of_bag[0], int):
                # Numbers keep their places, so no pass is needed to number them.
                return Labelling(None)
            new = {*of_bag} - labels
            held.add(sum(ID_BYTES + len(str(label)) for label in new))
            labels |= new
    return labelling_of(labels, options, str(paths[0]))


def _labels_of_all(path: Path, name: str, options: SourceOptions) -> Iterator[list[str | int]]:
    for offset, message in _messages(path, 0, 1 << 62, options.limits):
        try:
            yield _labels_in(message, name)
        except MessageError as error:
            raise _no_message(path, offset, error) from None


# Bags.


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags of a span."""
    layout = layout_of(source_path(span.path), options)
    if layout is None:
        # All bags of the file are empty; the writer refuses or drops them.
        layout = MessageLayout(True, (), (), scan.dtype, None, None)
    labelling = labelling_in(scan)
    bags = _Gathered(layout, scan)
    for offset, message in _messages(span.path, span.start, span.stop, options.limits):
        try:
            bags.add(message, labelling, options)
        except MessageError as error:
            raise SourceError(f"{where(span.path, offset)}: {error}") from None
        except SourceError as error:
            raise SourceError(f"{where(span.path, offset)}{error}") from None
        if bags.n_bytes >= BLOCK_BYTES:
            yield bags.block()
            bags = _Gathered(layout, scan)
    if bags.sizes:
        yield bags.block()


class _Gathered:
    """Bags of a block; their rows are views of the records until the block is made."""

    def __init__(self, layout: MessageLayout, scan: Scan) -> None:
        self._layout, self._scan = layout, scan
        self._parts: list[list[NDArray[Any]]] = []
        self._labels: list[list[int]] = []
        self._ids: list[str] = []
        self._kept = {column: [column.empty()] for column in scan.kept}
        self.sizes: list[int] = []
        self.n_bytes = 0

    def add(self, message: Message, labelling: Labelling, options: SourceOptions) -> None:
        """Add the bag of a message; raises MessageError, or SourceError about a label."""
        layout = self._layout
        if layout.rows and not layout.is_sequence:
            frames = [name for name, (start, stop) in message.frames.items() if start < stop]
            if frames:
                raise MessageError(
                    f"it has frames ({listed(frames)}), but the first record has none; convert "
                    "records with frames and records without them apart"
                )
        rows: list[NDArray[Any]] = []
        for name, width in zip(layout.rows, layout.widths, strict=True):
            part = (
                _frames(message, name)
                if layout.is_sequence
                else _feature_rows(message, name, options)
            )
            if len(part) and (part.shape[1] != width or part.dtype.name != layout.dtype):
                raise MessageError(
                    f"{name!r} has rows of {part.shape[1]:,} values of type {part.dtype}, expected "
                    f"{width:,} of {layout.dtype}"
                )
            if rows and len(part) != len(rows[0]):
                raise MessageError(
                    f"{name!r} has {len(part):,} rows, but {layout.rows[0]!r} has {len(rows[0]):,}"
                )
            rows.append(part)
        if layout.labels is not None:
            self._labels.append(labelling.indices(_labels_in(message, layout.labels), ""))
        else:
            self._labels.append([])
        if layout.id is not None:
            self._ids.append(_id_in(message, layout.id))
        n_rows = len(rows[0]) if rows else 0
        for column, values in self._kept.items():
            kept = _kept_in(message, column.name, n_rows) if n_rows else column.empty()
            values.append(_kept_as(kept, column))
            self.n_bytes += column_bytes(values[-1])
        self._parts.append(rows)
        self.sizes.append(len(rows[0]) if rows else 0)
        # A view keeps the whole record in memory.
        self.n_bytes += max(len(message.content), sum(part.nbytes for part in rows))

    def block(self) -> BagBlock:
        """Join the bags."""
        scan = self._scan
        offsets = from_sizes(self.sizes)
        # Integers stay integers, so that the writer refuses those that float32 cannot hold.
        joined = np.empty((int(offsets[-1]), scan.n_features), self._layout.dtype)
        ends = from_sizes(self._layout.widths)
        for bag, parts in enumerate(self._parts):
            if self.sizes[bag]:
                rows = joined[offsets[bag] : offsets[bag + 1]]
                for column, part in enumerate(parts):
                    rows[:, ends[column] : ends[column + 1]] = part
        flat = [label for bag_labels in self._labels for label in bag_labels]
        return BagBlock(
            offsets,
            joined,
            from_sizes([len(bag_labels) for bag_labels in self._labels]),
            np.array(flat, np.int32),
            bag_ids=self._ids if scan.bag_ids else None,
            kept={column.name: np.concatenate(values) for column, values in self._kept.items()},
        )


def _feature(message: Message, name: str) -> FeatureValues:
    values = message.features.get(name)
    if values is None:
        raise MessageError(
            f"no feature is called {name!r}, as the first record has; there are "
            f"{listed(message.features) or 'none'}"
        )
    return values


def _labels_in(message: Message, name: str) -> list[str | int]:
    values = _feature(message, name)
    if values.texts is not None:
        return [as_text(text) for text in values.texts]
    if values.numbers is None:
        return []
    if values.numbers.dtype.kind != "i":
        raise MessageError(f"{name!r} has floats, expected names or numbers of labels")
    return [int(label) for label in values.numbers]


def _id_in(message: Message, name: str) -> str:
    values = _feature(message, name)
    if values.texts is not None and len(values.texts) == 1 and values.texts[0]:
        return as_text(values.texts[0])
    if values.numbers is not None and values.numbers.dtype.kind == "i" and len(values) == 1:
        return str(int(values.numbers[0]))
    raise MessageError(f"{name!r} has {len(values)} values, expected one id that is not empty")


READER = Reader(
    name="tfrecord",
    suffixes=SUFFIXES,
    line="TFRecord: tf.train.SequenceExample (a bag of frames) or Example, a record a bag",
    tells=tells,
    scan=scan,
    read=read,
    streams=True,
    may_lack_labels=True,
)
