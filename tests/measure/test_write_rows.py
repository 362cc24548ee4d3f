"""Row scores beside predictions: those of a plain loop, with the same bytes whatever wrote them."""

import json
import pickle
import re
import tracemalloc
from dataclasses import replace
from importlib import import_module

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml.errors import StreammimlError
from streammiml.measure import output_plan, write_rows
from streammiml.measure.predict import predict
from streammiml.measure.row_records import SCHEMA
from streammiml.measure.row_scores import row_scores
from streammiml.measure.write_parquet import part_path
from streammiml.measure.write_rows import FOLDER, RowOutput, row_path
from streammiml.model import LabelRule
from tests.clusters import inside_client
from tests.measure.models import made_model
from tests.stores import (
    content,
    file_limit,
    made_block,
    made_spec,
    scratch,
    with_kept,
    write_parts,
    write_store,
)

NAMES = ("sea", "sky", "sun", "tree")
MODEL = made_model(rule=LabelRule(), label_names=NAMES)
N_BAGS = 60
BLOCK = made_block(N_BAGS)
FORMS = ["all", "top:2"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_parts(tmp_path_factory.mktemp("rows") / "x.zarr", made_spec(), [BLOCK])


def cut_small(patch):
    """Many parts of few groups, from few bags."""
    patch.setattr(output_plan, "LEAST_PART_BYTES", 1)
    patch.setattr(output_plan, "N_PARTS", 9)
    patch.setattr(output_plan, "GROUP_BYTES", 200)
    patch.setattr(write_rows, "GROUP_RECORDS", 16)


@pytest.fixture
def small(monkeypatch):
    cut_small(monkeypatch)


in_small_parts = pytest.mark.usefixtures("small")


def records(out):
    return ds.dataset(out / FOLDER).to_table().to_pylist()


def expected(rows, labels_of_bag, block=BLOCK):
    """Records by loops over bags, rows and labels."""
    scores = row_scores(MODEL, block)
    for bag in range(len(block)):
        values, start = scores[bag], int(block.bag_offsets[bag])
        labels = labels_of_bag(bag)
        if rows == "all":
            pairs = [(row, label) for row in range(len(values)) for label in labels]
        else:
            count = int(rows.removeprefix("top:"))
            order = {
                label: np.argsort(-values[:, label], kind="stable")[:count] for label in labels
            }
            pairs = [(int(row), label) for label in labels for row in order[label]]
        for row, label in pairs:
            yield {
                "bag": bag,
                "bag_id": f"bag-{bag:04d}",
                "row": row,
                "label": label,
                "label_name": NAMES[label],
                "score": float(values[row, label]),
                "subconcept": int(scores.subconcepts[start + row, label]),
                "above_dummy": bool(scores.above_dummy[start + row, label]),
            }


@in_small_parts
@pytest.mark.parametrize("rows", FORMS)
def test_rows__are_those_of_a_plain_loop(store, tmp_path, rows):
    summary = predict(MODEL, store, tmp_path / "out", rows=rows, labels=["tree", "sky"])
    want = list(expected(rows, lambda _: [1, 3]))
    assert records(tmp_path / "out") == want
    assert summary["n_row_scores"] == len(want)
    assert summary["n_parts"] == len(list((tmp_path / "out" / FOLDER).iterdir())) > 5
    assert ds.dataset(tmp_path / "out" / FOLDER).schema == SCHEMA


@in_small_parts
@pytest.mark.parametrize("rows", FORMS)
def test_rows__have_the_predicted_labels_and_those_of_the_store_by_default(store, tmp_path, rows):
    predict(MODEL, store, tmp_path / "out", rows=rows)
    predictions = predict(MODEL, BLOCK)

    def labels_of_bag(bag):
        return sorted({*predictions.labels[bag].tolist(), *BLOCK.labels_of(bag).tolist()})

    assert records(tmp_path / "out") == list(expected(rows, labels_of_bag))
    wrong = [set(predictions.labels[bag]) ^ set(BLOCK.labels_of(bag)) for bag in range(N_BAGS)]
    assert any(wrong)


def test_rows__of_a_store_without_labels_have_the_predicted_labels(tmp_path):
    block = replace(BLOCK, label_offsets=np.zeros(N_BAGS + 1, np.int64), label_indices=[])
    block = replace(block, label_indices=np.empty(0, np.int32))
    unknown = write_store(tmp_path / "unknown.zarr", block)
    predict(MODEL, unknown, tmp_path / "out", rows="all")
    predictions = predict(MODEL, BLOCK)
    want = list(expected("all", lambda bag: predictions.labels[bag].tolist()))
    assert records(tmp_path / "out") == want


@in_small_parts
@pytest.mark.parametrize("format", ["parquet", "zarr"])
def test_rows__leave_the_predictions_as_they_are(store, tmp_path, format):
    predict(MODEL, store, tmp_path / "plain", format=format)
    predict(MODEL, store, tmp_path / "rows", format=format, rows="top:1")
    plain, rows = content(tmp_path / "plain"), content(tmp_path / "rows")
    own = {name for name in rows if name.startswith(FOLDER)}
    assert own
    differ = {name for name in plain if rows[name] != plain[name]}
    assert differ == {name for name in plain if name.startswith("_parts/")} | {"_settings.json"}
    assert set(rows) == {*plain, *own}


@in_small_parts
def test_rows__the_folder_itself_is_still_a_table_of_predictions(store, tmp_path):
    predict(MODEL, store, tmp_path / "out", rows="all", labels="all")
    assert pq.read_table(tmp_path / "out").num_rows == N_BAGS
    assert pq.read_table(tmp_path / "out" / FOLDER).num_rows == 4 * BLOCK.n_rows


@settings(max_examples=8, deadline=None)
@given(
    block_bytes=st.sampled_from([1, 100, 333, 2000, 1 << 20]),
    threads=st.integers(1, 3),
    rows=st.sampled_from(FORMS),
    labels=st.sampled_from([None, "tree"]),
)
def test_rows__are_the_same_to_the_byte_whatever_the_memory_and_threads(
    store, block_bytes, threads, rows, labels
):
    with pytest.MonkeyPatch.context() as patch, scratch() as folder:
        cut_small(patch)
        how = {"rows": rows, "labels": labels}
        predict(MODEL, store, folder / "a", threads=1, **how)
        predict(MODEL, store, folder / "b", threads=threads, block_bytes=block_bytes, **how)
        assert content(folder / "a") == content(folder / "b")


@in_small_parts
@pytest.mark.parametrize("labels", [None, ["sun"]])
def test_rows__are_the_same_on_a_client(store, tmp_path, labels):
    how = {"rows": "top:2", "labels": labels}
    predict(MODEL, store, tmp_path / "clean", **how)
    with inside_client() as client:
        predict(MODEL, store, tmp_path / "out", client=client, **how)
        assert content(tmp_path / "out") == content(tmp_path / "clean")
        order = np.arange(N_BAGS)[::-1]
        predict(MODEL, store.view(order), tmp_path / "view", client=client, **how)
    by_bag = {}
    for record in records(tmp_path / "clean"):
        by_bag.setdefault(record["bag_id"], []).append(record["score"])
    again = {}
    for record in records(tmp_path / "view"):
        again.setdefault(record["bag_id"], []).append(record["score"])
    assert again == by_bag
    assert [*again] == [*by_bag][::-1]


@in_small_parts
@pytest.mark.parametrize("format", ["parquet", "zarr"])
def test_rows__damaged_or_missing_files_are_written_again(store, tmp_path, format):
    out, how = tmp_path / "out", {"rows": "all", "format": format}
    summary = predict(MODEL, store, out, **how)
    before = content(out)
    raw = bytearray(row_path(out, 1).read_bytes())
    raw[len(raw) // 2] ^= 1
    row_path(out, 1).write_bytes(raw)
    row_path(out, 3).unlink()
    row_path(out, 4).write_bytes(row_path(out, 4).read_bytes()[:-1])
    again = predict(MODEL, store, out, **how)
    assert again["n_parts_kept"] == summary["n_parts"] - 3
    assert again["n_row_scores"] == summary["n_row_scores"]
    assert content(out) == before


@in_small_parts
def test_rows__other_settings_are_refused_by_name(store, tmp_path):
    out = tmp_path / "out"
    predict(MODEL, store, out, rows="top:2", labels="tree,sea")
    recorded = json.loads((out / "_settings.json").read_text())["rows"]
    assert recorded == "top:2 of labels 0, 3"
    before = content(out)
    predict(MODEL, store, out, rows="top:2", labels=[0, "tree"])
    for change, message in [
        ({}, f"was begun with rows '{recorded}', not None; name another folder"),
        (
            {"rows": "all", "labels": "sea"},
            f"was begun with rows '{recorded}', not 'all of labels 0'; name another folder",
        ),
        (
            {"rows": "top:2"},
            f"was begun with rows '{recorded}', not 'top:2 of the own labels of each bag'; name",
        ),
    ]:
        with pytest.raises(StreammimlError, match=message):
            predict(MODEL, store, out, **change)
    assert content(out) == before
    predict(MODEL, store, tmp_path / "plain")
    with pytest.raises(StreammimlError, match="was begun with rows None, not 'all of the own"):
        predict(MODEL, store, tmp_path / "plain", rows="all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rows": "some"},
            "^rows is 'some'; expected all, or top:N for the N highest rows of each",
        ),
        ({"rows": "top:0"}, "^rows is 'top:0'; expected all, or top:N"),
        ({"rows": "top:"}, "^rows is 'top:'; expected all, or top:N"),
        ({"rows": "top:-3"}, "^rows is 'top:-3'; expected all, or top:N"),
        ({"rows": 20}, "^rows is 20; expected all, or top:N"),
        ({"rows": "all", "labels": "moon"}, "^no label is called 'moon'; known: sea, sky, sun, tr"),
        ({"labels": "sea"}, "^labels says which row scores are written; give rows too, such as ro"),
    ],
)
def test_rows__bad_options_get_one_line(store, tmp_path, options, message):
    with pytest.raises(StreammimlError, match=message):
        predict(MODEL, store, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"rows": "all"}, {"labels": "sea"}])
def test_rows__of_bags_in_memory_are_another_call(options):
    with pytest.raises(
        StreammimlError, match=r"^rows and labels are for predictions in a folder; "
    ):
        predict(MODEL, BLOCK, **options)


def test_rows__a_row_whose_score_is_no_number_leaves_no_part(tmp_path):
    block = made_block(12)
    block.rows[block.bag_offsets[7]] = 3e38
    bags = write_store(tmp_path / "x.zarr", block, n_labels=4)
    message = f"^{re.escape(bags.name)}: (row 0 of )?bag 7 has a score that is not a finite number"
    with pytest.raises(StreammimlError, match=message):
        predict(MODEL, bags, tmp_path / "out", rows="all")
    assert not list((tmp_path / "out").rglob("*part-*"))


def test_rows__a_full_disk_is_told_by_the_name_of_the_file(tmp_path):
    bags = write_store(tmp_path / "x.zarr", made_block(3000), n_labels=4)
    predict(MODEL, bags, tmp_path / "warm", rows="all", labels="all")
    predictions, rows = (
        path(tmp_path / "warm", 0).stat().st_size for path in (part_path, row_path)
    )
    assert predictions + 1000 < rows
    with (
        file_limit(predictions + 1000),
        pytest.raises(
            StreammimlError, match=r"_rows/part-000000.parquet is not written: .* are free"
        ),
    ):
        predict(MODEL, bags, tmp_path / "out", rows="all", labels="all")
    left = {*content(tmp_path / "out")}
    assert left <= {"_settings.json", "part-000000.parquet"}
    predict(MODEL, bags, tmp_path / "out", rows="all", labels="all")
    assert content(tmp_path / "out") == content(tmp_path / "warm")


@in_small_parts
@pytest.mark.parametrize("reader", ["pandas", "polars", "duckdb"])
def test_rows__are_read_by_others(store, tmp_path, reader):
    module = pytest.importorskip(reader)
    predict(MODEL, store, tmp_path / "out", rows="all", labels="all")
    files = f"{tmp_path}/out/{FOLDER}/*.parquet"
    if reader == "duckdb":
        ((best,),) = module.sql(f"select max(score) from '{files}'").fetchall()
    elif reader == "polars":
        best = module.read_parquet(files)["score"].max()
    else:
        best = module.read_parquet(tmp_path / "out" / FOLDER)["score"].max()
    assert best == row_scores(MODEL, BLOCK).scores.max()


@pytest.mark.parametrize("rows", ["all", "top:20"])
def test_rows__of_a_long_bag_take_little_memory(tmp_path, rows):
    """A bag of 100 000 rows and 40 labels has 4 million records: 160 MB, if held at once."""
    n_rows, n_labels = 100_000, 40
    model = made_model(n_labels=n_labels)
    values = np.random.default_rng(0).normal(size=(n_rows, 3)).astype(np.float32)
    bounds = np.array([0, n_rows])
    block = BagBlock(bounds, values, np.zeros(2, np.int64), np.empty(0, np.int32))
    bags = write_store(tmp_path / "x.zarr", block, n_labels=n_labels)
    predict(model, bags, tmp_path / "warm", rows=rows, labels=0)
    pool = pa.default_memory_pool()
    peaks = []
    for name, options in (("plain", {}), ("rows", {"rows": rows, "labels": "all"})):
        tracemalloc.start()
        held = pool.bytes_allocated()
        predict(model, bags, tmp_path / name, threads=1, block_bytes="1MiB", **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert pool.bytes_allocated() <= held
    assert peaks[1] - peaks[0] < 8 << 20
    scores = row_scores(model, values).scores
    table = pq.read_table(tmp_path / "rows" / FOLDER)
    if rows == "all":
        assert table["score"].to_numpy().tobytes() == scores.tobytes()
        assert pq.read_metadata(row_path(tmp_path / "rows", 0)).num_row_groups > 50
    else:
        want = np.sort(scores, axis=0)[::-1][:20].T
        assert table["score"].to_numpy().tobytes() == np.ascontiguousarray(want).tobytes()


@in_small_parts
@pytest.mark.parametrize("rows", FORMS)
def test_rows__have_the_kept_values_of_each_row(tmp_path, rows):
    block = with_kept(BLOCK)
    store = write_store(tmp_path / "k.zarr", block, n_labels=4)
    predict(MODEL, store, tmp_path / "out", rows=rows, labels="all", block_bytes=300)
    got = records(tmp_path / "out")
    assert len(got) >= 2 * N_BAGS
    assert {f"kept_{name}" for name in block.kept} < {*got[0]}
    for record in got:
        row = block.bag_offsets[record["bag"]] + record["row"]
        for name, values in block.kept.items():
            assert str(record[f"kept_{name}"]) == str(values[row : row + 1].tolist()[0]), name
    if rows == "all":
        batches = row_scores(MODEL, store).read_all().to_pylist()
        columns = [name for name in batches[0] if name.startswith("kept_")]
        assert len(columns) == len(block.kept)
        for name in columns:
            assert [str(line[name]) for line in batches] == [str(line[name]) for line in got]


def test_rows__of_zarr_predictions_are_parquet(store, tmp_path):
    predict(MODEL, store, tmp_path / "out", format="zarr", rows="top:1")
    zarr = import_module("zarr")
    assert "scores" in zarr.open_group(tmp_path / "out" / "predictions.zarr", mode="r")
    assert records(tmp_path / "out")


def test_row_output__is_sent_to_workers_without_its_prepared_arrays():
    output = RowOutput.of(MODEL, NAMES, "top:3", "tree,sea")
    again = pickle.loads(pickle.dumps(output))
    assert (again.top, again.is_chosen, again.label_names) == (3, True, NAMES)
    assert again.record() == output.record() == "top:3 of labels 0, 3"
    (_, want), (_, got) = (next(one.scorer.scores(BLOCK, 1000)) for one in (output, again))
    assert got.value.tobytes() == want.value.tobytes()
