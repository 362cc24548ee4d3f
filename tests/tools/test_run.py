"""tools/run.py: which environment a job gets, and one line for what the user can put right."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RUN = ROOT / "tools" / "run.py"


@pytest.fixture
def job(monkeypatch, tmp_path):
    """The script as a module that takes ``tmp_path`` for the clone."""
    spec = importlib.util.spec_from_file_location("run_of_tools", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PROJECT", tmp_path / "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text('x = ["a-b[c]>=1.2", "d>=3", "e==4", "streammiml[f]"]')
    return module


def test_environment__is_dot_venv_unless_that_is_of_another_python(job, tmp_path):
    assert job.folder_for(lowest=False) == tmp_path / ".venv"
    (tmp_path / ".venv").mkdir()
    settings = tmp_path / ".venv" / "pyvenv.cfg"
    settings.write_text("home = /usr/bin\nversion = 3.1.4\n")
    assert job.version_of(tmp_path / ".venv") == "3.1"
    here = "{}.{}".format(*sys.version_info)
    assert job.folder_for(lowest=False) == tmp_path / f".venv-{here}"
    settings.write_text(f"version = {here}.0\n")
    assert job.folder_for(lowest=False) == tmp_path / ".venv"
    assert job.folder_for(lowest=True) == tmp_path / f".venv-lowest-{here}"


def test_lowest__pins_every_floor(job):
    assert job.lowest_versions() == "a-b==1.2\nd==3\n"


def test_environment__that_cannot_be_made_is_one_line(job, monkeypatch, tmp_path):
    def fails(*_, **__):
        raise subprocess.CalledProcessError(1, [sys.executable, "-m", "ensurepip", "--upgrade"])

    monkeypatch.setattr(job.venv, "create", fails)
    with pytest.raises(job.Refused, match=r"cannot make an environment; install its venv and pip"):
        job.environment("demo", lowest=False)
    assert not (tmp_path / ".venv" / "installed-demo").exists()


def test_installation__that_fails_is_one_line_and_is_tried_again(job, monkeypatch):
    calls = []

    def fails(words, **_):
        if "--version" in words:
            return subprocess.CompletedProcess(words, 0)
        calls.append(words)
        raise subprocess.CalledProcessError(1, words)

    monkeypatch.setattr(job.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(job.subprocess, "run", fails)
    for _ in range(2):
        with pytest.raises(
            job.Refused, match=r"pip could not install into .*; see the last lines of pip"
        ):
            job.environment("demo", lowest=False)
    assert len(calls) == 2


def test_environment__without_pip_gets_it(job, monkeypatch):
    calls = []

    def run(words, **_):
        calls.append(words[2:])
        return subprocess.CompletedProcess(words, "--version" in words)

    monkeypatch.setattr(job.venv, "create", lambda folder, **_: folder.mkdir())
    monkeypatch.setattr(job.subprocess, "run", run)
    job.environment("demo", lowest=False)
    assert calls[:2] == [["pip", "--version"], ["ensurepip"]]
    assert calls[2][:2] == ["pip", "install"]


def test_environment__where_nothing_can_be_written_is_one_line(job, tmp_path):
    (tmp_path / ".venv").write_text("a file")
    with pytest.raises(job.Refused, match=r"\.venv cannot be made: "):
        job.environment("demo", lowest=False)


def test_environment__of_uv_has_a_version_too(job, tmp_path):
    (tmp_path / "pyvenv.cfg").write_text("uv = 0.9\nversion_info = 3.12.1\n")
    assert job.version_of(tmp_path) == "3.12"


def test_command__without_a_job_shows_what_there_is():
    for words in ([], ["dmeo"], ["exec"], ["--lowest"]):
        done = subprocess.run([sys.executable, RUN, *words], capture_output=True, text=True)
        assert done.returncode == 2
        assert "python3 tools/run.py demo" in done.stderr


def test_docs__are_built_in_an_environment_that_has_their_tools(job, monkeypatch):
    extras, commands = [], []

    def environment(extra, **_):
        extras.append(extra)
        return Path("/env/bin")

    monkeypatch.setattr(job, "environment", environment)
    monkeypatch.setattr(
        job.subprocess,
        "run",
        lambda words, **_: commands.append(words) or subprocess.CompletedProcess(words, 0),
    )
    assert job.main(["docs", "somewhere"]) == 0
    assert extras == ["docs"]
    [command] = commands
    assert list(map(str, command)) == [
        "/env/bin/python",
        "-m",
        "streammiml_tools.docs",
        "somewhere",
    ]
