"""What the user names as a source: files, folders, globs, stores; what format they are of.

And who they are: what is noted of each file, so that a conversion is not gone on with when its
source has changed.
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
from streammiml.bags.place import SCHEMES
from streammiml_tools.readers import READERS, reader_of
from streammiml_tools.readers.base import Reader, SourceError, SourceOptions
from streammiml_tools.readers.store import identity as store_identity
from streammiml_tools.readers.store import where

HEAD_BYTES = 1 << 16
FOREIGN = {
    b"[": "is one JSON array; lines of JSON are read: jq -c '.[]' makes a line of each bag",
    b"\0\0\x08": "is an idx file; python -m streammiml_tools.mnist makes bags of a folder of them",
}
"""What a file that no reader knows may begin with, and what to do with it."""
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
# Bytes of head and tail that are noted of a file, and of as many samples between them.
NOTED_BYTES, NOTED_SAMPLES = 1 << 16, 8


@dataclass(frozen=True, slots=True)
class Sources:
    """Files of one format, in the order in which they are converted."""

    reader: Reader
    paths: tuple[Path, ...]
    left_out: tuple[str, ...] = ()
    """Files of a folder that no reader knows."""


def find_sources(named: Sequence[str], options: SourceOptions) -> Sources:
    """The files behind what the user names, and the one reader of all of them."""
    if not named:
        raise SourceError("no source was named")
    found: list[Path] = []
    left_out: list[str] = []
    readers: dict[str, Path] = {}
    wanted = None if options.format is None else reader_of(options.format)
    for source in named:
        for path, of_folder in _expanded(source):
            if wanted is not None and not of_folder:
                name = wanted.name
            else:
                fitting = readers_of(path)
                known = [name for name in fitting if wanted is None or name == wanted.name]
                if not known and of_folder:
                    left_out.append(str(path))
                    continue
                name = _only(path, known)
            readers.setdefault(name, path)
            found.append(path)
    if len(readers) > 1:
        (one, first), (two, second) = list(readers.items())[:2]
        raise SourceError(
            f"{first} is {one}, but {second} is {two}; convert files of one format at a time, or "
            f"give --format {one}"
        )
    if not found:
        raise SourceError(
            f"{', '.join(named)}: no file of a known format; known: {', '.join(sorted(READERS))}"
        )
    _refuse_twice(found)
    return Sources(reader_of(next(iter(readers))), tuple(found), tuple(left_out))


def _refuse_twice(paths: Sequence[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in paths:
        name = where(path)
        first = seen.setdefault(name if name.startswith(SCHEMES) else os.path.realpath(path), path)
        if first is not path:
            also = "" if str(first) == str(path) else f", also as {first}"
            raise SourceError(f"{path} is named twice{also}; name it once")


def _expanded(source: str) -> list[tuple[Path, bool]]:
    """Paths that a name stands for, each with whether it was found in a folder."""
    if source.startswith(SCHEMES):
        return [(Path(source), False)]
    path = Path(source)
    if not path.exists():
        matches = sorted(glob.glob(source, recursive=True)) if glob.has_magic(source) else []  # noqa: PTH207
        if not matches:
            what = "matches no file" if glob.has_magic(source) else "does not exist"
            raise SourceError(f"{source} {what}")
        return [each for match in matches for each in _expanded(match)]
    if not path.is_dir() or (path / MANIFEST).is_file() or any(path.glob("*.npy")):
        return [(path, False)]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    shown = [file for file in files if not _hidden(file.relative_to(path))]
    if not shown:
        raise SourceError(f"{source} is a folder without files")
    return [(file, True) for file in shown]


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def readers_of(path: Path) -> list[str]:
    """Readers that take a file for their own; those of its suffix alone, if there are any."""
    head = _head(path)
    suffix = bare_suffix(path)
    fitting = {name: reader_of(name) for name in READERS}
    telling = {name: reader for name, reader in fitting.items() if reader.tells(path, head)}
    if "store" in telling:
        # Its files are those of another format too; its manifest says what they are.
        return ["store"]
    by_suffix = [name for name, reader in telling.items() if suffix in reader.suffixes]
    return by_suffix or list(telling)


def _only(path: Path, names: list[str]) -> str:
    if not names:
        head = _head(path)
        if not head and path.is_file():
            raise SourceError(f"{path} is empty")
        for begin, what in FOREIGN.items():
            if head.lstrip(b" \r\n\t").startswith(begin):
                raise SourceError(f"{path} {what}")
        raise SourceError(
            f"{path} is of no known format; --format says which: {', '.join(sorted(READERS))}"
        )
    if len(names) > 1:
        raise SourceError(f"{path} may be {' or '.join(sorted(names))}; --format says which")
    return names[0]


def bare_suffix(path: Path) -> str:
    """The suffix of what is inside: ``.csv`` of ``a.csv.gz``."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _head(path: Path) -> bytes:
    """First bytes of a file, decompressed; none of a folder or of a store under a URL."""
    if where(path).startswith(SCHEMES) or path.is_dir():
        return b""
    compression = COMPRESSED.get(path.suffix.lower())
    try:
        with pa.input_stream(str(path), compression=compression) as stream:
            return bytes(stream.read(HEAD_BYTES))
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())[:120]
        raise SourceError(f"{path} cannot be read: {why}") from None


Noted = list[str | int]


def noted_of(paths: Sequence[Path]) -> list[Noted]:
    """Name, size, time and checksum of samples, for every file; a store's fingerprint."""
    out: list[Noted] = []
    for path in paths:
        if where(path).startswith(SCHEMES) or (path / MANIFEST).is_file():
            out.append([where(path), *store_identity(where(path))])
        elif path.is_dir():
            out += [_noted(file) for file in sorted(path.glob("*.npy"))]
        else:
            out.append(_noted(path))
    return out


def _noted(path: Path) -> Noted:
    try:
        status = path.stat()
        with path.open("rb") as file:
            step = max(1, (status.st_size - NOTED_BYTES) // NOTED_SAMPLES)
            crc = 0
            for at in range(0, max(1, status.st_size - NOTED_BYTES), step):
                file.seek(at)
                crc = crc32c(file.read(NOTED_BYTES), crc)
            file.seek(max(0, status.st_size - NOTED_BYTES))
            crc = crc32c(file.read(), crc)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    return [str(path.absolute()), status.st_size, status.st_mtime_ns, crc]


def change_of(before: Sequence[Noted], now: Sequence[Noted]) -> str | None:
    """What has changed, in words; None if nothing has."""
    for one, two in zip(before, now, strict=False):
        if one == two:
            continue
        if one[0] != two[0]:
            return f"{two[0]} stands where {one[0]} did"
        if len(one) == len(two) == 4 and one[1] != two[1]:
            return f"{one[0]} has {two[1]:,} bytes, {one[1]:,} before"
        if len(one) == len(two) == 4 and one[3] == two[3]:
            return f"{one[0]} was written to again"
        return f"{one[0]} holds something else"
    if len(before) != len(now):
        return f"there are {len(now)} files, {len(before)} before"
    return None
