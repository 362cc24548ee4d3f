"""The summary of a run: the command repeats it, and shares of time add up."""

import json
from pathlib import Path

from streammiml.config import TrainConfig
from streammiml.tell.run_record import RunRecord
from streammiml.tell.run_summary import ScoredStore, summarize

HISTORY = [
    {"step": 50, "seconds": 1.0, "epoch": 0, "validation_loss": 0.3,
     "time": {"kernel": 0.5, "waiting": 0.25}, "rows_per_second": 100.0, "mb_per_second": 2.0},
    {"step": 100, "seconds": 2.0, "epoch": 1, "validation_loss": 0.2,
     "time": {"kernel": 1.0, "waiting": 0.25}, "rows_per_second": 300.0, "mb_per_second": 1.0},
]  # fmt: skip


def summary(history=(), **settings):
    recorded = {**TrainConfig(**settings).recorded(), "fingerprint": "f00d"}
    record = RunRecord(
        path=Path("run"), settings=recorded, history=list(history), origin=None, model=None
    )
    return summarize("run", record, ScoredStore("nothing scored"))


def test_command__names_the_settings_that_are_not_the_default():
    command = summary(shared_dim=7, average=False, lift="fourier:10,context").command
    assert command.startswith("streammiml train STORE RUN ")
    assert "--shared-dim 7" in command
    assert "--no-average" in command
    assert "--lift fourier:10,context" in command
    assert "--seed" not in command
    assert "f00d" not in command


def test_settings__are_marked_where_they_differ_from_the_default():
    marked = {name for name, _, differs in summary(shared_dim=7).settings if differs}
    assert marked == {"shared_dim", "fingerprint"}


def test_time__is_the_share_of_all_lines():
    assert summary(HISTORY).time == [("kernel", 0.75), ("waiting", 0.25)]
    assert summary().time == []


def test_facts_and_speed__come_from_the_history():
    run = summary(HISTORY)
    facts, speed = dict(run.facts), dict(run.speed)
    assert facts["Length"] == "100 steps, 1 epochs"
    assert facts["Best ranking loss of held-out bags"] == "0.2000"
    assert facts["Model"] == "not finished"
    assert speed["Steps per second"] == "50"
    assert speed["Rows per second, maximum between two looks"] == "300"
    assert speed["MB of bags per second, maximum between two looks"] == "2.0"


def test_reasons__are_those_that_the_run_folder_records(tmp_path):
    chosen = {"chosen": {"reasons": ["epochs = 7", "0.1 lift none, chosen"]}}
    (tmp_path / "choice.json").write_text(json.dumps(chosen))
    record = RunRecord(path=tmp_path, settings={}, history=[], origin=None, model=None)
    assert summarize("run", record, ScoredStore("none")).reasons == chosen["chosen"]["reasons"]
    assert summary().reasons == []
