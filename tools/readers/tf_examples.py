"""``tf.train.Example`` and ``tf.train.SequenceExample``: messages to arrays, without TensorFlow.

Both are messages of protobuf. An Example has ``Features``: a map from names to lists of bytes,
floats or integers. A SequenceExample has ``Features`` too (its context), and ``FeatureLists``: a
map from names to lists of such lists, one for each frame.

Every length is checked against the end of the message that contains it, so no size is taken on
trust. Frames of equal length have equal headers; they become rows by a view of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.kept_columns import as_texts

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields, by the lowest three bits of their tags."""
MAX_VARINT = 10
MAX_TEXTS = 1 << 20
"""Upper limit of the texts in one list, each of which is a Python object."""
MAX_FEATURES = 1 << 16
"""Upper limit of the features of one message."""
MAX_INTEGER_BYTES = 4 << 20
"""Upper limit of the bytes of a list of integers, which needs about 30 times as many in memory."""


class MessageError(Exception):
    """A message that is not what it should be, with the reason."""


class Field(NamedTuple):
    """A field of a message: its number, its kind, and the range of its bytes."""

    number: int
    kind: int
    start: int
    stop: int


class FeatureValues(NamedTuple):
    """Values of one feature: texts, or an array of float32 or int64."""

    texts: list[bytes] | None
    numbers: NDArray[Any] | None

    def __len__(self) -> int:
        values = self.texts if self.numbers is None else self.numbers
        return 0 if values is None else len(values)


class FrameRange(NamedTuple):
    """A list of frames that is not yet read: the range of its bytes in the message."""

    start: int
    stop: int


class Message(NamedTuple):
    """An Example or SequenceExample: features by name, and lists of frames by name."""

    content: bytes
    features: dict[str, FeatureValues]
    frames: dict[str, FrameRange]


def _varint(content: bytes, at: int, stop: int) -> tuple[int, int]:
    """A number of variable length, and the position behind it."""
    value = shift = 0
    for place in range(at, min(stop, at + MAX_VARINT)):
        byte = content[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise MessageError("a number is cut short, or has more than ten bytes")


def fields_of(content: bytes, start: int, stop: int) -> Iterator[Field]:
    """Yield the fields of the message in a range of bytes."""
    at = start
    while at < stop:
        tag, at = _varint(content, at, stop)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            length, at = _varint(content, at, stop)
        elif kind == VARINT:
            begin = at
            _, at = _varint(content, at, stop)
            yield Field(number, kind, begin, at)
            continue
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise MessageError(f"field {number} is of kind {kind}, which no Example has")
        if number == 0 or length > stop - at:
            raise MessageError(
                f"field {number} has {length:,} bytes, more than the {stop - at:,} that are left"
            )
        yield Field(number, kind, at, at + length)
        at += length


def parse_message(content: bytes) -> Message:
    """Read the features of a message, and find its lists of frames; raises MessageError."""
    features: dict[str, FeatureValues] = {}
    frames: dict[str, FrameRange] = {}
    for part in fields_of(content, 0, len(content)):
        if part.number not in (1, 2) or part.kind != BYTES:
            continue
        for entry in fields_of(content, part.start, part.stop):
            if entry.number != 1 or entry.kind != BYTES:
                continue
            name, start, stop = _entry(content, entry)
            if name in (features if part.number == 1 else frames):
                raise MessageError(f"{name!r} occurs twice")
            if len(features) + len(frames) == MAX_FEATURES:
                raise MessageError(f"more than {MAX_FEATURES:,} features")
            if part.number == 1:
                features[name] = feature_values(content, start, stop)
            else:
                frames[name] = FrameRange(start, stop)
    return Message(content, features, frames)


def _entry(content: bytes, entry: Field) -> tuple[str, int, int]:
    """Name and range of the value of an entry of a map."""
    name, start, stop = "", entry.start, entry.start
    for field in fields_of(content, entry.start, entry.stop):
        if field.number == 1 and field.kind == BYTES:
            name = as_text(content[field.start : field.stop])
        elif field.number == 2 and field.kind == BYTES:
            start, stop = field.start, field.stop
    return name, start, stop


def as_text(raw: bytes) -> str:
    """Decode a text; raises MessageError."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MessageError(f"{raw[:40]!r} is not UTF-8") from None


def feature_values(content: bytes, start: int, stop: int) -> FeatureValues:
    """Values of a ``Feature``, whose one field says which list it has."""
    values = FeatureValues(None, None)
    for field in fields_of(content, start, stop):
        if field.kind != BYTES or field.number not in (1, 2, 3):
            continue
        if field.number == 1:
            values = FeatureValues(_texts(content, field.start, field.stop), None)
        else:
            read = _floats if field.number == 2 else _integers
            values = FeatureValues(None, read(content, field.start, field.stop))
    return values


def _texts(content: bytes, start: int, stop: int) -> list[bytes]:
    parts = fields_of(content, start, stop)
    ranges = (part for part in parts if part.number == 1 and part.kind == BYTES)
    texts = [content[part.start : part.stop] for part in islice(ranges, MAX_TEXTS)]
    if next(ranges, None) is not None:
        raise MessageError(f"a list has more than {MAX_TEXTS:,} texts")
    return texts


def _floats(content: bytes, start: int, stop: int) -> NDArray[np.float32]:
    """A list of floats: packed, or each with its tag."""
    values = bytearray()
    for field in fields_of(content, start, stop):
        if field.number == 1 and field.kind in (BYTES, FIXED32):
            n_bytes = field.stop - field.start
            if n_bytes % 4:
                raise MessageError(f"a list of floats has {n_bytes:,} bytes, not a multiple of 4")
            if field.stop == stop and not values:
                return np.frombuffer(content, "<f4", n_bytes // 4, field.start)
            values += content[field.start : field.stop]
    return np.frombuffer(values, "<f4")


def _integers(content: bytes, start: int, stop: int) -> NDArray[np.int64]:
    """A list of integers: packed, or each with its tag."""
    if stop - start > MAX_INTEGER_BYTES:
        raise MessageError(
            f"a list of integers has {stop - start:,} bytes, more than {MAX_INTEGER_BYTES:,}"
        )
    parts = [
        _unpacked(np.frombuffer(content, np.uint8, field.stop - field.start, field.start))
        for field in fields_of(content, start, stop)
        if field.number == 1 and field.kind in (BYTES, VARINT)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _unpacked(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Integers of variable length, all at once."""
    if not len(raw):
        return np.empty(0, np.int64)
    if raw[-1] >= 0x80:
        raise MessageError("a list of integers is cut short")
    ends = np.flatnonzero(raw < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if sizes.max() > MAX_VARINT:
        raise MessageError("an integer has more than ten bytes")
    places = np.arange(len(raw)) - np.repeat(starts, sizes)
    bits = (raw & np.uint8(0x7F)).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def frame_rows(message: Message, name: str) -> NDArray[Any]:
    """Frames of a list as rows: uint8 where frames are one text each, otherwise numbers.

    Frames of different lengths raise MessageError.
    """
    content, (start, stop) = message.content, message.frames[name]
    if start == stop:
        return np.empty((0, 0), np.uint8)
    rows = _viewed_rows(content, start, stop)
    return _read_rows(content, start, stop, name) if rows is None else rows


def _viewed_rows(content: bytes, start: int, stop: int) -> NDArray[Any] | None:
    """Rows as a view of the bytes, if all frames have the header of the first; otherwise None.

    The header of a frame has three tags and three lengths: of the frame, of its list, and of the
    bytes or packed floats in that list. Equal headers mean that frames are laid out alike.
    """
    at, lengths, numbers = start, [], []
    for _ in range(3):
        tag, at = _varint(content, at, stop)
        if tag & 7 != BYTES:
            return None
        length, at = _varint(content, at, stop)
        if at + length > stop:
            return None
        lengths.append(at + length)
        numbers.append(tag >> 3)
    n_header, step = at - start, lengths[0] - start
    is_bytes = numbers == [1, 1, 1]
    if len(set(lengths)) > 1 or not (is_bytes or numbers == [1, 2, 1]) or (stop - start) % step:
        return None
    frames = np.frombuffer(content, np.uint8, stop - start, start).reshape(-1, step)
    if not (frames[:, :n_header] == frames[0, :n_header]).all():
        return None
    rows = frames[:, n_header:]
    if not rows.shape[1]:
        return None
    if is_bytes:
        return rows
    return np.ascontiguousarray(rows).view("<f4") if rows.shape[1] % 4 == 0 else None


def _read_rows(content: bytes, start: int, stop: int, name: str) -> NDArray[Any]:
    """Read rows frame by frame, into one buffer: a frame may have as few as seven bytes."""
    values = bytearray()
    first: NDArray[Any] | None = None
    n_rows = 0
    for field in fields_of(content, start, stop):
        if field.number != 1 or field.kind != BYTES:
            continue
        row = _one_row(feature_values(content, field.start, field.stop), name, n_rows)
        first = row if first is None else first
        if row.shape != first.shape or row.dtype != first.dtype or not len(row):
            raise MessageError(
                f"frame {n_rows} of {name!r} has {len(row)} values of type {row.dtype}, but the "
                f"first has {len(first)} of {first.dtype}"
            )
        values += row.tobytes()
        n_rows += 1
    if first is None:
        return np.empty((0, 0), np.uint8)
    return np.frombuffer(values, first.dtype).reshape(n_rows, -1)


def kept_frames(message: Message, name: str) -> NDArray[Any]:
    """Values of a list of frames to keep: an array of texts, or (frames, values) of numbers.

    Bytes are texts here, one for each frame; raises MessageError.
    """
    content, (start, stop) = message.content, message.frames[name]
    fields = fields_of(content, start, stop)
    frames = [field for field in islice(fields, MAX_TEXTS) if field.number == 1]
    if next(fields, None) is not None:
        raise MessageError(f"{name!r} has more than {MAX_TEXTS:,} frames")
    parts = [feature_values(content, frame.start, frame.stop) for frame in frames]
    if any(part.texts is not None for part in parts):
        return kept_values(FeatureValues([text for p in parts for text in p.texts or ()], None), 0)
    numbers = [part.numbers for part in parts if part.numbers is not None]
    kinds = {(part.dtype.name, len(part)) for part in numbers}
    if len(numbers) < len(parts) or len(kinds) > 1:
        raise MessageError(f"frames of {name!r} have different numbers of values")
    return np.stack(numbers) if numbers else np.empty((0, 1), np.float32)


def kept_values(values: FeatureValues, n_rows: int) -> NDArray[Any]:
    """Values of a feature to keep: texts, or numbers with as many for each of ``n_rows``.

    Raises MessageError.
    """
    if values.texts is not None:
        return as_texts([as_text(text) for text in values.texts])
    numbers = np.empty(0, np.float32) if values.numbers is None else values.numbers
    return numbers.reshape(n_rows, -1) if n_rows and len(numbers) % n_rows == 0 else numbers


def _one_row(values: FeatureValues, name: str, frame: int) -> NDArray[Any]:
    if values.numbers is not None:
        return values.numbers
    if values.texts is None or len(values.texts) != 1:
        raise MessageError(
            f"frame {frame} of {name!r} has {len(values)} values, expected one text of bytes, or "
            "numbers"
        )
    return np.frombuffer(values.texts[0], np.uint8)
