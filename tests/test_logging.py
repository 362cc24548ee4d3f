"""The logger "streammiml": what a service hears of long calls, and that others hear nothing."""

import logging
import os
import signal
import subprocess
import sys

import pytest

import streammiml as sm
from streammiml.config import TrainConfig
from streammiml.learn.stop_signals import Stopped
from streammiml.verbs import main
from tests.planted import planted
from tests.stores import write_store

SMALL = {"shared_dim": 8, "subconcepts": 2, "epochs": 3, "preset": "plain"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("s") / "s.zarr", planted(60))


def heard(caplog):
    """Names of loggers and messages since the last call, without notices of the compiler."""
    records = [(record.name, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return [record for record in records if "compiling kernels" not in record[1]]


def test_records__tell_of_each_call_and_of_the_checkpoints_of_a_run(store, tmp_path, caplog):
    caplog.set_level(logging.INFO, "streammiml")
    config = TrainConfig(**SMALL, checkpoint_every="50")
    sm.train(store, config, run=tmp_path / "run")
    records = heard(caplog)
    # Warnings of the model come from the logger above.
    assert {name for name, _ in records} <= {"streammiml", "streammiml.train"}
    texts = [text for _, text in records]
    assert texts[0] == f"train begins: 60 bags of {store.name}, run {tmp_path / 'run'}"
    folder = tmp_path / "run" / "checkpoints"
    steps = (50, 100, 150, 180)
    assert texts[1:5] == [f"checkpoint of step {step} in {folder}" for step in steps]
    assert texts[-1].startswith("train ends: 180 steps, ")
    sm.evaluate(tmp_path / "run", store)
    begins, ends = heard(caplog)
    assert begins == ("streammiml.evaluate", f"evaluate begins: 60 bags of {store.name}")
    assert ends[1].startswith("evaluate ends: 60 bags, ")
    sm.predict(tmp_path / "run", store, tmp_path / "out")
    sm.predict(tmp_path / "run", store, tmp_path / "out")
    texts = [text for name, text in heard(caplog) if name == "streammiml.predict"]
    begins = f"predict begins: 60 bags of {store.name} in 1 parts, {{}} of them there already"
    assert texts[::2] == [begins.format(0), begins.format(1)]
    assert all(text.startswith(f"predict ends: {tmp_path / 'out'}, ") for text in texts[1::2])


def test_records__tell_of_a_resumed_run_and_of_early_stopping(store, tmp_path, caplog):
    caplog.set_level(logging.INFO, "streammiml")
    config = TrainConfig(
        **{**SMALL, "epochs": 90}, validation=0.3, patience=2, validate_every=40, step_size=0.05
    )

    def stop(progress):
        if progress.step >= 40:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        sm.train(store, config, run=tmp_path / "run", watch=stop)
    checkpoint = next(text for _, text in heard(caplog) if text.startswith("checkpoint of step"))
    step = checkpoint.split()[3]
    model = sm.train(store, run=tmp_path / "run", resume=True)
    texts = [text for _, text in heard(caplog)]
    assert texts[1] == f"train resumes at step {step}"
    assert model.provenance["steps"] < 90 * 42
    said = f"train stopped early at step {model.provenance['steps']:,}; the lowest ranking loss is"
    assert any(text.startswith(said) for text in texts)


def test_records__of_a_conversion(tmp_path, caplog):
    caplog.set_level(logging.INFO, "streammiml")
    (tmp_path / "x.csv").write_text("bag,x,labels\n1,2,a\n2,3,b\n")
    sm.convert(tmp_path / "x.csv", tmp_path / "x.zarr")
    begins, *_, ends = heard(caplog)
    assert begins == ("streammiml.convert", f"convert begins: 1 files to {tmp_path / 'x.zarr'}")
    assert ends[1].startswith("convert ends: 2 bags, ")


def test_library__is_silent_unless_a_program_listens():
    code = (
        "import logging, streammiml; log = logging.getLogger('streammiml'); "
        "log.warning('unheard'); logging.getLogger('streammiml.train').error('unheard'); "
        "logging.basicConfig(level='INFO'); log.info('heard')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == "INFO:streammiml:heard\n"


def test_command__prints_notices_and_warnings_only(capsys):
    handler = main._Notices()
    for name, level in (("", logging.INFO), (".train", logging.INFO), (".x", logging.WARNING)):
        record = logging.LogRecord(f"streammiml{name}", level, "", 0, f"of {name}", (), None)
        handler.handle(record)
    assert capsys.readouterr().err == "streammiml: of \nstreammiml: of .x\n"
