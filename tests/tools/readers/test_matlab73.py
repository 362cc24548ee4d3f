"""MATLAB files of version 7.3: cells, links, damage and sparse matrices in HDF5."""

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.matlab import READER
from tests.stores import assert_same
from tests.tools.readers.foreign import (
    read_all,
)
from tests.tools.readers.matlab_corpora import CELLS, MARKS, WRITE, block_of, made
from tests.tools.readers.matlab_files import cell, write73


def test_matlab__cells_of_any_shape_are_read_in_matlabs_order(tmp_path):
    bags, marks = made()
    square = np.empty((2, 3), object)
    for i, bag in enumerate(bags):
        square[i % 2, i // 2] = bag
    for version, put in WRITE.items():
        path = put(tmp_path / f"{version}.mat", {"bags": square, "Y": marks})
        assert_same(read_all(READER, path, span_bytes=1)[1], block_of(bags, marks))
        path = put(tmp_path / f"{version}.mat", {"bags": cell(bags).T, "Y": marks})
        assert_same(read_all(READER, path, span_bytes=1)[1], block_of(bags, marks))


def test_matlab__a_cut_73_file_is_refused(tmp_path):
    path = write73(tmp_path / "a.mat", {"bags": CELLS, "Y": MARKS})
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(SourceError, match=r"a\.mat is damaged or cut short \(.*\); fetch it again"):
        read_all(READER, path)


def test_matlab__links_to_other_files_are_not_followed(tmp_path):
    other = write73(tmp_path / "other.mat", {"Y": MARKS})
    path = write73(tmp_path / "a.mat", {"bags": CELLS})
    with h5py.File(path, "r+") as file:
        file["Y"] = h5py.ExternalLink(str(other), "/Y")
    with pytest.raises(SourceError, match=r"'Y' is a link to another file; copy the linked data"):
        read_all(READER, path)


def test_matlab__a_sparse_matrix_that_is_none_is_refused(tmp_path):
    path = write73(tmp_path / "a.mat", {"bags": CELLS, "Y": scipy.sparse.csc_array(MARKS)})
    with h5py.File(path, "r+") as file:
        file["Y/ir"][0] = 77
    with pytest.raises(SourceError, match=r"/Y: not a sparse matrix, ir and jc disagree; fetch"):
        read_all(READER, path)
    with h5py.File(path, "r+") as file:
        del file["Y/ir"]
        file["Y/ir"] = np.zeros(3)
    with pytest.raises(SourceError, match=r"/Y has 3 ir and \d+ values, expected \d+"):
        read_all(READER, path)
