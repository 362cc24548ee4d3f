"""HDF5 files that nobody vouches for: nothing outside the file, nothing larger than it can be.

A file is open only while values are read: zarr and h5py must not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.text import BOMB_LINE, BOMB_RATIO


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[Any]:
    """The file, for reading; damage shows as SourceError, whatever h5py makes of it."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except SourceError:
        raise
    except Exception as error:  # Seen of flipped bits: eight kinds, TypeError among them.
        said = " ".join(str(error).split())[:160]
        raise SourceError(f"{path} is damaged or cut short ({said}); fetch it again") from error


def child(path: str | Path, group: Any, name: str) -> Any:
    """What a name stands for in a group; a link to another file is refused, unfollowed."""
    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        raise SourceError(
            f"{path}: {name!r} is a link to another file; copy what it names into this one"
        )
    found = group[name]
    return checked(path, found) if isinstance(found, h5py.Dataset) else found


def checked(path: str | Path, dataset: Any) -> Any:
    """A dataset whose values lie in this file, and are no more than the file can hold."""
    name = dataset.name
    if dataset.dtype.kind == "O" and not (
        h5py.check_string_dtype(dataset.dtype) or h5py.check_ref_dtype(dataset.dtype)
    ):
        raise SourceError(f"{path}: {name} holds lists of any length; store them as flat arrays")
    if dataset.external:
        raise SourceError(
            f"{path}: {name} keeps its values in another file, {dataset.external[0][0]!r}; "
            "copy them into this one"
        )
    if dataset.is_virtual:
        raise SourceError(f"{path}: {name} is virtual, of other files; copy it into this one")
    declared = int(np.prod(dataset.shape or (), dtype=object)) * dataset.dtype.itemsize
    stored = int(dataset.id.get_storage_size())
    limit = max(BOMB_LINE, BOMB_RATIO * stored) if dataset.chunks else stored
    if declared > limit:
        raise SourceError(
            f"{path}: {name} declares {declared:,} bytes but has {stored:,} in the file: never "
            "filled, or a bomb; if it is neither, h5repack -f NONE writes it plain"
        )
    if stored > Path(path).stat().st_size:
        raise SourceError(f"{path}: {name} claims {stored:,} bytes, more than the file has")
    return dataset
