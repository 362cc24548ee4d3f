"""SVMlight with ``qid``: a row a line, ``3,7 qid:12 5:0.3 9:1 # said``; the qid is the bag.

The labels before the qid are the bag's, and so the same on all of its rows. Where they differ they
can only be labels of rows: ``--row-label-column labels`` takes them so, and gives the bag those of
its rows. Features are counted from 0 if a feature 0 occurs, else from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.labelling import Labelling, labelling_in, labelling_of
from streammiml_tools.readers.text import (
    F64,
    Lines,
    RowError,
    as_text,
    bare_suffix,
    compression_of,
    last_lines,
    line_blocks,
    maybe_cut,
    parse_rows,
    where,
)

I64 = NDArray[np.int64]
FROM_0 = "svmlight: a feature 0 occurs, so features are counted from 0"
FROM_1 = "svmlight: no feature 0 occurs, so features are counted from 1"
MAX_FEATURE = 1 << 32


class _Rows(NamedTuple):
    """Lines of one file, parsed: one entry a row, then one a value."""

    path: str
    offsets: list[int]
    labels: list[bytes]
    bags: list[bytes]
    sizes: I64
    features: I64
    values: F64


def _parse(lines: Lines, options: SourceOptions) -> _Rows:
    """Rows of some lines; comments and empty lines are passed over."""
    offsets, labels, bags, sizes = [], [], [], []
    pairs: list[bytes] = []
    for offset, line in lines.each():
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        at = 0 if words[0].startswith(b"qid:") else 1
        if len(words) <= at or not words[at].startswith(b"qid:") or len(words[at]) == 4:
            raise SourceError(
                f"{where(lines.path, offset)}: no qid after the labels; it says to which bag the "
                "row belongs: 'labels qid:bag feature:value …'"
            )
        offsets.append(offset)
        labels.append(words[0] if at and not options.no_labels else b"")
        bags.append(words[at][4:])
        sizes.append(len(words) - at - 1)
        pairs += words[at + 1 :]
    ends = from_sizes(sizes)
    try:
        found = parse_rows(b"\n".join(pairs), 2, ":")
    except RowError as error:
        row = int(np.searchsorted(ends, error.row, "right")) - 1
        said = pairs[error.row].decode(errors="replace")[:40]
        raise SourceError(
            f"{where(lines.path, offsets[row])}: {said!r} is no feature:value ({error.reason}); "
            "is the file cut short?"
        ) from None
    rows = _Rows(lines.path, offsets, labels, bags, np.array(sizes, np.int64), *_features(found))
    _check(rows, found, ends)
    return rows


def _features(pairs: F64) -> tuple[I64, F64]:
    with np.errstate(invalid="ignore"):
        return pairs[:, 0].astype(np.int64), pairs[:, 1]


def _check(rows: _Rows, pairs: F64, ends: I64) -> None:
    """Features must be whole, not negative, and different in a row."""

    def wrong(at: int, reason: str) -> SourceError:
        row = int(np.searchsorted(ends, at, "right")) - 1
        return SourceError(f"{where(rows.path, rows.offsets[row])}: feature {reason}")

    features = rows.features
    bad = (features != pairs[:, 0]) | (features < 0) | (features >= MAX_FEATURE)
    if bad.any():
        at = int(bad.argmax())
        raise wrong(at, f"{pairs[at, 0]:g} is no number of a feature, 0 to {MAX_FEATURE - 1}")
    large = np.abs(rows.values) > np.finfo(np.float32).max
    if large.any():
        at = int(large.argmax())
        raise wrong(at, f"{features[at]} is {rows.values[at]:g}, too large for float32")
    order = _order(rows.sizes, features)
    if order is None:
        return
    of_row = np.repeat(np.arange(len(rows.sizes)), rows.sizes)
    same = (np.diff(features[order]) == 0) & (np.diff(of_row[order]) == 0)
    if same.any():
        at = int(order[int(same.argmax()) + 1])
        raise wrong(at, f"{features[at]} comes twice in a row")


def _order(sizes: I64, features: I64) -> I64 | None:
    """The order that sorts features within rows; None if they rise, as they should."""
    if len(features) < 2:
        return None
    rises = features[1:] > features[:-1]
    ends = np.cumsum(sizes)
    rises[ends[(ends > 0) & (ends < len(features))] - 1] = True
    if rises.all():
        return None
    return np.lexsort((features, np.repeat(np.arange(len(sizes)), sizes)))


class _Pass:
    """What one pass over all files learns."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.labels: set[str] = set()
        self.lowest, self.highest = 1, -1
        self.n_rows = 0
        self.seen: set[bytes] = set()
        self.n_bags = 0
        self.least, self.most, self.whole = 0.0, 0.0, True
        self._known: set[bytes] = set()

    def add(self, rows: _Rows) -> None:
        """Take rows in; which bags begin in them is told by :meth:`begins`."""
        self.n_rows += len(rows.bags)
        for said in set(rows.labels) - self._known:
            self._known.add(said)
            row = rows.labels.index(said)
            self.labels.update(_split(said, rows.path, rows.offsets[row]))
        if len(rows.features):
            self.lowest = min(self.lowest, int(rows.features.min()))
            self.highest = max(self.highest, int(rows.features.max()))
            self.least = min(self.least, float(rows.values.min()))
            self.most = max(self.most, float(rows.values.max()))
            self.whole = self.whole and bool((rows.values == np.floor(rows.values)).all())

    def begin(self, rows: _Rows, row: int) -> None:
        """Take in that a bag begins with a row."""
        bag = rows.bags[row]
        if bag in self.seen and not self.options.group:
            name = bag.decode(errors="replace")
            raise SourceError(
                f"{where(rows.path, rows.offsets[row])}: bag {name!r} comes back; --group brings "
                "the rows of a bag together"
            )
        self.seen.add(bag)
        self.n_bags += 1

    @property
    def base(self) -> int:
        """The number of the first feature."""
        return 0 if self.lowest == 0 else 1

    @property
    def dtype(self) -> str:
        """The narrowest type that holds every value seen."""
        if self.whole and self.least >= 0 and self.most <= 255:
            return "uint8"
        if self.whole and self.least >= -128 and self.most <= 127:
            return "int8"
        return "int16" if self.whole and max(-self.least, self.most) < 2**15 else "float32"


def _split(said: bytes, path: str, offset: int) -> list[str]:
    """Labels as written: ``3,7``."""
    labels = [label.strip() for label in as_text(said, path, offset).split(",")] if said else []
    if "" in labels:
        raise SourceError(
            f"{where(path, offset)}: an empty label in {said.decode()!r}; labels are written 3,7"
        )
    return labels


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """One pass over everything: the last feature and all labels must be known."""
    found = _Pass(options)
    spans: list[Span] = []
    for path in paths:
        # A row may end with any feature, and a value with any digit.
        if last_lines(path) is not None:
            raise maybe_cut(path)
        spans += _scan_file(path, found, options)
    if not found.n_rows:
        raise SourceError(f"{paths[0]} has no rows; is it cut short?")
    n_features = found.highest + 1 - found.base
    if options.n_features is not None:
        if options.n_features < n_features:
            raise SourceError(
                f"{paths[0]}: feature {found.highest} occurs, beyond --n-features "
                f"{options.n_features}, counted from {found.base}"
            )
        n_features = options.n_features
    labelling = labelling_of(found.labels, options, str(paths[0]))
    return Scan(
        spans=tuple(spans),
        n_features=max(n_features, 1),
        dtype=found.dtype,
        sparse=True if options.sparse is None else options.sparse,
        label_names=labelling.names,
        n_labels=labelling.n_labels,
        row_labels=options.row_label_column is not None,
        bag_ids=True,
        n_bags=None if options.group else found.n_bags,
        n_rows=found.n_rows,
        notes=(FROM_1 if found.base else FROM_0,),
    )


def _scan_file(path: Path, found: _Pass, options: SourceOptions) -> Iterator[Span]:
    """Spans of a file, cut where bags begin; a bag goes on from file to file as a new one."""
    size, packed = path.stat().st_size, compression_of(path) is not None
    start, n_before, last = 0, found.n_bags, b""
    for lines in line_blocks(path):
        rows = _parse(lines, options)
        found.add(rows)
        for row, bag in enumerate(rows.bags):
            if bag == last:
                continue
            here = rows.offsets[row]
            if not packed and here - start >= options.span_bytes and found.n_bags > n_before:
                yield Span(str(path), start, here, here - start, found.n_bags - n_before)
                start, n_before = here, found.n_bags
            found.begin(rows, row)
            last = bag
    stop = 1 << 62 if packed else size
    if found.n_bags > n_before:
        yield Span(str(path), start, stop, size - start, found.n_bags - n_before)


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Bags of a span, which begins and ends with a bag."""
    making = _Making(scan, options)
    waiting: list[_Rows] = []
    for lines in line_blocks(span.path, span.start, span.stop, aligned=True):
        rows = _parse(lines, options)
        if not rows.bags:
            continue
        # The last bag may go on in the next lines.
        cut = len(rows.bags)
        while cut and rows.bags[cut - 1] == rows.bags[-1]:
            cut -= 1
        goes_on = bool(waiting) and waiting[-1].bags[-1] == rows.bags[0]
        if cut == 0 and (goes_on or not waiting):
            waiting.append(rows)
            continue
        yield making.block([*waiting, _cut(rows, 0, cut)])
        waiting = [_cut(rows, cut, len(rows.bags))]
    if waiting:
        yield making.block(waiting)


def _cut(rows: _Rows, start: int, stop: int) -> _Rows:
    """Some of the rows."""
    ends = from_sizes(rows.sizes)
    part, values = slice(start, stop), slice(int(ends[start]), int(ends[stop]))
    return _Rows(
        rows.path,
        rows.offsets[part],
        rows.labels[part],
        rows.bags[part],
        rows.sizes[part],
        rows.features[values],
        rows.values[values],
    )


class _Making:
    """From rows to blocks of bags."""

    def __init__(self, scan: Scan, options: SourceOptions) -> None:
        self._scan, self._options = scan, options
        self._base = 0 if FROM_0 in scan.notes else 1
        self._labelling: Labelling = labelling_in(scan)
        self._known: dict[bytes, list[int]] = {}

    def block(self, parts: list[_Rows]) -> BagBlock:
        """Whole bags."""
        path = parts[0].path
        bags = [bag for part in parts for bag in part.bags]
        labels = [said for part in parts for said in part.labels]
        offsets = [offset for part in parts for offset in part.offsets]
        starts = [i for i, bag in enumerate(bags) if i == 0 or bag != bags[i - 1]]
        ends = np.append(np.array(starts, np.int64), len(bags))
        of_rows = [self._numbers(path, *said) for said in zip(labels, offsets, strict=True)]
        of_bags = [
            self._of_bag(path, labels, of_rows, offsets, int(a), int(b)) for a, b in pairwise(ends)
        ]
        row_labels = None
        if self._scan.row_labels:
            row_labels = np.array([of[0] if of else -1 for of in of_rows], np.int32)
        numbers = np.array([number for of in of_bags for number in of], np.int32)
        return BagBlock(
            ends,
            self._rows(parts),
            from_sizes([len(of) for of in of_bags]),
            numbers,
            row_labels,
            [as_text(bags[start], path, offsets[start]) for start in starts],
        )

    def _numbers(self, path: str, said: bytes, offset: int) -> list[int]:
        if said in self._known:
            return self._known[said]
        try:
            found = self._labelling.indices(_split(said, path, offset), path)
            return self._known.setdefault(said, found)
        except SourceError as error:
            # Counting lines is dear, so that only an error asks for their number.
            message = str(error).removeprefix(path)
            raise SourceError(where(path, offset) + message) from None

    def _of_bag(
        self,
        path: str,
        labels: list[bytes],
        of_rows: list[list[int]],
        offsets: list[int],
        start: int,
        stop: int,
    ) -> list[int]:
        """Labels of a bag: those that all rows have, or of all rows if they are rows' own."""
        if self._scan.row_labels:
            for row in range(start, stop):
                if len(of_rows[row]) > 1:
                    raise SourceError(
                        f"{where(path, offsets[row])}: a row of {len(of_rows[row])} labels; "
                        "labels of rows are one each, leave --row-label-column out"
                    )
            return sorted({number for of in of_rows[start:stop] for number in of})
        for row in range(start + 1, stop):
            if of_rows[row] != of_rows[start]:
                raise SourceError(
                    f"{where(path, offsets[row])}: labels {labels[row].decode()!r}, but the bag "
                    f"began with {labels[start].decode()!r}; if they are labels of rows, "
                    "--row-label-column labels takes them so"
                )
        return of_rows[start]

    def _rows(self, parts: list[_Rows]) -> NDArray[np.generic] | SparseRows:
        scan = self._scan
        sizes = np.concatenate([part.sizes for part in parts])
        features = np.concatenate([part.features for part in parts]) - self._base
        values = np.concatenate([part.values for part in parts]).astype(scan.dtype)
        order = _order(sizes, features)
        if order is not None:
            features, values = features[order], values[order]
        columns = features.astype(np.uint32)
        sparse = SparseRows(from_sizes(sizes), columns, values, scan.n_features)
        return sparse if scan.sparse else sparse.dense()


def tells(path: Path, first: bytes) -> bool:
    """By suffix, or by a qid near the front of the first line."""
    if bare_suffix(path) in READER.suffixes:
        return True
    lines = (line.split(None, 3)[:2] for line in first.split(b"\n", 20)[:20])
    words = next((of for of in lines if of and not of[0].startswith(b"#")), [])
    return any(word.startswith(b"qid:") for word in words)


READER = Reader(
    name="svmlight",
    suffixes=(".svmlight", ".svm", ".libsvm"),
    line="SVMlight with qid as the bag: '3,7 qid:12 5:0.3 9:1'",
    tells=tells,
    scan=scan,
    read=read,
    may_lack_labels=True,
)
