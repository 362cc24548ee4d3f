"""Parquet, Arrow IPC files and streams, Feather: long and nested."""

import json
import re
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import SparseRows
from streammiml_tools.readers import arrow_tables
from streammiml_tools.readers.arrow import READER
from streammiml_tools.readers.base import SourceError
from tests.stores import assert_same, scratch
from tests.strategies import blocks
from tests.tools.readers.arrow_files import (
    LONG,
    NAMES,
    NESTED,
    SUFFIXES,
    VARIED,
    WANT,
    lists,
    read_table,
    write,
)
from tests.tools.readers.damage import DamagedReads
from tests.tools.readers.foreign import read_all


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
    columns = {"bag": [block.bag_ids[b] for b in bag]} | rows
    columns["labels"] = pa.array(labels, pa.list_(text))
    if block.row_labels is not None:
        columns["row_label"] = block.row_labels
    return pa.table(columns)


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
    with scratch() as folder, mock.patch.object(arrow_tables, "BATCH_ROWS", batch):
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
    for name, cast in strings.items():
        table = pa.table(LONG | {"bag": cast(LONG["bag"]), "row_label": cast(LONG["row_label"])})
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
    columns = {"bag": [1, 2], "f": pa.array([3, 4], pa.uint8()), "label_a": [True, False]}
    scan, block = read_table(tmp_path, columns)
    assert (scan.dtype, block.rows.dtype, block.bag_ids) == ("uint8", np.uint8, ["1", "2"])
    assert (scan.label_names, block.label_indices.tolist()) == (("a",), [0])
    scan, _ = read_table(tmp_path, columns | {"g": [0.5, 1]})
    assert scan.dtype == "float32"


def test_arrow__half_floats_beside_other_numbers_are_read(tmp_path):
    scan, block = read_table(tmp_path, LONG | {"green": pa.array(LONG["green"], pa.float16())})
    assert_same(block, WANT)
    half = {name: pa.array(LONG[name], pa.float16()) for name in ("red", "green")}
    scan, block = read_table(tmp_path, LONG | half)
    assert (scan.dtype, block.rows.tolist()[0]) == ("float16", [1, 2.5])


def test_arrow__label_texts_may_list_several_and_options_name_columns(tmp_path):
    columns = {"doc": [7, 7], "x1": [1, 2], "x2": [3, 4], "skip": [5, 6], "tag": ["a;b", "a;b"]}
    options = {"bag_column": "doc", "label_columns": ("tag",), "feature_columns": ("x*",)}
    scan, block = read_table(tmp_path, columns, **options)
    assert (scan.label_names, block.label_indices.tolist()) == (("a", "b"), [0, 1])
    assert block.rows.tolist() == [[1, 3], [2, 4]]


def test_arrow__names_of_classes_are_taken_from_hugging_face(tmp_path):
    features = {"labels": {"feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}
    table = pa.table({"id": ["x"], "instances": [[[1.0]]], "labels": [[1]]})
    metadata = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": metadata})
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
    columns = NESTED | {"instances": [[], [[0.1, 2]], [[7, 8]]], "row_labels": [[], [None], [None]]}
    _, block = read_table(tmp_path, columns)
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
        (
            LONG | {"red": [1, None, 2, 3]},
            {},
            r", record 1: 'red' is null or contains a null; fill it",
        ),
        (LONG | {"red": [1, 2, NAN, 3]}, {}, r", record 2: 'red' is nan; only finite numbers can"),
        (
            LONG | {"bag": ["a", "b", "a", "c"]},
            {},
            r", record 2: bag 'a' returns after other bags;",
        ),
        (
            LONG | {"bag": ["a", None, "b", "c"]},
            {},
            r", record 1: 'bag' is null or contains a null; fil",
        ),
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
        (
            LONG | {"labels": [["sea"], None, [], []]},
            {},
            r", record 1: 'labels' is null or contains",
        ),
        (LONG | {"labels": NULL_LABEL}, {}, r", record 2: 'labels' is null or contains a null"),
        (LONG | {"labels": [[]] * 3 + [["sea"] * 2]}, {}, r", record 3: label 'sea' occurs twice;"),
        (LONG | {"labels": [[1.5]] * 4}, {}, r"labels cannot be read from column 'labels' of type"),
        (
            LONG | {"labels": [[-1]] * 4},
            {},
            r", record 0: label -1 is not among the numbers 0; list",
        ),
        (LONG, {"labels": ("sea",)}, r", record 2: label 'sky' is not known; known: sea; add it"),
        (
            LONG | {"row_label": [b"sea", None, b"sky", None]},
            {"labels": ("sea", "sky")},
            r"labels cannot be read from column 'row_label' of type binary; expected names or numb",
        ),
        (
            LONG | {"row_label": [0, 1.5, 0, 0]},
            {"labels": ("sea", "sky")},
            r", record 1: label 1.5 is not known; known: sea, sky; add it to --labels, or let",
        ),
        (
            LONG | {"class": [1] * 4},
            {},
            r"columns 'labels' and 'class' may both hold labels; give --l",
        ),
        (
            LONG | {"id": [1] * 4},
            {},
            r"columns 'bag' and 'id' may both name the bag; give --bag-column",
        ),
        (
            {"bag": [1], "f": [1]},
            {},
            r"which columns hold labels\? name them by --label-columns, or give none; the",
        ),
        ({"f": [1], "labels": [1]}, {}, r"which column names the bag of a row\? give --bag-column"),
        (
            {"bag": [1], "labels": [1]},
            {},
            r"no column of numbers for features; name the features by --feature-columns",
        ),
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
        (
            {"bag": [1, 2], "f": [1, 2], "label_a": [[0], [0, 1]]},
            {},
            r"record 0: label column 'label_a' is list<.*: int64>, expected 0 or 1; name the label",
        ),
        (
            {"bag": [1], "f": [1], "label_a": ["yes"]},
            {},
            r"record 0: label column 'label_a' is string, expected 0 or 1; name the label co",
        ),
        ({"bag": [1, 2], "x": [[1, 2], [3]], "labels": [0, 0]}, {}, r"record 1: 1 values in 'x', "),
        (NESTED | {"rows": [[[1]]] * 3}, {}, r"columns 'instances' and 'rows' may both hold rows;"),
        (
            NESTED | {"instances": [[[1, 2]], [[3, 4], [5]], [[6, 7]]]},
            {},
            r", record 1: a row of 1 values, expected 2; correct or remove the record$",
        ),
        (
            NESTED | {"instances": [[[1, 2], [3, 4]], [[5, INF]], [[6, 7]]]},
            {},
            r", record 1: 'instances' holds inf; only finite numbers can be stored$",
        ),
        (
            NESTED | {"instances": [[[1, 2], [3, 4]], [[5, None]], [[6, 7]]]},
            {},
            r", record 1: 'instances' is null or contains a null; fill it or drop it$",
        ),
        (
            NESTED | {"instances": [[[1, 2], [3, 4]], [None], [[6, 7]]]},
            {},
            r", record 1: 'instances' is null or contains a null; fill it or drop it$",
        ),
        (
            NESTED | {"row_labels": [["sea", None], [], [None]]},
            {},
            r", record 1: 0 labels of rows for 1 rows$",
        ),
        (
            NESTED | {"row_labels": [["sea", None], ["fog"], [None]]},
            {"labels": ("sea", "sky")},
            r", record 1: label 'fog' is not known; known: sea, sky; add it to --labels, or let",
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
    columns = LONG | {"red": [1, 2, 3, NAN]}
    with pytest.raises(SourceError, match=r"a.parquet, record 3: 'red' is nan"):
        read_table(tmp_path, columns, group=1)


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
        SourceError, match=r"a.parquet, row group 0, is damaged or cut short \(.*could not verify"
    ):
        read_all(READER, path)


# --- damaged files -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged():
    """Reads files in another process, which may crash."""
    with DamagedReads() as reads:
        yield reads


BAD_OFFSETS = pa.py_buffer(np.array([0, 1, 10**9, 3, 4], np.int32))


def crooked_files(folder):
    """Files that pyarrow writes without looking at what is in their buffers."""
    letters = pa.py_buffer(b"aabc")
    far = pa.StringArray.from_buffers(4, BAD_OFFSETS, letters)
    names = pa.array(["sea", "sky"])
    places = pa.array([0, 0, 10**6, 1], pa.int32())
    good = pa.py_buffer(np.arange(5, dtype=np.int32))
    contents = {
        "offsets of texts": LONG | {"bag": far},
        "offsets of lists": LONG
        | {
            "labels": pa.ListArray.from_buffers(
                pa.list_(pa.string()), 4, [None, BAD_OFFSETS], children=[pa.array(["sea"] * 4)]
            )
        },
        "indices": LONG | {"row_label": pa.DictionaryArray.from_arrays(places, names, safe=False)},
        "texts": LONG | {"bag": pa.StringArray.from_buffers(4, good, pa.py_buffer(b"aa\xffc"))},
    }
    for what, content in contents.items():
        for suffix in (".ipc", ".arrow"):
            yield what, write(folder / f"{what.replace(' ', '-')}{suffix}", pa.table(content))


def test_arrow__buffers_that_point_anywhere_are_refused(tmp_path, damaged):
    files = dict(enumerate(crooked_files(tmp_path)))
    answers = damaged.outcomes("arrow", [path for _, path in files.values()])
    for (what, path), answer in zip(files.values(), answers, strict=True):
        assert answer.startswith(f"refused: {path}, batch 0, is damaged or cut short ("), what
        assert answer.endswith("; fetch it again"), what


def changed(folder, path, changes):
    """A file for each change: bytes put at a place."""
    raw = path.read_bytes()
    for number, (at, new) in enumerate(changes):
        out = folder / f"{number:05d}{path.suffix}"
        out.write_bytes(raw[:at] + new + raw[at + len(new) :])
        yield out


def assert_survived(answers, paths):
    """Every file was read or refused in one line that names it, and some were refused."""
    for answer, path in zip(answers, paths, strict=True):
        assert answer == "read" or answer.startswith(f"refused: {path}"), f"{path.name}: {answer}"
        assert "\n" not in answer
    assert sum(answer != "read" for answer in answers) > len(answers) // 10


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), 11], ids=["every", "some"]
)
def test_arrow__a_file_with_any_byte_changed_is_read_or_refused(tmp_path, damaged, suffix, step):
    path = write(tmp_path / f"a{suffix}", pa.table(VARIED), 2)
    size = path.stat().st_size
    bits = [0x01, 0x10, 0x80, 0xFF] if step == 1 else [0x10]
    raw = path.read_bytes()
    changes = [(at, bytes([raw[at] ^ bit])) for at in range(0, size, step) for bit in bits]
    paths = list(changed(tmp_path, path, changes))
    assert_survived(damaged.outcomes("arrow", paths), paths)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), 8], ids=["every", "some"]
)
def test_arrow__a_file_with_any_number_changed_is_read_or_refused(tmp_path, damaged, suffix, step):
    path = write(tmp_path / f"a{suffix}", pa.table(NESTED), 2)
    numbers = [-1, 2**31 - 1, 2**40, -(2**63)]
    places = range(0, path.stat().st_size - 8, 8)
    pairs = [(at, number) for at in places for number in numbers][::step]
    changes = [(at, number.to_bytes(8, "little", signed=True)) for at, number in pairs]
    paths = list(changed(tmp_path, path, changes))
    assert_survived(damaged.outcomes("arrow", paths), paths)


def test_arrow__a_footer_of_parquet_that_contradicts_itself_is_refused(tmp_path, damaged):
    """Sizes of histograms that pyarrow checks in a constructor, from which it must not throw."""
    path = write(tmp_path / "a.parquet", pa.table(VARIED))
    raw = path.read_bytes()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    changes = [(at, bytes([raw[at] ^ 0x10])) for at in range(start, len(raw) - 8, 2)]
    paths = list(changed(tmp_path, path, changes))
    assert_survived(damaged.outcomes("arrow", paths), paths)


@pytest.mark.parametrize("name", ["patches", "rows"])
def test_rows__in_the_only_column_that_can_be_meant_need_no_option(tmp_path, name):
    nested = pa.table({name: [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], "labels": [["a"], ["b"]]})
    pq.write_table(nested, tmp_path / "n.parquet")
    scan, block = read_all(READER, tmp_path / "n.parquet")
    assert (scan.n_features, len(block), block.n_rows) == (2, 2, 3)
    long = pa.table({"bag": ["a", "a"], name: [[1.0, 2.0], [3.0, 4.0]], "labels": [[1], [1]]})
    pq.write_table(long, tmp_path / "l.parquet")
    _, block = read_all(READER, tmp_path / "l.parquet")
    np.testing.assert_array_equal(block.rows, [[1, 2], [3, 4]])
    several = pa.table({"bag": ["a"], "u": [[1.0, 2.0]], "v": [[3.0, 4.0]], "labels": [[1]]})
    pq.write_table(several, tmp_path / "s.parquet")
    with pytest.raises(
        SourceError, match=r"s\.parquet has no column of numbers for features; name"
    ):
        read_all(READER, tmp_path / "s.parquet")
