"""JSON lines: one object for each bag, parsed by orjson.

``{"id": …, "instances": [[…], …], "labels": […], "instance_labels": […]}``; a sparse row is
``{"indices": […], "values": […]}``. Columns to keep are fields with a value for each row, or fields
of an object ``kept``. NaN, a key that occurs twice, ``true`` instead of a number, and
an incomplete last line are refused.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import KeptColumn
from streammiml.bags.layout import MAX_FEATURES
from streammiml.bags.offsets import from_sizes
from streammiml.config import format_size
from streammiml_tools.readers.base import Limits, Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.json_kept import KEPT, JsonTypes, KeptValueError, kept_values
from streammiml_tools.readers.kept_cells import check_names
from streammiml_tools.readers.labelling import Labelling, labelling_in, labelling_of
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes, check_fits
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.remote_files import source_path
from streammiml_tools.readers.text import (
    FLOAT32_LIMIT,
    bare_suffix,
    byte_spans,
    line_blocks,
    twice,
    where,
)

BLOCK_BYTES = 2 << 20
"""Bytes of text that become one block, approximately."""
LONG_LINE = 1 << 20
"""Lines of at least this many bytes are checked for memory before they are parsed."""
LIST_BYTES, VALUE_BYTES = 72, 40
"""Memory that Python needs for a list or an object, and for each value in it with its pointer."""
SAMPLED = 20
"""Number of first records that determine the names of fields."""
INSTANCES = ("instances", "rows", "features", "x", "X")
LABELS = ("labels", "label", "targets", "y", "Y")
ROW_LABELS = ("instance_labels", "row_labels")
IDS = ("id", "bag_id", "bag")
SPARSE_KEYS = frozenset(("indices", "values"))


@dataclass(frozen=True, slots=True)
class JsonFields:
    """Names of the fields of a record, and the form of a row."""

    instances: str
    labels: str | None
    """None if bags and rows are read without labels."""
    sparse: bool
    n_features: int
    """Number of features of dense rows; 0 for sparse rows."""
    bag: str | None
    row_labels: str | None
    kept: tuple[str, ...] = ()
    """Columns to keep."""
    quoted: tuple[bytes, ...] = ()
    """Names of all fields in quotes, as in a line."""


class BadLine(Exception):
    """The error in a line; the reader adds file and line number."""


def tells(path: Path, head: bytes) -> bool:
    """Whether the suffix is that of JSON lines and the first line begins an object."""
    known = bare_suffix(path) in (".jsonl", ".ndjson", ".json")
    return known and head.lstrip()[:1] == b"{"


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Find fields by the first records; label names and sparse features may need a full pass."""
    fields = fields_of(paths[0], options)
    n_features = options.n_features or fields.n_features
    check_names(paths[0], fields.kept)
    labels, top, kept = _pass(paths, fields, options)
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
        kept=kept,
        notes=(*_notes(fields), *([f"kept: {listed([*map(str, kept)])}"] if kept else [])),
    )


def _notes(fields: JsonFields) -> tuple[str, ...]:
    kind = "sparse rows" if fields.sparse else f"rows of {fields.n_features} values"
    labels = "no labels" if fields.labels is None else f"labels of bags from {fields.labels!r}"
    notes = [f"{kind} from {fields.instances!r}", labels]
    notes += [f"ids from {fields.bag!r}"] if fields.bag else ["bags have no ids"]
    notes += [f"labels of rows from {fields.row_labels!r}"] if fields.row_labels else []
    return tuple(notes)


# --- fields ------------------------------------------------------------------------------------


def fields_of(path: Path, options: SourceOptions) -> JsonFields:
    """Find the names of the fields, by the first records and the options."""
    return _fields(path, path.stat().st_mtime_ns, options)


@lru_cache(maxsize=8)
def _fields(path: Path, _changed: int, options: SourceOptions) -> JsonFields:
    keys: dict[str, None] = {}
    first_rows: dict[str, Any] = {}
    n_records = 0
    for offset, line in islice(_all_lines([path], options), SAMPLED):
        record = _at(path, offset, _parsed, line, options.limits)
        n_records += 1
        keys |= dict.fromkeys(record)
        # Only the first row of a record is kept, as records may be long.
        first_rows = {
            key: rows[0] for key in record if (rows := _rows_in(record, key))
        } | first_rows
        del record
    if not n_records:
        raise SourceError(f"{path} is empty")
    instances = _field(path, keys, _only(options.feature_columns), INSTANCES, "--feature-columns")
    labels = row_labels = None
    if not options.no_labels:
        labels = _field(path, keys, _only(options.label_columns), LABELS, "--label-columns")
        row_labels = _field(path, keys, options.row_label_column, ROW_LABELS, "--row-label-column")
    if instances is None or (labels is None and not options.no_labels):
        what = "labels? name it by --label-columns, or give none"
        if instances is None:
            what = "rows? name it by --feature-columns"
        raise SourceError(
            f"{path}: which field holds the {what}; the first records have "
            f"{listed(map(repr, keys))}"
        )
    if instances not in first_rows:
        raise SourceError(f"{path}: the first {n_records} bags have no rows at all")
    first = first_rows[instances]
    sparse = isinstance(first, dict)
    bag = _field(path, keys, options.bag_column, IDS, "--bag-column")
    for name in {*options.kept_names} & {instances, labels, bag, row_labels}:
        raise SourceError(f"{path}: field {name!r} has another role, and is not kept too (--keep)")
    used = (instances, labels, bag, row_labels, *options.kept_names)
    used += (KEPT,) if options.kept_names else ()
    return JsonFields(
        instances=instances,
        labels=labels,
        sparse=sparse,
        n_features=0 if sparse or not isinstance(first, list) else len(first),
        bag=bag,
        row_labels=row_labels,
        kept=options.kept_names,
        quoted=tuple(b'"%s"' % name.encode() for name in used if name is not None),
    )


def _rows_in(record: dict[str, Any], instances: str) -> list[Any]:
    rows = record.get(instances)
    return rows if isinstance(rows, list) else []


def _only(names: tuple[str, ...] | None) -> str | None:
    if names is not None and len(names) != 1:
        raise SourceError(f"JSON lines have one field for each role, got {', '.join(names)}")
    return names[0] if names else None


def _field(
    path: Path, keys: Iterable[str], name: str | None, known: Sequence[str], option: str
) -> str | None:
    present = [key for key in keys if (key == name if name else key in known)]
    if name and not present:
        raise SourceError(
            f"{path}: no field is called {name!r} ({option}); the first records have "
            f"{listed(map(repr, keys))}"
        )
    if len(present) > 1:
        raise SourceError(
            f"{path}: {present[0]!r} and {present[1]!r} may both be meant; give {option}"
        )
    return present[0] if present else None


# --- lines -------------------------------------------------------------------------------------


def _all_lines(paths: Iterable[Path], options: SourceOptions) -> Iterator[tuple[int, bytes]]:
    for path in paths:
        for block in line_blocks(path, block_bytes=BLOCK_BYTES, limits=options.limits):
            yield from ((offset, line) for offset, line in block.with_offsets() if line.strip())


def _at(path: str | Path, offset: int, step: Any, *args: Any) -> Any:
    """Call ``step``, and add file and line number to its errors."""
    try:
        return step(*args)
    except (BadLine, KeptValueError) as wrong:
        raise SourceError(f"{where(path, offset)}: {wrong}") from None
    except SourceError as error:
        # Errors of Labelling begin with an empty ``where``.
        raise SourceError(f"{where(path, offset)}{error}") from None


def _check_objects(line: bytes, limits: Limits) -> None:
    """Refuse a long line whose Python objects would take more memory than is allowed."""
    if len(line) < LONG_LINE:
        return
    n_lists = line.count(b"[") + line.count(b"{")
    need = 2 * len(line) + LIST_BYTES * n_lists + VALUE_BYTES * line.count(b",")
    try:
        check_fits(f"a line of {format_size(len(line))}", need, limits)
    except SourceError as error:
        raise BadLine(str(error)) from None


def _parsed(line: bytes, limits: Limits) -> dict[str, Any]:
    _check_objects(line, limits)
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        why = error.msg.split(": line 1")[0]
        if "end of data" in why:
            raise BadLine(
                "the line ends in the middle of an object; is the file cut short?"
            ) from None
        raise BadLine(
            f"not JSON ({why}, character {error.pos + 1}); NaN is not JSON either"
        ) from None
    if not isinstance(record, dict):
        raise BadLine(f"a {type(record).__name__}, expected an object for each bag")
    return record


def _check_keys(line: bytes, record: dict[str, Any], fields: JsonFields) -> None:
    """Refuse duplicate keys, and true or false instead of numbers.

    A fast search in the text finds lines that may be invalid; only these are parsed strictly.
    """
    opening, closing = (b"[{", b"}]") if fields.sparse else (b"[[", b"]]")
    start, stop = line.find(opening), line.rfind(closing)
    if start < 0 or stop < start:
        start, stop = 0, len(line)
    if fields.sparse:
        is_suspicious = _is_suspicious_sparse(line, start, stop, record.get(fields.instances))
    else:
        # Dense rows are numbers only. A quote, or a letter of "true" or "false", is suspicious.
        is_suspicious = (
            line.find(b'"', start, stop) >= 0
            or line.find(b"u", start, stop) >= 0
            or line.find(b"f", start, stop) >= 0
        )
    outside = line[:start] + line[stop:]
    if is_suspicious or any(outside.count(key) > 1 for key in fields.quoted):
        _check_strictly(line, fields)


def _is_suspicious_sparse(line: bytes, start: int, stop: int, rows: Any) -> bool:
    """Whether sparse rows may have other keys, duplicate keys, or true or false as values."""
    n_rows = len(rows) if isinstance(rows, list) else 0
    return (
        line.count(b'"indices"') != n_rows
        or line.count(b'"values"') != n_rows
        or line.count(b'"', start, stop) != 4 * n_rows
        or line.find(b"tr", start, stop) >= 0
        or line.find(b"fa", start, stop) >= 0
    )


def _check_strictly(line: bytes, fields: JsonFields) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        pair_dict = dict(pairs)
        if len(pair_dict) != len(pairs):
            key = twice([key for key, _ in pairs])
            raise BadLine(f"the key {key!r} occurs twice in one object; keep one")
        return pair_dict

    try:
        record = json.loads(line, object_pairs_hook=unique)
    except RecursionError:
        raise BadLine("objects are nested too deep") from None
    for row in _rows_in(record, fields.instances):
        parts = row.values() if isinstance(row, dict) else [row]
        for value in (value for part in parts if isinstance(part, list) for value in part):
            if isinstance(value, bool):
                raise BadLine(f"{fields.instances!r} holds {str(value).lower()}, expected numbers")


# --- the pass ----------------------------------------------------------------------------------


def _pass(
    paths: Sequence[Path], fields: JsonFields, options: SourceOptions
) -> tuple[set[str | int] | None, int, tuple[KeptColumn, ...]]:
    """Labels of all records (None if they need not be known), highest sparse feature, kept columns.

    Every record is parsed only if there are sparse features to count, or columns to keep.
    """
    label_field = fields.labels
    if label_field is not None and (
        options.labels is not None or not _by_name(paths[0], label_field, options)
    ):
        label_field = None
    if fields.kept or (fields.sparse and options.n_features is None):
        return _full_pass(paths, fields, label_field, options)
    return (None if label_field is None else _label_pass(paths, label_field, options)), -1, ()


def _full_pass(
    paths: Sequence[Path], fields: JsonFields, name: str | None, options: SourceOptions
) -> tuple[set[str | int] | None, int, tuple[KeptColumn, ...]]:
    """Labels in the field ``name`` (None without a name), highest sparse feature, kept columns."""
    labels: set[str | int] = set()
    kept = JsonTypes(fields.kept)
    top = -1
    for path in paths:
        for offset, line in _all_lines([path], options):
            record = _at(path, offset, _parsed, line, options.limits)
            if fields.sparse:
                top = max(top, _at(path, offset, _top_feature, record, fields))
            if name is not None:
                labels.update(_at(path, offset, _label_list, record.get(name), name))
            _at(path, offset, kept.add, record)
    return (None if name is None else labels), top, kept.columns()


def _label_pass(paths: Sequence[Path], name: str, options: SourceOptions) -> set[str | int]:
    """Labels of all records; where possible, only the lists of labels are parsed."""
    labels: set[str | int] = set()
    for path in paths:
        for block in line_blocks(path, block_bytes=BLOCK_BYTES, limits=options.limits):
            check_fits(
                f"{path}: a list of {len(labels):,} labels",
                2 * ID_BYTES * len(labels),
                options.limits,
            )
            labels_of_block = _labels_alone(block.content, name)
            if labels_of_block is not None:
                labels |= labels_of_block
                continue
            for offset, line in block.with_offsets():
                if line.strip():
                    record = _at(path, offset, _parsed, line, options.limits)
                    labels.update(_at(path, offset, _label_list, record.get(name), name))
    return labels


def _by_name(path: Path, name: str, options: SourceOptions) -> bool:
    """Whether any label of the first records is a name and not a number."""
    for offset, line in islice(_all_lines([path], options), SAMPLED):
        record = _at(path, offset, _parsed, line, options.limits)
        for label in _at(path, offset, _label_list, record.get(name), name):
            if isinstance(label, str) and not label.isdigit():
                return True
    return False


def _labels_alone(content: bytes, name: str) -> set[str | int] | None:
    """Labels of all lines, found by their key in the text; None unless each line has it once."""
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
        return {label for text in lists for label in _label_list(orjson.loads(text), name)}
    except (orjson.JSONDecodeError, BadLine):
        return None


def _top_feature(record: dict[str, Any], fields: JsonFields) -> int:
    top = -1
    for row in _rows_in(record, fields.instances):
        indices = row.get("indices") if isinstance(row, dict) else None
        if not isinstance(indices, list):
            raise BadLine(f'{fields.instances!r} needs {{"indices": […], "values": […]}} a row')
        top = max(top, max((_index(index) for index in indices), default=-1))
    return top


def _index(index: Any) -> int:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < MAX_FEATURES:
        raise BadLine(f"feature {index!r} is not among the numbers from 0 to {MAX_FEATURES - 1}")
    return index


# --- bags --------------------------------------------------------------------------------------


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags whose lines begin in the span."""
    path = source_path(span.path)
    rules = RecordRules(fields_of(path, options), scan, labelling_in(scan), options.limits)
    seen: set[str] = set()
    held = HeldBytes(span.path, "ids of bags", options.limits)
    blocks = line_blocks(
        path,
        span.start,
        span.stop,
        aligned=span.start == 0,
        block_bytes=BLOCK_BYTES,
        limits=options.limits,
    )
    for lines in blocks:
        bags: GatheredBags = (
            SparseBags(rules) if scan.sparse else DenseBags(rules, len(lines.content))
        )
        offsets = []
        for offset, line in lines.with_offsets():
            if line.strip():
                _at(path, offset, bags.add, line)
                offsets.append(offset)
        for offset, name in zip(offsets, bags.ids, strict=False):
            if name in seen and not options.group:
                raise SourceError(
                    f"{where(path, offset)}: bag {name!r} occurs twice; rename one, or give "
                    "--group to join them"
                )
            seen.add(name)
        held.add(sum(ID_BYTES + len(name) for name in bags.ids))
        wrong = bags.too_large()
        if wrong is not None:
            raise SourceError(f"{where(path, offsets[wrong])}: a value is too large for float32")
        if bags.sizes:
            yield bags.block()


@dataclass(frozen=True, slots=True)
class RecordRules:
    """Fields, labelling and limits by which records are checked and converted."""

    fields: JsonFields
    scan: Scan
    labelling: Labelling
    limits: Limits


class GatheredBags(ABC):
    """Collects the bags of a block; every record is checked when it is added."""

    def __init__(self, rules: RecordRules) -> None:
        self.rules = rules
        self.sizes: list[int] = []
        self.ids: list[str] = []
        self._labels: list[list[int]] = []
        self._row_labels: list[int] = []
        self._kept: dict[str, list[NDArray[Any]]] = {
            column.name: [column.empty()] for column in rules.scan.kept
        }

    def add(self, line: bytes) -> None:
        """Check and add the record of a line; raises BadLine or SourceError."""
        self._add_parsed(line)

    def _add_parsed(self, line: bytes) -> None:
        fields = self.rules.fields
        record = _parsed(line, self.rules.limits)
        _check_keys(line, record, fields)
        rows = record.get(fields.instances)
        if not isinstance(rows, list):
            raise BadLine(f"{fields.instances!r} is {_shown(rows)}, expected a list of rows")
        self._add_rows(rows)
        self._add_rest(record, len(rows))

    def _add_rest(self, record: dict[str, Any], n_rows: int) -> None:
        fields = self.rules.fields
        labels: list[str | int] = []
        if fields.labels is not None:
            labels = _label_list(record.get(fields.labels), fields.labels)
            self._add_row_labels(record, n_rows)
        self._labels.append(self.rules.labelling.indices(labels, ""))
        if fields.bag is not None:
            self.ids.append(_id(record.get(fields.bag), fields.bag))
        for column in self.rules.scan.kept:
            self._kept[column.name].append(kept_values(record, column, n_rows))
        self.sizes.append(n_rows)

    @abstractmethod
    def _add_rows(self, rows: list[Any]) -> None: ...

    @abstractmethod
    def _rows(self) -> NDArray[Any] | SparseRows: ...

    @abstractmethod
    def _row_at(self, position: int) -> int:
        """The row to which a value belongs."""

    @property
    @abstractmethod
    def _numbers(self) -> NDArray[np.float64]:
        """All values so far."""

    def _wrong_row(self, rows: list[Any]) -> BadLine:
        for at, row in enumerate(rows):
            if not isinstance(row, list):
                return BadLine(f"row {at} is {_shown(row)}, expected a list of numbers")
            for value in row:
                if not isinstance(value, int | float) or abs(value) >= FLOAT32_LIMIT:
                    return BadLine(
                        f"row {at} holds {_shown(value)}, expected numbers within float32"
                    )
        raise AssertionError("some row was refused")

    def too_large(self) -> int | None:
        """The first bag that has a value beyond float32, if any; JSON has no infinity."""
        values = self._numbers
        if not values.size or max(values.max(), -values.min()) < FLOAT32_LIMIT:
            return None
        row = self._row_at(int((np.abs(values) >= FLOAT32_LIMIT).argmax()))
        return int(np.searchsorted(from_sizes(self.sizes), row, "right")) - 1

    def _add_row_labels(self, record: dict[str, Any], n_rows: int) -> None:
        fields = self.rules.fields
        if fields.row_labels is None:
            name = next((name for name in ROW_LABELS if name in record), None)
            if name is not None:
                raise BadLine(
                    f"{name!r} occurs here first; the first records must have it too, "
                    "null if unknown"
                )
            return
        labels = record.get(fields.row_labels)
        if labels is None:
            self._row_labels += [-1] * n_rows
            return
        if not isinstance(labels, list) or len(labels) != n_rows:
            count = len(labels) if isinstance(labels, list) else _shown(labels)
            raise BadLine(f"{fields.row_labels!r} is {count} for {n_rows} rows")
        index = self.rules.labelling.index
        self._row_labels += [
            -1 if label is None or label == -1 else index(_label(label, "row label"), "")
            for label in labels
        ]

    def block(self) -> BagBlock:
        """All bags so far."""
        return BagBlock(
            bag_offsets=from_sizes(self.sizes),
            rows=self._rows(),
            label_offsets=from_sizes([len(bag_labels) for bag_labels in self._labels]),
            label_indices=np.array(
                [label for bag_labels in self._labels for label in bag_labels], np.int32
            ),
            row_labels=np.array(self._row_labels, np.int32)
            if self.rules.fields.row_labels
            else None,
            bag_ids=self.ids if self.rules.fields.bag is not None else None,
            kept={name: np.concatenate(values) for name, values in self._kept.items()},
        )


class DenseBags(GatheredBags):
    """Bags of dense rows; plain numbers are parsed from text to NumPy without Python objects."""

    def __init__(self, rules: RecordRules, n_bytes: int) -> None:
        super().__init__(rules)
        # Loaded late: scanning a file and refusing it need no compiled code.
        self._rows_in = import_module("streammiml_tools.readers.number_lists").rows_in
        # A number and the character after it take at least two bytes of text.
        self._values = np.empty(n_bytes // 2 + 1, np.float64)
        self._n_values = 0

    def add(self, line: bytes) -> None:
        """Check and add the record of a line; raises BadLine or SourceError."""
        if not self._add_fast(line):
            self._add_parsed(line)

    def _add_fast(self, line: bytes) -> bool:
        """Parse the rows apart from the rest of the line; False if the result may be wrong."""
        fields, width = self.rules.fields, self.rules.scan.n_features
        key = fields.quoted[0]
        at = line.find(key)
        start = line.find(b"[", at)
        if at < 0 or start < 0 or line[at + len(key) : start].strip() != b":":
            return False
        end, n_rows = self._rows_in(line, start, width, self._values[self._n_values :])
        if end < 0:
            return False
        rest = line[:start] + b"null" + line[end:]
        if any(rest.count(name) > 1 for name in fields.quoted):
            return False
        record = _parsed(rest, self.rules.limits)
        # The field is null only if the key belongs to the record itself, not to a nested object.
        if record.get(fields.instances, rest) is not None:
            return False
        self._add_rest(record, n_rows)
        self._n_values += n_rows * width
        return True

    def _add_rows(self, rows: list[Any]) -> None:
        width = self.rules.scan.n_features
        # array.fromlist is twice as fast as NumPy, and refuses text and null.
        values = array("d")
        try:
            for row in rows:
                values.fromlist(row)
        except (TypeError, OverflowError):
            raise self._wrong_row(rows) from None
        if any(len(row) != width for row in rows):
            at = next(i for i, row in enumerate(rows) if len(row) != width)
            raise BadLine(
                f"row {at} has {len(rows[at])} values, expected {width}; correct or remove the bag"
            )
        stop = self._n_values + len(values)
        self._values[self._n_values : stop] = values
        self._n_values = stop

    def _row_at(self, position: int) -> int:
        return position // self.rules.scan.n_features

    @property
    def _numbers(self) -> NDArray[np.float64]:
        return self._values[: self._n_values]

    def _rows(self) -> NDArray[Any]:
        return self._numbers.astype(np.float32).reshape(-1, self.rules.scan.n_features)


class SparseBags(GatheredBags):
    """Bags of sparse rows."""

    def __init__(self, rules: RecordRules) -> None:
        super().__init__(rules)
        self._columns, self._values = array("q"), array("d")
        self._row_sizes: list[int] = []

    def _add_rows(self, rows: list[Any]) -> None:
        before = len(self._columns)
        for at, row in enumerate(rows):
            if not isinstance(row, dict) or row.keys() != SPARSE_KEYS:
                raise BadLine(
                    f'row {at} is {_shown(row)}, expected {{"indices": […], "values": […]}}'
                )
            indices, values = row["indices"], row["values"]
            try:
                self._columns.fromlist(indices)
                self._values.fromlist(values)
            except (TypeError, OverflowError):
                raise self._wrong_row(rows) from None
            if len(indices) != len(values):
                raise BadLine(f"row {at} has {len(indices)} indices but {len(values)} values")
            if len(set(indices)) != len(indices):
                raise BadLine(f"row {at} has a feature twice")
            self._row_sizes.append(len(indices))
        columns = np.frombuffer(self._columns, np.int64)[before:]
        width = self.rules.scan.n_features
        if columns.size and not (columns.min() >= 0 and columns.max() < width):
            wrong = columns[(columns < 0) | (columns >= width)][0]
            raise BadLine(
                f"feature {wrong} is outside 0 to {width - 1}; give their number as --n-features"
            )

    def _wrong_row(self, rows: list[Any]) -> BadLine:
        for at, row in enumerate(rows):
            for key in sorted(SPARSE_KEYS):
                if not isinstance(row[key], list):
                    return BadLine(f"{key!r} of row {at} is {_shown(row[key])}, expected a list")
            for index in row["indices"]:
                _index(index)
        return super()._wrong_row([row["values"] for row in rows])

    def _row_at(self, position: int) -> int:
        return int(np.searchsorted(from_sizes(self._row_sizes), position, "right")) - 1

    @property
    def _numbers(self) -> NDArray[np.float64]:
        return np.frombuffer(self._values)

    def _rows(self) -> SparseRows:
        return SparseRows(
            from_sizes(self._row_sizes),
            np.frombuffer(self._columns, np.int64).astype(np.uint32),
            self._numbers.astype(np.float32),
            self.rules.scan.n_features,
        )


def _label_list(labels: Any, name: str) -> list[str | int]:
    if isinstance(labels, str | int) and not isinstance(labels, bool):
        return [labels]
    if not isinstance(labels, list):
        raise BadLine(f"{name!r} is {_shown(labels)}, expected a list of names or numbers")
    for label in labels:
        _label(label, "label")
    return labels


def _label(label: Any, kind: str) -> str | int:
    if isinstance(label, str | int) and not isinstance(label, bool):
        return label
    raise BadLine(f"{kind} {_shown(label)} is neither a name nor a number; correct it")


def _id(value: Any, name: str) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
        return str(value)
    raise BadLine(f"{name!r} is {_shown(value)}, expected the bag's id")


def _shown(value: Any) -> str:
    """A value as JSON, for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


READER = Reader(
    name="jsonl",
    suffixes=(".jsonl", ".ndjson", ".json"),
    line="JSON lines: an object a bag, rows dense or sparse",
    tells=tells,
    scan=scan,
    read=read,
    streams=True,
    may_lack_labels=True,
)
