import io
import json
from collections import defaultdict

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml.measure import output_plan
from streammiml.measure.explain import explain_store
from streammiml.measure.scoring import ScoreOptions
from streammiml.model import LabelRule
from streammiml.verbs.explain import readable
from tests.measure.models import made_model
from tests.stores import (
    made_block,
    made_spec,
    plain,
    scratch,
    with_kept,
    write_parts,
    write_store,
)

MODEL = made_model(rule=LabelRule(), subconcepts=3)
N_BAGS = 60


@pytest.fixture(scope="module", params=["zarr", "parquet"])
def store(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / f"made.{request.param}"
    return write_parts(path, made_spec(), [made_block(N_BAGS)])


def by_loop(records, block, count):
    """Bags of each (label, sub-concept), from the records of predictions, one after the other."""
    entries_of = defaultdict(list)
    for row in records:
        three = zip(row["labels"], row["key_instances"], row["subconcepts"], strict=True)
        for label, key, sub in three:
            entries_of[label, sub].append((-row["scores"][label], row["bag"], key))
    right = {
        place: sum(place[0] in block.labels_of(bag) for _, bag, _ in entries)
        for place, entries in entries_of.items()
    }
    return {place: (len(e), right[place], sorted(e)[:count]) for place, e in entries_of.items()}


def test_explain__agrees_with_a_plain_loop_over_predictions(store, tmp_path):
    explained = explain_store(MODEL, store, tmp_path / "out", typical=3)
    records = ds.dataset(tmp_path / "out" / "bags").to_table().to_pylist()
    want = by_loop(records, made_block(N_BAGS), 3)
    assert len(records) == explained["n_bags"] == N_BAGS
    assert len(want) > 6
    for label in explained["labels"]:
        assert label["n_bags"] == sum(
            n for (own, _), (n, _, _) in want.items() if own == label["label"]
        )
        assert label["name"] == ("sea", "sky", "sun", "tree")[label["label"]]
        for concept in label["subconcepts"]:
            n, right, best = want.pop((label["label"], concept["subconcept"]))
            assert (concept["n_bags"], concept["n_bags_with_label"]) == (n, right)
            assert concept["share"] == n / label["n_bags"]
            entries = concept["typical"]
            assert [(-e["score"], e["bag"], e["row"]) for e in entries] == best
            assert [e["bag_id"] for e in entries] == [f"bag-{e['bag']:04d}" for e in entries]
        held = {concept["subconcept"] for concept in label["subconcepts"]}
        assert held | set(label["empty"]) == {0, 1, 2}
    assert not want
    assert any(label["empty"] for label in explained["labels"])
    assert json.loads((tmp_path / "out" / "explanation.json").read_text()) == explained
    table = pq.read_table(tmp_path / "out" / "subconcepts.parquet").to_pylist()
    assert [(row["label"], row["subconcept"]) for row in table] == [
        (label, sub) for label in range(4) for sub in range(3)
    ]
    assert sum(row["n_bags"] for row in table) == sum(len(row["labels"]) for row in records)


def test_explain__says_of_every_bag_in_a_line_what_its_record_says(store, tmp_path, monkeypatch):
    monkeypatch.setattr(output_plan, "LEAST_PART_BYTES", 1)
    monkeypatch.setattr(output_plan, "N_PARTS", 5)
    explain_store(MODEL, store, tmp_path / "out")
    assert not (tmp_path / "out" / "bags.jsonl").exists()
    explain_store(MODEL, store, tmp_path / "out", jsonl=True)
    records = ds.dataset(tmp_path / "out" / "bags").to_table().to_pylist()
    lines = (tmp_path / "out" / "bags.jsonl").read_text().splitlines()
    assert len(lines) == N_BAGS
    for line, row in zip(map(json.loads, lines), records, strict=True):
        assert (line["bag"], line["bag_id"]) == (row["bag"], row["bag_id"])
        assert [entry["label"] for entry in line["labels"]] == row["labels"]
        assert [entry["name"] for entry in line["labels"]] == row["label_names"]
        assert [entry["row"] for entry in line["labels"]] == row["key_instances"]
        assert [entry["subconcept"] for entry in line["labels"]] == row["subconcepts"]
        scores = [row["scores"][label] for label in row["labels"]]
        assert [entry["score"] for entry in line["labels"]] == scores


def test_explain__lines_have_no_names_where_labels_have_none(tmp_path):
    bags = write_store(tmp_path / "x.zarr", plain(made_block(12)), n_labels=4)
    explain_store(MODEL, bags, tmp_path / "out", jsonl=True)
    lines = map(json.loads, (tmp_path / "out" / "bags.jsonl").read_text().splitlines())
    named = [entry["name"] for line in lines for entry in line["labels"]]
    assert set(named) == {None}


@settings(max_examples=8)
@given(n_parts=st.integers(1, 12), group=st.integers(1, 2000), threads=st.integers(1, 2))
def test_explain__is_the_same_however_it_is_cut(store, n_parts, group, threads):
    with scratch() as folder, pytest.MonkeyPatch.context() as patch:
        want = explain_store(MODEL, store, folder / "one", typical=4)
        patch.setattr(output_plan, "LEAST_PART_BYTES", 1)
        patch.setattr(output_plan, "N_PARTS", n_parts)
        patch.setattr(output_plan, "GROUP_BYTES", group)
        assert (
            explain_store(
                MODEL, store, folder / "two", typical=4, options=ScoreOptions(threads=threads)
            )
            == want
        )


def test_explain__goes_on_and_refuses_to_mix(store, tmp_path):
    out = tmp_path / "out"
    explained = explain_store(MODEL, store, out, typical=3)
    (out / "explanation.json").unlink()
    assert explain_store(MODEL, store, out, typical=3) == explained
    assert (out / "explanation.json").exists()
    with pytest.raises(StreammimlError, match="was begun with typical 3, not 4; name another"):
        explain_store(MODEL, store, out, typical=4)
    (tmp_path / "x").write_text("mine")
    with pytest.raises(StreammimlError, match=r"holds other files \((out|x)\) and no explanations"):
        explain_store(MODEL, store, tmp_path)
    with pytest.raises(StreammimlError, match=r"^typical must be "):
        explain_store(MODEL, store, tmp_path / "new", typical=0)
    with pytest.raises(StreammimlError, match="trained on rows of 4 features and"):
        explain_store(made_model(n_features=4), store, tmp_path / "new")


def test_explain__a_store_without_labels_or_names(tmp_path):
    block = plain(made_block(20))
    bare = block.take(np.arange(20))
    bags = write_store(
        tmp_path / "x.zarr",
        type(bare)(bare.bag_offsets, bare.rows, np.zeros(21, np.int64), np.empty(0, np.int32)),
        n_labels=4,
    )
    explained = explain_store(MODEL, bags, tmp_path / "out")
    concepts = [entry for label in explained["labels"] for entry in label["subconcepts"]]
    assert {entry["n_bags_with_label"] for entry in concepts} == {None}
    assert {label["name"] for label in explained["labels"]} == {None}


def test_public_names__explain():
    assert sm.explain.__module__ == "streammiml.tell.explain"


def test_explain__lists_kept_columns_of_key_instances(tmp_path):
    block = with_kept(made_block(12))
    bags = write_store(tmp_path / "x.zarr", block, n_labels=4)
    explained = explain_store(MODEL, bags, tmp_path / "out", typical=2, jsonl=True)
    typical = [
        entry
        for label in explained["labels"]
        for concept in label["subconcepts"]
        for entry in concept["typical"]
    ]

    def value(bag, row, name):
        found = block.kept_of(bag)[name][row : row + 1].tolist()[0]
        return None if found != found else found

    assert typical
    for entry in typical:
        for name in ("coords", "note", "time"):
            assert entry["kept"][name] == value(entry["bag"], entry["row"], name)
    table = pq.read_table(tmp_path / "out" / "subconcepts.parquet").to_pylist()
    assert next(e for record in table for e in record["typical"])["kept"].keys() == {
        *("coords", "note", "time")
    }
    for line in map(json.loads, (tmp_path / "out" / "bags.jsonl").read_text().splitlines()):
        for label in line["labels"]:
            for name, got in label["kept"].items():
                assert got == value(line["bag"], label["row"], name)
    entry = typical[0]
    coords = ", ".join(map(str, entry["kept"]["coords"]))
    shown = io.StringIO()
    Console(file=shown, width=400).print(readable(explained))
    assert f"{entry['bag_id']}:{entry['row']} (coords {coords}; note" in shown.getvalue()
