"""Untrusted HDF5 files: impossible sizes, data outside of the file, damage."""

import h5py
import numpy as np
import pytest

from streammiml_tools.readers import hdf5_access
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.hdf5 import READER
from tests.stores import made_block
from tests.tools.readers.foreign import read_all
from tests.tools.readers.hdf5_files import flat, write


def test_hdf5__a_dataset_of_4_tb_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path / "a.h5", {"offsets": np.arange(3)})
    for chunks in (None, (1 << 10, 1 << 10)):
        with h5py.File(path, "r+") as file:
            file.pop("instances", None)
            file.create_dataset("instances", (1 << 20, 1 << 20), "f4", chunks=chunks)
        match = r"/instances declares 4,398,046,511,104 bytes but has 0 in the file: it was never"
        with pytest.raises(SourceError, match=match):
            READER.scan([path], SourceOptions())


def test_hdf5__a_bomb_is_refused_before_it_is_read(tmp_path):
    zeros = np.zeros((1 << 10, 1 << 15))
    path = write(tmp_path / "a.h5", {"instances": zeros}, chunks=(64, 1 << 15), compression="gzip")
    assert path.stat().st_size < 2 << 20
    with pytest.raises(SourceError, match=r"declares 268,435,456 bytes .* h5repack -f NONE"):
        READER.scan([path], SourceOptions())


def test_hdf5__a_bomb_would_be_read_were_it_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5_access, "BOMB_RATIO", 10_000)
    monkeypatch.setattr(hdf5_access, "BOMB_LINE", 1)
    zeros = {"instances": np.zeros((64, 1 << 12)), "offsets": [0, 64], "targets": np.ones((1, 2))}
    path = write(tmp_path / "a.h5", zeros, compression="gzip")
    assert read_all(READER, path)[1].n_rows == 64
    monkeypatch.setattr(hdf5_access, "BOMB_RATIO", 100)
    with pytest.raises(SourceError, match="/instances declares 2,097,152 bytes"):
        read_all(READER, path)


def test_hdf5__nothing_outside_the_file_is_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(800))
    write(tmp_path / "other.h5", {"instances": np.ones((2, 2))})
    path = tmp_path / "a.h5"

    def link(file):
        file["instances"] = h5py.ExternalLink("other.h5", "/instances")

    def external(file):
        file.create_dataset("instances", (10, 10), "f8", external=[(str(secret), 0, 800)])

    def virtual(file):
        layout = h5py.VirtualLayout((2, 2), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "instances", (2, 2))
        file.create_virtual_dataset("instances", layout)

    for reach, match in (
        (link, r"'instances' is a link to another file; copy the linked data into this file"),
        (external, r"/instances keeps its values in another file, .*secret.*; copy them into this"),
        (virtual, r"/instances is virtual, with values in other files; copy it into this file"),
    ):
        write(path, {"offsets": np.array([0, 2])})
        with h5py.File(path, "r+") as file:
            reach(file)
        with pytest.raises(SourceError, match=match):
            READER.scan([path], SourceOptions())


def test_hdf5__lists_of_any_length_are_refused(tmp_path):
    path = write(tmp_path / "a.h5", {"offsets": np.array([0, 2])})
    with h5py.File(path, "r+") as file:
        file.create_dataset("instances", (2,), h5py.vlen_dtype(np.float32))
    with pytest.raises(SourceError, match="/instances holds lists of any length; store them as"):
        READER.scan([path], SourceOptions())


@pytest.mark.parametrize("keep", [0, 40, 700, 2000])
def test_hdf5__a_file_cut_short_is_refused(tmp_path, keep):
    path = write(tmp_path / "a.h5", flat(made_block()))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"a\.h5 is damaged or cut short \(.*\); fetch it again"):
        read_all(READER, path)
