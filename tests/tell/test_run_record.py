"""Run records: what a run folder holds, while the run goes on and when it is finished."""

import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml.tell.run_record import read_run
from tests.planted import planted
from tests.stores import write_store


@pytest.fixture
def run(tmp_path):
    store = write_store(tmp_path / "x.zarr", planted(100))
    config = sm.TrainConfig(epochs=2, shared_dim=4, validate_every=50)
    sm.train(store, config, run=tmp_path / "run")
    return tmp_path / "run"


def test_read_run__has_settings_history_and_model(run):
    record = read_run(run)
    assert record.fingerprint == sm.open_store(run.parent / "x.zarr").fingerprint
    assert record.options["shared_dim"] == 4
    assert "fingerprint" not in record.options
    assert [entry["step"] for entry in record.history] == [50, 100, 150, 200]
    assert record.model is not None
    assert record.model.fingerprint == sm.load_model(run).fingerprint


def test_read_run__an_unfinished_run_has_no_model(run):
    (run / "model.safetensors").unlink()
    assert read_run(run).model is None


def test_read_run__an_incomplete_last_line_of_the_history_is_left_out(run):
    history = run / "history.jsonl"
    with history.open("a") as file:
        file.write('{"epoch": 9, "st')
    assert len(read_run(run).history) == 4


def test_read_run__a_damaged_line_of_the_history_is_refused(run):
    history = run / "history.jsonl"
    history.write_text("\n".join(["[3]", *history.read_text().splitlines()]))
    with pytest.raises(StreammimlError, match=r"history.jsonl, line 1 is not a line of a history"):
        read_run(run)


def test_read_run__refuses_a_path_that_is_no_run(tmp_path):
    (tmp_path / "file").write_text("x")
    for name, message in {"file": "a file", ".": "not a run folder", "missing": "missing"}.items():
        with pytest.raises(StreammimlError, match=f" is {message}; a report needs the folder of"):
            read_run(tmp_path / name)
