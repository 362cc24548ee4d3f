"""The HDF5 reader without h5py: its name, its suffixes, and how its files are recognised.

``hdf5_bags`` reads the files. It imports h5py, which an extra installs.
"""

from __future__ import annotations

from pathlib import Path

from streammiml_tools.readers.base import ExtraModule, Reader

MAGIC = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5", ".hdf")
BAGS = ExtraModule("streammiml_tools.readers.hdf5_bags", extra="hdf5", packages=("h5py",))


def tells(path: Path, first: bytes) -> bool:
    """Whether a file is HDF5, by first bytes or suffix, and was not written by MATLAB."""
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
