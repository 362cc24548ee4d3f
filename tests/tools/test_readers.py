"""The tables of readers: a known suffix loads one reader, content decides where it does not."""

import subprocess
import sys

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml_tools.convert.sources import readers_of
from streammiml_tools.readers import READERS, SUFFIXES, reader_module, reader_of
from tests.tools.readers.hdf5_files import write

# Prints the formats whose readers are loaded after the sources are found.
LOADED = """
import sys
from streammiml_tools.convert.sources import find_sources
from streammiml_tools.readers import READERS
from streammiml_tools.readers.base import SourceOptions
sources = find_sources(sys.argv[1:], SourceOptions())
modules = {name: f"streammiml_tools.readers.{module}" for name, module in READERS.items()}
print(sources.reader.name, *(name for name in modules if modules[name] in sys.modules))
"""
CONTENT = {
    "arff": b"@relation x\n",
    "arrow": b"PAR1",
    "csv": b"bag,x,labels\na,1,cat\n",
    "hdf5": b"\x89HDF\r\n\x1a\n",
    "jsonl": b'{"id": 1}\n',
    "matlab": b"MATLAB 5.0 MAT-file",
    "npz": b"PK\x03\x04",
    "svmlight": b"1 qid:1 1:1\n",
    "tfrecord": b"",
    "webdataset": b"",
}

BUILT_ON = {"webdataset": ["npz"], "hdf5": ["npz"]}
"""Readers whose files contain files of other formats, and the readers of those formats."""


def test_suffixes__are_those_of_the_readers():
    listed = {}
    for name in READERS:
        for suffix in reader_of(name).suffixes:
            # A store of Parquet files is told by its manifest.
            if (name, suffix) != ("store", ".parquet"):
                listed[suffix] = name
    assert listed == SUFFIXES


@pytest.mark.parametrize("name", CONTENT)
def test_suffix__that_is_known_loads_one_reader(tmp_path, name):
    suffix = next(suffix for suffix, format_ in SUFFIXES.items() if format_ == name)
    if name in ("hdf5", "npz"):
        # Whether the file is one bag is told by its arrays.
        arrays = {"instances": np.ones((2, 1)), "offsets": np.array([0, 2])}
        write(tmp_path / "data.h5", arrays)
        np.savez(tmp_path / "data.npz", **arrays)
    else:
        (tmp_path / f"data{suffix}").write_bytes(CONTENT[name])
    words = [sys.executable, "-c", LOADED, str(tmp_path / f"data{suffix}")]
    done = subprocess.run(words, capture_output=True, text=True)
    reader, *loaded = done.stdout.split() or [done.stderr]
    assert (reader, sorted(loaded)) == (name, sorted([name, *BUILT_ON.get(name, [])]))


@pytest.mark.parametrize(
    ("name", "content", "readers"),
    [
        ("data.bin", CONTENT["hdf5"], ["hdf5"]),
        ("data.h5", CONTENT["matlab"], ["matlab"]),
        ("data.txt", CONTENT["svmlight"], ["svmlight"]),
        ("data.txt", b">p1\n0.5\t1\n", ["protein"]),
        ("data.xml", b"<html>", []),
        ("data.zarr", b"words", []),
        ("data", CONTENT["arff"], ["arff"]),
    ],
)
def test_content__decides_where_the_suffix_does_not(tmp_path, name, content, readers):
    (tmp_path / name).write_bytes(content)
    assert readers_of(tmp_path / name) == readers


def test_format__that_nobody_reads_is_refused():
    with pytest.raises(StreammimlError, match=r"^no format is called 'xls'; known: arff, arrow,"):
        reader_module("xls")
