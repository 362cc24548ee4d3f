"""Bags in two or three CSV files: features, bag labels, row labels."""

from dataclasses import replace

import pytest

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.delimited import READER
from tests.tools.readers.csv_files import TRIPLE, assert_reads, bags
from tests.tools.readers.foreign import read_all


def test_csv__three_files():
    scan, block = read_all(READER, TRIPLE)
    want = BagBlock.from_bags(
        bags([[[0.5, 1.5], [2.5, 3.5]], [[4.5, 5.5]]]),
        [[2, 4], []],
        row_labels=[[4, 2], [-1]],
        bag_ids=["1", "2"],
    )
    assert_reads(block, want)
    assert (scan.n_bags, scan.label_names, scan.feature_names) == (2, None, ("f1", "f2"))
    assert scan.holds_bytes > 0


def test_csv__three_files_in_any_order_two_do_and_a_header_may_be_shorter(tmp_path):
    assert_reads(read_all(READER, TRIPLE[::-1])[1], read_all(READER, TRIPLE)[1])
    features = tmp_path / "f.txt"
    features.write_text(TRIPLE[0].read_text().replace("bag_id,f1,f2", "bag_id,[2 features]"))
    scan, block = read_all(READER, [features, TRIPLE[1]])
    assert_reads(block, replace(read_all(READER, TRIPLE)[1], row_labels=None))
    assert scan.feature_names is None


def test_csv__labels_of_three_files_may_be_marked_under_names(tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("bag_id,label_a,label_b\n1,0,1\n2,1,1\n")
    scan, block = read_all(READER, [TRIPLE[0], labels])
    assert scan.label_names == ("label_a", "label_b")
    assert block.label_indices.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("which", "content", "message"),
    [
        (
            1,
            "bag_id,label\n1,4\n",
            r"labels.txt has no line of bag '2', which is in .*_features.txt",
        ),
        (
            1,
            "bag_id,label\n1,4\n2,4\n3,4\n",
            r"features.txt has no line of bag '3', which .*labels",
        ),
        (
            1,
            "bag_id,label\n1,4\n1,4\n",
            r"labels.txt, line 3: a second line of labels for bag '1'$",
        ),
        (2, "bag_id,label\n1,4\n2,4\n", r"inst.*.txt labels 1 rows of bag '1', which has 2$"),
        (
            2,
            "bag_id,label\n1,4,5\n",
            r"inst.*.txt, line 2: a line of 3 columns, expected 2: bag an",
        ),
        (
            2,
            "bag_id,label\n1,4",
            r"inst.*.txt, line 2: the last line has no line break, so its",
        ),
    ],
)
def test_csv__three_files_must_agree(tmp_path, which, content, message):
    paths = list(TRIPLE)
    paths[which] = tmp_path / TRIPLE[which].name
    paths[which].write_text(content)
    with pytest.raises(SourceError, match=message):
        read_all(READER, paths)


def test_csv__files_of_labels_must_say_what_they_label(tmp_path):
    paths = [TRIPLE[0], tmp_path / "one.txt", tmp_path / "two.txt"]
    for path in paths[1:]:
        path.write_text("bag_id,label\n1,4\n")
    with pytest.raises(
        SourceError, match=r"one.txt and .*two.txt labels bags, and which rows\? na"
    ):
        read_all(READER, paths)
