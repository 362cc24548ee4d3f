"""What is built can be installed where the project is not: wheel and sdist, and the demo runs."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from streammiml.tell.guide import PAGES

ROOT = Path(__file__).parent.parent
BIN = "Scripts" if os.name == "nt" else "bin"
# Builds take their tools from the index of packages, and so does the clean environment.
pytestmark = pytest.mark.slow


def call(words, cwd, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what is committed or would be: builds leave folders behind."""
    folder = tmp_path_factory.mktemp("source")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout, so what belongs to the project is not known")
    for name in filter(None, done.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("builder")
    venv.create(folder, with_pip=True)
    python = folder / BIN / "python"
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    try:
        call([*pip, "build"], folder)
    except AssertionError as error:
        pytest.skip(f"no build tool can be installed here: {str(error)[-200:]}")
    return python


@pytest.fixture(scope="module")
def built(source, builder, tmp_path_factory):
    """The sdist, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("built")
    call([builder, "-m", "build", "--outdir", out, source], out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def sources():
    """Files that an installed package must have, as the wheel names them."""
    for folder, name in (("streammiml", "streammiml"), ("tools", "streammiml_tools")):
        for path in (ROOT / folder).rglob("*.py"):
            yield f"{name}/{path.relative_to(ROOT / folder).as_posix()}"
    yield from (f"streammiml/tell/page.{kind}" for kind in ("html", "css", "js"))
    yield "streammiml/py.typed"
    yield from (f"streammiml/{path}" for path in PAGES.values())


def test_wheel__has_every_module_and_what_they_read(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    missing = set(sources()) - names - {"streammiml_tools/run.py"}
    # Examples, and what makes the site of them, are for a clone.
    assert not {name for name in missing if not re.search("/(examples|docs)/", name)}
    with tarfile.open(built[0]) as sdist:
        inside = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "streammiml/tell/page.html"} <= inside


def test_wheel__the_demo_runs_where_there_is_nothing_else(built, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / BIN
    pip = [programs / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    call([*pip, f"{built[1]}[demo]"], tmp_path)
    # No repository around, no kernels compiled before, no home to write to but this.
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "empty").mkdir()
    output = call([programs / "streammiml", "demo"], tmp_path / "empty", **home)
    page = tmp_path / "empty" / "streammiml-demo" / "report.html"
    assert page.as_uri() in output
    assert page.stat().st_size > 50_000
    losses = re.search(r"^ranking loss +([0-9.]+) +([0-9.]+) +([0-9.]+)$", output, re.M)
    ours, *others = map(float, losses.groups())
    assert ours < min(others)
    module_file = call(
        [programs / "python", "-c", "import streammiml; print(streammiml.__file__)"],
        tmp_path / "empty",
    )
    assert Path(module_file.strip()).is_relative_to(tmp_path / "env")
    took = re.search(r"all of it took (\d+) s", output)
    print(f"demo after a clean install: {took[1]} s", file=sys.stderr)
