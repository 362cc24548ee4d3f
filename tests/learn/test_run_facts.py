"""What a run remembers of where it came from: enough to find its store again, and its memory."""

import json

import pytest

import streammiml as sm
from streammiml.learn.run_facts import FACTS_FILE, FactsWriter, RunFacts, read_run_facts
from streammiml.verbs.main import run as command
from tests.planted import planted
from tests.stores import write_store


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "x.zarr", planted(60))


def test_train__remembers_its_stores_and_its_memory(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(["train", "x.zarr", "run", "--epochs", "2"]) == 0
    facts = read_run_facts(tmp_path / "run")
    assert facts.stores == (str(tmp_path / "x.zarr"),)
    assert (facts.n_bags, facts.n_rows, facts.n_labels) == (60, store.n_rows, 5)
    assert facts.peak_bytes >= facts.bytes_before > 1 << 20


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("restarts", ["1", "2"])
def test_train__a_run_that_has_nothing_left_to_do_keeps_what_it_said(tmp_path, restarts):
    words = ["train", str(tmp_path / "x.zarr"), str(tmp_path / "run"), "--epochs", "2", "--resume"]
    words += ["--restarts", restarts]
    assert command(words) == 0
    before = (tmp_path / "run" / FACTS_FILE).read_bytes()
    assert command(words) == 0
    assert (tmp_path / "run" / FACTS_FILE).read_bytes() == before


def test_witness__of_several_goes_the_most_is_kept(store, tmp_path):
    most = 1 << 50
    config = sm.TrainConfig(epochs=1)
    sm.train(store, config, run=tmp_path / "run", watch=FactsWriter(store, tmp_path / "run"))
    facts = json.loads((tmp_path / "run" / FACTS_FILE).read_text())
    (tmp_path / "run" / FACTS_FILE).write_text(json.dumps({**facts, "peak_bytes": most}))
    facts_writer = FactsWriter(store, tmp_path / "run")
    sm.train(store, run=tmp_path / "run", extend=1, watch=facts_writer)
    facts_writer.finish()
    assert read_run_facts(tmp_path / "run").peak_bytes == most


@pytest.mark.usefixtures("store")
def test_origin__names_every_store_of_several(tmp_path):
    write_store(tmp_path / "y.zarr", planted(20, seed=1))
    both = sm.open_store([tmp_path / "x.zarr", tmp_path / "y.zarr"])
    assert RunFacts.of(both).stores == (str(tmp_path / "x.zarr"), str(tmp_path / "y.zarr"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"stores": 3}', '{"n_bags": 1}', '{"stores": []}']
)
def test_read_origin__what_cannot_be_read_is_no_origin(tmp_path, text):
    assert read_run_facts(tmp_path) is None
    (tmp_path / FACTS_FILE).write_text(text)
    assert read_run_facts(tmp_path) is None
