"""JSON lines: an object a bag, parsed by orjson.

``{"id": …, "instances": [[…], …], "labels": […], "instance_labels": […]}``; a sparse row is
``{"indices": […], "values": […]}``. JSON's own traps are refused: NaN, a key that comes twice,
``true`` for a number, half a last line.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.layout import MAX_FEATURES
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.labelling import Labelling, labelling_in, labelling_of
from streammiml_tools.readers.number_lists import rows_in
from streammiml_tools.readers.text import bare_suffix, byte_spans, line_blocks, where

BLOCK_BYTES = 2 << 20
"""Bytes of text that become one block, about."""
SAMPLED = 20
"""Records that are looked at to tell what the fields are."""
INSTANCES = ("instances", "rows", "features", "x", "X")
LABELS = ("labels", "label", "targets", "y", "Y")
ROW_LABELS = ("instance_labels", "row_labels")
IDS = ("id", "bag_id", "bag")
SPARSE_KEYS = frozenset(("indices", "values"))
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Fields:
    """What the fields of a record are called, and what a row is."""

    instances: str
    labels: str | None
    """None if there are to be no labels, nor of rows."""
    sparse: bool
    n_features: int
    """Of dense rows; 0 if sparse."""
    bag: str | None
    row_labels: str | None

    quoted: tuple[bytes, ...] = ()
    """Names of all fields, as they stand in a line."""


class Line(Exception):
    """What is wrong with a line; the reader adds which one it is."""


def tells(path: Path, head: bytes) -> bool:
    """Whether the first line begins an object."""
    known = bare_suffix(path) in (".jsonl", ".ndjson", ".json")
    return known and head.lstrip()[:1] == b"{"


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Fields from the first records; a pass over all for names of labels, or sparse features."""
    fields = fields_of(paths[0], options)
    n_features = options.n_features or fields.n_features
    labels, top = _pass(paths, fields, options)
    if fields.sparse and options.n_features is None:
        n_features = top + 1
    labelling = Labelling(options.labels) if labels is None else labelling_of(labels, options)
    spans = [span for path in paths for span in byte_spans(path, options.span_bytes)]
    return Scan(
        spans=tuple(spans),
        n_features=n_features,
        sparse=fields.sparse,
        label_names=labelling.names,
        n_labels=None if labelling.names is None else len(labelling.names),
        row_labels=fields.row_labels is not None,
        bag_ids=fields.bag is not None,
        notes=_notes(fields),
    )


def _notes(fields: Fields) -> tuple[str, ...]:
    kind = "sparse rows" if fields.sparse else f"rows of {fields.n_features} values"
    labels = "no labels" if fields.labels is None else f"labels of bags from {fields.labels!r}"
    notes = [f"{kind} from {fields.instances!r}", labels]
    notes += [f"ids from {fields.bag!r}"] if fields.bag else ["bags have no ids"]
    notes += [f"labels of rows from {fields.row_labels!r}"] if fields.row_labels else []
    return tuple(notes)


# --- fields ------------------------------------------------------------------------------------


def fields_of(path: Path, options: SourceOptions) -> Fields:
    """What the fields are called, by the first records and what the user says."""
    return _fields(path, path.stat().st_mtime_ns, options)


@lru_cache(maxsize=8)
def _fields(path: Path, _changed: int, options: SourceOptions) -> Fields:
    records = []
    for offset, line in islice(_all_lines([path]), SAMPLED):
        records.append(_at(path, offset, _parsed, line))
    if not records:
        raise SourceError(f"{path} is empty")
    keys = dict.fromkeys(key for record in records for key in record)
    instances = _field(path, keys, _only(options.feature_columns), INSTANCES, "--feature-columns")
    labels = row_labels = None
    if not options.no_labels:
        labels = _field(path, keys, _only(options.label_columns), LABELS, "--label-columns")
        row_labels = _field(path, keys, options.row_label_column, ROW_LABELS, "--row-label-column")
    if instances is None or (labels is None and not options.no_labels):
        what = "labels? --label-columns names it, or says none"
        if instances is None:
            what = "rows? --feature-columns names it"
        raise SourceError(
            f"{path}: which field holds the {what}; the first records have "
            f"{', '.join(map(repr, keys))}"
        )
    rows = [row for record in records for row in _rows_in(record, instances)]
    if not rows:
        raise SourceError(f"{path}: the first {len(records)} bags have no rows at all")
    sparse = isinstance(rows[0], dict)
    bag = _field(path, keys, options.bag_column, IDS, "--bag-column")
    used = (instances, labels, bag, row_labels)
    return Fields(
        instances=instances,
        labels=labels,
        sparse=sparse,
        n_features=0 if sparse or not isinstance(rows[0], list) else len(rows[0]),
        bag=bag,
        row_labels=row_labels,
        quoted=tuple(b'"%s"' % name.encode() for name in used if name is not None),
    )


def _rows_in(record: dict[str, Any], instances: str) -> list[Any]:
    found = record.get(instances)
    return found if isinstance(found, list) else []


def _only(names: tuple[str, ...] | None) -> str | None:
    if names is not None and len(names) != 1:
        raise SourceError(f"JSON lines have one field for each thing, got {', '.join(names)}")
    return names[0] if names else None


def _field(
    path: Path, keys: Iterable[str], wanted: str | None, known: Sequence[str], option: str
) -> str | None:
    there = [key for key in keys if (key == wanted if wanted else key in known)]
    if wanted and not there:
        raise SourceError(
            f"{path}: no field is called {wanted!r} ({option}); the first records have "
            f"{', '.join(map(repr, keys))}"
        )
    if len(there) > 1:
        raise SourceError(
            f"{path}: {there[0]!r} and {there[1]!r} may both be meant; {option} says which"
        )
    return there[0] if there else None


# --- lines -------------------------------------------------------------------------------------


def _all_lines(paths: Iterable[Path]) -> Iterator[tuple[int, bytes]]:
    for path in paths:
        for block in line_blocks(path, block_bytes=BLOCK_BYTES):
            yield from ((offset, line) for offset, line in block.each() if line.strip())


def _at(path: str | Path, offset: int, step: Any, *args: Any) -> Any:
    """Do one step with a line; what is wrong is told with file and line."""
    try:
        return step(*args)
    except Line as wrong:
        raise SourceError(f"{where(path, offset)}: {wrong}") from None
    except SourceError as error:
        # From labels, whose message begins with an empty place.
        raise SourceError(f"{where(path, offset)}{error}") from None


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        why = error.msg.split(": line 1")[0]
        if "end of data" in why:
            raise Line("the line ends in the midst of an object; is the file cut short?") from None
        raise Line(f"no JSON ({why}, character {error.pos + 1}); NaN is none either") from None
    if not isinstance(found, dict):
        raise Line(f"a {type(found).__name__}, expected an object, a line a bag")
    return found


def _check_keys(line: bytes, record: dict[str, Any], fields: Fields) -> None:
    """Refuse keys that come twice and truth values for numbers: a fast look, then a strict one."""
    opening, closing = (b"[{", b"}]") if fields.sparse else (b"[[", b"]]")
    start, stop = line.find(opening), line.rfind(closing)
    if start < 0 or stop < start:
        start, stop = 0, len(line)
    if fields.sparse:
        odd = _odd_between_sparse(line, start, stop, record.get(fields.instances))
    else:
        # Between the brackets of rows there are numbers: no quote, nor a letter of true or false.
        odd = (
            line.find(b'"', start, stop) >= 0
            or line.find(b"u", start, stop) >= 0
            or line.find(b"f", start, stop) >= 0
        )
    outside = line[:start] + line[stop:]
    if odd or any(outside.count(key) > 1 for key in fields.quoted):
        _check_strictly(line, fields)


def _odd_between_sparse(line: bytes, start: int, stop: int, rows: Any) -> bool:
    """Whether sparse rows have other keys than one of each, or letters of true and false."""
    n_rows = len(rows) if isinstance(rows, list) else 0
    return (
        line.count(b'"indices"') != n_rows
        or line.count(b'"values"') != n_rows
        or line.count(b'"', start, stop) != 4 * n_rows
        or line.find(b"tr", start, stop) >= 0
        or line.find(b"fa", start, stop) >= 0
    )


def _check_strictly(line: bytes, fields: Fields) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            key = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise Line(f"the key {key!r} comes twice in one object; keep one")
        return found

    try:
        record = json.loads(line, object_pairs_hook=unique)
    except RecursionError:
        raise Line("objects lie too deep in each other") from None
    for row in _rows_in(record, fields.instances):
        parts = row.values() if isinstance(row, dict) else [row]
        for value in (value for part in parts if isinstance(part, list) for value in part):
            if isinstance(value, bool):
                raise Line(f"{fields.instances!r} holds {str(value).lower()}, expected numbers")


# --- the pass ----------------------------------------------------------------------------------


def _pass(
    paths: Sequence[Path], fields: Fields, options: SourceOptions
) -> tuple[set[str | int] | None, int]:
    """Labels of all records, None if they need not be known, and the highest sparse feature."""
    by_name = fields.labels
    if by_name is not None and (options.labels is not None or not _by_name(paths[0], by_name)):
        by_name = None
    if fields.sparse and options.n_features is None:
        return _whole_pass(paths, fields, by_name)
    return (None if by_name is None else _label_pass(paths, by_name)), -1


def _whole_pass(
    paths: Sequence[Path], fields: Fields, name: str | None
) -> tuple[set[str | int] | None, int]:
    """Labels under a name, None without one, and the highest sparse feature."""
    labels: set[str | int] = set()
    top = -1
    for path in paths:
        for offset, line in _all_lines([path]):
            record = _at(path, offset, _parsed, line)
            top = max(top, _at(path, offset, _top_feature, record, fields))
            if name is not None:
                labels.update(_at(path, offset, _label_list, record.get(name), name))
    return (None if name is None else labels), top


def _label_pass(paths: Sequence[Path], name: str) -> set[str | int]:
    """Labels of all records, cut out of the text where they can be: rows are not parsed."""
    labels: set[str | int] = set()
    for path in paths:
        for block in line_blocks(path, block_bytes=BLOCK_BYTES):
            found = _labels_alone(block.content, name)
            if found is not None:
                labels |= found
                continue
            for offset, line in block.each():
                if line.strip():
                    listed = _at(path, offset, _parsed, line).get(name)
                    labels.update(_at(path, offset, _label_list, listed, name))
    return labels


def _by_name(path: Path, name: str) -> bool:
    """Whether any of the first labels is a name that is no number."""
    for offset, line in islice(_all_lines([path]), SAMPLED):
        record = _at(path, offset, _parsed, line)
        for label in _at(path, offset, _label_list, record.get(name), name):
            if isinstance(label, str) and not label.isdigit():
                return True
    return False


def _labels_alone(content: bytes, name: str) -> set[str | int] | None:
    """Labels of all lines, by their key; None where lines may have it elsewhere or not at all."""
    key = b'"%s"' % name.encode()
    lists: set[bytes] = set()
    at, n_found = content.find(key), 0
    while at >= 0:
        start = content.find(b"[", at)
        stop = content.find(b"]", start) + 1
        if start < 0 or not stop or content[at + len(key) : start].strip() != b":":
            return None
        lists.add(content[start:stop])
        n_found += 1
        at = content.find(key, stop)
    if n_found != content.count(b"\n") + (not content.endswith(b"\n")):
        return None
    try:
        return {label for each in lists for label in _label_list(orjson.loads(each), name)}
    except (orjson.JSONDecodeError, Line):
        return None


def _top_feature(record: dict[str, Any], fields: Fields) -> int:
    top = -1
    for row in _rows_in(record, fields.instances):
        indices = row.get("indices") if isinstance(row, dict) else None
        if not isinstance(indices, list):
            raise Line(f'{fields.instances!r} needs {{"indices": […], "values": […]}} a row')
        top = max(top, max((_index(index) for index in indices), default=-1))
    return top


def _index(index: Any) -> int:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < MAX_FEATURES:
        raise Line(f"feature {index!r} is not among the numbers from 0 to {MAX_FEATURES - 1}")
    return index


# --- bags --------------------------------------------------------------------------------------


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Bags whose lines begin in the span."""
    path = Path(span.path)
    asked = Asked(fields_of(path, options), scan, labelling_in(scan))
    seen: set[str] = set()
    blocks = line_blocks(
        path, span.start, span.stop, aligned=span.start == 0, block_bytes=BLOCK_BYTES
    )
    for lines in blocks:
        bags: Bags = SparseBags(asked) if scan.sparse else DenseBags(asked, len(lines.content))
        offsets = []
        for offset, line in lines.each():
            if line.strip():
                _at(path, offset, bags.add, line)
                offsets.append(offset)
        for offset, name in zip(offsets, bags.ids, strict=False):
            if name in seen and not options.group:
                raise SourceError(
                    f"{where(path, offset)}: a second bag {name!r}; rename one, or --group joins "
                    "them"
                )
            seen.add(name)
        wrong = bags.too_large()
        if wrong is not None:
            raise SourceError(f"{where(path, offsets[wrong])}: a value is too large for float32")
        if bags.sizes:
            yield bags.block()


@dataclass(frozen=True, slots=True)
class Asked:
    """What records must be like."""

    fields: Fields
    scan: Scan
    labelling: Labelling


class Bags(ABC):
    """Gathers records; each is checked as it comes."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.sizes: list[int] = []
        self.ids: list[str] = []
        self._labels: list[list[int]] = []
        self._row_labels: list[int] = []

    def add(self, line: bytes) -> None:
        """One record, checked; raises Line or SourceError."""
        self._add_parsed(line)

    def _add_parsed(self, line: bytes) -> None:
        fields = self.asked.fields
        record = _parsed(line)
        _check_keys(line, record, fields)
        rows = record.get(fields.instances)
        if not isinstance(rows, list):
            raise Line(f"{fields.instances!r} is {_said(rows)}, expected a list of rows")
        self._add_rows(rows)
        self._add_rest(record, len(rows))

    def _add_rest(self, record: dict[str, Any], n_rows: int) -> None:
        fields = self.asked.fields
        labels: list[str | int] = []
        if fields.labels is not None:
            labels = _label_list(record.get(fields.labels), fields.labels)
            self._add_row_labels(record, n_rows)
        self._labels.append(self.asked.labelling.indices(labels, ""))
        if fields.bag is not None:
            self.ids.append(_id(record.get(fields.bag), fields.bag))
        self.sizes.append(n_rows)

    @abstractmethod
    def _add_rows(self, rows: list[Any]) -> None: ...

    @abstractmethod
    def _rows(self) -> NDArray[Any] | SparseRows: ...

    @abstractmethod
    def _row_at(self, place: int) -> int:
        """The row to which a value belongs."""

    @property
    @abstractmethod
    def _found(self) -> NDArray[np.float64]:
        """All values so far."""

    def _wrong_row(self, rows: list[Any]) -> Line:
        for at, row in enumerate(rows):
            if not isinstance(row, list):
                return Line(f"row {at} is {_said(row)}, expected a list of numbers")
            for value in row:
                if not isinstance(value, int | float) or abs(value) > FLOAT32_MAX:
                    return Line(f"row {at} holds {_said(value)}, expected numbers within float32")
        raise AssertionError("some row was refused")

    def too_large(self) -> int | None:
        """The first bag that has a value beyond float32, if any; infinity is no JSON."""
        found = self._found
        if not found.size or max(found.max(), -found.min()) <= FLOAT32_MAX:
            return None
        row = self._row_at(int((np.abs(found) > FLOAT32_MAX).argmax()))
        return int(np.searchsorted(from_sizes(self.sizes), row, "right")) - 1

    def _add_row_labels(self, record: dict[str, Any], n_rows: int) -> None:
        fields = self.asked.fields
        if fields.row_labels is None:
            name = next((name for name in ROW_LABELS if name in record), None)
            if name is not None:
                raise Line(f"{name!r} begins here; the first records must have it too, if null")
            return
        labels = record.get(fields.row_labels)
        if labels is None:
            self._row_labels += [-1] * n_rows
            return
        if not isinstance(labels, list) or len(labels) != n_rows:
            count = len(labels) if isinstance(labels, list) else _said(labels)
            raise Line(f"{fields.row_labels!r} is {count} for {n_rows} rows")
        index = self.asked.labelling.index
        self._row_labels += [
            -1 if label is None or label == -1 else index(_label(label, "row label"), "")
            for label in labels
        ]

    def block(self) -> BagBlock:
        """All bags so far."""
        return BagBlock(
            bag_offsets=from_sizes(self.sizes),
            rows=self._rows(),
            label_offsets=from_sizes([len(of) for of in self._labels]),
            label_indices=np.array([label for of in self._labels for label in of], np.int32),
            row_labels=np.array(self._row_labels, np.int32)
            if self.asked.fields.row_labels
            else None,
            bag_ids=self.ids if self.asked.fields.bag is not None else None,
        )


class DenseBags(Bags):
    """Bags of dense rows: their numbers go from text to NumPy at once, where they are plain."""

    def __init__(self, asked: Asked, n_bytes: int) -> None:
        super().__init__(asked)
        # A number takes two bytes of text at least, with what follows it.
        self._values = np.empty(n_bytes // 2 + 1, np.float64)
        self._n_values = 0

    def add(self, line: bytes) -> None:
        """One record, checked; raises Line or SourceError."""
        if not self._add_fast(line):
            self._add_parsed(line)

    def _add_fast(self, line: bytes) -> bool:
        """Cut the rows out of the line and parse them apart; False if that is not certain."""
        fields, width = self.asked.fields, self.asked.scan.n_features
        key = fields.quoted[0]
        at = line.find(key)
        start = line.find(b"[", at)
        if at < 0 or start < 0 or line[at + len(key) : start].strip() != b":":
            return False
        end, n_rows = rows_in(line, start, width, self._values[self._n_values :])
        if end < 0:
            return False
        rest = line[:start] + b"null" + line[end:]
        if any(rest.count(name) > 1 for name in fields.quoted):
            return False
        record = _parsed(rest)
        # Only if the key stood at the top is the record's own field gone.
        if record.get(fields.instances, rest) is not None:
            return False
        self._add_rest(record, n_rows)
        self._n_values += n_rows * width
        return True

    def _add_rows(self, rows: list[Any]) -> None:
        width = self.asked.scan.n_features
        # Takes floats from lists twice as fast as NumPy, and refuses text and null.
        values = array("d")
        try:
            for row in rows:
                values.fromlist(row)
        except (TypeError, OverflowError):
            raise self._wrong_row(rows) from None
        if any(len(row) != width for row in rows):
            at = next(i for i, row in enumerate(rows) if len(row) != width)
            raise Line(
                f"row {at} has {len(rows[at])} values, expected {width}; mend or remove the bag"
            )
        stop = self._n_values + len(values)
        self._values[self._n_values : stop] = values
        self._n_values = stop

    def _row_at(self, place: int) -> int:
        return place // self.asked.scan.n_features

    @property
    def _found(self) -> NDArray[np.float64]:
        return self._values[: self._n_values]

    def _rows(self) -> NDArray[Any]:
        return self._found.astype(np.float32).reshape(-1, self.asked.scan.n_features)


class SparseBags(Bags):
    """Bags of sparse rows."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._columns, self._values = array("q"), array("d")
        self._row_sizes: list[int] = []

    def _add_rows(self, rows: list[Any]) -> None:
        before = len(self._columns)
        for at, row in enumerate(rows):
            if not isinstance(row, dict) or row.keys() != SPARSE_KEYS:
                raise Line(f'row {at} is {_said(row)}, expected {{"indices": […], "values": […]}}')
            indices, values = row["indices"], row["values"]
            try:
                self._columns.fromlist(indices)
                self._values.fromlist(values)
            except (TypeError, OverflowError):
                raise self._wrong_row(rows) from None
            if len(indices) != len(values):
                raise Line(f"row {at} has {len(indices)} indices but {len(values)} values")
            if len(set(indices)) != len(indices):
                raise Line(f"row {at} has a feature twice")
            self._row_sizes.append(len(indices))
        found = np.frombuffer(self._columns, np.int64)[before:]
        width = self.asked.scan.n_features
        if found.size and not (found.min() >= 0 and found.max() < width):
            wrong = found[(found < 0) | (found >= width)][0]
            raise Line(f"feature {wrong} is outside 0 to {width - 1}; --n-features says how many")

    def _wrong_row(self, rows: list[Any]) -> Line:
        for at, row in enumerate(rows):
            for key in sorted(SPARSE_KEYS):
                if not isinstance(row[key], list):
                    return Line(f"{key!r} of row {at} is {_said(row[key])}, expected a list")
            for index in row["indices"]:
                _index(index)
        return super()._wrong_row([row["values"] for row in rows])

    def _row_at(self, place: int) -> int:
        return int(np.searchsorted(from_sizes(self._row_sizes), place, "right")) - 1

    @property
    def _found(self) -> NDArray[np.float64]:
        return np.frombuffer(self._values)

    def _rows(self) -> SparseRows:
        return SparseRows(
            from_sizes(self._row_sizes),
            np.frombuffer(self._columns, np.int64).astype(np.uint32),
            self._found.astype(np.float32),
            self.asked.scan.n_features,
        )


def _label_list(labels: Any, name: str) -> list[str | int]:
    if isinstance(labels, str | int) and not isinstance(labels, bool):
        return [labels]
    if not isinstance(labels, list):
        raise Line(f"{name!r} is {_said(labels)}, expected a list of names or numbers")
    for label in labels:
        _label(label, "label")
    return labels


def _label(label: Any, kind: str) -> str | int:
    if isinstance(label, str | int) and not isinstance(label, bool):
        return label
    raise Line(f"{kind} {_said(label)} is neither a name nor a number; mend it")


def _id(found: Any, name: str) -> str:
    if isinstance(found, str | int) and not isinstance(found, bool) and found != "":
        return str(found)
    raise Line(f"{name!r} is {_said(found)}, expected the bag's id")


def _said(value: Any) -> str:
    """A value as JSON has it, for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


READER = Reader(
    name="jsonl",
    suffixes=(".jsonl", ".ndjson", ".json"),
    line="JSON lines: an object a bag, rows dense or sparse",
    tells=tells,
    scan=scan,
    read=read,
    may_lack_labels=True,
)
