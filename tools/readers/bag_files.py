"""A file a bag: slides, videos or documents, each in a file of its own.

The name of a file without its suffix is the id of the bag; labels come from ``--bag-labels``. In a
folder as torchmil keeps it, ``features/`` has the rows and ``labels/`` the labels of each bag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import TEXT, Kept, KeptColumn, common_column
from streammiml.bags.kept_columns import n_bytes as column_bytes
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml.blocks.prefetch import ReadAhead
from streammiml_tools.readers.base import (
    BESIDE,
    Limits,
    Reader,
    Scan,
    SourceError,
    SourceOptions,
    Span,
)
from streammiml_tools.readers.matlab_layout import narrowest
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.numpy_bag import label_numbers, label_values
from streammiml_tools.readers.one_bag import (
    BagFile,
    describe,
    kept_beside,
    kept_of,
    kept_types_of,
    kind_of,
    rows_of,
)
from streammiml_tools.readers.remote_files import fetched, is_url, source_path
from streammiml_tools.readers.text import bare_suffix

Result = TypeVar("Result")

FEATURES, LABELS = "features", "labels"
URL_THREADS = 16
"""Files under URLs that are read at once: most of the time is spent waiting for answers."""
MOST_FETCHED = 64 << 20
"""Upper limit in bytes for a file that is fetched as a whole; larger ones are read by ranges."""
TEXT_FILES = {".csv", ".tsv", ".tab"}


def is_labelled_folder(path: Path) -> bool:
    """Whether a folder is kept as torchmil does, with a file a bag in features/ and labels/."""
    return all(
        (path / name).is_dir() and any((path / name).glob("*.npy")) for name in (FEATURES, LABELS)
    )


def files_of(path: Path, *, labels: bool) -> list[Path]:
    """The files of such a folder: those of features and, if wanted, those of labels."""
    names = (FEATURES, LABELS) if labels else (FEATURES,)
    return [file for name in names for file in sorted((path / name).glob("*.npy"))]


def kept_files_of(paths: Sequence[Path], options: SourceOptions) -> list[Path]:
    """Files of columns to keep that are files of their own, beside those of the bags."""
    return [
        beside
        for name in options.kept_names
        for path in paths
        if bare_suffix(path) == ".npy" and path.parent.name != LABELS
        if (beside := kept_beside(path, name)).is_file()
    ]


def holds_one_bag(path: Path, options: SourceOptions) -> bool:
    """Whether a file has the rows of one bag, and neither ids nor offsets of bags."""
    kind = kind_of(path)
    return kind is not None and kind.is_one(path, options)


def bag_id(path: Path) -> str:
    """Id of the bag in a file: the name of the file without its suffix."""
    return path.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[0]


def ids_in(scan: Scan) -> Iterator[str]:
    """Ids of all bags, from the names of the files."""
    for span in scan.spans:
        for path in span.path.split(BESIDE):
            yield bag_id(Path(path))


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Read the header of every file."""
    label_files = [path for path in paths if _is_label_file(path, paths[0])]
    files = [path for path in paths if not _is_label_file(path, paths[0])]
    _refuse_repeated_ids(files, options)
    dtypes: set[str] = set()
    n_rows: int | None = 0
    sizes = np.empty(len(files), np.int64)
    first = describe(files[0], options)
    for number, (path, bag) in enumerate(
        zip(files, _of_each(files, lambda path: describe(path, options)), strict=True)
    ):
        _refuse_other_columns(path, bag, first.n_features, first.names)
        dtypes.add(bag.dtype)
        sizes[number] = bag.n_bytes
        n_rows = None if n_rows is None or bag.n_rows is None else n_rows + bag.n_rows
    kept = _kept_found(files, options) if options.kept_names else ()
    names, n_labels = None, None
    if label_files and not options.no_labels:
        names, n_labels = _labels_found(files, label_files, options)
    has_labels = bool(label_files) and not options.no_labels
    rows = "float64, rounded to float32" if "float64" in dtypes else ", ".join(sorted(dtypes))
    return Scan(
        spans=tuple(
            _span(files[a:b], int(sizes[a:b].sum()))
            for a, b in cuts_by_bytes(sizes, options.span_bytes)
        ),
        n_features=first.n_features,
        dtype=next(iter(dtypes))
        if len(dtypes) == 1 and dtypes <= {*ROW_DTYPES}
        else narrowest(dtypes),
        label_names=names,
        n_labels=n_labels,
        feature_names=first.names,
        bag_ids=True,
        kept=kept,
        n_bags=len(files),
        n_rows=n_rows,
        notes=(
            f"a file a bag: {len(files):,} files, {rows}; the id of a bag is the name of its file",
            f"labels from the files of {LABELS}/" if has_labels else "no labels in the files",
            *([f"kept: {listed([*map(str, kept)])}"] if kept else []),
            *([f"left out: columns {listed(first.left_out)}"] if first.left_out else []),
        ),
    )


def _of_each(paths: Sequence[Path], read: Callable[[Path], Result]) -> Iterator[Result]:
    """Yield ``read(path)`` for each file in order; files under URLs are read by several threads."""
    if not is_url(paths[0]):
        yield from map(read, paths)
        return
    with ReadAhead(read, paths, depth=URL_THREADS, threads=URL_THREADS) as ahead:
        yield from ahead


def _span(paths: Sequence[Path], n_bytes: int) -> Span:
    return Span(BESIDE.join(map(str, paths)), 0, len(paths), n_bytes, len(paths))


def _kept_found(files: Sequence[Path], options: SourceOptions) -> tuple[KeptColumn, ...]:
    """Types that hold the kept columns of all files."""
    found = {column.name: column for column in kept_types_of(files[0], options)}
    for path, columns in zip(
        files, _of_each(files, lambda path: kept_types_of(path, options)), strict=True
    ):
        of_file = {column.name: column for column in columns}
        if of_file.keys() != found.keys():
            name = min(of_file.keys() ^ found.keys())
            other = files[0] if name in of_file else path
            raise SourceError(f"{other} has no column {name!r} (--keep), which other files have")
        for name, column in of_file.items():
            common = common_column(found[name], column)
            if common is None and bare_suffix(path) in TEXT_FILES:
                # Cells of any file can be kept as text.
                common = KeptColumn(name, TEXT)
            if common is None:
                raise SourceError(
                    f"{path}: {name!r} (--keep) is {column}, but {files[0]} has {found[name]}"
                )
            found[name] = common
    return tuple(sorted(found.values()))


def _refuse_repeated_ids(files: Sequence[Path], options: SourceOptions) -> None:
    held = HeldBytes(str(files[0]), "names of files", options.limits)
    path_of: dict[str, Path] = {}
    for path in files:
        first = path_of.setdefault(bag_id(path), path)
        held.add(2 * ID_BYTES + 2 * len(str(path)))
        if first is not path:
            raise SourceError(
                f"{first} and {path} have the same name, which is the id of their bag; rename one, "
                "or convert the folders one by one"
            )


def _refuse_other_columns(
    path: Path, bag: BagFile, n_features: int, names: tuple[str, ...] | None
) -> None:
    """Refuse a file whose features differ from those of the first file in number, name or order."""
    if bag.n_features != n_features:
        raise SourceError(
            f"{path} has rows of {bag.n_features} values, expected {n_features}, as in the first "
            "file"
        )
    if bag.names == names:
        return
    remedy = "as in the first file; name the features in their order by --feature-columns"
    if bag.names is None or names is None:
        has, expected = ("no names", "names") if bag.names is None else ("names", "no names")
        raise SourceError(f"{path} has {has} of feature columns, expected {expected}, {remedy}")
    at = next(i for i in range(n_features) if bag.names[i] != names[i])
    raise SourceError(
        f"{path}: feature column {at + 1} is {bag.names[at]!r}, expected {names[at]!r}, {remedy}"
    )


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags of some files."""
    paths = [source_path(path) for path in span.path.split(BESIDE)]
    bags: list[NDArray[np.generic]] = []
    labels: list[NDArray[np.int32]] = []
    kept: list[Kept] = []
    has_labels = scan.n_labels is not None and not options.no_labels
    first = n_bytes = 0
    read_one = partial(_read_bag, scan=scan, options=options, has_labels=has_labels)
    for number, bag in enumerate(_of_each(paths, read_one), 1):
        if scan.kept:
            kept.append(bag.kept)
            n_bytes += sum(map(column_bytes, bag.kept.values()))
        bags.append(bag.rows)
        labels.append(bag.labels)
        n_bytes += bag.rows.nbytes
        # A span is one block, unless its text has become more: joining blocks copies them again.
        if n_bytes >= 2 * options.span_bytes or number == len(paths):
            block = _block(bags, labels, [bag_id(file) for file in paths[first:number]])
            yield replace(block, kept=_joined(kept))
            bags, labels, kept, first, n_bytes = [], [], [], number, 0


class _ReadBag(NamedTuple):
    rows: NDArray[np.generic]
    kept: Kept
    labels: NDArray[np.int32]


def _read_bag(path: Path, scan: Scan, options: SourceOptions, *, has_labels: bool) -> _ReadBag:
    file = fetched(path, _most_fetched(options.limits))
    bag = describe(file, options)
    _refuse_other_columns(path, bag, scan.n_features, scan.feature_names)
    rows = rows_of(file, options)
    kept = kept_of(file, options, scan.kept, len(rows)) if scan.kept else {}
    labels = _labels_beside(path, options) if has_labels else np.empty(0, np.int32)
    return _ReadBag(rows, kept, labels)


def _most_fetched(limits: Limits) -> int:
    """Size of the largest file that may be held, as several are read at once."""
    return min(MOST_FETCHED, limits.share // (8 * URL_THREADS))


def _joined(kept: Sequence[Kept]) -> Kept:
    """Kept columns of several bags, end to end."""
    names = kept[0] if kept else {}
    return {name: np.concatenate([of_bag[name] for of_bag in kept]) for name in names}


def _block(
    bags: Sequence[NDArray[np.generic]], labels: Sequence[NDArray[np.int32]], ids: list[str]
) -> BagBlock:
    return BagBlock(
        from_sizes([len(rows) for rows in bags]),
        bags[0] if len(bags) == 1 else np.concatenate(bags),
        from_sizes([len(bag_labels) for bag_labels in labels]),
        np.concatenate(labels),
        bag_ids=ids,
    )


# Labels in files of their own.


def _is_label_file(path: Path, first: Path) -> bool:
    return path.parent.name == LABELS and first.parent.name == FEATURES


def _labels_found(
    files: Sequence[Path], label_files: Sequence[Path], options: SourceOptions
) -> tuple[tuple[str, ...] | None, int | None]:
    """Label names, if given, and the number of labels; every bag needs its file of labels."""
    stems = {path.stem for path in label_files}
    missing = [path for path in files if path.stem not in stems]
    if missing:
        raise SourceError(
            f"{missing[0]} has no file of labels beside it ({len(missing)} such bags); add "
            f"{LABELS}/{missing[0].name}, or give --bag-labels or --label-columns none"
        )
    widths: dict[int, Path] = {}
    highest = -1
    for path in label_files:
        values = label_values(path, options)
        widths.setdefault(len(values), path)
        if len(widths) > 1:
            one, other = islice(widths.items(), 2)
            raise SourceError(
                f"{other[1]} has {other[0]} values, but {one[1]} has {one[0]}; each file of "
                "labels needs as many"
            )
        highest = max(highest, int(label_numbers(values, path).max(initial=-1)))
    width = next(iter(widths))
    n_labels = highest + 1 if width == 1 else width
    if options.labels is None:
        return None, n_labels
    if len(options.labels) < n_labels or (width > 1 and len(options.labels) != width):
        raise SourceError(
            f"{label_files[0].parent}: {n_labels} labels, but --labels gives "
            f"{len(options.labels)} names"
        )
    return options.labels, len(options.labels)


def _labels_beside(path: Path, options: SourceOptions) -> NDArray[np.int32]:
    file = path.parent.with_name(LABELS) / path.name
    return label_numbers(label_values(file, options), file)


READER = Reader(
    name="files",
    suffixes=(),
    line="A file a bag, with --bag-labels: NumPy, HDF5, CSV, Parquet; or torchmil's folder",
    tells=lambda path, head: False,  # noqa: ARG005
    scan=scan,
    read=read,
    streams=True,
    may_lack_labels=True,
)
