"""CSV and TSV: the long form, that of mimllearning, and three files."""

import csv
import gzip
import io
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.delimited import READER
from tests.stores import assert_same, scratch
from tests.tools.readers.foreign import DATA, read_all

HERE = DATA / "readers"
TRIPLE = [HERE / f"triple_{name}.txt" for name in ("features", "bag_labels", "instance_labels")]


def read_text(folder, content, name="a.csv", **options):
    path = folder / name
    path.write_text(content)
    return read_all(READER, path, **options)


def bags(values):
    return [np.array(rows, np.float32) for rows in values]


def assert_reads(got, want):
    assert_same(got, want)
    assert got.bag_ids == want.bag_ids


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


# --- every cut, every way to write ------------------------------------------------------------

IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4)
FINITE = {"allow_nan": False, "allow_infinity": False, "width": 32}


@st.composite
def labelled_bags(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    n_features, n_labels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    shape = (sum(sizes), n_features)
    labels = draw(
        st.lists(st.sets(st.integers(0, n_labels - 1)), min_size=len(sizes), max_size=len(sizes))
    )
    return n_labels, BagBlock(
        from_sizes(sizes),
        draw(hnp.arrays(np.float32, shape, elements=st.floats(**FINITE))),
        from_sizes([len(of) for of in labels]),
        np.array([label for of in labels for label in sorted(of)], np.int32),
        draw(hnp.arrays(np.int32, shape[0], elements=st.integers(-1, n_labels - 1))),
        draw(st.lists(IDS, min_size=len(sizes), max_size=len(sizes), unique=True)),
    )


def long_text(block, n_labels, *, separator, end, as_list, blank):
    out = io.StringIO()
    write = csv.writer(out, delimiter=separator, lineterminator=end).writerow
    features = [f"f{i}" for i in range(block.n_features)]
    marked = ["labels"] if as_list else [f"label_{i}" for i in range(n_labels)]
    write(["bag", *features, *marked, "row_label"])
    for bag, name in enumerate(block.bag_ids):
        labels = block.labels_of(bag).tolist()
        marks = [int(i in labels) for i in range(n_labels)]
        cells = [" ; ".join(map(str, labels))] if as_list else marks
        for row in range(*block.bag_offsets[bag : bag + 2]):
            write([name, *map(str, block.rows[row]), *cells, block.row_labels[row]])
            out.write(end * (blank and row % 2))
    return out.getvalue()


@given(
    made=labelled_bags(),
    separator=st.sampled_from([",", "\t", "|"]),
    end=st.sampled_from(["\n", "\r\n"]),
    as_list=st.booleans(),
    blank=st.booleans(),
    compressed=st.sampled_from(["", ".gz", ".zst"]),
    span_bytes=st.sampled_from([1, 7, 40, 1 << 20]),
)
def test_csv__spans_cut_anywhere_join_to_the_bags_written(
    made, separator, end, as_list, blank, compressed, span_bytes
):
    n_labels, block = made
    said = {"separator": separator, "end": end, "as_list": as_list, "blank": blank}
    raw = long_text(block, n_labels, **said).encode()
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


@given(made=labelled_bags(), cut=st.floats(0, 1), span_bytes=st.sampled_from([5, 1 << 20]))
def test_csv__a_file_cut_anywhere_is_refused_or_loses_whole_lines(made, cut, span_bytes):
    """Never a wrong value: what is read of a cut file is what stands in its whole lines."""
    n_labels, block = made
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


def test_csv__several_files_follow_each_other(tmp_path):
    for name, bag in (("a", "x"), ("b", "y")):
        (tmp_path / f"{name}.csv").write_text(f"bag,f1,labels\n{bag},1,{name}\n")
    scan, block = read_all(READER, [tmp_path / "b.csv", tmp_path / "a.csv"])
    assert block.bag_ids == ["y", "x"]
    assert scan.label_names == ("a", "b")


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


def test_csv__labels_given_by_the_user_order_columns_and_lists():
    said = {"labels": ("sky", "fog", "sea")}
    scan, block = read_all(READER, HERE / "long-marks.csv", **said)
    assert scan.label_names == ("sky", "fog", "sea")
    assert block.label_indices.tolist() == [2, 0, 2]
    assert block.row_labels.tolist() == [2, -1, 0, -1]
    _, block = read_all(READER, HERE / "long-list.tsv", **said)
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


def test_csv__holds_a_block_whatever_the_size_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("bag," + ",".join(f"f{i}" for i in range(50)) + ",label_a\n")
        line = ",".join(["0.12345678"] * 50) + ",1\n"
        file.writelines(f"b{i // 3},{line}" for i in range(100_000))
    options = SourceOptions()
    scan = READER.scan([path], options)
    tracemalloc.start()
    n_rows = sum(block.n_rows for span in scan.spans for block in READER.read(span, scan, options))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_rows == 100_000
    assert path.stat().st_size > 50 << 20
    assert peak < 24 << 20


@pytest.mark.parametrize(
    ("name", "head", "told"),
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
def test_csv__is_told_by_suffix_and_first_line(tmp_path, name, head, told):
    assert READER.tells(tmp_path / name, head) == told


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
            r", line 3: column 'f1' is nan; only finite numbers within float32 can be stored; mend",
        ),
        (
            "empty-cell",
            r", line 3: column 'f2' is empty, expected a number; mend it, or --feature-",
        ),
        (
            "label",
            r", line 3: label column 'label_a' is 2, expected 0 or 1; --label-columns says which",
        ),
        ("returning", r", line 4: bag 'a' returns after other bags; --group brings the rows of"),
    ],
)
def test_csv__broken_files_are_refused_with_file_and_line(name, message):
    path = HERE / f"broken-{name}.csv"
    with pytest.raises(SourceError, match=re.escape(str(path)) + message):
        read_all(READER, path)


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
        ("bag,f1,labels\nx,1,a;a\n", {}, r"line 2: label 'a' comes twice; remove one$"),
        (
            "bag,f1,labels\nx,1,a\ny,1,b\n",
            {"labels": ("a",)},
            r"line 3: label 'b' is not known; known: a; add it to --labels$",
        ),
        (
            "bag,f1,label_a\nx,1,1\n",
            {"labels": ("b",)},
            r"a.csv: label 'a' is not known; known: b; add it to --labels$",
        ),
        (
            "bag,f1,labels,row_label\nx,1,a,a\ny,1,a,c\n",
            {"labels": ("a",)},
            r"line 3: label 'c' is not known; known: a; add it to --labels$",
        ),
        ("bag,f1,label_a\nx,1,1\n,1,1\n", {}, r"line 3: the bag's id is empty$"),
        ('bag,f1,label_a\n"x\ny",1,1\n', {}, r"line 2: a quote is not closed on its line; cells"),
        (
            "f1,label_a\n1,1\n",
            {},
            r"which column names the bag of a row\? --bag-column says so; it",
        ),
        ("1,2\n3,4\n", {}, r"--bag-column says so \(columns are called by their number, from 1\)"),
        ("bag,id,f1,labels\na,b,1,2\n", {}, r"columns 'bag' and 'id' may both name the bag; --bag"),
        (
            "bag,id,f1,labels\na,3,1,2\n",
            {"bag_column": "bag"},
            r"is column 'id' a feature\? --feature-columns says which are$",
        ),
        ("bag,f1\na,1\n", {}, r"which columns hold labels\? --label-columns names them, once for"),
        ("bag,f1,label,class\na,1,1,1\n", {}, r"columns 'label' and 'class' may both hold labels;"),
        ("bag,f1,label,label_1\na,1,1,1\n", {}, r"columns 'label' and 'label_1' may both hold lab"),
        ("bag,labels\na,1\n", {}, r"a.csv has no column of numbers for features; --feature-colum"),
        (
            "bag,f1,labels\na,1,1\n",
            {"label_columns": ("topic*",)},
            r"no column is called 'topic\*' \(--label-columns\); it has bag, f1, labels$",
        ),
        (
            "bag,f1,labels\na,1,1\n",
            {"feature_columns": ("f1", "labels")},
            r"column 'labels' is a feature and something else too$",
        ),
        (
            "bag,f1,label_a,row_label,instance_label\na,1,1,1,1\n",
            {},
            r"columns 'row_label' and 'instance_label' may both label rows; --row-label-column",
        ),
        ("x1,1,0.5,3\ny,2,3,4\n", {}, r"line 1: is x1, 1, 0.5, 3 a line of names or of data\? say"),
        ("bag f1 label\na 1 1\n", {}, r"no known separator in the first line; --separator says"),
        ("bag|f1;label\na|1;1\n", {}, r"';' and '\|' both in the first line; --separator says"),
        ("bag,f1,label\na,1,1\n", {"separator": "::"}, r"--separator must be one character, got"),
        ("bag;f1;labels\na;1;b\n", {}, r"';' is between columns and between labels; --label-sep"),
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


def test_csv__text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"bag,f1,label_a\nx,1,1\n\xff\xfe,2,0\n")
    with pytest.raises(SourceError, match=r"a.csv, line 3: byte 0xff is not UTF-8; convert the"):
        read_all(READER, tmp_path / "a.csv")


def test_csv__files_of_different_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("bag,f1,label_a\nx,1,1\n")
    (tmp_path / "b.csv").write_text("bag,f2,label_a\nx,1,1\n")
    with pytest.raises(SourceError, match=r"b.csv has other columns than .*a.csv; convert files"):
        read_all(READER, [tmp_path / "a.csv", tmp_path / "b.csv"])


@pytest.mark.parametrize(
    ("which", "content", "message"),
    [
        (1, "bag_id,label\n1,4\n", r"labels.txt has no line of bag '2', which .*_features.txt has"),
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


def test_csv__one_enormous_line_in_a_small_file_is_refused(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"bag,f1,label_a\nx,")
        for _ in range(100):
            file.write(b"0" * (1 << 20))
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    with pytest.raises(SourceError, match=r"line 2: the line is longer than 64 MiB, more than is"):
        read_all(READER, path)
    assert tracemalloc.get_traced_memory()[1] < 160 << 20
    tracemalloc.stop()


def test_csv__a_compressed_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "a.csv.gz"
    raw = gzip.compress(b"bag,f1,label_a\n" + b"x,1,1\n" * 1000)
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(SourceError, match=r"a.csv.gz is damaged or cut short"):
        read_all(READER, path)


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


def test_csv__labels_cut_within_a_bag_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("bag,f1,labels\na,1,cat;dog\na,2,cat")
    with pytest.raises(SourceError, match=r"a.csv, line 3: bag 'a' has other labels here"):
        read_all(READER, path)


@pytest.mark.parametrize("listed", ["cat|dog", "1 7", '"cat,dog"'])
def test_csv__labels_that_look_like_several_are_asked_about(tmp_path, listed):
    path = tmp_path / "a.csv"
    path.write_text(f"bag,f1,labels\na,1,{listed}\nb,2,dog\n")
    with pytest.raises(SourceError, match=r"one label or several\? --label-separator says what"):
        read_all(READER, path)
    scan, _ = read_all(READER, path, label_separator=";")
    assert len(scan.label_names) == 2


def test_csv__labels_by_number_in_one_file_and_by_name_in_another_are_refused(tmp_path):
    names, numbers = tmp_path / "names.csv", tmp_path / "numbers.csv"
    names.write_text("bag,f1,labels\na,1,cat\nb,2,dog\n")
    numbers.write_text("bag,f1,labels\nc,1,0\nd,2,1\n")
    with pytest.raises(SourceError, match=r"numbers.csv gives labels by number, other files by na"):
        read_all(READER, [names, numbers])
    with pytest.raises(SourceError, match=r"label 'cat' is not among the numbers 0; --labels name"):
        read_all(READER, [numbers, names])
    _, block = read_all(READER, [numbers, names], labels=("cat", "dog"))
    assert block.label_indices.tolist() == [0, 1, 0, 1]


def test_csv__lines_that_end_in_a_carriage_return_alone_are_told(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"bag,f1,labels\ra,1,cat\rb,2,dog\r")
    with pytest.raises(SourceError, match=r"a.csv has a carriage return alone at the end of its"):
        read_all(READER, path)
