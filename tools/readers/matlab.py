"""MATLAB, as far as no SciPy is needed: its name, and how its files are told.

``matlab_bags`` reads the files. It loads SciPy and h5py, which come with an extra.
"""

from __future__ import annotations

from pathlib import Path

from streammiml_tools.readers.base import ExtraModule, Reader

BAGS = ExtraModule(
    "streammiml_tools.readers.matlab_bags", extra="matlab", packages=("scipy", "h5py")
)


def tells(path: Path, first: bytes) -> bool:
    """MATLAB by the text that begins its files, or by their suffix."""
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
