"""Marks of the parts that are written: counts of a part, and what its files must be to count.

A mark comes after all files of its part. It has the size and crc32c of each, and begins with its
own, so that a file that is missing, cut or changed is seen, and the part written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from crc32c import crc32c

from streammiml.measure.folder import saying_what_failed, written_whole
from streammiml.measure.parts import Tally

MARKS = "_parts"
_READ_BYTES = 1 << 20


def write(folder: Path, number: int, tally: Tally, files: Iterable[Path]) -> None:
    """Say that a part is whole; ``files`` are all of its files, under their final names."""
    path = _path(folder, number)
    with saying_what_failed(path):
        path.parent.mkdir(exist_ok=True)
        seen = {str(file.relative_to(folder)): _sum(file) for file in files}
    said = json.dumps({"counts": tally, "files": seen}, sort_keys=True).encode()
    with written_whole(path) as mark:
        mark.write(b"%08x %s" % (crc32c(said), said))


def finished(folder: Path, number: int, *, read: bool = True) -> Tally | None:
    """Counts of a part that is there and whole; None if it must be written.

    Files are read and their checksums compared, which takes little beside scoring; sizes alone
    are, unless ``read``.
    """
    try:
        own, said = _path(folder, number).read_bytes().split(b" ", 1)
        if own != b"%08x" % crc32c(said):
            return None
        mark = json.loads(said)
        for name, (size, crc) in mark["files"].items():
            file = folder / name
            if file.stat().st_size != size or (read and _sum(file) != [size, crc]):
                return None
        return Tally(*mark["counts"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _path(folder: Path, number: int) -> Path:
    return folder / MARKS / f"{number:06d}"


def _sum(path: Path) -> list[int]:
    """Bytes of a file, and their crc32c."""
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            size, crc = size + len(piece), crc32c(piece, crc)
    return [size, crc]
