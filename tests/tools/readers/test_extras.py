"""Formats that need an extra are told without it, and refused in one line where it is missing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest

from streammiml.tell.guide import guide
from streammiml_tools.readers import READERS, reader_of
from tests.stores import made_block, plain
from tests.tools.readers.matlab_files import cell, write5, write73

ROOT = Path(__file__).parents[3]
EXTRAS = {name: reader_of(name).extra for name in READERS if reader_of(name).extra}
CONVERT = "from streammiml.verbs.main import run; code = run(['convert', *sys.argv[1:]])"
CSV = "bag,x,y,labels\n1,0.5,2,a\n1,1,0,a\n2,3,0.25,b\n"


def convert(folder, source, *, without=(), then="pass"):
    """Convert in a process to which some modules are unknown; what it prints and returns."""
    hidden = f"sys.modules.update(dict.fromkeys({list(without)!r}))"
    code = f"import sys; {hidden}; {CONVERT}; {then}; sys.exit(code)"
    return subprocess.run(
        [sys.executable, "-c", code, source.name, "made.zarr"],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def hdf5_file(folder):
    block = plain(made_block(5))
    with h5py.File(folder / "a.h5", "w") as file:
        file["instances"], file["offsets"] = block.rows, block.bag_offsets
        file["label_indptr"], file["label_indices"] = block.label_offsets, block.label_indices
    return folder / "a.h5"


def matlab_file(folder, write):
    bags = [made_block(4).rows_of(i) for i in range(4)]
    marks = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], float)
    return write(folder / "a.mat", {"bags": cell(bags), "targets": marks})


FILES = {
    "HDF5": (hdf5_file, "h5py", "hdf5"),
    "MATLAB 5": (lambda folder: matlab_file(folder, write5), "scipy", "matlab"),
    "MATLAB 7.3": (lambda folder: matlab_file(folder, write73), "h5py", "matlab"),
}


@pytest.mark.parametrize("kind", FILES)
def test_convert__says_which_extra_a_file_needs(kind, tmp_path):
    make, package, extra = FILES[kind]
    source = make(tmp_path)
    done = convert(tmp_path, source, without=[package])
    want = f"streammiml: {source.name} needs {package}: pip install 'streammiml[{extra}]'\n"
    assert (done.returncode, done.stderr) == (2, want)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


@pytest.mark.parametrize("kind", FILES)
def test_convert__reads_the_file_where_the_extra_is_there(kind, tmp_path):
    done = convert(tmp_path, FILES[kind][0](tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made.zarr").is_dir()


@pytest.mark.parametrize("name", ["a.csv", "a.txt"], ids=["by suffix", "by content"])
def test_convert__other_formats_load_no_package_of_an_extra(name, tmp_path):
    # A plain install has neither; where both are installed, they are not loaded to tell formats.
    (tmp_path / name).write_text(CSV)
    # (numba loads scipy.linalg where there is one, and that loads scipy.sparse in SciPy 1.15.)
    used = "print({'h5py', 'scipy.io'} & set(sys.modules))"
    done = convert(tmp_path, tmp_path / name, then=used)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


def test_convert__other_formats_are_read_without_packages_of_an_extra(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    done = convert(tmp_path, tmp_path / "a.csv", without=["h5py", "scipy"])
    assert done.returncode == 0, done.stderr


def test_extras__project_guide_and_help_name_those_of_readers():
    assert EXTRAS == {"hdf5": "hdf5", "matlab": "matlab"}
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = guide("formats")
    help_words = [sys.executable, "-m", "streammiml", "convert", "--help"]
    help_text = subprocess.run(help_words, capture_output=True, text=True, check=True).stdout
    for extra in EXTRAS.values():
        assert extra in known["optional-dependencies"]
        assert f"pip install 'streammiml[{extra}]'" in page
        assert f"streammiml[{extra}]" in help_text
    assert not {"h5py", "scipy"} & {re.match(r"[\w-]+", spec)[0] for spec in known["dependencies"]}
