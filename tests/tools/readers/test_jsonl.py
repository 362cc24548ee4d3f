"""JSON lines: an object a bag, dense or sparse."""

import gzip
import json
import re
from unittest import mock

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock, SparseRows
from streammiml_tools.readers import jsonl
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.jsonl import READER
from tests.stores import assert_same, scratch, sparse
from tests.strategies import blocks
from tests.tools.readers.foreign import DATA, read_all
from tests.traced import traced

HERE = DATA / "readers"
GOOD = {"id": "a", "instances": [[1, 2]], "labels": ["sea"]}


def lines_of(*records):
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def read_lines(folder, raw, name="a.jsonl", **options):
    (folder / name).write_bytes(raw)
    return read_all(READER, folder / name, **options)


def test_jsonl__dense_rows_with_everything():
    scan, block = read_all(READER, HERE / "bags.jsonl")
    bags = [[[1, 2.5], [-3, 5.36e-4]], [[0.1, 2]], [[7, 8]]]
    want = BagBlock.from_bags(
        [np.array(rows, np.float32) for rows in bags],
        [[0], [0, 1], []],
        row_labels=[[0, -1], [1], [-1]],
        bag_ids=["a", "b", "c"],
    )
    assert_same(block, want)
    assert block.bag_ids == want.bag_ids
    assert (scan.n_features, scan.sparse, scan.label_names) == (2, False, ("sea", "sky"))
    assert scan.notes == (
        "rows of 2 values from 'instances'",
        "labels of bags from 'labels'",
        "ids from 'id'",
        "labels of rows from 'instance_labels'",
    )


def test_jsonl__sparse_rows_and_labels_by_number():
    scan, block = read_all(READER, HERE / "bags-sparse.jsonl")
    rows = SparseRows(np.array([0, 2, 2, 3]), np.uint32([4, 0, 9]), np.float32([1.5, -2, 3]), 10)
    want = BagBlock(np.array([0, 2, 3]), rows, np.array([0, 1, 3]), np.int32([2, 0, 5]))
    assert_same(block, want)
    assert (scan.n_features, scan.sparse, scan.bag_ids, scan.n_labels) == (10, True, False, None)
    assert read_all(READER, HERE / "bags-sparse.jsonl", n_features=99)[0].n_features == 99


def records_of(block, names):
    """Records as somebody else might write them."""
    for bag in range(len(block)):
        start, stop = (int(i) for i in block.bag_offsets[bag : bag + 2])
        if isinstance(block.rows, SparseRows):
            rows = []
            for i in range(start, stop):
                row = block.rows.slice(i, i + 1)
                rows.append({"indices": row.columns.tolist(), "values": row.values.tolist()})
        else:
            rows = block.rows[start:stop].tolist()
        record = {"instances": rows, "labels": [names[i] for i in block.labels_of(bag)]}
        if block.row_labels is not None:
            marks = block.row_labels[start:stop].tolist()
            record["row_labels"] = [None if i < 0 else names[i] for i in marks]
        if block.bag_ids is not None:
            record["bag_id"] = block.bag_ids[bag]
        yield record


NAMED = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4).filter(
        lambda name: not name.isdigit()
    ),
    min_size=4,
    max_size=4,
    unique=True,
)


@given(
    block=blocks(dtype="float32"),
    names=st.one_of(st.just([0, 1, 2, 3]), NAMED),
    ascii_only=st.booleans(),
    indent=st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " : ")]),
    compressed=st.sampled_from(["", ".gz", ".zst"]),
    span_bytes=st.sampled_from([1, 30, 1 << 20]),
)
def test_jsonl__spans_cut_anywhere_join_to_the_bags_written(
    block, names, ascii_only, indent, compressed, span_bytes
):
    if block.bag_ids is not None and "" in block.bag_ids:
        block.bag_ids[block.bag_ids.index("")] = "no name at all"
    records = list(records_of(block, names))
    text = "".join(
        json.dumps(record, ensure_ascii=ascii_only, separators=indent) + "\n" for record in records
    )
    raw = text.encode()
    if compressed:
        raw = pa.compress(raw, codec={".gz": "gzip", ".zst": "zstd"}[compressed], asbytes=True)
    labels = None if names == [0, 1, 2, 3] else tuple(names)
    with scratch() as folder:
        options = {"labels": labels, "n_features": block.n_features, "span_bytes": span_bytes}
        _, got = read_lines(folder, raw, f"a.jsonl{compressed}", **options)
        scan = READER.scan([folder / f"a.jsonl{compressed}"], SourceOptions())
    assert_same(got, block)
    assert got.bag_ids == block.bag_ids
    if labels and scan.label_names is not None:
        used = {label for record in records for label in record["labels"]}
        assert used <= set(scan.label_names) <= set(labels)


@given(block=blocks(dtype="float32", ids=True), cut=st.floats(0, 1))
def test_jsonl__a_file_cut_anywhere_is_refused_or_loses_whole_lines(block, cut):
    names = ["a", "b", "c", "d"]
    raw = lines_of(*records_of(block, names))
    with scratch() as folder:
        try:
            options = {"labels": tuple(names), "n_features": block.n_features}
            _, got = read_lines(folder, raw[: int(cut * len(raw))], **options)
        except SourceError:
            return
    want = block.slice(0, len(got))
    assert_same(got, want)


def test_jsonl__names_of_labels_are_found_wherever_they_stand(tmp_path):
    raw = lines_of(
        {**GOOD, "labels": ["b]"]},
        {**GOOD, "id": "b", "labels": ["labels"]},
        {"labels": ["zoo"], "id": "c", "instances": [[0, 0]], "text": 'the "labels": [1]'},
        {**GOOD, "id": "d", "labels": "one"},
    )
    scan, block = read_lines(tmp_path, raw)
    assert scan.label_names == ("b]", "labels", "one", "zoo")
    assert block.label_indices.tolist() == [0, 1, 3, 2]


def test_jsonl__fields_are_named_by_options(tmp_path):
    record = {"doc": 7, "sentences": [[1]], "topics": ["x"], "gold": ["x"], "rows": 3, "y": 1}
    options = {
        "bag_column": "doc",
        "feature_columns": ("sentences",),
        "label_columns": ("topics",),
        "row_label_column": "gold",
    }
    scan, block = read_lines(tmp_path, lines_of(record), **options)
    assert (block.bag_ids, block.row_labels.tolist(), scan.label_names) == (["7"], [0], ("x",))


def test_jsonl__a_bag_without_rows_is_left_to_the_store(tmp_path):
    raw = lines_of(GOOD, {**GOOD, "id": "b", "instances": []})
    _, block = read_lines(tmp_path, raw)
    assert block.bag_offsets.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("name", "head", "is_jsonl"),
    [
        ("a.jsonl", b' {"id": 1', True),
        ("a.ndjson.zst", b"{", True),
        ("a.json", b"[1]", False),
        ("a.txt", b"{", False),
    ],
)
def test_jsonl__is_told_by_suffix_and_first_byte(tmp_path, name, head, is_jsonl):
    assert READER.tells(tmp_path / name, head) == is_jsonl


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cut", r", line 2: the line ends in the middle of an object; is the file cut short\?$"),
        ("ragged", r", line 2: row 1 has 1 values, expected 2; correct or remove the bag$"),
        (
            "nan",
            r", line 2: not JSON \(unexpected character.*, character 31\); NaN is not JSON either$",
        ),
        ("label", r", line 2: label 1.5 is neither a name nor a number; correct it$"),
        ("returning", r", line 2: bag 'a' occurs twice; rename one, or give --group to join them$"),
        ("two-keys", r", line 2: the key 'labels' occurs twice in one object; keep one$"),
    ],
)
def test_jsonl__broken_files_are_refused_with_file_and_line(name, message):
    path = HERE / f"broken-{name}.jsonl"
    with pytest.raises(SourceError, match=re.escape(str(path)) + message):
        read_all(READER, path)


def row(indices, values):
    return {"instances": [{"indices": indices, "values": values}], "labels": [0]}


SPARSE = row([1], [1])


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        ([], {}, r"a.jsonl is empty$"),
        ([[1]], {}, r"line 1: a list, expected an object for each bag$"),
        (
            [{"labels": []}],
            {},
            r"which field holds the rows\? name it by --feature-columns; the fir",
        ),
        (
            [{"rows": [[1]]}],
            {},
            r"which field holds the labels\? name it by --label-columns, or give none; the f",
        ),
        (
            [{**GOOD, "rows": []}],
            {},
            r"'instances' and 'rows' may both be meant; give --feature-columns",
        ),
        (
            [GOOD],
            {"bag_column": "nr"},
            r"no field is called 'nr' \(--bag-column\); the first recor",
        ),
        ([GOOD], {"label_columns": ("a", "b")}, r"JSON lines have one field for each role, got a"),
        ([{**GOOD, "instances": []}], {}, r"a.jsonl: the first 1 bags have no rows at all$"),
        ([GOOD, {**GOOD, "instances": 5}], {}, r"line 2: 'instances' is 5, expected a list of row"),
        ([GOOD, {**GOOD, "instances": [5]}], {}, r"line 2: row 0 is 5, expected a list of numbers"),
        ([GOOD, {**GOOD, "instances": [[1, "2"]]}], {}, r'line 2: row 0 holds "2", expected numbe'),
        ([GOOD, {**GOOD, "instances": [[1, None]]}], {}, r"line 2: row 0 holds null, expected num"),
        ([GOOD, {**GOOD, "instances": [[1, True]]}], {}, r"line 2: 'instances' holds true, expect"),
        ([GOOD, {**GOOD, "instances": [[0, False]]}], {}, r"line 2: 'instances' holds false, expe"),
        ([GOOD, {**GOOD, "id": "b", "instances": [[1, 1e39]]}], {}, r"line 2: a value is too larg"),
        ([GOOD, {**GOOD, "id": None}], {}, r"line 2: 'id' is null, expected the bag's id$"),
        ([GOOD, {**GOOD, "labels": None}], {}, r"line 2: 'labels' is null, expected a list of nam"),
        (
            [GOOD, {**GOOD, "labels": ["sea", "sea"]}],
            {},
            r"line 2: label 'sea' occurs twice; remov",
        ),
        (
            [GOOD, {**GOOD, "labels": ["sky"]}],
            {"labels": ("sea",)},
            r"line 2: label 'sky' is not known; known: sea; add it to --labels, or let",
        ),
        (
            [{**GOOD, "row_labels": ["sea"]}, {**GOOD, "row_labels": ["sea", "sea"]}],
            {},
            r"line 2: 'row_labels' is 2 for 1 rows$",
        ),
        (
            [{**GOOD, "row_labels": ["sea"]}, {**GOOD, "row_labels": [0.5]}],
            {},
            r"line 2: row label 0.5 is neither a name nor a number; correct it$",
        ),
        (
            [{**GOOD, "id": i} for i in range(30)] + [{**GOOD, "row_labels": ["sea"]}],
            {},
            r"line 31: 'row_labels' occurs here first; the first records must have it too, null "
            r"if unknown$",
        ),
        ([SPARSE, row([1], [1, 2])], {}, r"line 2: row 0 has 1 indices but 2 values$"),
        ([SPARSE, row([1, 1], [1, 2])], {}, r"line 2: row 0 has a feature twice$"),
        ([SPARSE, row([-1], [1])], {}, r"line 2: feature -1 is not among the numbers from 0 to"),
        ([SPARSE, row([1.5], [1])], {}, r"line 2: feature 1.5 is not among the numbers from 0 to"),
        (
            [SPARSE, row([7], [1])],
            {"n_features": 5},
            r"line 2: feature 7 is outside 0 to 4; give their",
        ),
        ([SPARSE, row([1], ["x"])], {}, r'line 2: row 0 holds "x", expected numbers within float'),
        ([SPARSE, row([1], 3)], {}, r"line 2: 'values' of row 0 is 3, expected a list$"),
        (
            [SPARSE, row([True], [3])],
            {"n_features": 5},
            r"line 2: 'instances' holds true, expected",
        ),
        ([SPARSE, row([1], [1e39])], {}, r"line 2: a value is too large for float32$"),
        (
            [SPARSE, {"instances": [[1, 2]], "labels": [0]}],
            {},
            r"""line 2: 'instances' needs {"indices": \[…\], "v""",
        ),
        (
            [SPARSE, {"instances": [[1, 2]], "labels": [0]}],
            {"n_features": 5},
            r"""line 2: row 0 is \[1, 2\], expected {"indices": \[…\], "values": \[…\]}$""",
        ),
    ],
)
def test_jsonl__what_is_wrong_or_ambiguous_is_refused_in_one_line(
    tmp_path, records, options, message
):
    with pytest.raises(SourceError, match=message) as caught:
        read_lines(tmp_path, lines_of(*records), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        '{"id":"b","instances":[[1,2]],"instances":[[3,4]],"labels":[]}',
        '{"id":"b","id":"c","instances":[[1,2]],"labels":[]}',
        '{"id":"b","instances":[ [1,2] ],"labels":[],"id":"c"}',
    ],
)
def test_jsonl__a_key_that_comes_twice_is_refused_wherever_it_stands(tmp_path, line):
    with pytest.raises(
        SourceError, match=r"line 2: the key '\w+' occurs twice in one object; keep"
    ):
        read_lines(tmp_path, lines_of(GOOD) + line.encode() + b"\n")


def test_jsonl__a_key_of_a_sparse_row_that_comes_twice_is_refused(tmp_path):
    line = b'{"instances":[{"indices":[1],"values":[2],"values":[3]}],"labels":[]}\n'
    with pytest.raises(SourceError, match=r"line 2: the key 'values' occurs twice in one object"):
        read_lines(tmp_path, lines_of(SPARSE) + line)


@pytest.mark.parametrize("deep", [1100, 100_000])
def test_jsonl__deep_nesting_is_refused(tmp_path, deep):
    line = b'{"id": "b", "instances": ' + b"[" * deep + b"]" * deep + b', "labels": []}\n'
    with pytest.raises(SourceError, match=r"line 2: not JSON \(.*depth.* exceeded"):
        read_lines(tmp_path, lines_of(GOOD) + line)


def test_jsonl__nesting_that_only_the_strict_look_finds_too_deep_is_refused(tmp_path):
    inner = b'{"a":' * 1000 + b"1" + b"}" * 1000
    line = b'{"id":"b","id":"c","instances":[[1,2]],"labels":[],"more":' + inner + b"}\n"
    with pytest.raises(SourceError, match=r"line 2: (objects are nested too deep|the key)"):
        read_lines(tmp_path, lines_of(GOOD) + line)


def test_jsonl__one_enormous_line_in_a_small_file_is_refused(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(lines_of(GOOD) + b'{"id": "b", "instances": [[')
        for _ in range(100):
            file.write(b"0," * (1 << 19))
    assert path.stat().st_size < 200_000
    message = r"line 2: the line is longer than 64 MiB, the limit"
    with traced() as memory, pytest.raises(SourceError, match=message):
        read_all(READER, path)
    assert memory.peak < 160 << 20


def test_jsonl__holds_a_block_whatever_the_size_of_the_file(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [[0.12345678] * 50] * 3
    with path.open("wb") as file:
        for i in range(4000):
            file.write(lines_of({"id": i, "instances": rows, "labels": [f"l{i % 5}"]}))
    options = SourceOptions()
    # Modules that the first reading imports would count as memory of the reader.
    read_all(READER, HERE / "bags.jsonl")
    with mock.patch.object(jsonl, "BLOCK_BYTES", 256 << 10), traced() as memory:
        scan = READER.scan([path], options)
        blocks = (block for span in scan.spans for block in READER.read(span, scan, options))
        n_rows = sum(block.n_rows for block in blocks)
    assert n_rows == 12_000
    assert path.stat().st_size > 6 << 20
    assert memory.peak < 4 << 20


def test_jsonl__sparse_text_equals_the_dense(tmp_path):
    dense = np.float32([[0, 1.5, 0], [2, 0, 0]])
    rows = [{"indices": [1], "values": [1.5]}, {"indices": [0], "values": [2]}]
    _, block = read_lines(tmp_path, lines_of({"instances": rows, "labels": [0]}), n_features=3)
    assert_same(
        block,
        BagBlock(np.array([0, 2]), sparse(dense), np.array([0, 1]), np.int32([0])),
    )
