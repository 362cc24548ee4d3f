"""Headers of records: a length with its checksum, and nothing else."""

import gzip
import struct

from hypothesis import given
from hypothesis import strategies as st

from streammiml_tools.readers.record_header import is_header
from tests.tools.readers import tf_messages as tf


@given(length=st.integers(0, 2**64 - 1), more=st.binary(max_size=5), bit=st.integers(0, 95))
def test_header__is_a_length_with_its_checksum(length, more, bit):
    head = struct.pack("<Q", length)
    head += tf.masked(head)
    assert is_header(head + more)
    assert not is_header(head[:-1])
    flipped = bytearray(head)
    flipped[bit // 8] ^= 1 << bit % 8
    assert not is_header(bytes(flipped))


@given(content=st.binary(max_size=40))
def test_compressed_files__are_no_headers(content):
    assert not is_header(gzip.compress(content))
