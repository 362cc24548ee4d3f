"""ARFF: bags as relational values (the KDIS MIML dialect), or one row a bag (Mulan, MEKA).

The labels are those that the XML of the set names; without it, the {0,1} attributes after the
relational one. They are numbered in the order of the ARFF, whatever the order of the XML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.labelling import labels_of_marks, places_of
from streammiml_tools.readers.text import (
    COMPRESSIONS,
    F64,
    Lines,
    RowError,
    as_text,
    bare_suffix,
    byte_spans,
    line_blocks,
    narrowed,
    parse_rows,
    twice,
    where,
)

I64 = NDArray[np.int64]
MAX_XML = 64 << 20
ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)\s+(.+)""", re.I)
MEKA = re.compile(r"-C\s+(-?\d+)")
QUOTED = re.compile(
    rb"""\s*("[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'|[^,"'{}]*)\s*(?:,|$)"""
)
AFTER = re.compile(rb"\s*(?:,|$)")
NUMERIC = ("numeric", "real", "integer")


class Attribute(NamedTuple):
    """A column: its name, its type as written, and the place of its line."""

    name: str
    kind: str
    offset: int

    @property
    def values(self) -> list[str]:
        """What a nominal attribute may be, in order; nothing for others."""
        if not self.kind.startswith("{"):
            return []
        return [_unquoted(value.strip()) for value in self.kind.strip("{} \t").split(",")]

    @property
    def is_mark(self) -> bool:
        """Whether it can only be 0 or 1."""
        return self.kind.startswith("{") and sorted(self.values) == ["0", "1"]

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.kind.lower() in NUMERIC or self.is_mark


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before ``@data``."""

    path: str
    relation: str
    attributes: tuple[Attribute, ...]
    """Without those of the bag."""
    bag: int | None
    """Which of them is relational; None: every row is a bag."""
    features: tuple[Attribute, ...]
    """Those within the relational one."""
    data_start: int


def _unquoted(name: str) -> str:
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", name[1:-1])
    return name


def read_header(path: str | Path) -> Header:
    """Everything before the rows; raises SourceError where it is not ARFF."""
    attributes: list[Attribute] = []
    features: list[Attribute] = []
    bag, within, relation = None, False, ""
    for offset, line in _texts(path):
        word = line.split(None, 1)[0].lower()
        if word == "@relation":
            relation = line[len(word) :].strip()
        elif word == "@attribute":
            one = _attribute(line, path, offset)
            if one.kind.lower() == "relational":
                if bag is not None:
                    raise SourceError(
                        f"{where(path, offset)}: a second relational attribute, {one.name!r}; "
                        "bags have one"
                    )
                bag, within = len(attributes), True
            (features if within and one.kind.lower() != "relational" else attributes).append(one)
        elif word == "@end":
            within = False
        elif word == "@data":
            return Header(
                str(path),
                relation,
                tuple(attributes),
                bag,
                tuple(features),
                _next_line(path, offset),
            )
        else:
            raise SourceError(
                f"{where(path, offset)}: {line[:40]!r} is no line of an ARFF header; expected "
                "@relation, @attribute, @end or @data"
            )
    raise SourceError(f"{path} has no @data line; is it ARFF, or cut short?")


def _texts(path: str | Path) -> Iterator[tuple[int, str]]:
    """Lines that say something, with their places."""
    for lines in line_blocks(path):
        for offset, raw in lines.each():
            line = as_text(raw, path, offset).strip()
            if line and not line.startswith("%"):
                yield offset, line


def _next_line(path: str | Path, offset: int) -> int:
    found = next(iter(line_blocks(path, offset, offset + 1, aligned=True)))
    return offset + len(found.content)


def _attribute(line: str, path: str | Path, offset: int) -> Attribute:
    found = ATTRIBUTE.fullmatch(line)
    if found is None:
        raise SourceError(
            f"{where(path, offset)}: {line[:40]!r} names no attribute and type; "
            "expected @attribute NAME TYPE"
        )
    return Attribute(_unquoted(found[1]), found[2].strip(), offset)


def xml_labels(path: Path) -> list[str]:
    """Names that the XML of a Mulan set lists, those of a hierarchy too."""
    size = path.stat().st_size
    content = path.read_bytes() if size <= MAX_XML else b"<!"
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content or size > MAX_XML:
        raise SourceError(
            f"{path}: a list of labels needs no document type and less than {MAX_XML >> 20} MiB"
        )
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise SourceError(f"{path} is no XML: {error}; fetch it again") from None
    names = [node.get("name") for node in root.iter() if node.tag.rpartition("}")[2] == "label"]
    if not names or None in names:
        raise SourceError(f"{path} lists no labels; expected <labels><label name=…>")
    return [name for name in names if name is not None]


class Roles(NamedTuple):
    """What each attribute of a header is."""

    features: list[str]
    labels: list[int]
    """Places of the labels among the attributes."""
    bag_id: int | None
    notes: list[str]


def _roles(header: Header, named: Sequence[str] | None, by: str) -> Roles:
    """Tell labels, features and ids; ``named`` are the labels, ``by`` says who named them."""
    relational = header.bag is not None
    names = [one.name for one in header.attributes]
    again = twice(names) or twice([one.name for one in header.features])
    if again is not None:
        raise SourceError(f"{header.path}: two attributes are called {again!r}; rename one")
    if named is None:
        labels, by = _unnamed_labels(header)
    else:
        for name in named:
            if name not in names:
                raise SourceError(
                    f"{header.path}: label {name!r} of {by} is no attribute; is it of another set?"
                )
        wanted = set(named)
        labels = [i for i, name in enumerate(names) if name in wanted]
    for i in labels:
        if not header.attributes[i].is_number:
            one = header.attributes[i]
            raise SourceError(
                f"{where(header.path, one.offset)}: label {one.name!r} is {one.kind}, "
                "expected {0,1}"
            )
    notes = [f"{header.path}: {len(labels)} labels, by {by}"]
    if not relational:
        kept = [one for i, one in enumerate(header.attributes) if i not in set(labels)]
        _check_numbers(header, kept)
        return Roles([one.name for one in kept], labels, None, notes)
    _check_numbers(header, header.features)
    others = [i for i in range(len(names)) if i not in labels and i != header.bag]
    ids = others[:1] if others and others[0] < (header.bag or 0) else []
    if ids:
        notes.append(f"{header.path}: bags are named by {names[ids[0]]!r}")
    passed = [names[i] for i in others if i not in ids]
    if passed:
        notes.append(f"{header.path}: passed over, no label: {', '.join(passed)}")
    return Roles([one.name for one in header.features], labels, ids[0] if ids else None, notes)


def _unnamed_labels(header: Header) -> tuple[list[int], str]:
    """Labels where no XML and no option names them, and why these."""
    meka = MEKA.search(header.relation)
    n_attributes = len(header.attributes)
    if header.bag is None:
        if meka is None:
            beside = sorted(path.name for path in Path(header.path).parent.glob("*.xml"))[:3]
            hint = f" (here: {', '.join(beside)})" if beside else ""
            raise SourceError(
                f"{header.path} does not say which of its {n_attributes} attributes are labels; "
                f"give its XML{hint} as a source too, or --label-columns"
            )
        count = int(meka[1])
        places = range(n_attributes)
        return list(places[:count] if count >= 0 else places[count:]), f"-C {count} of @relation"
    after = range(header.bag + 1, n_attributes)
    for i in after:
        one = header.attributes[i]
        if not one.is_mark:
            raise SourceError(
                f"{where(header.path, one.offset)}: attribute {one.name!r} after the bag is "
                f"{one.kind}, no label; name the labels by XML or --label-columns"
            )
    if not after:
        raise SourceError(
            f"{header.path} has no labels after the bag; name them by --label-columns"
        )
    return list(after), "the {0,1} attributes after the bag"


def _check_numbers(header: Header, features: Sequence[Attribute]) -> None:
    for one in features:
        if not one.is_number:
            raise SourceError(
                f"{where(header.path, one.offset)}: feature {one.name!r} is {one.kind[:40]}, "
                "expected numeric or {0,1}; turn it into numbers first"
            )
    if not features:
        raise SourceError(f"{header.path} has no features; is it of a multi-instance set?")


def _is_xml(path: Path) -> bool:
    return path.suffix.lower() == ".xml"


def _named_labels(
    paths: Sequence[Path], options: SourceOptions
) -> tuple[Sequence[str] | None, str]:
    """Labels that an option or an XML names, and which."""
    if options.label_columns is not None:
        return options.label_columns, "--label-columns"
    lists = [path for path in paths if _is_xml(path)]
    if len(lists) > 1:
        raise SourceError(f"{lists[1]}: a second XML beside {lists[0]}; give one")
    if not lists:
        beside = {_beside(path) for path in paths}
        lists = [path for path in beside if len(beside) == 1 and path.is_file()]
    return (xml_labels(lists[0]), str(lists[0])) if lists else (None, "")


def _beside(path: Path) -> Path:
    """Where the XML of an ARFF would lie."""
    bare = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return bare.with_suffix(".xml")


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Headers only; spans are cut by bytes."""
    sources = [path for path in paths if not _is_xml(path)]
    if not sources:
        raise SourceError(f"{paths[0]} lists labels only; give the ARFF too")
    named, by = _named_labels(paths, options)
    headers = [read_header(path) for path in sources]
    roles = [_roles(header, named, by) for header in headers]
    first = headers[0]
    kinds = [_is_sparse(header) for header in headers]
    for header, role, kind in zip(headers, roles, kinds, strict=True):
        same = role.features == roles[0].features and _label_names(header, role) == _label_names(
            first, roles[0]
        )
        if not same or kind != kinds[0] or (header.bag is None) != (first.bag is None):
            raise SourceError(
                f"{header.path} has other attributes than {first.path}; convert them one by one"
            )
    names = _label_names(first, roles[0])
    places_of(names, options, first.path)
    spans = [span for one in headers for span in _spans(one, options)]
    notes = [note for role in roles for note in role.notes]
    if first.bag is None:
        notes.append(f"{first.path}: every row is a bag")
    return Scan(
        spans=tuple(spans),
        n_features=len(roles[0].features),
        dtype="uint8" if first.bag is None and _all_marks(first, roles[0]) else "float32",
        sparse=kinds[0] if options.sparse is None else options.sparse,
        label_names=options.labels or tuple(names),
        feature_names=tuple(roles[0].features),
        bag_ids=roles[0].bag_id is not None,
        notes=tuple(notes),
    )


def _spans(header: Header, options: SourceOptions) -> tuple[Span, ...]:
    return byte_spans(header.path, options.span_bytes, header.data_start)


def _label_names(header: Header, roles: Roles) -> list[str]:
    return [header.attributes[i].name for i in roles.labels]


def _all_marks(header: Header, roles: Roles) -> bool:
    features = set(roles.features)
    return all(one.is_mark for one in header.attributes if one.name in features)


def _is_sparse(header: Header) -> bool:
    """Whether rows are lists of what is not zero, as the first shows; there must be one."""
    rows = _rows(line_blocks(header.path, header.data_start, aligned=True))
    _, first = next(rows, (0, b""))
    if not first:
        raise SourceError(f"{header.path} has no rows after @data; is it cut short?")
    if header.bag is not None or not first.startswith(b"{"):
        return False
    for one in header.attributes:
        # What a sparse row leaves out is the first value, whatever that is called.
        if one.is_mark and one.values[0] != "0":
            raise SourceError(
                f"{where(header.path, one.offset)}: {one.name!r} is {one.kind}: rows that "
                "leave it out would mean 1; write {0,1}"
            )
    return True


def _rows(blocks: Iterator[Lines]) -> Iterator[tuple[int, bytes]]:
    """Lines of data, stripped; the place of a line is that of its first byte."""
    for lines in blocks:
        for offset, line in lines.each():
            line = line.strip()
            if line and not line.startswith(b"%"):
                yield offset, line


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Bags of the lines that begin in a span."""
    header = read_header(span.path)
    features = set(scan.feature_names or ())
    names = set(scan.label_names or ())
    labels = [
        i
        for i, one in enumerate(header.attributes)
        if one.name in names
        and i != header.bag
        and (header.bag is not None or one.name not in features)
    ]
    places = places_of([header.attributes[i].name for i in labels], options, span.path)
    columns = Columns(header, labels, places, scan)
    seen: set[str] = set()
    blocks = line_blocks(span.path, span.start, span.stop, aligned=span.start == header.data_start)
    for lines in blocks:
        found = list(_rows(iter([lines])))
        if not found:
            continue
        offsets = [offset for offset, _ in found]
        raws = [line for _, line in found]
        if header.bag is None:
            yield _flat_block(columns, offsets, raws)
        else:
            yield _bag_block(columns, offsets, raws, seen)


class Columns(NamedTuple):
    """What the lines of a file are parsed by."""

    header: Header
    labels: list[int]
    places: I64
    """Numbers of the labels."""
    scan: Scan

    def wrong(self, offset: int, reason: str) -> SourceError:
        """An error in the line at a place."""
        return SourceError(f"{where(self.header.path, offset)}: {reason}")

    def marks(self, offsets: Sequence[int], rows: Sequence[bytes]) -> tuple[I64, NDArray[np.int32]]:
        """Labels of bags, of their marks as text."""
        try:
            marks = parse_rows(b"\n".join(rows), len(self.labels))
        except RowError as error:
            reason = f"among the labels, {error.reason}; is the file cut short?"
            raise self.wrong(offsets[error.row], reason) from None
        bad = ~np.isin(marks, (0, 1))
        if bad.any():
            bag, column = (int(i) for i in np.argwhere(bad)[0])
            raise self.wrong_mark(offsets[bag], column, marks[bag, column])
        return labels_of_marks(marks, self.header.path, self.places)

    def wrong_mark(self, offset: int, column: int, mark: float) -> SourceError:
        """An error for a mark that is neither 0 nor 1."""
        name = self.header.attributes[self.labels[column]].name
        return self.wrong(offset, f"label {name!r} is {mark:g}, expected 0 or 1")


def _bag_block(
    columns: Columns, offsets: list[int], lines: list[bytes], seen: set[str]
) -> BagBlock:
    """Bags of relational lines: ``id,"rows",marks``."""
    ids: list[str] = []
    bags: list[bytes] = []
    marks: list[bytes] = []
    for offset, line in zip(offsets, lines, strict=True):
        bag_id, rows, rest = _split(columns, offset, line)
        if columns.scan.bag_ids:
            name = _unquoted(as_text(bag_id, columns.header.path, offset).strip())
            if name in seen:
                raise columns.wrong(offset, f"bag {name!r} comes twice; every bag needs its own id")
            seen.add(name)
            ids.append(name)
        bags.append(rows)
        marks.append(rest)
    sizes = [rows.count(b"\\n") + 1 if rows.strip() else 0 for rows in bags]
    bag_offsets = from_sizes(sizes)
    try:
        text = b"\\n".join(rows for rows, size in zip(bags, sizes, strict=True) if size)
        parted = text.replace(b"\\n", b"\n")
        if b"\\r" in parted:
            parted = parted.replace(b"\\r", b"")
        values = narrowed(parse_rows(parted, columns.scan.n_features))
    except RowError as error:
        bag = int(np.searchsorted(bag_offsets, error.row, "right")) - 1
        named = f"bag {ids[bag]!r}" if ids else "the bag"
        row = error.row - int(bag_offsets[bag])
        raise columns.wrong(offsets[bag], f"{named}, row {row}: {error.reason}") from None
    label_offsets, labels = columns.marks(offsets, marks)
    rows_: NDArray[np.float32] | SparseRows = _sparse(values) if columns.scan.sparse else values
    return BagBlock(bag_offsets, rows_, label_offsets, labels, bag_ids=ids or None)


def _split(columns: Columns, offset: int, line: bytes) -> tuple[bytes, bytes, bytes]:
    r"""Id, rows and marks of a line; rows are still parted by the two characters ``\n``."""
    header = columns.header
    assert header.bag is not None
    fields: list[bytes] = []
    place = 0
    while len(fields) <= header.bag:
        # Numbers hold no quotes, so that the end of a bag is found without looking for escapes.
        found = (_quoted if len(fields) == header.bag else _field)(line, place)
        if found is None or place >= len(line):
            raise columns.wrong(
                offset,
                f"value {len(fields) + 1} has no end: a quote or comma is missing; "
                "is the file cut short?",
            )
        field, place = found
        fields.append(field)
    rest = line[place:]
    after = len(header.attributes) - header.bag - 1
    if len(columns.labels) != after or columns.labels[:1] != [header.bag + 1]:
        rest = _chosen(columns, offset, [*fields, *_fields(line, place)])
    bag_id = fields[0] if header.bag else b""
    return bag_id, fields[header.bag].removesuffix(b"\\n"), rest


def _field(line: bytes, place: int) -> tuple[bytes, int] | None:
    """A value, quoted or not, and where the next begins."""
    found = QUOTED.match(line, place)
    return None if found is None else (found[1], found.end())


def _quoted(line: bytes, place: int) -> tuple[bytes, int] | None:
    """What stands between quotes; a bag of one value may lack them."""
    while line[place : place + 1].isspace():
        place += 1
    quote = line[place : place + 1]
    if quote not in (b'"', b"'"):
        return _field(line, place)
    end = line.find(quote, place + 1)
    after = AFTER.match(line, end + 1)
    return None if end < 0 or after is None else (line[place + 1 : end], after.end())


def _fields(line: bytes, place: int) -> list[bytes]:
    return [found[1] for found in QUOTED.finditer(line, place) if found.end() > found.start()]


def _chosen(columns: Columns, offset: int, fields: list[bytes]) -> bytes:
    wanted = len(columns.header.attributes)
    if len(fields) != wanted:
        raise columns.wrong(offset, f"{len(fields)} values, expected {wanted}")
    return b",".join(fields[i] for i in columns.labels)


def _sparse(rows: NDArray[np.float32]) -> SparseRows:
    mask = rows != 0
    columns = np.nonzero(mask)[1].astype(np.uint32)
    return SparseRows(from_sizes(mask.sum(axis=1)), columns, rows[mask], rows.shape[1])


def _flat_block(columns: Columns, offsets: list[int], lines: list[bytes]) -> BagBlock:
    """Bags of one row each, dense or sparse as the first line of the file is."""
    n_attributes = len(columns.header.attributes)
    braces = [line.startswith(b"{") for line in lines]
    try:
        if all(braces):
            where_, values = _pairs(columns, offsets, lines)
            table = _Table(len(lines), *where_, values)
        elif not any(braces):
            table = _Table.of(parse_rows(b"\n".join(lines), n_attributes))
        else:
            at = offsets[braces.index(not braces[0])]
            raise columns.wrong(at, "sparse {…} and plain rows are mixed; write them all one way")
    except RowError as error:
        raise columns.wrong(offsets[error.row], error.reason) from None
    return _split_table(columns, offsets, table)


class _Table(NamedTuple):
    """Values of attributes that are not zero, in order of rows."""

    n_rows: int
    rows: I64
    attributes: I64
    values: F64

    @classmethod
    def of(cls, dense: F64) -> _Table:
        rows, attributes = np.nonzero(dense)
        return cls(len(dense), rows, attributes, dense[rows, attributes])


def _pairs(columns: Columns, offsets: list[int], lines: list[bytes]) -> tuple[tuple[I64, I64], F64]:
    """Row, attribute and value of each ``index value`` of sparse lines."""
    bodies = []
    for offset, line in zip(offsets, lines, strict=True):
        if not line.endswith(b"}"):
            raise columns.wrong(offset, "the row has no closing }; is the file cut short?")
        bodies.append(re.sub(rb"\s+", b" ", line[1:-1].strip()).replace(b", ", b","))
    sizes = [body.count(b",") + 1 if body else 0 for body in bodies]
    rows = np.repeat(np.arange(len(lines)), sizes)
    try:
        pairs = parse_rows(b",".join(body for body in bodies if body).replace(b",", b"\n"), 2, " ")
    except RowError as error:
        raise RowError(int(rows[error.row]), f"no 'attribute value': {error.reason}") from None
    attributes = pairs[:, 0].astype(np.int64)
    n_attributes = len(columns.header.attributes)
    bad = (attributes != pairs[:, 0]) | (attributes < 0) | (attributes >= n_attributes)
    if bad.any():
        at = int(bad.argmax())
        raise RowError(
            int(rows[at]), f"attribute {pairs[at, 0]:g} is outside 0 to {n_attributes - 1}"
        )
    order = np.lexsort((attributes, rows))
    same = (np.diff(attributes[order]) == 0) & (np.diff(rows[order]) == 0)
    if same.any():
        at = int(order[int(same.argmax()) + 1])
        raise RowError(int(rows[at]), f"attribute {attributes[at]} comes twice")
    return (rows[order], attributes[order]), pairs[order, 1]


def _split_table(columns: Columns, offsets: list[int], table: _Table) -> BagBlock:
    """Features and labels of rows that are bags."""
    is_label = np.zeros(len(columns.header.attributes), bool)
    is_label[columns.labels] = True
    place = np.where(is_label, np.cumsum(is_label), np.cumsum(~is_label)) - 1
    of_label = is_label[table.attributes]
    label_offsets, labels = _listed_labels(columns, offsets, table, place, of_label)
    kept = ~of_label
    rows, features = table.rows[kept], place[table.attributes[kept]]
    try:
        values = narrowed(table.values[kept][:, None])[:, 0]
    except RowError as error:
        reason = error.reason.replace("value 1", f"feature {features[error.row]}")
        raise columns.wrong(offsets[rows[error.row]], reason) from None
    if columns.scan.dtype == "uint8":
        bad = ~np.isin(values, (0, 1))
        if bad.any():
            at = int(bad.argmax())
            name = (columns.scan.feature_names or ())[features[at]]
            raise columns.wrong(
                offsets[rows[at]], f"feature {name!r} is {values[at]:g}, expected 0 or 1"
            )
    sizes = np.bincount(rows, minlength=table.n_rows)
    sparse = SparseRows(
        from_sizes(sizes),
        features.astype(np.uint32),
        values.astype(columns.scan.dtype),
        columns.scan.n_features,
    )
    bag_offsets = np.arange(table.n_rows + 1, dtype=np.int64)
    return BagBlock(
        bag_offsets, sparse if columns.scan.sparse else sparse.dense(), label_offsets, labels
    )


def _listed_labels(
    columns: Columns, offsets: list[int], table: _Table, place: I64, of_label: NDArray[np.bool_]
) -> tuple[I64, NDArray[np.int32]]:
    """Labels of rows, of the marks that are not zero: never as a matrix, there may be many."""
    rows, marked = table.rows[of_label], place[table.attributes[of_label]]
    values = table.values[of_label]
    bad = ~np.isin(values, (0, 1))
    if bad.any():
        at = int(bad.argmax())
        raise columns.wrong_mark(offsets[rows[at]], int(marked[at]), values[at])
    rows, numbers = rows[values == 1], columns.places[marked[values == 1]]
    order = np.lexsort((numbers, rows))
    sizes = np.bincount(rows, minlength=table.n_rows)
    return from_sizes(sizes), numbers[order].astype(np.int32)


def tells(path: Path, first: bytes) -> bool:
    """ARFF by its suffix or first word, and the XML that lists labels."""
    if _is_xml(path):
        return b"<labels" in first
    words = [line.split()[0].lower() for line in first.split(b"\n")[:200] if line.split()]
    words = [word for word in words if not word.startswith(b"%")]
    return bare_suffix(path) == ".arff" or words[:1] == [b"@relation"]


READER = Reader(
    name="arff",
    suffixes=(".arff", ".xml"),
    line="ARFF with relational bags (KDIS MIML) or one row a bag (Mulan, MEKA), with its XML",
    tells=tells,
    scan=scan,
    read=read,
)
