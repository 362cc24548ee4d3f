"""ARFF: bags as relational values (the KDIS MIML dialect), or one row for each bag (Mulan, MEKA).

Labels are the attributes that the XML file of the corpus names; without XML, the {0,1} attributes
after the relational attribute. Labels are numbered in the order of the ARFF, not of the XML.
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
from streammiml_tools.readers.base import Limits, Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.csv_cells import check_columns
from streammiml_tools.readers.labelling import label_numbers_of, labels_of_marks
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes, check_dense
from streammiml_tools.readers.messages import listed, reason_of
from streammiml_tools.readers.text import (
    COMPRESSIONS,
    F64,
    LineBlock,
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
LINE_TIMES = 16
"""Memory for parsing a line, as a multiple of its bytes."""
ATTRIBUTE_BYTES = 600
"""Memory for an attribute without its line: objects, and its name in several lists."""
NUMERIC = ("numeric", "real", "integer")


class ArffAttribute(NamedTuple):
    """A column: its name, its type as written, and the offset of its line."""

    name: str
    kind: str
    offset: int

    @property
    def values(self) -> list[str]:
        """Values of a nominal attribute, in order; empty for other attributes."""
        if not self.kind.startswith("{"):
            return []
        return [_unquoted(value.strip()) for value in self.kind.strip("{} \t").split(",")]

    @property
    def is_mark(self) -> bool:
        """Whether the only values are 0 and 1."""
        return self.kind.startswith("{") and sorted(self.values) == ["0", "1"]

    @property
    def is_number(self) -> bool:
        """Whether all values are numbers."""
        return self.kind.lower() in NUMERIC or self.is_mark


@dataclass(frozen=True, slots=True)
class ArffHeader:
    """The lines before ``@data``."""

    path: str
    relation: str
    attributes: tuple[ArffAttribute, ...]
    """The relational attribute, and the attributes outside of it."""
    bag: int | None
    """Index of the relational attribute; None if every row is a bag."""
    features: tuple[ArffAttribute, ...]
    """Attributes inside the relational attribute."""
    data_start: int


def _unquoted(name: str) -> str:
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", name[1:-1])
    return name


def read_header(path: str | Path, limits: Limits) -> ArffHeader:
    """Read the header; raises SourceError if it is not an ARFF header."""
    attributes: list[ArffAttribute] = []
    features: list[ArffAttribute] = []
    bag, is_inside, relation = None, False, ""
    held = HeldBytes(str(path), "attributes", limits)
    for offset, line in _texts(path, limits):
        word = line.split(None, 1)[0].lower()
        if word == "@relation":
            relation = line[len(word) :].strip()
        elif word == "@attribute":
            attribute = _attribute(line, path, offset)
            held.add(ATTRIBUTE_BYTES + 2 * len(line))
            if attribute.kind.lower() == "relational":
                if bag is not None:
                    raise SourceError(
                        f"{where(path, offset)}: a second relational attribute, "
                        f"{attribute.name!r}; only one can hold the bags"
                    )
                bag, is_inside = len(attributes), True
            (
                features if is_inside and attribute.kind.lower() != "relational" else attributes
            ).append(attribute)
        elif word == "@end":
            is_inside = False
        elif word == "@data":
            return ArffHeader(
                str(path),
                relation,
                tuple(attributes),
                bag,
                tuple(features),
                _next_line(path, offset),
            )
        else:
            raise SourceError(
                f"{where(path, offset)}: {line[:40]!r} is not a line of an ARFF header; expected "
                "@relation, @attribute, @end or @data"
            )
    raise SourceError(f"{path} has no @data line; is it ARFF, or cut short?")


def _texts(path: str | Path, limits: Limits) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither empty nor comments, with their offsets."""
    for lines in line_blocks(path, limits=limits, times=LINE_TIMES):
        for offset, raw in lines.with_offsets():
            line = as_text(raw, path, offset).strip()
            if line and not line.startswith("%"):
                yield offset, line


def _next_line(path: str | Path, offset: int) -> int:
    line = next(iter(line_blocks(path, offset, offset + 1, aligned=True)))
    return offset + len(line.content)


def _attribute(line: str, path: str | Path, offset: int) -> ArffAttribute:
    match = ATTRIBUTE.fullmatch(line)
    if match is None:
        raise SourceError(
            f"{where(path, offset)}: {line[:40]!r} names no attribute and type; "
            "expected @attribute NAME TYPE"
        )
    return ArffAttribute(_unquoted(match[1]), match[2].strip(), offset)


class _NoPlainListError(Exception):
    """An XML file is long, or declares entities, by which a short file can become long."""


class _PlainTree(ElementTree.TreeBuilder):
    """Refuses a document type, in whatever encoding it is declared."""

    def doctype(self, *_: object) -> None:
        raise _NoPlainListError


def xml_labels(path: Path) -> list[str]:
    """Label names in the XML of a Mulan corpus, including those of a hierarchy."""
    try:
        if path.stat().st_size > MAX_XML:
            raise _NoPlainListError
        parser = ElementTree.XMLParser(target=_PlainTree())
        root = ElementTree.fromstring(path.read_bytes(), parser)
    except _NoPlainListError:
        raise SourceError(
            f"{path}: a list of labels must have no document type and less than {MAX_XML >> 20} MiB"
        ) from None
    # An encoding that Python does not know, or that the parser cannot use, is another error.
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise SourceError(f"{path} is not XML: {reason_of(error)}; fetch it again") from None
    names = [node.get("name") for node in root.iter() if node.tag.rpartition("}")[2] == "label"]
    if not names or None in names:
        raise SourceError(f"{path} lists no labels; expected <labels><label name=…>")
    return [name for name in names if name is not None]


class ArffRoles(NamedTuple):
    """Roles of the attributes of a header."""

    features: list[str]
    labels: list[int]
    """Indices of the labels among the attributes."""
    bag_id: int | None
    notes: list[str]


def _roles(header: ArffHeader, named: Sequence[str] | None, by: str) -> ArffRoles:
    """Decide which attributes are labels, features and ids.

    ``named`` are the names of the labels, if known. ``by`` is the option or file that names them.
    """
    relational = header.bag is not None
    names = [attribute.name for attribute in header.attributes]
    repeated = twice(names) or twice([attribute.name for attribute in header.features])
    if repeated is not None:
        raise SourceError(f"{header.path}: two attributes are called {repeated!r}; rename one")
    if named is None:
        labels, by = _unnamed_labels(header)
    else:
        for name in named:
            if name not in names:
                raise SourceError(
                    f"{header.path}: label {name!r} of {by} is not an attribute; does it belong to "
                    "another corpus?"
                )
        label_set = set(named)
        labels = [i for i, name in enumerate(names) if name in label_set]
    for i in labels:
        if not header.attributes[i].is_number:
            attribute = header.attributes[i]
            raise SourceError(
                f"{where(header.path, attribute.offset)}: label {attribute.name!r} is "
                f"{attribute.kind}, expected {{0,1}}"
            )
    notes = [f"{header.path}: {len(labels)} labels, by {by}"]
    if not relational:
        kept = [attribute for i, attribute in enumerate(header.attributes) if i not in set(labels)]
        _check_numbers(header, kept)
        return ArffRoles([attribute.name for attribute in kept], labels, None, notes)
    _check_numbers(header, header.features)
    unlabelled = [i for i in range(len(names)) if i not in labels and i != header.bag]
    ids = unlabelled[:1] if unlabelled and unlabelled[0] < (header.bag or 0) else []
    if ids:
        notes.append(f"{header.path}: bags are named by {names[ids[0]]!r}")
    skipped = [names[i] for i in unlabelled if i not in ids]
    if skipped:
        notes.append(f"{header.path}: skipped, not labels: {listed(skipped)}")
    return ArffRoles(
        [attribute.name for attribute in header.features], labels, ids[0] if ids else None, notes
    )


def _unnamed_labels(header: ArffHeader) -> tuple[list[int], str]:
    """Labels if neither an XML file nor an option names them, and the reason for the choice."""
    meka = MEKA.search(header.relation)
    n_attributes = len(header.attributes)
    if header.bag is None:
        if meka is None:
            xml_names = sorted(path.name for path in Path(header.path).parent.glob("*.xml"))[:3]
            hint = f" (here: {', '.join(xml_names)})" if xml_names else ""
            raise SourceError(
                f"{header.path} does not say which of its {n_attributes} attributes are labels; "
                f"give its XML{hint} as a source too, or --label-columns"
            )
        count = int(meka[1])
        indices = range(n_attributes)
        return list(indices[:count] if count >= 0 else indices[count:]), f"-C {count} of @relation"
    after = range(header.bag + 1, n_attributes)
    for i in after:
        attribute = header.attributes[i]
        if not attribute.is_mark:
            raise SourceError(
                f"{where(header.path, attribute.offset)}: attribute {attribute.name!r} after the "
                f"bag is {attribute.kind}, not a label; name the labels by XML or --label-columns"
            )
    if not after:
        raise SourceError(
            f"{header.path} has no labels after the bag; name them by --label-columns"
        )
    return list(after), "the {0,1} attributes after the bag"


def _check_numbers(header: ArffHeader, features: Sequence[ArffAttribute]) -> None:
    for feature in features:
        if not feature.is_number:
            raise SourceError(
                f"{where(header.path, feature.offset)}: feature {feature.name!r} is "
                f"{feature.kind[:40]}, expected numeric or {{0,1}}; convert it to numbers first"
            )
    if not features:
        raise SourceError(f"{header.path} has no features; is it a multi-instance corpus?")


def _is_xml(path: Path) -> bool:
    return path.suffix.lower() == ".xml"


def _named_labels(
    paths: Sequence[Path], options: SourceOptions
) -> tuple[Sequence[str] | None, str]:
    """Labels that an option or an XML file names, and the option or file."""
    if options.label_columns is not None:
        return options.label_columns, "--label-columns"
    lists = [path for path in paths if _is_xml(path)]
    if len(lists) > 1:
        raise SourceError(f"{lists[1]}: a second XML file beside {lists[0]}; give one")
    if not lists:
        expected = {_xml_path(path) for path in paths}
        lists = [path for path in expected if len(expected) == 1 and path.is_file()]
    return (xml_labels(lists[0]), str(lists[0])) if lists else (None, "")


def _xml_path(path: Path) -> Path:
    """Path at which the XML of an ARFF file is expected."""
    bare = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return bare.with_suffix(".xml")


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Read the headers; spans are ranges of bytes."""
    sources = [path for path in paths if not _is_xml(path)]
    if not sources:
        raise SourceError(f"{paths[0]} lists labels only; give the ARFF too")
    named, by = _named_labels(paths, options)
    headers = [read_header(path, options.limits) for path in sources]
    roles = [_roles(header, named, by) for header in headers]
    first = headers[0]
    sparse_files = [_is_sparse(header, options.limits) for header in headers]
    if not sparse_files[0]:
        # Dense rows are parsed as a table, which needs memory for every column.
        check_columns(first.path, max(len(first.attributes), len(first.features)), options)
    for header, role, kind in zip(headers, roles, sparse_files, strict=True):
        same = role.features == roles[0].features and _label_names(header, role) == _label_names(
            first, roles[0]
        )
        if not same or kind != sparse_files[0] or (header.bag is None) != (first.bag is None):
            raise SourceError(
                f"{header.path} has other attributes than {first.path}; convert them one by one"
            )
    names = _label_names(first, roles[0])
    label_numbers_of(names, options, first.path)
    spans = [span for header in headers for span in _spans(header, options)]
    notes = [note for role in roles for note in role.notes]
    if first.bag is None:
        notes.append(f"{first.path}: every row is a bag")
    return Scan(
        spans=tuple(spans),
        n_features=len(roles[0].features),
        dtype="uint8" if first.bag is None and _all_marks(first, roles[0]) else "float32",
        sparse=sparse_files[0] if options.sparse is None else options.sparse,
        label_names=options.labels or tuple(names),
        feature_names=tuple(roles[0].features),
        bag_ids=roles[0].bag_id is not None,
        notes=tuple(notes),
    )


def _spans(header: ArffHeader, options: SourceOptions) -> tuple[Span, ...]:
    return byte_spans(header.path, options.span_bytes, header.data_start)


def _label_names(header: ArffHeader, roles: ArffRoles) -> list[str]:
    return [header.attributes[i].name for i in roles.labels]


def _all_marks(header: ArffHeader, roles: ArffRoles) -> bool:
    features = set(roles.features)
    return all(attribute.is_mark for attribute in header.attributes if attribute.name in features)


def _is_sparse(header: ArffHeader, limits: Limits) -> bool:
    """Whether the first row is sparse, ``{index value, …}``; a file without rows is refused."""
    blocks = line_blocks(
        header.path, header.data_start, aligned=True, limits=limits, times=LINE_TIMES
    )
    rows = _rows(blocks)
    _, first = next(rows, (0, b""))
    if not first:
        raise SourceError(f"{header.path} has no rows after @data; is it cut short?")
    if header.bag is not None or not first.startswith(b"{"):
        return False
    for attribute in header.attributes:
        # A nominal value that a sparse row leaves out is the first of the declared values.
        if attribute.is_mark and attribute.values[0] != "0":
            raise SourceError(
                f"{where(header.path, attribute.offset)}: {attribute.name!r} is {attribute.kind}, "
                "so that 1 is the value of sparse rows that leave it out; write {0,1}"
            )
    return True


def _rows(blocks: Iterator[LineBlock]) -> Iterator[tuple[int, bytes]]:
    """Yield stripped lines of data with the offsets of the lines."""
    for lines in blocks:
        for offset, line in lines.with_offsets():
            line = line.strip()
            if line and not line.startswith(b"%"):
                yield offset, line


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags of the lines that begin in the span."""
    header = read_header(span.path, options.limits)
    features = set(scan.feature_names or ())
    names = set(scan.label_names or ())
    labels = [
        i
        for i, attribute in enumerate(header.attributes)
        if attribute.name in names
        and i != header.bag
        and (header.bag is not None or attribute.name not in features)
    ]
    label_numbers = label_numbers_of(
        [header.attributes[i].name for i in labels], options, span.path
    )
    columns = ArffColumns(header, labels, label_numbers, scan, options.limits)
    seen: set[str] = set()
    held = HeldBytes(span.path, "ids of bags", options.limits)
    blocks = line_blocks(
        span.path,
        span.start,
        span.stop,
        aligned=span.start == header.data_start,
        limits=options.limits,
        times=LINE_TIMES,
    )
    for lines in blocks:
        rows = list(_rows(iter([lines])))
        if not rows:
            continue
        offsets = [offset for offset, _ in rows]
        raws = [line for _, line in rows]
        if header.bag is None:
            yield _flat_block(columns, offsets, raws)
        else:
            block = _bag_block(columns, offsets, raws, seen)
            held.add(sum(ID_BYTES + len(name) for name in block.bag_ids or ()))
            yield block


class ArffColumns(NamedTuple):
    """The header, roles and limits that are needed to parse the lines of a file."""

    header: ArffHeader
    labels: list[int]
    label_numbers: I64
    """Label number of each label column."""
    scan: Scan
    limits: Limits

    def wrong(self, offset: int, reason: str) -> SourceError:
        """The error for the line at an offset."""
        return SourceError(f"{where(self.header.path, offset)}: {reason}")

    def marks(self, offsets: Sequence[int], rows: Sequence[bytes]) -> tuple[I64, NDArray[np.int32]]:
        """Parse marks; return label offsets and label numbers."""
        try:
            marks = parse_rows(b"\n".join(rows), len(self.labels))
        except RowError as error:
            reason = f"among the labels, {error.reason}; is the file cut short?"
            raise self.wrong(offsets[error.row], reason) from None
        bad = ~np.isin(marks, (0, 1))
        if bad.any():
            bag, column = (int(i) for i in np.argwhere(bad)[0])
            raise self.wrong_mark(offsets[bag], column, marks[bag, column])
        return labels_of_marks(marks, self.header.path, self.label_numbers)

    def wrong_mark(self, offset: int, column: int, mark: float) -> SourceError:
        """The error for a mark that is neither 0 nor 1."""
        name = self.header.attributes[self.labels[column]].name
        return self.wrong(offset, f"label {name!r} is {mark:g}, expected 0 or 1")


def _bag_block(
    columns: ArffColumns, offsets: list[int], lines: list[bytes], seen: set[str]
) -> BagBlock:
    """Parse relational lines: ``id,"rows",marks``."""
    ids: list[str] = []
    bags: list[bytes] = []
    marks: list[bytes] = []
    for offset, line in zip(offsets, lines, strict=True):
        bag_id, rows, rest = _split(columns, offset, line)
        if columns.scan.bag_ids:
            name = _unquoted(as_text(bag_id, columns.header.path, offset).strip())
            if name in seen:
                raise columns.wrong(offset, f"bag {name!r} occurs twice; ids must be unique")
            seen.add(name)
            ids.append(name)
        bags.append(rows)
        marks.append(rest)
    sizes = [rows.count(b"\\n") + 1 if rows.strip() else 0 for rows in bags]
    bag_offsets = from_sizes(sizes)
    try:
        text = b"\\n".join(rows for rows, size in zip(bags, sizes, strict=True) if size)
        row_lines = text.replace(b"\\n", b"\n")
        if b"\\r" in row_lines:
            row_lines = row_lines.replace(b"\\r", b"")
        values = narrowed(parse_rows(row_lines, columns.scan.n_features))
    except RowError as error:
        bag = int(np.searchsorted(bag_offsets, error.row, "right")) - 1
        named = f"bag {ids[bag]!r}" if ids else "the bag"
        row = error.row - int(bag_offsets[bag])
        raise columns.wrong(offsets[bag], f"{named}, row {row}: {error.reason}") from None
    label_offsets, labels = columns.marks(offsets, marks)
    features: NDArray[np.float32] | SparseRows = _sparse(values) if columns.scan.sparse else values
    return BagBlock(bag_offsets, features, label_offsets, labels, bag_ids=ids or None)


def _split(columns: ArffColumns, offset: int, line: bytes) -> tuple[bytes, bytes, bytes]:
    r"""Id, rows and marks of a line; rows are still separated by the two characters ``\n``."""
    header = columns.header
    assert header.bag is not None
    fields: list[bytes] = []
    position = 0
    while len(fields) <= header.bag:
        # Rows of numbers contain no quotes, so the next quote ends the bag and is never escaped.
        field_and_next = (_quoted if len(fields) == header.bag else _field)(line, position)
        if field_and_next is None or position >= len(line):
            raise columns.wrong(
                offset,
                f"value {len(fields) + 1} has no end: a quote or comma is missing; "
                "is the file cut short?",
            )
        field, position = field_and_next
        fields.append(field)
    rest = line[position:]
    after = len(header.attributes) - header.bag - 1
    if len(columns.labels) != after or columns.labels[:1] != [header.bag + 1]:
        rest = _label_fields(columns, offset, [*fields, *_fields(line, position)])
    bag_id = fields[0] if header.bag else b""
    return bag_id, fields[header.bag].removesuffix(b"\\n"), rest


def _field(line: bytes, position: int) -> tuple[bytes, int] | None:
    """The value at a position, quoted or not, and the position of the next value."""
    match = QUOTED.match(line, position)
    return None if match is None else (match[1], match.end())


def _quoted(line: bytes, position: int) -> tuple[bytes, int] | None:
    """The quoted value at a position, without quotes; a bag of one value may have no quotes."""
    while line[position : position + 1].isspace():
        position += 1
    quote = line[position : position + 1]
    if quote not in (b'"', b"'"):
        return _field(line, position)
    end = line.find(quote, position + 1)
    after = AFTER.match(line, end + 1)
    return None if end < 0 or after is None else (line[position + 1 : end], after.end())


def _fields(line: bytes, position: int) -> list[bytes]:
    return [match[1] for match in QUOTED.finditer(line, position) if match.end() > match.start()]


def _label_fields(columns: ArffColumns, offset: int, fields: list[bytes]) -> bytes:
    n_attributes = len(columns.header.attributes)
    if len(fields) != n_attributes:
        raise columns.wrong(offset, f"{len(fields)} values, expected {n_attributes}")
    return b",".join(fields[i] for i in columns.labels)


def _sparse(rows: NDArray[np.float32]) -> SparseRows:
    mask = rows != 0
    columns = np.nonzero(mask)[1].astype(np.uint32)
    return SparseRows(from_sizes(mask.sum(axis=1)), columns, rows[mask], rows.shape[1])


def _flat_block(columns: ArffColumns, offsets: list[int], lines: list[bytes]) -> BagBlock:
    """Parse lines that are bags of one row each, all dense or all sparse."""
    n_attributes = len(columns.header.attributes)
    braces = [line.startswith(b"{") for line in lines]
    try:
        if all(braces):
            indices, values = _pairs(columns, offsets, lines)
            table = _NonZeros(len(lines), *indices, values)
        elif not any(braces):
            table = _NonZeros.of(parse_rows(b"\n".join(lines), n_attributes))
        else:
            at = offsets[braces.index(not braces[0])]
            raise columns.wrong(
                at, "sparse {…} and dense rows are mixed; write all rows in one form"
            )
    except RowError as error:
        raise columns.wrong(offsets[error.row], error.reason) from None
    return _split_table(columns, offsets, table)


class _NonZeros(NamedTuple):
    """The values of a table that are not zero, in the order of rows."""

    n_rows: int
    rows: I64
    attributes: I64
    values: F64

    @classmethod
    def of(cls, dense: F64) -> _NonZeros:
        rows, attributes = np.nonzero(dense)
        return cls(len(dense), rows, attributes, dense[rows, attributes])


def _pairs(
    columns: ArffColumns, offsets: list[int], lines: list[bytes]
) -> tuple[tuple[I64, I64], F64]:
    """Row, attribute and value of each ``index value`` pair of sparse lines."""
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
        raise RowError(int(rows[error.row]), f"not 'attribute value': {error.reason}") from None
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
        raise RowError(int(rows[at]), f"attribute {attributes[at]} occurs twice")
    return (rows[order], attributes[order]), pairs[order, 1]


def _split_table(columns: ArffColumns, offsets: list[int], table: _NonZeros) -> BagBlock:
    """Split a table, one bag in each row, into features and labels."""
    is_label = np.zeros(len(columns.header.attributes), bool)
    is_label[columns.labels] = True
    position = np.where(is_label, np.cumsum(is_label), np.cumsum(~is_label)) - 1
    of_label = is_label[table.attributes]
    label_offsets, labels = _listed_labels(columns, offsets, table, position, of_label)
    kept = ~of_label
    rows, features = table.rows[kept], position[table.attributes[kept]]
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
    check_dense(columns.header.path, sparse, columns.scan.sparse, columns.limits)
    return BagBlock(
        bag_offsets, sparse if columns.scan.sparse else sparse.dense(), label_offsets, labels
    )


def _listed_labels(
    columns: ArffColumns,
    offsets: list[int],
    table: _NonZeros,
    position: I64,
    of_label: NDArray[np.bool_],
) -> tuple[I64, NDArray[np.int32]]:
    """Label offsets and numbers from the marks that are not zero, without a dense matrix."""
    rows, marked = table.rows[of_label], position[table.attributes[of_label]]
    values = table.values[of_label]
    bad = ~np.isin(values, (0, 1))
    if bad.any():
        at = int(bad.argmax())
        raise columns.wrong_mark(offsets[rows[at]], int(marked[at]), values[at])
    rows, numbers = rows[values == 1], columns.label_numbers[marked[values == 1]]
    order = np.lexsort((numbers, rows))
    sizes = np.bincount(rows, minlength=table.n_rows)
    return from_sizes(sizes), numbers[order].astype(np.int32)


def tells(path: Path, first: bytes) -> bool:
    """Whether a file is ARFF (by suffix or first word) or an XML list of labels."""
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
