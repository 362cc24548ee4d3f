"""macOS and Windows, as far as Linux can play them: the same bytes on one, one line on the other.

What the other system lacks is taken away in child processes, before streammiml loads.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streammiml
from streammiml._base import compiled

ROOT = Path(__file__).parent.parent
OTHER_SYSTEM = Path(__file__).parent / "other_system"
MACOS = ["os.sched_getaffinity", "os.posix_fadvise", "os.O_DIRECT", "/proc", "/sys"]
# Old versions of macOS lack the first; the second is everywhere but on Windows.
LEAST = [*MACOS, "os.preadv", "signal.pthread_sigmask"]
WINDOWS = [*LEAST, "fcntl", "resource", "os.sysconf", "os.pread", "os.O_CLOEXEC"]


def python(*words, cwd, lacks=(), system=sys.platform, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    if lacks:
        environment["PYTHONPATH"] = f"{OTHER_SYSTEM}{os.pathsep}{ROOT}"
        environment |= {"OTHER_SYSTEM_LACKS": " ".join(lacks), "OTHER_SYSTEM_NAME": system}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )


def write_table(path):
    rng = np.random.default_rng(0)
    with path.open("w") as table:
        print("bag", *(f"f{i}" for i in range(30)), "labels", sep=",", file=table)
        for bag in range(1200):
            labels = sorted(rng.choice(4, rng.integers(1, 3), replace=False).tolist())
            for label in [*labels, None, None]:
                row = rng.normal(size=30) + 4 * (np.arange(30) == label)
                names = ";".join(f"label {number}" for number in labels)
                print(bag, *(f"{value:.3f}" for value in row), names, sep=",", file=table)


def journey(folder, *words, **how):
    """What a child process found on its way from a table to predictions, and what it told."""
    write_table(folder / "x.csv")
    done = python(OTHER_SYSTEM / "journey.py", *words, cwd=folder, **how)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def results(folder):
    """Bytes of all that must not depend on the system."""
    kept = [folder / "run/model.safetensors", folder / "resumed/model.safetensors"]
    kept += [folder / "threads.json", *folder.glob("x.zarr/**/*")]
    kept += [path for path in folder.glob("predictions/**/*") if path.name != "_lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept if path.is_file()}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The results of this system."""
    folder = tmp_path_factory.mktemp("here")
    journey(folder)
    return results(folder)


@pytest.fixture
def kernels(tmp_path):
    """A folder of compiled kernels in which those that call the system are missing.

    Numba does not know that these depend on what the system has, and would take them as they are.
    """
    if compiled.CACHE is None:
        pytest.skip("kernels cannot be kept here")
    where = tmp_path / "kernels"
    shutil.copytree(compiled.CACHE, where / "streammiml" / compiled.CACHE.name, ignore=not_wanted)
    return {"NUMBA_CACHE_DIR": str(where)}


def not_wanted(folder, names):
    """All but folders and finished kernels: other processes make and remove files meanwhile."""
    kernels = {name for name in names if name.endswith((".nbi", ".nbc"))}
    kernels -= {name for name in kernels if name.startswith("fetching.")}
    return {name for name in names if name not in kernels and not Path(folder, name).is_dir()}


def check_same(here, folder):
    there = results(folder)
    assert there.keys() == here.keys()
    assert [name for name in here if here[name] != there[name]] == []
    assert there["resumed/model.safetensors"] == there["run/model.safetensors"]


def test_macos__gives_the_same_bytes(here, kernels, tmp_path):
    available, log = journey(tmp_path, lacks=MACOS, **kernels)
    assert available == ["preadv", "sigmask"]
    assert "no reads that bypass the page cache (O_DIRECT)" in log
    check_same(here, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("lacks", "left"), [(MACOS, ["preadv", "sigmask"]), (LEAST, [])])
def test_macos__gives_the_same_figures_with_workers(here, kernels, tmp_path, lacks, left):
    available, _ = journey(tmp_path, "--workers", lacks=lacks, **kernels)
    assert available == left
    check_same(here, tmp_path)
    assert (tmp_path / "workers.json").read_bytes() == here["threads.json"]


# Windows.

REFUSED = "streammiml: Windows is not supported; use WSL, "


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "streammiml", "train", "x.zarr", "run"],
        ["-m", "streammiml", "--help"],
        ["-m", "streammiml"],
        ["-c", "from streammiml_tools.command import run_command as f; exit(f(print, []))"],
        [ROOT / "tools" / "run.py", "demo"],
    ],
    ids=["verb", "help", "nothing", "tool", "run.py"],
)
def test_windows__is_refused_in_one_line(tmp_path, words):
    done = python(*words, cwd=tmp_path, lacks=WINDOWS, system="win32")
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(REFUSED)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_windows__import_works_and_every_public_name_is_refused(tmp_path):
    code = """
import streammiml as sm
names = []
for name in sm.__all__:
    try:
        getattr(sm, name)
    except sm.StreammimlError as error:
        assert str(error).startswith("Windows is not supported; use WSL"), error
        names.append(name)
print(*names)
try:
    from streammiml import train
except ValueError as error:
    print(error)
"""
    done = python("-c", code, cwd=tmp_path, lacks=WINDOWS, system="win32")
    assert done.returncode == 0, done.stderr
    refused, reason = done.stdout.splitlines()
    assert set(refused.split()) == set(streammiml.__all__) - {"StreammimlError"}
    assert reason.startswith("Windows is not supported")
