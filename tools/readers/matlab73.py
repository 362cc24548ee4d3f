"""MATLAB files of version 7.3, which are HDF5: matrices lie transposed, cells are references."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse

from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.hdf5_access import checked, child, open_hdf5
from streammiml_tools.readers.matlab5 import ITEM_BYTES, check_sparse
from streammiml_tools.readers.matlab_layout import Outline


def _class_of(item: Any) -> str:
    said = item.attrs.get("MATLAB_class", b"")
    return said.decode() if isinstance(said, bytes) else str(said)


def _is_references(dataset: Any) -> bool:
    return h5py.check_ref_dtype(dataset.dtype) is h5py.Reference


def outlines(path: Path) -> list[Outline]:
    """All variables of a file, fields of structs as variables of their own."""
    with open_hdf5(path) as file:
        return [
            one
            for name in file
            if not name.startswith("#")
            for one in _variable(path, file, child(path, file, name), name)
        ]


def _variable(path: Path, file: Any, item: Any, name: str) -> Iterator[Outline]:
    if isinstance(item, h5py.Group) and "MATLAB_sparse" not in item.attrs:
        for field in item:
            yield from _variable(path, file, child(path, item, field), f"{name}.{field}")
    elif isinstance(item, h5py.Dataset) and _is_references(item):
        shape = item.shape[::-1]
        items = tuple(_item(path, file[ref], name) for ref in item[()].ravel())
        held = sum(one.n_bytes + ITEM_BYTES for one in items)
        yield Outline(name, "cell", shape, items=items, n_bytes=held)
    else:
        yield _item(path, item, name)


def _item(path: Path, item: Any, name: str) -> Outline:
    """A matrix or text."""
    if isinstance(item, h5py.Group):
        if "MATLAB_sparse" not in item.attrs:
            return Outline(name, "other")
        jc = child(path, item, "jc")
        shape = (int(item.attrs["MATLAB_sparse"]), len(jc) - 1)
        store, held = "float64", jc.nbytes
        # A sparse matrix without values has only its list of columns.
        if "data" in item:
            values = child(path, item, "data")
            store, held = values.dtype.name, held + 3 * values.nbytes
        return Outline(name, "matrix", shape, _store(item, store), True, n_bytes=held)
    dataset = checked(path, item)
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


def _found(path: Path, file: Any, name: str) -> Any:
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
    found = scipy.sparse.csc_array((values, rows, columns), shape=(n_rows, len(columns) - 1))
    check_sparse(found, f"{path}: {group.name}")
    return found


def _values(path: Path, item: Any) -> Any:
    if isinstance(item, h5py.Group):
        return _sparse(path, item)
    return checked(path, item)[()].T


def matrix(path: Path, one: Outline) -> Any:
    """A whole matrix, dense or sparse."""
    with open_hdf5(path) as file:
        return _values(path, _found(path, file, one.name))


def lines(path: Path, one: Outline, start: int, stop: int, *, transposed: bool) -> Any:
    """Some rows of a matrix, or columns as rows if it lies transposed."""
    with open_hdf5(path) as file:
        dataset = _found(path, file, one.name)
        return dataset[start:stop] if transposed else dataset[:, start:stop].T


def items(path: Path, one: Outline, start: int, stop: int) -> list[Any]:
    """Some matrices of a cell, in MATLAB's order; empty ones as their outline has them."""
    with open_hdf5(path) as file:
        references = _references(_found(path, file, one.name), start, stop)
        return [
            np.empty(outline.shape) if 0 in outline.shape else _values(path, file[ref])
            for ref, outline in zip(references, one.items[start:stop], strict=True)
        ]


def _references(dataset: Any, start: int, stop: int) -> Any:
    """Some references of a cell; a column or a row is not read whole."""
    if dataset.ndim == 2 and dataset.shape[0] == 1:
        return dataset[0, start:stop]
    if dataset.ndim == 2 and dataset.shape[1] == 1:
        return dataset[start:stop, 0]
    return dataset[()].ravel()[start:stop]


def texts(path: Path, one: Outline) -> tuple[str, ...]:
    """Strings of a cell."""
    with open_hdf5(path) as file:
        references = _found(path, file, one.name)[()].ravel()
        return tuple("".join(map(chr, np.ravel(file[ref][()]))) for ref in references)
