"""Bytes of tf.train.Example, SequenceExample and TFRecord, made by hand from the public schema."""

import struct

import numpy as np
from crc32c import crc32c


def varint(value):
    out, value = bytearray(), value & (2**64 - 1)
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, content):
    """A field of bytes: its tag, its length, its bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values, *, packed=True):
    """A Feature: texts are its field 1, floats its field 2, integers its field 3."""
    if isinstance(values, bytes):
        values = [values]
    if len(values) and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, text) for text in values))
    values = np.asarray(values)
    if values.dtype.kind == "f":
        parts = [struct.pack("<f", value) for value in values.tolist()]
        tag = b"\x0d"
        number = 2
    else:
        parts = [varint(value) for value in values.tolist()]
        tag, number = b"\x08", 3
    if packed:
        return field(number, field(1, b"".join(parts)))
    return field(number, b"".join(tag + part for part in parts))


def entry(name, value):
    """An entry of a map: its key is field 1, its value field 2."""
    return field(1, field(1, name.encode()) + field(2, value))


def features(values, **how):
    return b"".join(entry(name, feature(value, **how)) for name, value in values.items())


def example(values, **how):
    return field(1, features(values, **how))


def sequence(context, frames, **how):
    lists = b"".join(
        entry(name, b"".join(field(1, feature(frame, **how)) for frame in rows))
        for name, rows in frames.items()
    )
    return field(1, features(context)) + field(2, lists)


def masked(content):
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(content):
    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def write(path, messages):
    path.write_bytes(b"".join(map(record, messages)))
    return path
