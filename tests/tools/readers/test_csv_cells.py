"""Lines of cells: spans, numbers, marks and lists of labels, memory and damage."""

import gzip
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.delimited import READER
from tests.stores import assert_same, scratch
from tests.tools.readers.csv_files import HERE, assert_reads, labelled_bags, long_text, read_text
from tests.tools.readers.foreign import read_all
from tests.traced import traced


@given(
    corpus=labelled_bags(),
    separator=st.sampled_from([",", "\t", "|"]),
    end=st.sampled_from(["\n", "\r\n"]),
    as_list=st.booleans(),
    blank=st.booleans(),
    compressed=st.sampled_from(["", ".gz", ".zst"]),
    span_bytes=st.sampled_from([1, 7, 40, 1 << 20]),
)
def test_csv__spans_cut_anywhere_join_to_the_bags_written(
    corpus, separator, end, as_list, blank, compressed, span_bytes
):
    n_labels, block = corpus
    layout = {"separator": separator, "end": end, "as_list": as_list, "blank": blank}
    raw = long_text(block, n_labels, **layout).encode()
    with scratch() as folder:
        path = folder / f"a.csv{compressed}"
        if compressed:
            kind = {".gz": "gzip", ".zst": "zstd"}[compressed]
            raw = pa.compress(raw, codec=kind, asbytes=True)
        path.write_bytes(raw)
        scan, got = read_all(READER, path, separator=separator, span_bytes=span_bytes)
    assert_reads(got, block)
    if not compressed and span_bytes == 1:
        assert len(scan.spans) > len(block)


@given(corpus=labelled_bags(), cut=st.floats(0, 1), span_bytes=st.sampled_from([5, 1 << 20]))
def test_csv__a_file_cut_anywhere_is_refused_or_loses_whole_lines(corpus, cut, span_bytes):
    """Never a wrong value: what is read of a cut file is what stands in its whole lines."""
    n_labels, block = corpus
    text = long_text(block, n_labels, separator=",", end="\n", as_list=False, blank=False)
    with scratch() as folder:
        (folder / "a.csv").write_bytes(text.encode()[: int(cut * len(text.encode()))])
        try:
            _, got = read_all(READER, folder / "a.csv", span_bytes=span_bytes)
        except SourceError:
            return
    assert_same(replace(got, label_indices=got.label_indices), _first_rows(block, got.n_rows))


def _first_rows(block, n_rows):
    ends = np.minimum(block.bag_offsets, n_rows)
    kept = int((np.diff(ends) > 0).sum())
    offsets = block.label_offsets[: kept + 1]
    return BagBlock(
        ends[: kept + 1],
        block.rows[:n_rows],
        offsets,
        block.label_indices[: offsets[-1]],
        block.row_labels[:n_rows],
    )


def test_csv__numbers_written_otherwise_are_read_one_by_one(tmp_path):
    _, block = read_text(tmp_path, 'bag,f1,f2,label_a\na,+1, 2 ,1\n"b,c","3",1E-2,0\n')
    np.testing.assert_array_equal(block.rows, np.float32([[1, 2], [3, 0.01]]))
    assert block.bag_ids == ["a", "b,c"]


def test_csv__minus_one_is_a_mark_too_and_options_say_which_columns(tmp_path):
    content = "x,name,y,dog,cat\n1,p,2,-1,1\n3,q,4,1,1\n"
    scan, block = read_text(
        tmp_path, content, bag_column="name", label_columns=("cat", "d*"), feature_columns=("?",)
    )
    assert scan.label_names == ("cat", "dog")
    assert block.label_offsets.tolist() == [0, 1, 3]
    assert block.rows.tolist() == [[1, 2], [3, 4]]


def test_csv__holds_a_block_whatever_the_size_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("bag," + ",".join(f"f{i}" for i in range(50)) + ",label_a\n")
        line = ",".join(["0.12345678"] * 50) + ",1\n"
        file.writelines(f"b{i // 3},{line}" for i in range(100_000))
    options = SourceOptions()
    scan = READER.scan([path], options)
    with traced() as memory:
        blocks = (block for span in scan.spans for block in READER.read(span, scan, options))
        n_rows = sum(block.n_rows for block in blocks)
    assert n_rows == 100_000
    assert path.stat().st_size > 50 << 20
    assert memory.peak < 24 << 20


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ragged",
            r", line 3: a line of 3 columns, expected 4; is it cut short, or is a separator",
        ),
        (
            "cut",
            r", line 3: the last line has no line break, so its last value may be cut sh",
        ),
        (
            "nan",
            r", line 3: column 'f1' is nan; only finite numbers within float32 can be stored;",
        ),
        (
            "empty-cell",
            r", line 3: column 'f2' is empty, expected a number; correct it, or name the",
        ),
        (
            "label",
            r", line 3: label column 'label_a' is 2, expected 0 or 1; name the label columns",
        ),
        ("returning", r", line 4: bag 'a' returns after other bags; --group joins the rows of"),
    ],
)
def test_csv__broken_files_are_refused_with_file_and_line(name, message):
    path = HERE / f"broken-{name}.csv"
    with pytest.raises(SourceError, match=re.escape(str(path)) + message):
        read_all(READER, path)


def test_csv__text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"bag,f1,label_a\nx,1,1\n\xff\xfe,2,0\n")
    with pytest.raises(SourceError, match=r"a.csv, line 3: byte 0xff is not UTF-8; convert the"):
        read_all(READER, tmp_path / "a.csv")


def test_csv__one_enormous_line_in_a_small_file_is_refused(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"bag,f1,label_a\nx,")
        for _ in range(100):
            file.write(b"0" * (1 << 20))
    assert path.stat().st_size < 200_000
    message = r"line 2: the line is longer than 25 MiB, the limit"
    with traced() as memory, pytest.raises(SourceError, match=message):
        read_all(READER, path)
    assert memory.peak < 160 << 20


def test_csv__a_compressed_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "a.csv.gz"
    raw = gzip.compress(b"bag,f1,label_a\n" + b"x,1,1\n" * 1000)
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(SourceError, match=r"a.csv.gz is damaged or cut short"):
        read_all(READER, path)


def test_csv__labels_cut_within_a_bag_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("bag,f1,labels\na,1,cat;dog\na,2,cat")
    with pytest.raises(SourceError, match=r"a.csv, line 3: bag 'a' has other labels here"):
        read_all(READER, path)
