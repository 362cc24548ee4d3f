"""Sizes in the footer of Parquet files: as pyarrow reads them, or a refusal."""

import re

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from streammiml_tools.readers.arrow import READER
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.parquet_footer import BadFooter, row_groups
from tests.tools.readers.arrow_files import LONG, VARIED, reasons, write
from tests.tools.readers.foreign import read_all


def test_arrow__row_groups_are_those_that_pyarrow_finds(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table(VARIED), 3)
    meta = pq.ParquetFile(path).metadata
    for i, group in enumerate(row_groups(str(path))):
        of_pyarrow = meta.row_group(i)
        assert (group.n_rows, group.in_memory) == (of_pyarrow.num_rows, of_pyarrow.total_byte_size)
        for j, chunk in enumerate(group.chunks):
            column = of_pyarrow.column(j)
            assert chunk.n_values == column.num_values
            assert chunk.is_text == (column.physical_type == "BYTE_ARRAY")
            assert chunk.on_disk == column.total_compressed_size
            assert chunk.in_memory == column.total_uncompressed_size
    assert (i, j) == (1, 4)


def varint(number):
    """A number of Thrift's compact protocol, after the head of a field that follows another."""
    number, out = 2 * number, [0x16]
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize(
    ("n_bytes", "n_rows", "message"),
    [
        (
            1 << 37,
            4,
            r"row group 0: [\d.]+ .*B would become 128 GiB in memory; write the file again in sm",
        ),
        (
            1 << 10,
            5,
            r", row group 0, is damaged or cut short \(4 records, 5 declared\); fetch it ",
        ),
    ],
)
def test_arrow__sizes_of_a_row_group_that_are_not_true_are_refused(
    tmp_path, n_bytes, n_rows, message
):
    path = write(tmp_path / "a.parquet", pa.table(LONG))
    (group,) = row_groups(str(path))
    raw = path.read_bytes()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    old = varint(group.in_memory) + varint(group.n_rows)
    assert raw.count(old, start) == 1
    footer = raw[start:-8].replace(old, varint(n_bytes) + varint(n_rows))
    path.write_bytes(raw[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(SourceError, match=message):
        read_all(READER, path)


def test_arrow__a_bad_footer_says_what_is_wrong(tmp_path):
    path = tmp_path / "a.parquet"
    raw = write(path, pa.table(VARIED), 2).read_bytes()
    footer = raw[-8 - int.from_bytes(raw[-8:-4], "little") : -8]

    def read(new):
        path.write_bytes(b"PAR1" + new + len(new).to_bytes(4, "little") + b"PAR1")
        row_groups(str(path))

    texts = reasons(footer, read, BadFooter, (0, 0x0C1C193C))
    crafted = (
        b"\x1c" * 100,
        b"\x19" * 100,
        b"\x19\xf5\xff\xff\x01",
        b"\x16" + b"\xff" * 12,
        b"\x1e",
    )
    for new in (*crafted, b"\x49\x1c\x36\x01\0\0"):
        with pytest.raises(BadFooter) as caught:
            read(new)
        texts.add(re.sub(r"-?\d[\d,]*", "#", str(caught.value)))
    assert texts == {
        "its footer is cut",
        "its footer is nested too deep",
        "its footer has a list of # items",
        "its footer has a negative size, or lacks one",
        "its footer has a number of more than # bits",
        "its footer has an unexpected type #",
        "its footer has an unknown type #",
        "its footer lacks sizes of a column",
    }
    path.write_bytes(b"PAR1")
    with pytest.raises(BadFooter, match=r"^the end of the file is missing$"):
        row_groups(str(path))
    path.write_bytes(b"PAR1\xff\xff\0\0PAR1")
    with pytest.raises(BadFooter, match=r"^its footer of 65,535 bytes is longer than the file$"):
        row_groups(str(path))
