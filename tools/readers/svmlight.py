"""SVMlight with ``qid``: one row on each line, ``3,7 qid:12 5:0.3 9:1``; the qid names the bag.

The labels before the qid are the labels of the bag, the same on all of its rows. If they differ,
give ``--row-label-column labels``: they are then row labels, and the bag gets the labels of all its
rows. Features are counted from 0 if a feature 0 occurs, otherwise from 1.
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
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes, check_bag, check_dense
from streammiml_tools.readers.text import (
    F64,
    FLOAT32_LIMIT,
    LineBlock,
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
LINE_TIMES = 40
"""Memory for parsing a line, as a multiple of its bytes: every value is a Python object."""


class _ParsedRows(NamedTuple):
    """Parsed lines of one file; features and values of all rows are concatenated."""

    path: str
    offsets: list[int]
    labels: list[bytes]
    bags: list[bytes]
    sizes: I64
    features: I64
    values: F64


def _parse(lines: LineBlock, options: SourceOptions) -> _ParsedRows:
    """Parse lines to rows; comments and empty lines are skipped."""
    offsets, labels, bags, sizes = [], [], [], []
    pairs: list[bytes] = []
    for offset, line in lines.with_offsets():
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        at = 0 if words[0].startswith(b"qid:") else 1
        if len(words) <= at or not words[at].startswith(b"qid:") or len(words[at]) == 4:
            raise SourceError(
                f"{where(lines.path, offset)}: no qid after the labels; qid names the bag "
                "of a row: 'labels qid:bag feature:value …'"
            )
        offsets.append(offset)
        labels.append(words[0] if at and not options.no_labels else b"")
        bags.append(words[at][4:])
        sizes.append(len(words) - at - 1)
        pairs += words[at + 1 :]
    ends = from_sizes(sizes)
    try:
        numbers = parse_rows(b"\n".join(pairs), 2, ":")
    except RowError as error:
        row = int(np.searchsorted(ends, error.row, "right")) - 1
        pair = pairs[error.row].decode(errors="replace")[:40]
        raise SourceError(
            f"{where(lines.path, offsets[row])}: {pair!r} is not feature:value ({error.reason}); "
            "is the file cut short?"
        ) from None
    rows = _ParsedRows(
        lines.path, offsets, labels, bags, np.array(sizes, np.int64), *_features(numbers)
    )
    _check(rows, numbers, ends)
    return rows


def _features(pairs: F64) -> tuple[I64, F64]:
    with np.errstate(invalid="ignore"):
        return pairs[:, 0].astype(np.int64), pairs[:, 1]


def _check(rows: _ParsedRows, pairs: F64, ends: I64) -> None:
    """Refuse features that are not integers from 0, or occur twice in a row; and huge values."""

    def wrong(at: int, reason: str) -> SourceError:
        row = int(np.searchsorted(ends, at, "right")) - 1
        return SourceError(f"{where(rows.path, rows.offsets[row])}: feature {reason}")

    features = rows.features
    bad = (features != pairs[:, 0]) | (features < 0) | (features >= MAX_FEATURE)
    if bad.any():
        at = int(bad.argmax())
        raise wrong(at, f"{pairs[at, 0]:g} is not an integer from 0 to {MAX_FEATURE - 1}")
    large = np.abs(rows.values) >= FLOAT32_LIMIT
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
        raise wrong(at, f"{features[at]} occurs twice in a row")


def _order(sizes: I64, features: I64) -> I64 | None:
    """Order that sorts the features within rows; None if they are sorted already."""
    if len(features) < 2:
        return None
    rises = features[1:] > features[:-1]
    ends = np.cumsum(sizes)
    rises[ends[(ends > 0) & (ends < len(features))] - 1] = True
    if rises.all():
        return None
    return np.lexsort((features, np.repeat(np.arange(len(sizes)), sizes)))


class _PassFacts:
    """Facts that one pass over all files collects: labels, features, rows, bags, values."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        self.options = options
        self.labels: set[str] = set()
        self.lowest, self.highest = 1, -1
        self.n_rows = 0
        self.seen: set[bytes] = set()
        self.n_bags = 0
        self.least, self.most, self.all_integers = 0.0, 0.0, True
        self._known: set[bytes] = set()
        self._held = HeldBytes(path, "ids of bags and labels", options.limits)

    def add(self, rows: _ParsedRows) -> None:
        """Add rows; :meth:`begin` adds the bags that begin in them."""
        self.n_rows += len(rows.bags)
        for text in set(rows.labels) - self._known:
            self._known.add(text)
            row = rows.labels.index(text)
            self.labels.update(_split(text, rows.path, rows.offsets[row]))
            self._held.add(2 * (ID_BYTES + len(text)))
        if len(rows.features):
            self.lowest = min(self.lowest, int(rows.features.min()))
            self.highest = max(self.highest, int(rows.features.max()))
            self.least = min(self.least, float(rows.values.min()))
            self.most = max(self.most, float(rows.values.max()))
            self.all_integers = self.all_integers and bool(
                (rows.values == np.floor(rows.values)).all()
            )

    def begin(self, rows: _ParsedRows, row: int) -> None:
        """Add the bag that begins with a row."""
        bag = rows.bags[row]
        if bag in self.seen and not self.options.group:
            name = bag.decode(errors="replace")
            raise SourceError(
                f"{where(rows.path, rows.offsets[row])}: bag {name!r} returns after other bags; "
                "--group joins the rows of a bag"
            )
        self.seen.add(bag)
        self._held.add(ID_BYTES + len(bag))
        self.n_bags += 1

    @property
    def base(self) -> int:
        """Number of the first feature, 0 or 1."""
        return 0 if self.lowest == 0 else 1

    @property
    def dtype(self) -> str:
        """The narrowest type that holds every value seen."""
        if self.all_integers and self.least >= 0 and self.most <= 255:
            return "uint8"
        if self.all_integers and self.least >= -128 and self.most <= 127:
            return "int8"
        return "int16" if self.all_integers and max(-self.least, self.most) < 2**15 else "float32"


def _split(text: bytes, path: str, offset: int) -> list[str]:
    """Split labels such as ``3,7``."""
    labels = [label.strip() for label in as_text(text, path, offset).split(",")] if text else []
    if "" in labels:
        raise SourceError(
            f"{where(path, offset)}: an empty label in {text.decode()!r}; labels are written 3,7"
        )
    return labels


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Read everything once: the last feature and all labels must be known."""
    facts = _PassFacts(str(paths[0]), options)
    spans: list[Span] = []
    for path in paths:
        # A cut line cannot be recognised: a row may end with any feature and any digit.
        if last_lines(path) is not None:
            raise maybe_cut(path)
        spans += _scan_file(path, facts, options)
    if not facts.n_rows:
        raise SourceError(f"{paths[0]} has no rows; is it cut short?")
    n_features = facts.highest + 1 - facts.base
    if options.n_features is not None:
        if options.n_features < n_features:
            raise SourceError(
                f"{paths[0]}: feature {facts.highest} occurs, beyond --n-features "
                f"{options.n_features}, counted from {facts.base}"
            )
        n_features = options.n_features
    labelling = labelling_of(facts.labels, options, str(paths[0]))
    return Scan(
        spans=tuple(spans),
        n_features=max(n_features, 1),
        dtype=facts.dtype,
        sparse=True if options.sparse is None else options.sparse,
        label_names=labelling.names,
        n_labels=labelling.n_labels,
        row_labels=options.row_label_column is not None,
        bag_ids=True,
        n_bags=None if options.group else facts.n_bags,
        n_rows=facts.n_rows,
        notes=(FROM_1 if facts.base else FROM_0,),
    )


def _scan_file(path: Path, facts: _PassFacts, options: SourceOptions) -> Iterator[Span]:
    """Yield the spans of a file, cut where bags begin; bags do not continue in the next file."""
    size, packed = path.stat().st_size, compression_of(path) is not None
    start, n_before, last = 0, facts.n_bags, b""
    for lines in line_blocks(path, limits=options.limits, times=LINE_TIMES):
        rows = _parse(lines, options)
        facts.add(rows)
        for row, bag in enumerate(rows.bags):
            if bag == last:
                continue
            here = rows.offsets[row]
            if not packed and here - start >= options.span_bytes and facts.n_bags > n_before:
                yield Span(str(path), start, here, here - start, facts.n_bags - n_before)
                start, n_before = here, facts.n_bags
            facts.begin(rows, row)
            last = bag
    stop = 1 << 62 if packed else size
    if facts.n_bags > n_before:
        yield Span(str(path), start, stop, size - start, facts.n_bags - n_before)


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags of a span, which contains complete bags only."""
    builder = _BlockBuilder(scan, options)
    waiting: list[_ParsedRows] = []
    blocks = line_blocks(
        span.path, span.start, span.stop, aligned=True, limits=options.limits, times=LINE_TIMES
    )
    for lines in blocks:
        rows = _parse(lines, options)
        if not rows.bags:
            continue
        # The last bag may continue in the next lines.
        cut = len(rows.bags)
        while cut and rows.bags[cut - 1] == rows.bags[-1]:
            cut -= 1
        continues = bool(waiting) and waiting[-1].bags[-1] == rows.bags[0]
        if cut == 0 and (continues or not waiting):
            waiting.append(rows)
            check_bag(
                f"{span.path}, bag {rows.bags[0].decode(errors='replace')[:40]!r}",
                sum(part.features.nbytes + part.values.nbytes for part in waiting),
                options.limits,
            )
            continue
        yield builder.block([*waiting, _cut(rows, 0, cut)])
        waiting = [_cut(rows, cut, len(rows.bags))]
    if waiting:
        yield builder.block(waiting)


def _cut(rows: _ParsedRows, start: int, stop: int) -> _ParsedRows:
    """Rows ``start`` to ``stop``."""
    ends = from_sizes(rows.sizes)
    part, values = slice(start, stop), slice(int(ends[start]), int(ends[stop]))
    return _ParsedRows(
        rows.path,
        rows.offsets[part],
        rows.labels[part],
        rows.bags[part],
        rows.sizes[part],
        rows.features[values],
        rows.values[values],
    )


class _BlockBuilder:
    """Builds blocks of bags from parsed rows."""

    def __init__(self, scan: Scan, options: SourceOptions) -> None:
        self._scan, self._options = scan, options
        self._base = 0 if FROM_0 in scan.notes else 1
        self._labelling: Labelling = labelling_in(scan)
        self._known: dict[bytes, list[int]] = {}

    def block(self, parts: list[_ParsedRows]) -> BagBlock:
        """Block of complete bags."""
        path = parts[0].path
        bags = [bag for part in parts for bag in part.bags]
        labels = [text for part in parts for text in part.labels]
        offsets = [offset for part in parts for offset in part.offsets]
        starts = [i for i, bag in enumerate(bags) if i == 0 or bag != bags[i - 1]]
        ends = np.append(np.array(starts, np.int64), len(bags))
        labels_of_rows = [
            self._numbers(path, *text_and_offset)
            for text_and_offset in zip(labels, offsets, strict=True)
        ]
        labels_of_bags = [
            self._of_bag(path, labels, labels_of_rows, offsets, int(a), int(b))
            for a, b in pairwise(ends)
        ]
        row_labels = None
        if self._scan.row_labels:
            row_labels = np.array(
                [row_numbers[0] if row_numbers else -1 for row_numbers in labels_of_rows], np.int32
            )
        numbers = np.array(
            [number for row_numbers in labels_of_bags for number in row_numbers], np.int32
        )
        return BagBlock(
            ends,
            self._rows(parts),
            from_sizes([len(row_numbers) for row_numbers in labels_of_bags]),
            numbers,
            row_labels,
            [as_text(bags[start], path, offsets[start]) for start in starts],
        )

    def _numbers(self, path: str, text: bytes, offset: int) -> list[int]:
        if text in self._known:
            return self._known[text]
        try:
            numbers = self._labelling.indices(_split(text, path, offset), path)
            return self._known.setdefault(text, numbers)
        except SourceError as error:
            # Counting lines is slow, so the line number is found only for an error.
            message = str(error).removeprefix(path)
            raise SourceError(where(path, offset) + message) from None

    def _of_bag(
        self,
        path: str,
        labels: list[bytes],
        labels_of_rows: list[list[int]],
        offsets: list[int],
        start: int,
        stop: int,
    ) -> list[int]:
        """Labels of a bag: the labels of any row or, if they are row labels, those of all rows."""
        if self._scan.row_labels:
            for row in range(start, stop):
                if len(labels_of_rows[row]) > 1:
                    raise SourceError(
                        f"{where(path, offsets[row])}: a row of {len(labels_of_rows[row])} labels; "
                        "a row can have one label, leave --row-label-column out"
                    )
            return sorted(
                {number for row_numbers in labels_of_rows[start:stop] for number in row_numbers}
            )
        for row in range(start + 1, stop):
            if labels_of_rows[row] != labels_of_rows[start]:
                raise SourceError(
                    f"{where(path, offsets[row])}: labels {labels[row].decode()!r}, but the bag "
                    f"began with {labels[start].decode()!r}; if they are labels of rows, give "
                    "--row-label-column labels"
                )
        return labels_of_rows[start]

    def _rows(self, parts: list[_ParsedRows]) -> NDArray[np.generic] | SparseRows:
        scan = self._scan
        sizes = np.concatenate([part.sizes for part in parts])
        features = np.concatenate([part.features for part in parts]) - self._base
        values = np.concatenate([part.values for part in parts]).astype(scan.dtype)
        order = _order(sizes, features)
        if order is not None:
            features, values = features[order], values[order]
        columns = features.astype(np.uint32)
        sparse = SparseRows(from_sizes(sizes), columns, values, scan.n_features)
        check_dense(parts[0].path, sparse, scan.sparse, self._options.limits)
        return sparse if scan.sparse else sparse.dense()


def tells(path: Path, first: bytes) -> bool:
    """Whether a file is SVMlight, by its suffix or by a qid in its first line."""
    if bare_suffix(path) in READER.suffixes:
        return True
    lines = (line.split(None, 3)[:2] for line in first.split(b"\n", 20)[:20])
    words = next(
        (line_words for line_words in lines if line_words and not line_words[0].startswith(b"#")),
        [],
    )
    return any(word.startswith(b"qid:") for word in words)


READER = Reader(
    name="svmlight",
    suffixes=(".svmlight", ".svm", ".libsvm"),
    line="SVMlight with qid as the bag: '3,7 qid:12 5:0.3 9:1'",
    tells=tells,
    scan=scan,
    read=read,
    streams=True,
    may_lack_labels=True,
)
