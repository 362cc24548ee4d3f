"""How HDF5 files are recognised."""

from streammiml_tools.readers.hdf5 import READER


def test_tells__by_magic_or_suffix_but_not_matlab(tmp_path):
    assert READER.tells(tmp_path / "a", b"\x89HDF\r\n\x1a\n")
    assert READER.tells(tmp_path / "a.hdf5", b"")
    assert not READER.tells(tmp_path / "a.h5", b"MATLAB 7.3 MAT-file")
    assert not READER.tells(tmp_path / "a.mat", b"PK")
