"""Stores that were written by FORMAT.md alone can be sealed, and hold the written values."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import streammiml as sm
from streammiml.bags import layout, parquet_seal, zarr_seal
from streammiml.bags import seal as seal_module
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.seal import seal
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.errors import StoreError

FORMAT = Path(seal_module.__file__).with_name("FORMAT.md")


def snippets():
    return re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.S)


def zarr_group(path, arrays, attributes, **options):
    group = zarr.create_group(path, attributes={"streammiml": attributes})
    for name, values in arrays.items():
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            **{"compressors": None, "chunks": (2, *values.shape[1:]), **options},
            config={"write_empty_chunks": True},
        )
        array[...] = values


def dense_arrays(**changes):
    arrays = {
        "bag_offsets": np.array([0, 2, 3, 6], "int64"),
        "label_offsets": np.array([0, 1, 1, 3], "int64"),
        "label_indices": np.array([2, 0, 1], "int32"),
        "rows": np.arange(24, dtype="float32").reshape(6, 4),
    }
    return {name: value for name, value in {**arrays, **changes}.items() if value is not None}


def reference(tmp_path, block, **options):
    with BagWriter.begin(tmp_path / "ours.zarr", StoreSpec(**options)) as writer:
        writer.write_part(0, block)
        return writer.finish(1)


@pytest.mark.parametrize("number", [0, 1], ids=["zarr", "parquet"])
def test_format__its_examples_seal_and_open(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(snippets()[number], {})
    (path,) = tmp_path.glob("mine.*")
    with pytest.raises(StoreError, match=r"run streammiml seal"):
        sm.open_store(path)
    store = seal(path)
    assert store.check() == []
    if number == 0:
        assert (store.n_bags, store.n_rows, store.n_features, store.n_labels) == (3, 6, 4, 3)
        np.testing.assert_array_equal(store.read(0, 3).rows, zarr.open(path)["rows"][:])
    else:
        assert (store.n_bags, store.n_rows, store.n_features, store.n_labels) == (2, 3, 2, 3)
        np.testing.assert_array_equal(store.read(1, 2).rows, [[3.0, -1.0]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shards": (4, 4), "chunks": (2, 4)},
        {"compressors": zarr.codecs.BloscCodec(cname="lz4")},
        {"compressors": zarr.codecs.ZstdCodec()},
        {"compressors": zarr.codecs.GzipCodec()},
    ],
    ids=["chunk files", "shards", "blosc", "zstd", "gzip"],
)
def test_seal__zarr_of_any_listed_codec_has_our_fingerprint(options, tmp_path):
    arrays = dense_arrays()
    block = BagBlock(
        arrays["bag_offsets"], arrays["rows"], arrays["label_offsets"], arrays["label_indices"]
    )
    expected_store = reference(tmp_path, block, n_features=4, n_labels=3)
    small = {name: arrays.pop(name) for name in ("bag_offsets", "label_offsets", "label_indices")}
    zarr_group(tmp_path / "a.zarr", small, {"n_labels": 3})
    group = zarr.open_group(tmp_path / "a.zarr", mode="a")
    array = group.create_array(
        "rows", shape=(6, 4), dtype="float32", **{"compressors": None, "chunks": (4, 4), **options}
    )
    array[...] = block.rows
    store = seal(tmp_path / "a.zarr")
    assert store.fingerprint == expected_store.fingerprint
    np.testing.assert_array_equal(store.read(1, 3).rows, block.rows[2:])


def test_seal__refuses_a_plain_chunk_that_was_cut(tmp_path):
    """Without a check of each chunk, padding of the last chunk would make up for missing rows."""
    for name, arrays in (("a", dense_arrays(rows=None)), ("b", {"rows": dense_arrays()["rows"]})):
        chunks = {"chunks": (4, 4)} if name == "b" else {}
        zarr_group(tmp_path / f"{name}.zarr", arrays, {"n_labels": 3}, **chunks)
    (tmp_path / "b.zarr/rows").rename(tmp_path / "a.zarr/rows")
    cut = tmp_path / "a.zarr/rows/c/0/0"
    cut.write_bytes(cut.read_bytes()[:-16])
    with pytest.raises(
        StoreError, match=r"rows/c/0/0 is damaged: chunk 0 has 48 bytes, expected 64"
    ):
        seal(tmp_path / "a.zarr")


def test_seal__sparse_zarr_with_ids_and_row_labels(tmp_path):
    rows = SparseRows(np.array([0, 2, 2, 3]), np.array([1, 7, 0]), np.array([0.5, 2, 3]), 9)
    arrays = {
        "bag_offsets": np.array([0, 2, 3], "int64"),
        "label_offsets": np.array([0, 0, 2], "int64"),
        "label_indices": np.array([0, 1], "int32"),
        "row_offsets": rows.offsets,
        "columns": rows.columns.astype("uint32"),
        "values": rows.values.astype("float32"),
        "row_labels": np.array([-1, 0, 1], "int32"),
        "bag_id_offsets": np.array([0, 2, 5], "int64"),
        "bag_id_bytes": np.frombuffer("äbc".encode() + b"d", np.uint8),
    }
    zarr_group(tmp_path / "s.zarr", arrays, {"n_features": 9, "label_names": ["x", "y"]})
    store = seal(tmp_path / "s.zarr")
    assert store.bag_ids(0, 2) == ["ä", "bcd"]
    assert store.label_names == ["x", "y"]
    np.testing.assert_array_equal(store.read(0, 2).rows.dense(), rows.dense())
    np.testing.assert_array_equal(store.read(1, 2).row_labels, [1])


def test_seal__refuses_columns_that_fall(tmp_path):
    arrays = {
        "bag_offsets": np.array([0, 1], "int64"),
        "label_offsets": np.array([0, 1], "int64"),
        "label_indices": np.array([0], "int32"),
        "row_offsets": np.array([0, 2], "int64"),
        "columns": np.array([7, 1], "uint32"),
        "values": np.array([1, 2], "float32"),
    }
    zarr_group(tmp_path / "s.zarr", arrays, {"n_features": 9})
    with pytest.raises(StoreError, match="columns of a row must be in rising order"):
        seal(tmp_path / "s.zarr")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"n_labels": "3"}, "n_labels must be a whole number from 0 to 2147483647, got '3'"),
        ({"n_labels": [3]}, r"n_labels must be a whole number from 0 to 2147483647, got [3]"),
        ({"n_labels": 2**40}, "n_labels must be a whole number from 0 to"),
        ({"label_names": "abc"}, "label_names of a store must be a list of texts, got 'abc'"),
        ({"label_names": [1, 2, 3]}, "label_names of a store must be a list of texts, got [1, 2,"),
        ({"feature_names": 5}, "feature_names of a store must be a list of texts, got 5"),
    ],
)
@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_seal__refuses_a_description_of_other_types(kind, attributes, message, tmp_path):
    if kind == "zarr":
        zarr_group(tmp_path / "x.zarr", dense_arrays(), attributes)
    else:
        parquet_folder(tmp_path / "x.parquet", BAGS, {"n_features": 3, **attributes})
    with pytest.raises(StoreError, match=re.escape(message)):
        seal(tmp_path / f"x.{kind}")


def test_seal__refuses_zarr_2(tmp_path):
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    with pytest.raises(
        StoreError, match=r"x\.zarr is a Zarr 2 group; write its arrays with zarr_format=3"
    ):
        seal(tmp_path / "x.zarr")


def test_seal__leaves_data_files_as_they_are_and_refuses_a_second_time(tmp_path):
    zarr_group(tmp_path / "a.zarr", dense_arrays(), {"n_labels": 3})
    files = {p: p.read_bytes() for p in (tmp_path / "a.zarr").rglob("*") if p.is_file()}
    seal(tmp_path / "a.zarr")
    assert all(path.read_bytes() == raw for path, raw in files.items())
    with pytest.raises(StoreError, match="sealed already"):
        seal(tmp_path / "a.zarr")


WRONG = {
    "has no array 'label_offsets'": {"label_offsets": None},
    "an unknown array 'extra'": {"extra": np.zeros(3, "int32")},
    "dtype is float64": {"rows": np.ones((6, 4))},
    "is invalid: offsets": {"bag_offsets": np.array([0, 3, 2, 6], "int64")},
    "bag_offsets is invalid": {"bag_offsets": np.array([0, 2, 3, 5], "int64")},
    "label_offsets has 3 elements, expected 4": {"label_offsets": np.array([0, 1, 3], "int64")},
    "1 bags have no rows, the first is bag 1": {"bag_offsets": np.array([0, 3, 3, 6], "int64")},
    "label 5 is outside 0 to 2": {"label_indices": np.array([2, 0, 5], "int32")},
    "label 1 comes twice": {"label_indices": np.array([2, 1, 1], "int32")},
    "labels of a bag must be in rising order": {"label_indices": np.array([2, 1, 0], "int32")},
    "value is nan": {"rows": np.full((6, 4), np.nan, "float32")},
    "row_labels has 5 elements, expected 6": {"row_labels": np.zeros(5, "int32")},
}


@pytest.mark.parametrize("message", WRONG)
def test_seal__refuses_what_may_not_be_in_a_store(message, tmp_path):
    zarr_group(tmp_path / "bad.zarr", dense_arrays(**WRONG[message]), {"n_labels": 3})
    with pytest.raises(StoreError, match=re.escape(message)):
        seal(tmp_path / "bad.zarr")
    assert not (tmp_path / "bad.zarr" / "_streammiml").exists()


@pytest.mark.parametrize(
    "options",
    [{"compressors": zarr.codecs.GzipCodec()}, {"shards": (4, 4), "chunks": (2, 4)}],
    ids=["chunk files", "shards"],
)
def test_seal__a_chunk_file_that_cannot_be_read_is_named(tmp_path, options):
    path = tmp_path / "z.zarr"
    zarr_group(path, {"rows": dense_arrays()["rows"]}, {"n_labels": 3}, **options)
    zarr_group(tmp_path / "y.zarr", dense_arrays(rows=None), {"n_labels": 3})
    (path / "rows").rename(tmp_path / "y.zarr/rows")
    file = tmp_path / "y.zarr/rows/c/1/0"
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreError, match=r"y\.zarr/rows/c/1/0 is a folder, expected a file"):
        seal(tmp_path / "y.zarr")


def test_seal__a_chunk_of_zeros_that_zarr_left_out_is_named(tmp_path):
    arrays = dense_arrays()
    zarr_group(tmp_path / "z.zarr", arrays, {"n_labels": 3})
    (tmp_path / "z.zarr" / "rows" / "c" / "1" / "0").unlink()
    with pytest.raises(StoreError, match="rows/c/1/0 is missing; write all chunks"):
        seal(tmp_path / "z.zarr")


def test_seal__folders_that_are_no_store(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        seal(tmp_path / "nothing.zarr")
    (tmp_path / "empty.parquet").mkdir()
    with pytest.raises(StoreError, match=r"no store: it holds neither zarr\.json nor \*\.parquet"):
        seal(tmp_path / "empty.parquet")
    (tmp_path / "empty.parquet" / "folder.parquet").mkdir()
    with pytest.raises(StoreError, match=r"holds no \.parquet files"):
        seal(tmp_path / "empty.parquet")
    (tmp_path / "text.parquet").mkdir()
    (tmp_path / "text.parquet" / "a.parquet").write_text("not parquet")
    with pytest.raises(StoreError, match="is no Parquet file"):
        seal(tmp_path / "text.parquet")


def parquet_folder(path, bags, attributes, **options):
    path.mkdir()
    table = pa.table(bags).replace_schema_metadata({"streammiml": json.dumps(attributes)})
    pq.write_table(table, path / "a.parquet", **options)


BAGS = {
    "labels": pa.array([[2], [], [0, 1]], pa.list_(pa.int32())),
    "rows": pa.array(
        [[[0, 1, 2]], [[3, 4, 5], [6, 7, 8]], [[9, 10, 11]]], pa.list_(pa.list_(pa.float32()))
    ),
    "bag_id": pa.array(["a", "b", "c"]),
    "note": pa.array(["columns that are not ours", "stay", "there"]),
}


@pytest.mark.parametrize(
    "options", [{}, {"compression": "zstd"}, {"row_group_size": 1, "compression": "none"}]
)
def test_seal__parquet_of_any_kind(options, tmp_path):
    parquet_folder(tmp_path / "p.parquet", BAGS, {"n_features": 3}, **options)
    store = seal(tmp_path / "p.parquet")
    assert (store.n_bags, store.n_labels, store.bag_ids(0, 3)) == (3, 3, ["a", "b", "c"])
    np.testing.assert_array_equal(store.read(1, 3).rows, np.arange(3, 12).reshape(3, 3))
    assert store.check() == []


WRONG_BAGS = {
    "has no column 'labels'": {"labels": None},
    "neither 'rows' nor 'columns' and 'values'": {"rows": None},
    "expected lists of lists": {"rows": pa.array([[1.0], [2.0], [3.0]])},
    "holds float64": {"rows": pa.array([[[1.0] * 3]] * 3)},
    "has null values": {"labels": pa.array([[1], None, [2]], pa.list_(pa.int32()))},
    "row 1 has 2 values, expected 3": {
        "rows": pa.array([[[1, 2, 3]], [[1, 2]], [[1, 2, 3]]], pa.list_(pa.list_(pa.float32())))
    },
    "bag ids come twice": {"bag_id": pa.array(["a", "b", "a"])},
    "label -4 is outside": {"labels": pa.array([[-4], [], []], pa.list_(pa.int32()))},
}


@pytest.mark.parametrize("message", WRONG_BAGS)
def test_seal__refuses_parquet_that_may_not_be_in_a_store(message, tmp_path):
    bags = {k: v for k, v in {**BAGS, **WRONG_BAGS[message]}.items() if v is not None}
    parquet_folder(tmp_path / "bad.parquet", bags, {"n_features": 3})
    with pytest.raises(StoreError, match=re.escape(message)):
        seal(tmp_path / "bad.parquet")
    assert not (tmp_path / "bad.parquet" / "_streammiml").exists()
    assert not (tmp_path / "bad.parquet" / "_streammiml.partial").exists()


ROWS = pa.list_(pa.list_(pa.float32()))
SPARSE = {
    "labels": pa.array([[0], [1]], pa.list_(pa.int32())),
    "columns": pa.array([[[1, 7]], [[], [0]]], pa.list_(pa.list_(pa.uint32()))),
    "values": pa.array([[[0.5, 2]], [[], [3]]], ROWS),
}
PLAIN = {"compression": "none", "use_dictionary": False}
OTHER_TYPES = {
    "'labels' is list<element: int64>, expected list of int32": (
        BAGS,
        {"labels": pa.array([[2], [], [0, 1]])},
    ),
    "'labels' is int32, expected list of int32": (
        BAGS,
        {"labels": pa.array([2, 0, 1], pa.int32())},
    ),
    "'row_labels' is list<element: int64>, expected list of int32": (
        BAGS,
        {"row_labels": pa.array([[2], [0, 0], [0]])},
    ),
    "'columns' is list<element: list<element: int64>>, expected list of lists of uint32": (
        SPARSE,
        {"columns": pa.array([[[1, 7]], [[], [0]]])},
    ),
    "'bag_id' is int64, expected string": (BAGS, {"bag_id": pa.array([1, 2, 3])}),
    "'rows' holds decimal128(3, 1), expected float32 or": (
        BAGS,
        {"rows": BAGS["rows"].cast(pa.list_(pa.list_(pa.decimal128(3, 1))))},
    ),
}


@pytest.mark.parametrize("options", [PLAIN, {}], ids=["plain", "packed"])
@pytest.mark.parametrize("message", OTHER_TYPES)
def test_seal__parquet_columns_of_another_type_are_refused(message, options, tmp_path):
    bags, changes = OTHER_TYPES[message]
    parquet_folder(tmp_path / "t.parquet", {**bags, **changes}, {"n_features": 9}, **options)
    with pytest.raises(StoreError, match=re.escape(f"t.parquet/a.parquet: {message}")):
        seal(tmp_path / "t.parquet")


@pytest.mark.parametrize("column", ["rows", "values", "labels", "bag_id"])
def test_seal__every_parquet_file_must_have_the_types_of_the_first(column, tmp_path):
    path, bags = tmp_path / "t.parquet", SPARSE if column == "values" else BAGS
    parquet_folder(path, bags, {"n_features": 9 if column == "values" else 3}, **PLAIN)
    wider = {
        "rows": (pa.list_(pa.list_(pa.float64())), "list of lists of float32"),
        "values": (pa.list_(pa.list_(pa.float64())), "list of lists of float32"),
        "labels": (pa.list_(pa.uint32()), "list of int32"),
        "bag_id": (pa.binary(), "string"),
    }
    kind, expected = wider[column]
    other = {**bags, column: bags[column].cast(kind)}
    pq.write_table(pa.table(other), path / "b.parquet", **PLAIN)
    kind_read = str(pq.read_schema(path / "b.parquet").field(column).type)
    message = f"{path}/b.parquet: {column!r} is {kind_read}, expected {expected}"
    with pytest.raises(StoreError, match=re.escape(message)):
        seal(path)
    assert not (path / "_streammiml").exists()


def test_seal__parquet_lists_and_names_may_be_large(tmp_path):
    large = {
        **BAGS,
        "labels": BAGS["labels"].cast(pa.large_list(pa.int32())),
        "rows": BAGS["rows"].cast(pa.large_list(pa.large_list(pa.float32()))),
        "bag_id": BAGS["bag_id"].cast(pa.large_string()),
    }
    parquet_folder(tmp_path / "l.parquet", large, {"n_features": 3})
    store = seal(tmp_path / "l.parquet")
    assert (store.check(), store.bag_ids(1, 3)) == ([], ["b", "c"])
    np.testing.assert_array_equal(store.read(0, 3).rows, np.arange(12).reshape(4, 3))
    np.testing.assert_array_equal(store.read(0, 3).label_indices, [2, 0, 1])


def common_metadata(path, schema, **keys):
    pq.write_metadata(schema.with_metadata(keys), path / "_common_metadata")


def test_seal__common_metadata_without_our_key_leaves_it_to_the_first_file(tmp_path):
    path = tmp_path / "c.parquet"
    parquet_folder(path, BAGS, {"n_features": 3, "label_names": ["x", "y", "z"]})
    common_metadata(path, pa.table(BAGS).schema, theirs="kept")
    assert seal(path).label_names == ["x", "y", "z"]


def test_seal__common_metadata_goes_before_the_first_file(tmp_path):
    path = tmp_path / "c.parquet"
    parquet_folder(path, BAGS, {"n_features": 3, "label_names": ["x", "y", "z"]})
    attributes = json.dumps({"n_features": 3, "n_labels": 5})
    common_metadata(path, pa.table(BAGS).schema, streammiml=attributes)
    store = seal(path)
    assert (store.label_names, store.n_labels) == (None, 5)


def test_seal__common_metadata_keeps_the_keys_and_columns_of_others(tmp_path):
    path = tmp_path / "c.parquet"
    parquet_folder(path, BAGS, {"n_features": 3})
    common_metadata(path, pa.table(BAGS).schema, theirs="kept")
    store = seal(path)
    schema = pq.read_schema(path / "_common_metadata")
    assert schema.metadata[b"theirs"] == b"kept"
    assert json.loads(schema.metadata[b"streammiml"]) == {"n_features": 3, "n_labels": 3}
    assert schema.names == list(BAGS)
    assert store.check() == []


@pytest.mark.parametrize("there", [True, False])
def test_seal__common_metadata_is_written_only_at_the_end(there, tmp_path, monkeypatch):
    path = tmp_path / "c.parquet"
    parquet_folder(path, BAGS, {"n_features": 3})
    if there:
        common_metadata(path, pa.table(BAGS).schema, theirs="kept")
    files = {file.name: file.read_bytes() for file in path.iterdir()}

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(seal_module, "sync_folder", full)
    with pytest.raises(StoreError, match="No space left"):
        seal(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == files


@pytest.mark.parametrize("limit", ["bytes", "elements"])
def test_seal__column_chunks_that_no_record_can_hold_are_refused(limit, tmp_path, monkeypatch):
    rows = pa.array([[[0.0]] * 300], ROWS)
    bags = {"labels": pa.array([[0]], pa.list_(pa.int32())), "rows": rows}
    options = PLAIN if limit == "bytes" else {}
    parquet_folder(tmp_path / "b.parquet", bags, {"n_features": 1}, **options)
    assert np.iinfo(layout.RECORD["nbytes"]).max == layout.RECORD_LIMIT
    monkeypatch.setattr(layout, "RECORD_LIMIT", 1000 if limit == "bytes" else 299)
    message = rf"a\.parquet, row group 0: 'rows' has \d+ {limit}, more than .* \.zarr store"
    with pytest.raises(StoreError, match=message):
        seal(tmp_path / "b.parquet")


def test_seal__zarr_chunks_that_no_record_can_hold_are_refused(tmp_path, monkeypatch):
    zarr_group(tmp_path / "b.zarr", dense_arrays(), {"n_labels": 3})
    monkeypatch.setattr(layout, "RECORD_LIMIT", 31)
    with pytest.raises(StoreError, match=r"rows/c/0/0: a chunk has 32 bytes, .* smaller chunks"):
        seal(tmp_path / "b.zarr")


def named_store(tmp_path, kind, ids):
    path = tmp_path / f"ids.{kind}"
    if kind == "parquet":
        parquet_folder(path, {**BAGS, "bag_id": pa.array(ids[:3])}, {"n_features": 3})
        table = pa.table({**BAGS, "bag_id": pa.array(ids[3:])})
        pq.write_table(table, path / "b.parquet", row_group_size=1)
        return path
    arrays = {
        "bag_offsets": np.arange(7),
        "label_offsets": np.zeros(7, "int64"),
        "label_indices": np.zeros(0, "int32"),
        "rows": np.ones((6, 3), "float32"),
        "bag_id_offsets": np.cumsum([0, *(len(name.encode()) for name in ids)]),
        "bag_id_bytes": np.frombuffer("".join(ids).encode(), np.uint8),
    }
    zarr_group(path, arrays, {"n_labels": 1})
    return path


@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_seal__repeated_ids_are_named(kind, tmp_path):
    path = named_store(tmp_path, kind, ["a", "é", "c", "d", "c", "é"])
    message = r"2 bag ids come twice, the first is 'c' \(bags 2 and 4\)"
    with pytest.raises(StoreError, match=message):
        seal(path)
    assert not (path / "_streammiml").exists()
    assert not (path / "_common_metadata").exists()


@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_seal__ids_whose_hashes_are_the_same_are_told_apart(kind, tmp_path, monkeypatch):
    for module in (parquet_seal, zarr_seal):
        monkeypatch.setattr(
            module, "id_hashes", lambda names: np.array([len(name) for name in names], np.uint64)
        )
    ids = ["a", "b", "cc", "dd", "e", "f"]
    store = seal(named_store(tmp_path, kind, ids))
    assert store.bag_ids(0, 6) == ids
    (tmp_path / "other").mkdir()
    path = named_store(tmp_path / "other", kind, ["a", "b", "cc", "dd", "e", "b"])
    with pytest.raises(StoreError, match=r"come twice, the first is 'b' \(bags 1 and 5\)"):
        seal(path)
