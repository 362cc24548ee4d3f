"""Kept columns travel with their rows: written equals read, in every store and in every view."""

import json
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags import kept_columns, layout
from streammiml.bags.kept_columns import (
    KeptColumn,
    as_texts,
    check_columns,
    columns_of,
    kept_arrays,
    kept_from,
    plain_values,
    shown,
)
from streammiml.bags.layout import FOLDER, MANIFEST
from streammiml.bags.memory import MemoryBags
from streammiml.bags.seal import seal
from streammiml.bags.summary import describe
from streammiml.bags.tables import arrow_table
from streammiml.errors import StoreError, StreammimlError
from streammiml.verbs.info import info
from tests.stores import (
    assert_same,
    assert_same_kept,
    content,
    made_block,
    made_kept,
    made_spec,
    plain,
    sizes,
    with_kept,
    write_parts,
    write_store,
)

OLD = Path(__file__).parents[1] / "data" / "stores"
COLUMNS = (
    KeptColumn("coords", "int64", 2),
    KeptColumn("note", "text"),
    KeptColumn("time", "float64"),
)


@pytest.fixture
def store(backend, tmp_path):
    return write_store(tmp_path / f"x.{backend}", with_kept(made_block()))


def test_store__gives_kept_columns_with_bags_and_ranges(store):
    block = with_kept(made_block())
    assert store.kept_columns == COLUMNS
    assert_same(store.read(0, 12), block)
    assert_same(store.read(3, 7, kept=False), replace(block.slice(3, 7), kept={}))
    assert_same_kept(store.kept(3, 7), block.slice(3, 7).kept)
    assert_same_kept(store.kept(12, 12), block.slice(12, 12).kept)
    for bags in (store, store.view(slice(12)), MemoryBags(block), sm.open_store([store.name] * 2)):
        one = bags.kept(3, 7, ["time"])
        assert_same_kept(one, {"time": block.slice(3, 7).kept["time"]})
    for bag in (store[4], *store[4:5], list(store)[4], pickle.loads(pickle.dumps(store[4]))):
        rows, labels, name = bag
        assert (len(rows), name) == (len(bag.kept["note"]), "bag-0004")
        assert labels.tolist() == block.labels_of(4).tolist()
        assert_same_kept(bag.kept, block.kept_of(4))
    assert store.check() == []


def test_view_and_memory__have_the_kept_columns_of_their_bags(store):
    block, chosen = with_kept(made_block()), np.array([11, 2, 2, 0])
    view = store.view(chosen)
    assert view.kept_columns == COLUMNS
    assert_same_kept(view.kept(1, 4), block.take(chosen[1:]).kept)
    assert_same_kept(view.kept(2, 2), block.slice(0, 0).kept)
    in_memory = MemoryBags(block, n_labels=4)
    assert in_memory.kept_columns == COLUMNS
    assert_same_kept(in_memory.kept(2, 5), block.slice(2, 5).kept)
    with pytest.raises(StoreError, match="has bags 0 to 4, requested 0 to 5"):
        view.kept(0, 5)


def test_joined_stores__have_the_kept_columns_of_all(backend, tmp_path):
    first = with_kept(made_block())
    kept = {**made_kept(first.n_rows), "time": np.zeros(first.n_rows, np.float32)}
    del kept["note"]
    second = replace(first, bag_ids=[f"other-{i}" for i in range(12)], kept=kept)
    paths = [tmp_path / f"{i}.{backend}" for i in range(2)]
    for path, block in zip(paths, (first, second), strict=True):
        write_store(path, block, n_labels=4)
    joined = sm.open_store(paths)
    assert joined.kept_columns == COLUMNS[:1]
    assert joined.read(10, 14).kept.keys() == {"coords"}
    want = np.concatenate([first.slice(10, 12).kept["coords"], second.slice(0, 2).kept["coords"]])
    assert joined.kept(10, 14)["coords"].tolist() == want.tolist()


def test_store_without_kept_columns__has_none(tiny):
    store = sm.open_store(tiny.path)
    assert store.kept_columns == ()
    assert store.kept(0, 3) == store[0].kept == store.view([1]).kept(0, 1) == {}


@pytest.mark.parametrize("name", ["coords", "note", "time"])
def test_damaged_kept_values__are_an_error_that_names_the_file(name, store):
    path = Path(store.name)
    column = next(column for column in COLUMNS if column.name == name)
    table = np.fromfile(path / FOLDER / f"chunks-{column.values}.bin", layout.RECORD)
    key = store.manifest.files[table["file"][0]][0]
    raw = bytearray((path / key).read_bytes())
    raw[int(table["offset"][0]) + int(table["nbytes"][0]) - 1] ^= 1
    (path / key).write_bytes(raw)
    damaged = sm.open_store(path)
    with pytest.raises(StoreError, match=rf"{re.escape(str(path / key))} is damaged"):
        damaged.kept(0, 12)
    assert damaged.check() == [f"{path / key} is damaged: it fails its checksum"]
    # What training reads is intact, and it reads nothing else.
    assert_same(damaged.read(0, 12, kept=False), made_block())
    damaged.read_ranges([(0, 4), (6, 9)])


def test_bytes_that_are_no_text__are_named(tmp_path):
    store = write_store(tmp_path / "x.zarr", with_kept(made_block()))
    raw = as_texts(["a"] * made_block().n_rows)
    entry = store.manifest.arrays["kept_note.bytes"]
    assert entry.length > len(raw)
    store._arrays["kept_note.bytes"].read = lambda a, b: np.full(b - a, 0xFF, np.uint8)
    with pytest.raises(StoreError, match=r"x.zarr/kept_note.bytes is not UTF-8 text"):
        store.kept(0, 12)


@pytest.mark.parametrize("name", ["zarr", "parquet"])
def test_store_of_format_1__opens_and_is_written_the_same_today(name, tmp_path):
    block = made_block(6)
    old = sm.open_store(OLD / f"format-1.{name}")
    assert old.manifest.format_version == 1
    assert old.check() == []
    assert_same(old.read(0, 6), block)
    with sizes():
        spec = made_spec(chunk_bytes=48)
        new = write_parts(tmp_path / f"x.{name}", spec, [block.slice(0, 2), block.slice(2, 6)])
    # Descriptions are the libraries' own and change with their versions.
    for key, file in content(Path(old.name)).items():
        if not key.endswith(("zarr.json", "_common_metadata", MANIFEST, ".parquet")):
            assert content(Path(new.name))[key] == file, key
    assert new.manifest.to_bytes().count(b"kept") == 0
    assert new.manifest.arrays.keys() == old.manifest.arrays.keys()
    assert (new.manifest.format_version, new.fingerprint) == (1, old.fingerprint)


def test_version_2__only_for_kept_columns_and_refused_by_older_readers(store, monkeypatch):
    manifest = json.loads((Path(store.name) / MANIFEST).read_bytes())
    assert manifest["format_version"] == 2
    assert store.fingerprint == MemoryBags(made_block()).fingerprint
    monkeypatch.setattr(layout, "KEPT_VERSION", 1)
    with pytest.raises(StoreError, match="written by store format 2, this reads up to 1"):
        sm.open_store(store.name)


def test_manifest__refuses_kept_arrays_that_contradict_it(store):
    manifest = store.manifest
    arrays = manifest.arrays
    for change, message in (
        ({"format_version": 1}, "it has kept columns and format_version 1"),
        ({"arrays": {n: arrays[n] for n in arrays if n != "kept_note.bytes"}}, "it has the arrays"),
        (
            {"arrays": {**arrays, "kept_time": replace(arrays["kept_time"], length=3)}},
            "kept_time has 3 elements, expected",
        ),
        (
            {"arrays": {**arrays, "kept_note": arrays["kept_time"]}},
            "two kept columns have the same name",
        ),
    ):
        assert message in replace(manifest, **change).contradiction()
    wrong = replace(manifest, arrays={**arrays, "kept_a/b": arrays["kept_time"]})
    with pytest.raises(StoreError, match=r"each entry the name of an array"):
        layout.Manifest.from_bytes(wrong.to_bytes(), "x")


def test_seal__finds_kept_columns(store):
    path, fingerprint = Path(store.name), store.fingerprint
    shutil.rmtree(path / FOLDER)
    sealed = seal(path)
    assert sealed.kept_columns == COLUMNS
    assert (sealed.fingerprint, sealed.manifest.format_version) == (fingerprint, 2)
    assert_same(sealed.read(0, 12), with_kept(made_block()))
    assert sealed.check() == []


def test_info_and_tables__show_kept_columns(store, capsys):
    assert describe(store)["kept"][0] == {"name": "coords", "dtype": "int64", "width": 2}
    assert sm.open_store(store.name).to_pandas()["kept_note"][3].tolist() == [
        *with_kept(made_block()).kept_of(3)["note"]
    ]
    table = arrow_table(store, 2, 5)
    block = with_kept(made_block()).slice(2, 5)
    assert table.column_names[-3:] == ["kept_coords", "kept_note", "kept_time"]
    assert table["kept_coords"].to_pylist() == [
        block.kept_of(bag)["coords"].tolist() for bag in range(3)
    ]
    assert table["kept_note"].to_pylist() == [
        block.kept_of(bag)["note"].tolist() for bag in range(3)
    ]
    info(store.name)
    assert "coords (2 int64), note (text), time (float64)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([KeptColumn("a/b", "int8")], "'a/b' cannot be kept: names of kept columns have up to 64"),
        ([KeptColumn("", "int8")], "'' cannot be kept"),
        ([KeptColumn("x" * 65, "int8")], "cannot be kept: names of kept columns"),
        ([KeptColumn("a.b", "int8")], "rename it"),
        ([KeptColumn("x", "int8"), KeptColumn("X", "int8")], "'x' and 'X' have the same name"),
        ([KeptColumn("x", "complex64")], "no type of kept columns is called 'complex64'"),
        ([KeptColumn("x", "int8", 0)], "'x' cannot be kept: a row has 0 values, expected 1 to 65"),
        ([KeptColumn("x", "text", 2)], "'x' cannot be kept: a row has 2 values, expected 1"),
    ],
)
def test_columns__that_no_store_can_have_are_refused(columns, message):
    with pytest.raises(StreammimlError, match=message):
        check_columns(columns)
    with pytest.raises(StreammimlError, match=message):
        made_spec(kept=tuple(columns))


def test_columns__come_in_the_order_of_their_names():
    assert check_columns(COLUMNS[::-1]) == COLUMNS == columns_of(made_kept(3))
    assert [column.empty().shape for column in COLUMNS] == [(0, 2), (0,), (0,)]
    assert str(COLUMNS[0]) == "coords (2 int64)"


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("time", None, "the block lacks the kept column 'time', but the store was begun with"),
        ("other", np.zeros(3), "the block has the kept column 'other', but the store was begun"),
        ("time", np.zeros(2), "3 rows but 2 values of 'time'"),
        ("time", as_texts("abc"), "'time' holds text, expected float64"),
        ("time", np.zeros((3, 2)), "'time' has 2 values a row, expected 1"),
        ("coords", np.zeros(3), "'coords' has 1 values a row, expected 2"),
        (
            "coords",
            np.array([[0, 1], [2, 0.5], [0, 0]]),
            r"bag 'bag-0001', row 0: 'coords' is 0.5, which int64 cannot hold",
        ),
        ("note", np.zeros(3), "'note' holds float64, expected text"),
        ("note", as_texts(["a", "b", "\ud800"]), r"bag 'bag-0001', row 1: 'note' is '\\ud800'"),
    ],
)
def test_writer__refuses_values_that_do_not_fit(column, values, message, tmp_path):
    block = made_block().slice(0, 2)
    block = replace(
        block.take(np.array([0, 1])),
        bag_offsets=np.array([0, 1, 3]),
        rows=np.zeros((3, 3), np.float32),
        row_labels=np.zeros(3, np.int32),
    )
    kept = {**made_kept(3), column: values}
    block = replace(block, kept={n: v for n, v in kept.items() if v is not None})
    with (
        sm.BagWriter.begin(tmp_path / "x.zarr", made_spec(kept=COLUMNS)) as writer,
        pytest.raises(StoreError, match=message),
    ):
        writer.write_part(0, block)


def test_writer__stores_narrower_numbers_exactly_and_keeps_nan(tmp_path):
    block = plain(made_block())
    n = block.n_rows
    kept = {"a": np.arange(n, dtype=np.int16), "b": np.full((n, 1), np.nan, np.float16)}
    columns = (KeptColumn("a", "int64"), KeptColumn("b", "float64"))
    store = write_store(tmp_path / "x.zarr", replace(block, kept=kept), kept=columns)
    assert store.kept(0, 12)["a"].dtype == np.int64
    assert store.kept(0, 12)["b"].shape == (n,)
    assert np.isnan(store.kept(0, 12)["b"]).all()


def test_arrays__are_undone_and_count_their_bytes():
    kept = made_kept(9)
    assert_same_kept(kept_from(kept_arrays(kept)), kept)
    assert kept_columns.n_bytes(kept["coords"]) == 9 * 2 * 8
    texts = as_texts(["ab", "c"])
    assert kept_columns.n_bytes(texts) == 3 + 2 * kept_columns.OBJECT_BYTES


def test_values__as_json_and_in_words():
    kept = made_kept(6)
    assert plain_values(kept["time"]) == [None, 0.125, 0.25, 0.375, 0.5, None]
    assert plain_values(kept["coords"])[5] == [1280, 2]
    row = {"coords": [1280, 2], "note": "a\n" * 60, "time": None, "x": 0.123456789}
    assert shown(row).startswith("coords 1280, 2; note a a a ")
    assert shown(row).endswith("…; time none; x 0.123457")


def test_training_and_evaluation__read_no_kept_columns(tmp_path):
    path = tmp_path / "x.zarr"
    write_store(path, with_kept(made_block(40)), n_labels=4)
    for array in path.glob("kept_*"):
        shutil.rmtree(array / "c")
    config = sm.TrainConfig(epochs=2, shared_dim=4, validation=0.2)
    model = sm.train(sm.open_store(path), config, run=tmp_path / "run")
    write_store(tmp_path / "y.zarr", made_block(40), n_labels=4)
    same = sm.train(sm.open_store(tmp_path / "y.zarr"), config)
    assert model.shared.tobytes() == same.shared.tobytes()
    assert sm.evaluate(model, path)["n_bags"] == 40
    with pytest.raises(StoreError, match=r"kept_\w+(\.offsets)?/c/0"):
        sm.predict(model, path, tmp_path / "out")
