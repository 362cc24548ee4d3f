"""MATLAB files of version 5: declared sizes, damage, and values that must not be loaded."""

import struct
import zlib

import pytest
import scipy.io
import scipy.sparse

from streammiml_tools.readers import matlab5
from streammiml_tools.readers import matlab_bags as matlab
from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.matlab import READER
from tests.tools.readers.foreign import (
    read_all,
)
from tests.tools.readers.matlab_corpora import CELLS, MARKS, element, matrix


def packed(content):
    raw = zlib.compress(content, 9)
    return struct.pack("<II", 15, len(raw)) + raw


def file5(*variables):
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + b"".join(variables)


ZEROS = matrix(6, (1 << 14, 1 << 11), element(9, bytes(1 << 28)))
DAMAGED = {
    "bomb": (
        file5(packed(ZEROS)),
        r"a variable of 268,435,\d+ bytes in \d+,\d+ compressed bytes is "
        r"refused as a bomb; if it is not, save it again with -v6 or -v7.3",
    ),
    "cell of many": (
        file5(packed(matrix(1, (1 << 30, 1), b""))),
        r"variable 'bags': a cell of 1,073,741,824 items declared in 0 bytes; save the file again",
    ),
    "struct of many": (
        file5(matrix(2, (1 << 30, 1), element(5, struct.pack("<i", 8)) + element(1, b"X" * 8))),
        r"variable 'bags': a struct of 1,073,741,824 fields declared in 0 bytes",
    ),
    "matrix of many": (
        file5(matrix(6, (1 << 20, 1 << 20), element(9, bytes(8)))),
        r"variable 'bags': 8,796,093,022,208 bytes are declared by its shape .*, 8 are there",
    ),
    "values of many": (
        file5(matrix(6, (1, 1), struct.pack("<II", 9, 1 << 31))),
        r"variable 'bags': 2,147,483,648 bytes of values within 8",
    ),
    "item of many": (
        file5(matrix(1, (1, 1), struct.pack("<II", 14, 1 << 31))),
        r"variable 'bags': an item of 2,147,483,648 bytes within 8",
    ),
    "sparse of many": (
        file5(matrix(5, (1, 1 << 30), element(5, b"") + element(5, bytes(8)) + element(9, b""))),
        r"variable 'bags': a sparse matrix \(1, 1073741824\) with 8 bytes of jc",
    ),
    "negative": (
        file5(matrix(6, (-1, 2), element(9, b""))),
        r"variable 'bags': its shape is \(-1, 2\)",
    ),
    "complex": (
        file5(matrix(6 | 0x800, (1, 1), element(9, bytes(8)) + element(9, bytes(8)))),
        r"variable 'bags': its numbers are complex",
    ),
    "field names": (
        file5(matrix(2, (1, 1), element(5, struct.pack("<i", -8)) + element(1, b"X" * 8))),
        r"variable 'bags': names of fields of -8 bytes",
    ),
    "cut": (
        file5(packed(ZEROS[:99]))[:-5],
        r"is damaged or cut short in its first variable; fetch",
    ),
    "cut in a tag": (file5() + b"abc", r"is damaged or cut short in its first variable"),
    "inflates to less": (file5(packed(ZEROS[:99])), r"refused as a bomb|is damaged or cut short"),
    "unknown kind": (
        file5(matrix(6, (1, 1), element(77, bytes(8)))),
        r"variable 'bags': values of unknown kind 77; save the file again",
    ),
    "one name": (
        file5(matrix(6, (1, 1), element(9, bytes(8))), matrix(6, (1, 1), element(9, bytes(8)))),
        r"a\.mat: two variables are called 'bags'; save the file again",
    ),
    "no zlib": (file5(struct.pack("<II", 15, 8) + b"x" * 8), r"is damaged or cut short in its"),
    "another element": (file5(element(9, bytes(8))), r"byte 128: an element of kind 9, expected"),
    "another file": (
        b"hello",
        r"is not a MATLAB file of version 5 or later; save it again with -v7",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_matlab__what_a_file_declares_is_compared_with_what_it_has(tmp_path, case):
    content, match = DAMAGED[case]
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=match):
        READER.scan([path], matlab.SourceOptions())


def test_matlab__a_bomb_would_be_read_were_it_not_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.mat"
    path.write_bytes(DAMAGED["bomb"][0])
    monkeypatch.setattr(matlab5, "BOMB_RATIO", 10_000)
    assert matlab5.outlines(path, Limits())[0].n_bytes == 1 << 28


def test_matlab__a_sparse_matrix_that_is_none_is_refused_in_version_5(tmp_path):
    path = tmp_path / "a.mat"
    marks = scipy.sparse.csc_array(MARKS)
    scipy.io.savemat(path, {"bags": CELLS, "Y": marks}, do_compression=False)
    rows = marks.indices.astype("<i4").tobytes()
    assert path.read_bytes().count(rows) == 1
    good = path.read_bytes()
    ends = marks.indptr.astype("<i4").tobytes()
    for old, new in ((rows, b"\xff\xff\0\0" + rows[4:]), (ends, ends[:-4] + bytes(4))):
        path.write_bytes(good.replace(old, new))
        match = r"a\.mat, variable 'Y': not a sparse matrix, ir and jc disagree; fetch"
        with pytest.raises(SourceError, match=match):
            read_all(READER, path)
