"""Which parts of a folder are complete: counts of each part, and checksums of its files.

A part's record is written after all files of the part. It holds the size and crc32c of each file,
and begins with its own crc32c. A file that is missing, truncated or changed is therefore detected,
and its part is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from crc32c import crc32c

from streammiml._base.json_and_toml import parse_json
from streammiml.measure.output_plan import PredictionCounts
from streammiml.measure.prediction_folder import atomic_file, disk_errors

RECORDS = "_parts"
_READ_BYTES = 1 << 20


def record_part(folder: Path, number: int, counts: PredictionCounts, files: Iterable[Path]) -> None:
    """Record that a part is complete; ``files`` are all of its files, under their final names."""
    path = _path(folder, number)
    with disk_errors(path):
        path.parent.mkdir(exist_ok=True)
        sums = {str(file.relative_to(folder)): _size_and_crc(file) for file in files}
    record = json.dumps({"counts": counts, "files": sums}, sort_keys=True).encode()
    with atomic_file(path) as file:
        file.write(b"%08x %s" % (crc32c(record), record))


def complete_part(folder: Path, number: int, *, read_files: bool = True) -> PredictionCounts | None:
    """Return the counts of a part if it is complete; None if it must be written.

    ``read_files`` compares checksums, which is fast compared with scoring; without it only sizes
    are compared.
    """
    try:
        own_crc, record = _path(folder, number).read_bytes().split(b" ", 1)
        if own_crc != b"%08x" % crc32c(record):
            return None
        fields = parse_json(record)
        for name, (size, crc) in fields["files"].items():
            file = folder / name
            if file.stat().st_size != size:
                return None
            if read_files and _size_and_crc(file) != [size, crc]:
                return None
        return PredictionCounts(*fields["counts"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _path(folder: Path, number: int) -> Path:
    return folder / RECORDS / f"{number:06d}"


def _size_and_crc(path: Path) -> list[int]:
    size = crc = 0
    with path.open("rb") as file:
        while content := file.read(_READ_BYTES):
            size, crc = size + len(content), crc32c(content, crc)
    return [size, crc]
