"""WebDataset: tar archives whose samples are bags.

The name of a member up to the first dot is the key of its sample, and the rest is its ending:
``0001.features.npy`` and ``0001.cls`` are one sample, whose key becomes the id of the bag. Rows are
an array of NumPy (``npy``, ``npz``). Labels are the class in ``cls``, a field of ``json``, or a
member called like labels: ``labels.txt``, ``labels.json``, ``labels.npy``. Columns to keep are
further arrays: a member such as ``coords.npy``, or an array beside the rows in their npz.

Archives are streamed, and nothing is extracted. Objects of Python, such as ``pyd``, are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KeptColumn, common_column
from streammiml.bags.kept_columns import n_bytes as column_bytes
from streammiml.bags.layout import ROW_DTYPES
from streammiml_tools.readers.bag_shapes import inner_shape
from streammiml_tools.readers.base import Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.column_roles import LIST_NAMES
from streammiml_tools.readers.kept_cells import check_names, kept_column, storable_values
from streammiml_tools.readers.labelling import (
    Labelling,
    cut_labels,
    is_number,
    labelling_in,
    labelling_of,
    refuse_joined,
    refuse_marks,
)
from streammiml_tools.readers.matlab_layout import narrowest
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes, check_bag
from streammiml_tools.readers.messages import listed, reason_of
from streammiml_tools.readers.npz import HeldFile, members_of, npy_array
from streammiml_tools.readers.numpy_bag import ROWS, held_rows, label_numbers, label_values
from streammiml_tools.readers.remote_files import source_path
from streammiml_tools.readers.tar_members import MAGIC, MAGIC_AT, TO_THE_END, TarReader
from streammiml_tools.readers.text import BOM, bare_suffix, compression_of, twice

SUFFIXES = (".tar", ".tgz")
BLOCK_BYTES = 8 << 20
"""Bytes of rows that become one block, approximately."""
ARRAY_TIMES, LABEL_TIMES = 4, 32
"""Memory for a member of rows or of labels while it is read, as multiples of its bytes."""
MAX_MEMBERS = 1000
"""Upper limit of the members of a sample."""
MEMBER_NAME = re.compile(r"(?:\./)?((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
"""Key and ending of a member; other members, such as hidden files, belong to no sample."""
ARRAYS = ("npy", "npz")
CLASS = "cls"
JSON = "json"
ADJACENT = "members of one sample must be adjacent, as tar --sort=name writes them"


class KeptMember(NamedTuple):
    """A column to keep: its type, the ending of its member, and its array if that is an npz."""

    column: KeptColumn
    ending: str
    array: str | None


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """Roles of the members of a sample, as the first sample has them."""

    rows: str
    """Ending of the member of rows."""
    array: str | None
    """Array of rows in an npz, if the user names one."""
    n_features: int
    dtype: str
    labels: str | None
    """Ending of the member of labels."""
    json_field: str | None
    """Field of the labels in an object of JSON."""
    n_marks: int | None
    """Number of labels, if an array has a mark for each."""
    kept: tuple[KeptMember, ...] = ()
    left_out: tuple[str, ...] = field(default=(), compare=False)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Endings of the members that are read."""
        labels = () if self.labels is None else (self.labels,)
        return (self.rows, *labels, *(kept.ending for kept in self.kept))


@dataclass(slots=True)
class Sample:
    """The members of one key."""

    path: str
    key: str
    start: int
    """Offset of its first header in the decompressed archive."""
    contents: dict[str, bytes | None]
    """Content of each member by ending; None for members that were not wanted."""

    @property
    def where(self) -> str:
        """The sample, as the beginning of a message."""
        return f"{self.path}, sample {self.key!r}"

    def member(self, ending: str) -> HeldFile:
        """A member that was wanted; a sample without it is refused."""
        content = self.contents.get(ending)
        if content is None:
            raise SourceError(
                f"{self.where} has no member .{ending}, as the first sample has, but "
                f"{listed(sorted(self.contents))}; {ADJACENT}"
            )
        return HeldFile(f"{self.path}, member {self.key}.{ending}", content)


def tells(path: Path, head: bytes) -> bool:
    """Whether the suffix or the first bytes are those of a tar archive."""
    return bare_suffix(path) in SUFFIXES or head[MAGIC_AT : MAGIC_AT + len(MAGIC)] == MAGIC


def samples(reader: TarReader, wanted: Collection[str]) -> Iterator[Sample]:
    """Yield the samples of an archive, with the content of the wanted members."""
    sample: Sample | None = None
    path = str(reader.path)
    for member in reader:
        parts = MEMBER_NAME.fullmatch(member.name)
        if parts is None:
            continue
        if not member.name.isprintable():
            raise SourceError(
                f"{path}, member {member.name!r}: the name has characters that cannot be shown; "
                "rename it"
            )
        key, ending = parts[1], parts[2].lower()
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = Sample(path, key, member.start, {})
        if ending in sample.contents:
            raise SourceError(f"{sample.where} has two members .{ending}; remove one")
        if len(sample.contents) >= MAX_MEMBERS:
            raise SourceError(
                f"{sample.where} has more than {MAX_MEMBERS:,} members; the key of a sample is the "
                "name of its members up to the first dot"
            )
        times = LABEL_TIMES if ending.rpartition(".")[2] not in ARRAYS else ARRAY_TIMES
        sample.contents[ending] = reader.read(times=times) if ending in wanted else None
    if sample is not None:
        yield sample


# Roles of members.


def layout_of(path: Path, options: SourceOptions) -> SampleLayout | None:
    """Roles of the members, by the first sample; None if the archive has no samples."""
    status = path.stat()
    return _layout(str(path), status.st_size, status.st_mtime_ns, options)


@lru_cache(maxsize=64)
def _layout(path: str, size: int, changed: int, options: SourceOptions) -> SampleLayout | None:  # noqa: ARG001
    first = _first_sample(path, (), options)
    if first is None:
        return None
    endings = sorted(first.contents)
    labels = None if options.no_labels else _named_labels(first, endings, options)
    rows, array = _rows_ending(first, endings, labels, options)
    if labels is None and not options.no_labels and JSON in endings:
        labels = JSON
    wanted = [name for name in (rows, labels) if name is not None]
    if options.kept_names:
        wanted = [end for end in endings if end in wanted or _suffix(end) in ARRAYS]
    first = _first_sample(path, wanted, options)
    assert first is not None, "the file has not changed"
    values = held_rows(first.member(rows), _array_options(array, options))
    label_field = None
    n_marks = None
    if labels is not None:
        label_field = _label_field(first, labels, endings, options)
    elif not options.no_labels:
        raise _which_labels(first, endings)
    if labels is not None and _suffix(labels) == "npy":
        marks = label_values(first.member(labels), options)
        n_marks = len(marks) if len(marks) > 1 else None
    kept = tuple(_kept_member(first, name, rows) for name in options.kept_names)
    taken = (rows, labels, *(member.ending for member in kept))
    left_out = tuple(ending for ending in endings if ending not in taken)
    return SampleLayout(
        *(rows, array, values.shape[1], values.dtype.name, labels, label_field, n_marks),
        *(kept, left_out),
    )


def _kept_member(sample: Sample, name: str, rows: str) -> KeptMember:
    """Where a column to keep is: in a member of its name, or in the npz of the rows."""
    endings = [end for end in sorted(sample.contents) if _suffix(end) == "npy" and end != rows]
    found = _matching(endings, name)
    arrays = members_of(sample.member(rows)) if _suffix(rows) == "npz" else {}
    if not found and name not in arrays:
        known = [*sorted(sample.contents), *(f"{rows} array {array!r}" for array in arrays)]
        raise SourceError(
            f"{sample.where} has no member .{name}.npy (--keep); the sample has {listed(known)}"
        )
    array = npy_array(sample.member(found[0])) if found else arrays[name]
    column = kept_column(array.name, name, array.shape, array.dtype)
    return KeptMember(column, found[0] if found else rows, None if found else name)


def _kept_of(
    sample: Sample, layout: SampleLayout, n_rows: int, options: SourceOptions
) -> dict[str, NDArray[Any]]:
    """Values of the columns to keep of a sample."""
    values = {}
    for column, ending, name in layout.kept:
        file = sample.member(ending)
        array = npy_array(file) if name is None else members_of(file).get(name)
        if array is None:
            raise SourceError(f"{file} has no array {name!r} (--keep), as the first sample has")
        check_bag(array.name, array.nbytes, options.limits)
        array.check(options.limits)
        found = kept_column(array.name, column.name, array.shape, array.dtype)
        if found.width != column.width or common_column(found, column) is None:
            raise SourceError(f"{file} has {found} (--keep), expected {column}, as in the first")
        values[column.name] = storable_values(
            array.open().all().reshape(inner_shape(array.shape)), array.name
        )
        if len(values[column.name]) != n_rows:
            raise SourceError(
                f"{file}: {len(values[column.name]):,} values of {column.name!r} (--keep) for "
                f"{n_rows:,} rows"
            )
    return values


def _first_sample(path: str, wanted: Collection[str], options: SourceOptions) -> Sample | None:
    return next(samples(TarReader(path, options.limits), wanted), None)


def _suffix(ending: str) -> str:
    return ending.rpartition(".")[2]


def _matching(endings: Sequence[str], name: str) -> list[str]:
    """Endings that are a name, or the name with a suffix."""
    return [end for end in endings if name.lower() in (end, end.rpartition(".")[0])]


def _named_labels(sample: Sample, endings: Sequence[str], options: SourceOptions) -> str | None:
    """Ending of the member of labels, by option or by name; None if a field may have them."""
    if options.label_columns is not None:
        if len(options.label_columns) > 1:
            raise SourceError(
                f"{sample.where}: the labels of a sample are one member, or one field of {JSON}; "
                f"--label-columns gives {listed(options.label_columns)}"
            )
        found = _matching(endings, options.label_columns[0])
        if not found and JSON not in endings:
            raise SourceError(
                f"{sample.where} has no member .{options.label_columns[0]} (--label-columns); its "
                f"members are {listed(endings)}"
            )
    else:
        found = [end for end in endings if end == CLASS or end.partition(".")[0] in LIST_NAMES]
    if len(found) > 1:
        raise SourceError(
            f"{sample.where}: members {found[0]!r} and {found[1]!r} may both hold labels; give "
            "--label-columns"
        )
    return found[0] if found else None


def _rows_ending(
    sample: Sample, endings: Sequence[str], labels: str | None, options: SourceOptions
) -> tuple[str, str | None]:
    """Ending of the member of rows, and the name of their array if the user gives one."""
    arrays = [end for end in endings if _suffix(end) in ARRAYS and end != labels]
    known = f"its members are {listed(endings)}"
    if options.variables:
        name, *array = options.variables
        found = _matching(arrays, name)
        packed = [end for end in arrays if _suffix(end) == "npz"]
        if not found and len(packed) == 1:
            found, array = packed, [name]
        if len(found) != 1 or len(array) > 1:
            raise SourceError(
                f"{sample.where} has no member .{name} of rows (--variables); {known}"
            )
        return found[0], array[0] if array else None
    if options.no_labels:
        arrays = [end for end in arrays if end.partition(".")[0] not in LIST_NAMES] or arrays
    kept = [end for name in options.kept_names for end in _matching(arrays, name)]
    arrays = [end for end in arrays if end not in kept]
    if len(arrays) > 1:
        stems = [end.rpartition(".")[0] for end in arrays]
        arrays = [arrays[stems.index(name)] for name in ROWS if name in stems][:1]
    if not arrays:
        raise SourceError(
            f"{sample.where}: which member holds the rows of the bag, as npy or npz? give "
            f"--variables; {known}; {ADJACENT}"
        )
    return arrays[0], None


def _array_options(array: str | None, options: SourceOptions) -> SourceOptions:
    """The options for the file of rows: which of its arrays to read."""
    wanted = None if array is None else (array,)
    return options if options.variables == wanted else replace(options, variables=wanted)


def _label_field(
    sample: Sample, labels: str, endings: Sequence[str], options: SourceOptions
) -> str | None:
    """Field of the labels, if the member is an object of JSON."""
    if _suffix(labels) != JSON:
        return None
    value = _json(sample.member(labels))
    if not isinstance(value, dict):
        return None
    given = (options.label_columns or ("",))[0]
    fields = [name for name in value if name == given]
    if not given or (not fields and given.lower() in (labels, labels.rpartition(".")[0])):
        fields = [name for name in value if name.lower() in (*LIST_NAMES, CLASS)]
    if len(fields) != 1:
        raise _which_labels(sample, [*endings, *(f"{labels} field {name!r}" for name in value)])
    return str(fields[0])


def _which_labels(sample: Sample, candidates: Sequence[str]) -> SourceError:
    return SourceError(
        f"{sample.where}: which member holds the labels, or which field of {JSON}? give "
        f"--label-columns, or none; the sample has {listed(candidates)}"
    )


# Labels.


def _json(file: HeldFile) -> Any:
    try:
        return json.loads(file.content.removeprefix(BOM), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file} is not JSON as expected: {reason_of(error)}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = twice([name for name, _ in pairs])
    if repeated is not None:
        raise ValueError(f"{repeated!r} stands twice")
    return dict(pairs)


def _labels_of(sample: Sample, layout: SampleLayout, options: SourceOptions) -> list[str | int]:
    """Names or numbers of the labels of a sample."""
    assert layout.labels is not None
    file = sample.member(layout.labels)
    suffix = _suffix(layout.labels)
    if suffix == "npy":
        values = label_values(file, options)
        if (len(values) if len(values) > 1 else None) != layout.n_marks:
            raise SourceError(
                f"{file} has {len(values)} values, expected {layout.n_marks or 1}, as in the first "
                "sample"
            )
        return [int(number) for number in label_numbers(values, file)]
    if suffix == JSON:
        return _labels_in_json(file, _json(file), layout, options)
    try:
        text = file.content.removeprefix(BOM).decode()
    except UnicodeDecodeError:
        raise SourceError(f"{file} is not UTF-8; convert it to UTF-8") from None
    return _labels_in_text(file, text, options)


def _labels_in_json(
    file: HeldFile, value: Any, layout: SampleLayout, options: SourceOptions
) -> list[str | int]:
    if layout.json_field is not None:
        if not isinstance(value, dict) or layout.json_field not in value:
            raise SourceError(f"{file} has no field {layout.json_field!r}, as the first sample has")
        value = value[layout.json_field]
    if isinstance(value, str):
        return _labels_in_text(file, value, options)
    labels = value if isinstance(value, list) else [value]
    for label in labels:
        if not isinstance(label, str | int) or isinstance(label, bool):
            raise SourceError(
                f"{file}: a label is {json.dumps(label)[:40]}, expected a name or a number"
            )
    return labels


def _labels_in_text(file: HeldFile, text: str, options: SourceOptions) -> list[str | int]:
    """Labels on lines of their own, or several on a line; digits are the number of a label."""
    labels = [label for line in text.splitlines() for label in cut_labels(line, options)]
    if options.labels is None:
        refuse_joined(labels, options, str(file))
    return [int(label) if is_number(label) and len(label) < 10 else label for label in labels]


def _labels_of_all(
    paths: Sequence[Path], layout: SampleLayout, options: SourceOptions
) -> Iterator[list[str | int]]:
    for path in paths:
        for sample in samples(TarReader(path, options.limits), layout.wanted[1:]):
            yield _labels_of(sample, layout, options)


def _labelling(paths: Sequence[Path], layout: SampleLayout, options: SourceOptions) -> Labelling:
    """The labels: names of the option, or numbers, or the names in all samples."""
    if layout.labels is None:
        return Labelling(None)
    if layout.n_marks is not None:
        if options.labels is not None and len(options.labels) != layout.n_marks:
            raise SourceError(
                f"{paths[0]}: {layout.n_marks} labels, but --labels gives {len(options.labels)} "
                "names"
            )
        return Labelling(options.labels, layout.n_marks)
    refuse_marks(_labels_of_all(paths, layout, options), options, str(paths[0]))
    if options.labels is not None:
        return Labelling(options.labels)
    labels: set[str | int] = set()
    held = HeldBytes(str(paths[0]), "names of labels", options.limits)
    for of_bag in _labels_of_all(paths, layout, options):
        if of_bag and not labels and isinstance(of_bag[0], int):
            # Numbers keep their places, so no pass is needed to number them.
            return Labelling(None)
        new = {*of_bag} - labels
        held.add(sum(ID_BYTES + len(str(label)) for label in new))
        labels |= new
    return labelling_of(labels, options, str(paths[0]))


# Scan.


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Walk over the headers of plain archives; for names of labels, read the members of labels."""
    check_names(paths[0], options.kept_names)
    layouts = [(path, layout_of(path, options)) for path in paths]
    known = [(path, layout) for path, layout in layouts if layout is not None]
    if not known:
        raise SourceError(
            f"{paths[0]} has no samples; the members of a sample are called KEY.npy, KEY.cls and "
            "so on"
        )
    first_path, first = known[0]
    for path, layout in known[1:]:
        if layout != first:
            raise SourceError(
                f"{path} has other samples than {first_path}: {_described(layout)} instead of "
                f"{_described(first)}; convert archives of one kind at a time"
            )
    spans = tuple(span for path in paths for span in _spans(path, options))
    labelling = _labelling(paths, first, options)
    counts = [span.n_bags for span in spans]
    return Scan(
        spans=spans,
        n_features=first.n_features,
        dtype=first.dtype if first.dtype in ROW_DTYPES else narrowest({first.dtype}),
        label_names=labelling.names,
        n_labels=labelling.n_labels,
        bag_ids=True,
        kept=tuple(sorted(member.column for member in first.kept)),
        n_bags=None if None in counts else sum(count or 0 for count in counts),
        notes=_notes(first),
    )


def _described(layout: SampleLayout) -> str:
    rows = f"rows of {layout.n_features:,} {layout.dtype} in .{layout.rows}"
    rows += "".join(f", {kept.column} kept from .{kept.ending}" for kept in layout.kept)
    if layout.labels is None:
        return rows
    marks = "" if layout.n_marks is None else f" ({layout.n_marks} marks)"
    of_field = "" if layout.json_field is None else f", field {layout.json_field!r}"
    return f"{rows}, labels in .{layout.labels}{of_field}{marks}"


def _notes(layout: SampleLayout) -> tuple[str, ...]:
    rounded = ", rounded to float32" if layout.dtype == "float64" else ""
    labels = () if layout.labels is not None else ("no labels",)
    left_out = (f"left out: members {listed(layout.left_out)}",) if layout.left_out else ()
    return (
        f"a sample a bag: {_described(layout)}{rounded}; the key of a sample is the id of its bag",
        *labels,
        *left_out,
    )


def _spans(path: Path, options: SourceOptions) -> Iterator[Span]:
    """Cut a plain archive between samples; a compressed archive is one span."""
    if compression_of(path) is not None:
        yield Span(str(path), 0, TO_THE_END, path.stat().st_size)
        return
    reader = TarReader(path, options.limits)
    start = n_bags = 0
    for sample in samples(reader, ()):
        if n_bags and sample.start - start >= options.span_bytes:
            yield Span(str(path), start, sample.start, sample.start - start, n_bags)
            start, n_bags = sample.start, 0
        n_bags += 1
    if n_bags:
        yield Span(str(path), start, reader.at, reader.at - start, n_bags)


# Bags.


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags of a span."""
    layout = layout_of(source_path(span.path), options)
    if layout is None:
        return
    labelling = labelling_in(scan)
    bags: list[NDArray[np.generic]] = []
    labels: list[list[int]] = []
    ids: list[str] = []
    kept: list[dict[str, NDArray[Any]]] = []
    n_bytes = 0
    reader = TarReader(span.path, options.limits, span.start, span.stop)
    for sample in samples(reader, layout.wanted):
        bags.append(_rows_of(sample, layout, options))
        kept.append(_kept_of(sample, layout, len(bags[-1]), options))
        numbers: list[int] = []
        if layout.labels is not None:
            numbers = labelling.indices(_labels_of(sample, layout, options), sample.where)
        labels.append(numbers)
        ids.append(sample.key)
        n_bytes += bags[-1].nbytes + sum(map(column_bytes, kept[-1].values()))
        # A sample that is large must not be held beside its block.
        sample.contents.clear()
        if n_bytes >= BLOCK_BYTES:
            yield _block(bags, labels, ids, kept)
            bags, labels, ids, kept, n_bytes = [], [], [], [], 0
    if bags:
        yield _block(bags, labels, ids, kept)


def _block(
    bags: Sequence[NDArray[np.generic]],
    labels: Sequence[Sequence[int]],
    ids: list[str],
    kept: Sequence[dict[str, NDArray[Any]]],
) -> BagBlock:
    joined = {name: np.concatenate([of_bag[name] for of_bag in kept]) for name in kept[0]}
    return replace(BagBlock.from_bags(bags, labels, bag_ids=ids), kept=joined)


def _rows_of(sample: Sample, layout: SampleLayout, options: SourceOptions) -> NDArray[Any]:
    file = sample.member(layout.rows)
    rows = held_rows(file, _array_options(layout.array, options))
    if (rows.shape[1], rows.dtype.name) != (layout.n_features, layout.dtype):
        raise SourceError(
            f"{file} has rows of {rows.shape[1]:,} {rows.dtype}, expected {layout.n_features:,} "
            f"{layout.dtype}, as in the first sample"
        )
    return rows


READER = Reader(
    name="webdataset",
    suffixes=SUFFIXES,
    line="WebDataset: tar archives of a sample a bag: an array of NumPy, and its labels",
    tells=tells,
    scan=scan,
    read=read,
    streams=True,
    may_lack_labels=True,
)
