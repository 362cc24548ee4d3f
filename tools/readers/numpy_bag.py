"""The rows or the labels of one bag in a NumPy file, on disk or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml_tools.readers import npz
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.labelling import check_marks
from streammiml_tools.readers.memory_checks import check_bag, check_fits
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.text import bare_suffix

ROWS = ("features", "feats", "embeddings", *npz.NAMES["rows"])
"""Names of the array of rows, in files that hold several arrays."""
LABEL_BYTES = 1 << 16
"""Upper limit in bytes for the labels of one bag."""


def one_array(where: object, names: Sequence[str], options: SourceOptions) -> str:
    """Name of the array of rows: by option, by a common name, or the only array."""
    if options.variables:
        if options.variables[0] not in names:
            raise SourceError(
                f"{where} has no array {options.variables[0]!r} (--variables); arrays: "
                f"{listed(names) or 'none'}"
            )
        return options.variables[0]
    name = next((name for name in ROWS if name in names), None)
    others = [name for name in names if name not in options.kept_names]
    if name is None and len(others) == 1:
        return others[0]
    if name is None:
        raise SourceError(
            f"{where}: which array holds the rows of the bag? give --variables; arrays: "
            f"{listed(names) or 'none'}"
        )
    return name


def checked_shape(where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, int]:
    """Rows and features; one leading axis of length 1 is allowed."""
    inner = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    if len(inner) != 2 or dtype.kind not in "fiub" or not inner[1]:
        raise SourceError(
            f"{where} is {dtype} of shape {shape}, expected numbers of shape (rows, features)"
        )
    return inner[0], inner[1]


def array_of_rows(file: Path | npz.HeldFile, options: SourceOptions) -> npz.StoredArray:
    """The array of rows in an npy or npz file; its header is read, but its shape is not checked."""
    if bare_suffix(str(file)) == ".npy":
        return npz.npy_array(file)
    arrays = npz.members_of(file)
    return arrays[one_array(file, list(arrays), options)]


def all_rows(array: npz.StoredArray, options: SourceOptions) -> NDArray[Any]:
    """Read an array of rows, of shape (rows, features)."""
    array.check(options.limits)
    return array.open().all().reshape(-1, array.shape[-1])


def held_rows(file: npz.HeldFile, options: SourceOptions) -> NDArray[Any]:
    """Read the rows of a file in memory; rows that do not fit beside the file are refused."""
    array = array_of_rows(file, options)
    checked_shape(array.name, array.shape, array.dtype)
    check_bag(array.name, array.nbytes, options.limits)
    return all_rows(array, options)


def label_values(path: Path | npz.HeldFile, options: SourceOptions) -> NDArray[np.generic]:
    """Read the labels of a bag from an npy file: one number, or a mark for each label."""
    array = npz.npy_array(path)
    if len(array.shape) > 1 or array.dtype.kind not in "iufb" or array.nbytes > LABEL_BYTES:
        raise SourceError(
            f"{path} is {array.dtype} of shape {array.shape}, expected the number of a class, or a "
            "row of 0 and 1 with a mark for each label"
        )
    check_fits(str(path), array.nbytes, options.limits)
    return array.open().all().reshape(-1)


def label_numbers(values: NDArray[np.generic], path: Path | npz.HeldFile) -> NDArray[np.int32]:
    """Label numbers of a bag: one value is the number of its class, several are marks."""
    if len(values) == 1:
        value = float(values[0])
        if not np.isfinite(value) or value != int(value) or not 0 <= value < 2**31:
            raise SourceError(f"{path}: the class is {value:g}, but classes are counted 0, 1, 2, …")
        return np.array([int(value)], np.int32)
    check_marks(values.reshape(1, -1), str(path))
    return np.flatnonzero(values == 1).astype(np.int32)
