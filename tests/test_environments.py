"""Commands work where the home, the temporary folder or the locale are odd, or say one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import streammiml as sm
from streammiml.config import TrainConfig
from tests.planted import planted
from tests.stores import write_store

ROOT = Path(__file__).parent.parent
NOWHERE = f"{os.devnull}/nowhere"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAMES = ("dög", "car", "→", "tree", "x")


def streammiml(*words, cwd, without=(), **changes):
    environment = {name: text for name, text in os.environ.items() if name not in without}
    return subprocess.run(
        [sys.executable, "-m", "streammiml", *map(str, words)],
        cwd=cwd,
        env={**environment, **changes},
        capture_output=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store, a run on it, and the figures of that."""
    folder = tmp_path_factory.mktemp("odd")
    write_store(folder / "x.zarr", planted(60), n_labels=5, label_names=NAMES)
    sm.train(str(folder / "x.zarr"), TrainConfig(epochs=2, shared_dim=8), run=folder / "run")
    return folder


def figures(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["ranking_loss"]


@pytest.mark.parametrize(
    ("without", "changes"),
    [
        (["HOME"], {}),
        ([], {"TMPDIR": NOWHERE, "TEMP": NOWHERE, "TMP": NOWHERE}),
        ([], ASCII),
    ],
    ids=["no home", "no temporary folder", "ASCII"],
)
def test_evaluate__gives_the_same_in_odd_environments(folder, without, changes):
    words = ["evaluate", "run", "x.zarr", "--json"]
    want = figures(streammiml(*words, cwd=folder))
    assert figures(streammiml(*words, cwd=folder, without=without, **changes)) == want


def test_output__in_ascii_shows_other_characters_by_their_numbers(folder):
    done = streammiml("info", "x.zarr", cwd=folder, **ASCII)
    assert done.returncode == 0, done.stderr
    assert rb"d\xf6g" in done.stdout
    assert rb"\u2192" in done.stdout
    usual = streammiml("info", "x.zarr", cwd=folder, PYTHONUTF8="1")
    assert "dög, car, →".encode() in usual.stdout


def test_errors__in_ascii_are_one_line(folder):
    done = streammiml("info", "dög.zarr", cwd=folder, **ASCII)
    assert done.returncode == 2
    assert done.stderr.startswith(b"streammiml: ")
    assert done.stderr.count(b"\n") == 1


TABLE = "bag,x,y,labels\n" + "".join(
    f"{bag},{bag % 7}.5,{bag % 5}.25,{NAMES[bag % 5]}\n" for bag in range(40)
)


def read_only_package(folder):
    """A folder with a copy of the package, mounted for reading only, which holds for root, too."""
    source, mounted = folder / "source", folder / "packages"
    skipped = shutil.ignore_patterns("__pycache__")
    for package in ("streammiml", "tools"):
        name = "streammiml_tools" if package == "tools" else package
        shutil.copytree(ROOT / package, source / name, ignore=skipped)
    mounted.mkdir()
    mount = ["mount", "--bind", "-o", "ro", source, mounted]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no folder can be mounted here")
    code = "import streammiml, streammiml_tools; print(streammiml.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(mounted)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(str(mounted)), done.stderr
    with pytest.raises(OSError, match="Read-only"):
        (mounted / "new").touch()
    return mounted


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"TMPDIR": NOWHERE, "TEMP": NOWHERE, "TMP": NOWHERE}, ASCII, "package"]
)
def test_commands__from_a_table_to_predictions(tmp_path, changes):
    (tmp_path / "x.csv").write_text(TABLE, encoding="utf-8")
    if changes == "package":
        changes = {"PYTHONPATH": str(read_only_package(tmp_path))}
    try:
        for words in (
            ["convert", "x.csv", "x.zarr"],
            ["train", "x.zarr", "run", "--epochs", "2", "--shared-dim", "8"],
            ["evaluate", "run", "x.zarr"],
            ["predict", "run", "x.zarr", "out"],
            ["explain", "run", "x.zarr", "why"],
            ["report", "run", "--out", "page.html"],
        ):
            done = streammiml(*words, cwd=tmp_path, **changes)
            assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["umount", "-l", tmp_path / "packages"], capture_output=True)
    assert (tmp_path / "out" / "_SUCCESS").exists()


@pytest.mark.slow
def test_commands__compile_in_memory_where_nothing_can_be_kept_and_say_so(folder, tmp_path):
    home = {"HOME": NOWHERE, "MPLCONFIGDIR": str(tmp_path)}
    without = ["XDG_CACHE_HOME", "NUMBA_CACHE_DIR"]
    words = ["train", folder / "x.zarr", "again", "--epochs", "2", "--shared-dim", "8"]
    done = streammiml(*words, cwd=tmp_path, without=without, **home)
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.count(
            b"cannot be cached, as no folder can be written: set NUMBA_CACHE_DIR=FOLDER"
        )
        == 1
    )
    models = [path / "model.safetensors" for path in (tmp_path / "again", folder / "run")]
    assert models[0].read_bytes() == models[1].read_bytes()
    done = streammiml("evaluate", "again", folder / "x.zarr", "--json", cwd=tmp_path, **home)
    assert figures(done) >= 0


@pytest.mark.slow
def test_train__announces_compiling_and_shows_a_pace_without_it(folder, tmp_path):
    words = ["train", folder / "x.zarr", "new", "--epochs", "40"]
    done = streammiml(*words, cwd=tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "kernels"))
    assert done.returncode == 0, done.stderr
    lines = done.stderr.decode().splitlines()
    assert sum("compiling kernels for this processor" in line for line in lines) == 1
    assert "compiling" in lines[-1]
    line = json.loads((tmp_path / "new" / "history.jsonl").read_text().splitlines()[0])
    assert line["time"]["compiling"] > 1
    # The pace with compiling would be a handful of steps a second.
    assert line["steps_per_second"] > 3 * line["step"] / line["seconds"]
