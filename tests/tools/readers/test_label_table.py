"""A table of labels beside the bags: its columns, what it refuses, and every reader with it."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml_tools.convert import convert
from streammiml_tools.convert.compare import compare
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import Limits, SourceError, SourceOptions
from streammiml_tools.readers.label_table import load_label_table
from tests.stores import made_block, plain
from tests.tools.source_files import bags_of, save_npz

WANT = {"a": ("sky",), "b": (), "c": ("sea", "sky")}


def table_of(path, **options):
    return load_label_table(str(path), SourceOptions(**options))


def labels_in(table):
    return {
        name: tuple(
            str(i) if table.names is None else table.names[i]
            for i in table.indices[table.offsets[row] : table.offsets[row + 1]]
        )
        for name, row in table.rows.items()
    }


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("t.csv", "bag,labels\na,sky\nb,\nc,sky;sea\n", {}),
        ("t.csv", "bag_id,sea,sky\na,0,1\nb,0,0\nc,1,1\n", {}),
        ("t.csv", "slide_id,label_sea,label_sky,age\na,0,1,70\nb,0,0,50\nc,1,1,6\n", {}),
        (
            "t.tsv",
            "case\tslide\tlabel\n1\ta\tsky\n1\tb\t\n2\tc\tsea;sky\n",
            {"bag_column": "slide"},
        ),
        (
            "t.csv",
            "bag,x,sea,sky\na,9,false,true\nb,9,false,false\nc,9,true,true\n",
            {"label_columns": ("s*",)},
        ),
        ("t.csv", '\ufeffbag,labels\r\na,sky\r\nb,""\r\nc,"sea|sky"\r\n', {"label_separator": "|"}),
        ("t.csv.gz", "bag,labels\na,sky\nb,\nc,sky;sea\n", {}),
    ],
)
def test_text__in_its_usual_forms(tmp_path, name, text, options):
    raw = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert labels_in(table_of(tmp_path / name, **options)) == WANT


def test_parquet__with_marks_lists_and_dictionaries(tmp_path):
    ids, lists = pa.array(["a", "b", "c"]), [["sky"], [], ["sea", "sky"]]
    for number, columns in enumerate(
        (
            {"bag": ids, "labels": lists},
            {"bag": ids.dictionary_encode(), "sea": [0, 0, 1], "sky": [True, False, True]},
            {"bag": ids, "labels": ["sky", None, "sea;sky"], "made": [[b"x"]] * 3},
        )
    ):
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
        assert labels_in(table_of(tmp_path / f"{number}.parquet")) == WANT
    pq.write_table(pa.table({"bag": [5, 7], "labels": [[1], [0, 2]]}), tmp_path / "n.parquet")
    assert labels_in(table_of(tmp_path / "n.parquet")) == {"5": ("1",), "7": ("0", "2")}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, r"t\.csv is empty, or its first line is; it must name the columns$"),
        ("bag,labels\n", {}, r"t\.csv holds no bags, only the names of columns$"),
        ("bag,bag\na,b\n", {}, r"t\.csv: two columns are called 'bag'; rename one$"),
        (
            "x,labels\na,b\n",
            {},
            r"which column names the bag\? give --bag-column; the col.* x, lab",
        ),
        ("a_id,b_id,labels\na,b,c\n", {}, r"columns 'a_id' and 'b_id' may both name the bag"),
        ("bag,x,y\na,7,8\n", {}, r"which columns hold labels\? name the column that lists them"),
        ("bag,labels\na,x\nb,x\na,y\n", {}, r"bag 'a' stands twice in column 'bag'; keep one line"),
        (
            "bag,labels\na,x\na,x\nb,y\nb,y\n",
            {},
            r"2 bags 'a', 'b' stand twice in column 'bag'; keep one line for each bag$",
        ),
        ("bag,labels\na,x\n ,x\n", {}, r"record 1: the bag's id \('bag'\) is empty$"),
        (
            "bag,sea,sky\na,0,1\nb,2,0\n",
            {"label_columns": ("sea", "sky")},
            r"bag 'b': the mark of label 'sea' is '2', expected 0 or 1; name the label columns by",
        ),
        (
            "bag,sea,sky\na,0,1\nb,,0\n",
            {"label_columns": ("sea", "sky")},
            r"bag 'b': the mark of label 'sea' is empty, expected 0 or 1",
        ),
        ("bag,labels\na,x|y\n", {}, r"is 'x\|y' one label or several\? give the separator"),
        ("bag,labels\na,x\nb,x;ye", {}, r"t\.csv, line 3: the last line has no line break, so"),
        ("bag,labels\na,x,y\n", {}, r"t\.csv is not a table of text \(.*Expected 2 columns"),
        ("bag,labels\na,moon\n", {"labels": ("sea",)}, r"bag 'a': label 'moon' is not known; kn"),
        ("bag,labels\na,x\n", {"label_columns": ("none",)}, r"--bag-labels gives labels, and --la"),
        ("bag,labels\na,x\n", {"bag_column": "slide"}, r"no column is called 'slide' \(--bag-colu"),
    ],
)
def test_table__that_cannot_be_meant_is_refused(tmp_path, text, options, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SourceError, match=message):
        table_of(tmp_path / "t.csv", **options)


def test_table__whose_last_line_lacks_its_break_is_read_if_its_labels_are_known(tmp_path):
    (tmp_path / "t.csv").write_text("bag,labels\na,sky\nb,\nc,sea;sky\nd,sea")
    assert labels_in(table_of(tmp_path / "t.csv")) == {**WANT, "d": ("sea",)}


def test_table__that_is_no_file_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"--bag-labels .*t\.csv cannot be read: No such file"):
        table_of(tmp_path / "t.csv")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(
        SourceError, match=r"t\.xlsx is of no known format; save the table as \.csv"
    ):
        table_of(tmp_path / "t.xlsx")
    pq.write_table(pa.table({"bag": ["a"], "labels": [[0.5]]}), tmp_path / "f.parquet")
    with pytest.raises(SourceError, match=r"bag 'a': 'labels' is \[0\.5\], expected names or numb"):
        table_of(tmp_path / "f.parquet")
    message = "--bag-labels replaces all labels of the source, those of rows too"
    with pytest.raises(StreammimlError, match=message):
        SourceOptions(bag_labels="t.csv", row_label_column="r")


def test_table__that_is_larger_than_memory_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("bag,labels\n" + "a,x\n" * 100_000)
    with pytest.raises(SourceError, match=r"a table of labels must be held in memory, and need mo"):
        table_of(tmp_path / "t.csv", limits=Limits(1 << 20))
    with gzip.open(tmp_path / "bomb.csv.gz", "wb") as file:
        file.write(bytes(8 << 20))
    with pytest.raises(SourceError, match=r"a table of labels must be held in memory, and need mo"):
        table_of(tmp_path / "bomb.csv.gz", limits=Limits(1 << 20))


# With readers.


def write_labels(path, names, *, extra=()):
    lines = [f"{name},{'odd' if number % 2 else 'even;all'}" for number, name in enumerate(names)]
    path.write_text("\n".join(["bag,labels", *lines, *extra, ""]))
    return str(path)


def want_labels(n_bags):
    # Names in alphabetical order: all, even, odd.
    return [(2,) if number % 2 else (0, 1) for number in range(n_bags)]


@pytest.mark.parametrize("source", ["npz", "store", "csv"])
def test_labels__replace_those_of_any_reader(tmp_path, source):
    block = made_block(12)
    path = save_npz(tmp_path / "d.npz", block)
    if source == "store":
        path = tmp_path / "d.zarr"
        convert(tmp_path / "d.npz", path)
    if source == "csv":
        path = tmp_path / "d.csv"
        of_row = np.repeat(block.bag_ids, np.diff(block.bag_offsets))
        rows = zip(of_row, block.rows.tolist(), strict=True)
        width = block.rows.shape[1]
        lines = [f"bag,{','.join(f'f{i}' for i in range(width))}"]
        lines += [f'"{name}",{",".join(map(str, values))}' for name, values in rows]
        path.write_text("\n".join([*lines, ""]))
    ids = block.bag_ids
    options = SourceOptions(bag_labels=write_labels(tmp_path / "l.csv", ids), span_bytes=256)
    store = convert(path, tmp_path / "o.zarr", options=options).store
    assert store.label_names == ["all", "even", "odd"]
    assert [bag[1] for bag in bags_of(store)] == want_labels(12)
    assert compare(store, [path], options).is_same


def test_labels__of_bags_that_miss_or_have_no_ids_are_refused(tmp_path):
    block = made_block(4)
    save_npz(tmp_path / "d.npz", block)
    options = SourceOptions(bag_labels=write_labels(tmp_path / "l.csv", block.bag_ids[:2]))
    message = r"2 bags .* not in .*l\.csv, column 'bag', whose ids are like '.*'; add a line"
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / "d.npz", tmp_path / "o.zarr", options=options)
    save_npz(tmp_path / "p.npz", plain(block))
    with pytest.raises(
        SourceError, match=r"p\.npz: the bags have no ids, by which --bag-labels fi"
    ):
        convert(tmp_path / "p.npz", tmp_path / "o.zarr", options=options)


def test_table__that_changes_before_a_conversion_resumes_is_refused(tmp_path):
    block = made_block(12)
    save_npz(tmp_path / "d.npz", block)
    options = SourceOptions(
        bag_labels=write_labels(tmp_path / "l.csv", block.bag_ids), span_bytes=256
    )

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "d.npz", tmp_path / "o.zarr", options=options, watch=stop)
    write_labels(tmp_path / "l.csv", block.bag_ids, extra=["more,odd"])
    with pytest.raises(StreammimlError, match=r"cannot be resumed: .*l\.csv has changed from"):
        convert(tmp_path / "d.npz", tmp_path / "o.zarr", options=options)
    write_labels(tmp_path / "l.csv", block.bag_ids)
    assert not (tmp_path / "o.zarr").exists()


def test_labels__split_and_filter_as_those_of_a_source(tmp_path):
    block = made_block(20)
    save_npz(tmp_path / "d.npz", block)
    options = SourceOptions(
        bag_labels=write_labels(tmp_path / "l.csv", block.bag_ids), span_bytes=256
    )
    done = convert(
        tmp_path / "d.npz", tmp_path / "o.zarr", ConvertConfig(where_label=("odd",)), options
    )
    assert done.store.n_bags == 10
    assert sm.open_store(tmp_path / "o.zarr").n_labels == 3
