"""MATLAB files of version 7.3 are HDF5: matrices are transposed, cells are references."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse

from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.hdf5_access import check_chunks, checked, child, open_hdf5
from streammiml_tools.readers.matlab5 import ITEM_BYTES, OUTLINE_BYTES, check_sparse
from streammiml_tools.readers.matlab_layout import Outline
from streammiml_tools.readers.memory_checks import check_fits


def _class_of(item: Any) -> str:
    name = item.attrs.get("MATLAB_class", b"")
    return name.decode() if isinstance(name, bytes) else str(name)


def _is_references(dataset: Any) -> bool:
    return h5py.check_ref_dtype(dataset.dtype) is h5py.Reference


def outlines(path: Path, limits: Limits) -> list[Outline]:
    """Outlines of all variables of a file; fields of structs are variables too."""
    with open_hdf5(path) as file:
        return [
            outline
            for name in file
            if not name.startswith("#")
            for outline in _variable(path, file, child(path, file, name), name, limits)
        ]


def _variable(path: Path, file: Any, item: Any, name: str, limits: Limits) -> Iterator[Outline]:
    if isinstance(item, h5py.Group) and "MATLAB_sparse" not in item.attrs:
        for field in item:
            yield from _variable(path, file, child(path, item, field), f"{name}.{field}", limits)
    elif isinstance(item, h5py.Dataset) and _is_references(item):
        shape = item.shape[::-1]
        check_fits(f"{path}: a cell of {item.size:,} items", OUTLINE_BYTES * item.size, limits)
        items = tuple(_item(path, file[ref], name, limits) for ref in item[()].ravel())
        n_bytes = sum(outline.n_bytes + ITEM_BYTES for outline in items)
        yield Outline(name, "cell", shape, items=items, n_bytes=n_bytes)
    else:
        yield _item(path, item, name, limits)


def _item(path: Path, item: Any, name: str, limits: Limits) -> Outline:
    """Outline of a matrix, a text, or an item of another kind."""
    if isinstance(item, h5py.Group):
        if "MATLAB_sparse" not in item.attrs:
            return Outline(name, "other")
        jc = child(path, item, "jc")
        shape = (int(item.attrs["MATLAB_sparse"]), len(jc) - 1)
        store, n_bytes = "float64", jc.nbytes
        # A sparse matrix without values has column pointers only.
        if "data" in item:
            values = child(path, item, "data")
            store, n_bytes = values.dtype.name, n_bytes + 3 * values.nbytes
        return Outline(name, "matrix", shape, _store(item, store), True, n_bytes=n_bytes)
    dataset = checked(path, item)
    check_chunks(path, dataset, limits)
    if _is_references(dataset):
        return Outline(name, "other", dataset.shape[::-1])
    if dataset.attrs.get("MATLAB_empty", 0):
        empty = tuple(int(n) for n in np.ravel(dataset[()])[:2]) if dataset.size < 9 else (0, 0)
        return Outline(name, "text" if _class_of(dataset) == "char" else "matrix", empty)
    if dataset.dtype.kind not in "fiub":
        return Outline(name, "other", dataset.shape[::-1])
    kind = "text" if _class_of(dataset) == "char" else "matrix"
    shape = dataset.shape[::-1]
    return Outline(name, kind, shape, _store(dataset, dataset.dtype.name), n_bytes=dataset.nbytes)


def _store(item: Any, dtype: str) -> str:
    return "bool" if _class_of(item) == "logical" else dtype


def _at_path(path: Path, file: Any, name: str) -> Any:
    item = file
    for part in name.split("."):
        item = child(path, item, part)
    return item


def _sparse(path: Path, group: Any) -> scipy.sparse.csc_array:
    columns = np.asarray(child(path, group, "jc")[()], np.int64)
    n_rows, n_values = int(group.attrs["MATLAB_sparse"]), int(columns[-1])
    rows = np.asarray(child(path, group, "ir")[()], np.int64) if n_values else np.empty(0, np.int64)
    values = np.asarray(child(path, group, "data")[()]) if n_values else np.empty(0)
    if not len(rows) == len(values) == n_values:
        raise SourceError(
            f"{path}: {group.name} has {len(rows)} ir and {len(values)} values, expected {n_values}"
        )
    matrix = scipy.sparse.csc_array((values, rows, columns), shape=(n_rows, len(columns) - 1))
    check_sparse(matrix, f"{path}: {group.name}")
    return matrix


def _values(path: Path, item: Any) -> Any:
    if isinstance(item, h5py.Group):
        return _sparse(path, item)
    return checked(path, item)[()].T


def matrix(path: Path, outline: Outline) -> Any:
    """Load a matrix, dense or sparse."""
    with open_hdf5(path) as file:
        return _values(path, _at_path(path, file, outline.name))


def lines(path: Path, outline: Outline, start: int, stop: int, *, transposed: bool) -> Any:
    """Rows ``start`` to ``stop`` of a matrix, or columns as rows if it is ``transposed``."""
    with open_hdf5(path) as file:
        dataset = _at_path(path, file, outline.name)
        return dataset[start:stop] if transposed else dataset[:, start:stop].T


def items(path: Path, cell: Outline, start: int, stop: int) -> list[Any]:
    """Matrices ``start`` to ``stop`` of a cell, in MATLAB's order."""
    with open_hdf5(path) as file:
        references = _references(_at_path(path, file, cell.name), start, stop)
        return [
            np.empty(outline.shape) if 0 in outline.shape else _values(path, file[ref])
            for ref, outline in zip(references, cell.items[start:stop], strict=True)
        ]


def _references(dataset: Any, start: int, stop: int) -> Any:
    """References ``start`` to ``stop`` of a cell; a cell with one row or column is read in part."""
    if dataset.ndim == 2 and dataset.shape[0] == 1:
        return dataset[0, start:stop]
    if dataset.ndim == 2 and dataset.shape[1] == 1:
        return dataset[start:stop, 0]
    return dataset[()].ravel()[start:stop]


def texts(path: Path, cell: Outline) -> tuple[str, ...]:
    """Strings of a cell."""
    with open_hdf5(path) as file:
        references = _at_path(path, file, cell.name)[()].ravel()
        letters = (np.ravel(checked(path, file[ref])[()]) for ref in references)
        return tuple("".join(map(chr, word)) for word in letters)
