"""The header of a TFRecord: the length of the record, and the checksum of that length."""

from __future__ import annotations

import struct

from crc32c import crc32c

HEADER = struct.Struct("<QI")
"""Length of a record, and the checksum of the length."""
MASK = 0xA282EAD8


def masked(crc: int) -> int:
    """The checksum as it is stored, so that a checksum of checksums stays a good one."""
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def is_header(head: bytes) -> bool:
    """Whether the first bytes are a length with its checksum; by chance once in four billion."""
    return len(head) >= HEADER.size and masked(crc32c(head[:8])) == HEADER.unpack_from(head)[1]
