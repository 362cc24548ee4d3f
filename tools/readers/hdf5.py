"""HDF5, as far as no h5py is needed: its name, and how its files are told.

``hdf5_bags`` reads the files. It loads h5py, which comes with an extra.
"""

from __future__ import annotations

from pathlib import Path

from streammiml_tools.readers.base import ExtraModule, Reader

MAGIC = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5", ".hdf")
BAGS = ExtraModule("streammiml_tools.readers.hdf5_bags", extra="hdf5", packages=("h5py",))


def tells(path: Path, first: bytes) -> bool:
    """HDF5 by its first bytes, unless MATLAB wrote it, or by suffix."""
    known = path.suffix.lower() in SUFFIXES
    return first.startswith(MAGIC) or (known and not first.startswith(b"MATLAB "))


READER = Reader(
    name="hdf5",
    suffixes=SUFFIXES,
    line="HDF5: flat datasets (instances, offsets, label_indptr, label_indices) or a group a bag",
    tells=tells,
    scan=BAGS.scan,
    read=BAGS.read,
    may_lack_labels=True,
    extra=BAGS.extra,
)
