"""Writing one array: chunks, files and records; test_verified_array.py reads them back."""

import numpy as np
from crc32c import crc32c

from streammiml.bags.array_writer import ArrayWriter
from streammiml.bags.layout import RECORD


def writer_of(folder, closed):
    return ArrayWriter(
        folder,
        "values",
        "int32",
        width=1,
        chunk=4,
        shard_chunks=2,
        piece=2,
        key=lambda number: f"file-{number}",
        close=lambda *file: closed.append(file),
    )


def written(folder, values):
    closed = []
    writer = writer_of(folder, closed)
    writer.append(values)
    writer.finish()
    return writer, closed


def test_files__hold_the_values_and_are_reported_when_complete(tmp_path):
    values = np.arange(18, dtype=np.int32)
    writer, closed = written(tmp_path, values)
    assert [key for key, *_ in closed] == ["file-0", "file-1", "file-2"]
    raw = b"".join(path.read_bytes() for _, path, _, _ in closed)
    assert raw == values.tobytes()
    for _, path, size, crc in closed:
        assert (size, crc) == (path.stat().st_size, crc32c(path.read_bytes()))
    assert (writer.length, writer.entry("raw", []).length) == (18, 18)


def test_records__one_for_each_piece(tmp_path):
    values = np.arange(18, dtype=np.int32)
    writer, _ = written(tmp_path, values)
    records = np.frombuffer(writer.take_records(), RECORD)
    assert records["first"].tolist() == list(range(0, 18, 2))
    assert (records["elements"] == 2).all()
    assert records["file"].tolist() == [0] * 4 + [1] * 4 + [2]
    assert writer.take_records() == b""


def test_restore__truncates_bytes_written_later(tmp_path):
    values, closed = np.arange(7, dtype=np.int32), []
    killed = writer_of(tmp_path, [])
    killed.append(values[:5])
    state = killed.state()
    killed.append(values[:2])
    resumed = writer_of(tmp_path, closed)
    resumed.restore(*state)
    resumed.append(values[5:])
    resumed.finish()
    assert (tmp_path / "file-0").read_bytes() == values.tobytes()
    assert [size for _, _, size, _ in closed] == [28]
