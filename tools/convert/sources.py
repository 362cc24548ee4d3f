"""The sources of a conversion: which files the user names, their format, and whether they change.

A record of each file (name, size, time, checksum of samples) shows whether a source has changed
since its conversion began.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from streammiml.bags.layout import MANIFEST
from streammiml.bags.location import SCHEMES, open_location
from streammiml.errors import RepeatedIdError
from streammiml_tools.readers import READERS, SUFFIXES, reader_module, reader_of
from streammiml_tools.readers.base import Reader, SourceError, SourceOptions
from streammiml_tools.readers.partitions import in_partitions
from streammiml_tools.readers.remote_files import (
    Status,
    arrow_source,
    files_matching,
    forget_files,
    has_pattern,
    is_url,
    refuse_url,
    source_path,
    status_of,
    statuses_below,
    url_of,
)
from streammiml_tools.readers.text import bare_suffix

HEAD_BYTES = 1 << 16
"""Bytes at the start of a file that readers inspect to recognise its format."""
FOREIGN = {
    b"[": "is one JSON array; convert reads JSON lines: jq -c '.[]' writes a line for each bag",
    b"\0\0\x08": "is an idx file; python -m streammiml_tools.mnist makes bags of idx files",
}
"""First bytes of files that no reader accepts, and advice for the user."""
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
# Sizes of head, tail and samples that the checksum of a file covers, and the number of samples.
SAMPLE_BYTES, N_SAMPLES = 1 << 16, 8

LISTED = 16
"""Files of one folder of URLs that are listed together; fewer are asked for one by one."""

FileRecord = list[str | int]
"""Absolute path, size, time of change and checksum of a file; for a URL its tag (ETag) in place of
the checksum; name and fingerprints of a store."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Files of one format, in the order of their bags."""

    reader: Reader
    paths: tuple[Path, ...]
    left_out: tuple[str, ...] = ()
    """Files of a folder that no reader accepts."""
    label_table: str | None = None
    """The table of ``--bag-labels``."""
    kept_files: tuple[Path, ...] = ()
    """Files of columns to keep, if they are files of their own."""

    @property
    def watched(self) -> tuple[Path, ...]:
        """All files that decide the result: sources, columns to keep, and the table of labels."""
        table = () if self.label_table is None else (source_path(self.label_table),)
        return (*self.paths, *self.kept_files, *table)

    @property
    def name(self) -> str:
        """The first three files, for messages."""
        return ", ".join(str(path) for path in self.paths[:3])


def find_sources(names: Sequence[str], options: SourceOptions) -> Sources:
    """Return the files that the user names by paths, folders, globs or URLs, and their reader."""
    if not names:
        raise SourceError("no source was named")
    forget_files()
    paths: list[Path] = []
    left_out: list[str] = []
    first_of: dict[str, Path] = {}
    requested = None if options.format is None else reader_of(options.format).name
    if requested in (None, "files"):
        sources = _file_a_bag(names, options)
        if sources is not None:
            return sources
    for path, in_folder in _all_expanded(names, options):
        if requested is not None and not in_folder:
            name = requested
        else:
            accepting = [name for name in readers_of(path) if requested in (None, name)]
            if not accepting and in_folder:
                left_out.append(str(path))
                continue
            name = _only_reader(path, accepting)
        if not reader_of(name).streams:
            refuse_url(path, name)
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
    reader = reader_of(next(iter(first_of)))
    return Sources(reader, tuple(paths), tuple(left_out), options.bag_labels)


def _file_a_bag(names: Sequence[str], options: SourceOptions) -> Sources | None:
    """Return the sources if each file is a bag, and None if the files are of another kind.

    Each is a bag if files come with ``--bag-labels``, if a folder has the labels of each bag in a
    file of their own, or if files of arrays have rows and nothing else that a corpus needs.
    """
    asked = options.format == "files"
    # The reader is loaded only where files may be bags.
    may_be_labelled = len(names) == 1 and (Path(names[0]) / "features").is_dir()
    if not asked and options.bag_labels is None and not may_be_labelled:
        return _arrays_of_bags(names, options)
    files = reader_module("files")
    if len(names) == 1 and files.is_labelled_folder(Path(names[0])):
        paths = files.files_of(Path(names[0]), labels=options.bag_labels is None)
        if options.where is not None:
            paths = in_partitions(paths, options.where)
        return _bags_in(paths, [], options)
    if not asked and options.bag_labels is None:
        return _arrays_of_bags(names, options)
    table = None if options.bag_labels is None else _real(options.bag_labels)
    found = [
        pair for pair in _all_expanded(names, options, of_arrays=False) if _real(pair[0]) != table
    ]
    paths = [path for path, _ in found if files.kind_of(path) is not None]
    left_out = [str(path) for path, _ in found if files.kind_of(path) is None]
    if not paths:
        if asked:
            raise SourceError(f"{names[0]}: no file that can hold one bag")
        return None
    # A single table without ids of bags is more often a corpus whose column of ids has another
    # name than a bag; arrays are told by their names and shapes.
    is_single = len(found) == 1 and not found[0][1] and not _holds_arrays(paths[0])
    if not asked and (is_single or not files.holds_one_bag(paths[0], options)):
        return None
    suffixes = {bare_suffix(path): path for path in paths}
    if len({files.kind_of(path) for path in suffixes.values()}) > 1:
        one, other = list(suffixes.values())[:2]
        raise SourceError(f"{one} and {other} are of different kinds; convert one kind at a time")
    return _bags_in(paths, left_out, options)


def _arrays_of_bags(names: Sequence[str], options: SourceOptions) -> Sources | None:
    """Return the sources if, without ``--bag-labels``, each file of arrays has the rows of a bag.

    Other files of their folders are left out. Labels must be named or left out explicitly.
    """
    if not any(map(_may_have_arrays, names)):
        return None
    found = [path for path, _ in _all_expanded(names, options, of_arrays=False)]
    paths = [path for path in found if _holds_arrays(path)]
    if not paths or not {*readers_of(paths[0])} <= {"npz", "hdf5"}:
        return None
    if not import_module("streammiml_tools.readers.bag_shapes").are_bags(paths, options):
        return None
    if not options.no_labels:
        which = "the file holds" if len(paths) == 1 else f"each of {len(paths):,} files holds"
        raise SourceError(
            f"{', '.join(names[:3])}: {which} the rows of one bag, without labels; give their "
            "table as --bag-labels FILE, or --label-columns none to convert bags without labels"
        )
    others = [str(path) for path in found if path not in {*paths}]
    return _bags_in(paths, others, options)


def _may_have_arrays(name: str) -> bool:
    """Whether a name may be of files of arrays: such a file, a folder, or a glob without suffix."""
    path = source_path(name)
    if path.is_dir():
        return not (path / MANIFEST).is_file()
    return _holds_arrays(path) or not bare_suffix(path)


def _holds_arrays(path: Path) -> bool:
    return SUFFIXES.get(bare_suffix(path)) in ("npz", "hdf5")


def _bags_in(paths: Sequence[Path], left_out: Sequence[str], options: SourceOptions) -> Sources:
    files = reader_module("files")
    _refuse_repeated(paths)
    kept_files = tuple(files.kept_files_of(paths, options))
    return Sources(files.READER, tuple(paths), tuple(left_out), options.bag_labels, kept_files)


def _refuse_repeated(paths: Sequence[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in paths:
        first = seen.setdefault(_real(path), path)
        if first is not path:
            also = "" if str(first) == str(path) else f", also as {first}"
            raise SourceError(f"{path} is named twice{also}; name it once")


def _all_expanded(
    names: Sequence[str], options: SourceOptions, *, of_arrays: bool = True
) -> list[tuple[Path, bool]]:
    """Expand all names with ``_expanded``; keep the partitions that ``--where`` chooses."""
    files = [pair for name in names for pair in _expanded(name, of_arrays=of_arrays)]
    if options.where is None:
        return files
    kept = set(in_partitions([path for path, _ in files], options.where))
    return [(path, in_folder) for path, in_folder in files if path in kept]


def _real(path: str | Path) -> str:
    """Return the path of a file without links, or its URL."""
    return url_of(path) if is_url(path) else os.path.realpath(path)


def _expanded(source: str, *, of_arrays: bool = True) -> list[tuple[Path, bool]]:
    """Return the paths that a name matches, and whether each was found inside a named folder.

    ``of_arrays`` keeps a folder of npy files together, as the arrays of one corpus.
    """
    if source.startswith(SCHEMES):
        return _under_url(source)
    if "://" in source:
        open_location(source)  # Refuses the kind of URL, by name.
    path = Path(source)
    if not path.exists():
        matches = sorted(glob.glob(source, recursive=True)) if glob.has_magic(source) else []  # noqa: PTH207
        if not matches:
            problem = "matches no file" if glob.has_magic(source) else "does not exist"
            raise SourceError(f"{source} {problem}")
        return [pair for match in matches for pair in _expanded(match, of_arrays=of_arrays)]
    if not path.is_dir() or (path / MANIFEST).is_file():
        return [(path, False)]
    if of_arrays and any(path.glob("*.npy")):
        return [(path, False)]
    if (path / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(entry.name for entry in path.iterdir() if entry.is_dir()))
        raise SourceError(f"{source} holds several data sets; name one of them: {splits}")
    if (path / "state.json").is_file() and (path / "dataset_info.json").is_file():
        # As save_to_disk of Hugging Face writes; the other files describe these.
        return [(file, True) for file in sorted(path.glob("*.arrow"))]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    visible = [file for file in files if not _is_hidden(file.relative_to(path))]
    if not visible:
        raise SourceError(f"{source} is a folder without files")
    return [(file, True) for file in visible]


def _under_url(source: str) -> list[tuple[Path, bool]]:
    """Return the store or file of a URL, or the files that it matches or that are below it."""
    path = source_path(source)
    if has_pattern(source):
        matches = [(source_path(url), False) for url in files_matching(source)]
        if not matches:
            raise SourceError(f"{source} matches no file")
        return matches
    if reader_of("store").tells(path, b"") or path.is_file():
        return [(path, False)]
    if source.startswith(("http://", "https://")):
        if "?" in source:
            raise SourceError(
                f"{source}: a URL with a query (?) cannot be read; download the file and convert it"
            )
        raise SourceError(f"{source} does not exist; name each file, as http cannot list a folder")
    below = len(source.rstrip("/")) + 1
    files = [
        (source_path(url), True)
        for url in statuses_below(source)
        if not _is_hidden(Path(url[below:]))
    ]
    if not files:
        raise SourceError(f"{source} does not exist")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def readers_of(path: Path) -> list[str]:
    """Return the names of the readers that accept a file.

    If the reader of the suffix accepts the file, only its name is returned. Otherwise all readers
    inspect the content.
    """
    head = _head(path)
    # The files of a store have suffixes of other formats; its manifest shows that it is a store.
    may_be_store = is_url(path) or (path / MANIFEST).is_file()
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
            f"{path} is of no known format; give --format, one of {', '.join(sorted(READERS))}",
            page="convert",
        )
    if len(names) > 1:
        raise SourceError(
            f"{path} may be {' or '.join(sorted(names))}; give --format", page="convert"
        )
    return names[0]


def _head(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed; nothing for a folder or a store."""
    if path.is_dir() or (is_url(path) and not path.is_file()):
        return b""
    compression = COMPRESSED.get(path.suffix.lower())
    try:
        with pa.input_stream(arrow_source(path), compression=compression) as stream:
            return bytes(stream.read(HEAD_BYTES))
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())[:120]
        raise SourceError(f"{path} cannot be read: {reason}") from None


def records_of(paths: Sequence[Path]) -> list[FileRecord]:
    """Return a record of every file, and of every store."""
    records: list[FileRecord] = []
    files: list[str] = []
    for path in paths:
        if is_url(path) and not reader_of("store").tells(path, b""):
            files.append(url_of(path))
        elif is_url(path) or (path / MANIFEST).is_file():
            name = url_of(path)
            records.append([name, *reader_module("store").identity(name)])
        elif path.is_dir():
            records += [_record_of(file) for file in sorted(path.glob("*.npy"))]
        else:
            records.append(_record_of(path))
    return records + _records_of_urls(files)


def _records_of_urls(urls: Sequence[str]) -> list[FileRecord]:
    """Return URL, size, time of change and tag of files, as their servers have them now."""
    folders = Counter(url.rpartition("/")[0] for url in urls)
    listed_status: dict[str, Status] = {}
    for folder, count in folders.items():
        # A list has a thousand files in one answer.
        if count >= LISTED and not folder.startswith(("http://", "https://")):
            listed_status |= statuses_below(folder)
    records: list[FileRecord] = []
    for url in urls:
        status = listed_status.get(url) or status_of(url)
        if status is None:
            raise SourceError(f"{url} is missing")
        records.append([url, status.size, status.changed * 10**9, status.tag or url])
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


def same_files(records: Sequence[FileRecord]) -> tuple[str, str] | None:
    """Paths of two files with the same size and samples; None if all differ."""
    first_of: dict[tuple[str | int, str | int], str] = {}
    for record in records:
        if isinstance(record[1], int):
            path = str(record[0])
            first = first_of.setdefault((record[1], record[3]), path)
            if first != path:
                return first, path
    return None


def with_advice(error: RepeatedIdError, reader: str, records: Sequence[FileRecord]) -> SourceError:
    """Return an error about an id that occurs twice, with advice that fits its sources."""
    twins = same_files(records)
    advice = "" if reader == "store" else "; --group joins the rows of a bag"
    if twins is not None:
        # Joined rows would be twice in each bag.
        advice = f": {twins[0]} and {twins[1]} have the same content; name one of them"
    return SourceError(f"{error}{advice}")


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
