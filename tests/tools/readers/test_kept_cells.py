"""Kept columns from every source that has them: types, values, and one line for each refusal."""

import csv
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streammiml as sm
from streammiml.bags.kept_columns import KeptColumn
from streammiml.errors import StoreError, StreammimlError
from streammiml.verbs.main import run
from streammiml_tools.convert import convert
from streammiml_tools.convert.compare import compare
from streammiml_tools.convert.export import export
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.kept_cells import CellTypes, type_of_cells, values_of_cells
from tests.stores import content, made_block, with_kept, write_store
from tests.tools.source_files import save_npz

N_BAGS = 7
SIZES = [2, 1, 3, 1, 2, 4, 1]
ENDS = np.cumsum([0, *SIZES])
N_ROWS = int(ENDS[-1])
ROWS = np.random.default_rng(2).normal(size=(N_ROWS, 3)).astype(np.float32)
COORDS = np.arange(2 * N_ROWS, dtype=np.int64).reshape(-1, 2) * 256
NOTES = [f"røw, {i}" if i % 3 else "" for i in range(N_ROWS)]
TIMES = np.where(np.arange(N_ROWS) % 4, np.arange(N_ROWS) / 4, np.nan)
IDS = [f"slide_{i}" for i in range(N_BAGS)]


def own(values, bag):
    return values[ENDS[bag] : ENDS[bag + 1]]


def check(store, *names, order=range(N_BAGS)):
    """The store has the values above beside the bags that they belong to."""
    want = {"coords": COORDS, "x_at": COORDS[:, 0], "note": np.array(NOTES, object), "time": TIMES}
    assert [column.name for column in store.kept_columns] == sorted(names)
    assert len(store) == len(order)
    for i, bag in enumerate(order):
        assert store[i].id == IDS[bag]
        assert store[i].rows.tobytes() == own(ROWS, bag).tobytes()
        for name in names:
            assert str(store[i].kept[name].tolist()) == str(own(want[name], bag).tolist()), name


def write_hdf5(folder, bag):
    with h5py.File(folder / f"{IDS[bag]}.h5", "w") as file:
        file["features"] = own(ROWS, bag)
        file["coords"] = own(COORDS, bag)[None]
        file["note"] = own(NOTES, bag)
        file["time"] = own(TIMES, bag).astype(">f8")


def write_npz(folder, bag):
    np.savez_compressed(
        folder / f"{IDS[bag]}.npz",
        features=own(ROWS, bag),
        coords=own(COORDS, bag),
        note=np.array(own(NOTES, bag)),
        time=own(TIMES, bag),
    )


def write_npy(folder, bag):
    for name, values in (("coords", COORDS), ("time", TIMES), ("note", np.array(NOTES))):
        (folder.parent / name).mkdir(exist_ok=True)
        np.save(folder.parent / name / f"{IDS[bag]}.npy", own(values, bag))
    np.save(folder / f"{IDS[bag]}.npy", own(ROWS, bag))


def write_parquet(folder, bag):
    columns = {f"f{i}": own(ROWS, bag)[:, i] for i in range(3)}
    columns |= {"coords": own(COORDS, bag).tolist(), "note": own(NOTES, bag)}
    columns["time"] = pa.array(own(TIMES, bag), from_pandas=True)
    pq.write_table(pa.table(columns), folder / f"{IDS[bag]}.parquet")


def cells(bags, *, with_ids):
    """Lines of CSV with a column for each feature and kept value."""
    for bag in bags:
        for row in range(ENDS[bag], ENDS[bag + 1]):
            time = "" if np.isnan(TIMES[row]) else TIMES[row]
            label = "ab"[bag % 2]
            line = [COORDS[row, 0], *map(float, ROWS[row]), NOTES[row], time]
            yield [IDS[bag], label, *line] if with_ids else line


def write_csv(folder, bag):
    with (folder / f"{IDS[bag]}.csv").open("w", newline="") as file:
        lines = [["x_at", "f0", "f1", "f2", "note", "time"], *cells([bag], with_ids=False)]
        csv.writer(file).writerows(lines)


@pytest.mark.parametrize("write", [write_hdf5, write_npz, write_npy, write_parquet, write_csv])
def test_file_a_bag__keeps_columns(write, backend, tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    for bag in range(N_BAGS):
        write(folder, bag)
    (tmp_path / "l.csv").write_text("id,label\n" + "".join(f"{name},a\n" for name in IDS))
    names = ("x_at" if write is write_csv else "coords", "note", "time")
    options = SourceOptions(bag_labels=str(tmp_path / "l.csv"), keep=names, span_bytes=40)
    store = convert(folder, tmp_path / f"o.{backend}", options=options).store
    check(store, *names)
    assert store.check() == []
    assert compare(store, folder, options).is_same
    # Without --keep, arrays and columns of other types are left out as before.
    if write not in (write_parquet, write_csv):
        store = convert(folder, tmp_path / "p.zarr", options=replace(options, keep=None)).store
        assert store.kept_columns == ()


def long_csv(folder, bags=range(N_BAGS), name="a.csv"):
    with (folder / name).open("w", newline="") as file:
        head = ["slide", "label", "x_at", "f0", "f1", "f2", "note", "time"]
        csv.writer(file).writerows([head, *cells(bags, with_ids=True)])
    return folder / name


def long_table():
    columns = {"slide": np.repeat(IDS, SIZES).tolist(), "label": ["a"] * N_ROWS}
    columns |= {f"f{i}": ROWS[:, i] for i in range(3)}
    columns |= {"coords": COORDS.tolist(), "note": NOTES, "x_at": COORDS[:, 0]}
    return pa.table(columns | {"time": pa.array(TIMES, from_pandas=True)})


CSV_OPTIONS = SourceOptions(bag_column="slide", keep=("x_at", "note", "time"), span_bytes=64)


def test_csv__keeps_columns_in_any_span_and_on_workers(tmp_path):
    source = long_csv(tmp_path)
    store = convert(source, tmp_path / "a.zarr", options=CSV_OPTIONS).store
    check(store, "x_at", "note", "time")
    assert store.kept_columns == (
        KeptColumn("note", "text"),
        KeptColumn("time", "float64"),
        KeptColumn("x_at", "int64"),
    )
    assert store.feature_names == ["f0", "f1", "f2"]
    other = convert(source, tmp_path / "b.zarr", options=CSV_OPTIONS, workers=2).store
    assert content(Path(other.name)) == content(Path(store.name))
    assert compare(store, source, CSV_OPTIONS).is_same
    assert run(["info", store.name]) == 0


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("form", ["long", "nested"])
def test_arrow__keeps_columns(form, suffix, tmp_path):
    table = long_table()
    if form == "nested":
        lists = {
            name: [own(table[name].to_pylist(), bag) for bag in range(N_BAGS)]
            for name in ("coords", "note", "time", "x_at")
        }
        rows = [own(ROWS, bag).tolist() for bag in range(N_BAGS)]
        kind = pa.list_(pa.list_(pa.float32()))
        columns = {"slide": IDS, "label": ["a"] * N_BAGS, "rows": pa.array(rows, kind), **lists}
        table = pa.table(columns)
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=3)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    options = replace(CSV_OPTIONS, keep=("coords", "note", "time", "x_at"), span_bytes=400)
    store = convert(path, tmp_path / "a.zarr", options=options).store
    check(store, "coords", "note", "time", "x_at")
    assert compare(store, path, options).is_same


@pytest.mark.parametrize("kind", [pa.table, lambda table: table.to_pandas()])
def test_table__keeps_columns_of_rows_in_any_order(kind, tmp_path):
    order = np.random.default_rng(0).permutation(N_ROWS)
    order = order[np.argsort(np.repeat(np.arange(N_BAGS), SIZES)[order] % 2, kind="stable")]
    table = kind(long_table().take(pa.array(order)))
    options = {"bag": "slide", "labels": "label", "keep": "x_at"}
    store = sm.convert(table, tmp_path / "a.zarr", feature_columns=["f*"], **options).store
    place = {tuple(row): at for row, at in zip(ROWS.tolist(), COORDS[:, 0].tolist(), strict=True)}
    for bag in store:
        assert [place[tuple(row)] for row in bag.rows.tolist()] == bag.kept["x_at"].tolist()


@pytest.mark.parametrize(
    "settings",
    [
        ConvertConfig(split="a=.5,b=.5", seed=1),
        ConvertConfig(shuffle=True, seed=2),
        ConvertConfig(shuffle=True, split="a=.5,b=.5"),
        ConvertConfig(split="a=.5,b=.5", stratify=True),
        ConvertConfig(where_label=("b",)),
        ConvertConfig(limit=3),
    ],
)
def test_convert__kept_values_stay_with_their_rows(settings, tmp_path):
    source = long_csv(tmp_path)
    stores = convert(source, tmp_path / "a.parquet", settings, CSV_OPTIONS).stores
    assert any(len(store) for store in stores)
    for store in stores:
        order = [IDS.index(name) for name in store.bag_ids(0, len(store))]
        check(store, "x_at", "note", "time", order=order)
        assert compare(store, source, CSV_OPTIONS, subset=True).is_same


def test_group__joins_kept_values_of_a_bag(tmp_path):
    lines = long_csv(tmp_path).read_text().splitlines(keepends=True)
    order = [1, 4, 2, 8, 5, 3, 6, 7, *range(9, N_ROWS + 1)]
    (tmp_path / "apart.csv").write_text("".join([lines[0], *(lines[i] for i in order)]))
    options = replace(CSV_OPTIONS, group=True)
    store = convert(tmp_path / "apart.csv", tmp_path / "a.zarr", options=options).store
    place = {tuple(row): at for row, at in zip(ROWS.tolist(), COORDS[:, 0].tolist(), strict=True)}
    assert len(store) == N_BAGS
    for bag in store:
        assert [place[tuple(row)] for row in bag.rows.tolist()] == bag.kept["x_at"].tolist()


def test_store__keeps_all_or_those_that_are_named(backend, tmp_path):
    block = with_kept(made_block())
    first = write_store(tmp_path / f"a.{backend}", block, n_labels=4)
    for keep, names in (
        (None, ["coords", "note", "time"]),
        (("time",), ["time"]),
        (("none",), []),
    ):
        out = tmp_path / f"{len(names)}.{'zarr' if backend == 'parquet' else 'parquet'}"
        store = convert(first.name, out, options=SourceOptions(keep=keep)).store
        assert [column.name for column in store.kept_columns] == names
        assert store.manifest.format_version == (2 if names else 1)
        assert store.fingerprint == first.fingerprint
        assert str(store.kept(3, 6)) == str({n: block.slice(3, 6).kept[n] for n in names})
        assert compare(store, first.name).is_same
    with pytest.raises(SourceError, match=r"has no kept column 'x' \(--keep\); kept columns: coo"):
        convert(first.name, tmp_path / "b.zarr", options=SourceOptions(keep=("x",)))


def test_conversion_that_was_stopped__gives_the_same_store(tmp_path):
    source = long_csv(tmp_path)
    want = convert(source, tmp_path / "a.zarr", options=CSV_OPTIONS).store
    plan = tmp_path / ".b.zarr.partial" / "plan.json"

    def stop(progress):
        if progress.bags > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "b.zarr", options=CSV_OPTIONS, watch=stop)
    assert '"keep": ["x_at", "note", "time"]' in plan.read_text()
    with pytest.raises(StoreError, match=r"was begun with other options \(--keep\); remove"):
        convert(source, tmp_path / "b.zarr", options=replace(CSV_OPTIONS, keep=("note",)))
    store = convert(source, tmp_path / "b.zarr", options=CSV_OPTIONS).store
    assert content(Path(store.name)) == content(Path(want.name))


def test_plan_without_keep__is_that_of_earlier_versions(tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    source = save_npz(tmp_path / "d.npz", made_block(9))
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "b.zarr", options=SourceOptions(span_bytes=64), watch=stop)
    folder = tmp_path / ".b.zarr.partial"
    for path in (folder / "plan.json", folder / "store" / "begun.json"):
        assert b'"ke' not in path.read_bytes()


def test_verify_source__compares_kept_values(tmp_path, capsys):
    source = long_csv(tmp_path)
    store = convert(source, tmp_path / "a.zarr", options=CSV_OPTIONS).store
    other = tmp_path / "other.csv"
    other.write_text(source.read_text().replace("røw, 7", "row, 7"))
    comparison = compare(store, other, CSV_OPTIONS)
    assert comparison.different == 1
    assert "('slide_4') has other values of 'note' in the store than in" in comparison.first
    assert compare(store, other, CSV_OPTIONS, any_order=True).different == 1
    fewer = {"keep": ("x_at", "time"), "feature_columns": ("f*",)}
    assert compare(store, other, replace(CSV_OPTIONS, **fewer)).is_same
    words = ["verify", store.name, "--source", str(source), "--bag-column", "slide"]
    assert run([*words, "--keep", "x_at", "--keep", "note", "--keep", "time"]) == 0
    assert "7 bags are as in the source" in capsys.readouterr().out


def test_export__writes_kept_columns(tmp_path, capsys):
    source = long_csv(tmp_path)
    store = convert(source, tmp_path / "a.zarr", options=CSV_OPTIONS).store
    assert run(["export", store.name, str(tmp_path / "b.csv")]) == 0
    assert "give --keep note --keep time --keep x_at to convert" in capsys.readouterr().out
    options = replace(CSV_OPTIONS, bag_column="bag", labels=("a", "b"))
    again = convert(tmp_path / "b.csv", tmp_path / "b.zarr", options=options).store
    check(again, "x_at", "note", "time")
    export(store, tmp_path / "b.npz")
    arrays = np.load(tmp_path / "b.npz")
    assert arrays["kept_note"].tolist() == NOTES
    assert arrays["kept_x_at"].tolist() == COORDS[:, 0].tolist()
    out, *_ = export(store, tmp_path / "b.jsonl")
    assert f'"kept":{{"note":["{NOTES[0]}","{NOTES[1]}"]' in out.read_text().splitlines()[0]
    wide = write_store(tmp_path / "w.zarr", with_kept(made_block()), n_labels=4)
    export(wide, tmp_path / "w.csv")
    assert "coords_0" in (tmp_path / "w.csv").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"f0": [0.0] * 12}, "a kept column would have the name 'f0' of another column; export"),
        ({"a": ["x\n"] * 12}, "a text of 'a' has a line break, which no line of CSV can hold"),
        ({"a": ["=1+1"] * 12}, "the text of 'a' '=1\\+1' would be a formula in a spreadsheet"),
    ],
)
def test_export__refuses_kept_columns_that_csv_cannot_hold(kept, message, tmp_path):
    bags = [np.ones((1, 2), np.float32)] * 12
    keep = {name: [[value] for value in values] for name, values in kept.items()}
    store = sm.write_store(tmp_path / "a.zarr", bags, [["x"]] * 12, keep=keep)
    with pytest.raises(StreammimlError, match=message):
        export(store, tmp_path / "b.csv")


# --- refusals ----------------------------------------------------------------------------------


def refused(source, tmp_path, message, **options):
    with pytest.raises(SourceError, match=message) as caught:
        convert(source, tmp_path / "o.zarr", options=SourceOptions(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("z", r"a.csv: no column is called 'z' \(--keep\); the columns are slide"),
        ("slide", "a.csv: column 'slide' names or labels bags or rows, and cannot be kept too"),
        ("label", "a.csv: which columns hold labels"),
    ],
)
def test_csv__refuses_columns_that_cannot_be_kept(keep, message, tmp_path):
    refused(long_csv(tmp_path), tmp_path, message, bag_column="slide", keep=(keep,))


def test_csv__refuses_names_features_and_other_forms(tmp_path):
    path = long_csv(tmp_path)
    text = path.read_text()
    path.write_text(text.replace("note", "no/te"))
    refused(path, tmp_path, "'no/te' cannot be kept: names of", bag_column="slide", keep=("no/te",))
    path.write_text(text)
    message = "column 'f0' is a feature and has another role too"
    features = {"feature_columns": ("f0", "f1"), "keep": ("f0",)}
    refused(path, tmp_path, message, bag_column="slide", **features)
    (tmp_path / "m.csv").write_text("1\na,0.5,1\nb,0.25,0\n")
    refused(tmp_path / "m.csv", tmp_path, "--keep needs one file with a line a row", keep=("1",))


def test_other_formats__refuse_keep(tmp_path):
    path = tmp_path / "d.svmlight"
    path.write_text("0 qid:1 1:1\n")
    refused(path, tmp_path, "svmlight files have no columns to keep; leave out", keep=("coords",))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array(["a", None] * 7), r"record 1: 'v' is null or contains a null"),
        (pa.array([1, None] * 7), r"record 1: 'v' is null or contains a null"),
        (pa.array([None] * 14, pa.timestamp("s")), r"column 'v' of type timestamp\[ms\] cannot be"),
        (pa.array([["a"]] * 14), r"column 'v' of type list<.*string> cannot be kept; expected a"),
        (pa.array([[1, 2]] * 9 + [[1]] * 5), r"record 9: 'v' has 1 values, expected 2 for each"),
    ],
)
def test_arrow__refuses_values_that_cannot_be_kept(values, message, tmp_path):
    table = long_table().append_column("v", values)
    pq.write_table(table, tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", tmp_path, message, bag_column="slide", keep=("v",),
            feature_columns=("f*",))  # fmt: skip


def test_arrow__refuses_lists_of_other_lengths_than_the_bag(tmp_path):
    rows = pa.array([[[1.0]], [[2.0], [3.0]]], pa.list_(pa.list_(pa.float32())))
    table = pa.table({"id": ["a", "b"], "label": ["x", "y"], "rows": rows, "v": [[1], [2]]})
    pq.write_table(table, tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", tmp_path, "record 1: 1 values of 'v' for 2 rows", keep=("v",))


def file_a_bag(tmp_path, **arrays):
    folder = tmp_path / "slides"
    folder.mkdir(exist_ok=True)
    np.savez(folder / "b0.npz", features=ROWS[:2], v=np.arange(2))
    np.savez(folder / "b1.npz", features=ROWS[:3], **arrays)
    (tmp_path / "l.csv").write_text("id,label\nb0,a\nb1,b\n")
    return folder


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"b1.npz has no array 'v' \(--keep\); arrays: features"),
        ({"v": np.arange(2)}, r"b1.npz: 2 values of 'v' \(--keep\) for 3 rows"),
        (
            {"v": np.zeros((3, 2), int)},
            r"'v' \(--keep\) is v \(2 int64\), but .*b0.npz has v \(int6",
        ),
        ({"v": np.array(["a"] * 3)}, r"'v' \(--keep\) is v \(text\), but .*b0.npz has v \(int64\)"),
        ({"v": np.zeros(3, complex)}, r"holds complex128 of shape \(0,\), which cannot be kept"),
        ({"v": np.zeros((3, 2, 2))}, r"which cannot be kept; expected numbers \(rows,\) or"),
    ],
)
def test_file_a_bag__refuses_values_that_cannot_be_kept(arrays, message, tmp_path):
    folder = file_a_bag(tmp_path, **arrays)
    refused(folder, tmp_path, message, bag_labels=str(tmp_path / "l.csv"), keep=("v",))


def test_file_a_bag__holds_the_types_of_all_files(tmp_path):
    folder = file_a_bag(tmp_path, v=np.array([0.5, 1, 2], np.float32))
    options = SourceOptions(bag_labels=str(tmp_path / "l.csv"), keep=("v",))
    store = convert(folder, tmp_path / "o.zarr", options=options).store
    assert store.kept(0, 2)["v"].tolist() == [0, 1, 0.5, 1, 2]
    assert store.kept(0, 2)["v"].dtype == np.float64


def test_npy__refuses_a_missing_file_and_a_change_of_kept_files(tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    for bag in range(N_BAGS):
        write_npy(folder, bag)
    (tmp_path / "l.csv").write_text("id,label\n" + "".join(f"{name},a\n" for name in IDS))
    options = SourceOptions(bag_labels=str(tmp_path / "l.csv"), keep=("coords",), span_bytes=40)

    def change(_):
        np.save(tmp_path / "coords" / f"{IDS[0]}.npy", own(COORDS, 0) + 1)

    with pytest.raises(SourceError, match=r"coords/slide_0.npy has changed its content during"):
        convert(folder, tmp_path / "o.zarr", options=options, watch=change)
    (tmp_path / "coords" / f"{IDS[3]}.npy").unlink()
    with pytest.raises(SourceError, match=r"slide_3.npy: there is no .*coords/slide_3.npy with"):
        convert(folder, tmp_path / "p.zarr", options=options)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"v": [[1], [1, 2]]}, "bag 0 has 2 rows, but 1 values of 'v' to keep"),
        ({"v": [[1, 2]]}, "2 bags, but 'v' to keep of 1"),
        ({"v": [[1, 2], ["a"]]}, "'v' of bag 1 is text, 1 a row, unlike that of bag 0: int64, 1 a"),
        ({"v": [[1, 2], [[1, 2]]]}, "'v' of bag 1 is int64, 2 a row, unlike that of bag 0"),
        ({"v": [[1, [2, 3]], [1]]}, "bag 0: 'v' cannot be made an array"),
        (
            {"v": [[1j, 2], [1]]},
            r"bag 0: 'v' holds complex128 of shape \(2,\), which cannot be",
        ),
        ({"v": [[None, "a"], ["b"]]}, r"bag 0: 'v' holds other values of shape \(2,\)"),
        ({"a.b": [[1, 2], [1]]}, r"'a.b' cannot be kept: names of kept columns"),
    ],
)
def test_write_store__refuses_values_that_cannot_be_kept(keep, message, tmp_path):
    with pytest.raises(StreammimlError, match=message):
        sm.write_store(tmp_path / "a.zarr", [ROWS[:2], ROWS[:1]], [["a"], ["b"]], keep=keep)


def test_write_store__keeps_lists_and_series_in_the_order_of_ids(tmp_path):
    keep = {
        "note": [["a", "b"], ["c"]],
        "xy": [[[1, 2], [3, 4]], np.array([[5.5, 6]])],
        "ok": pd.Series([[True], [False, True]], index=["q", "p"]),
    }
    bags, ids = [ROWS[:2], ROWS[2:3]], ["p", "q"]
    store = sm.write_store(tmp_path / "a.parquet", bags, [["a"], ["b"]], ids=ids, keep=keep)
    assert store.kept(0, 2)["note"].tolist() == ["a", "b", "c"]
    assert store.kept(0, 2)["xy"].tolist() == [[1, 2], [3, 4], [5.5, 6]]
    assert store.kept(0, 2)["ok"].tolist() == [0, 1, 1]
    assert store.kept_columns[1] == KeptColumn("ok", "uint8")


# --- cells -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-20", "0"], "int64"),
        (["1", ""], "float64"),
        (["1", "2.5", "1e3"], "float64"),
        (["1", "x"], "text"),
        (["007", "1"], "text"),
        (["1" * 19], "float64"),
        (["", ""], "empty"),
    ],
)
def test_type_of_cells__is_the_narrowest(values, kind):
    assert type_of_cells(pa.chunked_array([values])) == kind


@pytest.mark.parametrize(
    ("blocks", "kind"),
    [
        ([["1"], ["2"]], "int64"),
        ([["1"], [""]], "float64"),
        ([["1"], ["0.5"], ["2"]], "float64"),
        ([["a"], ["1"]], "text"),
        ([[""], [""]], "text"),
    ],
)
def test_cell_types__join_the_blocks_of_a_column(blocks, kind):
    types = CellTypes(["x"])
    for block in blocks:
        types.add("x", pa.chunked_array([block]))
    assert types.columns() == (KeptColumn("x", kind),)


def test_values_of_cells__that_changed_since_the_first_pass_are_refused():
    cells_now = pa.chunked_array([["1", "2", "x"]])
    with pytest.raises(SourceError, match="line 2: column 'v' to keep is 'x', expected int64 as"):
        values_of_cells(cells_now, KeptColumn("v", "int64"), lambda row: f"line {row}")
