"""Parquet, Arrow IPC files and streams, Feather: long and nested."""

import io
import json
import re
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock, SparseRows
from streammiml_tools.readers import tables
from streammiml_tools.readers.arrow import READER
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.ipc_messages import NoMessages, messages
from tests.stores import assert_same, scratch
from tests.strategies import blocks
from tests.tools.readers.foreign import read_all

NAMES = ("sea", "sky", "sun", "tree")
LONG = {
    "bag": ["a", "a", "b", "c"],
    "red": [1, -3, 0.1, 7],
    "green": [2.5, 4, 2, 8],
    "labels": [["sea"], ["sea"], ["sky", "sea"], []],
    "row_label": ["sea", None, "sky", None],
}
NESTED = {
    "id": ["a", "b", "c"],
    "instances": [[[1, 2.5], [-3, 4]], [[0.1, 2]], [[7, 8]]],
    "labels": [["sea"], ["sky", "sea"], []],
    "row_labels": [["sea", None], ["sky"], [None]],
}
WANT = BagBlock.from_bags(
    [np.array(rows) for rows in NESTED["instances"]],
    [[0], [0, 1], []],
    row_labels=[[0, -1], [1], [-1]],
    bag_ids=["a", "b", "c"],
)


def write(path, table, group=10**6):
    """A file in the format that its suffix says, in groups of so many records."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path, chunksize=group, compression="lz4")
    else:
        new = pa.ipc.new_file if path.suffix == ".ipc" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=group)
    return path


SUFFIXES = [".parquet", ".feather", ".ipc", ".arrow"]


def read_table(folder, content, suffix=".parquet", group=10**6, **options):
    table = content if isinstance(content, pa.Table) else pa.table(content)
    return read_all(READER, write(folder / f"a{suffix}", table, group), **options)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [LONG, NESTED], ids=["long", "nested"])
def test_arrow__the_smallest_files(tmp_path, content, suffix):
    scan, block = read_table(tmp_path, content, suffix)
    assert_same(block, WANT)
    assert block.bag_ids == WANT.bag_ids
    assert (scan.label_names, scan.dtype, scan.n_features) == (("sea", "sky"), "float32", 2)
    assert scan.feature_names == (("red", "green") if content is LONG else None)


def test_arrow__notes_say_what_was_understood(tmp_path):
    assert read_table(tmp_path, LONG | {"text": ["x"] * 4})[0].notes == (
        "a record a row",
        "bags by column 'bag'",
        "2 features, from column 'red' on",
        "labels from column 'labels'",
        "labels of rows from column 'row_label'",
        "left out: columns text",
    )


# --- every cut, every type ---------------------------------------------------------------------


def lists(values, kind):
    """Lists of a kind; the values are nested Python lists."""
    make = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view}[kind]
    return lambda inner: pa.array(values, make(inner))


def nested_table(block, kind, names, text):
    starts, width = block.bag_offsets, block.n_features
    number = pa.from_numpy_dtype(block.rows.dtype)
    bags = [block.rows[a:b].tolist() for a, b in pairwise(starts)]
    row = pa.list_(number, width) if kind == "fixed" else pa.list_(number)
    outer = "list" if kind in ("fixed", "flat") else kind
    if kind == "flat":
        flat = [[value for row in bag for value in row] for bag in bags]
        rows = {"instances": pa.array(flat, pa.list_(number)), "n_rows": np.diff(starts)}
    else:
        rows = {"instances": lists(bags, outer)(row)}
    labels = [[names[i] for i in block.labels_of(bag)] for bag in range(len(block))]
    return pa.table(rows | {"labels": pa.array(labels, pa.list_(text))} | _rest(block, starts))


def _rest(block, starts):
    rest = {}
    if block.row_labels is not None:
        pairs = pairwise(starts)
        rest["row_labels"] = [block.row_labels[a:b].tolist() for a, b in pairs]
    return rest | ({} if block.bag_ids is None else {"id": block.bag_ids})


def long_table(block, kind, names, text):
    bag = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))
    number = pa.from_numpy_dtype(block.rows.dtype)
    if kind == "columns":
        rows = {f"f{i}": block.rows[:, i] for i in range(block.n_features)}
    else:
        size = block.n_features if kind == "fixed" else -1
        rows = {"features": pa.array(block.rows.tolist(), pa.list_(number, size))}
    labels = [[names[i] for i in block.labels_of(b)] for b in bag]
    found = {"bag": [block.bag_ids[b] for b in bag]} | rows
    found["labels"] = pa.array(labels, pa.list_(text))
    if block.row_labels is not None:
        found["row_label"] = block.row_labels
    return pa.table(found)


TEXTS = st.sampled_from(
    [
        (NAMES, pa.string()),
        (NAMES, pa.large_string()),
        (NAMES, pa.dictionary(pa.int8(), pa.string())),
        (range(4), pa.int64()),
        (range(4), pa.uint8()),
    ]
)
DENSE = blocks(ids=True).filter(lambda block: not isinstance(block.rows, SparseRows))


@given(
    block=DENSE,
    form=st.sampled_from(["columns", "list", "fixed"]),
    text=TEXTS,
    suffix=st.sampled_from(SUFFIXES),
    group=st.integers(1, 5),
    span_bytes=st.sampled_from([1, 100, 1 << 20]),
    batch=st.integers(1, 4),
)
def test_arrow__long_groups_cut_anywhere_join_to_the_bags_written(
    block, form, text, suffix, group, span_bytes, batch
):
    with scratch() as folder, mock.patch.object(tables, "BATCH_ROWS", batch):
        table = long_table(block, form, *text)
        options = {"labels": NAMES, "span_bytes": span_bytes}
        scan, got = read_table(folder, table, suffix, group, **options)
    assert scan.dtype == block.rows.dtype.name
    assert_same(got, block)
    assert got.bag_ids == block.bag_ids


@given(
    block=blocks().filter(lambda block: not isinstance(block.rows, SparseRows)),
    kind=st.sampled_from(["list", "large", "view", "fixed", "flat"]),
    text=TEXTS,
    suffix=st.sampled_from(SUFFIXES),
    group=st.integers(1, 5),
    span_bytes=st.sampled_from([1, 1 << 20]),
)
def test_arrow__nested_lists_of_every_kind_join_to_the_bags_written(
    block, kind, text, suffix, group, span_bytes
):
    if kind == "view" and suffix == ".parquet":
        suffix = ".ipc"
    with scratch() as folder:
        table = nested_table(block, kind, *text)
        options = {"labels": NAMES, "span_bytes": span_bytes}
        _, got = read_table(folder, table, suffix, group, **options)
    assert_same(got, block)
    assert got.bag_ids == block.bag_ids


def test_arrow__types_that_exports_use_are_read_alike(tmp_path):
    strings = {
        "dictionary": lambda column: pa.array(column).dictionary_encode(),
        "large": lambda column: pa.array(column, pa.large_string()),
        "view": lambda column: pa.array(column, pa.string_view()),
    }
    for name, made in strings.items():
        table = pa.table(LONG | {"bag": made(LONG["bag"]), "row_label": made(LONG["row_label"])})
        scan, block = read_table(tmp_path, table, ".ipc")
        assert_same(block, WANT)
        assert block.bag_ids == WANT.bag_ids, name
    tensors = pa.array([[1, 2.5], [-3, 4], [0.1, 2], [7, 8]], pa.list_(pa.float64(), 2))
    kind = pa.fixed_shape_tensor(pa.float64(), [2])
    long = {key: LONG[key] for key in ("bag", "labels", "row_label")}
    table = pa.table(long | {"embedding": pa.ExtensionArray.from_storage(kind, tensors)})
    scan, block = read_table(tmp_path, table)
    assert_same(block, WANT)
    assert scan.feature_names is None


def test_arrow__numbers_keep_their_type_where_a_store_has_it(tmp_path):
    made = {"bag": [1, 2], "f": pa.array([3, 4], pa.uint8()), "label_a": [True, False]}
    scan, block = read_table(tmp_path, made)
    assert (scan.dtype, block.rows.dtype, block.bag_ids) == ("uint8", np.uint8, ["1", "2"])
    assert (scan.label_names, block.label_indices.tolist()) == (("a",), [0])
    scan, _ = read_table(tmp_path, made | {"g": [0.5, 1]})
    assert scan.dtype == "float32"


def test_arrow__label_texts_may_list_several_and_options_name_columns(tmp_path):
    made = {"doc": [7, 7], "x1": [1, 2], "x2": [3, 4], "skip": [5, 6], "tag": ["a;b", "a;b"]}
    options = {"bag_column": "doc", "label_columns": ("tag",), "feature_columns": ("x*",)}
    scan, block = read_table(tmp_path, made, **options)
    assert (scan.label_names, block.label_indices.tolist()) == (("a", "b"), [0, 1])
    assert block.rows.tolist() == [[1, 3], [2, 4]]


def test_arrow__names_of_classes_are_taken_from_hugging_face(tmp_path):
    features = {"labels": {"feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}
    table = pa.table({"id": ["x"], "instances": [[[1.0]]], "labels": [[1]]})
    said = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": said})
    scan, block = read_table(tmp_path, table, ".arrow")
    assert (scan.label_names, block.label_indices.tolist()) == (("cat", "dog"), [1])


def test_arrow__several_files_follow_each_other(tmp_path):
    table = pa.table(NESTED)
    paths = [
        write(tmp_path / "b.parquet", table.slice(0, 1)),
        write(tmp_path / "a.feather", table.slice(1)),
    ]
    scan, block = read_all(READER, paths)
    assert_same(block, WANT)
    assert scan.n_bags == 3


def test_arrow__a_bag_without_rows_is_left_to_the_store(tmp_path):
    made = NESTED | {"instances": [[], [[0.1, 2]], [[7, 8]]], "row_labels": [[], [None], [None]]}
    _, block = read_table(tmp_path, made)
    assert block.bag_offsets.tolist() == [0, 0, 1, 2]


def test_arrow__is_told_by_its_first_bytes(tmp_path):
    assert READER.tells(tmp_path / "part-0", b"PAR1....")
    assert READER.tells(tmp_path / "part-0", b"ARROW1..")
    assert not READER.tells(tmp_path / "part-0", b"\xff\xff\xff\xff")
    assert READER.tells(tmp_path / "part-0.arrow", b"\xff\xff\xff\xff")
    assert not READER.tells(tmp_path / "a.csv", b"bag,")


# --- what is refused ---------------------------------------------------------------------------

NULL_LABEL = pa.array([[], [], [None], []], pa.list_(pa.string()))
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (LONG | {"red": [1, None, 2, 3]}, {}, r", record 1: 'red' is null or holds one; fill it"),
        (LONG | {"red": [1, 2, NAN, 3]}, {}, r", record 2: 'red' is nan; only finite numbers can"),
        (
            LONG | {"bag": ["a", "b", "a", "c"]},
            {},
            r", record 2: bag 'a' returns after other bags;",
        ),
        (LONG | {"bag": ["a", None, "b", "c"]}, {}, r", record 1: 'bag' is null or holds one; fil"),
        (LONG | {"bag": [0.5, 0.5, 1, 2]}, {}, r"ids in 'bag' are double, expected text or number"),
        (
            LONG | {"labels": [["sea"], ["sky"], ["sky"], []]},
            {},
            r", record 1: bag 'a' has other labels here than in its row before; all rows",
        ),
        (
            LONG | {"labels": [["sea"], ["sea", "sky"], ["sky"], []]},
            {},
            r", record 1: bag 'a' has other labels here than in its row before; all rows",
        ),
        (LONG | {"labels": [["sea"], None, [], []]}, {}, r", record 1: 'labels' is null or holds"),
        (LONG | {"labels": NULL_LABEL}, {}, r", record 2: 'labels' is null or holds one"),
        (LONG | {"labels": [[]] * 3 + [["sea"] * 2]}, {}, r", record 3: label 'sea' comes twice;"),
        (LONG | {"labels": [[1.5]] * 4}, {}, r"labels cannot be read from column 'labels' of type"),
        (LONG | {"labels": [[-1]] * 4}, {}, r", record 0: label -1 is not among the numbers 0; --"),
        (LONG, {"labels": ("sea",)}, r", record 2: label 'sky' is not known; known: sea; add it"),
        (LONG | {"class": [1] * 4}, {}, r"columns 'labels' and 'class' may both hold labels; --l"),
        (LONG | {"id": [1] * 4}, {}, r"columns 'bag' and 'id' may both name the bag; --bag-column"),
        (
            {"bag": [1], "f": [1]},
            {},
            r"which columns hold labels\? --label-columns names them, or says none; it",
        ),
        ({"f": [1], "labels": [1]}, {}, r"which column names the bag of a row\? --bag-column says"),
        ({"bag": [1], "labels": [1]}, {}, r"no column of numbers for features; --feature-columns"),
        (
            {"bag": [1], "labels": [1], "price": pa.array([1], pa.decimal128(5, 2))},
            {},
            r"column 'price' is decimal128\(5, 2\); write it as float32 or float64, or leave it",
        ),
        (
            {"bag": [1], "labels": [1], "f": pa.array([1], pa.decimal128(5, 2))},
            {"feature_columns": ("f",)},
            r"features cannot be read from column 'f' of type decimal128\(5, 2\); expected numbers",
        ),
        ({"bag": [1], "f": [1], "label_a": [2]}, {}, r"record 0: label column 'label_a' is 2, exp"),
        ({"bag": [1, 2], "x": [[1, 2], [3]], "labels": [0, 0]}, {}, r"record 1: 1 values in 'x', "),
        (NESTED | {"rows": [[[1]]] * 3}, {}, r"columns 'instances' and 'rows' may both hold rows;"),
        (
            NESTED | {"instances": [[[1, 2]], [[3, 4], [5]], [[6, 7]]]},
            {},
            r", record 1: a row of 1 values, expected 2; mend or drop the record$",
        ),
        (
            NESTED | {"instances": [[[1, 2], [3, 4]], [[5, INF]], [[6, 7]]]},
            {},
            r", record 1: 'instances' holds inf; only finite numbers can be stored$",
        ),
        (
            NESTED | {"instances": [[[1, 2], [3, 4]], [[5, None]], [[6, 7]]]},
            {},
            r", record 1: 'instances' is null or holds one; fill it or drop it$",
        ),
        (
            NESTED | {"instances": [[[1, 2], [3, 4]], [None], [[6, 7]]]},
            {},
            r", record 1: 'instances' is null or holds one; fill it or drop it$",
        ),
        (
            NESTED | {"row_labels": [["sea", None], [], [None]]},
            {},
            r", record 1: 0 labels of rows for 1 rows$",
        ),
        (
            NESTED | {"row_labels": [["sea", None], ["fog"], [None]]},
            {"labels": ("sea", "sky")},
            r", record 1: label 'fog' is not known; known: sea, sky; add it to --labels$",
        ),
        (
            {"instances": pa.array([], pa.list_(pa.list_(pa.float32()))), "labels": []},
            {},
            r"no row",
        ),
        (
            {"x": [[1.0, 2], [3.0]], "n_rows": [2, -1], "labels": [[0], [1]]},
            {},
            r", record 1: 'n_rows' is -1, expected a count$",
        ),
        (
            {"x": [[1.0, 2], [3.0]], "n_rows": [2, 3], "labels": [[0], [1]]},
            {},
            r", record 1: 1 values in 'x', expected 3$",
        ),
    ],
)
def test_arrow__what_is_wrong_or_ambiguous_is_refused_in_one_line(
    tmp_path, content, options, message
):
    with pytest.raises(SourceError, match=message) as caught:
        read_table(tmp_path, content, **options)
    assert "\n" not in str(caught.value)


def test_arrow__records_are_counted_from_the_beginning_of_the_file(tmp_path):
    made = LONG | {"red": [1, 2, 3, NAN]}
    with pytest.raises(SourceError, match=r"a.parquet, record 3: 'red' is nan"):
        read_table(tmp_path, made, group=1)


def test_arrow__files_of_different_schemas_are_refused(tmp_path):
    one = write(tmp_path / "a.parquet", pa.table(LONG))
    two = write(tmp_path / "b.parquet", pa.table(LONG | {"red": [1, 2, 3, 4]}))
    with pytest.raises(SourceError, match=r"b.parquet has int64 as 'red', but .*a.parquet has dou"):
        read_all(READER, [one, two])
    three = write(tmp_path / "c.parquet", pa.table(LONG).drop_columns(["red"]))
    with pytest.raises(SourceError, match=r"c.parquet has no column 'red', but .*a.parquet has do"):
        read_all(READER, [one, three])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrow__a_file_cut_anywhere_is_refused(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", pa.table(LONG), 1)
    raw = path.read_bytes()
    for part in (0.1, 0.5, 0.9, 0.999):
        path.write_bytes(raw[: int(part * len(raw))])
        with pytest.raises(SourceError, match=re.escape(str(path))):
            read_all(READER, path)


def test_arrow__a_flipped_byte_of_parquet_is_refused_where_pages_have_checksums(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(LONG), path, write_page_checksum=True, compression="none")
    raw = bytearray(path.read_bytes())
    at = raw.index(np.float64(-3).tobytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(
        SourceError, match=r"a.parquet is damaged or cut short \(.*could not verify"
    ):
        read_all(READER, path)


def test_arrow__other_files_are_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PK\x03\x04 no table")
    with pytest.raises(
        SourceError, match=r"a.parquet is neither Parquet nor Arrow: it begins with"
    ):
        read_all(READER, tmp_path / "a.parquet")
    (tmp_path / "a.feather").write_bytes(b"FEA1 of long ago")
    with pytest.raises(
        SourceError, match=r"a.feather is Feather of version 1; write it again in v"
    ):
        read_all(READER, tmp_path / "a.feather")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrow__a_small_file_that_would_become_enormous_is_refused(tmp_path, suffix):
    """Four million zeros in one record, of a few hundred bytes on disk."""
    path = tmp_path / f"bomb{suffix}"
    values = pa.array(np.zeros(1 << 22, np.float32))
    rows = pa.FixedSizeListArray.from_arrays(values, 1 << 20)
    bag = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    table = pa.table({"instances": bag, "labels": [[0]]})
    if suffix == ".parquet":
        pq.write_table(table, path, compression="zstd")
    elif suffix == ".feather":
        pyarrow.feather.write_feather(table, path, compression="zstd")
    else:
        new = pa.ipc.new_file if suffix == ".ipc" else pa.ipc.new_stream
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
            writer.write_table(table)
    assert path.stat().st_size < 10_000
    with (
        mock.patch.object(tables, "BOMB_BYTES", 8 << 20),
        pytest.raises(
            SourceError, match=r"(row group|batch) 0: .*B would become 16 MiB in memory;"
        ),
    ):
        read_all(READER, path)
    assert read_all(READER, path)[1].n_rows == 4


@given(
    sizes=st.lists(st.integers(0, 50), max_size=5),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    is_file=st.booleans(),
)
def test_arrow__messages_tell_their_records_and_bytes(sizes, compression, is_file):
    coded = pa.array(["a", "b"]).dictionary_encode()
    batches = []
    for size in sizes:
        texts = pa.DictionaryArray.from_arrays(
            np.arange(size, dtype=np.int32) % 2, coded.dictionary
        )
        batches.append(pa.record_batch({"x": np.arange(size) % 3, "y": texts}))
    schema = pa.schema({"x": pa.int64(), "y": coded.type})
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with new(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    raw = sink.getvalue().to_pybytes()
    file = io.BytesIO(raw)
    file.seek(8 if is_file else 0)
    found = [each for each in messages(file, len(raw)) if each.is_records]
    assert [each.n_records for each in found] == sizes
    # Eight bytes and four a record, and what aligns buffers.
    assert all(0 <= each.in_memory - 12 * each.n_records <= 256 for each in found)


@given(st.binary(max_size=200), st.integers(0, 10**6))
def test_arrow__messages_of_anything_end_in_a_refusal(noise, at):
    sink = pa.BufferOutputStream()
    table = pa.table(NESTED)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    raw = bytearray(sink.getvalue().to_pybytes())
    raw[at % len(raw) : at % len(raw) + len(noise)] = noise
    try:
        found = list(messages(io.BytesIO(raw), len(raw)))
    except NoMessages:
        return
    assert all(each.on_disk <= len(raw) for each in found)


def test_arrow__rows_may_be_wider_than_a_batch(tmp_path):
    with mock.patch.object(tables, "BATCH_BYTES", 1):
        _, block = read_table(tmp_path, LONG)
    assert_same(replace(block), WANT)
