"""Safe access to untrusted HDF5 files: no data outside of the file, no impossible sizes.

A file is open only while values are read: otherwise zarr and h5py can deadlock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.memory_checks import check_fits
from streammiml_tools.readers.messages import reason_of
from streammiml_tools.readers.remote_files import is_url, random_access, source_path
from streammiml_tools.readers.text import BOMB_LINE, BOMB_RATIO


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[Any]:
    """Open a file for reading; any exception of h5py becomes a SourceError."""
    try:
        if is_url(path):
            with random_access(source_path(path)) as content, h5py.File(content, "r") as file:
                yield file
        else:
            with h5py.File(path, "r", locking=False) as file:
                yield file
    except SourceError:
        raise
    except Exception as error:  # Flipped bits gave eight kinds of exceptions, such as TypeError.
        reason = reason_of(error)
        raise SourceError(f"{path} is damaged or cut short ({reason}); fetch it again") from error


def child(path: str | Path, group: Any, name: str) -> Any:
    """Item of a group; a link to another file is refused and not followed."""
    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        raise SourceError(
            f"{path}: {name!r} is a link to another file; copy the linked data into this file"
        )
    item = group[name]
    return checked(path, item) if isinstance(item, h5py.Dataset) else item


def checked(path: str | Path, dataset: Any) -> Any:
    """Refuse a dataset with values outside of this file, or more values than the file can hold."""
    name = dataset.name
    if dataset.dtype.kind == "O" and not (
        h5py.check_string_dtype(dataset.dtype) or h5py.check_ref_dtype(dataset.dtype)
    ):
        raise SourceError(f"{path}: {name} holds lists of any length; store them as flat arrays")
    if dataset.external:
        raise SourceError(
            f"{path}: {name} keeps its values in another file, {dataset.external[0][0]!r}; "
            "copy them into this file"
        )
    if dataset.is_virtual:
        raise SourceError(
            f"{path}: {name} is virtual, with values in other files; copy it into this file"
        )
    declared = int(np.prod(dataset.shape or (), dtype=object)) * dataset.dtype.itemsize
    stored = int(dataset.id.get_storage_size())
    limit = max(BOMB_LINE, BOMB_RATIO * stored) if dataset.chunks else stored
    if declared > limit:
        raise SourceError(
            f"{path}: {name} declares {declared:,} bytes but has {stored:,} in the file: it was "
            "never filled, or it is a bomb; if neither, h5repack -f NONE writes it uncompressed"
        )
    if stored > source_path(path).stat().st_size:
        raise SourceError(f"{path}: {name} claims {stored:,} bytes, more than the file has")
    return dataset


def check_chunks(path: str | Path, dataset: Any, limits: Limits) -> None:
    """Refuse chunks that do not fit into memory: HDF5 decompresses a chunk to read one value."""
    if dataset.chunks:
        n_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
        stored = int(dataset.id.get_storage_size())
        where = f"{path}: a chunk of {dataset.name}"
        check_fits(where, 2 * n_bytes, limits, declared=n_bytes, stored=stored)


def is_text(dataset: Any) -> bool:
    """Whether a dataset holds texts of variable length."""
    info = h5py.check_string_dtype(dataset.dtype)
    return info is not None and info.length is None


def read_texts(path: str | Path, dataset: Any, start: int, stop: int) -> list[str]:
    """Elements ``start`` to ``stop`` of a dataset of texts of variable length.

    Many elements can refer to one long text of the file. So only a few elements are read at a
    time, and the dataset is refused once it has more characters than the file has bytes.
    """
    status = source_path(path).stat()
    step = max(1, BOMB_LINE // _longest_text(str(path), status.st_size, status.st_mtime_ns))
    limit = max(BOMB_LINE, status.st_size)
    out: list[str] = []
    total = 0
    for at in range(start, stop, step):
        part = dataset.asstr()[at : min(at + step, stop)].tolist()
        total += sum(map(len, part))
        if total > limit:
            raise SourceError(
                f"{path}: {dataset.name} has more characters than the file has bytes; it is a bomb"
            )
        out += part
    return out


@lru_cache(maxsize=8)
def _longest_text(path: str, size: int, changed: int) -> int:
    """Upper limit in bytes for one text: the file without the values of its datasets."""
    del changed  # Part of the cache key, so that a file that was replaced is examined again.
    dataset_bytes = 0

    def add(_: str, item: Any) -> None:
        nonlocal dataset_bytes
        if isinstance(item, h5py.Dataset):
            dataset_bytes += int(item.id.get_storage_size())

    with open_hdf5(path) as file:
        file.visititems(add)
    return max(1, size - dataset_bytes)
