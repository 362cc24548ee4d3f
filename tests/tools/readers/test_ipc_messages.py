"""Sizes in Arrow IPC files and streams: as pyarrow writes them, or a refusal."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.feather
from hypothesis import given
from hypothesis import strategies as st

from streammiml_tools.readers.ipc_messages import BadMessage, file_messages, stream_messages
from tests.tools.readers.arrow_files import NESTED, VARIED, reasons, write


@given(
    sizes=st.lists(st.integers(0, 50), max_size=5),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    is_file=st.booleans(),
)
def test_arrow__messages_tell_their_records_and_bytes(sizes, compression, is_file):
    coded = pa.array(["a", "b"]).dictionary_encode()
    batches = []
    for size in sizes:
        texts = pa.DictionaryArray.from_arrays(
            np.arange(size, dtype=np.int32) % 2, coded.dictionary
        )
        batches.append(pa.record_batch({"x": np.arange(size) % 3, "y": texts}))
    schema = pa.schema({"x": pa.int64(), "y": coded.type})
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with new(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    raw = sink.getvalue().to_pybytes()
    read = file_messages if is_file else stream_messages
    messages = [message for message in read(io.BytesIO(raw), len(raw)) if message.is_records]
    assert [message.n_records for message in messages] == sizes
    # Eight bytes and four a record, and what aligns buffers.
    assert all(0 <= message.in_memory - 12 * message.n_records <= 256 for message in messages)


@given(st.binary(max_size=200), st.integers(0, 10**6), st.booleans())
def test_arrow__messages_of_anything_end_in_a_refusal(noise, at, is_file):
    sink = pa.BufferOutputStream()
    table = pa.table(NESTED)
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema) as writer:
        writer.write_table(table)
    raw = bytearray(sink.getvalue().to_pybytes())
    raw[at % len(raw) : at % len(raw) + len(noise)] = noise
    read = file_messages if is_file else stream_messages
    try:
        messages = list(read(io.BytesIO(raw), len(raw)))
    except BadMessage:
        return
    assert all(message.on_disk <= len(raw) for message in messages)


def test_arrow__a_bad_message_says_what_is_wrong(tmp_path):
    texts = set()
    for suffix, read in ((".feather", file_messages), (".arrow", stream_messages)):
        raw = write(tmp_path / f"a{suffix}", pa.table(VARIED), 2).read_bytes()
        numbers = (0, 1, 4, 8, 64, 200, 2**20, 2**31 - 1, -1, -8)
        texts |= reasons(
            raw, lambda new, read=read: list(read(io.BytesIO(new), len(new))), BadMessage, numbers
        )
    assert texts == {
        "its footer is missing or cut",
        "its footer lists a batch outside of the file",
        "its footer lists something that is not a batch",
        "a batch has a longer description than the footer declares",
        "a batch has a description of # bytes",
        "a batch of # bytes begins at byte # of #",
        "a buffer is outside of its batch of # bytes",
        "a buffer declares # bytes",
        "a description is cut, or refers to positions outside of itself",
        "a description lacks its batch",
    }


def test_arrow__messages_of_the_format_before_version_1_are_read():
    """Only messages: pyarrow 24 does not read all of what it writes so."""
    table, version = pa.table(VARIED), pa.ipc.MetadataVersion.V4
    messages = []
    for legacy in (False, True):
        options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy, metadata_version=version)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        raw = sink.getvalue().to_pybytes()
        messages.append(list(file_messages(io.BytesIO(raw), len(raw))))
    assert messages[0] == messages[1]
    assert [message.n_records for message in messages[0]] == [3, 4]
