"""A run folder: settings come back, contradictions are named, and it has one owner at a time."""

import errno
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.run_folder import RunFolder, toml

plain = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


def begun(path, **settings):
    with RunFolder(path, resume=False) as folder:
        folder.record(settings)


def test_settings__of_a_whole_config_come_back(tmp_path):
    config = TrainConfig(memory="64MiB", decay=1e-300, seed=2**63 - 1, average=False, max_steps=7)
    begun(tmp_path / "run", **asdict(config), fingerprint="ab")
    with RunFolder(tmp_path / "run", resume=True) as folder:
        assert folder.exists
        recorded = folder.settings()
    assert recorded.pop("fingerprint") == "ab"
    assert TrainConfig(**recorded) == config


@given(st.dictionaries(st.sampled_from("abcdef"), st.none() | plain))
def test_settings__any_plain_value_comes_back(tmp_path_factory, settings):
    path = tmp_path_factory.mktemp("settings") / "run"
    with RunFolder(path, resume=False) as folder:
        folder.record(settings)
        recorded = folder.settings()
    want = {name: value for name, value in settings.items() if value is not None}
    assert recorded == want
    assert {name: type(value) for name, value in recorded.items()} == {
        name: type(value) for name, value in want.items()
    }


def test_settings__that_cannot_be_read_are_named(tmp_path):
    for content in (b"seed = \n", b"\xff\xfe", b"seed 3"):
        path = tmp_path / "run"
        begun(path) if not path.exists() else None
        (path / "settings.toml").write_bytes(content)
        with (
            RunFolder(path, resume=True) as folder,
            pytest.raises(StreammimlError, match=r"settings\.toml cannot be read"),
        ):
            folder.settings()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"shared_dim": 9}, "was begun with shared_dim 8, not 9; leave it out, or begin another"),
        ({"epochs": 7, "lift": "context"}, "was begun with lift 'none', not 'context'"),
        ({"validate_every": 50}, "was begun with validate_every None, not 50"),
        ({"min_labels": 0}, "was begun with min_labels None, not 0"),
    ],
)
def test_check_same__names_the_setting_that_contradicts(given, line, tmp_path):
    begun(tmp_path / "run", shared_dim=8, lift="none", epochs=3, validate_every=None)
    with (
        RunFolder(tmp_path / "run", resume=True) as folder,
        pytest.raises(StreammimlError, match=line),
    ):
        folder.check_same(given)


def test_check_same__lets_pass_what_never_changes_a_step(tmp_path):
    begun(tmp_path / "run", shared_dim=8, epochs=3, memory="1GiB", checkpoint_every="10min")
    with RunFolder(tmp_path / "run", resume=True) as folder:
        folder.check_same(
            {"shared_dim": 8, "epochs": 9, "memory": "2GiB", "checkpoint_every": 5, "max_steps": 3}
        )


def test_run_folder__that_exists_is_refused_without_resume(tmp_path):
    begun(tmp_path / "run")
    with pytest.raises(StreammimlError, match="run exists already; --resume goes on with it"):
        RunFolder(tmp_path / "run", resume=False)


def test_run_folder__an_empty_folder_will_do(tmp_path):
    begun(tmp_path)
    assert (tmp_path / "settings.toml").exists()


def test_run_folder__that_never_began_can_be_begun(tmp_path):
    with RunFolder(tmp_path / "run", resume=False):
        pass
    with RunFolder(tmp_path / "run", resume=False) as folder:
        assert not folder.exists


@pytest.mark.parametrize("resume", [True, False])
def test_run_folder__a_folder_of_something_else_is_left_alone(resume, tmp_path):
    (tmp_path / "zarr.json").write_text("{}")
    with pytest.raises(StreammimlError, match=r"is no run|exists already"):
        RunFolder(tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["zarr.json"]


def test_run_folder__checkpoints_without_settings_are_not_gone_on_with(tmp_path):
    begun(tmp_path / "run")
    (tmp_path / "run/checkpoints/step-000000000001.safetensors").touch()
    (tmp_path / "run/settings.toml").unlink()
    with pytest.raises(StreammimlError, match=r"is no run: it has no settings\.toml"):
        RunFolder(tmp_path / "run", resume=True)


@pytest.mark.parametrize("resume", [True, False])
def test_run_folder__a_file_in_its_place_is_refused(resume, tmp_path):
    (tmp_path / "run").write_text("something")
    with pytest.raises(StreammimlError, match=r"run cannot be written: (Not a|File exists)"):
        RunFolder(tmp_path / "run", resume=resume)


def test_run_folder__one_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StreammimlError, match="run cannot be written: Not a directory"):
        RunFolder(tmp_path / "file" / "run", resume=False)


def test_lock__names_the_owner_and_is_free_when_the_owner_ends(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from streammiml.learn.run_folder import RunFolder\n"
        "folder = RunFolder(Path(sys.argv[1]), resume=True)\nprint('held', flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "held\n"
        line = f"is being written by process {owner.pid} on {os.uname().nodename}; wait for it or"
        for _ in range(2):
            with pytest.raises(StreammimlError, match=line):
                RunFolder(tmp_path / "run", resume=True)
        owner.kill()
    with RunFolder(tmp_path / "run", resume=True):
        pass


def test_leftovers__of_writes_that_were_cut_off_are_cleared_by_the_next_owner(tmp_path):
    begun(tmp_path / "run")
    left = ["model.safetensors.00ff00ff.partial", "checkpoints/step-1.safetensors.12ab12ab.partial"]
    for name in left:
        (tmp_path / "run" / name).write_bytes(b"half")
    with RunFolder(tmp_path / "run", resume=True):
        assert not any((tmp_path / "run" / name).exists() for name in left)


def test_history__is_cut_back_to_the_last_checkpoint(tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        size = folder.note({"step": 1, "what": "é"})
        assert size == (folder.path / "history.jsonl").stat().st_size
        folder.note({"step": 2})
        folder.cut_history(size)
        folder.note({"step": 3})
        lines = (folder.path / "history.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 3]
        folder.cut_history(10**9)
        assert len((folder.path / "history.jsonl").read_text().splitlines()) == 2
        folder.cut_history(0)
        assert (folder.path / "history.jsonl").read_text() == ""


def test_history__that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunFolder(tmp_path / "run", resume=False) as folder:
        folder.note({"step": 1})
        monkeypatch.setattr(Path, "open", full)
        with pytest.raises(StreammimlError, match=r"history\.jsonl is not saved: No space left"):
            folder.note({"step": 1})
        monkeypatch.setattr(os, "truncate", full)
        with pytest.raises(StreammimlError, match=r"history\.jsonl is not saved: No space left"):
            folder.cut_history(0)


def test_toml__reads_back():
    settings = TrainConfig(subconcepts=3, lift="context", max_steps=70).recorded()
    want = {name: value for name, value in settings.items() if value is not None}
    assert tomllib.loads(toml(settings).decode()) == want
