"""CSV and TSV: the long form, that of mimllearning, and three files."""

import pytest

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.delimited import READER
from tests.tools.readers.csv_files import HERE, assert_reads, bags, read_text
from tests.tools.readers.foreign import read_all

# --- the smallest files ------------------------------------------------------------------------


def test_csv__long_form_with_a_column_a_label():
    scan, block = read_all(READER, HERE / "long-marks.csv")
    want = BagBlock.from_bags(
        bags([[[1, 2.5], [-3, 5.36e-4]], [[0.1, 2]], [[7, 8]]]),
        [[0], [0, 1], []],
        row_labels=[[0, -1], [1], [-1]],
        bag_ids=["a", "b", "c"],
    )
    assert_reads(block, want)
    assert scan.label_names == ("sea", "sky")
    assert scan.feature_names == ("red", "green")
    assert (scan.row_labels, scan.bag_ids, scan.n_labels) == (True, True, 2)
    assert scan.notes == (
        "bags by column 'bag'",
        "2 features, from column 'red' on",
        "labels from 2 columns of 0 and 1",
        "labels of rows from column 'row_label'",
    )


def test_tsv__long_form_with_a_list_of_labels():
    scan, block = read_all(READER, HERE / "long-list.tsv")
    want = BagBlock.from_bags(
        bags([[[1, 2], [3, 4]], [[5, 6]]]), [[0, 1], []], bag_ids=["img 1", "img 2"]
    )
    assert_reads(block, want)
    assert scan.label_names == ("sea", "sky")


@pytest.mark.parametrize("header", ["bag,f1,f2,sea,sky\n", ""])
def test_csv__mimllearning_form_with_and_without_names(header, tmp_path):
    content = (HERE / "mimllearning.csv").read_text().replace("bag,f1,f2,sea,sky\n", header)
    scan, block = read_text(tmp_path, content)
    want = BagBlock.from_bags(bags([[[1, 2], [3, 4]], [[5, 6]]]), [[1], [0]], bag_ids=["1", "2"])
    assert_reads(block, want)
    assert scan.label_names == (("sea", "sky") if header else None)
    assert scan.n_labels == 2


def test_csv__several_files_follow_each_other(tmp_path):
    for name, bag in (("a", "x"), ("b", "y")):
        (tmp_path / f"{name}.csv").write_text(f"bag,f1,labels\n{bag},1,{name}\n")
    scan, block = read_all(READER, [tmp_path / "b.csv", tmp_path / "a.csv"])
    assert block.bag_ids == ["y", "x"]
    assert scan.label_names == ("a", "b")


def test_csv__labels_given_by_the_user_order_columns_and_lists():
    options = {"labels": ("sky", "fog", "sea")}
    scan, block = read_all(READER, HERE / "long-marks.csv", **options)
    assert scan.label_names == ("sky", "fog", "sea")
    assert block.label_indices.tolist() == [2, 0, 2]
    assert block.row_labels.tolist() == [2, -1, 0, -1]
    _, block = read_all(READER, HERE / "long-list.tsv", **options)
    assert block.label_indices.tolist() == [0, 2]


def test_csv__without_names_columns_are_called_by_number(tmp_path):
    content = "7,0.5,1\n7,1.5,1\n9,2.5,0\n"
    scan, block = read_text(tmp_path, content, bag_column="1", label_columns=("3",))
    assert block.bag_ids == ["7", "9"]
    assert (scan.n_labels, scan.label_names, scan.feature_names) == (1, None, None)


def test_csv__columns_that_are_no_numbers_are_left_out_and_told(tmp_path):
    scan, block = read_text(tmp_path, "bag,f1,author,label_a\nx,1,me,1\n")
    assert block.rows.tolist() == [[1]]
    assert scan.notes[-1] == "left out: columns author"


def test_csv__a_mark_in_the_last_column_may_lack_the_end_of_its_line(tmp_path):
    _, block = read_text(tmp_path, "bag,f1,label_a\nx,1,1\ny,2,0")
    assert block.bag_ids == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "head", "is_csv"),
    [
        ("a.csv", b"whatever", True),
        ("a.tsv.gz", b"whatever", True),
        ("a.txt", b"bag_id,f1\n1,2\n", True),
        ("a.txt", b"3\n1,2\n", True),
        ("a.txt", b">ID\n1\t2\n", False),
        ("a.txt", b"3,7 qid:12 5:0.3\n", False),
        ("a.txt", b"just words\n", False),
        ("a.json", b"a,b\n", False),
    ],
)
def test_csv__is_told_by_suffix_and_first_line(tmp_path, name, head, is_csv):
    assert READER.tells(tmp_path / name, head) == is_csv


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, r"a.csv is empty$"),
        ("bag,f1,label_a\n", {}, r"a.csv has no line of data, only the names of columns$"),
        ("bag,f1,f1,label_a\nx,1,2,1\n", {}, r"line 1: two columns are called 'f1'; rename one$"),
        ("bag,f1,label_a\nx,inf,1\n", {}, r"line 2: column 'f1' is inf; only finite numbers"),
        ("bag,f1,label_a\nx,1e39,1\n", {}, r"line 2: column 'f1' is 1e39; only finite numbers"),
        ("bag,f1,label_a\nx,1_0,1\ny,1,1\n", {}, r"line 2: column 'f1' is '1_0', expected a numb"),
        ("bag,f1,label_a\n\nx,1,1\n\nx,2,0\n", {}, r"line 5: bag 'x' has other labels here than "),
        ("bag,f1,labels\nx,1,a\nx,2,b\n", {}, r"line 3: bag 'x' has other labels here than in it"),
        ("bag,f1,labels\nx,1,a;a\n", {}, r"line 2: label 'a' occurs twice; remove one$"),
        (
            "bag,f1,labels\nx,1,a\ny,1,b\n",
            {"labels": ("a",)},
            r"line 3: label 'b' is not known; known: a; add it to --labels, or let",
        ),
        (
            "bag,f1,label_a\nx,1,1\n",
            {"labels": ("b",)},
            r"a.csv: label 'a' is not known; known: b; add it to --labels, or let",
        ),
        (
            "bag,f1,labels,row_label\nx,1,a,a\ny,1,a,c\n",
            {"labels": ("a",)},
            r"line 3: label 'c' is not known; known: a; add it to --labels, or let",
        ),
        ("bag,f1,label_a\nx,1,1\n,1,1\n", {}, r"line 3: the bag's id is empty$"),
        ('bag,f1,label_a\n"x\ny",1,1\n', {}, r"line 2: a quote is not closed on its line; a cell"),
        (
            "f1,label_a\n1,1\n",
            {},
            r"which column names the bag of a row\? give --bag-column; the columns are",
        ),
        ("1,2\n3,4\n", {}, r"give --bag-column \(columns are called by their number, from 1\)"),
        (
            "bag,id,f1,labels\na,b,1,2\n",
            {},
            r"columns 'bag' and 'id' may both name the bag; give --bag",
        ),
        (
            "bag,id,f1,labels\na,3,1,2\n",
            {"bag_column": "bag"},
            r"is column 'id' a feature\? name the features by --feature-columns$",
        ),
        ("bag,f1\na,1\n", {}, r"which columns hold labels\? name them by --label-columns \(label"),
        ("bag,f1,label,class\na,1,1,1\n", {}, r"columns 'label' and 'class' may both hold labels;"),
        ("bag,f1,label,label_1\na,1,1,1\n", {}, r"columns 'label' and 'label_1' may both hold lab"),
        (
            "bag,labels\na,1\n",
            {},
            r"a.csv has no column of numbers for features; name the features by",
        ),
        (
            "bag,f1,labels\na,1,1\n",
            {"label_columns": ("topic*",)},
            r"no column is called 'topic\*' \(--label-columns\); the columns are bag, f1, labels$",
        ),
        (
            "bag,f1,labels\na,1,1\n",
            {"feature_columns": ("f1", "labels")},
            r"column 'labels' is a feature and has another role too$",
        ),
        (
            "bag,f1,label_a,row_label,instance_label\na,1,1,1,1\n",
            {},
            r"columns 'row_label' and 'instance_label' may both label rows; give "
            r"--row-label-column",
        ),
        (
            "x1,1,0.5,3\ny,2,3,4\n",
            {},
            r"line 1: is x1, 1, 0.5, 3 a line of names or of data\? give",
        ),
        ("bag f1 label\na 1 1\n", {}, r"no known separator in the first line; give --separator"),
        ("bag|f1;label\na|1;1\n", {}, r"';' and '\|' both in the first line; give --separator"),
        ("bag,f1,label\na,1,1\n", {"separator": "::"}, r"--separator must be one character, got"),
        (
            "bag;f1;labels\na;1;b\n",
            {},
            r"';' is between columns and between labels; give --label-sep",
        ),
        ("9\n1,2,3,0,1\n", {}, r"line 1: 9 labels \(the first line\) do not fit into lines of 5 c"),
        ("1\nbag,f1,a\n", {}, r"a.csv has no line of data, only the names of columns$"),
        ("2\n1,2,3,0,1\n", {"labels": ("a",)}, r"2 label columns, but --labels gives 1 names$"),
    ],
)
def test_csv__what_is_wrong_or_ambiguous_is_refused_in_one_line(
    tmp_path, content, options, message
):
    with pytest.raises(SourceError, match=message) as caught:
        read_text(tmp_path, content, **options)
    assert "\n" not in str(caught.value)


def test_csv__files_of_different_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("bag,f1,label_a\nx,1,1\n")
    (tmp_path / "b.csv").write_text("bag,f2,label_a\nx,1,1\n")
    with pytest.raises(SourceError, match=r"b.csv has other columns than .*a.csv; convert files"):
        read_all(READER, [tmp_path / "a.csv", tmp_path / "b.csv"])


# --- what is no mistake, but could be one ---------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "cut"),
    [
        ("bag,f1,labels\na,1,cat\nb,2,dog", True),
        ("bag,labels,f1\na,cat,1\nb,dog,2.25", True),
        ("bag,f1,labels\na,1,10\nb,2,12", True),
        ('bag,f1,labels\na,1,cat\nb,2,"a ""dog"""', True),
        ('bag,f1,labels\na,1,cat\nb,2,"dog"', False),
        ("bag,f1,labels\na,1,cat\na,2,cat", False),
        ("bag,f1,label_a,label_b\na,1,1,0\nb,2,0,1", False),
    ],
)
def test_csv__a_last_line_without_end_is_taken_only_where_it_cannot_be_cut(tmp_path, last, cut):
    path = tmp_path / "my data.csv"
    path.write_text(last)
    if cut:
        says = r"my data.csv, line 3: the last line has no line break, .*: echo >> '.*my data.csv'$"
        with pytest.raises(SourceError, match=says):
            read_all(READER, path)
        path.write_text(last + "\n")
    _, block = read_all(READER, path)
    assert block.n_rows == 2


@pytest.mark.parametrize("listed", ["cat|dog", "1 7", '"cat,dog"'])
def test_csv__labels_that_look_like_several_are_asked_about(tmp_path, listed):
    path = tmp_path / "a.csv"
    path.write_text(f"bag,f1,labels\na,1,{listed}\nb,2,dog\n")
    with pytest.raises(SourceError, match=r"one label or several\? give the separator"):
        read_all(READER, path)
    scan, _ = read_all(READER, path, label_separator=";")
    assert len(scan.label_names) == 2


def test_csv__labels_by_number_in_one_file_and_by_name_in_another_are_refused(tmp_path):
    names, numbers = tmp_path / "names.csv", tmp_path / "numbers.csv"
    names.write_text("bag,f1,labels\na,1,cat\nb,2,dog\n")
    numbers.write_text("bag,f1,labels\nc,1,0\nd,2,1\n")
    with pytest.raises(SourceError, match=r"numbers.csv gives labels by number, other files by na"):
        read_all(READER, [names, numbers])
    with pytest.raises(
        SourceError, match=r"label 'cat' is not among the numbers 0; list all label"
    ):
        read_all(READER, [numbers, names])
    _, block = read_all(READER, [numbers, names], labels=("cat", "dog"))
    assert block.label_indices.tolist() == [0, 1, 0, 1]


def test_csv__lines_that_end_in_a_carriage_return_alone_are_told(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"bag,f1,labels\ra,1,cat\rb,2,dog\r")
    with pytest.raises(SourceError, match=r"a.csv has a carriage return alone at the end of its"):
        read_all(READER, path)
