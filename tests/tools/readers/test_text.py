"""Streams, lines of spans, and numbers."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import SparseRows
from streammiml_tools.convert import convert
from streammiml_tools.readers import text
from streammiml_tools.readers.base import SourceError
from tests.stores import scratch

WRITE = {
    "": lambda raw: raw,
    ".gz": gzip.compress,
    ".zst": lambda raw: pa.Codec("zstd").compress(raw, asbytes=True),
}
contents = st.lists(st.binary(max_size=6).map(lambda raw: raw.replace(b"\n", b"."))).map(b"\n".join)


@given(
    content=contents,
    span_bytes=st.integers(1, 9),
    block_bytes=st.integers(1, 9),
    start=st.integers(0, 4),
)
def test_line_blocks__spans_join_to_every_line_once(content, span_bytes, block_bytes, start):
    with scratch() as folder:
        path = folder / "a.txt"
        path.write_bytes(b"x" * start + content)
        spans = text.byte_spans(path, span_bytes, start)
        pairs = [
            (offset, line)
            for i, span in enumerate(spans)
            for lines in text.line_blocks(
                path, span.start, span.stop, aligned=i == 0, block_bytes=block_bytes
            )
            for offset, line in lines.with_offsets()
        ]
    if content.startswith(text.BOM) and start == 0:
        return
    ends = content.split(b"\n")
    want = ends[:-1] if not ends[-1] else ends
    assert [line for _, line in pairs] == [line.removesuffix(b"\r") for line in want]
    places = np.cumsum([start, *(len(line) + 1 for line in want)])[: len(want)]
    assert [offset for offset, _ in pairs] == places.tolist()


@pytest.mark.parametrize("suffix", WRITE)
def test_line_blocks__compressed_files_read_as_plain_ones(tmp_path, suffix):
    raw = b"".join(b"line %d\r\n" % i for i in range(5000))
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(WRITE[suffix](raw))
    assert b"".join(lines.content for lines in text.line_blocks(path)) == raw
    assert text.head(path, 6) == b"line 0"
    assert text.bare_suffix(path) == ".txt"
    late = [line for lines in text.line_blocks(path, 8, 20) for _, line in lines.with_offsets()]
    assert late == [b"line 1", b"line 2"]


def test_line_blocks__a_compressed_file_may_lack_its_suffix(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(b"one\n"))
    assert [lines.content for lines in text.line_blocks(path)] == [b"one\n"]


def test_line_blocks__a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(text.BOM + b"one\ntwo\n")
    (lines,) = text.line_blocks(path)
    assert list(lines.with_offsets()) == [(3, b"one"), (7, b"two")]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_open_bytes__a_file_cut_short_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    raw = WRITE[suffix](np.random.default_rng(0).bytes(9999))
    path.write_bytes(raw[:5000])
    with pytest.raises(SourceError, match=r"a\.txt\S+ is damaged or cut short .*; fetch it again"):
        list(text.line_blocks(path))


def test_open_bytes__what_is_absent_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"a\.txt cannot be read: No such file"):
        text.head(tmp_path / "a.txt")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_line_blocks__a_line_that_is_a_bomb_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(WRITE[suffix](b"one\n" + bytes(80 << 20)))
    with pytest.raises(SourceError, match=r"line 2: the line is longer than 64 MiB"):
        list(text.line_blocks(path))


def test_line_blocks__a_bomb_would_be_held_were_it_not_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(9 << 20)))
    monkeypatch.setattr(text, "BOMB_LINE", 1 << 20)
    with pytest.raises(SourceError, match="line 1: the line is longer than 1 MiB"):
        list(text.line_blocks(path))
    monkeypatch.setattr(text, "BOMB_RATIO", 10_000)
    assert sum(len(lines.content) for lines in text.line_blocks(path)) == 9 << 20


def test_as_text__bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xff\n")
    with pytest.raises(SourceError, match=r"line 2: byte 0xff is not UTF-8; convert the file"):
        text.as_text(b"\xff", path, 4)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    rows=st.integers(1, 5).flatmap(
        lambda d: st.lists(st.lists(finite, min_size=d, max_size=d), min_size=1, max_size=5)
    ),
    space=st.sampled_from(["", " "]),
    plus=st.booleans(),
    end=st.sampled_from(["", "\n"]),
)
def test_parse_rows__numbers_are_those_of_python(rows, space, plus, end):
    def numeral(value):
        return f"+{value!r}" if plus and value >= 0 and str(value)[0] != "-" else repr(value)

    raw = "\n".join(f",{space}".join(map(numeral, row)) for row in rows) + end
    got = text.parse_rows(raw.encode(), len(rows[0]))
    assert got.tobytes() == np.array(rows).tobytes()


@pytest.mark.parametrize(
    ("rows", "row", "reason"),
    [
        ("1,2\n3", 1, "a row of 1 values, expected 2"),
        ("1,2\n\n3,4", 1, "a row of 0 values, expected 2"),
        ("1,2,3", 0, "a row of 3 values, expected 2"),
        ("1,2\n3,x4", 1, "value 2 is 'x4', expected a number"),
        ("1,", 0, "value 2 is '', expected a number"),
        ("1_0,2", 0, "value 1 is '1_0', expected a number"),
        ("1,2\n3,NaN", 1, "value 2 is nan; only finite numbers can be stored"),
        ("1,-1e999", 0, "value 2 is -inf; only finite numbers can be stored"),
    ],
)
def test_parse_rows__the_first_wrong_value_is_named(rows, row, reason):
    with pytest.raises(text.RowError) as error:
        text.parse_rows(rows.encode(), 2)
    assert (error.value.row, error.value.reason) == (row, reason)


def test_narrowed__what_float32_cannot_hold_is_named():
    assert text.narrowed(np.array([[0.1]])).tolist() == [[float(np.float32(0.1))]]
    with pytest.raises(text.RowError, match=r"value 2 is -1e\+300, too large for float32"):
        text.narrowed(np.array([[1.0, -1e300]]))


LARGEST = {
    "csv": "bag,f1,f2,label_a\nx,{0},1,1\n",
    "quoted.csv": 'bag,f1,f2,label_a\n"x",{0},1,1\n',
    "jsonl": '{{"id": "x", "instances": [[{0}, 1]], "labels": [0]}}\n',
    "sparse.jsonl": '{{"instances": [{{"indices": [0, 1], "values": [{0}, 1]}}], "labels": [0]}}\n',
    "svmlight": "0 qid:1 1:{0} 2:1\n",
    "arff": "@relation 'x -C 1'\n@attribute y {{0,1}}\n@attribute a numeric\n@attribute b numeric\n"
    "@data\n1,{0},1\n",
}


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("number", ["3.4028235e+38", "3.4028234663852886e+38", "-3.4028235E38"])
def test_largest_float32__is_read_as_text_writes_it(tmp_path, name, number):
    path = tmp_path / f"a.{name}"
    path.write_text(LARGEST[name].format(number))
    store = convert(path, tmp_path / "a.zarr").store
    rows = store.read(0, 1).rows
    first = rows.values[0] if isinstance(rows, SparseRows) else rows[0, 0]
    assert first == np.copysign(np.finfo(np.float32).max, float(number))


@pytest.mark.parametrize("name", LARGEST)
def test_larger_than_float32__is_refused(tmp_path, name):
    path = tmp_path / f"a.{name}"
    path.write_text(LARGEST[name].format("3.4028236e+38"))
    with pytest.raises(SourceError, match=r"too large for float32|within float32"):
        convert(path, tmp_path / "a.zarr")
