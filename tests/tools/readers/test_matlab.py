"""How MATLAB files are recognised."""

from streammiml_tools.readers.matlab import READER


def test_tells__by_its_first_words_or_suffix(tmp_path):
    assert READER.tells(tmp_path / "a", b"MATLAB 5.0 MAT-file")
    assert READER.tells(tmp_path / "a.mat", b"")
    assert not READER.tells(tmp_path / "a.h5", b"\x89HDF")
