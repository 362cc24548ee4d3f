"""The text of the protein sets: rows and labels in two files."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.protein import READER
from tests.stores import assert_same, scratch
from tests.tools.readers.foreign import DATA, counts_of, marks_of, read_all

FOLDER = DATA / "readers/protein"
PAIR = (FOLDER / "instances.txt", FOLDER / "labels.txt")


def pair(folder, rows, labels, names=("rows.txt", "labels.txt")):
    paths = [folder / name for name in names]
    for path, content in zip(paths, (rows, labels), strict=True):
        path.write_text(content)
    return paths


@pytest.mark.parametrize("paths", [PAIR, PAIR[::-1]])
def test_protein__the_smallest_files_in_any_order(paths):
    scan, block = read_all(READER, paths)
    bags = [np.array(bag, np.float32) for bag in ([[0.125, 1], [0, 2.5]], [[3, 4]])]
    assert_same(block, BagBlock.from_bags(bags, [[], [0, 2]]))
    assert block.bag_ids == ["P1", "Q2"]
    assert (scan.n_bags, scan.n_rows, scan.n_labels) == (2, 3, 3)
    assert scan.notes == (
        f"{PAIR[0]}: rows; {PAIR[1]}: labels",
        f"{PAIR[0]}, line 6: a '>' without id ends the file, and is skipped",
    )
    assert read_all(READER, paths, labels=("a", "b", "c"))[0].label_names == ("a", "b", "c")


def test_protein__compressed_files(tmp_path):
    paths = [tmp_path / f"{path.name}.gz" for path in PAIR]
    for path, source in zip(paths, PAIR, strict=True):
        path.write_bytes(gzip.compress(source.read_bytes()))
    assert_same(read_all(READER, paths, span_bytes=1)[1], read_all(READER, PAIR)[1])


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    span_bytes=st.sampled_from([1, 30, 1 << 20]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_protein__text_of_any_bags_is_read_back(sizes, seed, span_bytes, end):
    rng = np.random.default_rng(seed)
    bags = [rng.normal(size=(size, 2)).astype(np.float32) for size in sizes]
    marks = rng.integers(0, 2, (len(bags), 3)) * 2 - 1
    rows, labels = [], []
    for i, (bag, bag_marks) in enumerate(zip(bags, marks.tolist(), strict=True)):
        rows += [f">p{i}", *("\t".join(map(repr, row)) for row in bag.tolist())]
        labels += [f">p{i}", "\t".join(map(str, bag_marks))]
    with scratch() as folder:
        paths = pair(folder, end.join([*rows, ""]), end.join(labels))
        scan, block = read_all(READER, paths, span_bytes=span_bytes)
    want = BagBlock.from_bags(
        bags, [np.flatnonzero(bag_marks == 1).tolist() for bag_marks in marks]
    )
    assert_same(block, want)
    assert sum(span.n_bags for span in scan.spans) == len(bags)


ROWS, LABELS = ">a\n0.5\t1\n>b\n2\t3\n", ">a\n1\t-1\n>b\n-1\t1\n"
BROKEN = {
    "ragged": (ROWS + "4\n", LABELS, r"rows\.txt, line 5: bag 'b': a row of 1 values, expected 2"),
    "NaN": (ROWS + "4\tnan\n", LABELS, r"rows\.txt, line 5: bag 'b': value 2 is nan; only finite"),
    "large": (ROWS + "4\t1e99\n", LABELS, r"line 5: bag 'b': value 2 is 1e\+99, too large"),
    "cut in a number": (ROWS[:-1] + "e\n", LABELS, r"rows\.txt, line 4: bag 'b': value 2 is '3e'"),
    "no id": (">a\n1\t2\n>\n2\t3\n", LABELS, r"rows\.txt, line 3: '>' without an id; every bag"),
    "bare within": (">a\n1\t2\n>\n>b\n2\t3\n", LABELS, r"rows\.txt, line 3: '>' without an id"),
    "row first": ("1.5\t2\n" + ROWS, LABELS, r"rows\.txt, line 1: a row before the first '>' line"),
    "id twice": (ROWS + ">a\n1\t2\n", LABELS, r"rows\.txt, line 5: 'a' occurs twice; ids must"),
    "no labels": (ROWS + ">c\n1\t2\n", LABELS, r"rows\.txt, line 5: 'c' has no labels in "),
    "no rows of one": (
        ROWS,
        LABELS + ">c\n1\t1\n",
        r"labels\.txt: 1 ids have no rows in \S+rows\.txt, the first is 'c'; is the "
        r"file of rows cut",
    ),
    "no rows": (">a\n>b\n", LABELS, r"rows\.txt has no rows; is it cut short\?"),
    "labels twice": (ROWS, LABELS + ">a\n1\t1\n", r"labels\.txt, line 5: 'a' occurs twice"),
    "labels cut": (ROWS, ">a\n1\t-1\n>b", r"labels\.txt, line 3: 'b' has 0 lines of labels"),
    "labels ragged": (
        ROWS,
        ">a\n1\t-1\n>b\n1\n",
        r"labels\.txt, line 4: labels of 'b': a row of 1 values",
    ),
    "wrong mark": (
        ROWS,
        ">a\n1\t-1\n>b\n1\t3\n",
        r"labels\.txt, from 'a' on, bag 1: the mark of label 1",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_protein__broken_files_are_refused(tmp_path, case):
    rows, labels, match = BROKEN[case]
    with pytest.raises(SourceError, match=match):
        read_all(READER, pair(tmp_path, rows, labels))


def test_protein__which_file_holds_labels_must_be_told(tmp_path):
    with pytest.raises(
        SourceError, match=r"it is not clear which file has the labels; rename that file"
    ):
        read_all(READER, pair(tmp_path, LABELS, LABELS, ("one.txt", "two.txt")))
    with pytest.raises(SourceError, match=r"two files of '>ID' records; give both, .*\(got 1\)"):
        read_all(READER, PAIR[:1])


def test_tells__ids_then_numbers(tmp_path):
    assert READER.tells(tmp_path / "a.txt", b">P1\r\n0.5\t1\r\n")
    assert not READER.tells(tmp_path / "a.fasta", b">P1\nMKV\n")
    assert not READER.tells(tmp_path / "a.txt", b"1,2\n")


def test_protein__real_files(real_data):
    folder = real_data / "protein_azotobacter"
    paths = [folder / "labels.txt", folder / "instances.txt"]
    scan, block = read_all(READER, paths, span_bytes=100_000)
    assert counts_of(scan, block) == (1251, 407, 340, 4.0, 216)
    assert len(scan.spans) > 10
    assert "a '>' without id ends the file" in scan.notes[1]
    lines = [line for line in paths[1].read_text().split("\n") if line and line[0] != ">"]
    want = np.array([line.split() for line in lines], float).astype(np.float32)
    assert np.array_equal(block.rows, want)
    marks = paths[0].read_text().split("\n")[1::2]
    assert np.array_equal(
        marks_of(block, 340), np.array([line.split() for line in marks if line], int) == 1
    )


def test_protein__a_last_row_without_end_may_be_cut(tmp_path):
    paths = pair(tmp_path, ">a\n0.25\t0.5\n>b\n0.25\t0.1", ">a\n1\t-1\n>b\n-1\t1\n")
    with pytest.raises(SourceError, match=r"rows.txt, line 4: the last line has no line break, so"):
        read_all(READER, paths)
