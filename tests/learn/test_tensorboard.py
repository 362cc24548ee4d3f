"""Event files: what TensorBoard would read is the history."""

import importlib
import json
import struct
import sys

import pytest
from crc32c import crc32c

from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.tensorboard import EventFiles
from streammiml.learn.train import train
from tests.planted import planted
from tests.stores import write_store

SMALL = {
    "shared_dim": 8, "subconcepts": 2, "epochs": 3, "validate_every": 90, "checkpoint_every": "100",
    "patience": 50, "validation": 0.1,
}  # fmt: skip


def masked(raw):
    crc = crc32c(raw)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """Records of a file, framed and checked as TensorFlow writes them."""
    raw, at = path.read_bytes(), 0
    while at < len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        assert struct.unpack_from("<I", raw, at + 8)[0] == masked(raw[at : at + 8])
        body = raw[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", raw, at + 12 + size)[0] == masked(body)
        at += 16 + size
        yield body


def events(folder):
    """Events of all files in the order in which they were begun."""
    proto = importlib.import_module("tensorboardX.proto.event_pb2")
    for path in sorted(folder.glob("events.out.*"), key=lambda file: file.stat().st_mtime_ns):
        yield from map(proto.Event.FromString, records(path))


def scalars(folder, tag):
    """Steps and values, with those hidden that a later start takes back."""
    value_of_step = {}
    for event in events(folder):
        if event.HasField("session_log"):
            value_of_step = {
                step: value for step, value in value_of_step.items() if step < event.step
            }
        for value in event.summary.value:
            if value.tag == tag:
                value_of_step[event.step] = value.simple_value
    return sorted(value_of_step.items())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("s") / "s.zarr", planted())


def history(run, name):
    lines = map(json.loads, (run / "history.jsonl").read_text().splitlines())
    return [(line["step"], line[name]) for line in lines]


def assert_shows(folder, run):
    for name in ("validation_loss", "loss", "share_of_violations", "best_loss"):
        shown, kept = scalars(folder, f"train/{name}"), history(run, name)
        assert [step for step, _ in shown] == [step for step, _ in kept]
        assert [value for _, value in shown] == pytest.approx([value for _, value in kept])


def test_events__are_the_lines_of_the_history(store, tmp_path):
    with EventFiles(tmp_path / "events") as watch:
        train(store, TrainConfig(**SMALL), run=tmp_path / "run", watch=watch)
    assert_shows(tmp_path / "events", tmp_path / "run")
    assert len(scalars(tmp_path / "events", "seconds/kernel")) > 5


def test_events__are_those_of_the_first_restart(store, tmp_path):
    with EventFiles(tmp_path / "events") as watch:
        train(store, TrainConfig(**SMALL, restarts=2), run=tmp_path / "run", watch=watch)
    steps = [event.step for event in events(tmp_path / "events") if event.HasField("summary")]
    assert steps == sorted(steps)
    assert_shows(tmp_path / "events", tmp_path / "run")


class Crash(Exception):
    pass


def test_events__of_a_run_that_was_killed_and_resumed_are_those_of_one_run(store, tmp_path):
    def crashing(progress):
        if progress.step >= 395:
            raise Crash

    with EventFiles(tmp_path / "events") as watch, pytest.raises(Crash):
        train(
            store,
            TrainConfig(**SMALL),
            run=tmp_path / "run",
            watch=lambda p: (watch(p), crashing(p)),
        )
    with EventFiles(tmp_path / "events") as watch:
        train(store, TrainConfig(**SMALL), run=tmp_path / "run", resume=True, watch=watch)
    assert_shows(tmp_path / "events", tmp_path / "run")


def test_events__without_the_package_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(StreammimlError, match=r"pip install 'streammiml\[tensorboard\]'"):
        EventFiles(tmp_path)


def test_events__that_cannot_be_written_are_one_line(store, tmp_path):
    (tmp_path / "file").touch()
    with (
        EventFiles(tmp_path / "file" / "events") as watch,
        pytest.raises(StreammimlError, match=r"file/events cannot be written: Not a directory"),
    ):
        train(store, TrainConfig(**SMALL), watch=watch)
