"""MATLAB files made in tests: version 5 by scipy, version 7.3 by hand, as MATLAB lays them out."""

from __future__ import annotations

import h5py
import numpy as np
import scipy.io
import scipy.sparse


def cell(items) -> np.ndarray:
    """A column of anything, as scipy writes cells."""
    out = np.empty((len(items), 1), object)
    for i, item in enumerate(items):
        out[i, 0] = item
    return out


def write5(path, variables, **options):
    scipy.io.savemat(path, variables, do_compression=True, **options)
    return path


def write73(path, variables):
    """The same variables as HDF5: matrices transposed, cells as references, structs as groups."""
    with h5py.File(path, "w", userblock_size=512) as file:
        _fill(file, file, variables)
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8) + b"\0\2IM")
    return path


def _fill(file, group, variables):
    for name, value in variables.items():
        _write(file, group, name, value)


def _write(file, group, name, value):
    if isinstance(value, dict):
        subgroup = group.create_group(name)
        subgroup.attrs["MATLAB_class"] = np.bytes_("struct")
        _fill(file, subgroup, value)
    elif isinstance(value, str):
        codes = np.array([[ord(letter)] for letter in value], np.uint16)
        group[name] = codes
        group[name].attrs["MATLAB_class"] = np.bytes_("char")
    elif scipy.sparse.issparse(value):
        columns = scipy.sparse.csc_array(value)
        subgroup = group.create_group(name)
        subgroup.attrs["MATLAB_class"] = np.bytes_("double")
        subgroup.attrs["MATLAB_sparse"] = np.uint64(columns.shape[0])
        subgroup["jc"] = columns.indptr.astype(np.uint64)
        if columns.nnz:
            subgroup["ir"], subgroup["data"] = columns.indices.astype(np.uint64), columns.data
    elif value.dtype == object:
        inner = file.require_group("#refs#")
        references = np.empty(value.shape[::-1], h5py.ref_dtype)
        for place, item in enumerate(value.ravel(order="F")):
            key = f"{len(inner)}"
            _write(file, inner, key, item)
            references.flat[place] = inner[key].ref
        group.create_dataset(name, data=references, dtype=h5py.ref_dtype)
        group[name].attrs["MATLAB_class"] = np.bytes_("cell")
    elif value.size == 0:
        group[name] = np.array(value.shape, np.uint64)
        group[name].attrs["MATLAB_class"] = np.bytes_("double")
        group[name].attrs["MATLAB_empty"] = np.uint8(1)
    else:
        group[name] = value.T
        group[name].attrs["MATLAB_class"] = np.bytes_(
            "double" if value.dtype == np.float64 else value.dtype.name
        )
