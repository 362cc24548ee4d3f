"""Mutations of bytes: flipped bits, deleted and copied ranges, edited lengths and numbers.

Everything is chosen by the generator that is passed in, so equal seeds give equal mutants.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

MAX_BYTES = 1 << 17
"""Longer mutants are cut: long inputs find nothing that short ones do not, and take longer."""
MAX_STEPS = 4
NUMBERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40)
NUMBERS += (2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
WORDS = (b"0", b"-1", b"1e400", b"nan", b"inf", b"-0.0", b"1e-400", b"9" * 5000, b"\xff", b"\0")
WORDS += (b'"', b"'", b",", b";", b":", b"\n", b"\r\n", b"\t", b" ", b"\\", b"\xed\xa0\x80")
WORDS += ("\u2028".encode(), "\ufeff".encode(), "é".encode(), b"\x1b[2J", b"../../x", b"NaN")
NESTS = (b"[", b"{", b'{"a":', b"(", b"[[", b"x=[", b"a.")
NEAR = 1 << 12
NUMBER_TEXT = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

WORD_TEXT = re.compile(rb"\w+|[^\w\s]|\s")


def mutate(content: bytes, rng: Random, donors: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Change content in one to ``MAX_STEPS`` places; ``donors`` are other files of the corpus."""
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, MAX_STEPS))):
        structured = _structured(content, rng) if rng.random() < 0.5 else None
        if structured is not None:
            content = structured
        else:
            content = rng.choice(STEPS)(bytearray(content), rng, donors, words)
    return content[:MAX_BYTES]


def _structured(content: bytes, rng: Random) -> bytes | None:
    """Change a JSON document, a line of JSON or an npy array as such; None for other content."""
    if content[:6] == b"\x93NUMPY":
        return _mutated_array(content, rng)
    if content[:1] in (b"{", b"["):
        return _mutated_json(content, rng)
    return None


# Values of JSON and arrays.

VALUES: tuple[Any, ...] = (None, True, False, "", "x", "\ud800", "\x1b[2J", -1, 0, 1, 1.5, 2**31)
VALUES += (2**63, 2**64, 10**400, float("nan"), float("inf"), 1e308, [], {}, [[]], [None], "9" * 99)
VALUES += ({"": None}, [1, 2], ["a", "a"], "../../x", "a\nb", -(2**63), 0.1, "1", 5e-324)


def _mutated_json(content: bytes, rng: Random) -> bytes | None:
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    for text, rest in ((content, None), (lines[at], at)):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        new = json.dumps(_changed_json(value, rng)).encode()
        if rest is None:
            return new
        return b"\n".join([*lines[:at], new, *lines[at + 1 :]])
    return None


def _changed_json(value: Any, rng: Random) -> Any:
    """Change one place in a tree."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        what = rng.random()
        if what < 0.1:
            return {name: item for name, item in value.items() if name != key}
        if what < 0.2:
            return {**value, f"{key}{rng.choice(('x', '', ' '))}": value[rng.choice(list(value))]}
        return {**value, key: _changed_json(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        what = rng.random()
        if what < 0.1:
            return [*value[:at], *value[at + 1 :]]
        if what < 0.2:
            return [*value[:at], value[at], *value[at:]]
        return [*value[:at], _changed_json(value[at], rng), *value[at + 1 :]]
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 7, -value, value, 1 << 20))
    if isinstance(value, str) and value and rng.random() < 0.3:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "\0", "/", "0", "é", '"')) + value[at + 1 :]
    return rng.choice(VALUES)


def _mutated_array(content: bytes, rng: Random) -> bytes | None:
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception:
        return None
    out = io.BytesIO()
    np.save(out, _changed_array(array, rng), allow_pickle=False)
    return out.getvalue()


def _changed_array(array: np.ndarray, rng: Random) -> np.ndarray:
    what = rng.randrange(7)
    if what == 0 and array.ndim and len(array):
        return array[: rng.randrange(len(array))]
    if what == 1:
        return array.reshape(rng.choice(((-1,), (1, *array.shape), (*array.shape, 1))))
    if what == 2 and array.dtype.kind in "fiub":
        kinds = ("f4", "f8", "f2", "i8", "i4", "u1", "u8", "?", ">f4", "c8", "i2")
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(kinds))
    if what == 3 and array.ndim:
        return np.concatenate([array, array[: rng.randrange(len(array) + 1)]])
    if what == 4 and array.ndim > 1:
        return array.T
    flat = array.copy().reshape(-1)
    if flat.size and array.dtype.kind in "fiu":
        at = rng.randrange(flat.size)
        if array.dtype.kind == "f":
            flat[at] = rng.choice((np.nan, np.inf, -1, 0, 6e4, 1e-30))
        else:
            info = np.iinfo(array.dtype)
            flat[at] = rng.choice((info.min, info.max, 0, 1, int(flat[at]) // 2))
    return flat.reshape(array.shape)


# Messages of protobuf.


def mutate_message(
    content: bytes, rng: Random, donors: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    """Change one place of a protobuf message; lengths around the place match again."""
    fields = _message_fields(content)
    if fields is None or not fields or rng.random() < 0.1:
        return mutate(content, rng, donors, words)
    at, what = rng.randrange(len(fields)), rng.random()
    number, kind, value = fields[at]
    if what < 0.06:
        del fields[at]
    elif what < 0.12:
        fields.insert(rng.randrange(len(fields) + 1), fields[at])
    elif what < 0.16:
        fields[at] = (rng.choice((0, 1, 2, 3, 4, 2**29 - 1)), kind, value)
    elif kind == 2:
        fields[at] = (number, kind, mutate_message(value, rng, donors, words))
    else:
        fields[at] = (number, kind, mutate(value, rng, donors, words))
    return b"".join(map(_field_bytes, fields))


def _message_fields(content: bytes) -> list[tuple[int, int, bytes]] | None:
    """Number, kind and value of every field; None if these bytes are no message."""
    fields, at = [], 0
    try:
        while at < len(content):
            tag, at = _varint(content, at)
            number, kind = tag >> 3, tag & 7
            if kind == 0:
                _, stop = _varint(content, at)
            elif kind == 2:
                length, at = _varint(content, at)
                stop = at + length
            elif kind in (1, 5):
                stop = at + {1: 8, 5: 4}[kind]
            else:
                return None
            if number == 0 or stop > len(content):
                return None
            fields.append((number, kind, content[at:stop]))
            at = stop
    except IndexError:
        return None
    return fields


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field_bytes(field: tuple[int, int, bytes]) -> bytes:
    number, kind, value = field
    tag = _varint_bytes(number << 3 | kind)
    return tag + (_varint_bytes(len(value)) if kind == 2 else b"") + value


# Steps on plain bytes.

Step = Callable[[bytearray, Random, Sequence[bytes], Sequence[bytes]], bytes]


def _place(content: bytearray, rng: Random) -> int:
    """A position; early ones are as likely as all others, since headers stand there."""
    reach = len(content) if rng.random() < 0.6 else min(len(content), 256)
    return rng.randrange(reach + 1)


def _range(content: bytearray, rng: Random) -> tuple[int, int]:
    start = _place(content, rng)
    length = rng.choice((1, 1, 2, 4, 8, 16, 64, 256, len(content) // 2))
    return start, min(len(content), start + length)


def _matches(pattern: re.Pattern[bytes], content: bytearray, rng: Random) -> list[re.Match[bytes]]:
    """Matches near some place of the content."""
    start = _place(content, rng) if len(content) > NEAR else 0
    return list(pattern.finditer(bytes(content), start, start + NEAR))


def flip_bit(content: bytearray, rng: Random, *_: Any) -> bytes:
    if content:
        at = min(_place(content, rng), len(content) - 1)
        content[at] ^= 1 << rng.randrange(8)
    return bytes(content)


def set_byte(content: bytearray, rng: Random, *_: Any) -> bytes:
    if content:
        at = min(_place(content, rng), len(content) - 1)
        content[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(content)


def delete_range(content: bytearray, rng: Random, *_: Any) -> bytes:
    start, stop = _range(content, rng)
    return bytes(content[:start] + content[stop:])


def copy_range(content: bytearray, rng: Random, *_: Any) -> bytes:
    start, stop = _range(content, rng)
    at, times = _place(content, rng), rng.choice((1, 1, 1, 2, 8))
    return bytes(content[:at] + content[start:stop] * times + content[at:])


def truncate(content: bytearray, rng: Random, *_: Any) -> bytes:
    return bytes(content[: _place(content, rng)])


def insert_word(
    content: bytearray, rng: Random, _: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    start, stop = _range(content, rng)
    stop = stop if rng.random() < 0.3 else start
    word = rng.choice((*words, *WORDS))
    return bytes(content[:start] + word + content[stop:])


def nest(content: bytearray, rng: Random, *_: Any) -> bytes:
    """Repeat an opening bracket, thousands of times."""
    at = _place(content, rng)
    opened = rng.choice(NESTS) * rng.choice((3, 200, 3000, 30000))
    return bytes(content[:at] + opened + content[at:])


def replace_word(
    content: bytearray, rng: Random, _: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    """Replace a word, or a sign between words, by another one of the corpus."""
    matches = _matches(WORD_TEXT, content, rng)
    if not matches:
        return bytes(content)
    match = rng.choice(matches)
    known = words if match[0][:1].isalnum() and words else (*WORDS, b"[", b"]", b"{", b"}", b"=")
    return bytes(content[: match.start()] + rng.choice(known) + content[match.end() :])


def edit_integer(content: bytearray, rng: Random, *_: Any) -> bytes:
    """Overwrite a binary integer, often a length, by another number or its neighbour."""
    size, order = rng.choice((1, 2, 4, 4, 8, 8)), rng.choice("<<>")
    if len(content) < size:
        return bytes(content)
    at = min(_place(content, rng), len(content) - size)
    code = order + {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
    (value,) = struct.unpack_from(code, content, at)
    values = (*NUMBERS, value + 1, value - 1, value * 2, len(content), len(content) - at)
    struct.pack_into(code, content, at, rng.choice(values) % 256**size)
    return bytes(content)


def edit_number(content: bytearray, rng: Random, *_: Any) -> bytes:
    """Replace a number that is written as text."""
    matches = _matches(NUMBER_TEXT, content, rng)
    if not matches:
        return bytes(content)
    match = rng.choice(matches)
    numbers = [str(number).encode() for number in (*NUMBERS, -1, -(2**63))]
    new = rng.choice((*numbers, *WORDS[:8]))
    return bytes(content[: match.start()] + new + content[match.end() :])


def splice(content: bytearray, rng: Random, donors: Sequence[bytes], _: Sequence[bytes]) -> bytes:
    """Continue with the end of another file, or put a piece of it in."""
    donor = bytearray(rng.choice(donors)) if donors else content
    start, stop = _range(donor, rng)
    if rng.random() < 0.5:
        return bytes(content[: _place(content, rng)] + donor[start:])
    at = _place(content, rng)
    return bytes(content[:at] + donor[start:stop] + content[at:])


def swap_lines(content: bytearray, rng: Random, *_: Any) -> bytes:
    """Exchange two lines, or drop or repeat one."""
    lines = bytes(content).split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(3)
    if what == 0:
        lines[one], lines[other] = lines[other], lines[one]
    elif what == 1:
        del lines[one]
    else:
        lines.insert(other, lines[one])
    return b"\n".join(lines)


STEPS: tuple[Step, ...] = (
    flip_bit,
    flip_bit,
    set_byte,
    delete_range,
    copy_range,
    truncate,
    insert_word,
    insert_word,
    nest,
    edit_integer,
    edit_integer,
    edit_integer,
    edit_number,
    edit_number,
    replace_word,
    replace_word,
    splice,
    swap_lines,
    swap_lines,
)
