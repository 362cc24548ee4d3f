"""The sources of a conversion: which files the user names, their format, and whether they change.

A record of each file (name, size, time, checksum of samples) shows whether a source has changed
since its conversion began.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from streammiml.bags.layout import MANIFEST
from streammiml.bags.location import SCHEMES
from streammiml_tools.readers import READERS, SUFFIXES, reader_module, reader_of
from streammiml_tools.readers.base import Reader, SourceError, SourceOptions
from streammiml_tools.readers.text import bare_suffix

HEAD_BYTES = 1 << 16
"""Bytes at the start of a file that readers inspect to recognise its format."""
FOREIGN = {
    b"[": "is one JSON array; convert reads JSON lines: jq -c '.[]' writes a line for each bag",
    b"\0\0\x08": "is an idx file; python -m streammiml_tools.mnist makes bags of idx files",
}
"""First bytes of files that no reader accepts, and advice for the user."""
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
URLS = tuple(scheme.removesuffix("/") for scheme in SCHEMES)
"""How a URL begins as a ``Path``, which joins two slashes into one."""
# Sizes of head, tail and samples that the checksum of a file covers, and the number of samples.
SAMPLE_BYTES, N_SAMPLES = 1 << 16, 8

FileRecord = list[str | int]
"""Absolute path, size, time of change and checksum of a file; name and fingerprints of a store."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Files of one format, in the order of their bags."""

    reader: Reader
    paths: tuple[Path, ...]
    left_out: tuple[str, ...] = ()
    """Files of a folder that no reader accepts."""

    @property
    def name(self) -> str:
        """The first three files, for messages."""
        return ", ".join(str(path) for path in self.paths[:3])


def find_sources(names: Sequence[str], options: SourceOptions) -> Sources:
    """Return the files that the user names by paths, folders, globs or URLs, and their reader."""
    if not names:
        raise SourceError("no source was named")
    paths: list[Path] = []
    left_out: list[str] = []
    first_of: dict[str, Path] = {}
    requested = None if options.format is None else reader_of(options.format).name
    for source in names:
        for path, in_folder in _expanded(source):
            if requested is not None and not in_folder:
                name = requested
            else:
                accepting = [name for name in readers_of(path) if requested in (None, name)]
                if not accepting and in_folder:
                    left_out.append(str(path))
                    continue
                name = _only_reader(path, accepting)
            first_of.setdefault(name, path)
            paths.append(path)
    if len(first_of) > 1:
        (name, path), (other_name, other_path) = list(first_of.items())[:2]
        raise SourceError(
            f"{path} is {name}, but {other_path} is {other_name}; convert files of one format at a "
            f"time, or give --format {name}"
        )
    if not paths:
        raise SourceError(
            f"{', '.join(names)}: no file of a known format; known: {', '.join(sorted(READERS))}"
        )
    _refuse_repeated(paths)
    return Sources(reader_of(next(iter(first_of))), tuple(paths), tuple(left_out))


def _refuse_repeated(paths: Sequence[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in paths:
        first = seen.setdefault(str(path) if _is_url(path) else os.path.realpath(path), path)
        if first is not path:
            also = "" if str(first) == str(path) else f", also as {first}"
            raise SourceError(f"{path} is named twice{also}; name it once")


def _expanded(source: str) -> list[tuple[Path, bool]]:
    """Return the paths that a name matches, and whether each was found inside a named folder."""
    if source.startswith(SCHEMES):
        return [(Path(source), False)]
    path = Path(source)
    if not path.exists():
        matches = sorted(glob.glob(source, recursive=True)) if glob.has_magic(source) else []  # noqa: PTH207
        if not matches:
            problem = "matches no file" if glob.has_magic(source) else "does not exist"
            raise SourceError(f"{source} {problem}")
        return [pair for match in matches for pair in _expanded(match)]
    if not path.is_dir() or (path / MANIFEST).is_file() or any(path.glob("*.npy")):
        return [(path, False)]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    visible = [file for file in files if not _is_hidden(file.relative_to(path))]
    if not visible:
        raise SourceError(f"{source} is a folder without files")
    return [(file, True) for file in visible]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _is_url(path: Path) -> bool:
    return str(path).startswith(URLS)


def readers_of(path: Path) -> list[str]:
    """Return the names of the readers that accept a file.

    If the reader of the suffix accepts the file, only its name is returned. Otherwise all readers
    inspect the content.
    """
    head = _head(path)
    # The files of a store have suffixes of other formats; its manifest shows that it is a store.
    may_be_store = _is_url(path) or (path / MANIFEST).is_file()
    if may_be_store and reader_of("store").tells(path, head):
        return ["store"]
    by_suffix = SUFFIXES.get(bare_suffix(path))
    if by_suffix is not None and reader_of(by_suffix).tells(path, head):
        return [by_suffix]
    return [name for name in READERS if reader_of(name).tells(path, head)]


def _only_reader(path: Path, names: list[str]) -> str:
    if not names:
        head = _head(path)
        if not head and path.is_file():
            raise SourceError(f"{path} is empty")
        for start, advice in FOREIGN.items():
            if head.lstrip(b" \r\n\t").startswith(start):
                raise SourceError(f"{path} {advice}")
        raise SourceError(
            f"{path} is of no known format; give --format, one of {', '.join(sorted(READERS))}"
        )
    if len(names) > 1:
        raise SourceError(f"{path} may be {' or '.join(sorted(names))}; give --format")
    return names[0]


def _head(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed; nothing for a folder or a URL."""
    if _is_url(path) or path.is_dir():
        return b""
    compression = COMPRESSED.get(path.suffix.lower())
    try:
        with pa.input_stream(str(path), compression=compression) as stream:
            return bytes(stream.read(HEAD_BYTES))
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())[:120]
        raise SourceError(f"{path} cannot be read: {reason}") from None


def records_of(paths: Sequence[Path]) -> list[FileRecord]:
    """Return a record of every file, and of every store."""
    records: list[FileRecord] = []
    for path in paths:
        if _is_url(path) or (path / MANIFEST).is_file():
            store = reader_module("store")
            name = store.where(path)
            records.append([name, *store.identity(name)])
        elif path.is_dir():
            records += [_record_of(file) for file in sorted(path.glob("*.npy"))]
        else:
            records.append(_record_of(path))
    return records


def _record_of(path: Path) -> FileRecord:
    try:
        status = path.stat()
        with path.open("rb") as file:
            step = max(1, (status.st_size - SAMPLE_BYTES) // N_SAMPLES)
            crc = 0
            for start in range(0, max(1, status.st_size - SAMPLE_BYTES), step):
                file.seek(start)
                crc = crc32c(file.read(SAMPLE_BYTES), crc)
            file.seek(max(0, status.st_size - SAMPLE_BYTES))
            crc = crc32c(file.read(), crc)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    return [str(path.absolute()), status.st_size, status.st_mtime_ns, crc]


def change_of(before: Sequence[FileRecord], now: Sequence[FileRecord]) -> str | None:
    """Say how the first changed file differs from its record; None if no file has changed."""
    for old, new in zip(before, now, strict=False):
        if old == new:
            continue
        if old[0] != new[0]:
            return f"{new[0]} has replaced {old[0]}"
        if len(old) == len(new) == 4 and old[1] != new[1]:
            return f"{old[0]} has changed from {old[1]:,} to {new[1]:,} bytes"
        if len(old) == len(new) == 4 and old[3] == new[3]:
            return f"{old[0]} was written again"
        return f"{old[0]} has changed its content"
    if len(before) != len(now):
        return f"the number of files has changed from {len(before)} to {len(now)}"
    return None
