"""The command itself: help that loads nothing heavy, and shells that complete."""

import errno
import json
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from typing import get_args

import pytest

from streammiml.config import Calibrate
from streammiml.verbs import main
from tests.remote_servers import s3_settings

HEAVY = {"numpy", "numba", "zarr", "dask", "distributed", "pyarrow", "sklearn", "jinja2", "h5py"}
HEAVY |= {"matplotlib", "scipy", "safetensors"}


COMPLETION = [sys.executable, "-m", "streammiml", "--install-completion"]


def modules_after(code):
    """What is loaded once a program has run."""
    last = "import json, sys; print(); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{last}"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "code",
    [
        "import streammiml",
        "from streammiml.verbs.main import run; run(['--help'])",
        "from streammiml.verbs.main import run; run(['--version'])",
        "from streammiml.verbs.main import run; run(['trian'])",
    ],
)
def test_command__help_and_import_load_nothing_heavy(code):
    loaded = modules_after(code)
    ours = [name for name in loaded if name.startswith("streammiml")]
    assert not HEAVY & {name.split(".")[0] for name in loaded}
    # Each module costs about half a millisecond; there is no room for another library.
    assert len(loaded) < 500
    assert len(ours) <= 7


def test_command__without_arguments_shows_the_verbs(capsys):
    assert main.run([]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in main.VERBS)


def test_command__saying_what_is_in_a_store_loads_no_compiler():
    loaded = modules_after("from streammiml.verbs.main import run; run(['info', '--help'])")
    assert not {"numba", "sklearn", "matplotlib", "jinja2"} & {n.split(".")[0] for n in loaded}


def test_verbs__each_stands_once_and_has_a_help_text():
    points = {point.name for point in entry_points(group="streammiml.verbs")}
    assert points == {name for name, verb in main.VERBS.items() if verb.target is None}
    assert all(verb.help for verb in main.VERBS.values())
    assert {name for name in main.build() if not name.startswith("-")} == set(main.VERBS)


def complete(script, *words):
    """What bash offers for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    program = f"""
    source {script}
    COMP_WORDS=({quoted})
    COMP_CWORD={len(words) - 1}
    {{ _streammiml; }} 2> /dev/null
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_command__bash_completes_verbs_and_options(tmp_path):
    script = tmp_path / "streammiml.bash"
    done = subprocess.run(
        [*COMPLETION, "--shell", "bash", "--output", str(script)],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(script) in done.stdout
    assert complete(script, "streammiml", "tr") == {"train"}
    assert "report" in complete(script, "streammiml", "")
    assert {"--epochs", "--extend"} == complete(script, "streammiml", "train", "--e")
    assert "--image" in complete(script, "streammiml", "report", "--im")


def test_command__a_shell_that_is_not_known_is_one_line(tmp_path):
    done = subprocess.run(
        COMPLETION,
        env={"HOME": str(tmp_path), "PATH": "/nowhere", "SHELL": "/bin/unheard-of"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(
        "streammiml: the shell cannot be identified; give --shell with one of bash"
    )
    assert "\n" not in done.stderr.strip()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.EMFILE, "x"), "Too many open files; raise the limit with ulimit -n 1024"),
        (OSError(errno.ENOMEM, "x"), "Cannot allocate memory; raise the limits on memory and pro"),
        (MemoryError("Unable to allocate 9 TiB"), "out of memory (Unable to allocate 9 TiB); low"),
        (MemoryError(), "out of memory; lower --memory or --block-bytes if the verb has it, or"),
        (RuntimeError("can't start new thread"), "no thread can be started; raise the limits on"),
    ],
)
def test_command__what_the_system_does_not_give_is_one_line(monkeypatch, capsys, error, line):
    def fail():
        raise error

    monkeypatch.setattr(main, "build", fail)
    assert main.run(["info", "x.zarr"]) == 2
    assert capsys.readouterr().err.startswith(f"streammiml: {line}")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "x"), RuntimeError("a bug of ours")])
def test_command__other_errors_keep_their_traceback(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(main, "build", fail)
    with pytest.raises(type(error)):
        main.run(["info", "x.zarr"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train", "s", "r", "--epochs", "2.5"], "--epochs must be a whole number, got 2.5"),
        (["train", "s", "r", "--max-steps=1.0"], "--max-steps must be a whole number, got 1.0"),
        (["tune", "s", "r", "--folds", ".5"], "--folds must be a whole number, got .5"),
        (["train", "s", "r", "--lr", "0.1"], "Unknown option: --lr. Did you mean --step-size?"),
        (
            ["train", "s", "r", "--learning_rate=1"],
            "Unknown option: --learning_rate. Did you mean --step-size?",
        ),
        (["evaluate", "m", "s", "--metrics", "x"], "Unknown option: --metrics. Did you mean --met"),
        (["evaluate", "m", "s", "--epochz", "1"], "Unknown option: --epochz"),
    ],
)
def test_command__a_wrong_number_or_a_name_from_elsewhere_is_one_line(words, line, capsys):
    assert main.run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    # Some versions of cyclopts put options in quotes.
    assert err.replace('"', "").startswith(f"streammiml: {line}")
    assert err.count("\n") == 1


def test_command__a_fraction_is_a_number_where_one_is_wanted(capsys):
    assert main.run(["train", "missing", "r", "--step-size", "0.5", "--decay=.1"]) == 2
    assert "missing" in capsys.readouterr().err


def test_elsewhere__every_meant_option_is_one_of_ours():
    app = main.build()
    names = {
        name
        for verb in main.VERBS
        for argument in app[verb].assemble_argument_collection()
        for name in argument.names
    }
    assert set(main.ELSEWHERE.values()) <= names
    assert not set(main.ELSEWHERE) & names


def test_bare_options__have_the_values_that_the_setting_has():
    value, values = main.BARE_OPTIONS["--calibrate"]
    assert value in values
    assert sorted(values) == sorted(get_args(Calibrate))


@pytest.mark.parametrize(
    ("given", "complete"),
    [
        (["--calibrate"], ["--calibrate", "auto"]),
        (["--calibrate", "s.zarr", "run"], ["--calibrate", "auto", "s.zarr", "run"]),
        (["--calibrate", "platt", "run"], ["--calibrate", "platt", "run"]),
        (["--calibrate=none", "run"], ["--calibrate=none", "run"]),
        (["--calibrate", "--json"], ["--calibrate", "auto", "--json"]),
    ],
)
def test_with_values__completes_options_without_a_value(given, complete):
    assert main.with_values(["train", *given]) == ["train", *complete]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["evaluate", "s3://b/run", "x.zarr"], "s3://b/run is a URL, and runs and models are read"),
        (
            ["predict", "gs://b/m.safetensors", "x.zarr", "out"],
            "gs://b/m.safetensors is a URL, and",
        ),
        (["explain", "https://h/run", "x.zarr", "out"], "https://h/run is a URL, and runs and mod"),
        (["report", "s3://b/run"], "s3://b/run is a URL, and runs are read from this machine only"),
        (
            ["train", "x.zarr", "run", "--config", "s3://b/c.toml"],
            "s3://b/c.toml is a URL, and settings are read from this machine only; copy it here",
        ),
        (["export", "run", "s3://b/m.onnx"], "s3://b/m.onnx is a URL, and models are written to f"),
        (
            ["convert", "x.csv", "x.zarr", "--labels", "s3://b/m.safetensors"],
            "s3://b/m.safetensors is a URL, and runs and models are read from this machine only",
        ),
    ],
)
def test_run__refuses_urls_where_only_files_are_read(words, what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("bag,x,labels\n1,2,a\n")
    assert main.run(words) == 2
    assert capsys.readouterr().err.startswith(f"streammiml: {what}")


@pytest.mark.parametrize("verb", ["train", "tune", "compare", "evaluate"])
def test_run__gives_a_dead_endpoint_a_quarter_of_the_time(
    verb, model, tmp_path, monkeypatch, capsys
):
    """That is 15 s by default; here it is one second of four."""
    settings = s3_settings("http://127.0.0.1:9", seconds=4)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    url = "s3://bucket/x.zarr"
    words = [verb, url, str(tmp_path / "out")]
    if verb == "evaluate":
        words = [verb, str(model), url]
    assert main.run(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "cannot be read within 1 s: " in line
    assert "check address and network, or set STREAMMIML_STORE_SECONDS to wait longer" in line
    assert not (tmp_path / "out").exists()
