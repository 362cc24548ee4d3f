"""The MATLAB reader without SciPy: its name, its suffix, and how its files are recognised.

``matlab_bags`` reads the files. It imports SciPy and h5py, which an extra installs.
"""

from __future__ import annotations

from pathlib import Path

from streammiml_tools.readers.base import ExtraModule, Reader

BAGS = ExtraModule(
    "streammiml_tools.readers.matlab_bags", extra="matlab", packages=("scipy", "h5py")
)


def tells(path: Path, first: bytes) -> bool:
    """Whether a file is MATLAB's, by its first bytes or its suffix."""
    return first.startswith(b"MATLAB ") or path.suffix.lower() == ".mat"


READER = Reader(
    name="matlab",
    suffixes=(".mat",),
    line="MATLAB, version 5 to 7.3: a cell of bags or rows with their bag, targets, row labels",
    tells=tells,
    scan=BAGS.scan,
    read=BAGS.read,
    extra=BAGS.extra,
)
